"""Who looks out over the blocks where there are no stretches: several optimizers a step, ranks, too many backwards."""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import brickprof
from brickprof.capture import lookout as lookouts
from brickprof.capture import patrol as patrols
from brickprof.capture import sentries
from brickprof.capture.lookout import Lookout
from brickprof.run import Run
from tests.late import Lane
from tests.test_sentry import Recomputes as RecomputesOnce
from tests.test_sentry import affordable, counts, hooks, standing
from tests.test_stretch import Breaks, loader, recorded, stretches

__all__ = ["affordable", "counts", "stretches"]


class Accumulates(Breaks):
    """Several backwards in every step."""

    micro_batches = 2

    def step(self, x, number):
        self.optimizer.zero_grad()
        for _ in range(self.micro_batches):
            (self.loss(x) / self.micro_batches).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()


class InManyParts(Accumulates):
    micro_batches = 9


class Alternates(Breaks):
    """Two models that take turns in one step."""

    def __init__(self, at, block):
        super().__init__(at, block)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.other = torch.optim.SGD(self.first.parameters(), lr=0.01)

    def step(self, x, number):
        for net, optimizer in ((self.first, self.other), (self.net, self.optimizer)):
            optimizer.zero_grad()
            for layer in net:
                x = layer(x)
            x.square().mean().backward()
            optimizer.step()
            x = x.detach()


class Recomputes(Accumulates):
    loss = RecomputesOnce.loss

    def _break(self, _module, _args, output):
        if torch._C._current_graph_task_id() != -1:
            return output
        return super()._break(_module, _args, output)


def earliest(run):
    """What was seen of a later step may come home before."""
    found = run.events[run.events.kind == "activation"]
    first = found[found.step == found.step.min()].iloc[0]
    return first.step, run.bricks.path[run.bricks.id == first.fields["brick"]].item(), first.fields


@pytest.fixture
def looks(monkeypatch):
    """Where it was looked out, and how: (step, micro-batch) of each backward."""
    seen, count, differentiates, sampled = [], Lookout._count, patrols.Patrol.differentiates, Lookout.sampled

    def counting(self, *given):
        seen.append((self.session.step, self.session.steps.backwards - 1, "by itself"))
        return count(self, *given)

    def watching(self, losses):
        before = len(self._took)
        differentiates(self, losses)
        if len(self._took) > before:
            seen.append((self.session.step, self.session.steps.backwards - 1, "patrol"))

    def sampling(self, backwards):
        sampled(self, backwards)
        seen.extend((self.session.step, micro, "one by one") for micro in range(backwards))

    monkeypatch.setattr(Lookout, "sampled", sampling)
    monkeypatch.setattr(Lookout, "_count", counting)
    monkeypatch.setattr(Lookout, "_reckon", lambda self: setattr(self, "_stride", 64))
    monkeypatch.setattr(patrols.Patrol, "differentiates", watching)
    return seen


