"""The names of kernels, as people say them.

Enters: a name as the compiler made it, with every template argument, and often cut off in the middle. Leaves: the name
of the function, and behind a dot what it was made for: ``reduce_kernel · AbsMaxOps``. One that is short stays as it is,
and so does one without templates, such as a Triton kernel's or a cuBLAS product's.
"""

from __future__ import annotations

import re

_NAMELESS = re.compile(r"\((?:anonymous namespace|anonymous class|unnamed)\)::|\{lambda[^{}]{0,400}\}(?:#\d+)?")
_TEMPLATE = re.compile(r"<[^<>]*>")
_DEEPEST = 24
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_SAYS = re.compile(
    r"[Ff]unct\w*$|(?:Ops|Impl|Kernel|_kernel|_cuda|_out|Agent|Sm\d+)$|^(?:launch|cutlass|sm\d+)_|^(?:Flash|Gemm)"
)
_GENERIC = frozenset({"kernel", "device_kernel", "Kernel", "Kernel2", "_kernel_agent", "operator", "type"})
"""Functions that run whatever they are given: without knowing what, the whole name says more."""
_EVERYWHERE = frozenset({
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "multi_tensor_apply_kernel", "ReduceOp", "func_wrapper_t",
})  # fmt: skip
_SHORT, _LONGEST = 60, 4000


def short(name: str) -> str:
    if not _SHORT < len(name) <= _LONGEST:
        return name
    plain = _NAMELESS.sub("", name.strip())
    bare = plain
    for _ in range(_DEEPEST):
        bare, count = _TEMPLATE.subn("", bare)
        if not count:
            break
    before = re.split(r"(?<=\w)\(|<", bare, maxsplit=1)[0].split()  # behind what it returns
    function = before[-1].rpartition("::")[2] if before else ""
    if not function:
        return name
    inside = plain.partition("<")[2]
    words = (word for word in _WORD.findall(inside) if word != function and word not in _EVERYWHERE)
    purpose = next((word for word in words if _SAYS.search(word)), "")
    if function in _GENERIC and not purpose:
        return name
    return f"{function} · {purpose}" if purpose else function
