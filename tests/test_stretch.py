"""Stretches of steps that nobody looks at: what is noted and dealt with later is what is dealt with at once."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import threading
import weakref
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import brickprof
from brickprof.capture import cadence, hub, patches
from brickprof.capture import lookout as lookouts
from brickprof.capture.cadence import Cadence
from brickprof.capture.desk import desk
from brickprof.capture.fused import Fused
from brickprof.capture.session import Session
from brickprof.capture.stretch import _NOTED_NS, Stretch, Stretches
from brickprof.operators.launch import FLOATS
from brickprof.run import Run
from tests.late import pretend
from tests.test_readback_keep import Device

STEPS = 500


def loader(count=STEPS):
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(count, 4)), batch_size=1)


class Training:
    """A plain loop, with something unusual in some of its steps."""

    def __init__(self, clip=True) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.clip = clip

    def loss(self, x):
        return self.net(x).square().mean()

    def step(self, x, number):
        loss = self.loss(x)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def run(self, batches):
        for number, (x,) in enumerate(batches):
            self.step(x, number)


class Evaluates(Training):
    def step(self, x, number):
        super().step(x, number)
        if number % 50 == 40:
            with torch.no_grad():
                for (y,) in loader(5):
                    self.loss(y)


class Accumulates(Training):
    """Two backward passes in some steps."""

    def step(self, x, number):
        if number % 60 == 30:
            self.loss(x).backward()
        return super().step(x, number)


class Skips(Training):
    """Steps without an update."""

    def step(self, x, number):
        if number % 45 == 20:
            self.loss(x).backward()
            return None
        return super().step(x, number)


class Leaps(Training):
    def step(self, x, number):
        if number in (200, 203):
            self.optimizer.param_groups[0]["lr"] *= 10
        if number in (202, 210):
            self.optimizer.param_groups[0]["lr"] /= 10
        return super().step(x, number)


class Keeps(Training):
    """A graph that is differentiated twice."""

    def step(self, x, number):
        if number % 70 == 35:
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward(retain_graph=True)
            loss.backward()
            self.optimizer.step()
            return loss
        return super().step(x, number)


class Bricks(Training):
    def step(self, x, number):
        if number % 80 == 44:
            with brickprof.brick("mine"):
                return super().step(x, number)
        return super().step(x, number)


class Epochs(Training):
    def run(self, batches):
        for epoch in range(10):
            for number, (x,) in enumerate(loader(50)):
                self.step(x, 50 * epoch + number)


class Escalates(Training):
    """Steps that are looked at in full: other modules have hooks in them, and after them."""

    def step(self, x, number):
        if number in (150, 300):
            hub.settle()
            for session in hub.sessions:
                session.cadence.escalate(session.step + 8)
        return super().step(x, number)


class Rehooks(Training):
    """Hooks come in the middle of steps that nobody looks at."""

    def step(self, x, number):
        if number % 90 == 50:
            for session in hub.sessions:
                session.emit("models_found")
        return super().step(x, number)


class ClearsLast(Training):
    """Gradients are cleared when they have been used."""

    def step(self, x, number):
        loss = self.loss(x)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class UnderAMode(Training):
    """Steps in which nobody may touch a tensor but the script."""

    def step(self, x, number):
        if number % 47 == 40:
            with FlopCounterMode(display=False):
                return super().step(x, number)
        return super().step(x, number)


class InParts(Training):
    """Several backward passes in every step, in some of them more or fewer."""

    parts = 2
    others: ClassVar[dict[int, int]] = {}

    def step(self, x, number):
        self.optimizer.zero_grad()
        for part in range(self.others.get(number % 50, self.parts)):
            self._differentiate(self.loss(x + part / 8) / self.parts, number)
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()

    def _differentiate(self, loss, number):
        loss.backward()


class InPartsNotAlways(InParts):
    parts, others = 3, {7: 2, 20: 4, 33: 1, 46: 9}


class InPartsThatAreKept(InParts):
    """Some graphs are kept."""

    def _differentiate(self, loss, number):
        loss.backward(retain_graph=number % 30 == 0)


class InManyParts(InParts):
    parts = 8


class InTooManyParts(InParts):
    parts = 9


class InPartsOfTheLoader(Training):
    """Every batch is differentiated, one of three updates, and an epoch may end in the middle of a step."""

    each = 3

    def run(self, batches):
        batches = loader(500) if isinstance(batches, DataLoader) else batches
        number = 0
        for _ in range(self.each):
            for (x,) in batches:
                if number % self.each == 0:
                    self.optimizer.zero_grad()
                (self.loss(x) / self.each).backward()
                number += 1
                if number % self.each == 0:
                    if self.clip:
                        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                    self.optimizer.step()


class ClipsEachPart(InParts):
    def _differentiate(self, loss, number):
        super()._differentiate(loss, number)
        if number % 40 > 30:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)


KINDS = [
    Training,
    InParts,
    InPartsNotAlways,
    InPartsThatAreKept,
    InManyParts,
    InPartsOfTheLoader,
    ClipsEachPart,
    Evaluates,
    Accumulates,
    Skips,
    Leaps,
    Keeps,
    Bricks,
    Epochs,
    Escalates,
    Rehooks,
    ClearsLast,
    UnderAMode,
]


@pytest.fixture
def stretches(monkeypatch):
    """The lengths of all stretches; losses come some steps later, as from a device. Looking is always dear: which steps
    are looked at does not go by the clock."""
    pretend(monkeypatch, 0.0)
    measured = Cadence.measured
    monkeypatch.setattr(Cadence, "measured", lambda self, way, ns: measured(self, way, 1e9))
    monkeypatch.setattr(cadence, "_CREDIT_NS", 0)
    device = Device()
    monkeypatch.setattr(Fused, "gather", lambda self, number: device)
    lengths: list[int] = []
    over = Stretches.over

    def counted(self, number, steps, noted_ns):
        lengths.append(steps.begun)
        over(self, number, steps, noted_ns)

    monkeypatch.setattr(Stretches, "over", counted)
    return lengths


def recorded(folder, training, *, most, batches=None, ranks=1):
    """``most`` steps a stretch."""
    with brickprof.attach(training.net, out=folder, overhead="0.01%") as watched:
        watched._session.world_size = ranks
        watched._session.idle = lambda step, longest, *, clips: min(longest, most)
        training.run(loader() if batches is None else batches)
        assert len(hub.sessions) == 1
    assert desk.stretch is None
    return Run.open(watched.folder)


def told(run):
    """What there is to know about steps that nobody looked at."""
    found = [event for event in run.events.itertuples() if event.kind == "loss"]
    losses = {(event.step, event.fields["micro"]): event.fields["value"] for event in found}
    end = next(event.fields for event in run.events.itertuples() if event.kind == "exit")
    looked = sorted({event.step for event in run.events.itertuples() if event.kind == "optimizer"})
    looked += [(event.step, event.fields["zeroed"]) for event in found if "zeroed" in event.fields]
    return losses, looked, end["steps"], end["updates"], end["dropped"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_what_is_noted_is_what_would_have_been_told(tmp_path, stretches, kind, clip, loads):
    batches = loader() if loads else list(loader())  # steps begin with a batch, or when the model runs
    plain = recorded(tmp_path / "plain", kind(clip), most=0, batches=batches)
    assert not stretches
    run = recorded(tmp_path / "stretched", kind(clip), most=6, batches=batches)
    if kind is Keeps:  # two losses in one place look like a graph that is replayed: none is held from there on
        assert stretches
    else:
        assert sum(stretches) > 200 and max(stretches) == 6
    losses, *counts = told(plain)
    stretched, *others = told(run)
    if kind is UnderAMode:  # to note a loss is no operation: those are known that else nobody may touch
        assert {step % 47 for step, _ in stretched.keys() - losses.keys()} <= {40}
    else:
        assert stretched.keys() == losses.keys()
    assert losses.keys() <= stretched.keys() and counts == others and len(losses) > 480
    assert all(stretched[at] == losses[at] for at in losses)


def test_so_many_backwards_that_somebody_may_have_gone_over_to_updates_by_hand_are_not_noted(tmp_path, stretches):
    recorded(tmp_path, InTooManyParts(), most=6)
    assert not stretches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loads", [True, False])
def test_the_same_at_light_where_no_model_is_seen_to_run(tmp_path, stretches, kind, loads):
    found = []
    for most in (0, 6):
        training = kind()
        with brickprof.attach(training.net, out=tmp_path / str(most), level="light", overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips, most=most: min(longest, most)
            training.run(loader() if loads else list(loader()))
        assert desk.stretch is None and bool(stretches) is bool(most)
        found.append(told(Run.open(watched.folder)))
    (losses, *counts), (stretched, *others) = found
    assert counts == others and losses.items() <= stretched.items() and len(losses) > 480
    assert len(stretched) - len(losses) <= (11 if kind is UnderAMode else 0)
    assert counts[1] == counts[2]


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize(("level", "most"), [("light", 128), ("standard", 32)])
def test_at_light_they_are_longer(tmp_path, stretches, level, most, loads):
    training = Training()
    with brickprof.attach(training.net, out=tmp_path, level=level, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: longest
        training.run(loader() if loads else list(loader()))
    assert max(stretches) == most


@pytest.mark.parametrize("loads", [True, False])
def test_one_follows_the_other_at_once(tmp_path, stretches, monkeypatch, loads):
    alone = []
    told = Session.pass_backward
    monkeypatch.setattr(Session, "pass_backward", lambda self, *given: alone.append(self.step) or told(self, *given))
    recorded(tmp_path, Training(), most=6, batches=loader() if loads else list(loader()))
    looked = {step for step in range(STEPS + 1) if not step % 64 or not step % 100} | {STEPS}
    # Alone are steps around those that are looked at, and none between two stretches.
    assert sum(stretches) > 300 and all({step - 2, step - 1, step, step + 1} & looked for step in alone if step > 128)


class Pauses(Training):
    """Once, the first step of a stretch takes longer than all of it may."""

    cut = 0

    def step(self, x, number):
        under_way = desk.stretch
        if number > 300 and not self.cut and under_way is not None and not under_way._passed:
            under_way._until, self.cut = 0, number
        return super().step(x, number)


@pytest.mark.parametrize("loads", [True, False])
def test_a_stretch_of_one_step_is_told_before_the_next_begins(tmp_path, stretches, loads):
    batches = loader() if loads else list(loader())
    plain = told(recorded(tmp_path / "plain", Training(), most=0, batches=batches))
    training = Pauses()
    assert told(recorded(tmp_path / "stretched", training, most=6, batches=batches)) == plain and training.cut


class RunsOut(Training):
    """Another loader comes to its end between a forward and its backward, where something is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = []

    def loss(self, x):
        loss = super().loss(x)
        if self._number % 9 == 0:
            self._other = iter(loader(1))
            next(self._other)
        if self._number % 9 == 8:
            assert not list(self._other)
            hub.fact("note", {"text": str(self._number)})
            self.told += [(self._number, session.step) for session in hub.sessions]
        return loss

    def step(self, x, number):
        self._number = number
        return super().step(x, number)


