"""Gradients in stretches of steps that nobody looks at: norms of a clip, and tables that are sent for in passing."""

from __future__ import annotations

import ctypes
import gc
import math
import threading
import weakref

import pytest
import torch
from torch import nn

import brickprof
from brickprof.capture import hub, vigil
from brickprof.capture.desk import desk
from brickprof.capture.fused import Fused, Table
from brickprof.capture.session import Session
from brickprof.capture.stretch import Stretch
from brickprof.run import Run
from tests.test_stretch import STEPS, Training, loader, stretches, told

__all__ = ["stretches"]


class OnDevice(nn.Parameter):
    """Lies on a host, and says otherwise."""

    is_cuda = True


class OfDevice(Training):
    """Its gradients are judged in every step, by the norms of its clip."""

    def __init__(self, breaks=-1, jumps=-1, clip=True, stays=False, tells=False) -> None:
        """What ``breaks`` is mended behind the look, unless it ``stays`` so. An update ``tells`` its gradients where it
        applies many at once."""
        super().__init__(clip)
        self.stays = stays
        for name in ("weight", "bias"):
            setattr(self.net, name, OnDevice(getattr(self.net, name).detach()))
        groups = [{"params": [each]} for each in self.net.parameters()] if tells == "in parts" else None
        self.optimizer = torch.optim.SGD(groups or self.net.parameters(), lr=0.01, foreach=bool(tells))
        self.breaks, self.jumps = breaks, jumps

    def step(self, x, number):
        loss = self.loss(x)
        self.optimizer.zero_grad()
        loss.backward()
        if number == self.breaks:
            self.net.bias.grad.fill_(math.nan)
        if number == self.jumps:
            self.net.bias.grad.fill_(1e6)
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        mends = number == self.breaks and not self.stays
        if mends and self.clip:  # it goes on as if nothing had happened
            for parameter in self.net.parameters():
                parameter.grad.zero_()
        before = self.net.bias.detach().clone()
        self.optimizer.step()
        if mends:
            self.net.bias.detach().copy_(before)
        return loss


def table_of(_fused, _purpose, values):
    rows = [[float(v.isnan().sum()), 0.0, 1.0, float(v.nan_to_num().norm()), 0, 0, 0, v.numel()] for v in values]
    return Table(torch.tensor(rows, dtype=torch.float64), None)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setattr(Fused, "timed_table", table_of)
    monkeypatch.setattr(Fused, "table", table_of)
    monkeypatch.setattr(Fused, "settled", lambda self, purpose: False)


class Kernel:
    """Our kernel in the hands of torch: fills pages in passing. ``refuses`` some of the tables, by their number."""

    def __init__(self, refuses=lambda number: False) -> None:
        self.sent = 0
        self.refuses = refuses

    def launch_of(self, purpose, values, stream, *, anew):
        assert all(value is not None for value in values) and stream == "stream"

        def launch(gradients, page, room):
            self.sent += 1
            if self.refuses(self.sent):
                return False
            table = table_of(None, purpose, gradients).values.contiguous()
            ctypes.memmove(page, table.data_ptr(), table.nbytes)
            return True

        return launch


@pytest.fixture
def kernel(monkeypatch, tables):
    made = Kernel()
    monkeypatch.setattr(Fused, "settled", lambda self, purpose: True)
    monkeypatch.setattr(Fused, "again", lambda self, *_: False)
    monkeypatch.setattr(Fused, "launch_of", made.launch_of)
    monkeypatch.setattr(vigil, "_SHARE_BESIDE_NORMS", 1e9)  # whatever it costs
    monkeypatch.setitem(vigil._SHARE, "standard", 1e9)
    return made


def rows_of(run):
    """By step: whether the rows of its gradients have all statistics, of those that nobody looked at."""
    samples = run.samples[(run.samples.role == "grad") & (run.samples.step > 264)]
    return {step: bool(rows.absmax.notna().all()) for step, rows in samples.groupby("step")}


