"""Every change brickprof makes to torch, in one place: reversible, idempotent, silent while compiling.

Enters: nothing. Leaves: signals to ``brickprof.capture.hub``. Each wrapper calls the original with exactly
the arguments it was given and returns exactly what that returned; a signal never raises.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler, optimizer
from torch.utils.data import dataloader

from brickprof.capture import hub
from brickprof.capture.desk import desk
from brickprof.capture.surroundings import graph_is_made, saves_by_itself
from brickprof.capture.taps import (
    arguments,
    collectives,
    compiled_graphs,
    kineto,
    losses,
    pruning,
    states,
    tables,
)
from brickprof.capture.undressed import WhileCompiling, is_ours, undressed
from brickprof.capture.vigil import Norms

_undo: list[Callable[[], None]] = []
_TORCH = torch.__file__.removesuffix("__init__.py")
_REQUIRED = inspect.Parameter.empty
_first_call: Any = None
_counter = time.perf_counter_ns
_thread = threading.get_ident
_compiling = torch.compiler.is_compiling
_traced = torch.compiler.is_dynamo_compiling
"""The same, and less: it knows nothing of exports and of what a compiler's own code calls. It is the cheapest of what
torch has to tell, and asked several times in every step, in no cache."""

_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""Of the backward that is under way in this thread: one inside it is part of it. -1 where none is."""


def install() -> None:
    """Patches torch; a second call does nothing."""
    if _undo:
        return
    _patch_autograd()
    _patch_saving()
    _patch_optimizers()
    _patch_clipping()
    _patch_schedulers()
    _patch_scaler()
    _patch_loader()
    _patch_compile()
    _patch_graphs()
    _patch_copies()
    for tap in (losses, states, collectives, pruning, tables, arguments, kineto, compiled_graphs):
        tap.install(_replace)
    watch_first_call()


def uninstall() -> None:
    """Puts everything back as it was."""
    while _undo:
        _undo.pop()()
    forget_first_call()


def installed() -> bool:
    return bool(_undo)


def _is_torchs(original: Any, **defaults: Any) -> bool:
    """Whether it is a function of torch itself, all the way down, with these parameters: a wrapper that spells them out
    is called in half the time, and may hand on what nobody has given. Somebody else's may understand that otherwise."""
    try:
        inner = inspect.unwrap(original, stop=lambda layer: not _is_function_of_torch(layer))
        found = [(name, each.default) for name, each in inspect.signature(original).parameters.items()]
        return _is_function_of_torch(inner) and found == list(defaults.items())
    except Exception:
        return False


