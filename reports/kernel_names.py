"""The names of kernels, as people say them.

Enters: a name as the compiler made it, with every template argument, and often cut off in the middle. Leaves: the name
of the function, and behind a dot what it was made for: ``reduce_kernel · AbsMaxOps``. One that is short stays as it is,
and so does one without templates, such as a Triton kernel's or a cuBLAS product's.
"""

from __future__ import annotations

import re

_NAMELESS = re.compile(r"\((?:anonymous namespace|anonymous class|unnamed)\)::|\{lambda[^}]*\}(?:#\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_SAYS = re.compile(r"[Ff]unct\w*$|(?:Ops|Impl|Kernel|_kernel|_cuda|_out)$|^(?:launch|cutlass|sm\d+)_")
_EVERYWHERE = frozenset({
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "multi_tensor_apply_kernel", "ReduceOp", "func_wrapper_t",
})  # fmt: skip


_SHORT = 60


def short(name: str) -> str:
    if len(name) <= _SHORT:
        return name
    plain = _NAMELESS.sub("", name.strip().removeprefix("void "))
    function, _, inside = plain.partition("<")
    function = re.split(r"(?<=\w)\(", function, maxsplit=1)[0].rpartition("::")[2].strip()
    if not function:
        return name
    words = (word for word in _WORD.findall(inside) if word != function and word not in _EVERYWHERE)
    purpose = next((word for word in words if _SAYS.search(word)), "")
    return f"{function} · {purpose}" if purpose else function
