"""Clips whose norms are caught, epochs, cleared gradients, and losses that somebody writes over: told as they were."""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import math
import sys
import threading
import time
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.utils.data import DataLoader, TensorDataset

import brickprof
from brickprof.capture import hub, patches
from brickprof.capture.desk import Desk, desk
from brickprof.capture.session import Session
from brickprof.capture.vigil import Names, ends_of
from tests.test_stretch import STEPS, Placed, Training, loader, recorded, stretches

__all__ = ["stretches"]


# -- norms


def clips(run):
    return [event.fields for event in run.events.itertuples() if event.kind == "clip"]


@pytest.mark.parametrize("kind", [2.0, math.inf, 1.0])
@pytest.mark.parametrize("level", ["light", "standard"])
def test_which_norm_a_clip_has_computed_is_told(tmp_path, level, kind):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path, level=level) as watched:
        for _ in range(4):
            net(torch.ones(2, 4)).sum().backward()
            if kind == 2.0:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            else:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=kind)
            optimizer.step()
            optimizer.zero_grad()
    found = clips(brickprof.load(watched.folder))
    assert found and {fields["norm_type"] for fields in found} == {kind}


def test_norms_are_caught_however_the_clip_was_imported(tmp_path, monkeypatch):
    clip, caught = clip_grad.clip_grad_norm_, []
    keep = hub.keep_vigil
    monkeypatch.setattr(hub, "keep_vigil", lambda given, **kw: caught.append(kw.get("norms")) or keep(given, **kw))
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path):
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
            total = clip(net.parameters(), 1e9)
            each = [float(p.grad.norm()) for p in net.parameters()]
            optimizer.step()
            norms = next(found for found in reversed(caught) if found is not None)
            assert norms.total is total and norms.each.tolist() == pytest.approx(each)
            optimizer.zero_grad()
    assert clip_grad._get_total_norm.__module__ == clip_grad.__name__ and torch.stack is patches._stack


def test_a_clip_that_raises_leaves_nothing_behind(tmp_path):
    net = nn.Linear(4, 1)
    with brickprof.attach(net, out=tmp_path):
        (net(torch.ones(2, 4)).sum() * math.inf).backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        assert torch.stack is patches._stack and patches._caught.thread == 0


def test_another_threads_clip_is_its_own(tmp_path):
    net, other = nn.Linear(4, 1), nn.Linear(3, 1)
    other(torch.ones(2, 3)).sum().backward()
    inside: list[torch.Tensor] = []
    stack, here = patches._catch, threading.get_ident()

    def beside(*args, **kwargs):
        if threading.get_ident() == here:
            thread = threading.Thread(target=lambda: inside.append(nn.utils.clip_grad_norm_(other.parameters(), 1e9)))
            thread.start()
            thread.join()
        return stack(*args, **kwargs)

    with brickprof.attach(net, out=tmp_path):
        net(torch.ones(2, 4)).sum().backward()
        patches._catch = beside
        try:
            total = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        finally:
            patches._catch = stack
        assert torch.stack is patches._stack
    assert float(total) == pytest.approx(math.hypot(*(float(p.grad.norm()) for p in net.parameters())))
    assert float(inside[0]) == pytest.approx(math.hypot(*(float(p.grad.norm()) for p in other.parameters())))


