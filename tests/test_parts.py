"""Steps of several backwards in stretches: what is odd about some of them, and who looks out over their blocks."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import brickprof
from brickprof.capture import hub, sentries
from brickprof.capture.lookout import Lookout
from brickprof.capture.sentries import Sentries
from brickprof.run import Run
from tests.test_patrol import earliest, looks
from tests.test_sentry import affordable, counts, standing
from tests.test_stretch import Breaks, InParts, loader, recorded, stretches, told

__all__ = ["affordable", "counts", "looks", "stretches"]


class UnderAMode(InParts):
    """Some steps in which nobody may touch a tensor but the script."""

    def step(self, x, number):
        if number % 47 != 40:
            return super().step(x, number)
        with FlopCounterMode(display=False):
            return super().step(x, number)


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("level", ["standard", "light"])
def test_no_more_losses_are_held_than_there_is_room_for(tmp_path, stretches, parts, level):
    found = []
    for most in (0, 128):
        training = UnderAMode()
        training.parts = parts
        with brickprof.attach(training.net, out=tmp_path / str(most), level=level, overhead="0.01%") as watched:
            watched._session.idle = lambda step, longest, *, clips, most=most: min(longest, most)
            training.run(loader())
        losses, *rest = told(Run.open(watched.folder))
        found.append(losses)
        assert not any(rest[-1].values())
    assert found[0].keys() <= found[1].keys() and all(found[1][at] == found[0][at] for at in found[0])
    held = 1 if level == "light" else 3
    assert stretches and max(stretches) <= 128 // (parts + held - 1) + 1


class Inside(torch.autograd.Function):
    """Differentiates something of its own when it is differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, given):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (2 * inner * given).sum().backward()
        return inner.grad


class Nested(InParts):
    def loss(self, x):
        return Inside.apply(self.net(x)).square().mean()


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_backward_inside_another_is_no_micro_batch(tmp_path, stretches, parts):
    found = []
    for most in (0, 6):
        training = Nested()
        training.parts = parts
        found.append(told(recorded(tmp_path / str(most), training, most=most)))
    assert found[0] == found[1] and sum(stretches) > 200


class Keeps(Breaks):
    """Two losses of one graph."""

    def step(self, x, number):
        self.optimizer.zero_grad()
        out = self.net(x)
        out.square().mean().backward(retain_graph=True)
        out.abs().mean().backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()


@pytest.mark.parametrize("at", [200, 225, 350])
def test_a_graph_that_is_kept_is_none_of_a_stretch_and_its_steps_are_patrolled(
    tmp_path, stretches, counts, affordable, looks, at
):
    run = recorded(tmp_path, Keeps(at, 2), most=32)
    assert earliest(run)[:2] == (at, "2") and not stretches
    assert {step for step, _, _ in looks} >= set(range(80, at))


class KeepsNowAndThen(Breaks):
    """A stretch that is over at once."""

    def step(self, x, number):
        self.optimizer.zero_grad()
        self.loss(x).backward(retain_graph=number % 2 == 0)
        self.optimizer.step()


@pytest.mark.parametrize("at", [240, 245, 370, 375])
def test_stretches_in_vain_leave_room_for_patrols(tmp_path, stretches, counts, affordable, looks, at):
    run = recorded(tmp_path, KeepsNowAndThen(at, 2), most=32)
    assert earliest(run)[:2] == (at, "2") and stretches


class Heads(Breaks):
    """Two heads on one trunk, a micro-batch for each; in one step something is told between the two."""

    tells = -1

    def step(self, x, number):
        self.optimizer.zero_grad()
        for part in range(2):
            self.net[2 + part](self.net[1](self.net[0](x))).square().mean().backward()
            if part == 0 and number == self.tells:
                hub.fact("note", {"text": "between"})
        self.optimizer.step()


class TellsBetween(Heads):
    tells = 330


@pytest.mark.parametrize("kind", [Heads, TellsBetween])
@pytest.mark.parametrize("at", [345, 360])
def test_a_step_of_which_only_the_end_is_seen_takes_nothing_back_that_was_learnt(
    tmp_path, stretches, counts, affordable, looks, kind, at
):
    step, path, fields = earliest(recorded(tmp_path, kind(at, 2), most=32))
    assert (step, path, fields["micro"]) == (at, "2", 0) and sum(stretches) > 200


class OneMore(Breaks):
    """One micro-batch more than usual in one step."""

    usual = 2

    def step(self, x, number):
        self.optimizer.zero_grad()
        for _ in range(self.usual + (number == 340)):
            self.loss(x).backward()
        self.optimizer.step()


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize(("usual", "micro"), [(2, 0), (2, 1), (2, 2), (1, 0), (1, 1)])
def test_one_micro_batch_more_than_usual_is_looked_at(
    tmp_path, stretches, counts, affordable, looks, loads, usual, micro
):
    training = OneMore(340 * usual + micro, 2)
    training.usual = usual
    run = recorded(tmp_path, training, most=32, batches=loader() if loads else list(loader()))
    step, path, fields = earliest(run)
    assert (step, path, fields["micro"], fields["inputs_finite"]) == (340, "2", micro, True) and sum(stretches) > 200
    assert not len(run.events[run.events.kind == "probe_off"])


