"""After a session on a device torch and Triton have every function and method that they had before it."""

from __future__ import annotations

import pytest
import torch
from as_found import left_as_found, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

LEVELS = [
    {"level": "light"}, {"level": "standard"}, {"level": "standard", "deep_at": 3}, {"level": "deep"},
    {"level": "standard", "sync_check": True}, {"level": "standard", "deep_at": 3, "sync_check": True},
]  # fmt: skip


@triton.jit
def doubled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def work():
    train("cuda")
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled[(4,)](x, 1000, BLOCK=256)
    torch.Event("cuda").query()
    side.synchronize()
    assert x.sum().item() == 2000


@pytest.mark.parametrize("how", LEVELS, ids=lambda how: "-".join(map(str, how.values())))
def test_nothing_of_torch_or_triton_stays_replaced(tmp_path, how):
    left_as_found(tmp_path, work, **how)
