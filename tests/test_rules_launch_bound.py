"""A device that is idle because the host launches thousands of small kernels: a note with its numbers, rarely more."""

from __future__ import annotations

import pytest
from making import START, Made
from test_rules_card import BIG, OnCard, judge, waiting

from brickprof.bricks import Brick, Kind
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.records import Span
from brickprof.rules import launch_bound

MS = 1_000_000


def windows(made, *, kernels=4000, busy_ms=18, step_ms=100, micros=(), steps=(30, 60, 90)):
    """Steps through the profiler: so many kernels, so long busy."""
    for step in steps:
        fields = {"kernels": kernels, "written": kernels, "busy_ns": busy_ms * MS, "step_ns": step_ms * MS}
        made.event("window", step, names=[], most_launched=[["add", kernels // 8]], **fields)
        for at, micro in enumerate(micros):
            span = {"device_ns": int(micro * 1000), "attributes": {"source": "profiler"}, "id": 10_000 * step + at}
            made.records.append(Span(Brick(Kind.KERNEL, "add"), step, START, START, **span))
    return made


def small():
    made = Made("blocks.0", "blocks.1")
    made.healthy(100)
    return made


def test_a_step_of_many_small_kernels_is_a_note_with_its_numbers():
    made = windows(small(), micros=(3, 4, 4, 5, 90))
    result = judge(made, launch_bound.LaunchBound)
    (violation,) = result.violations
    assert (violation.cause, violation.severity) == ("launch-storm", Severity.INFO)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert "82%" in violation.symptom and "4,000 kernels" in violation.symptom
    assert "4 us in the median" in violation.whys[0].finding and "torch.compile" in violation.action
    found = diagnose(made.run())
    assert [one.root_cause for one in found.findings if one.contract == "C-UTILISATION-001"] == ["launch-storm"]
    assert not [one for one in found.findings if one.severity in (Severity.ERROR, Severity.WARNING)]


def test_the_median_of_a_window_is_of_all_its_kernels_and_not_of_those_with_a_span():
    made = windows(small(), micros=(90, 95, 99))
    for record in made.records:
        if getattr(record, "kind", "") == "window":
            record.fields["median_ns"] = 4_000
    (violation,) = judge(made, launch_bound.LaunchBound).violations
    assert "4 us in the median" in violation.whys[0].finding


def test_kernels_that_were_not_timed_one_by_one_have_a_mean():
    (violation,) = judge(windows(small()), launch_bound.LaunchBound).violations
    assert "4.5 us in the median" in violation.whys[0].finding


@pytest.mark.parametrize(
    "window",
    [
        {"busy_ms": 80},
        {"kernels": 100, "step_ms": 3, "busy_ms": 1},
        {"kernels": 400, "step_ms": 500, "busy_ms": 20},
        {"kernels": 0, "busy_ms": 0},
        {"steps": ()},
    ],
    ids=["busy", "few kernels", "something else takes the time", "nothing ran", "no window"],
)
def test_other_steps_are_none(window):
    result = judge(windows(small(), **window), launch_bound.LaunchBound)
    assert (result.verdict, result.violations) == (Verdict.NOT_EVALUATED, ())


def test_the_profilers_own_cost_is_no_idleness():
    made = OnCard(seconds=60, step=0.02, **BIG)
    for step in range(20, 60):
        start = START + step * 20 * MS
        made.records.append(Span(Brick(Kind.STEP, "step"), step, start, start + 20 * MS, "step", id=step + 1))
    assert not judge(windows(made, busy_ms=18, step_ms=100), launch_bound.LaunchBound).violations


def test_waits_for_data_and_host_reads_are_reasons_of_their_own():
    assert not judge(windows(waiting(OnCard(**BIG), 0.6)), launch_bound.LaunchBound).violations
    made = windows(OnCard(**BIG))
    for step in (20, 40, 80):
        made.at("syncs", step, step * 0.1, count=20, device=20, sites=[["train.py:9", 20]])
    assert not judge(made, launch_bound.LaunchBound).violations


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        ({"seconds": 200, "utilisation": 0.15, **BIG}, Severity.WARNING),
        ({"seconds": 60, "utilisation": 0.15, **BIG}, Severity.INFO),
        ({"seconds": 200, "utilisation": 0.5, **BIG}, Severity.INFO),
        ({"seconds": 200, "utilisation": 0.15, "parameters": 4096}, Severity.INFO),
    ],
    ids=["long and idle", "short", "half used", "a small model"],
)
def test_it_is_a_warning_only_where_the_card_was_hardly_used_for_long(run, severity):
    made = windows(OnCard(**run))
    (violation,) = judge(made, launch_bound.LaunchBound).violations
    assert violation.severity is severity
    told = [one for one in diagnose(made.run()).findings if one.contract == "C-UTILISATION-001"]
    assert [(one.root_cause, one.severity) for one in told] == [("launch-storm", severity)]