class Odd(Breaks):
    """One step in which a backward is not what it was."""

    usual, how = 1, "kept"

    def step(self, x, number):
        odd, clip = number == 340, partial(nn.utils.clip_grad_norm_, list(self.net.parameters()), 1.0)
        self.optimizer.zero_grad()
        for part in range(self.usual):
            self.loss(x).backward(retain_graph=odd and self.how == "kept" and part == self.usual - 1)
        if odd and self.how == "further and kept":
            self.loss(x).backward(retain_graph=True)
        clip()
        if odd and self.how == "behind the clip":
            self.loss(x).backward()
            clip()
        self.optimizer.step()


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize(
    ("usual", "how", "micro"),
    [(1, "kept", 0), (2, "kept", 1), (1, "further and kept", 1), (2, "further and kept", 2), (1, "behind the clip", 1),
     (2, "behind the clip", 2)],
)  # fmt: skip
def test_a_backward_that_could_not_be_noted_is_looked_at(
    tmp_path, stretches, counts, affordable, looks, loads, usual, how, micro
):
    training = Odd(340 * usual + micro, 2)
    training.usual, training.how = usual, how
    run = recorded(tmp_path, training, most=32, batches=loader() if loads else list(loader()))
    step, path, fields = earliest(run)
    assert (step, path, fields["micro"], fields["inputs_finite"]) == (340, "2", micro, True) and sum(stretches) > 200


class WritesInto(OneMore):
    """The output of a block is written into, in the micro-batch that is one more."""

    def loss(self, x):
        self._seen += 1
        first = self.net[0](x)
        if self._seen == 340 * self.usual + self.usual + 1:
            first += math.nan
        return self.net[3](self.net[2](self.net[1](first))).square().mean()

    def _break(self, _module, _args, output):
        return output


def test_what_was_written_into_in_one_micro_batch_more_is_not_its_blocks(
    tmp_path, stretches, counts, affordable, looks
):
    step, path, fields = earliest(recorded(tmp_path, WritesInto(0, 2), most=32))
    assert (step, path, fields["micro"]) == (340, "1", 2) and fields["inputs_finite"] is None


@pytest.fixture
def taken(monkeypatch):
    """What was handed back to the lookout: the steps."""
    steps, take = [], Lookout.take
    monkeypatch.setattr(Lookout, "take", lambda self, *given: steps.append(self.session.step) or take(self, *given))
    return steps


class NestedBlocks(Breaks):
    def loss(self, x):
        return Inside.apply(self.net(x)).square().mean()


class Told(OneMore):
    """Something is told between a forward and its backward, or behind it."""

    def loss(self, x):
        loss = super().loss(x)
        self._number = getattr(self, "_number", 0) + 1
        if self._number % 50 == 0:
            hub.fact("note", {"text": "here"})
        return loss

    def step(self, x, number):
        if number != 340:
            super().step(x, number)


@pytest.mark.parametrize("kind", [NestedBlocks, Told])
def test_nothing_is_handed_back_where_no_backward_follows(tmp_path, stretches, counts, affordable, looks, taken, kind):
    recorded(tmp_path, kind(100_000, 2), most=32)
    assert not taken and sum(stretches) > 200


def test_what_was_handed_back_teaches_nothing(tmp_path, stretches, counts, affordable, looks, taken, monkeypatch):
    learnt, learn = [], Sentries.learn
    monkeypatch.setattr(
        Sentries, "learn", lambda self, *given: learnt.append(self._lookout.session.step) or learn(self, *given)
    )
    booked, booking = [], Lookout._learn
    monkeypatch.setattr(Lookout, "_learn", lambda self, spent: booking(self, spent) or booked.append(self._hooks_ns))
    training = OneMore(100_000, 2)
    recorded(tmp_path, training, most=32)
    assert taken == [340] and 340 not in learnt and len(booked) > 10 and booked[-1] > 0


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_where_there_is_no_room_for_the_counts_of_two_steps_stretches_have_none(
    tmp_path, stretches, counts, affordable, looks, monkeypatch, parts
):
    monkeypatch.setattr(sentries, "_MOST_NUMBERS", 64)  # seven backwards
    stood, post = [], Sentries.post
    monkeypatch.setattr(Sentries, "post", lambda *given, **named: stood.append(1) or post(*given, **named))
    training = OneMore(100_000, 2)
    training.usual = parts
    recorded(tmp_path, training, most=32)
    assert sum(stretches) > 100 and bool(stood) is (parts < 4)


def test_hooks_that_did_not_run_were_not_timed(counts):
    watch, _, _ = standing(counts)
    watch._hooks_ns, watch.timing, watch.inside_ns = 70_000.0, True, 0
    watch._learn(1000)
    assert watch.timing and watch._hooks_ns == 70_000
    watch.inside_ns = 20_000
    watch._learn(1000)
    assert not watch.timing and watch._hooks_ns == 40_000
