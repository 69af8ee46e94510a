"""Who looks out over the blocks in a stretch of steps that are only noted: in every step of it, and at one launch."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from brickprof.capture import lookout as lookouts
from brickprof.capture import sentries, sentry
from brickprof.capture.backlog import Backlog
from brickprof.capture.lookout import Lookout
from brickprof.capture.outputs import Left
from tests.late import Lane, Mark
from tests.test_stretch import (
    Breaks,
    BreaksBetweenEvaluations,
    BreaksInEpochs,
    BreaksWithinBatches,
    CountsInPassing,
    Training,
    loader,
    recorded,
    stretches,
)

__all__ = ["stretches"]


@pytest.fixture
def counts(monkeypatch):
    made = CountsInPassing()
    monkeypatch.setattr(lookouts, "on_device", lambda tensor: True)
    monkeypatch.setattr(lookouts, "compiled_frames", lambda: 0)
    monkeypatch.setattr(lookouts, "Counts", lambda: made)
    return made


@pytest.fixture
def affordable(monkeypatch):
    """Whatever it costs on this machine."""
    monkeypatch.setattr(sentries, "_SHARE", 1e9)


def first_broken(run):
    found = run.events[run.events.kind == "activation"].iloc[0]
    return found.step, run.bricks.path[run.bricks.id == found.fields["brick"]].item(), found.fields


@pytest.mark.parametrize("kind", [Breaks, BreaksInEpochs, BreaksBetweenEvaluations, BreaksWithinBatches])
@pytest.mark.parametrize("at", [160, 325, 333, 334, 335, 347])
@pytest.mark.parametrize("loads", [True, False])
def test_the_block_is_known_whatever_the_step(tmp_path, stretches, counts, affordable, kind, at, loads):
    run = recorded(tmp_path, kind(at, 2), most=32, batches=loader() if loads else list(loader()))
    step, path, fields = first_broken(run)
    assert (step, path, fields["nan"], fields["inputs_finite"]) == (at, "2", 4, True)
    assert sum(stretches) > 100 and {number for number, _ in counts.added} == {4}
    assert run.events[run.events.kind == "exit"].iloc[0].fields["looked_out"] >= len(counts.added) > 50


@pytest.fixture
def looks(monkeypatch):
    """Where somebody looked: (step, micro-batch) of each backward."""
    seen, learn, sampled, fetch = [], lookouts.Lookout._learn, lookouts.Lookout.sampled, sentry.Sentry._fetch

    def learning(self, spent):
        seen.append((self.session.step, self.session.steps.backwards - 1))
        learn(self, spent)

    def sampling(self, backwards):
        before = self.looks
        sampled(self, backwards)
        seen.extend((self.session.step, micro) for micro in range(self.looks - before))

    def fetching(self, moments):
        seen.extend(moments[place] for place in self._seen)
        fetch(self, moments)

    monkeypatch.setattr(lookouts.Lookout, "_learn", learning)
    monkeypatch.setattr(lookouts.Lookout, "sampled", sampling)
    monkeypatch.setattr(sentry.Sentry, "_fetch", fetching)
    monkeypatch.setattr(lookouts, "_SHARE", 1e9)  # whatever a look between two stretches costs
    return seen


@pytest.mark.parametrize("kind", [Breaks, BreaksInEpochs, BreaksBetweenEvaluations, BreaksWithinBatches])
@pytest.mark.parametrize("loads", [True, False])
def test_every_backward_is_looked_at(tmp_path, stretches, counts, affordable, looks, kind, loads):
    run = recorded(tmp_path, kind(10_000, 2), most=32, batches=loader() if loads else list(loader()))
    begun = [(event.step, event.fields["micro"]) for event in run.events.itertuples() if event.kind == "loss"]
    assert len(begun) >= 500 and sum(stretches) > 0.7 * len(begun)
    assert sorted(looks) == sorted(begun)
    assert run.events[run.events.kind == "exit"].iloc[0].fields["looked_out"] == len(begun)


class Recomputes(Breaks):
    def loss(self, x):
        x.requires_grad_()
        for layer in self.net:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()


def test_what_is_computed_again_is_not_of_the_next_step(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, Recomputes(1_000, 2), most=32)
    assert counts.added and {number for number, _ in counts.added} == {4}
    assert not len(run.events[run.events.kind == "activation"])


class Overwrites(Breaks):
    """Writes into what the first block has put out, which accuses nobody else."""

    def loss(self, x):
        x = self.net[0](x)
        x += math.nan if self._seen == self._at else 0.0
        return self.net[1:](x).square().mean()


def test_what_was_written_into_is_no_evidence(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, Overwrites(333, 1), most=32)
    step, path, fields = first_broken(run)
    assert (step, path, fields["inputs_finite"]) == (333, "1", None)


def test_an_error_of_ours_is_no_error_of_the_training(tmp_path, stretches, counts, affordable, monkeypatch):
    def fails(*_):
        raise RuntimeError("no launch")

    monkeypatch.setattr(counts, "add", fails)
    run = recorded(tmp_path, Breaks(10_000, 2), most=32)
    told = [event.fields for event in run.events.itertuples() if event.kind == "probe_off"]
    assert told and {fields["probe"] for fields in told} == {"lookout"}
    assert run.events[run.events.kind == "exit"].iloc[0].fields["steps"] == 500


def test_steps_are_stretched_as_they_are_without_anybody_looking_out(tmp_path, stretches, counts, affordable):
    recorded(tmp_path / "looked", Breaks(10_000, 2), most=32)
    looked, stretches[:] = list(stretches), []
    counts.ready = False
    recorded(tmp_path / "plain", Training(), most=32)
    assert len(looked) <= len(stretches) + 2 and sum(looked) >= 0.9 * sum(stretches)


class Shares(Breaks):
    """One of the blocks is called twice: which of the two it was nobody could tell."""

    def loss(self, x):
        return self.net[1](self.net(x)).square().mean()


def test_a_block_that_is_called_twice_is_left_out(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, Shares(333, 2), most=32)
    assert {number for number, _ in counts.added} == {3}
    assert first_broken(run)[:2] == (333, "2")


class Peeks(Breaks):
    """Runs the model some times more without gradients, between a forward and its backward."""

    def __init__(self, at, block, passes) -> None:
        super().__init__(at, block)
        self._passes = passes

    def step(self, x, number):
        loss = self.loss(x)
        self._seen -= self._passes  # not counted
        with torch.no_grad():
            self.kept = [self.net(x) for _ in range(self._passes)]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@pytest.mark.parametrize("passes", [1, 20])
def test_what_was_put_out_without_gradients_is_no_evidence(tmp_path, stretches, counts, affordable, passes):
    run = recorded(tmp_path, Peeks(333, 2, passes), most=32)
    told = [event for event in run.events[run.events.kind == "activation"].itertuples() if "micro" in event.fields]
    assert sum(stretches) > 100 and {number for number, _ in counts.added} == {4}
    assert told[0].step == 333 and run.bricks.path[run.bricks.id == told[0].fields["brick"]].item() == "2"


class Ahead(Breaks):
    """Runs its last block alone before each forward, with gradients."""

    def loss(self, x):
        if self._seen < self._at:
            self.kept = self.net[3](x)
        return super().loss(x)


def test_blocks_are_told_in_the_order_of_the_forward(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, Ahead(333, 1), most=32)
    assert first_broken(run)[:2] == (333, "1") and counts.added


class Divides(Breaks):
    """Breaks what a block has put out, before the next one is given it."""

    def loss(self, x):
        before = self.net[1](self.net[0](x))
        x = before / (before - before) if self._at == self._seen else before
        return self.net[3](self.net[2](x)).square().mean()


def test_what_the_script_does_between_two_blocks_is_not_the_next_ones_fault(tmp_path, stretches, counts, affordable):
    at = 333
    run = recorded(tmp_path, Divides(at, 2), most=32)
    told = [event for event in run.events[run.events.kind == "activation"].itertuples() if "micro" in event.fields]
    assert told[0].step == at and told[0].fields["inputs_finite"] is None


class InDouble(Breaks):
    def loss(self, x):
        loss = super().loss(x)
        return loss.double() if self._seen % 8 == 5 else loss


def test_a_loss_of_another_type_is_left_out(tmp_path, stretches, counts, affordable):
    def add(gate, *given):
        assert gate.dtype is torch.float32
        return added(gate, *given)

    added, counts.add = counts.add, add
    run = recorded(tmp_path, InDouble(342, 2), most=32)
    assert first_broken(run)[:2] == (342, "2") and not len(run.events[run.events.kind == "probe_off"])


class Prefetches(Breaks):
    """Its forward is done before the batch of the next step is asked for."""

    def run(self, batches):
        draws = iter(batches)
        (x,) = next(draws)
        for _ in range(450):
            y = x
            for layer in self.net:
                y = layer(y)
            loss = y.square().mean()
            (x,) = next(draws)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()


@pytest.mark.parametrize("at", range(333, 341))
def test_a_batch_that_is_asked_for_behind_the_forward_loses_no_output(tmp_path, stretches, counts, affordable, at):
    run = recorded(tmp_path, Prefetches(at, 2), most=6)
    assert first_broken(run)[:2] == (at, "2") and sum(stretches) > 100


class Logs(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Logged(Breaks):
    """Some steps are under a mode of the script's own."""

    def __init__(self, *given):
        super().__init__(*given)
        self.logs = []

    def step(self, x, number):
        if number % 20 != 10:
            return super().step(x, number)
        with Logs() as logs:
            loss = super().step(x, number)
        self.logs.append(logs.seen)
        return loss


