"""Pace, memory and the end of a run, as logs tell them: C-STEADYPACE-001, C-MEMSTABLE-001, C-PROCESS-001."""

from __future__ import annotations

import numpy as np
import pytest
from logs_by_hand import fact, grave, judged, noise, powerlaw, rows, setting, steps, table

from brickprof.diagnosis.model import Diagnosis


def verdict(found: Diagnosis, contract: str) -> str:
    return next(one.verdict.value for one in found.contracts if one.id == contract)


def timed(took):
    at = steps(len(took))
    return judged(table({"iter": at, "loss": powerlaw(at, 9, 3), "time": took}))


def test_a_pace_that_halves_and_stays_is_told():
    took = np.where(np.arange(300) < 200, 0.4, 1.0) + np.abs(noise(1, 300, 0.01))
    assert verdict(timed(took), "C-STEADYPACE-001") == "FAIL"


@pytest.mark.parametrize("places", [slice(0, 5), slice(100, 110), slice(150, 151)])
def test_slow_steps_that_pass_are_not(places):
    took = np.full(300, 0.4)
    took[places] = 12.0
    assert verdict(timed(took), "C-STEADYPACE-001") == "PASS"


def test_a_clock_is_no_pace():
    at = steps(200)
    found = judged(table({"epoch": at, "loss": powerlaw(at, 9, 3), "time": 2.4 * at}))
    assert verdict(found, "C-STEADYPACE-001") == "NOT_EVALUATED"


def test_a_stall_is_worth_knowing():
    took = np.full(300, 0.4)
    took[150] = 900.0
    found = timed(took)
    assert grave(found) == []
    assert [finding.first_step for finding in found.findings] == [151]


def test_batches_that_grow_are_no_drop():
    at = steps(300)
    size = np.where(at < 200, 256.0, 1024.0)
    found = judged(table({"iteration": at, "loss": powerlaw(at, 9, 3), "global batch size": size, "time": size / 100}))
    assert verdict(found, "C-STEADYPACE-001") == "NOT_EVALUATED"


def test_memory_that_grows_explains_that_it_ran_out():
    at = steps(200, 10)
    grows = table({"step": at, "loss": powerlaw(at, 8, 2), "memory": 2e10 + 1e7 * at})
    said = "CUDA out of memory. Tried to allocate 2.00 GiB"
    found = judged(grows, fact("exception", 201, type="OutOfMemoryError", message=said, frames=[]))
    assert [(finding.severity.value, finding.root_cause) for finding in found.findings] == [("error", "memory-leak")]
    assert said[:18] in found.findings[0].symptom


@pytest.mark.parametrize("how", ["time-limit", "preempted", "cancelled"])
def test_a_job_that_was_cut_off_is_not_a_failed_training(how):
    at = steps(300)
    found = judged(
        setting(max_steps=20_000), rows(2, step=at, loss=powerlaw(at, 9, 3)), fact("ended", 400, how=how, text="...")
    )
    assert grave(found) == []
    assert found.verdict.value == "PASS"
    assert [(finding.root_cause, finding.first_step) for finding in found.findings] == [("killed", 300)]


def test_a_run_that_did_all_it_was_to_do_came_to_its_end():
    at = steps(200, 10, 10)
    found = judged(setting(max_steps=2000), rows(2, step=at, loss=powerlaw(at, 9, 3)))
    assert verdict(found, "C-PROCESS-001") == "PASS"


def test_how_a_log_ends_is_not_guessed():
    at = steps(200, 10)
    assert verdict(judged(rows(step=at, loss=powerlaw(at, 9, 3))), "C-PROCESS-001") == "NOT_EVALUATED"


@pytest.mark.parametrize(("xid", "cause"), [(79, "hardware-error"), (48, "hardware-error"), (31, "out-of-bounds")])
def test_an_xid_is_the_cards_or_the_programs(xid, cause):
    at = steps(100)
    found = judged(rows(step=at, loss=powerlaw(at, 9, 3)), fact("device", 101, what="xid", xid=xid, text=f"Xid {xid}"))
    assert [told for _, told, _ in grave(found)] == [cause]


@pytest.mark.parametrize(
    ("signal", "cause", "severity"),
    [("SIGKILL", "killed", "error"), (11, "crashed-by-signal", "error"), ("SIGTERM", "killed", "info")],
)
def test_signals_are_told_apart(signal, cause, severity):
    at = steps(100)
    found = judged(rows(step=at, loss=powerlaw(at, 9, 3)), fact("ended", 101, how="signal", signal=signal, text="..."))
    assert [(finding.root_cause, finding.severity.value) for finding in found.findings] == [(cause, severity)]
