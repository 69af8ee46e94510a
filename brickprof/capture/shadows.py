"""A launch made twice: once on copies of its arguments, and whether that may be.

Enters: a ``Call`` of a Triton kernel. Leaves: the same launch on other tensors, or ``Refused`` with the reason, in
words. It is refused wherever a second launch could be noticed: where the kernel reaches memory that is not an
argument of its own, prints, waits for what others write, or where somebody counts launches. What a kernel does is read
from its binary, before it is launched; where there is none (the interpreter), from its arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from brickprof.capture import kernel_indices
from brickprof.capture.guards import Guarded, Unfit
from brickprof.capture.taps import triton_launches
from brickprof.capture.taps.triton_calls import Call

Tensor = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WIDE = (torch.int64, torch.uint64)
_SHARE = 16
"""Of the memory that is free, one part in so many."""
_MOST_BYTES, _MOST_ON_HOST = 1 << 32, 1 << 26
_TELLTALES = (
    (re.compile(r"\btt\.int_to_ptr\b"), "it makes addresses of numbers"),
    (re.compile(r"\btt\.print\b|\btt\.assert\b"), "it prints or asserts"),
    (re.compile(r"\bpure = false\b"), "it holds assembly that may do anything"),
    (re.compile(r"\btt\.\w*(?:tensor_descriptor|descriptor_)"), "it makes tensor descriptors"),
    (re.compile(r"(?s)\A(?=.*\bscf\.while\b).*(?:tt\.atomic_|isVolatile = true)"), "it may wait for what others write"),
)


class Refused(Exception):
    """Why a launch is not made twice."""


def arguments(call: Call) -> dict[str, Tensor]:
    """The tensors that a kernel is given, by its own names for them."""
    named = {**dict(zip(call.function.arg_names, call.args, strict=False)), **call.kwargs}
    found = {name: value for name, value in named.items() if _is_plain(value)}
    if not found:
        raise Refused("it is given no tensor")
    if len({tensor.device for tensor in found.values()}) > 1:
        raise Refused("its arguments are on several devices")
    return found


def numbers(call: Call) -> tuple[dict[str, int], dict[str, int]]:
    """The whole numbers that a kernel is given: sizes and strides, and those that are compiled in."""
    named = {**dict(zip(call.function.arg_names, call.args, strict=False)), **call.kwargs}
    taken = inspect.signature(call.function.fn).parameters
    given = {name: value for name, value in named.items() if type(value) is int and name in taken}
    fixed = {name for name in given if "constexpr" in str(taken[name].annotation)}
    sizes = {name: value for name, value in given.items() if name not in fixed}
    return sizes, {name: given[name] for name in given if name in fixed}


def likeness(call: Call, tensors: Mapping[str, Tensor]) -> Hashable:
    """What a launch has in common with those that are given the same numbers, for tensors laid out the same way."""
    given = (*call.args, *call.kwargs.values())
    laid_out = ((name, each.shape, each.stride()) for name, each in tensors.items())
    return (id(call.function), call.site, *laid_out, *(value for value in given if type(value) is int))


def layout(call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a kernel was told of its arguments, beside what they are."""
    sizes, constants = numbers(call)
    arguments = [
        {"name": name, "shape": list(each.shape), "strides": list(each.stride())} for name, each in tensors.items()
    ]
    bounds = kernel_indices.bounds(call.function.fn, {**sizes, **constants})
    told = {"arguments": arguments, "sizes": sizes, "constants": constants, "bounds": bounds}
    return {**told, "casts": True} if kernel_indices.casts(call.function.fn) else told


def check(call: Call, tensors: Mapping[str, Tensor]) -> str:
    """Refuses what could be noticed; the kernel's name."""
    if call.benchmark:
        raise Refused("it is being tuned")
    if call.function.pre_run_hooks or triton_launches.others_listen():
        raise Refused("somebody else listens to launches")
    if interpreted(call):
        _check_interpreted(call, tensors)
        return str(call.function.__name__)
    _check_home(next(iter(tensors.values())))
    return _check_binary(_compiled(call)) or str(call.function.__name__)


def guarded(tensors: Mapping[str, Tensor]) -> Guarded:
    """The tensors laid out between guards, where there is room for that."""
    try:
        laid_out = Guarded(list(tensors.values()))
    except Unfit as error:
        raise Refused(str(error)) from None
    if laid_out.nbytes > room(next(iter(tensors.values())).device):
        raise Refused("its arguments are too large")
    return laid_out


def launch(call: Call, tensors: Mapping[str, Tensor], copies: list[Tensor]) -> None:
    """The launch with ``copies`` in the place of ``tensors``."""
    swap = {id(tensor): copy for tensor, copy in zip(tensors.values(), copies, strict=True)}
    args = [swap.get(id(value), value) for value in call.args]
    kwargs = {name: swap.get(id(value), value) for name, value in call.kwargs.items()}
    try:
        call.run(call.function, *args, **kwargs)
    except Exception as error:
        raise Refused(_could_not(error)) from None


def interpreted(call: Call) -> bool:
    return type(call.function).__name__ == "InterpretedFunction"


def room(device: torch.device) -> int:
    """How many bytes may be taken for a moment."""
    if device.type != "cuda":
        return _MOST_ON_HOST
    return min(int(torch.cuda.mem_get_info(device)[0]) // _SHARE, _MOST_BYTES)


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor that can be copied; refuses what reaches memory in another way."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, (tuple, list)):
        if any(_is_plain(each) for each in value):
            raise Refused("its tensors are inside a tuple")
    elif isinstance(value, Tensor) or hasattr(value, "data_ptr"):
        raise Refused("a tensor of another kind")
    elif hasattr(value, "block_shape"):
        raise Refused("it is given a tensor descriptor")
    return False


def _check_home(tensor: Tensor) -> None:
    """A kernel runs on the current device, in the order of its stream, and so must the copies."""
    if not tensor.is_cuda:
        raise Refused("its arguments are not in a CUDA device's memory")
    if tensor.device.index != torch.cuda.current_device():
        raise Refused("its arguments are on another device than it")


def _compiled(call: Call) -> Any:
    try:
        return call.run(call.function, *call.args, **{**call.kwargs, "warmup": True})
    except Exception as error:
        raise Refused(_could_not(error)) from None


def _check_binary(compiled: Any) -> str:
    """Refuses by what a binary does; its name."""
    code = getattr(compiled, "asm", None)
    text = code.get("ttir") if isinstance(code, dict) else None
    if not isinstance(text, str):
        raise Refused("its code is not known")
    for telltale, reason in _TELLTALES:
        if telltale.search(text):
            raise Refused(reason)
    metadata = getattr(compiled, "metadata", None)
    if any(getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        raise Refused("it takes memory of its own")
    return str(getattr(compiled, "name", ""))


def _check_interpreted(call: Call, tensors: Mapping[str, Tensor]) -> None:
    if not all(tensor.is_cpu for tensor in tensors.values()):
        raise Refused("the interpreter would wait for the device")
    if any(tensor.dtype in _WIDE for tensor in tensors.values()) or max(numbers(call)[0].values(), default=0) >> 32:
        raise Refused("its numbers may be addresses, and the interpreter has no binary that would tell")
    try:
        source = inspect.getsource(call.function.fn)
    except (OSError, TypeError):
        raise Refused("its code is not known") from None
    if "print" in source or "assert" in source:
        raise Refused("it prints or asserts")


def _could_not(error: Exception) -> str:
    return f"it could not be launched ({type(error).__name__})"