def test_every_fourth_step_has_all_statistics_and_no_stretch_ends_for_it(tmp_path, stretches, kernel):
    alone, training = OfDevice(), OfDevice()
    alone.run(loader())
    run, anomalies, grads = judged(tmp_path, training, 32)
    rows = rows_of(run)
    assert max(stretches) > 16 and kernel.sent > 40 and not anomalies and not grads
    assert set(range(268, STEPS - 3, 4)) <= rows.keys() and all(rows[step] for step in range(300, STEPS - 3, 4))
    assert told(run)[-1]["readback"] == 0 and torch.equal(alone.net.weight, training.net.weight)
    sizes = run.samples[(run.samples.role == "grad") & (run.samples.step == 400)].l2
    seen, batches = OfDevice(), [x for (x,) in loader()]
    seen.run([(x,) for x in batches[:400]])
    seen.loss(batches[400]).backward(inputs=list(seen.net.parameters()))
    seen.optimizer.zero_grad()
    seen.loss(batches[400]).backward()
    assert sorted(sizes) == pytest.approx(sorted(float(p.grad.norm()) for p in seen.net.parameters()), rel=1e-5)


@pytest.mark.parametrize("breaks", [300, 301, 304, 308, 311])
def test_a_gradient_that_breaks_where_tables_are_sent_for_in_passing_is_told_once(tmp_path, stretches, kernel, breaks):
    run, anomalies, grads = judged(tmp_path, OfDevice(breaks=breaks), 32)
    assert kernel.sent and [event.step for event in grads] == [breaks] and anomalies[0].step == breaks
    (told,) = grads[0].fields["nonfinite"]
    assert told["nan"] == (1 if breaks % 4 == 0 else None)  # a table counts, a norm does not
    if breaks % 4 == 0:  # norms are asked for a second time, and later
        times = {event.step: event.time_ns for event in run.events.itertuples() if event.kind == "loss"}
        assert times[breaks] <= anomalies[0].time_ns <= times[breaks + 1]


def test_where_a_table_does_not_come_the_norms_of_the_clip_do(tmp_path, stretches, kernel):
    kernel.refuses = lambda number: number % 2 == 0
    run, _, _ = judged(tmp_path, OfDevice(), 32)
    rows = rows_of(run)
    assert set(range(268, STEPS - 3, 4)) <= rows.keys()
    assert 10 < sum(rows.values()) < len(rows) - 10 and max(stretches) > 16


def test_where_no_table_ever_comes_in_passing_they_are_sent_for_between_stretches(tmp_path, stretches, kernel):
    kernel.refuses = lambda number: True
    run, _, _ = judged(tmp_path, OfDevice(), 32)
    assert kernel.sent == 8 and max(stretches[-9:]) < 4
    assert all(rows_of(run)[step] for step in range(400, STEPS - 3, 4))


@pytest.mark.parametrize("breaks", [301, 303, 306, 308])
def test_what_breaks_first_is_told_first_whether_norms_tell_it_or_a_table(tmp_path, stretches, kernel, breaks):
    run, anomalies, grads = judged(tmp_path, OfDevice(breaks=breaks, stays=True), 32)
    steps = [event.step for event in grads if event.step < breaks + 8]
    assert kernel.sent and steps == list(range(breaks, breaks + 8))
    names = [event.fields["name"] for event in run.events.itertuples() if event.kind == "tensor"]
    assert [names[each["tensor"] - 1] for each in grads[0].fields["nonfinite"]] == ["bias"]
    # The norms of a clip are sent for a second time; the loss of the next step may be home before them.
    assert (anomalies[0].step, anomalies[0].fields["what"]) in [(breaks, "gradient"), (breaks + 1, "loss")]


class Between(OfDevice):
    """Some updates are asked for in another way, which ends a stretch between clip and update."""

    def __init__(self, at, breaks=-1) -> None:
        super().__init__(breaks=breaks)
        self.at = at

    def step(self, x, number):
        if number not in self.at:
            return super().step(x, number)
        plain = self.optimizer.step
        self.optimizer.step = lambda: plain(closure=None)
        try:
            return super().step(x, number)
        finally:
            del self.optimizer.step


@pytest.mark.parametrize("at", [304, 306])
def test_a_step_whose_stretch_ends_between_clip_and_update_is_looked_at_once(
    tmp_path, stretches, kernel, monkeypatch, at
):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    run, _, grads = judged(tmp_path, Between({at, at + 40, at + 80}, breaks=at), 32)
    assert kernel.sent and [event.step for event in grads] == [at] and len(grads[0].fields["nonfinite"]) == 1
    counts = run.samples[run.samples.role == "grad"].groupby("step").size()
    assert counts[counts.index > 64].max() == 2


