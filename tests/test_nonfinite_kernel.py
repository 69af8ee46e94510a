"""The kernel that counts what is not finite is compiled for the cards that it may meet, on a machine without any."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from brickprof.kernels.nonfinite import _CONSTANTS, _PLACES, _count

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_it_compiles(capability):
    signature = {
        "gate": "*fp32",
        "out": "*i64",
        **dict.fromkeys(_PLACES, "i64"),
        **dict.fromkeys(_CONSTANTS, "constexpr"),
    }
    source = ASTSource(_count.function, signature=signature, constexprs=_CONSTANTS)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert made.asm["cubin"]
    assert made.asm["ptx"].count("atom.") == 2  # one for each column: no loop around them