def test_norms_of_one_clip_are_not_told_as_those_of_another(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(hub, "keep_vigil", lambda given, **kw: seen.append(kw.get("norms")))
    net, without = nn.Linear(4, 1), nn.Linear(4, 1)
    with brickprof.attach(net, out=tmp_path):
        (net(torch.ones(2, 4)).sum() * math.inf).backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        nn.utils.clip_grad_norm_(without.parameters(), 1.0)
    assert seen == [None]


# -- epochs, and what is only counted


class Again(Training):
    """The same loader from its beginning, again and again."""

    def __init__(self, evaluates=False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.data = TensorDataset(torch.randn(50, 4))
        self.evaluates = evaluates

    def run(self, batches):
        batches = DataLoader(self.data, batch_size=1)
        for epoch in range(STEPS // 50):
            for number, (x,) in enumerate(batches):
                self.step(x, 50 * epoch + number)
            if self.evaluates:
                with torch.no_grad():
                    for (y,) in DataLoader(self.data, batch_size=10):
                        self.loss(y)


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_epoch_that_follows_another_goes_on_as_it_did(tmp_path, stretches, monkeypatch, evaluates):
    plain = recorded(tmp_path / "plain", Again(evaluates), most=0)
    assert not stretches
    alone, told = [], Session.pass_backward
    monkeypatch.setattr(Session, "pass_backward", lambda self, *given: alone.append(self.step) or told(self, *given))
    run = recorded(tmp_path / "stretched", Again(evaluates), most=64)
    assert sum(stretches) > 300
    losses = [
        {event.step: event.fields["value"] for event in each.events.itertuples() if event.kind == "loss"}
        for each in (plain, run)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS
    ends = {step for step in alone if step > 130 and not step % 50}
    assert len(ends) >= 5 if evaluates else len(ends) <= 1  # one may end right behind a step that was looked at
    exits = [next(e.fields for e in each.events.itertuples() if e.kind == "exit") for each in (plain, run)]
    assert exits[0]["steps"] == exits[1]["steps"] and exits[0]["updates"] == exits[1]["updates"]
    started = [sum(e.kind == "loader" for e in each.events.itertuples()) for each in (plain, run)]
    assert started[0] == started[1]


def cleared(made: Desk, owner: int, times: int) -> None:
    """As ``zero_grad`` does it."""
    for _ in range(times):
        made.zeroed += 1
        if made.owner != owner:
            made.cleared(owner)


def test_who_has_cleared_gradients_is_told_apart():
    made, known = Desk(), Counter()
    for owner, times in ((7, 1), (7, 2), (8, 1), (7, 1), (9, 3), (8, 2), (8, 1), (7, 1)):
        cleared(made, owner, times)
        known[owner] += times
        assert {each: made.clears(each) for each in (7, 8, 9, 10)} == {each: known[each] for each in (7, 8, 9, 10)}
        assert made.zeroed == known.total()


def test_how_often_gradients_were_cleared_is_known_behind_a_stretch():
    for before, times, since, known in ((0, 5, 0, 5), (2, 5, 1, 4), (3, 3, 4, 3), (0, 4, 9, 0)):
        made = Desk()
        cleared(made, 2, 50)
        cleared(made, 1, times)
        cleared(made, 2, 50 - times)
        made.passed(1, before, 100 - since)
        assert made.updated[1] == known


class Clears(Training):
    """By whom and when gradients are cleared, or not at all."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def step(self, x, number):
        if self.how == "model first":
            self.net.zero_grad()
        elif self.how == "first":
            self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        if self.how == "model last":
            self.net.zero_grad()
        elif self.how == "last":
            self.optimizer.zero_grad()
        return loss


@pytest.mark.parametrize("how", ["first", "last", "model first", "model last", "never"])
def test_what_is_told_of_cleared_gradients_is_the_same(tmp_path, stretches, how):
    found = []
    for most in (0, 8):
        training = Clears(how)
        owners = [id(training.optimizer), id(training.net)]
        before, zeroed = [desk.clears(owner) for owner in owners], desk.zeroed
        run = recorded(tmp_path / str(most), training, most=most)
        counted = [desk.clears(owner) - count for owner, count in zip(owners, before, strict=True)]
        by_model, ever = "model" in how, how != "never"
        assert counted == [STEPS * (ever and not by_model), STEPS * by_model] and desk.zeroed - zeroed == STEPS * ever
        found.append(
            [
                (event.step, event.kind, *(event.fields.get(name) for name in ("zeroed", "cleared", "updates", "held")))
                for event in run.events.itertuples()
                if event.kind in ("held", "loss") and "zeroed" in event.fields and event.step >= 64
            ]
        )
    assert stretches and found[0] and found[0] == found[1]


# -- losses that somebody writes over


class Runs(Training):
    """A window of losses is added up in place, in the first of them."""

    def __init__(self, every, at) -> None:
        super().__init__()
        self.every, self.at, self.right, self.running = every, at, [], None

    def step(self, x, number):
        loss = super().step(x, number)
        self.right.append(loss.item())
        if number % self.every == self.at:
            self.running = loss.detach()
        elif self.running is not None:
            self.running += loss.detach()
        return loss


def wrong(run, right):
    told = {event.step: event.fields["value"] for event in run.events.itertuples() if event.kind == "loss"}
    return {step: value for step, value in told.items() if value != right[step]}, len(told)


@pytest.mark.parametrize(("every", "at"), [(50, 49), (100, 0), (100, 50), (200, 150), (250, 3)])
@pytest.mark.parametrize("level", ["light", "standard"])
def test_a_loss_that_others_are_added_to_is_not_told_as_their_sum(tmp_path, stretches, level, every, at):
    training = Runs(every, at)
    with brickprof.attach(training.net, out=tmp_path, level=level, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, 16)
        training.run(loader())
    found, count = wrong(brickprof.load(watched.folder), training.right)
    assert stretches and not found and count >= STEPS - 3


class Rotates(Training):
    """From some step on losses lie in one of a few places, in turn, as those of replayed graphs do."""

    def __init__(self, places, first) -> None:
        super().__init__()
        self.places, self.right, self.first = [torch.zeros(()) for _ in range(places)], [], first

    def loss(self, x):
        made, number = super().loss(x), len(self.right)
        self.right.append(made.item())
        if number < self.first:
            return made
        place = self.places[number % len(self.places)]
        ctypes.c_float.from_address(place.data_ptr()).value = made.item()
        return Placed.apply(made, place)


@pytest.mark.parametrize("places", [1, 2, 3, 8])
@pytest.mark.parametrize(("level", "most", "first"), [("light", 64, 250), ("standard", 16, 250), ("standard", 8, 265)])
def test_losses_in_a_few_places_are_told_right_or_not_at_all(tmp_path, stretches, level, most, first, places):
    training = Rotates(places, first)
    with brickprof.attach(training.net, out=tmp_path, level=level, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, most)
        training.run(loader())
    run = brickprof.load(watched.folder)
    found, count = wrong(run, training.right)
    dropped = next(event.fields["dropped"]["readback"] for event in run.events.itertuples() if event.kind == "exit")
    assert stretches and not found and count + dropped == STEPS and dropped <= 2 * most + 8


@pytest.mark.parametrize("first", range(262, 330, 3))
def test_one_place_from_any_step_on_is_told_right_or_not_at_all(tmp_path, stretches, first):
    training = Rotates(1, first)
    run = recorded(tmp_path, training, most=8)
    found, count = wrong(run, training.right)
    dropped = next(event.fields["dropped"]["readback"] for event in run.events.itertuples() if event.kind == "exit")
    assert not found and count + dropped == STEPS and dropped <= 40


def test_one_place_where_every_second_step_is_looked_at(tmp_path, stretches):
    training = Rotates(1, 100)
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: 0
        adapt = watched._session.cadence._adapt

        def every_second(step):
            adapt(step)
            cadence = watched._session.cadence
            cadence.stride, cadence.least, cadence._quiet = dict.fromkeys(cadence.stride, 2), 2, 0
            return False

        watched._session.cadence._adapt = every_second
        training.run(loader())
    found, count = wrong(brickprof.load(watched.folder), training.right)
    assert not found and count > STEPS - 24


class Strays(Training):
    """Now and then a backward fails, for what it was to begin with is no single number."""

    def __init__(self) -> None:
        super().__init__()
        self.right = set()

    def step(self, x, number):
        if number % 60 == 37:
            with pytest.raises(RuntimeError, match="scalar"):
                self.net(torch.cat([x, x])).square().backward()
        loss = super().step(x, number)
        self.right.add(loss.item())
        return loss


def test_what_is_no_loss_is_not_told_as_one(tmp_path, stretches):
    training = Strays()
    run = recorded(tmp_path, training, most=16)
    end = next(event.fields for event in run.events.itertuples() if event.kind == "exit")
    told = [event.fields["value"] for event in run.events.itertuples() if event.kind == "loss"]
    assert stretches and end["updates"] == STEPS and set(told) - {None} <= training.right


def test_a_loss_of_another_type_now_and_then_is_told_like_any(tmp_path, stretches):
    class Falls(Training):
        def loss(self, x):
            made = super().loss(x)
            self.count = getattr(self, "count", 0) + 1
            return made.double() if self.count % 30 == 25 else made

    run = recorded(tmp_path, Falls(), most=16)
    losses, count = wrong(run, [None] * STEPS)
    end = next(event.fields for event in run.events.itertuples() if event.kind == "exit")
    assert stretches and count == STEPS == len(losses) and end["dropped"]["readback"] == 0
    assert not any(event.kind == "probe_off" for event in run.events.itertuples())


def test_no_loss_holds_something_large(tmp_path, stretches):
    class Slices(Training):
        held = 0

        def loss(self, x):
            made = super().loss(x)
            if desk.stretch is not None:
                sizes = [noted[1].untyped_storage().nbytes() for noted in desk.stretch._passed]
                self.held = max(self.held, *sizes, 0)
            self.count = getattr(self, "count", 0) + 1
            return torch.cat([made[None], torch.ones(1 << 16)])[0] if self.count > 150 and self.count % 4 == 1 else made

    training = Slices()
    recorded(tmp_path, training, most=16)
    assert stretches and training.held <= 1024


class Closes(Training):
    """Now and then the update computes its gradients itself, ten times."""

    def step(self, x, number):
        if number % 41 != 40:
            return super().step(x, number)

        def closure():
            for _ in range(10):
                self.optimizer.zero_grad()
                loss = self.loss(x)
                loss.backward()
            return loss

        return self.optimizer.step(closure)


def test_updates_that_differentiate_are_one_step_each(tmp_path, stretches):
    ends = []
    for most in (0, 8):
        run = recorded(tmp_path / str(most), Closes(), most=most)
        ends.append(next(event.fields for event in run.events.itertuples() if event.kind == "exit"))
    assert stretches and [(end["steps"], end["updates"]) for end in ends] == [(STEPS, STEPS)] * 2


# -- what somebody else has put in the place of torch's own


class Forwarded:
    """What libraries wrap functions in that look like them from every side: attributes, code, signature."""

    def __init__(self, wrapped, does) -> None:
        self.__dict__.update(vars(wrapped), __wrapped__=wrapped, _does=does)
        for name in ("__code__", "__name__", "__qualname__", "__module__", "__defaults__"):
            self.__dict__[name] = getattr(wrapped, name)

    def __get__(self, owner, kind):
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args, **kwargs):
        return self._does(self.__wrapped__, args, kwargs)


def keeps_zeros(wrapped, args, kwargs):
    kwargs["set_to_none"] = False
    return wrapped(*args, **kwargs)


def by_torchs_decorator(wrapped):
    def zero_grad(self, set_to_none=False):
        return wrapped(self, set_to_none)

    return torch.no_grad()(zero_grad)


@pytest.fixture
def bare():
    """torch as it is, before anybody is attached."""
    patches.uninstall()
    yield
    patches.uninstall()


def test_functions_of_torch_are_known_by_their_parameters(bare):
    for owner, name in (
        (torch.autograd, "backward"),
        (torch.optim.Optimizer, "zero_grad"),
        (nn.Module, "zero_grad"),
        (clip_grad, "_clip_grads_with_norm_"),
        (torch.optim.lr_scheduler.LRScheduler, "step"),
    ):
        there = owner.__dict__[name]
        patches.install()
        assert owner.__dict__[name].__code__.co_name == "lean", name
        patches.uninstall()
        assert owner.__dict__[name] is there


@pytest.mark.parametrize("theirs", [lambda wrapped: Forwarded(wrapped, keeps_zeros), by_torchs_decorator])
def test_what_is_not_torchs_gets_what_it_was_given(bare, monkeypatch, theirs):
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", theirs(torch.optim.Optimizer.zero_grad))
    patches.install()
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad()
    assert net.weight.grad.tolist() == [[0.0, 0.0]]
    patches.uninstall()


def test_losses_that_can_be_gone_through_only_once_are_left_to_torch(tmp_path):
    weight = nn.Parameter(torch.ones(2))
    with brickprof.attach(nn.ParameterList([weight]), out=tmp_path):
        torch.autograd.backward(each for each in (weight.sum(), 2 * weight.sum()))
    assert weight.grad.tolist() == [3.0, 3.0]


def test_a_clip_that_is_not_torchs_gets_what_it_was_given(bare, monkeypatch, tmp_path):
    seen, original = [], nn.utils.clip_grads_with_norm_

    @functools.wraps(original)
    def theirs(parameters, *args, **kwargs):
        seen.append(parameters)
        return original(parameters.parameters() if isinstance(parameters, nn.Module) else parameters, *args, **kwargs)

    monkeypatch.setattr(nn.utils, "clip_grads_with_norm_", theirs)
    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    with brickprof.attach(net, out=tmp_path, level="deep"):
        for given in (net, net.weight, (net.weight, net.bias), [net.weight]):
            nn.utils.clip_grads_with_norm_(given, 1.0, torch.tensor(5.0))
            assert seen.pop() is given
        nn.utils.clip_grads_with_norm_((each for each in (net.weight, net.bias)), 1.0, torch.tensor(5.0))
        assert seen.pop() == [net.weight, net.bias]
        nn.utils.clip_grad_value_({"w": net.weight}.values(), 1.0)


def test_a_clip_that_nobody_called_has_no_norm_to_name(tmp_path):
    """Straight from C: there is no frame before ours."""
    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    broken = []
    hook, sys.unraisablehook = sys.unraisablehook, broken.append
    try:
        with brickprof.attach(net, out=tmp_path, level="deep"):
            _thread.start_new_thread(nn.utils.clip_grads_with_norm_, (list(net.parameters()), 1.0, torch.tensor(5.0)))
            for _ in range(200):
                if broken or abs(float(net.bias.grad) - 0.2) < 1e-3:
                    break
                time.sleep(0.05)
            time.sleep(0.2)
    finally:
        sys.unraisablehook = hook
    assert not broken and abs(float(net.bias.grad) - 0.2) < 1e-3


def test_parameters_are_known_when_they_are_gone_and_others_lie_there():
    made = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    names, ends = Names(made), ends_of(made)
    others = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    assert names.end_with(ends) and not names.end_with(None)
    assert not names.end_with(ends_of(others)) and not names.end_with(ends_of([made[0], others[1]]))
    del made
    gc.collect()
    assert ends[0]() is None and names.end_with(ends)
    for _ in range(64):  # some of them where the others were
        others.append(nn.Parameter(torch.ones(1)))
        assert not names.end_with(ends_of(others[-1:]))


@pytest.mark.parametrize("how", ["given", "forwarded"])
def test_a_backward_that_is_not_torchs_gets_what_it_was_given(bare, monkeypatch, how):
    seen, original = [], torch.autograd.backward

    def does(wrapped, args, kwargs):
        seen.append((len(args), kwargs))
        return wrapped(*args, **kwargs)

    made = Forwarded(original, does)
    if how == "given":
        made = functools.wraps(original)(lambda *args, **kwargs: does(original, args, kwargs))
    monkeypatch.setattr(torch.autograd, "backward", made)
    patches.install()
    weight = torch.ones(2, requires_grad=True)
    torch.autograd.backward(weight.sum(), retain_graph=True)
    torch.autograd.backward(tensors=[weight.sum()])
    patches.uninstall()
    assert weight.grad.tolist() == [2.0, 2.0]
    assert [(count, sorted(kwargs)) for count, kwargs in seen] == [(1, ["retain_graph"]), (0, ["tensors"])]
