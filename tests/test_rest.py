"""What makes way while steps are only noted: it is gone, it comes back, and nobody is compiled twice for it."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import brickprof
from brickprof.capture import hub, patches
from brickprof.capture.session import Session
from brickprof.capture.tally import Tally, tally
from tests.test_stretch import STEPS, Training, loader, recorded, stretches

__all__ = ["stretches"]
PLAIN = clip_grad._clip_grads_with_norm_


@pytest.fixture
def resting(monkeypatch):
    """As in a process where nothing was ever compiled, before or behind."""
    begin = patches._Rest.begin

    def afresh(self):
        begin(self)
        self._never = False

    monkeypatch.setattr(patches._Rest, "begin", afresh)


def pre_hooks():
    return [hook for hook in optimizers._global_optimizer_pre_hooks.values() if hook.__module__ == patches.__name__]


class Peeks(Training):
    """Looks what stands in torch while its steps are noted, and while they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[bool, set] = {False: set(), True: set()}

    def step(self, x, number):
        if number > 100:
            found = clip_grad._clip_grads_with_norm_ is PLAIN, pre_hooks() == [patches._nothing]
            self.seen[hub.stretch is not None].add(found)
        return super().step(x, number)


@pytest.mark.parametrize(("level", "gone"), [("light", (True, True)), ("standard", (False, True))])
def test_in_a_stretch_they_are_gone_and_behind_it_back(tmp_path, stretches, resting, level, gone):
    training = Peeks()
    with brickprof.attach(training.net, out=tmp_path, level=level, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
        training.run(loader())
    assert sum(stretches) > 200
    assert training.seen == {True: {gone}, False: {(False, False)}}
    assert clip_grad._clip_grads_with_norm_ is PLAIN and not pre_hooks()


def test_whoever_leaves_in_the_middle_leaves_nothing_behind(tmp_path, stretches, resting):
    class Leaves(Training):
        def step(self, x, number):
            if number > 300 and hub.stretch is not None and len(hub.stretch._rates) == 3:
                raise KeyboardInterrupt
            return super().step(x, number)

    def leave(training):
        with brickprof.attach(training.net, out=tmp_path, level="light", overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
            training.run(loader())

    with pytest.raises(KeyboardInterrupt):
        leave(Leaves())
    assert stretches and clip_grad._clip_grads_with_norm_ is PLAIN and not pre_hooks()
    assert torch.nn.utils.clip_grads_with_norm_ is PLAIN and hub.rest is hub._stay


def test_what_somebody_else_has_put_there_meanwhile_stays(tmp_path, stretches, resting):
    def theirs(*args, **kwargs):
        return PLAIN(*args, **kwargs)

    class Replaces(Training):
        def step(self, x, number):
            if number > 200 and hub.stretch is not None:
                clip_grad._clip_grads_with_norm_ = theirs
            return super().step(x, number)

    training = Replaces()
    try:
        with brickprof.attach(training.net, out=tmp_path, level="light", overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
            training.run(loader())
        assert stretches and clip_grad._clip_grads_with_norm_ is theirs
    finally:
        clip_grad._clip_grads_with_norm_ = PLAIN


@pytest.mark.parametrize("compiled", ["function", "method"])
def test_once_code_was_compiled_nothing_goes(tmp_path, stretches, resting, compiled):
    """A function that clips, or an update: compiled as often as without us."""

    class Compiles(Peeks):
        def __init__(self) -> None:
            super().__init__()
            self.clip_all = None

        def step(self, x, number):
            if self.clip_all is None:
                clip = nn.utils.clip_grad_norm_
                if compiled == "function":
                    self.clip_all = torch.compile(lambda: clip(list(self.net.parameters()), 1.0), backend="eager")
                else:
                    self.clip_all, self.optimizer.step = (
                        lambda: clip(self.net.parameters(), 1.0),
                        torch.compile(self.optimizer.step, backend="eager"),
                    )
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            self.clip_all()
            self.optimizer.step()
            if number > 100:
                self.seen[hub.stretch is not None].add(pre_hooks() == [patches._nothing])
            return loss

    counts = []
    for watch in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        training = Compiles()
        if watch:
            with brickprof.attach(training.net, out=tmp_path, level="light", overhead="0.01%") as watched:
                watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
                training.run(loader())
        else:
            training.run(loader())
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1]
    assert True not in training.seen[True] | training.seen[False]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_where_something_may_have_been_compiled_before_nothing_goes(tmp_path, stretches):
    training = Peeks()  # torch._dynamo is loaded: by this very file
    with brickprof.attach(training.net, out=tmp_path, level="light", overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
        training.run(loader())
    assert sum(stretches) > 200 and training.seen == {True: {(False, False)}, False: {(False, False)}}


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


def test_how_often_gradients_were_cleared_is_known_behind_a_stretch():
    made = Tally()
    for before, cleared, since, known in ((0, 5, 0, 5), (2, 5, 1, 4), (3, 3, 4, 3), (0, 4, 9, 0)):
        made.clears[1], made.zeroed = cleared, 100
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
        run = recorded(tmp_path / str(most), Clears(how), most=most)
        found.append(
            [
                (event.step, event.kind, *(event.fields.get(name) for name in ("zeroed", "cleared", "updates", "held")))
                for event in run.events.itertuples()
                if event.kind in ("held", "loss") and "zeroed" in event.fields and event.step >= 64
            ]
        )
    assert stretches and found[0] and found[0] == found[1]
    assert tally.zeroed >= sum(tally.clears.values()) > 0