def test_a_loader_that_ends_takes_nothing_back_that_has_begun(tmp_path, stretches):
    training = RunsOut()
    recorded(tmp_path, training, most=6, batches=list(loader()))
    assert stretches and len(training.told) > 50 and all(number == step for number, step in training.told)


def test_batches_of_an_evaluation_are_not_what_steps_begin_with(tmp_path, stretches):
    recorded(tmp_path, Evaluates(), most=6, batches=list(loader()))
    assert sum(stretches) > 300


class LeapsOnce(Training):
    def __init__(self, at) -> None:
        super().__init__()
        self.at = at

    def step(self, x, number):
        loss = super().step(x, number)
        if number == self.at:
            self.optimizer.param_groups[0]["lr"] *= 10
        return loss


@pytest.mark.parametrize("at", range(330, 337))
def test_a_rate_that_leaps_between_two_is_told(tmp_path, stretches, at):
    run = recorded(tmp_path, LeapsOnce(at), most=6)
    told = [
        event.step for event in run.events.itertuples() if event.kind == "optimizer" and event.fields["lr"] == [0.1]
    ]
    assert stretches and told[0] == at + 1


def test_a_session_that_another_thread_ends_meanwhile_is_no_error(monkeypatch):
    class Gone:
        def offer(self, optimizer, before):
            hub.sessions.clear()

    monkeypatch.setattr(hub, "sessions", [SimpleNamespace(stretches=Gone(), looking=False)])
    hub.stretch_out(None)
    assert desk.stretch is None and not hub.sessions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loads", [True, False])
