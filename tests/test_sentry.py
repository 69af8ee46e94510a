"""Who looks out over the blocks in a stretch of steps that are only noted: in every step of it, and at one launch."""

from __future__ import annotations

import gc
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from brickprof.capture import lookout as lookouts
from brickprof.capture import outputs, sentry
from brickprof.capture.lookout import Lookout
from brickprof.capture.sentry import Sentry
from tests.test_stretch import (
    Breaks,
    BreaksBetweenEvaluations,
    BreaksInEpochs,
    BreaksWithinBatches,
    CountsInPassing,
    Training,
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
    monkeypatch.setattr(lookouts, "_SHARE", 1e9)


def first_broken(run):
    found = run.events[run.events.kind == "activation"].iloc[0]
    return found.step, run.bricks.path[run.bricks.id == found.fields["brick"]].item(), found.fields


@pytest.mark.parametrize("kind", [Breaks, BreaksInEpochs, BreaksBetweenEvaluations, BreaksWithinBatches])
@pytest.mark.parametrize("at", [160, 325, 333, 334, 335, 347])
def test_the_block_is_known_whatever_the_step(tmp_path, stretches, counts, affordable, kind, at):
    run = recorded(tmp_path, kind(at, 2), most=32)
    step, path, fields = first_broken(run)
    assert (step, path, fields["nan"], fields["inputs_finite"]) == (at, "2", 4, True)
    assert sum(stretches) > 100 and {number for number, _ in counts.added} == {4}
    assert run.events[run.events.kind == "exit"].iloc[0].fields["looked_out"] >= len(counts.added) > 50


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


# -- when


def session(typical=1e9, step=500):
    paid, started, read = [], [], []
    return SimpleNamespace(
        step=step, cadence=SimpleNamespace(budget=0.01, typical_ns=typical, ease=1.0, stride={"blocks": 8}), paid=paid,
        on=SimpleNamespace(blocks=False), backward_depth=0, thread=lookouts._thread(), correct=paid.append,
        charge_start=started.append, started=started, readback=SimpleNamespace(read=lambda *args: read.append(args)),
        read=read, failed=lambda _piece, error: pytest.fail(str(error)), is_off=lambda _piece: False,
    )  # fmt: skip


def standing(over, counts):
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    watch = Lookout(over, lambda *_: None)
    watch.choose(enumerate(net))
    return watch, net


@pytest.mark.parametrize(
    ("took", "hooks", "typical", "duty"),
    [([50_000] * 9, 50_000, 28e6, 1), ([50_000] * 9, 100_000, 28e6, 2), ([50_000] * 9, 50_000, 4e6, 8),
     ([50_000] * 5 + [10**9] * 4, 50_000, 28e6, 1), ([10**9] * 9, 0, 28e6, 32), ([], 0, 28e6, 1)],
)  # fmt: skip
def test_where_it_does_not_fit_the_budget_it_is_one_stretch_of_some(counts, took, hooks, typical, duty):
    over = session(typical)
    watch, net = standing(over, counts)
    watch.inside_ns = hooks // 2
    watch._timed()
    usual = sorted(took)[len(took) // 2] if took else 0
    for known in range(3):
        watch.passed(SimpleNamespace(took=took, steps=len(took), fetch=lambda *_: None), 470)
        assert watch._duty == (duty if known == 2 else 1)  # one alone is no measure
    assert over.paid == [len(took) * (usual + hooks)] * 3 and not over.started
    looked = [watch.stretch(32) is not None for _ in range(2 * duty)]
    assert looked.count(True) == 2 and watch.ahead(500, 32) == 32
    assert looked[-1] and watch.hooked == len(net)
    watch.stretch(32)
    assert (watch.hooked == len(net)) is (duty == 1)


def test_one_stretch_that_something_held_up_is_no_measure(counts):
    over = session(28e6)
    watch, _ = standing(over, counts)
    for took in (40_000, 50_000, 10**8, 60_000, 10**8):
        for inside in (20_000, 10**7, 20_000):
            watch.inside_ns = inside
            watch._timed()
        watch.passed(SimpleNamespace(took=[took] * 3, steps=3, fetch=lambda *_: None), 470)
    assert watch._duty == 1


def test_hooks_are_timed_in_one_step_of_a_stretch_and_not_beyond_it(counts):
    over = session(28e6)
    watch, _ = standing(over, counts)
    looked = Sentry(counts, 32, 4)
    for place in range(2):
        watch.pass_backward(looked, torch.zeros(()), place)
    assert watch.timing
    watch.passed(looked, 470)  # it has ended there
    assert not watch.timing and not watch._timings
    for place in range(4):
        watch.pass_backward(looked, torch.zeros(()), place)
        watch.inside_ns += 1000
    assert not watch.timing and list(watch._timings) == [2000]


def test_in_a_young_run_it_is_every_one_and_on_the_account_of_the_start(counts):
    over = session(step=100)
    watch, _ = standing(over, counts)
    watch._grown_from = 264
    watch._duty = 8
    assert [watch.stretch(32) is not None for _ in range(4)] == [True] * 4
    watch.passed(SimpleNamespace(took=[1000] * 3, steps=3, fetch=lambda *_: None), 90)
    assert over.started == [3000] and not over.paid


@pytest.mark.parametrize("why", ["no kernel yet", "it rests", "all is looked at", "compiled", "no blocks"])
def test_nobody_looks_out_where(counts, why):
    over = session()
    watch, _ = standing(over, counts)
    if why == "no kernel yet":
        counts.ready = False
    elif why == "it rests":
        watch.rest()
    elif why == "all is looked at":
        over.on.blocks, over.cadence.stride["blocks"] = True, 1
    elif why == "compiled":
        watch.blind()
    else:
        watch.choose([])
    assert watch.stretch(32) is None and watch.hooked == 0


# -- what


def remembered(*values, stream=0):
    return [
        (weakref.ref(value), value._version, value.data_ptr(), stream, brick, brick > 0)
        for brick, value in enumerate(values)
    ]


def test_a_step_is_left_out_where_it_cannot_be_read(counts, monkeypatch):
    values, looked = [torch.ones(4) for _ in range(3)], Sentry(counts, 4, 3)
    broken = torch.full((8,), math.nan)
    looked.count(remembered(*values), broken[1], 0)  # not where the kernel could read it
    assert not counts.added
    looked.count(remembered(*values), broken[0], 5)  # behind the end
    monkeypatch.setattr(sentry, "hands_off", lambda: True)
    looked.count(remembered(*values), broken[0], 1)
    assert not counts.added
    monkeypatch.setattr(sentry, "hands_off", lambda: False)
    monkeypatch.setattr(outputs, "stream_of", lambda _device: 7)
    looked.count(remembered(*values), broken[0], 1)
    assert not counts.added
    looked.count(remembered(*values, stream=7), broken[0], 2)
    looked.count(remembered(*values, torch.ones(4), stream=7)[:3], broken[0], 3)
    looked.count(remembered(*[torch.ones(4)] * 4, stream=7), broken[0], 3)  # more than there is room for
    assert counts.added == [(3, 6), (3, 9)] and looked.steps == 2


def test_the_first_broken_step_is_told_and_its_blocks_in_order(counts):
    told, looked = [], Sentry(counts, 4, 2)
    fine, broken = torch.zeros(()), torch.full((), math.nan)
    for place in range(4):
        first, second = torch.ones(4), torch.ones(4)
        if place >= 2:
            second[: place - 1] = math.nan
        looked.count(remembered(first, second), broken if place >= 2 else fine, place)
    looked.fetch(100, SimpleNamespace(read=lambda out, done: done(out)), lambda *arrived: told.append(arrived))
    ((step, micro, seen, counted),) = told
    assert (step, micro, counted) == (102, 0, [[0, 0], [1, 0]])
    assert [(each.brick, each.numel, each.follows) for each in seen] == [(0, 4, False), (1, 4, True)]


def test_nothing_is_told_of_a_stretch_without_a_fault(counts):
    looked = Sentry(counts, 4, 2)
    value = torch.full((4,), math.nan)  # such as a mask of the script's
    looked.count(remembered(value), torch.zeros(()), 0)
    looked.fetch(100, SimpleNamespace(read=lambda out, done: done(out)), lambda *_: pytest.fail("told"))
    Sentry(counts, 4, 2).fetch(100, None, None)


def test_nothing_lives_longer_for_it(counts):
    looked, value = Sentry(counts, 4, 2), torch.ones(4)
    gone = weakref.ref(value)
    looked.count(remembered(value), torch.zeros(()), 0)
    del value
    gc.collect()
    assert gone() is None
