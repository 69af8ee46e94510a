"""Modules without our hooks, for as long as somebody takes them apart.

Enters: modules that are about to be scripted, captured as graphs, copied or saved by code that looks at their hooks.
Leaves: the same modules, with our hooks back in their places. Nobody else's hook is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WHERE = ("_forward_hooks", "_forward_pre_hooks")


def is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("brickprof.")


@contextmanager
def undressed(roots: Iterable[Any]) -> Iterator[None]:
    """Inside it none of ``roots``, nor a module in them, has a hook of ours."""
    taken: list[tuple[Any, Any, Any]] = []
    for root in roots:
        for module in root.modules() if isinstance(root, torch.nn.Module) else ():
            for name in _WHERE:
                hooks: Any = module.__dict__.get(name) or {}
                for number, hook in list(hooks.items()):
                    if is_ours(hook):
                        taken.append((hooks, number, hooks.pop(number)))
    try:
        yield
    finally:
        for hooks, number, hook in taken:
            hooks[number] = hook