def test_a_mode_of_the_scripts_sees_nothing_of_it(tmp_path, stretches, counts, affordable):
    looked = Logged(333, 2)
    run = recorded(tmp_path / "looked", looked, most=32)
    assert first_broken(run)[:2] == (333, "2") and counts.added
    counts.ready = False
    plain = Logged(333, 2)
    recorded(tmp_path / "plain", plain, most=32)
    seen = [sum("zeros" in each or "copy" in each for each in logs) for logs in (*looked.logs[5:16], *plain.logs[5:16])]
    assert seen[:11] == seen[11:]


# -- when


def session(typical=1e9, step=500):
    paid, started, read, errors = [], [], [], []
    return SimpleNamespace(
        step=step, cadence=SimpleNamespace(budget=0.01, typical_ns=typical, ease=1.0, stride={"blocks": 8}), paid=paid,
        on=SimpleNamespace(blocks=False, deep=False), backward_depth=0, thread=lookouts._thread(), correct=paid.append,
        charge_start=started.append, started=started, read=read,
        readback=SimpleNamespace(read=lambda *args: read.append(args), lane=Lane(0.0), late=lambda _: False),
        failed=lambda _piece, error: errors.append(error), is_off=lambda _piece: False, errors=errors,
        backlog=Backlog(), steps=SimpleNamespace(backwards=1),
    )  # fmt: skip