def _is_function_of_torch(found: Any) -> bool:
    return type(found) is FunctionType and found.__code__.co_filename.startswith(_TORCH)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces ``owner.name`` by ``make(original)``, remembering how to undo it."""
    original = owner.__dict__[name]
    plain = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
    wrapper = functools.wraps(plain)(make(plain))
    put = type(original)(wrapper) if isinstance(original, (staticmethod, classmethod)) else wrapper
    setattr(owner, name, put)

    def undo() -> None:
        if owner.__dict__.get(name) is put:  # somebody else may have wrapped us since
            setattr(owner, name, original)

    _undo.append(undo)


def _patch_saving() -> None:
    def make(original: Any) -> Any:
        def enter(self: Any) -> Any:
            if not _traced():
                saves_by_itself()
            return original(self)

        return enter

    _replace(torch.autograd.graph.saved_tensors_hooks, "__enter__", make)


# -- autograd


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a backward frees less than the whole graph: it is to be kept, or differentiated, or run in part."""
    names = ("retain_graph", "create_graph", "grad_variables", "inputs")
    given = dict(zip(names, args[2:], strict=False)) | kwargs
    return any(given.get(name) is not None and given[name] is not False for name in names if name != "grad_variables")


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a backward has no gradient to begin with, keeps no graph and is one of all leaves."""
    return len(args) > 0 and all(given is None or given is False for given in (*args[1:], *kwargs.values()))


def _patch_autograd() -> None:
    def backward(original: Any) -> Any:
        def send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """One that no stretch has noted."""
            stretch = desk.stretch
            if stretch is not None:
                if _task() != -1:
                    return original(*args, **kwargs)
                stretch.differs()
                hub.settle()
            losses = _losses(args, kwargs)
            upstream = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            hub.training()
            session = None if desk.listening else hub.pass_backward(losses, upstream, _is_plain(args, kwargs))
            if session is not None:
                try:
                    return original(*args, **kwargs)
                finally:
                    session.backward_depth = 0
            hub.keeps_graph = _keeps_graph(args, kwargs)
            hub.in_part = (args[5] if len(args) > 5 else kwargs.get("inputs")) is not None
            hub.send("backward_begin", losses, upstream)
            ok = False
            try:
                result = original(*args, **kwargs)
                ok = True
                return result
            finally:
                hub.send("backward_end", losses, ok)

        def call(*args: Any, **kwargs: Any) -> Any:
            if _traced():
                return original(*args, **kwargs)
            stretch = desk.stretch
            if stretch is not None and _is_plain(args, kwargs) and stretch.backward(args[0]):
                return original(*args, **kwargs)
            return send(args, kwargs)

        def lean(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: Any = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> Any:
            if not _traced():
                stretch = desk.stretch
                if (
                    stretch is None
                    or grad_tensors is not None
                    or not (retain_graph is None or retain_graph is False)
                    or create_graph is not False
                    or grad_variables is not None
                    or inputs is not None
                    or not stretch.backward(tensors)
                ):
                    return send((tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs), {})
            return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)

        known = _is_torchs(
            original,
            tensors=_REQUIRED,
            grad_tensors=None,
            retain_graph=None,
            create_graph=False,
            grad_variables=None,
            inputs=None,
        )
        return lean if known else call

    def grad(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _compiling():
                hub.send("note", "torch.autograd.grad is used: its gradients reach no parameter by themselves")
            return original(*args, **kwargs)

        return call

    _replace(torch.autograd, "backward", backward)
    _replace(torch.autograd, "grad", grad)


def _losses(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    given = args[0] if args else kwargs.get("tensors", ())
    if isinstance(given, torch.Tensor):
        return [given]
    # What can be gone through only once is not ours to go through.
    return [each for each in given if isinstance(each, torch.Tensor)] if isinstance(given, list | tuple) else []


# -- optimizers


def _patch_optimizers() -> None:
    def add_param_group(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not _compiling():
                hub.training()
                hub.send("optimizer_built", self)
                forget_first_call()
            return result

        return call

    def zero_grad(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not _traced():
                desk.clear(id(self))
                if desk.listening:
                    to_none = args[0] if args else kwargs.get("set_to_none", True)
                    hub.emit("zero_grad", self, bool(to_none))
            return result

        def lean(self: Any, set_to_none: Any = True) -> Any:
            result = original(self, set_to_none)
            if not _traced():
                desk.clear(id(self))
                if desk.listening:
                    hub.emit("zero_grad", self, bool(set_to_none))
            return result

        return lean if _is_torchs(original, self=_REQUIRED, set_to_none=True) else call

    _replace(optimizer.Optimizer, "add_param_group", add_param_group)
    _replace(optimizer.Optimizer, "zero_grad", zero_grad)
    _replace(torch.nn.Module, "zero_grad", zero_grad)
    desk.lists_wanted = _catch_lists
    before = optimizer.register_optimizer_step_pre_hook(_optimizer_begin)
    after = optimizer.register_optimizer_step_post_hook(_optimizer_end)
    _undo.append(before.remove)
    _undo.append(after.remove)


def _catch_lists() -> None:
    """From now on the lists are wanted that torch's optimizers go by that update many tensors at once. All of them have
    these put in order by one function."""
    desk.lists_wanted = None

    def group(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _compiling():
                stretch = desk.stretch
                if stretch is not None and stretch.caught is not None:
                    stretch.catch(args[0] if args else kwargs.get("tensorlistlist"))
            return original(*args, **kwargs)

        return call

    if "_group_tensors_by_device_and_dtype" in optimizer.Optimizer.__dict__:
        _replace(optimizer.Optimizer, "_group_tensors_by_device_and_dtype", group)


def _optimizer_begin(stepping: Any, _args: Any, _kwargs: Any) -> None:
    # Where nobody looks, the end says enough. An optimizer that computes gradients itself is another matter.
    if _traced():
        return
    stretch = desk.stretch
    if stretch is not None:
        expected = stretch.waits and id(stepping) == stretch.whose and len(_args) <= 1 and not _kwargs
        if expected and (not stretch.due or stretch.begins(stepping)):
            return
        hub.settle()
    if desk.listening or len(_args) > 1 or _kwargs:
        hub.send("optimizer_begin", stepping)
    if torch.cuda.is_initialized():
        hub.keep_vigil(stepping)


def _optimizer_end(stepping: Any, _args: Any, _kwargs: Any) -> None:
    if not _traced():
        stretch = desk.stretch
        if stretch is not None and stretch.updated(stepping):
            if not stretch.open:
                stretch.close()
            return
        if stretch is not None and stretch.caught is not None:
            hub.settle()
        if desk.owed:
            owed, desk.owed = desk.owed, 0
            if owed == id(stepping):
                hub.keep_vigil(stepping)  # what was applied is still there
        desk.updated[id(stepping)] = desk.clears(id(stepping))
        if hub.passes("pass_update", stepping):
            hub.stretch_out(stepping)
        else:
            hub.send("optimizer_end", stepping)


# -- clipping


def _patch_clipping() -> None:
    def apply(original: Any) -> Any:
        """torch's second half of clipping: the norm is known, the gradients are still whole."""

        def send(
            ours: list[Any],
            norms: Norms | None,
            parameters: Any,
            max_norm: Any,
            total_norm: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            """One that no stretch has noted."""
            hub.keep_vigil(ours, clipping=True, norms=norms)
            if not desk.listening:
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            hub.emit("clip_begin", ours, total_norm)
            result = original(parameters, max_norm, total_norm, *args, **kwargs)
            fields = {
                "max_norm": max_norm, "norm_type": _norm_type(), "tensors": len(ours), "how": "norm",
            }  # fmt: skip
            hub.emit("clip_end", fields, total_norm)
            return result

        def call(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if _traced():
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            stretch = desk.stretch
            if stretch is not None and not (desk.takes_norms or stretch.due):
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            ours, parameters = _listed(parameters)
            norms = _norms(total_norm) if desk.takes_norms else None
            if ours is None or (stretch is not None and stretch.clipped(ours, norms)):
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            return send(ours, norms, parameters, max_norm, total_norm, *args, **kwargs)

        def lean(parameters: Any, max_norm: Any, total_norm: Any, foreach: Any = None) -> Any:
            if not _traced():
                stretch = desk.stretch
                if stretch is None or desk.takes_norms or stretch.due:
                    ours = parameters
                    if type(ours) is not list:
                        ours, parameters = _listed(parameters)
                    norms = _norms(total_norm) if desk.takes_norms else None
                    if ours is not None and (stretch is None or not stretch.clipped(ours, norms)):
                        return send(ours, norms, parameters, max_norm, total_norm, foreach)
            return original(parameters, max_norm, total_norm, foreach)

        given = dict.fromkeys(("parameters", "max_norm", "total_norm"), _REQUIRED)
        return lean if _is_torchs(original, **given, foreach=None) else call

    def value(original: Any) -> Any:
        def call(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
            if _compiling() or not desk.listening:
                return original(parameters, clip_value, *args, **kwargs)
            ours, parameters = _listed(parameters)
            if ours is None:
                return original(parameters, clip_value, *args, **kwargs)
            hub.emit("clip_begin", ours, None)
            result = original(parameters, clip_value, *args, **kwargs)
            fields = {"max_norm": clip_value, "tensors": len(ours), "how": "value"}
            hub.emit("clip_end", fields, None)
            return result

        return call

    # clip_grad_norm_ looks its second half up when it runs, so that is seen however it was imported.
    _replace(clip_grad, "_clip_grads_with_norm_", apply)
    _replace(torch.nn.utils, "clip_grads_with_norm_", apply)
    _replace(clip_grad, "clip_grad_value_", value)
    _replace(torch.nn.utils, "clip_grad_value_", value)
    hub.norms_wanted = _catch_norms
    _undo.append(_forget_wishes)


def _norm_type() -> Any:
    """Which norm the clip under way has computed: it says so to nobody but itself."""
    frame = sys._getframe(2).f_back
    if frame is None or frame.f_code.co_name != "clip_grad_norm_":
        return None
    return frame.f_locals.get("norm_type")


def _forget_wishes() -> None:
    """Nothing more is caught for anybody."""
    hub.norms_wanted = desk.lists_wanted = None


def _catch_norms() -> None:
    """From now on the norms are wanted that torch's clipping computes, of each gradient and of all. Its first half is
    looked up when it runs, too."""
    hub.norms_wanted = None

    def total(original: Any) -> Any:
        def call(tensors: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
            if _traced() or not desk.takes_norms or norm_type != 2.0 or torch.stack is not _stack:
                return original(tensors, norm_type, *args, **kwargs)
            caught = _caught
            caught.each = caught.total = None
            caught.thread = _thread()
            torch.stack = _catch
            try:
                caught.total = result = original(tensors, norm_type, *args, **kwargs)
                stretch = desk.stretch
                if stretch is not None and stretch.due and stretch.thread == caught.thread and type(tensors) is list:
                    stretch.gradients = tensors
                return result
            finally:
                caught.thread = 0
                if torch.stack is _catch:
                    torch.stack = _stack

        return call

    if "_get_total_norm" in clip_grad.__dict__:
        _replace(clip_grad, "_get_total_norm", total)


class _Caught:
    """What a clip has computed. There is one at a time: while one is under way, another thread's is not caught."""

    __slots__ = ("each", "thread", "total")

    def __init__(self) -> None:
        self.thread = 0
        """The one it is under way in."""
        self.each: Any = None
        """The norms of its gradients."""
        self.total: Any = None


_caught = _Caught()
_stack = torch.stack


def _catch(*args: Any, **kwargs: Any) -> Any:
    """Where torch's clipping puts its norms together, for as long as it runs. Other threads pass through."""
    together = _stack(*args, **kwargs)
    if _caught.thread == _thread():
        _caught.each = together
    return together


def _norms(total: Any) -> Norms | None:
    """The norms behind ``total``, where they were caught; only once."""
    caught = _caught
    each = caught.each
    if caught.total is not total or type(each) is not torch.Tensor or type(total) is not torch.Tensor:
        return None
    caught.each = caught.total = None
    if each.dtype is torch.float16:
        return None  # which has no number for many a norm
    try:
        return Norms(total, each, total._version)
    except RuntimeError:  # what is of an inference has no version
        return None


def _listed(parameters: Any) -> tuple[list[Any] | None, Any]:
    """A list of them for us, None where they are nothing that we know, and what to hand on in their place: they
    themselves, unless they can be gone through only once."""
    if isinstance(parameters, torch.Tensor):
        return [parameters], parameters
    if isinstance(parameters, Iterator):
        ours = list(parameters)
        return ours, ours
    try:
        return (list(parameters) if isinstance(parameters, Collection) else None), parameters
    except Exception:
        return None, parameters


# -- schedulers, scaler, loader


def _patch_schedulers() -> None:
    def step(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not _traced():
                desk.scheduled += 1
                if desk.listening:
                    hub.emit("scheduled", self)
            return result

        def lean(self: Any, epoch: Any = None) -> Any:
            result = original(self, epoch)
            if not _traced():
                desk.scheduled += 1
                if desk.listening:
                    hub.emit("scheduled", self)
            return result

        return lean if _is_torchs(original, self=_REQUIRED, epoch=None) else call

    def judge(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not _traced():
                hub.tell("plateau_judged", self, args[0] if args else kwargs.get("metrics"))
            return result

        return call

    for cls in vars(lr_scheduler).values():
        if inspect.isclass(cls) and issubclass(cls, lr_scheduler.LRScheduler) and "step" in cls.__dict__:
            _replace(cls, "step", step)
    _replace(lr_scheduler.ReduceLROnPlateau, "step", judge)


def _patch_scaler() -> None:
    scaler = torch.amp.grad_scaler.GradScaler

    def scale(original: Any) -> Any:
        def call(self: Any, outputs: Any) -> Any:
            result = original(self, outputs)
            if not _compiling() and hub.sessions and self.is_enabled():
                hub.send("scaling", self, (outputs, result))
            return result

        return call

    def unscale(original: Any) -> Any:
        def call(self: Any, stepping: Any) -> Any:
            if not _compiling() and self.is_enabled():
                hub.send("unscale_begin", self, stepping)
            return original(self, stepping)

        return call

    def step(original: Any) -> Any:
        def call(self: Any, stepping: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, stepping, *args, **kwargs)
            if not _compiling() and self.is_enabled():
                hub.send("scaler_step", self, stepping)
            return result

        return call

    def update(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not _compiling() and self.is_enabled():
                hub.emit("scaler_update", self)
            return result

        return call

    for name, make in (("scale", scale), ("unscale_", unscale), ("step", step), ("update", update)):
        _replace(scaler, name, make)


def _patch_loader() -> None:
    def fetch(original: Any) -> Any:
        def call(self: Any) -> Any:
            stretch = desk.stretch
            begun = stretch is not None and stretch.entered
            if stretch is not None and (stretch.begins_step() or hub.goes_on()):
                try:
                    return original(self)
                except StopIteration:
                    hub.ran_out(self, begun=begun)
                    raise
            if not hub.sessions:
                return original(self)
            if not hub.passes("pass_fetch"):
                hub.send("fetch_begin", self)
            if not desk.listening and not hub.every_batch:
                return original(self)
            start = _counter()
            batch, fetched = None, False
            try:
                batch = original(self)
                fetched = True
                return batch
            finally:
                hub.tell("fetch_end", self, batch if fetched else None, _counter() - start)

        return call

    def iterate(original: Any) -> Any:
        def call(self: Any) -> Any:
            iterator = original(self)
            if hub.sessions:
                hub.loads(self, iterator)
            return iterator

        return call

    _replace(dataloader._BaseDataLoaderIter, "__next__", fetch)
    _replace(dataloader.DataLoader, "__iter__", iterate)


# -- copies


def _patch_graphs() -> None:
    def begin(original: Any) -> Any:
        """What was noted is dealt with before: no work of ours may get into the graph, nor be held in its memory."""

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            graph_is_made()
            hub.settle()
            return original(self, *args, **kwargs)

        return call

    _replace(torch.cuda.CUDAGraph, "capture_begin", begin)


def _patch_copies() -> None:
    """A module that is copied or pickled goes without our hooks: they belong to the one that is being watched."""
    if "__reduce_ex__" in torch.nn.Module.__dict__:
        return

    def reduce(self: Any, protocol: Any) -> Any:
        made = super(torch.nn.Module, self).__reduce_ex__(protocol)
        return _without_hooks(made) if isinstance(made, tuple) and len(made) > 2 else made

    torch.nn.Module.__reduce_ex__ = reduce  # type: ignore[method-assign]
    _undo.append(lambda: delattr(torch.nn.Module, "__reduce_ex__"))

    def bare(original: Any) -> Any:
        """What takes a module apart by its own code, hooks and all."""

        def call(*args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else next(iter(kwargs.values()), None)
            with undressed(first if isinstance(first, tuple | list) else (first,)):
                return original(*args, **kwargs)

        return call

    def script(original: Any) -> Any:
        """It looks names up in the frame that called it: ours is one more."""
        up = "_frames_up" in inspect.signature(original).parameters

        def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if up and len(args) < 2:
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            with undressed((obj,)):
                return original(obj, *args, **kwargs)

        return call

    _replace(torch.jit, "script", script)
    _replace(torch.cuda, "make_graphed_callables", bare)
    _replace(torch.fx.GraphModule, "__deepcopy__", bare)

    def reduced(original: Any) -> Any:
        """It hands its state out as it is: what is of it is only looked at later."""

        def call(self: Any) -> Any:
            made = original(self)
            if not isinstance(made, tuple) or len(made) < 2 or not isinstance(made[1], tuple):
                return made
            told = tuple(_without_hooks(("", "", each))[2] if isinstance(each, dict) else each for each in made[1])
            return (made[0], told, *made[2:])

        return call

    _replace(torch.fx.GraphModule, "__reduce__", reduced)


def _without_hooks(made: tuple[Any, ...]) -> tuple[Any, ...]:
    state = made[2]
    if not isinstance(state, dict):
        return made
    ours = {
        name: type(hooks)((number, hook) for number, hook in hooks.items() if not is_ours(hook))
        for name in ("_forward_hooks", "_forward_pre_hooks")
        if isinstance(hooks := state.get(name), dict) and any(map(is_ours, hooks.values()))
    }
    return (*made[:2], {**state, **ours}, *made[3:]) if ours else made


# -- compile, and the first call of a model that has no optimizer


def _patch_compile() -> None:
    def compile_(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            _about_to_compile(args[0] if args else kwargs.get("model"))
            return original(*args, **kwargs)

        return call

    def compile_in_place(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            _about_to_compile(self)
            told = original(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                hub.tell("compiled_in_place", self)
            return told

        return call

    _replace(torch, "compile", compile_)
    _replace(torch.nn.Module, "compile", compile_in_place)
    _while_compiling.watch()  # something was handed to it before
    _undo.append(_while_compiling.forget)


def _roots() -> list[Any]:
    """Models that have hooks of ours, or may, of whoever trains in this thread: hooks of another come and go meanwhile.
    What was noted is dealt with before: what a compiler runs is not to be seen by it, nor is a loss to be held that it
    is about to write over."""
    ours = [session for session in hub.sessions if session.thread == _thread()]
    if ours:
        hub.settle()
    return [root for session in ours for root in session.census.roots()]


_while_compiling = WhileCompiling(_roots)


def _about_to_compile(module: Any) -> None:
    # A global hook would be traced into the graph, and its removal would compile everything again.
    forget_first_call()
    with contextlib.suppress(Exception):  # what it has to say is told to whoever compiles
        import torch._dynamo

        _while_compiling.pause()  # in the middle of another: hooks are to be found where they were put
        _while_compiling.watch()
        compiled_graphs.install(_replace)
    if isinstance(module, torch.nn.Module):
        hub.training()
        hub.send("compiling", module)
    else:
        hub.send("compiling_code")


def watch_first_call() -> None:
    """Until a model is found by its optimizer, the first module that runs with gradients on is a sign too."""
    global _first_call
    if _first_call is None:
        _first_call = module_hooks.register_module_forward_pre_hook(_called)


def forget_first_call() -> None:
    global _first_call
    if _first_call is not None:
        _first_call.remove()
        _first_call = None


def _called(module: Any, _args: Any) -> None:
    if _compiling() or not torch.is_grad_enabled():
        return
    if any(parameter.requires_grad for parameter in module.parameters()):
        forget_first_call()
        hub.training()
        hub.send("first_forward", module)
