"""What torch.compile makes code of: each graph, before anything is made of it.

Enters: graphs that dynamo hands to a compiler. Leaves: a ``graph_compiled`` signal with a ``Compiled``, by which the
code is known afterwards that was made of it; and ``behind``: the autograd graph that the same operations leave
when they run on nothing, tensors that have shapes and no memory, as dynamo itself ran them a moment ago.

Compiled code is one node of the graph behind a loss, whatever is in it. This is how it can be looked into.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from brickprof.capture import graph, hub
from brickprof.capture.taps import Replace, forward_graphs

_OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCHS = frozenset({"aten", "prims"})
"""The operations that do nothing but what they say."""
_ACTS = ("torch.cuda", "torch.distributed", "torch.accelerator", "torch.xpu")
"""Where functions come from that do something without a tensor: streams, events, other ranks."""
_thread = threading.get_ident


class Compiled:
    """A graph, as long as it is being compiled, and what is known of it afterwards."""

    __slots__ = ("inputs", "module", "numbers")

    def __init__(self, module: Any, inputs: Sequence[Any]) -> None:
        self.module: Any = module
        """None when the signal is over."""
        self.inputs: Sequence[Any] = inputs
        self.numbers = range(0)
        """Those of the functions that were made of it; autograd has a node for each call of one. They are several where
        it was cut in pieces, as for DDP: these are called one behind the other."""

    def has(self, function: Any) -> bool:
        """Whether ``function``, a node behind a loss, was made of it."""
        return _number(function) in self.numbers

    def ends_with(self, function: Any) -> bool:
        """Whether it is the last piece."""
        return _number(function) == self.numbers[-1]

    def behind(self) -> list[graph.Node] | None:
        """The nodes of its forward; None where nothing of it is differentiated, its shapes are open, or it cannot be
        run without memory."""
        given = [value for value in self.inputs if isinstance(value, torch.Tensor)]
        if not torch.is_grad_enabled() or not any(value.requires_grad for value in given) or self._is_open():
            return None
        graphs = [part.graph for part in self.module.modules() if isinstance(part, torch.fx.GraphModule)]
        if any(node.op == "call_function" and _acts(node.target) for each in graphs for node in each.nodes):
            return None
        try:
            return self._run()
        except Exception:  # whatever needs a value
            return None

    def _is_open(self) -> bool:
        given = [node.meta.get("example_value") for node in self.module.graph.nodes if node.op == "placeholder"]
        return any(isinstance(value, _OPEN) for value in (*given, *self.inputs))

    def _run(self) -> list[graph.Node] | None:
        from torch._guards import tracing
        from torch._subclasses.fake_tensor import FakeTensorMode

        with tracing(None), _unheard(), FakeTensorMode(allow_non_fake_inputs=True):
            made = self.module(*map(_without_memory, self.inputs))
        values = [value for value in made if isinstance(value, torch.Tensor) and value.grad_fn is not None]
        walks = [graph.nodes(value) for value in values]
        graph.forget()
        if any(len(nodes) >= graph.MOST_NODES for nodes in walks):
            return None
        found = {id(node.function): node for nodes in walks for node in nodes}
        return sorted(found.values(), key=lambda node: node.order)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What runs inside is the compiler's, and no signal of a training: a newer torch says so by itself."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _acts(target: Any) -> bool:
    """Whether a function may do more than to make tensors, for all that one knows: it is not called for us."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).partition(".")[0] not in _TORCHS
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target.name()) == "print"
    return str(getattr(target, "__module__", "") or "").startswith(_ACTS)


def _without_memory(value: Any) -> Any:
    """The like of ``value``, in the mode that is on; never its own memory, which another may be at work on."""
    if not isinstance(value, torch.Tensor):
        return value
    if not _plain(value):
        raise TypeError(type(value).__name__)
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if not value.requires_grad:
        return like
    like.requires_grad_()
    return like if value.is_leaf else like.clone()  # what is no leaf may be written into


def _plain(value: torch.Tensor) -> bool:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return value.layout is torch.strided and not is_traceable_wrapper_subclass(value)


class _Put:
    by: Replace
    """What replaces things of torch's, for those that are there only when the first graph is compiled."""


def install(replace: Replace) -> None:
    """Where dynamo is there already: it is not loaded for us."""
    output_graph = sys.modules.get("torch._dynamo.output_graph")
    made_by = getattr(output_graph, "OutputGraph", None)
    original = vars(made_by).get("call_user_compiler") if made_by is not None else None
    _Put.by = replace
    if original is not None and getattr(original, "__code__", None) is not _code:
        replace(made_by, "call_user_compiler", _told)


def _told(original: Any) -> Any:
    def call(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = args[0] if args else kwargs.get("example_inputs", ())
        if not any(session.thread == _thread() for session in hub.sessions):  # it is not what is trained
            return original(self, module, *args, **kwargs)
        told, first = _tell(module, inputs), _next_number()
        try:
            with forward_graphs.made_of(module, inputs):
                return original(self, module, *args, **kwargs)
        finally:
            told.numbers = range(first, _next_number())

    return call


def _tell(module: Any, inputs: Sequence[Any]) -> Compiled:
    told = Compiled(module, inputs)
    with contextlib.suppress(Exception):
        forward_graphs.install(_Put.by)
        hub.tell("graph_compiled", told)
    told.module, told.inputs = None, ()
    return told


_code = _told(None).__code__


def _number(function: Any) -> int:
    """-1 of what is no compiled code."""
    number = getattr(getattr(type(function), "_forward_cls", None), "_aot_id", -1)
    return number if isinstance(number, int) else -1


def _next_number() -> int:
    """Of functions that AOTAutograd makes; nobody is given it for this."""
    made = sys.modules.get("torch._functorch.aot_autograd")
    told = re.fullmatch(r"count\((\d+)\)", repr(getattr(made, "AOT_COUNTER", None)))
    return int(told[1]) if told else 0