def standing(counts, typical=1e9, step=500, told=None):
    """A lookout that has learnt what four blocks in a row put out."""
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    over = session(typical, step)
    watch = Lookout(over, lambda *arrived: told.append(arrived) if told is not None else None)
    watch.choose(enumerate(net))
    watch.sentries._known = dict.fromkeys(range(4), 0)
    return watch, net, over


def hooks(net):
    return sum(len(module._forward_hooks) for module in net.modules())


@pytest.mark.parametrize(("seconds", "behind"), [(0.0, False), (60.0, True)])
def test_the_device_is_behind_if_the_end_of_a_step_has_not_come_when_the_next_forward_is_over(counts, seconds, behind):
    watch, net, over = standing(counts)
    over.readback.lane = lane = Lane(seconds)
    told, watch.sentries.over = [], lambda *_, **named: told.append(named)
    looked = watch.stretch(32)
    for place in range(6):
        looked.backward(net(torch.ones(2, 4)).sum(), place)
        looked.update()
    looked.over(500)
    assert told == [{"young": False, "behind": behind}] and lane.marks == 1 and not over.errors


@pytest.mark.parametrize("at", ["mark", "query"])
def test_nothing_is_asked_of_a_device_that_records_a_graph(counts, monkeypatch, at):
    watch, net, over = standing(counts)
    over.readback.lane = lane = Lane(0.0)
    monkeypatch.setattr(Mark, "query", lambda self: pytest.fail("asked"))
    told, watch.sentries.over = [], lambda *_, **named: told.append(named["behind"])
    looked = watch.stretch(32)
    for place in range(6):
        monkeypatch.setattr(sentry, "hands_off", lambda: at == "query" and lane.marks > 0)
        looked.backward(net(torch.ones(2, 4)).sum(), place)
        monkeypatch.setattr(sentry, "hands_off", lambda: at == "mark")
        looked.update()
    looked.over(500)
    assert told == [None] and lane.marks == (at == "query") and not over.errors


def test_hooks_are_timed_in_one_step_of_a_stretch(counts):
    watch, net, _ = standing(counts)
    looked = watch.stretch(32)
    timed = []
    for place in range(5):
        x = net(torch.ones(2, 4))
        timed.append((looked.timing, looked.inside_ns > 0))
        looked.backward(x.sum(), place)
    assert timed == [(False, False), (True, True), (False, True), (False, True), (False, True)]
    assert looked.hooks_ns == sentry._AROUND * looked.inside_ns


