"""Queues a kernel again without asking Triton which of its binaries that is.

Enters: a ``triton.jit`` function, a grid, arguments by name. Leaves: the launch, and its binary. Triton works out the
binary of every launch from all of its arguments, which takes the host longer than many kernels take the device. A
launch that is like an earlier one in all that Triton goes by (types, alignment, whether a size is 1, a multiple of 16,
more than 32 bits; constants; options; the device) has the same binary, which is handed straight to its launcher.

Whoever has hooked into Triton's launches sees every one of them: then Triton launches as it always does. So it does
while somebody attends to its calls, which are not made otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

attended = False
"""Whether somebody hears Triton being called, and with what."""


def attend(wanted: bool) -> None:
    """From now on Triton is called for every launch that is the run's own, or no longer."""
    global attended
    attended = wanted


class Queue:
    """The binaries of one function that were launched before."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._names = tuple(function.arg_names)
        self._varying = frozenset(each.name for each in function.params if not each.is_constexpr)
        self._known: dict[Any, tuple[Any, Callable[..., None]]] = {}

    def __call__(self, grid: tuple[int, ...], arguments: Mapping[str, Any], heard: bool = True) -> Any:
        key = self._likeness(arguments)
        known = self._known.get(key)
        if known is not None and not (attended and heard) and not self._function.pre_run_hooks:
            compiled, run = known
            run((*grid, 1, 1)[:3], [address(arguments[name]) for name in self._names])
            return compiled
        compiled = self._function[grid](**arguments)
        if compiled is not None and all(name in arguments for name in self._names):
            self._known[key] = compiled, straight(compiled)
        return compiled

    def _likeness(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        varying = self._varying
        values = [_likeness(value) if name in varying else value for name, value in arguments.items()]
        return (_current_device(), *arguments, *values)


def _likeness(value: Any) -> Any:
    """What Triton goes by in an argument."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, bool):
        return bool
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    if isinstance(value, float):
        return float
    if (base := getattr(value, "base", None)) is not None:
        return base.dtype, *value.block_shape
    return value


def _current_device() -> int:
    from triton.runtime import driver

    return int(driver.active.get_current_device())


def address(value: Any) -> Any:
    """A tensor as the number that the launcher would ask it for; the caller keeps the tensor alive."""
    return value.data_ptr() if isinstance(value, Tensor) else value


def straight(compiled: Any) -> Callable[[tuple[int, ...], list[Any]], None]:
    """Launches a binary as Triton does, less what it prepares for hooks when nobody has hooked in."""
    from triton import knobs
    from triton.runtime import driver

    stream_of, device_of = driver.active.get_current_stream, driver.active.get_current_device
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    run, fixed = compiled.run, (compiled.function, compiled.packed_metadata, None, None, None)

    def launch(grid: tuple[int, ...], values: list[Any]) -> None:
        if enter.calls or leave.calls:
            compiled[grid](*values)
        else:
            run(*grid, stream_of(device_of()), *fixed, *values)

    return launch


def at_home(
    compiled: Any, grid: tuple[int, ...], behind: Sequence[Any], device: int, abroad: Callable[..., None]
) -> Callable[..., None]:
    """The same for one grid and one device, as a function of the first arguments, with those ``behind`` them settled.
    Where another device is current, or somebody has hooked in, it is ``abroad`` that is called. Asked for once in a
    step, it is in no cache: it looks up as little as there can be."""
    from triton import knobs
    from triton.runtime import driver

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    stream_of = driver.active.get_current_stream
    run, (x, y, z), function, metadata = compiled.run, grid, compiled.function, compiled.packed_metadata
    current, rest = torch._C._cuda_getDevice, tuple(behind)

    def launch(*given: Any) -> None:
        if current() != device or enter.calls or leave.calls:
            abroad(*given)
        else:
            run(x, y, z, stream_of(device), function, metadata, None, None, None, *given, *rest)

    return launch