@pytest.mark.parametrize("at", [300, 333, 334, 335, 336, 365, 366, 367, 368, 369])
@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("micro", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_block_is_known_whatever_the_step(tmp_path, stretches, counts, affordable, looks, at, loads, micro, ranks):
    training = Accumulates(2 * at + micro, 2)
    run = recorded(tmp_path, training, most=32, batches=loader() if loads else list(loader()), ranks=ranks)
    step, path, fields = earliest(run)
    told = fields["nan"], fields["inputs_finite"], fields["micro"]
    assert (step, path, *told) == (at, "2", 4, True, micro)
    assert sum(stretches) > 200 if ranks == 1 else not stretches


@pytest.mark.parametrize(
    ("kind", "backwards", "blocks"),
    [(Accumulates, 2, {4}), (InManyParts, 9, {4}), (Alternates, 2, {2, 4}), (Recomputes, 2, {4})],
)
def test_every_backward_is_looked_at(tmp_path, stretches, counts, affordable, looks, kind, backwards, blocks):
    training = kind(10_000, 2)
    both = nn.ModuleList([training.net, training.first]) if kind is Alternates else training.net
    with brickprof.attach(both, out=tmp_path, overhead="0.01%") as watched:
        watched._session.world_size = 2 if kind in (Accumulates, Recomputes) else 1
        training.run(loader(500))
    run = Run.open(watched.folder)
    begun = run.events[run.events.kind == "exit"].iloc[0].fields["steps"]
    wanted = {(step, micro) for step in range(80, begun) for micro in range(backwards)}
    seen = [(step, micro) for step, micro, _ in looks if step >= 80]
    assert len(seen) == len(set(seen)) and set(seen) == wanted
    by_patrol = [step for step, _, how in looks if how == "patrol"]
    assert len(by_patrol) > 0.9 * len(seen) and {number for number, _ in counts.added} == blocks
    assert not len(run.events[run.events.kind == "activation"]) and not stretches and begun in (500, 501)
    assert run.events[run.events.kind == "exit"].iloc[0].fields["looked_out"] == len(looks)
    assert {step for step, _, how in looks if how == "one by one"} >= {0, 2, 64}


@pytest.mark.parametrize("at", [300, 333, 347])
def test_one_of_several_ranks_is_looked_over(tmp_path, stretches, counts, affordable, looks, at):
    training = Breaks(at, 2)
    with brickprof.attach(training.net, out=tmp_path, overhead="0.01%") as watched:
        watched._session.world_size = 2
        training.run(loader())
    assert earliest(Run.open(watched.folder))[:2] == (at, "2") and not stretches
    assert {how for step, _, how in looks if step == at} == {"patrol"}


def test_where_stretches_are_there_is_no_patrol(tmp_path, stretches, counts, affordable, looks):
    recorded(tmp_path, Breaks(10_000, 2), most=32)
    assert sum(stretches) > 100 and max(step for step, _, how in [(0, 0, "patrol"), *looks] if how == "patrol") < 264


def test_the_two_models_of_a_step_are_both_learnt(counts):
    watch, _, over = standing(counts)
    kept = [(None, version, 0, 0, brick, False) for brick, version in ((0, 0), (1, 1), (2, 0))]
    values = [torch.zeros(1, requires_grad=True)] * 3
    watch.sentries._known = {7: 0}
    watch.sentries.learn(kept[:2], lookouts.left([], 0, bool)._replace(places=[0, 1], values=values[:2]), -1)
    watch.sentries.learn(kept[2:], lookouts.left([], 0, bool)._replace(places=[0], values=values[2:]), -1)
    assert watch.sentries._known == {0: 0, 1: 1, 2: 0}
    over.step += 1
    watch.sentries.learn(kept[2:], lookouts.left([], 0, bool)._replace(places=[0], values=values[2:]), -1)
    assert watch.sentries._known == {2: 0}


# -- when


def watching(counts, typical=20e6, told=None, backwards=1):
    """A lookout that has learnt what four blocks put out, and a training without stretches."""
    watch, net, over = standing(counts, typical, told=told)
    over.steps = SimpleNamespace(backwards=1)
    watch.backwards = backwards
    return watch, net, over


def train(watch, net, over, steps, breaks=None):
    for _ in range(steps):
        watch.prepare(over.step + 1)
        over.step += 1
        watch.enter(over.step)
        for micro in range(watch.backwards):
            x = torch.ones(2, 4)
            for number, layer in enumerate(net):
                x = layer(x)
                if breaks == (over.step, micro, number):
                    x.data.fill_(math.inf)  # whatever it is that the block does
            over.steps.backwards = micro + 1
            watch.backward([x.sum()])


def test_it_ends_after_so_many_steps_and_what_they_go_by_is_learnt_between(counts):
    watch, net, over = watching(counts, backwards=3)
    watch._stride = 64
    lengths, kinds = [], []
    for _ in range(80):
        before = watch._patrol
        train(watch, net, over, 1)
        kinds.append("posts" if watch.hooked else "patrol" if watch._patrol is not None else "none")
        if before is not None and watch._patrol is not before:
            lengths.append(len(before._moments))
    assert lengths == [96, 96] and kinds.count("posts") == 2 and "none" not in kinds
    assert hooks(net) == 4 and len(over.read) == 2 + 2 * 3  # two watches, and what was looked at between them


def test_that_a_look_by_itself_is_too_dear_is_no_reason_for_none(counts):
    watch, net, over = watching(counts)
    watch._due = 10_000
    train(watch, net, over, 70)
    assert watch.looks >= 60 and watch._patrol is not None and not over.errors
    watch._relieve()
    watch._rests_until = 10_000  # something was reported, or nothing could be counted
    train(watch, net, over, 3)
    assert watch._patrol is None and not hooks(net)


def test_long_steps_are_not_waited_for(counts, monkeypatch):
    clock = [0]
    monkeypatch.setattr(patrols, "_counter", lambda: clock[0])
    watch, net, over = watching(counts)
    seen = []
    for _ in range(9):
        train(watch, net, over, 1)
        clock[0] += 500_000_000
        seen.append(watch._patrol is not None)
    assert seen == [True, True, False] * 3


@pytest.mark.parametrize("why", ["deep", "reported", "compiled", "chosen", "stretch"])
def test_it_ends_where_and_what_was_counted_is_sent_for(counts, monkeypatch, why):
    watch, net, over = watching(counts)
    train(watch, net, over, 5)
    standing_by = watch._patrol
    assert standing_by is not None and hooks(net) == 4 and not over.read
    if why == "deep":
        over.on.deep = True
    elif why == "reported":
        watch.rest()
    elif why == "compiled":
        watch.blind()
    elif why == "chosen":
        watch.choose(enumerate(net))
    else:
        watch.stretch(8)
    if why in ("deep", "reported"):
        watch.prepare(over.step + 1)
    assert watch._patrol is None and len(over.read) == 1 and watch.looks == 5
    assert hooks(net) == {"deep": 4, "reported": 0, "compiled": 0, "chosen": 4, "stretch": 4}[why]
    assert not standing_by.glances and not over.errors


def test_the_first_broken_backward_is_told(counts):
    told = []
    watch, net, over = watching(counts, told=told, backwards=2)
    train(watch, net, over, 9)
    with torch.no_grad():
        net[2].bias.fill_(math.inf)
    train(watch, net, over, 3)
    at = over.step - 2
    watch.blind()
    (out, tell), *rest = over.read
    assert not rest
    tell(out)
    ((step, micro, seen, found),) = told
    assert (step, micro) == (at, 0) and [each.brick for each in seen] == [0, 1, 2, 3]
    assert [any(each) for each in found] == [False, False, True, True] and [each.follows for each in seen[1:]] == [
        True
    ] * 3


def test_more_backwards_than_ever_before_are_counted_as_far_as_there_is_room(counts):
    watch, net, over = watching(counts)
    train(watch, net, over, 2)
    watch._patrol._room = 4
    watch.backwards = 4
    train(watch, net, over, 1)
    assert len(watch._patrol._took) == 4 and not over.errors
    watch.prepare(over.step + 1)
    assert watch._patrol is None


@pytest.mark.parametrize("losses", [[], [torch.ones(()), "loss"], ["loss"], [torch.ones(())]])
def test_a_backward_of_something_else_is_left_out(counts, losses, monkeypatch):
    watch, net, over = watching(counts)
    train(watch, net, over, 2)
    net(torch.ones(2, 4))
    if len(losses) == 1 and losses[0] != "loss":
        monkeypatch.setattr(lookouts, "on_device", lambda tensor: False)
    watch.backward(losses)
    assert len(watch._patrol._took) == 2 and not over.errors


@pytest.mark.parametrize(
    ("took", "hooked", "typical", "backwards", "each"),
    [(50_000, 50_000, 28e6, 1, 1), (50_000, 146_000, 28e6, 2, 2), (50_000, 50_000, 56e6, 2, 1),
     (50_000, 62_000, 28e6, 7, 4)],
)  # fmt: skip
def test_where_it_does_not_fit_the_budget_it_is_one_of_some(counts, took, hooked, typical, backwards, each):
    watch, _, over = watching(counts, typical, backwards=backwards)
    for known in range(3):
        watch.sentries.relieved([took] * 9, hooked, 9 * backwards, 9, young=False)
        assert watch.sentries._part == pytest.approx(1 / each if known == 2 else 1)
    assert not over.paid and not over.started
    begun = []
    for step in range(501, 501 + 2 * each * 33 + 1):
        over.step = step - 1
        before = watch._patrol
        watch.prepare(step)
        if watch._patrol is not None and watch._patrol is not before:
            begun.append(step)
    spaced = {later - sooner for sooner, later in pairwise(begun)}
    steps = min(32, int(800e6 / typical))
    assert len(begun) >= 2 and spaced <= {steps + 1 + steps * (each - 1)}


@pytest.mark.parametrize("young", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
def test_each_backward_is_paid_for_when_it_is_looked_at(counts, young, hidden, monkeypatch):
    watch, net, over = watching(counts)
    ticks = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(patrols, "_counter", lambda: next(ticks))
    watch._grown_from = 10_000 if young else 0
    watch.sentries._hooks_ns.append(70_000)
    watch.sentries._behind.extend([hidden] * 5)
    train(watch, net, over, 4)
    booked = over.started if young else over.paid
    assert len(booked) == 4 and watch._patrol._young is young
    ours = sum(over.paid) + sum(over.started) + 4 * 1000  # what it took is booked by whoever calls
    assert ours == 4 * (sentries.LAUNCH_NS if hidden else 70_000 + 1000)


def test_a_look_that_had_to_wait_is_not_ours(counts, monkeypatch):
    watch, net, over = watching(counts)
    ticks = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(patrols, "_counter", lambda: next(ticks))
    watch.sentries._counts_ns.append(1.0)  # nanoseconds: every look takes more than twice that
    train(watch, net, over, 3)
    assert sum(over.paid) + 3 * 1000 == 3 * 2


@pytest.mark.parametrize(("seconds", "behind"), [(0.0, False), (60.0, True)])
def test_whether_the_device_is_behind_is_asked_behind_the_next_forward(counts, seconds, behind):
    watch, net, over = watching(counts, backwards=2)
    over.readback.lane = Lane(seconds)
    train(watch, net, over, 4)
    assert watch._patrol._behind is behind


def test_an_error_of_ours_is_no_error_of_the_training(tmp_path, stretches, counts, affordable, looks, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(patrols.Patrol, "differentiates", fails)
    run = recorded(tmp_path, Accumulates(10_000, 2), most=32)
    told = [event.fields for event in run.events.itertuples() if event.kind == "probe_off"]
    assert told and {fields["probe"] for fields in told} == {"lookout"}
    assert run.events[run.events.kind == "exit"].iloc[0].fields["updates"] == 500


def test_a_training_is_what_it_is_without(tmp_path, stretches, counts, affordable, looks):
    weights = []
    for watched in (True, False):
        torch.manual_seed(0)
        training = Accumulates(10_000, 2)
        held = brickprof.attach(training.net, out=tmp_path, overhead="0.01%") if watched else contextlib.nullcontext()
        with held:
            training.run(loader(400))
        weights.append([parameter.detach().clone() for parameter in training.net.parameters()])
    assert all(map(torch.equal, *weights)) and counts.added


# -- what a training may do


class OfTwoLosses(Breaks):
    def step(self, x, number):
        self.optimizer.zero_grad()
        y = self.net(x)
        torch.autograd.backward([y.square().mean(), y.abs().mean()])
        self.optimizer.step()


class OfAnotherType(Breaks):
    def step(self, x, number):
        self.optimizer.zero_grad()
        y = self.net(x)
        y.square().mean().to(self.dtype).backward()
        y = self.net(x)
        y.square().mean().backward()
        self.optimizer.step()

    dtype = torch.bfloat16


class OfMany(Breaks):
    def step(self, x, number):
        self.optimizer.zero_grad()
        y = self.net(x).square()
        y.backward(torch.ones_like(y))
        self.optimizer.step()


@pytest.mark.parametrize("kind", [OfTwoLosses, OfAnotherType, OfMany])
def test_whatever_is_differentiated_every_step_is_looked_at(tmp_path, stretches, counts, affordable, looks, kind):
    per_step = 2 if kind is OfAnotherType else 1
    run = recorded(tmp_path, kind(per_step * 347, 2), most=32, ranks=2 if kind is OfAnotherType else 1)
    assert earliest(run)[:2] == (347, "2") and not len(run.events[run.events.kind == "probe_off"])
    assert {step for step, _, _ in looks} >= set(range(80, 347))


def test_another_device_or_stream_is_left_out_and_what_was_counted_read_where_it_was(counts, monkeypatch):
    watch, net, over = watching(counts)
    stream, entered = ["A"], []
    monkeypatch.setattr(patrols, "stream_of", lambda device: stream[0])
    over.readback.lane.on = lambda of: entered.append(of) or contextlib.nullcontext()
    train(watch, net, over, 3)
    stream[0] = "B"
    train(watch, net, over, 2)
    assert len(watch._patrol._took) == 3 and len(watch._patrol._moments) == 3
    watch._relieve()
    assert entered == ["stream"] and len(over.read) == 1 and not over.errors


def test_what_was_counted_on_one_device_is_not_added_to_on_another(counts):
    watch, net, over = watching(counts)
    train(watch, net, over, 1)
    watch._patrol._device = 1
    train(watch, net, over, 1)
    assert len(watch._patrol._took) == 1 and not over.errors


def test_stretches_of_which_few_have_a_sentry_leave_no_room_for_a_patrol(counts):
    watch, _, over = watching(counts, typical=28e6)
    stood = 0
    for number in range(64):
        for _ in range(3):  # dear: two of five
            watch.sentries._time([100_000] * 3, 400_000, None)
            watch.sentries._judge(True, over.step, 1, young=False)
        made = watch.stretch(32)
        stood += made is not None
        over.step += 32
        if made is not None:
            made.over(over.step - 31)
        watch.prepare(over.step + 1)
        assert watch._patrol is None, number
    assert stood == 25 and watch.sentries.able


def test_one_that_is_relieved_before_any_backward_was_not_in_vain(counts):
    watch, _, over = watching(counts)
    for _ in range(5):
        watch.prepare(over.step + 1)
        assert watch._patrol is not None
        watch._relieve()
        over.step += 1
    assert watch.sentries.able


@pytest.mark.parametrize("why", ["time", "deep", "able"])
def test_what_was_decided_of_a_step_stays_so_once_its_forward_is_done(counts, monkeypatch, why):
    watch, net, over = watching(counts)
    clock = [0]
    monkeypatch.setattr(patrols, "_counter", lambda: clock[0])
    if why == "time":
        train(watch, net, over, 2)
    elif why == "deep":
        over.on.deep = True
    else:
        known, watch.sentries._known = watch.sentries._known, {}
    watch._stride = 1
    watch.prepare(over.step + 1)
    x = torch.ones(2, 4)
    for layer in net:
        x = layer(x)
    over.on.deep, over.step = False, over.step + 1
    clock[0] += 10**10
    if why == "able":
        watch.sentries._known = known
    watch.enter(over.step, forward_done=True)
    before = watch.looks + (len(watch._patrol._took) if watch._patrol is not None else 0)
    watch.backward([x.sum()])
    assert watch.looks + (len(watch._patrol._took) if watch._patrol is not None else 0) == before + 1


def test_blocks_that_are_chosen_anew_are_looked_at_at_once(counts):
    watch, net, over = watching(counts)
    watch._stride = 64
    train(watch, net, over, 2)
    watch.choose(enumerate(net))
    assert hooks(net) == 4 and watch.hooked == 4
    train(watch, net, over, 2)
    assert watch._patrol is not None or watch.hooked


def test_how_many_backwards_a_step_has_is_what_the_last_had(counts):
    watch, _, _ = watching(counts)
    seen = []
    for number in (1, 1, 1, 2, 1, 2, 3, 1, 1):
        watch.differentiated(number)
        seen.append(watch.backwards)
    assert seen == [1, 1, 1, 2, 2, 2, 3, 3, 1]


def test_a_patrol_that_cannot_be_had_is_nobody_elses_trouble(counts, monkeypatch):
    watch, _, over = watching(counts)
    monkeypatch.setattr(watch.sentries, "appoint", lambda *_, **__: 1 / 0)
    watch.enter(over.step + 1)
    assert len(over.errors) == 1 and watch._patrol is None
