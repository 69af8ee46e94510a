"""Hooks on modules, those among them that are compiled in place.

Enters: a module, and what is to be called before and after it. Leaves: handles that take that away again.

Inside compiled code a hook would be traced. A module that was compiled in place (``module.compile()``) is called by way
of ``_compiled_call_impl``, which the compiler never asks for, and which no copy and no checkpoint keeps: what stands
there calls around it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

Before = Callable[[Any, Any], Any]
After = Callable[[Any, Any, Any], Any]
_IMPL = "_compiled_call_impl"
_compiling = torch.compiler.is_compiling


class Handle(Protocol):
    def remove(self) -> None: ...


def around(module: nn.Module, before: Before, after: After | None = None, *, first: bool = False) -> list[Handle]:
    """``first``: before whatever else is called before it."""
    if module.__dict__.get(_IMPL) is None:
        handles: list[Handle] = [module.register_forward_pre_hook(before, prepend=first)]
        return handles if after is None else [*handles, module.register_forward_hook(after)]
    seat = module.__dict__[_IMPL]
    if not isinstance(seat, _Seat):  # or it was compiled anew since
        seat = module.__dict__[_IMPL] = _Seat(module)
    return [seat.add(before, after, first=first)]


class _Seat:
    """Stands in the place of what it calls, and is held by nobody but the module: that is held by what it calls."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._taken: tuple[_Taken, ...] = ()
        self._compiled = module.__dict__[_IMPL]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return self._compiled(*args, **kwargs)
        called, taken = self._module(), self._taken
        for each in taken:
            each.before(called, args)
        output = self._compiled(*args, **kwargs)
        for each in taken:
            if each.after is not None:
                each.after(called, args, output)
        return output

    def add(self, before: Before, after: After | None, *, first: bool) -> _Taken:
        taken = _Taken(self, before, after)
        self._taken = (taken, *self._taken) if first else (*self._taken, taken)
        return taken

    def leave(self, taken: _Taken) -> None:
        self._taken = tuple(each for each in self._taken if each is not taken)
        module = self._module()
        if not self._taken and module is not None and module.__dict__.get(_IMPL) is self:
            module.__dict__[_IMPL] = self._compiled


class _Taken:
    __slots__ = ("_seat", "after", "before")

    def __init__(self, seat: _Seat, before: Before, after: After | None) -> None:
        self._seat = weakref.ref(seat)
        self.before = before
        self.after = after

    def remove(self) -> None:
        seat = self._seat()
        if seat is not None:
            seat.leave(self)
