"""What AOTAutograd makes of a graph: its forward, with what that keeps for its backward.

Enters: forwards that are about to be compiled, and those that come from torch's cache. Leaves: a ``Known`` of each, by
the number that its compiled function has, for as long as the process lives and there is room.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from brickprof.capture import forward
from brickprof.capture.taps import Replace

_MOST_NODES = 200_000
"""Of all forwards together: some tens of megabytes."""
_PACKAGE = "torch._functorch._aot_autograd"
_under_way = threading.local()


class Known(NamedTuple):
    forward: forward.Forward
    parameters: frozenset[int]
    """Inputs that are parameters of a module."""


known: dict[int, Known] = {}


@contextlib.contextmanager
def made_of(module: Any, inputs: Sequence[Any]) -> Iterator[None]:
    """Inside it code is made of the graph ``module``, for these ``inputs``."""
    before = getattr(_under_way, "graph", None)
    _under_way.graph = module, inputs
    try:
        yield
    finally:
        _under_way.graph = before


def install(replace: Replace) -> None:
    """Where AOTAutograd is there already."""
    compiled = sys.modules.get(f"{_PACKAGE}.graph_compile")
    cached = sys.modules.get(f"{_PACKAGE}.aot_autograd_result")
    _put(replace, compiled, "_log_fw_bw_graphs", _compiled)
    _put(replace, getattr(cached, "GenericAOTAutogradResult", None), "wrap_post_compile", _cached)


def _put(replace: Replace, owner: Any, name: str, make: Any) -> None:
    original = vars(owner).get(name) if owner is not None else None
    if original is not None and getattr(original, "__code__", None) is not make(None).__code__:
        replace(owner, name, make)


def _compiled(original: Any) -> Any:
    """It is handed both graphs when they are made, and nothing has been compiled yet."""

    def log(fw_module: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            config: Any = kwargs.get("aot_config", args[-1] if args else None)
            _keep(config.aot_id, forward.of_module(fw_module))
        return original(fw_module, *args, **kwargs)

    return log


def _cached(original: Any) -> Any:
    def wrap(self: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            module, inputs = _under_way.graph
            text = self.aot_forward_graph_str if self.compiled_bw is not None else None
            if text:
                operations = forward.traced(module, _parameters(inputs))
                _keep(aot_config.aot_id, forward.of_text(text, operations))
        return original(self, args, aot_config, *more, **kwargs)

    return wrap


def _keep(number: int, found: forward.Forward | None) -> None:
    if found is None or getattr(_under_way, "graph", None) is None:
        return
    _, inputs = _under_way.graph
    whole = len(inputs) == len(found.inputs)  # not one of several pieces
    known[number] = Known(found, _parameters(inputs) if whole else frozenset())
    while len(known) > 1 and sum(len(each.forward.nodes) for each in known.values()) > _MOST_NODES:
        del known[next(iter(known))]


def _parameters(inputs: Sequence[Any]) -> frozenset[int]:
    return frozenset(place for place, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter))
