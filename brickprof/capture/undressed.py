"""Modules without our hooks, for as long as somebody takes them apart.

Enters: modules that are about to be scripted, compiled, captured as graphs, copied or saved by code that looks at their
hooks.
Leaves: the same modules, with our hooks back in their places. Nobody else's hook is touched.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WHERE = ("_forward_hooks", "_forward_pre_hooks")


def is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("brickprof.")


Taken = list[tuple[Any, Any, Any]]
"""Hooks, each with where it stood and under which number."""


@contextmanager
def undressed(roots: Iterable[Any]) -> Iterator[None]:
    """Inside it none of ``roots``, nor a module in them, has a hook of ours."""
    taken = take(roots)
    try:
        yield
    finally:
        put_back(taken)


def take(roots: Iterable[Any]) -> Taken:
    """Takes our hooks out of ``roots`` and all that is in them."""
    taken: Taken = []
    for root in roots:
        for module in root.modules() if isinstance(root, torch.nn.Module) else ():
            for name in _WHERE:
                hooks: Any = module.__dict__.get(name) or {}
                for number, hook in list(hooks.items()):
                    if is_ours(hook):
                        taken.append((hooks, number, hooks.pop(number)))
    return taken


def put_back(taken: Taken) -> None:
    for hooks, number, hook in taken:
        hooks[number] = hook


class WhileCompiling:
    """Takes our hooks out of all models for as long as dynamo compiles a frame, which may call them.

    A hook that it finds is traced into what it makes, and guarded: it has to compile the same again when the hook is
    gone, and some of its versions cannot guard every hook. What it makes without them does not know them: inside
    compiled code nobody looks anyway.
    """

    def __init__(self, roots: Callable[[], Iterable[Any]]) -> None:
        self._roots = roots
        self._taken: Taken = []

    def watch(self) -> None:
        """From now on, if it is there; again and again, since its reset forgets."""
        handler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
        with contextlib.suppress(Exception):
            if handler is not None and self._begins not in handler.start_callbacks:
                handler.register_start_callback(self._begins)
                handler.register_end_callback(self._ends)

    def forget(self) -> None:
        handler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
        with contextlib.suppress(Exception):
            if handler is not None and self._begins in handler.start_callbacks:
                handler.remove_start_callback(self._begins)
                handler.remove_end_callback(self._ends)

    def _begins(self, _about: Any = None) -> None:
        with contextlib.suppress(Exception):
            self._ends()
            self._taken = take(self._roots())

    def _ends(self, _about: Any = None) -> None:
        taken, self._taken = self._taken, []
        with contextlib.suppress(Exception):
            put_back(taken)
