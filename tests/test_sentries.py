"""Which stretches have somebody look out over the blocks, by what that costs; and what is told when one is over."""

from __future__ import annotations

import math
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn

from brickprof.capture import lookout as lookouts
from brickprof.capture import sentries
from brickprof.capture.lookout import Lookout
from brickprof.capture.outputs import Left
from tests.test_sentry import counts, hooks, session, standing

__all__ = ["counts"]


@pytest.mark.parametrize(
    ("took", "hooked", "typical", "part"),
    [([50_000] * 9, 50_000, 28e6, 1), ([50_000] * 9, 230_000, 28e6, 1), ([50_000] * 9, 231_000, 28e6, 196 / 281),
     ([50_000] * 9, 50_000, 4e6, 0.28), ([50_000] * 5 + [10**9] * 4, 50_000, 28e6, 1),
     ([4_000_000] * 9, 0, 28e6, 0.049), ([6_271_000] * 9, 0, 28e6, 196 / 6271), ([], 0, 28e6, 1)],
)  # fmt: skip
def test_where_it_does_not_fit_the_budget_it_is_some_of_the_stretches(counts, took, hooked, typical, part):
    watch, net, over = standing(counts, typical)
    usual = sorted(took)[len(took) // 2] if took else 0
    for known in range(3):
        watch.sentries.over(took, hooked, len(took), young=False)
        assert watch.sentries._part == pytest.approx(part if known == 2 else 1)  # one alone is no measure
    assert over.paid == [len(took) * (usual + hooked)] * 3 and not over.started
    looked = []
    for _ in range(1000):
        looked.append(watch.stretch(32) is not None)
        assert (hooks(net) == 4) is looked[-1]
    assert abs(looked.count(True) - 1000 * part) <= 1 and watch.ahead(500, 32) == 32
    apart = {later - sooner for sooner, later in pairwise(at for at, stood in enumerate(looked) if stood)}
    assert apart <= {math.floor(1 / part), math.ceil(1 / part)}  # evenly
    assert watch.sentries.always is (part == 1)
    watch._stride = 32
    watch.enter(501)
    assert (watch.hooked == 4) is (part == 1)  # between two stretches, too


def test_one_stretch_that_something_held_up_is_no_measure(counts):
    watch, _, _ = standing(counts, 28e6)
    for took, hooked in ((40_000, 30_000), (50_000, 10**8), (10**8, 30_000), (60_000, 10**8), (10**8, 40_000)):
        watch.sentries.over([took] * 3, hooked, 3, young=False)
    assert watch.sentries._part == 1


@pytest.mark.parametrize(("behind", "hidden"), [(5, True), (3, True), (2, False), (0, False)])
def test_where_the_device_is_behind_anyway_no_step_is_longer_for_it(counts, behind, hidden):
    watch, _, over = standing(counts, 4e6)
    for number in range(5):
        watch.sentries.over([50_000] * 9, 50_000, 9, young=False, behind=number >= 5 - behind)
    assert watch.sentries.hidden is hidden
    assert watch.sentries._part == pytest.approx(1 if hidden else 0.28)
    assert over.paid[-1] == (9 * sentries.LAUNCH_NS if hidden else 9 * 100_000)


def test_in_a_young_run_it_is_every_one_and_on_the_account_of_the_start(counts):
    watch, _, over = standing(counts, step=100)
    watch._grown_from = 264
    watch.sentries._part = 1 / 8
    assert [watch.stretch(32) is not None for _ in range(4)] == [True] * 4
    watch.sentries.over([1000] * 3, 0, 3, young=True)
    assert over.started == [3000] and not over.paid


@pytest.mark.parametrize(
    "why", ["no kernel yet", "nothing learnt", "it rests", "all is looked at", "compiled", "no blocks"]
)
def test_nobody_looks_out_where(counts, why, monkeypatch):
    watch, net, over = standing(counts)
    if why == "no kernel yet":
        counts.ready = False
    elif why == "nothing learnt":
        watch.choose(enumerate(net))
    elif why == "it rests":
        watch.rest()
    elif why == "all is looked at":
        over.on.blocks, over.cadence.stride["blocks"] = True, 1
    elif why == "compiled":
        monkeypatch.setattr(lookouts, "compiled_frames", lambda: 1)
    else:
        watch.choose([])
    assert watch.stretch(32) is None and hooks(net) == 0


@pytest.mark.parametrize(("ease", "part"), [(1.0, 0.49), (0.8, 0.392), (0.5, 0.245), (0.02, 0.245)])
def test_where_the_whole_is_too_dear_it_keeps_half_of_its_share(counts, ease, part):
    watch, _, over = standing(counts, 14e6)
    over.cadence.ease = ease
    for _ in range(3):
        watch.sentries.over([100_000] * 9, 100_000, 9, young=False)
    assert watch.sentries._part == pytest.approx(part)


@pytest.mark.parametrize("ease", [1.0, 0.02])
def test_what_fits_the_budget_is_in_every_stretch_whatever_else_is_dear(counts, ease):
    watch, _, over = standing(counts, 28e6)
    over.cadence.ease = ease
    for _ in range(3):
        watch.sentries.over([100_000] * 9, 180_000, 9, young=False)
    assert watch.sentries._part == 1 and watch.sentries.always


def test_it_is_given_up_by_what_it_costs_and_not_by_what_else_does(counts):
    watch, _, over = standing(counts, 28e6)
    over.cadence.ease = 0.5
    for _ in range(3):
        watch.sentries.over([4_000_000] * 9, 0, 9, young=False)  # 20 times its share, and 40 times half of it
    assert watch.sentries.able and watch.sentries._part == pytest.approx(1 / sentries._LONGEST)


def test_the_first_broken_step_is_told_and_its_blocks_in_order(counts):
    told = []
    watch, net, over = standing(counts, told=told)
    over.readback.read = lambda out, done: done(out)
    looked = watch.stretch(4)
    for place in range(4):
        handle = net[2].register_forward_hook(lambda _m, _a, out: out * math.nan, prepend=True) if place >= 2 else None
        loss = net(torch.ones(2, 4)).square().sum()
        looked.backward(loss, place)
        if handle is not None:
            handle.remove()
    looked.over(100)
    ((step, micro, seen, counted),) = told
    assert (step, micro, counted) == (102, 0, [[0, 0], [0, 0], [8, 0], [8, 0]])
    assert [(each.brick, each.numel, each.follows) for each in seen] == [
        (0, 8, False), (1, 8, True), (2, 8, True), (3, 8, True),
    ]  # fmt: skip
    assert hooks(net) == 0 and watch.looks == 4 and not over.errors


def test_nothing_is_told_of_a_stretch_without_a_fault(counts):
    told = []
    watch, net, over = standing(counts, told=told)
    over.readback.read = lambda out, done: done(out)
    looked = watch.stretch(4)
    held = net(torch.full((2, 4), math.nan)).square()  # such as what the script masks
    looked.backward(torch.zeros(()), 0)
    assert held.requires_grad
    looked.over(100)
    watch.stretch(4).over(104)
    assert not told and not over.errors and len(counts.added) == 1


def test_where_nothing_can_be_counted_there_is_none_for_a_while(counts):
    watch, net, over = standing(counts)
    for _ in range(3):
        assert watch.sentries.able
        watch.sentries.over([], 30_000, 32, young=False)
    assert over.paid == [32 * 30_000] * 3  # the hooks were there
    assert not watch.sentries.able
    watch.sentries.learn([], Left([], []), -1)
    assert watch.sentries._deaf_until == 532 + 1024
    over.step = 1600
    out = net[0](torch.ones(2, 4))
    watch.sentries.learn([(weakref.ref(out), 0, out.data_ptr(), 0, 3, False)], Left([0], [out]), -1)
    assert watch.sentries._known == {3: 0}


def test_where_even_one_of_many_does_not_fit_there_is_none_for_a_while(counts):
    watch, _, _ = standing(counts, typical=1e5)
    for _ in range(3):
        watch.sentries.over([50_000] * 9, 50_000, 9, young=False)
    assert not watch.sentries.able


def test_many_blocks_are_fetched_in_few_numbers(counts):
    over = session()
    watch = Lookout(over, lambda *_: None)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(64)])
    watch.choose(enumerate(net))
    watch.sentries._known = dict.fromkeys(range(64), 0)
    steps = watch.ahead(500, 32)
    looked = watch.stretch(steps)
    for place in range(steps + 1):
        looked.backward(net(torch.ones(2, 4)).square().sum(), place)
    looked.over(100)
    ((out, _),) = over.read
    assert out.numel() == 4096 and len(counts.added) == 32 == steps + 1


def test_short_stretches_are_timed_too_and_who_knows_nothing_of_the_device_says_so(counts):
    watch, net, _ = standing(counts)
    for steps in (2, 1):
        for _ in range(5):
            looked = watch.stretch(2)
            for place in range(steps):
                looked.backward(net(torch.ones(2, 4)).sum(), place)
                looked.update()
            looked.over(500)
        assert len(watch.sentries._hooks_ns) == 5 and not watch.sentries._behind