def test_no_hook_is_left_once_something_is_compiled_or_the_next_stretch_begins(counts):
    watch, net, _ = standing(counts)
    first = watch.stretch(32)
    assert hooks(net) == 4 and watch.stretch(32) is not first and hooks(net) == 4
    watch.blind()
    assert hooks(net) == 0 and watch.stretch(32) is None


# -- what


def test_a_step_is_left_out_where_it_cannot_be_read(counts, monkeypatch):
    watch, net, over = standing(counts)
    looked, broken = watch.stretch(4), torch.full((8,), math.nan)

    def counted(place, loss=broken[0]):
        before, held = len(counts.added), net(torch.ones(2, 4))
        looked.backward(loss, place)
        return len(counts.added) > before and held is not None

    assert not counted(0, broken[1])  # not where the kernel could read it
    assert not counted(5)  # behind the end
    monkeypatch.setattr(sentry, "hands_off", lambda: True)
    assert not counted(1)
    monkeypatch.setattr(sentry, "hands_off", lambda: False)
    assert counted(2) and counted(3) and counts.added == [(4, 8), (4, 12)]
    with torch.no_grad():
        assert not counted(4)
    monkeypatch.setattr(sentry, "KIND", {})  # of types that the kernel does not read
    watch.sentries.alike = None
    assert not counted(4) and not over.errors


class Unrolls(Breaks):
    """Calls one of the blocks many times in some steps, the last time for nothing to do with the others."""

    def loss(self, x):
        x = super().loss(x)
        if self._seen > 300:
            for _ in range(40):
                x = x + self.net[3](torch.ones(2, 4)).mean()
        return x


def test_a_block_that_is_called_many_times_drives_no_other_out(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, Unrolls(333, 1), most=32)
    step, path, fields = first_broken(run)
    assert (step, path, fields["inputs_finite"]) == (333, "1", True)


def test_where_nothing_was_counted_nothing_is_sent_for(counts):
    watch, net, over = standing(counts)
    looked = watch.stretch(4)
    net(torch.ones(2, 4))  # and nobody holds what it has put out
    looked.backward(torch.full((8,), math.nan)[0], 0)
    looked.over(501)
    assert not over.read and not counts.added and not over.errors


def test_outputs_that_are_like_those_before_are_told_in_one_and_others_one_by_one(counts, monkeypatch):
    watch, net, over = standing(counts)
    looked, one_by_one, loss = watch.stretch(16), [], torch.full((8,), math.nan)[0]
    left = sentry.Sentry._left
    monkeypatch.setattr(sentry.Sentry, "_left", lambda *given: one_by_one.append(given) or left(*given))
    places: list[list[int]] = []
    monkeypatch.setattr(counts, "add", lambda gate, told, out, at: places.append(told))

    def look(batch, meddle=lambda outputs: None):
        """What was told of the outputs, as a number of floats each, and whether they were asked one by one."""
        outputs = [torch.ones(batch, 4, requires_grad=True)]
        for layer in net:
            outputs.append(layer(outputs[-1]))
        meddle(outputs)
        before = len(one_by_one)
        looked.backward(loss, 1)
        kept = {output.data_ptr() for output in outputs}
        assert set(places[-1][::2]) <= kept
        _, _, follow, _ = looked._seen[1]
        return [size >> 2 for size in places[-1][1::2]], follow, len(one_by_one) > before

    chained = [False, True, True, True]
    assert [look(2) for _ in range(3)] == [([8] * 4, chained, True)] * 2 + [([8] * 4, chained, False)]
    assert look(3) == ([12] * 4, chained, True) and look(2) == ([8] * 4, chained, False)
    assert look(2, lambda outputs: outputs[2].add_(1)) == ([8] * 3, [False, False, True], True)
    assert look(2, lambda outputs: outputs.pop(4)) == ([8] * 3, chained[:3], True)
    assert look(2, lambda outputs: net[0](outputs[0]))[2] and look(2) == ([8] * 4, chained, False)
    assert look(3)[2] and not look(3)[2]  # they are of other sizes from now on
    watch.sentries.learn([], Left([], []), -1)
    assert watch.sentries.alike is None and not over.errors


def test_what_was_written_into_since_it_was_put_out_is_not_counted(counts):
    watch, net, _ = standing(counts)
    looked = watch.stretch(4)
    first = net[0](torch.ones(2, 4))
    second = net[1](first)
    second.mul_(2.0)
    looked.backward((first.sum() + second.sum()), 0)
    assert counts.added == [(1, 0)]


