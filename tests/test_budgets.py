"""Bricks whose time on the device scatters are traced, and rarely."""

from __future__ import annotations

import random

from brickprof.capture.budgets import Budgets


def fed(steps, times, first=0):
    told = []
    budgets = Budgets(lambda brick, mean, cv: told.append((brick, mean, cv)))
    draw = random.Random(0)
    for step in range(first, first + steps):
        budgets.learn(step, 10_000, [(brick, 1, int(time(draw))) for brick, time in times.items()])
    return told


def test_steady_bricks_are_left_alone():
    assert fed(2000, {1: lambda draw: draw.gauss(5000, 300), 2: lambda draw: 4000}) == []


def test_the_brick_that_scatters_is_named():
    told = fed(200, {1: lambda draw: 5000, 2: lambda draw: draw.choice([1000, 3000])})
    assert [brick for brick, _, _ in told] == [2]
    assert told[0][2] > 0.3


def test_three_times_in_a_run_and_further_and_further_apart():
    assert len(fed(20_000, {1: lambda draw: draw.choice([1000, 3000])})) == 3
    assert len(fed(400, {1: lambda draw: draw.choice([1000, 3000])})) == 1


def test_what_hardly_matters_may_scatter():
    assert fed(500, {1: lambda draw: draw.choice([10, 300])}) == []


def test_the_first_steps_may_scatter():
    assert fed(64, {1: lambda draw: draw.choice([1000, 3000])}) == []