def test_the_training_is_the_same(tmp_path, stretches, kind, loads):
    alone, watched = kind(), kind()
    batches = loader() if loads else list(loader())
    alone.run(batches)
    recorded(tmp_path, watched, most=8, batches=batches)
    assert stretches and torch.equal(alone.net.weight, watched.net.weight)


def test_losses_stand_in_the_journal_in_their_order(tmp_path, stretches):
    pulses = []
    for most in (0, 8):
        training = Training()
        with brickprof.attach(training.net, out=tmp_path / str(most), overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips, most=most: min(longest, most)
            training.run(loader())
            session = watched._session
            hub.settle()
            session.readback.send()
            session.readback.poll()
            pulses.append(session.pulse.loss)
        lines = (watched.folder / "rank00000" / "events.jsonl").read_text().splitlines()
        told = [event["steps"] for event in map(json.loads, lines) if event["kind"] == "losses"]
        assert told and all(steps == sorted(steps) for steps in told)
    assert stretches and pulses[0] == pulses[1]


def test_another_list_that_is_clipped_ends_a_stretch(tmp_path, stretches, monkeypatch):
    class Alternates(Training):
        def step(self, x, number):
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([self.net.weight] if number % 50 else self.net.parameters(), 1.0)
            self.optimizer.step()
            return loss

    lists, over = [], Stretches.over

    def seen(self, number, steps, noted_ns):
        lists.append(len({steps.key[1], *(norms.each.numel() for norms in steps.norms)} if steps.norms else ()))
        over(self, number, steps, noted_ns)

    monkeypatch.setattr(Stretches, "over", seen)
    recorded(tmp_path, Alternates(), most=8)
    assert sum(stretches) > 300 and 1 in lists and max(lists) == 1


def test_times_are_those_of_the_steps(tmp_path, stretches):
    run = recorded(tmp_path, Training(), most=8)
    losses = [event for event in run.events.itertuples() if event.kind == "loss"]
    losses.sort(key=lambda event: event.step)
    stamps = [event.time_ns for event in losses]
    assert len(losses) > 400 and stamps == sorted(stamps) and len(set(stamps)) == len(stamps)


def test_an_exception_in_a_stretch_is_told_in_its_own_step(tmp_path, stretches):
    class Breaks(Training):
        def step(self, x, number):
            if number == 333:
                raise ZeroDivisionError("here")
            return super().step(x, number)

    plain, noted = [], []
    for most, seen in ((0, plain), (8, noted)):
        training = Breaks()
        with pytest.raises(ZeroDivisionError):
            recorded(tmp_path / str(most), training, most=most)
        run = Run.open(next((tmp_path / str(most)).iterdir()))
        losses, *rest = told(run)
        seen += [max(losses), losses, rest, [e.step for e in run.events.itertuples() if e.kind == "exception"]]
    assert noted == plain and noted[0] == (332, 0)


def test_a_loss_that_breaks_in_a_stretch_is_found_and_looked_at_from_there_on(tmp_path, stretches):
    class Breaks(Training):
        def loss(self, x):
            return super().loss(x) * (math.nan if x[0, 0] == mark else 1.0)

    mark = next(x for number, (x,) in enumerate(loader()) if number == 333)[0, 0]
    run = recorded(tmp_path, Breaks(), most=8)
    first = min(event.step for event in run.events.itertuples() if event.kind == "anomaly")
    assert first == 333
    assert any(event.kind == "anomaly" and event.step == 333 for event in run.events.itertuples())


def test_one_that_is_begun_in_vain_again_and_again_is_tried_more_and_more_rarely(tmp_path, stretches):
    class Scales(Training):
        def step(self, x, number):
            hub.settle()  # as every signal does that it has not waited for
            return super().step(x, number)

    recorded(tmp_path, Scales(), most=8)
    assert 0 < len(stretches) < 12


def test_one_in_vain_now_and_then_costs_no_other(tmp_path, stretches):
    """As an epoch that ends right behind the first step of a stretch."""

    class Ends(Training):
        def step(self, x, number):
            loss = super().step(x, number)
            if stretches and len(desk.stretch._passed if desk.stretch is not None else ()) == 1 and not number % 3:
                hub.settle()
            return loss

    recorded(tmp_path, Ends(), most=8)
    assert stretches.count(1) > 5 and sum(stretches) > 300


def test_what_noting_takes_is_timed_and_paid_for(tmp_path, stretches):
    training = Training()
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        session = watched._session
        session.idle = lambda step, longest, *, clips: min(longest, 8)
        training.run(loader(300))
        before = session.spent, len(stretches), session.stretches._noted.copy()
        session.stretches._noted = deque([10**9] * 9, maxlen=9)  # a second a step
        training.run(loader(8))
    spent, count, noted = before
    assert count > 3 and _NOTED_NS not in noted and all(0 < each < 10**8 for each in noted)
    assert session.spent - spent > 5 * 10**9


@pytest.mark.parametrize("clip", [True, False])
def test_at_light_no_norm_is_caught_and_all_is_told(tmp_path, stretches, clip, monkeypatch):
    caught = []
    monkeypatch.setattr(patches, "_catch", lambda *args, **kwargs: caught.append(1) or patches._stack(*args, **kwargs))
    runs = []
    for most in (0, 6):
        training = Training(clip)
        with brickprof.attach(training.net, out=tmp_path / str(most), level="light", overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips, most=most: min(longest, most)
            training.run(loader())
        runs.append(told(Run.open(watched.folder)))
    assert sum(stretches) > 200 and runs[0] == runs[1] and not caught


def test_a_step_that_is_not_clipped_is_judged_all_the_same(tmp_path, stretches, monkeypatch):
    """Where a stretch waits for norms and none come, the gradients are looked at before they are applied."""

    class Sometimes(Training):
        def step(self, x, number):
            self.clip = number != 333
            return super().step(x, number)

    asked = []
    training = Sometimes()
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        session = watched._session
        session.idle = lambda step, longest, *, clips: min(longest, 8)
        vigil = session.vigil
        session.vigil = lambda *given, **how: asked.append((session.step, how["clipping"])) or vigil(*given, **how)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        training.run(loader())
    assert stretches and (333, False) in asked


def test_a_fork_begins_without_one(tmp_path, stretches):
    import os

    seen = []

    class Forks(Training):
        def step(self, x, number):
            super().step(x, number)
            if number == 403:
                seen.append(desk.stretch is not None)
                child = os.fork()
                if not child:
                    os._exit(0 if desk.stretch is None else 1)
                seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    recorded(tmp_path, Forks(), most=8)
    assert seen == [True, 0]


def test_no_model_lives_longer_for_it(tmp_path, stretches):
    """The loop ends in a stretch and the program goes on."""
    training = Training()
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
        training.run(loader(404))
        assert desk.stretch is not None
        alive = [weakref.ref(each) for each in (training.optimizer, training.net)]
        del training
        watched._model = None
        gc.collect()
        assert not any(each() is not None for each in alive)
    losses, _, steps, updates, _ = told(Run.open(watched.folder))
    assert max(losses) == (403, 0) and steps == updates == 404


def test_a_part_of_something_large_is_not_held(tmp_path, stretches):
    class Views(Training):
        made = 0

        def loss(self, x):
            self.made += 1
            loss = super().loss(x)
            return loss if self.made < 300 else torch.cat([loss[None], torch.zeros(5000)])[0]

    losses, *_ = told(recorded(tmp_path, Views(), most=8))
    assert 100 < sum(stretches) < 300 and len(losses) == STEPS  # those before, and none of the others is lost


class Averages(Training):
    """A loss is written to by the steps that follow."""

    def step(self, x, number):
        loss = super().step(x, number)
        if number % 100 == 95:
            self.running = loss.detach()
        elif number % 100 > 95:
            self.running += loss.detach()
        return loss


class Replays(Training):
    """Every loss lies in the same place."""

    def __init__(self):
        super().__init__()
        self.place = torch.zeros(())

    def loss(self, x):
        made = super().loss(x)
        ctypes.c_float.from_address(self.place.data_ptr()).value = made.item()  # as a graph of a device does
        return Placed.apply(made, self.place)


class Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, made, place):
        return place.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@pytest.mark.parametrize("kind", [Averages, Replays])
def test_what_is_written_over_is_not_told_and_what_is_told_is_right(tmp_path, stretches, kind):
    alone, right = kind(), []
    for number, (x,) in enumerate(loader()):
        right.append(float(alone.loss(x).detach()))
        alone.step(x, number)
    run = recorded(tmp_path, kind(), most=8)
    losses, *_ = told(run)
    assert len(losses) > 0.9 * STEPS
    assert all(value == pytest.approx(right[step], rel=1e-6) for (step, _), value in losses.items())


def test_a_training_in_a_thread_may_be_ended_from_another(tmp_path, stretches):
    training = Training()
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        watched._session.idle = lambda step, longest, *, clips: min(longest, 8)
        thread = threading.Thread(target=training.run, args=(loader(404),))
        thread.start()
        thread.join()
        assert stretches and desk.stretch is not None
    losses, _, steps, updates, _ = told(Run.open(watched.folder))
    assert max(losses) == (403, 0) and steps == updates == 404 and desk.stretch is None


def test_batches_that_another_thread_fetches_begin_no_step(tmp_path, stretches):
    class Beside(Training):
        def step(self, x, number):
            if number == 250:
                thread = threading.Thread(target=lambda: list(loader(40)))
                thread.start()
                thread.join()
            return super().step(x, number)

    losses, _, steps, *_ = told(recorded(tmp_path, Beside(), most=8))
    assert steps == STEPS and losses.keys() == {(step, 0) for step in range(STEPS)}


def test_a_thread_that_ends_takes_no_step_with_it(tmp_path, stretches):
    class Moves(Training):
        def run(self, batches):
            batches = iter(batches)
            for count in (330, STEPS - 330):
                run = partial(super().run, (batch for _, batch in zip(range(count), batches, strict=False)))
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()

    losses, _, steps, updates, _ = told(recorded(tmp_path, Moves(), most=8))
    assert stretches and len(losses) >= STEPS - 2 and steps >= STEPS - 2 and updates >= STEPS - 2


def test_what_is_compiled_anew_within_a_stretch_loses_no_loss(tmp_path, stretches):
    """As for the last batch of an epoch, which is smaller."""

    class Grows(Training):
        def __init__(self) -> None:
            super().__init__()
            self.compiled = torch.compile(super().loss, backend="aot_eager", dynamic=False)

        def loss(self, x):
            return self.compiled(x)

        def step(self, x, number):
            return super().step(x.expand(1 + number // 120, 4).contiguous(), number)

    losses, _, steps, updates, dropped = told(recorded(tmp_path, Grows(), most=8))
    torch._dynamo.reset()
    assert stretches and losses.keys() == {(step, 0) for step in range(STEPS)} and steps == updates == STEPS
    assert not any(dropped.values())


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(tmp_path, stretches, monkeypatch):
    from brickprof.capture import readback, surroundings
    from brickprof.probes import loss as loss_probe

    capturing, launched = [False], []
    device = Device()
    monkeypatch.setattr(
        Fused, "gather", lambda self, number: lambda page: (launched.append(capturing[0]), device(page))
    )
    for module in (readback, surroundings, loss_probe):
        monkeypatch.setattr(module, "hands_off", lambda: capturing[0])

    class Captures(Training):
        def step(self, x, number):
            if number % 47 in (40, 41, 42):
                with contextlib.suppress(AttributeError, TypeError):  # there is no device to begin on
                    torch.cuda.CUDAGraph.capture_begin(None)
                capturing[0] = True
            try:
                return super().step(x, number)
            finally:
                capturing[0] = False

    losses, *_ = told(recorded(tmp_path, Captures(), most=8))
    assert stretches and launched and not any(launched)
    assert {step for step, _ in losses} >= {step for step in range(STEPS) if step % 47 not in (40, 41, 42)}
    assert all(value is None for (step, _), value in losses.items() if step % 47 in (40, 41, 42))


def test_a_stack_of_the_users_own_stays(tmp_path, stretches):
    original, used = torch.stack, []

    def mine(*args, **kwargs):
        used.append(1)
        return original(*args, **kwargs)

    torch.stack = mine
    try:
        recorded(tmp_path, Training(), most=8)
        assert torch.stack is mine and len(used) >= STEPS
    finally:
        torch.stack = original


def test_a_clip_in_inference_mode_is_left_alone(tmp_path, stretches):
    class Infers(Training):
        def step(self, x, number):
            loss = super().step(x, number)
            if number % 50 == 25:
                with torch.inference_mode():
                    other = torch.ones(3)
                    other.grad = torch.ones(3)
                    nn.utils.clip_grad_norm_([other], 1.0)
            return loss

    recorded(tmp_path, Infers(), most=8)
    assert stretches


class Counts:
    """The lookout's kernel, played by torch; not one for stretches."""

    lost, ready = "", False

    def __call__(self, gate, values):
        return torch.tensor([[int(value.isnan().sum()), int(value.isinf().sum())] for value in values])

    def prepare(self, device):
        return True

    def readable(self, value):
        return True

    def compiled(self, device):
        return self.ready


class CountsInPassing(Counts):
    ready = True

    def __init__(self):
        self.added: list[tuple[int, int]] = []

    def settled(self, device, tensors):
        return None

    def add(self, gate, places, out, at):
        values = [at_address(*place) for place in zip(places[::2], places[1::2], strict=True)]
        self.added.append((len(values), at))
        if not math.isfinite(gate.item()):
            out[at : at + len(values)] += self(gate, values)


def at_address(address, size):
    """What a kernel would read there."""
    numel, dtype = size >> 2, FLOATS[size & 3]
    return torch.frombuffer((ctypes.c_char * (numel * dtype.itemsize)).from_address(address), dtype=dtype)


class Breaks(Training):
    """Blocks, one of which puts out a NaN in some step."""

    def __init__(self, at, block) -> None:
        super().__init__()
        self.net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self._at, self._seen = at, 0
        self.net[block].register_forward_hook(self._break)

    def _break(self, _module, _args, output):
        self._seen += 1
        return output * math.nan if self._seen == self._at + 1 else output


class BreaksInEpochs(Breaks, Epochs):
    pass


class BreaksBetweenEvaluations(Breaks):
    """Batches of its own, and a loader now and then to evaluate with."""

    def run(self, batches):
        for number, (x,) in enumerate([*batches]):
            self.step(x, number)
            if number % 50 == 40:
                self._seen -= 3  # not counted
                with torch.no_grad():
                    for (y,) in loader(3):
                        self.loss(y)


class BreaksWithinBatches(Breaks):
    """Several updates with every batch."""

    def run(self, batches):
        for number, (x,) in enumerate(batches):
            for again in range(3):
                self.step(x, 3 * number + again)


@pytest.mark.parametrize("kind", [Breaks, BreaksInEpochs, BreaksBetweenEvaluations, BreaksWithinBatches])
@pytest.mark.parametrize(("at", "every"), [(160, 16), (336, 16), (340, 4), (325, 16), (333, 1)])
def test_between_them_somebody_looks_out_over_the_blocks(tmp_path, stretches, monkeypatch, kind, at, every):
    monkeypatch.setattr(lookouts, "on_device", lambda tensor: True)
    monkeypatch.setattr(lookouts, "compiled_frames", lambda: 0)
    monkeypatch.setattr(lookouts, "Counts", Counts)
    monkeypatch.setattr(lookouts.Lookout, "_reckon", lambda self: setattr(self, "_stride", every))
    counted, count = [], lookouts.Lookout._count

    def counting(self, kept, *given):
        counted.append((self.session.step, len(kept)))
        return count(self, kept, *given)

    monkeypatch.setattr(lookouts.Lookout, "_count", counting)
    run = recorded(tmp_path, kind(at, 2), most=32)
    # Every 64th step is looked at in full, and need not be looked at like this.
    wanted = [step for step in range(80, at + 1, every) if step % 64]
    assert [each for each in counted if 80 <= each[0] <= at and each[0] % 64] == [(step, 4) for step in wanted]
    found = run.events[run.events.kind == "activation"].iloc[0]
    if at % every == 0:
        assert found.step == at and run.bricks.path[run.bricks.id == found.fields["brick"]].item() == "2"
    else:  # nobody looked, and nobody is accused for it
        assert found.step > at
    if every == 16 and kind is not BreaksBetweenEvaluations:
        assert stretches.count(15) >= at // 48
    assert every == 1 or sum(stretches) > 50


def test_of_a_young_run_every_block_is_known(tmp_path, stretches, monkeypatch):
    monkeypatch.setattr(lookouts, "on_device", lambda tensor: True)
    monkeypatch.setattr(lookouts, "compiled_frames", lambda: 0)
    monkeypatch.setattr(lookouts, "Counts", Counts)
    monkeypatch.setattr(lookouts, "_YOUNG_NS", 1e12)  # however busy the machine is
    monkeypatch.setattr(cadence, "_SETTLED_NS", 0)  # however quick
    charged, charge = [], Session.charge_start
    monkeypatch.setattr(Session, "charge_start", lambda self, ns: charged.append(ns) or charge(self, ns))
    run = recorded(tmp_path, Breaks(175, 1), most=32)
    found = run.events[run.events.kind == "activation"].iloc[0]
    assert found.step == 175 and run.bricks.path[run.bricks.id == found.fields["brick"]].item() == "1"
    end = run.events[run.events.kind == "exit"].iloc[0].fields
    assert len(charged) > 100 and end["first_seconds"] > sum(charged) / 1e9


def test_to_look_out_behind_a_stretch_is_paid_for(monkeypatch):
    clock, paid, told = iter([1_000, 91_000]), [], []
    monkeypatch.setattr("brickprof.capture.stretch._counter", lambda: next(clock))
    over = SimpleNamespace(step=80, lookout=SimpleNamespace(prepare=told.append), correct=paid.append)
    Stretch.close(SimpleNamespace(_session=over, _rates=[0.1] * 15))
    assert told == [96] and paid == [90_000]


def test_behind_an_update_that_a_scaler_leaves_out_somebody_looks_out_too(tmp_path):
    net, told = nn.Linear(4, 1), []
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    with brickprof.attach(net, out=tmp_path) as watched:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(net(torch.full((1, 4), math.inf if step == 2 else 1.0)).sum()).backward()
            watched._session.lookout = SimpleNamespace(prepare=told.append, enter=lambda *_, **__: None, blind=print)
            weights = net.weight.clone()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(weights, net.weight) is (step == 2)
            assert told[-1] == step + 1
            watched._session.lookout = None
