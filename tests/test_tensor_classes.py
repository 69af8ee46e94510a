"""Tensors of a class of their own, and function modes, are asked as if nobody watched; so are forked children."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from brickprof.capture.pending.watch import wrap
from brickprof.capture.taps import copying, reads
from tests.fake_streams import Gpu

KEPT = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.__getitem__, torch.Tensor.tolist}


class Picture(torch.Tensor):
    """One that stays what it is in some functions, which it knows by identity."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.tolist:
            return ["a picture"]
        return result.as_subclass(cls) if func in KEPT and isinstance(result, torch.Tensor) else result


class Strict(torch.Tensor):
    """One that refuses what it does not know."""

    KNOWN = frozenset({"copy_", "cpu", "to", "__getitem__", "tolist", "numpy", "item", "__bool__", "nonzero"})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ not in cls.KNOWN:
            raise NotImplementedError(f"{func} is not known")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Noting(TorchFunctionMode):
    """A mode that notes which functions of tensors it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Ear:
    def copying(self, way: Any, *, timed: bool) -> Any:
        way()

    def queued(self, mark: Any) -> None: ...
    def copied(self, copy: Any, mark: Any) -> None: ...


@contextmanager
def copies_watched() -> Iterator[None]:
    ear = Ear()
    copying.watch(ear)
    try:
        yield
    finally:
        copying.unwatch(ear)


@contextmanager
def reads_watched() -> Iterator[None]:
    reads.watch()
    try:
        yield
    finally:
        reads.unwatch()


@contextmanager
def streams_watched() -> Iterator[None]:
    gpu = Gpu()
    undo = wrap(gpu.observer)
    try:
        yield
    finally:
        for each in undo:
            each()
    assert gpu.failures == []


WATCHED = pytest.mark.parametrize("watched", [copies_watched, reads_watched, streams_watched])
DONE: list[Callable[[Any], Any]] = [
    lambda x: type(x.to(torch.float16)),
    lambda x: type(x.cpu()),
    lambda x: type(x.to("cpu")),
    lambda x: type(x[[0, 1]]),
    lambda x: x.tolist(),
    lambda x: x[0].item(),
    lambda x: x.numpy().tolist(),
    lambda x: type(x.copy_(torch.zeros(3))),
    lambda x: bool(x[0]),
    lambda x: type(x.nonzero()),
]


def outcome(do: Callable[[Any], Any], given: Any) -> Any:
    try:
        return do(given)
    except Exception as error:
        return type(error), str(error)


@WATCHED
@pytest.mark.parametrize("kind", [Picture, Strict])
def test_a_tensor_of_a_class_of_its_own_does_what_it_does_alone(watched, kind):
    alone = [outcome(do, torch.ones(3).as_subclass(kind)) for do in DONE]
    with watched():
        seen = [outcome(do, torch.ones(3).as_subclass(kind)) for do in DONE]
    assert seen == alone


def test_what_is_tested_tells_the_two_apart():
    picture = torch.ones(3).as_subclass(Picture)
    assert type(picture.to(torch.float16)) is Picture and type(picture.half()) is torch.Tensor
    assert picture.tolist() == ["a picture"]
    with pytest.raises(NotImplementedError):
        torch.ones(3).as_subclass(Strict).sum()


@WATCHED
def test_a_parameter_without_a_shape_can_be_moved(watched):
    with watched():
        moved = torch.nn.UninitializedParameter().to("cpu")
    assert isinstance(moved, torch.nn.UninitializedParameter)


@WATCHED
def test_a_function_mode_is_asked_for_the_same_functions(watched):
    def work() -> list[Any]:
        x = torch.ones(3)
        with Noting() as mode:
            x.to(torch.float16), x.cpu(), x.tolist(), x[[0, 1]], x.copy_(torch.zeros(3)), x.numpy(), bool(x[0])
        return mode.seen

    alone = work()
    with watched():
        assert work() == alone


@WATCHED
def test_what_vmap_is_given_can_be_printed(watched):
    with watched():
        for _ in range(4):
            torch.func.vmap(lambda v: (repr(v), v)[1])(torch.ones(3, 2))


def methods() -> list[int]:
    """Which they are, and not what they are equal to."""
    return [id(getattr(torch.Tensor, name)) for name in ("to", "item", "tolist", "numpy")]


@pytest.mark.parametrize("watched", [copies_watched, reads_watched])
def test_a_forked_child_has_torch_as_it_is(watched):
    before = methods()
    with watched():
        child = os.fork()
        if not child:
            os._exit(0 if methods() == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert methods() != before, "the parent goes on"
    assert methods() == before