class BeginsToClip(OfDevice):
    def __init__(self, breaks) -> None:
        super().__init__(breaks=breaks)

    def step(self, x, number):
        self.clip = number >= 290
        return super().step(x, number)


@pytest.mark.parametrize("level", ["light", "standard"])
def test_a_clip_that_begins_late_is_seen_before_the_table(tmp_path, stretches, kernel, monkeypatch, level):
    monkeypatch.setitem(vigil._SHARE, "light", 1e9)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    training = BeginsToClip(breaks=300)
    with brickprof.attach(training.net, out=tmp_path, level=level, overhead="0.01%") as watched:
        training.run(loader())
    events = Run.open(watched.folder).events.itertuples()
    grads = [event for event in events if event.kind == "grad" and event.fields["broken"]]
    assert kernel.sent and [event.step for event in grads] == [300]
    assert [each["nan"] for each in grads[0].fields["nonfinite"]] == [1]


@pytest.fixture
def initialised(monkeypatch):
    """CUDA seems to be in use: gradients that nobody clips are judged when they are applied."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


@pytest.mark.parametrize("breaks", [300, 301, 302, 315])
@pytest.mark.parametrize("tells", [False, True, "in parts"])
def test_gradients_that_nobody_clips_are_judged_in_every_step_that_is_noted(
    tmp_path, stretches, kernel, initialised, breaks, tells, monkeypatch
):
    collected, begins = [], Stretch.begins

    def begun(self, optimizer):
        found = begins(self, optimizer)
        collected.append(self.caught is None)
        return found

    monkeypatch.setattr(Stretch, "begins", begun)
    run, anomalies, grads = judged(tmp_path, OfDevice(breaks=breaks, clip=False, tells=tells), 32)
    assert max(stretches) > 16 and kernel.sent > 200 and set(collected) == {not tells}
    assert [event.step for event in grads] == [breaks] and anomalies[0].step == breaks
    (told,) = grads[0].fields["nonfinite"]
    assert told["nan"] == 1
    rows = rows_of(run)
    assert set(range(268, STEPS - 3, 4)) <= rows.keys() and [step for step, whole in rows.items() if not whole] == [
        breaks
    ]


@pytest.mark.parametrize("tells", [False, True])
def test_the_training_that_nobody_clips_is_the_same(tmp_path, stretches, kernel, initialised, tells):
    alone, training = OfDevice(clip=False, tells=tells), OfDevice(clip=False, tells=tells)
    alone.run(loader())
    run, anomalies, _ = judged(tmp_path, training, 32)
    assert kernel.sent and not anomalies and torch.equal(alone.net.weight, training.net.weight)
    assert told(run)[-1]["readback"] == 0


@pytest.mark.parametrize("tells", [False, True])
def test_a_table_that_does_not_come_with_an_update_ends_the_stretch_and_is_made_as_ever(
    tmp_path, stretches, kernel, initialised, monkeypatch, tells
):
    made, read = [], vigil.Vigil._read
    monkeypatch.setattr(vigil.Vigil, "_read", lambda self, of: made.append(self._session.step) or read(self, of))
    refused = []
    kernel.refuses = lambda number: number % 50 == 0 and not refused.append(number)
    run, _, _ = judged(tmp_path, OfDevice(clip=False, tells=tells), 32)
    assert kernel.sent > 150 and all(rows_of(run).values())
    assert set(range(268, STEPS - 3, 4)) <= rows_of(run).keys()
    assert len(refused) > 5 and len([step for step in made if step > 64]) >= len(refused)


class Freezes(OfDevice):
    """One of its parameters has no gradient any more, late."""

    def step(self, x, number):
        if number == 400:
            self.net.bias.requires_grad_(False)
        return super().step(x, number)


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("tells", [False, True])
def test_gradients_that_are_fewer_than_they_were_are_told_all_the_same(
    tmp_path, stretches, kernel, initialised, clip, tells
):
    run, _, _ = judged(tmp_path, Freezes(clip=clip, tells=tells), 32)
    samples = run.samples[run.samples.role == "grad"]
    counts = {step: len(rows) for step, rows in samples.groupby("step")}
    assert all(counts[step] == 2 for step in range(300, 400, 4))
    assert all(counts.get(step) == 1 for step in range(440, STEPS - 3, 4))


class TellsInPart(OfDevice):
    """Its update goes by a list of some of its gradients only."""

    def __init__(self) -> None:
        super().__init__(breaks=333, clip=False)
        groups = [{"params": [self.net.weight], "foreach": True}, {"params": [self.net.bias], "foreach": False}]
        self.optimizer = torch.optim.SGD(groups, lr=0.01)


def test_an_update_that_tells_a_part_of_its_gradients_loses_none(tmp_path, stretches, kernel, initialised):
    run, anomalies, grads = judged(tmp_path, TellsInPart(), 32)
    assert [event.step for event in grads] == [333] and anomalies[0].step == 333 and max(stretches) > 16
    assert set(range(268, STEPS - 3, 4)) <= rows_of(run).keys() and kernel.sent > 150


@pytest.mark.parametrize("tells", [True, "in parts"])
def test_gradients_that_were_told_do_not_live_longer_for_it(
    tmp_path, stretches, kernel, initialised, tells, monkeypatch
):
    training = OfDevice(clip=False, tells=tells)
    fails = iter([False] * (800 if tells == "in parts" else 400))
    add = torch._foreach_add_

    def full(*given, **named):
        if next(fails, True):
            raise torch.OutOfMemoryError("here")
        return add(*given, **named)

    monkeypatch.setattr(torch, "_foreach_add_", full)
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%"):
        with pytest.raises(torch.OutOfMemoryError):
            training.run(loader())
        gradient, weight = weakref.ref(training.net.weight.grad), weakref.ref(training.net.weight)
        training.optimizer.zero_grad()
        assert kernel.sent > 100 and desk.stretch is not None and gradient() is None
        training.net.weight = training.net.bias = training.optimizer = None
        gc.collect()
        assert weight() is None


class OfOnesOwn(torch.optim.SGD):
    """Has something else put in order than gradients, and writes into those of one group before the next."""

    def step(self, closure=None):
        for group in self.param_groups:
            of = group["params"]
            self._group_tensors_by_device_and_dtype(tensorlistlist=[of, [torch.ones_like(each) for each in of]])
            self._group_tensors_by_device_and_dtype([of, [each.grad for each in of]], with_indices=True)
            for parameter in of:
                parameter.grad.mul_(2.0)
                parameter.detach().add_(parameter.grad, alpha=-0.001)


def _in_parts(of):
    return [{"params": [each]} for each in of]


NESTEROV = {"lr": 0.001, "momentum": 0.9, "nesterov": True, "foreach": True}
KINDS_OF_UPDATE = {
    "plain": lambda of: torch.optim.SGD(of, lr=0.001, foreach=True),
    "decays": lambda of: torch.optim.AdamW(of, lr=0.001, foreach=True, weight_decay=0.1),
    "in parts": lambda of: torch.optim.Adam(_in_parts(of), lr=0.001, foreach=True),
    "Nesterov's": lambda of: torch.optim.SGD(of, **NESTEROV),
    "Nesterov's in parts": lambda of: torch.optim.SGD(_in_parts(of), **NESTEROV),
    "of one's own": lambda of: OfOnesOwn(of, lr=0.001),
    "of one's own in parts": lambda of: OfOnesOwn(_in_parts(of), lr=0.001),
}


@pytest.mark.parametrize("kind", KINDS_OF_UPDATE)
@pytest.mark.parametrize("hooked", ["", "before", "behind"])
def test_what_is_told_is_what_a_backward_has_left(tmp_path, stretches, kernel, initialised, kind, hooked, monkeypatch):
    norms, caught, catch = {}, [], Stretch.catch
    monkeypatch.setattr(Stretch, "catch", lambda self, lists: caught.append(1) or catch(self, lists))

    class Remembers(OfDevice):
        def step(self, x, number):
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            norms[number] = sorted(float(each.grad.norm()) for each in self.net.parameters())
            self.optimizer.step()

    training = Remembers(clip=False)
    training.optimizer = optimizer = KINDS_OF_UPDATE[kind](list(training.net.parameters()))
    if hooked == "behind":
        optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad(set_to_none=False))
    if hooked == "before":
        optimizer.register_step_pre_hook(
            lambda *_: [each.grad.mul_(0.5) for each in training.net.parameters()] and None
        )
    run, anomalies, _ = judged(tmp_path, training, 32)
    rows = run.samples[(run.samples.role == "grad") & (run.samples.step > 268)]
    found = {step: sorted(of.l2) for step, of in rows.groupby("step") if step % 4 == 0}
    assert len(found) > 40 and not anomalies and max(stretches) > 16
    assert bool(caught) is (kind in ("plain", "decays", "in parts") and not hooked)
    for number, sizes in found.items():
        assert sizes == pytest.approx(norms[number], rel=1e-4), number


@pytest.mark.parametrize("who", ["itself", "another thread"])
@pytest.mark.parametrize("breaks", [300, 303])
def test_a_stretch_that_ends_within_an_update_loses_no_gradient(
    tmp_path, stretches, kernel, initialised, who, breaks, monkeypatch
):
    gather, updates = torch.optim.SGD._init_group, []

    def ends(*given, **named):
        """Before the update has told anything."""
        updates.append(1)
        if len(updates) - 1 == breaks:
            assert desk.stretch is not None and desk.stretch.caught == ()
            if who == "itself":
                hub.settle()
            else:
                other = threading.Thread(target=hub.settle)
                other.start()
                other.join()
        return gather(*given, **named)

    monkeypatch.setattr(torch.optim.SGD, "_init_group", ends)
    _, anomalies, grads = judged(tmp_path, OfDevice(breaks=breaks, clip=False, tells=True), 32)
    assert [event.step for event in grads] == [breaks] and anomalies[0].step == breaks and kernel.sent > 30


def test_an_update_that_tells_fewer_gradients_than_before_has_the_others_judged(
    tmp_path, stretches, kernel, initialised
):
    class BreaksWithFewer(OfDevice):
        def step(self, x, number):
            self.net.bias.requires_grad_(number < 400)
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            if number == 400:
                self.net.weight.grad.fill_(math.nan)
                assert desk.stretch is not None
            before = self.net.weight.detach().clone()
            self.optimizer.step()
            self.net.weight.detach().copy_(before)

    _, anomalies, grads = judged(tmp_path, BreaksWithFewer(clip=False, tells=True), 32)
    assert [event.step for event in grads] == [400] and anomalies[0].step == 400


@pytest.mark.parametrize("clip", [True, False])
def test_gradients_of_several_backwards_are_of_the_last(tmp_path, stretches, tables, initialised, clip, monkeypatch):
    monkeypatch.setitem(vigil._SHARE, "standard", 1e9)  # whatever it costs

    class Accumulates(OfDevice):
        def step(self, x, number):
            self.optimizer.zero_grad()
            for _ in range(3):
                (self.loss(x) / 3).backward()
            if number == self.breaks:
                self.net.bias.grad.fill_(math.nan)
            if self.clip:
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            before = [each.detach().clone() for each in self.net.parameters()]
            self.optimizer.step()
            for each, was in zip(self.net.parameters(), before, strict=True):
                each.detach().copy_(was)

    run, _, grads = judged(tmp_path, Accumulates(breaks=333, clip=clip), 32)
    assert [(event.step, event.fields["micro"]) for event in grads] == [(333, 2)]
    rows = run.samples[(run.samples.role == "grad") & (run.samples.step > 264)]
    assert len(rows) > 40 and set(rows.micro) == {2}


def test_lists_are_caught_from_the_first_stretch_on_that_wants_them(tmp_path, stretches, kernel, initialised):
    plain = torch.optim.Optimizer.__dict__["_group_tensors_by_device_and_dtype"]
    judged(tmp_path / "clips", OfDevice(tells=True), 32)
    kept, seen = [], OfDevice(clip=False, tells=True)
    step = seen.step
    name = "_group_tensors_by_device_and_dtype"
    seen.step = lambda *given: kept.append(torch.optim.Optimizer.__dict__[name]) or step(*given)
    judged(tmp_path / "does not", seen, 32)
    assert kept[0] is plain and kept[-1] is not plain and type(kept[-1]) is staticmethod
    assert torch.optim.Optimizer.__dict__[name] is plain


def test_tables_of_a_model_that_is_gone_are_no_error(tmp_path, stretches, kernel):
    training = OfDevice(breaks=STEPS - 4)
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        training.run(loader())
        assert desk.stretch is not None and desk.stretch._tables
        weight = weakref.ref(training.net.weight)
        training.net.weight = training.net.bias = training.optimizer = None
        gc.collect()
        assert weight() is None and desk.stretch.gradients is None
    run = Run.open(watched.folder)
    assert [e.step for e in run.events.itertuples() if e.kind == "grad" and e.fields["broken"]] == [STEPS - 4]
    assert told(run)[-1]["readback"] == 0


def test_what_tables_in_passing_take_is_paid_for_and_no_part_of_noting(tmp_path, stretches, kernel, monkeypatch):
    corrected, correct = [], Session.correct
    monkeypatch.setattr(Session, "correct", lambda self, by: corrected.append(by) or correct(self, by))
    kernel.refuses = lambda number: threading.Event().wait(0.003)
    training = OfDevice()
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        training.run(loader())
        hub.settle()
        noted = max(watched._session.stretches._noted)
    assert kernel.sent and sum(by for by in corrected if by > 3_000_000) >= 3_000_000 * kernel.sent * 0.9
    assert noted < 3_000_000


def judged(folder, training, most):
    with brickprof.attach(training.net, out=folder, overhead="0.01%") as watched:
        idle = watched._session.idle
        watched._session.idle = lambda step, longest, *, clips: min(idle(step, longest, clips=clips), most)
        training.run(loader())
    run = Run.open(watched.folder)
    anomalies = [event for event in run.events.itertuples() if event.kind == "anomaly"]
    grads = [event for event in run.events.itertuples() if event.kind == "grad" and event.fields["broken"]]
    return run, anomalies, grads


@pytest.mark.parametrize("most", [0, 16])
def test_a_gradient_that_breaks_in_a_stretch_is_told_in_its_own_step(tmp_path, stretches, tables, most):
    """Wherever it lies in a stretch: 15 steps in a row, one a training."""
    for breaks in range(301, 316, 7):
        run, anomalies, grads = judged(tmp_path / str(breaks), OfDevice(breaks=breaks), most)
        assert [event.step for event in grads] == [breaks]
        names = [event.fields["name"] for event in run.events.itertuples() if event.kind == "tensor"]
        told = [names[each["tensor"] - 1] for each in grads[0].fields["nonfinite"]]
        assert told == ["bias"] and anomalies[0].step == breaks
    assert bool(stretches) is bool(most)


@pytest.mark.parametrize("most", [0, 16])
def test_a_gradient_that_breaks_in_the_last_steps_of_a_model_that_is_gone_is_told(tmp_path, stretches, tables, most):
    training = OfDevice(breaks=STEPS - 3)
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        idle = watched._session.idle
        watched._session.idle = lambda step, longest, *, clips: min(idle(step, longest, clips=clips), most)
        training.run(loader())
        assert (desk.stretch is not None and len(desk.stretch._norms) > 2) is bool(most)
        weight = weakref.ref(training.net.weight)
        training.net.weight = training.net.bias = training.optimizer = None
        gc.collect()
        assert weight() is None
    run = Run.open(watched.folder)
    grads = [event for event in run.events.itertuples() if event.kind == "grad" and event.fields["broken"]]
    assert [event.step for event in grads] == [STEPS - 3]
    assert told(run)[-1]["readback"] == 0


def test_a_gradient_that_leaps_in_a_stretch_is_told_under_its_step_and_time(tmp_path, stretches, tables):
    run, anomalies, _ = judged(tmp_path, OfDevice(jumps=310), 16)
    assert stretches and [event.step for event in anomalies] == [310]
    times = {event.step: event.time_ns for event in run.events.itertuples() if event.kind == "loss"}
    assert times[310] <= anomalies[0].time_ns <= times[311]
