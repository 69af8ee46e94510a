"""The cadence keeps what it spends inside the budget, whatever looking costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import brickprof
from brickprof.capture.cadence import NOTHING, WAYS, Cadence
from brickprof.settings import Settings, checked

MS = 1_000_000


def simulate(cadence: Cadence, step_ns: int, costs: dict[str, int], steps: int) -> float:
    """Runs ``steps`` steps of ``step_ns``; returns the share spent in the second half."""
    spent_late = 0
    for step in range(steps):
        on = cadence.begin(step)
        spent = 0
        for way in WAYS:
            if getattr(on, way):
                spent += costs[way]
                cadence.measured(way, costs[way])
        cadence.end(step, step_ns + spent, spent)
        if step >= steps // 2:
            spent_late += spent
    return spent_late / (step_ns * (steps - steps // 2))


@given(
    step_ns=st.integers(2 * MS, 3_000 * MS),
    costs=st.fixed_dictionaries({way: st.integers(1_000, 5 * MS) for way in WAYS}),
    budget=st.sampled_from([0.002, 0.01, 0.05]),
)
@settings(max_examples=60, deadline=None)
def test_the_share_spent_stays_near_the_budget(step_ns: int, costs: dict[str, int], budget: float) -> None:
    cadence = Cadence("standard", budget)
    cadence._credit = 0.0
    share = simulate(cadence, step_ns, costs, 6000)
    # What even the longest strides cost cannot be saved.
    floor = sum(costs[way] / {"spans": 256, "full": 4096}.get(way, 64) for way in WAYS) / step_ns
    assert share <= 1.1 * budget + 1.2 * floor


def test_everything_is_on_when_looking_is_cheap() -> None:
    cadence = Cadence("standard", 0.01)
    simulate(cadence, 1000 * MS, dict.fromkeys(WAYS, 10_000), 200)
    assert set(cadence.stride.values()) == {1}


def test_where_every_gradient_is_judged_anyway_steps_are_looked_at_more_rarely() -> None:
    """Where that saves something, and not else."""
    for relieved, dear in ((False, (64, 64)), (True, (128, 256))):
        for cost, strides in ((3 * MS, dear), (1_000, (1, 1))):
            cadence = Cadence("standard", 0.01)
            cadence._credit, cadence.relieved = 0.0, relieved
            simulate(cadence, 20 * MS, dict.fromkeys(WAYS, cost), 3000)
            assert (cadence.least, cadence.stride["guard"]) == strides


def test_steps_in_full_that_nobody_asked_for_wait_until_they_are_a_small_part() -> None:
    cadence = Cadence("standard", 0.01)
    lasted = {}
    for steps in (500, 60_000):
        cadence = Cadence("standard", 0.01)
        simulate(cadence, 20 * MS, dict.fromkeys(WAYS, 5 * MS), 300)
        cadence.idled(20.0 * MS * steps, 0.0, steps)
        lasted[steps] = cadence.affords(8)
    assert lasted == {500: False, 60_000: True}
    cadence.escalate(403)
    for step in range(399, 402):  # now it is known what such a step takes
        cadence.end(step, 1000 * MS, 980 * MS)
    assert not cadence.affords(8)
    for step in range(402, 404):
        cadence.end(step, 40 * MS, 20 * MS)
    assert not cadence.affords(8)
    cadence.escalate(410)
    for step in range(404, 410):  # most of them: one that was held up is no reason to wait for ever
        cadence.end(step, 40 * MS, 20 * MS)
    assert cadence.affords(8)


def test_what_is_relieved_no_longer_is_looked_at_as_often_as_before() -> None:
    cadence = Cadence("standard", 0.01)
    cadence._credit = 0.0
    cadence.relieve(True)
    simulate(cadence, 20 * MS, dict.fromkeys(WAYS, 3 * MS), 3000)
    assert cadence.stride["guard"] == 256
    cadence.relieve(False)
    cadence._adapt(3008)
    assert max(cadence.stride[way] for way in ("facts", "blocks", "guard")) == 64
    light = Cadence("light", 0.003)
    light.relieve(False)
    assert light.relieved


def test_facts_are_written_every_step_while_the_credit_lasts() -> None:
    cadence = Cadence("standard", 0.01)
    simulate(cadence, 1 * MS, dict.fromkeys(WAYS, 100_000), 400)
    assert cadence.stride["facts"] == 1
    assert cadence.stride["full"] > 1


def test_one_slow_step_moves_nothing() -> None:
    cadence = Cadence("standard", 0.01)
    costs = dict.fromkeys(WAYS, 40_000)
    simulate(cadence, 50 * MS, costs, 400)
    before = dict(cadence.stride)
    cadence.begin(401)
    cadence.end(401, 60_000 * MS, 200_000)
    cadence.begin(408)
    cadence.end(408, 50 * MS, 100_000)
    assert cadence.stride == before


def test_an_anomaly_switches_everything_on_for_some_steps() -> None:
    cadence = Cadence("standard", 0.001)
    simulate(cadence, 5 * MS, dict.fromkeys(WAYS, 2 * MS), 300)
    assert not cadence.begin(301).full
    cadence.escalate(310)
    on = cadence.begin(305)
    assert on.deep and on.full and on.guard and on.blocks
    assert not cadence.begin(311).deep


def test_light_never_looks_at_blocks_or_every_tensor() -> None:
    cadence = Cadence("light", 0.01)
    on = cadence.begin(0)
    assert on.facts and on.guard
    assert not (on.blocks or on.spans or on.full)


def test_the_steps_that_were_asked_for_are_captured_in_full() -> None:
    cadence = Cadence("standard", 0.01, deep_at=1000, deep_for=4)
    cadence.stride = dict.fromkeys(cadence.stride, 64)
    cadence.least = 64
    deep = [step for step in range(900, 1100) if cadence.begin(step).deep]
    assert deep == [999, 1000, 1001, 1002, 1003]


def test_a_step_in_the_middle_is_looked_at_when_asked_for(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=tmp_path, deep_at=301) as session:
        for _ in range(320):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    events = brickprof.load(session.folder).events
    sampled = set(events[(events.kind == "sampled")].step)
    assert {300, 301, 302, 303, 304, 305, 306, 307, 308} <= sampled


def test_the_steps_after_a_resume_are_written_down() -> None:
    cadence = Cadence("standard", 0.01)
    cadence.stride = dict.fromkeys(cadence.stride, 64)
    cadence.least = 64
    cadence.attend(1016)
    on = [step for step in range(1001, 1024) if cadence.begin(step).facts]
    assert on == list(range(1001, 1017))
    assert not cadence.begin(1010).full


def test_what_the_first_steps_cost_is_not_what_later_ones_do() -> None:
    cadence = Cadence("standard", 0.01)
    for step in range(64):
        cadence.begin(step)
        cadence.end(step, 30 * MS, 10 * MS)
    assert cadence.settled is None
    for step in range(64, 164):
        cadence.begin(step)
        cadence.end(step, 20 * MS + MS // 10, MS // 10)
    settled = cadence.settled
    assert settled is not None
    assert settled == (0.005, 10 * MS, False)
    for step in range(164, 264):
        cadence.begin(step)
        cadence.end(step, 30 * MS, 10 * MS)
    assert cadence.settled != settled and cadence.settled is not None and not cadence.settled[2]
    for step in range(264, 364):
        cadence.begin(step)
        cadence.end(step, 10 * MS + MS // 10, MS // 10)
    assert cadence.settled == (0.01, 10 * MS, True)


def test_steps_that_nobody_looks_at_are_settled_ones_before_the_next_look() -> None:
    cadence = Cadence("light", 0.003)
    cadence.stride = dict.fromkeys(cadence.stride, 256)
    cadence.least = 256
    for step in range(500):
        looked = cadence.begin(step) is not NOTHING
        told = (20 * MS + 10 * MS, 10 * MS) if looked else (20 * MS + MS // 10, MS // 10)
        if looked:
            cadence.end(step, *told)
        else:
            cadence.idled(*told)
    assert cadence.settled == (0.005, (500 - 264) * MS // 10, True)


def test_a_run_that_ends_soon_after_its_first_looks_tells_what_they_cost() -> None:
    cadence = Cadence("standard", 0.01)
    for step in range(270):
        cadence.begin(step)
        cadence.end(step, 22 * MS, 2 * MS)
    cadence.idled(22 * MS, 2 * MS)
    settled = cadence.settled
    assert cadence.grown and settled is not None
    assert settled == (0.1, 2 * MS * (270 - 64 + 1), False)


def test_what_joins_late_is_looked_at_as_the_beginning_was() -> None:
    cadence = Cadence("standard", 0.01)
    cadence.stride = dict.fromkeys(cadence.stride, 64)
    cadence.least = 64
    assert not cadence.begin(151).full
    cadence.renew(150)
    full = [step for step in range(150, 180) if cadence.begin(step).full]
    assert full == [150, 151, 152, 154, 158, 166]
    cadence.renew(152)  # too soon after the last: what builds an optimizer in every step gets no more
    assert not cadence.begin(153).full and cadence.due(154)


@given(
    least=st.sampled_from([1, 2, 4, 8, 64, 256]),
    deep_at=st.one_of(st.none(), st.integers(0, 400)),
    calls=st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["escalate", "attend", "renew"])), max_size=4),
)
def test_quiet_steps_are_those_that_nothing_is_on_in(least, deep_at, calls):
    """Whatever happens in between, the answer for the next step is that of all reasons to look, asked one by one."""
    cadence = Cadence("standard", 0.01, deep_at)
    cadence.least = least
    for step in range(64, 420):
        for at, what in calls:
            if at == step:
                getattr(cadence, what)(step + 3 if what != "renew" else step)
        looked = (
            step % least == 0 or step == 100 or step <= cadence.deep_until or step <= cadence.attentive_until
            or cadence.due(step) or step in cadence.planned
        )  # fmt: skip
        assert cadence.quiet(step) is not looked, step


@pytest.mark.parametrize(("level", "budget"), [("light", 0.003), ("standard", 0.01), ("deep", 0.01)])
def test_a_level_may_cost_what_it_promises_unless_somebody_says_otherwise(level: str, budget: float) -> None:
    usual = Settings(level=level)
    assert usual.budget == Settings.from_json(usual.to_json()).budget == budget
    told = checked(usual, {"overhead": "2%"}, where="here")
    assert told.budget == Settings.from_json(told.to_json()).budget == 0.02


@pytest.mark.parametrize(
    ("level", "budget", "step_ns", "took", "every"),
    [
        ("standard", 0.01, 25e6, 13e6, 4000),
        ("light", 0.003, 25e6, 5e6, 4000),
        ("light", 0.003, 1e9, 13e6, 1000),
        ("light", 0.003, 1e6, 13e6, 16_000),
    ],
)
def test_models_are_looked_for_as_often_as_it_is_worth(level, budget, step_ns, took, every) -> None:
    cadence = Cadence(level, budget)
    assert [step for step in range(1200) if cadence.rescans(step)] == [1, 2, 10, 100, 1000]
    cadence.typical_ns = step_ns
    cadence.rescan_took(took)
    found = [step for step in range(101, 40_000) if cadence.rescans(step)]
    assert found == list(range(every, 40_000, every))
    cadence.least = 1 << 20
    looked = [step for step in range(1000, 20_000) if not cadence.quiet(step)]
    assert set(range(every, 20_000, every)) <= set(looked)


def trained(steps: int, more: float, book: Callable[[Cadence, int, float], None]) -> tuple[Cadence, Cadence]:
    """One of a plain run, and one of a run whose steps take ``more``, which is booked."""
    plain, other = Cadence("standard", 0.01), Cadence("standard", 0.01)
    for cadence, longer in ((plain, 0.0), (other, more)):
        for step in range(steps):
            cadence.begin(step)
            if longer:
                book(cadence, step, longer)
            if step % 8:
                cadence.idled(4_500_000.0 + longer, 20_000.0)
            else:
                cadence.end(step, 4_500_000.0 + longer, 20_000.0)
    return plain, other


def test_what_only_a_young_run_gets_is_no_plan_for_what_follows() -> None:
    plain, excused = trained(200, 800_000.0, Cadence.excuse)
    assert plain.typical_ns == excused.typical_ns < 5_000_000
    assert (plain.ease, plain.stride) == (excused.ease, excused.stride)
    share, spent, grown = excused.settled
    assert not grown and spent - plain.settled[1] == 136 * 800_000.0  # of the steps from 64 on
    assert share > 0.1 > plain.settled[0]


def test_what_somebody_asks_for_is_told_and_no_plan_is_made_by_it() -> None:
    plain, apart = trained(1000, 90_000_000.0, Cadence.set_apart)
    assert plain.typical_ns == apart.typical_ns < 5_000_000 and plain.grown and apart.grown
    assert (plain.ease, plain.stride, plain.overhead) == (apart.ease, apart.stride, apart.overhead)
    assert plain.settled[0] < 0.01 and 18 < apart.settled[0] < 22  # of a grown run, too


@pytest.mark.parametrize(("cost", "on"), [(5 * MS, True), (7 * MS, False)])
def test_until_the_lookout_is_ready_blocks_are_looked_at_in_every_step_of_a_young_run(cost: int, on: bool) -> None:
    costs = {**dict.fromkeys(WAYS, 100_000), "blocks": cost}
    cadence = Cadence("standard", 0.01)
    cadence.awaited = True
    seen = []
    for step in range(300):
        assert step < 200 or not cadence.quiet(step) or step >= 264
        seen.append(cadence.begin(step).blocks)
        for way in WAYS:
            if getattr(cadence.switches, way):
                cadence.measured(way, costs[way])
        cadence.end(step, 30 * MS, 0)
    assert all(seen[:3]) and all(seen[16:264]) is on and not all(seen[264:])
    cadence = Cadence("standard", 0.01)
    cadence.awaited = True
    simulate(cadence, 30 * MS, costs, 40)
    cadence.awaited = False
    assert [cadence.begin(step).blocks for step in range(41, 48)].count(True) < 3


def looked_at(walls, spent=1e6, idle=250e3):
    """A training whose steps last so long, of which every eighth is looked at."""
    cadence = Cadence("standard", 0.01)
    for step, wall in enumerate(walls, 3):
        if step % 8:
            cadence.idled(wall + idle, idle)
        else:
            cadence.begin(step)
            cadence.end(step, wall + spent, spent)
    return cadence


@pytest.mark.parametrize("pause", [0.0, 5e9])
def test_a_pause_is_no_time_to_look_in(pause):
    """What lasts longer than steps do (an evaluation, a process that is stopped) hides nothing of what they cost."""
    steps, every = 2_000, 100
    cadence = looked_at([28e6 + pause * (not step % every) for step in range(steps)])
    assert cadence.ease < 0.5  # 1.2 % is more than 1
    told = 344e3 / (28e6 + pause / every)  # of all the time there is
    assert cadence.settled[0] == pytest.approx(told, rel=0.05)


def test_pauses_within_many_steps_that_passed_count_as_one():
    cadence = looked_at([28e6] * 40)
    before = list(cadence._passed)
    cadence.idled(30 * 28e6 + 6e9, 0.0, 30)
    after = [now - then for now, then in zip(cadence._passed, before, strict=True)]
    assert after == pytest.approx([30 * 28e6 + 6e9, 0, 30, 46 * 28e6])


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_steps_of_any_length_tell_what_they_cost(level):
    cadence = Cadence(level, 0.01)
    for step in range(3, 400):
        cadence.end(step, 22e9, 2e9)
    assert [cadence.settled[0], cadence.overhead] == pytest.approx([0.1, 0.1])


def test_steps_that_wait_for_their_batches_now_and_then_have_no_pauses():
    """A loader with eight workers that are too slow: every eighth step is ten times as long."""
    cadence = looked_at([28e6 if step % 8 else 280e6 for step in range(2_000)])
    assert cadence.ease == 1.0 and cadence.settled[0] == pytest.approx(344e3 / 59.5e6, rel=0.05)


def test_steps_that_become_longer_are_no_pauses():
    cadence = Cadence("standard", 0.01)
    for step in range(3, 400):
        cadence.end(step, 28e6 if step < 200 else 500e6, 0.0)
    assert cadence.typical_ns == 500e6


@pytest.mark.parametrize("pause", [0.0, 5e9, 30e9])
def test_pauses_between_any_two_looks_make_no_step_longer(pause):
    cadence = Cadence("standard", 0.01)
    for step in range(3, 4_000):
        wall = 28e6 + (pause if step % 50 == 0 else 0.0)
        if step % 64:
            cadence.idled(wall + 400e3, 400e3)
        else:
            cadence.end(step, wall + 400e3, 400e3)
    assert cadence.typical_ns == 28e6 and cadence.ease < 0.5


def test_pauses_of_steps_that_are_looked_at_are_no_time_to_look_in_either():
    cadence = Cadence("standard", 0.01)
    for step in range(3, 2_000):
        wall = 28e6 + (5e9 if step % 50 == 0 else 0.0)
        cadence.end(step, wall + 400e3, 400e3)
    assert cadence.typical_ns == 28e6 and cadence.ease < 0.5
