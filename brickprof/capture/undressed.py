"""Modules without our hooks, for as long as somebody takes them apart.

Enters: modules that are about to be scripted, compiled, captured as graphs, copied or saved by code that looks at their
hooks.
Leaves: the same modules, with our hooks back in their places. Nobody else's hook is touched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WHERE = ("_forward_hooks", "_forward_pre_hooks")


def is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("brickprof.")


Taken = list[tuple[Any, list[tuple[Any, Any]]]]
"""What stood in a dictionary of hooks out of which ours were taken."""


@contextmanager
def undressed(roots: Iterable[Any]) -> Iterator[None]:
    """Inside it none of ``roots``, nor a module in them, has a hook of ours."""
    taken: Taken = []
    try:
        take(roots, taken)
        yield
    finally:
        put_back(taken)


def take(roots: Iterable[Any], taken: Taken) -> None:
    """Takes our hooks out of ``roots`` and all that is in them; ``taken`` gets what they stood in."""
    for root in roots:
        for module in root.modules() if isinstance(root, torch.nn.Module) else ():
            for name in _WHERE:
                hooks: Any = module.__dict__.get(name) or {}
                if any(map(is_ours, hooks.values())):
                    taken.append((hooks, list(hooks.items())))
                    for number, hook in taken[-1][1]:
                        if is_ours(hook):
                            del hooks[number]


def put_back(taken: Taken) -> None:
    """Each in its old place: one that was to run first does."""
    for hooks, before in taken:
        now = dict(hooks)
        hooks.clear()
        for number, hook in before:
            if number in now or is_ours(hook):
                hooks[number] = now.pop(number, hook)
        hooks.update(now)


class WhileCompiling:
    """Takes our hooks out of all models for as long as dynamo compiles a frame, which may call them.

    A hook that it finds is traced into what it makes, and guarded: it has to compile the same again when the hook is
    gone, and some of its versions cannot guard every hook. What it makes without them does not know them: inside
    compiled code nobody looks anyway. Where it is told to guard that there is none, they are left where they are.
    """

    def __init__(self, roots: Callable[[], Iterable[Any]]) -> None:
        self._roots = roots
        self._taken: Taken = []
        self._thread = 0

    def watch(self) -> None:
        """From now on, if it is there. Its reset forgets whoever listens, and is told of it again."""
        handler = _handler()
        with contextlib.suppress(Exception):
            if handler is None or self._begins in handler.start_callbacks:
                return
            self._register(handler)
            if "clear" not in vars(handler):
                clear = handler.clear

                def cleared() -> None:
                    clear()
                    self._register(handler)

                handler.clear = cleared

    def _register(self, handler: Any) -> None:
        handler.register_start_callback(self._begins)
        handler.register_end_callback(self._ends)

    def forget(self) -> None:
        handler = _handler()
        with contextlib.suppress(Exception):
            if handler is not None and self._begins in handler.start_callbacks:
                vars(handler).pop("clear", None)
                handler.remove_start_callback(self._begins)
                handler.remove_end_callback(self._ends)
        self.pause()

    def pause(self) -> None:
        """Puts the hooks back, if this is the thread that compiles."""
        if self._thread == threading.get_ident():
            self._ends()

    def _begins(self, _about: Any = None) -> None:
        with contextlib.suppress(Exception):
            if sys.modules["torch._dynamo"].config.skip_nnmodule_hook_guards:
                self._thread = threading.get_ident()
                take(self._roots(), self._taken)

    def _ends(self, _about: Any = None) -> None:
        taken, self._taken = self._taken, []
        with contextlib.suppress(Exception):
            put_back(taken)


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