def test_nothing_lives_longer_for_it(counts):
    watch, net, _ = standing(counts)
    looked = watch.stretch(4)
    value = net[0](torch.ones(2, 4))
    gone = weakref.ref(value)
    looked.backward(value.sum(), 0)
    del value
    gc.collect()
    assert gone() is None


def test_blocks_that_put_out_several_things_are_known_by_the_first_tensor(counts):
    class Pair(nn.Linear):
        def forward(self, x):
            return None, super().forward(x)

    class Nothing(nn.Linear):
        def forward(self, x):
            return None

    watch, _, over = standing(counts)
    net = nn.ModuleList([Pair(4, 4), Nothing(4, 4)])
    watch.choose(enumerate(net))
    watch.sentries._known = {0: 0, 1: 0}
    looked = watch.stretch(4)
    _, value = net[0](torch.ones(2, 4))
    net[1](value)
    looked.backward(value.sum(), 0)
    assert counts.added == [(1, 0)] and not over.errors


def test_memory_that_was_given_back_is_not_read(counts):
    watch, net, over = standing(counts)
    looked = watch.stretch(4)
    first = net[0](torch.ones(2, 4))
    second = net[1](first)
    second.untyped_storage().resize_(0)
    looked.backward(first.sum(), 0)
    assert counts.added == [(1, 0)] and not over.errors
    handle = net[2].register_forward_hook(lambda _m, _a, out: torch.cat([out, out])[2:], prepend=True)
    third = net[2](first)
    handle.remove()
    assert third.storage_offset()
    third.untyped_storage().resize_(0)
    looked.backward(first.sum(), 1)
    assert counts.added == [(1, 0)] and not over.errors


def test_a_hook_that_cannot_be_put_leaves_none_behind(counts, monkeypatch):
    watch, net, over = standing(counts)

    def refuses(_hook):
        raise RuntimeError("no hooks here")

    monkeypatch.setattr(net[2], "register_forward_hook", refuses)
    assert watch.stretch(4) is None and hooks(net) == 0 and len(over.errors) == 1


@pytest.mark.parametrize("timing", [True, False])
def test_a_hook_is_not_traced(counts, timing):
    watch, net, _ = standing(counts)
    looked = watch.stretch(4)
    looked.timing = timing
    exported = torch.export.export(net, (torch.ones(2, 4),), strict=True)
    assert torch.equal(exported.module()(torch.ones(2, 4)), net(torch.ones(2, 4)))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    compiled(torch.ones(2, 4))
    torch._dynamo.reset()


class CallsOnceMore(Breaks):
    """In the step that breaks one of the blocks before runs again, behind the last."""

    def loss(self, x):
        y = self.net(x)
        return (self.net[1](y) if self._seen == self._at + 1 else y).square().mean()


def test_blocks_are_in_the_order_of_the_step_not_in_that_which_was_learnt(tmp_path, stretches, counts, affordable):
    run = recorded(tmp_path, CallsOnceMore(333, 2), most=32)
    assert first_broken(run)[:2] == (333, "2")


def test_what_another_thread_runs_is_not_of_the_training(counts):
    told, kept = [], []
    watch, net, over = standing(counts, told=told)
    over.readback.read = lambda out, done: done(out)
    looked = watch.stretch(4)
    held = net(torch.ones(2, 4))
    other = threading.Thread(target=lambda: kept.append(net(torch.full((2, 4), math.nan))))
    other.start()
    other.join()
    looked.backward(torch.full((), math.nan), 0)
    looked.over(100)
    assert counts.added and not told and not over.errors and held.requires_grad


def test_what_a_backward_has_recomputed_is_not_handed_over(counts):
    watch, net, _ = standing(counts)
    for whole in (False, True):
        looked = watch.stretch(4)
        looked.backward(net(torch.ones(2, 4)).sum(), 0)
        if whole:
            looked.update()
        again = net(torch.ones(2, 4))
        looked.over(500)
        assert bool(watch.sentries._handed[1]) is whole and again.requires_grad


def test_an_output_that_cannot_be_asked_loses_no_other(counts):
    watch, net, over = standing(counts)
    looked = watch.stretch(4)
    with torch.inference_mode():
        odd = torch.ones(2, 4)
    handle = net[1].register_forward_hook(lambda *_: odd, prepend=True)
    held = [net[0](torch.ones(2, 4)), net[1](torch.ones(2, 4)), net[2](torch.ones(2, 4))]
    looked.backward(held[0].sum(), 0)
    handle.remove()
    assert counts.added == [(2, 0)] and not over.errors
