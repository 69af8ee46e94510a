"""Crashes that a run survived, and the rank of what broke: what logs say in their middle."""

from __future__ import annotations

from pathlib import Path

from logs_by_hand import fact, grave, judged, powerlaw, rows, steps
from logs_made import plain

from brickprof.analysis import analyse
from brickprof.diagnosis.model import Diagnosis

TRACEBACK = [
    "Traceback (most recent call last):", '  File "train.py", line 88, in <module>', "    main()",
    "RuntimeError: CUDA error: unspecified launch failure",
]  # fmt: skip


def diagnosed(folder: Path, *lines: str) -> Diagnosis:
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    (run,) = analyse([folder / "train.log"]).runs
    return run.diagnosis


def notes(found: Diagnosis) -> list[str]:
    return [finding.symptom for finding in found.findings if finding.severity.value == "info"]


def test_a_crash_with_a_restart_is_told_with_its_step_and_that_it_recovered(tmp_path):
    found = diagnosed(tmp_path, *plain(121), *TRACEBACK, *plain(200, 100))
    assert grave(found) == [] and found.verdict == "PASS"
    (note,) = notes(found)
    assert "RuntimeError: CUDA error" in note and "at step 120" in note
    assert "went on from step 100" in note and "recovered" in note
    assert found.findings[0].first_step == 120


def test_a_run_that_began_anew_and_did_not_get_as_far_says_so(tmp_path):
    (note,) = notes(diagnosed(tmp_path, *plain(121), *TRACEBACK, *plain(60)))
    assert "began anew" in note and "has not got as far as step 120" in note


def test_an_exception_that_nothing_stopped_for_is_told_as_that(tmp_path):
    said = ["Traceback (most recent call last):", '  File "up.py", line 8, in put', "ConnectionError: timed out"]
    (note,) = notes(diagnosed(tmp_path, *plain(121), *said, *plain(150, 121)))
    assert note == "ConnectionError: timed out at step 120, and the training went on"


def test_many_crashes_are_one_note(tmp_path):
    lines = plain(60)
    for start in (50, 100, 150):
        lines += [*TRACEBACK, *plain(60, start)]
    (note,) = notes(diagnosed(tmp_path, *lines))
    assert "3 such places in all (steps 59, 109, 159)" in note


def test_a_crash_at_the_end_is_an_error_and_no_note(tmp_path):
    found = diagnosed(tmp_path, *plain(121), *TRACEBACK)
    assert [severity for severity, *_ in grave(found)] == ["error"] and notes(found) == []


def test_a_failed_start_is_no_crash_of_the_training(tmp_path):
    assert notes(diagnosed(tmp_path, *TRACEBACK, *plain(200))) == []


def test_a_signal_in_the_middle_is_told(tmp_path):
    at = steps(200)
    item = rows(step=at, loss=powerlaw(at, 8, 2))
    found = judged(item, fact("ended", 100, how="signal", signal="SIGKILL", text="process 12 was Killed"))
    assert [text for text in notes(found) if "process 12 was Killed" in text]
    assert grave(found) == []


def test_the_rank_that_broke_is_told_where_several_speak(tmp_path):
    for rank in range(3):
        lost = {f"s{step}": float("nan") for step in range(90, 120)} if rank == 2 else {}
        (tmp_path / f"rank{rank}.log").write_text("\n".join(plain(120, **lost)) + "\n")
    (run,) = analyse([tmp_path]).runs
    (finding,) = [one for one in run.diagnosis.findings if one.severity.value == "error"]
    assert finding.coordinates == {"rank": 2}
    assert "rank 2" in next(line for line in str(run.diagnosis).splitlines() if "Where" in line)


def test_one_rank_alone_has_no_flat_rank(tmp_path):
    lost = {f"s{step}": float("nan") for step in range(90, 120)}
    found = diagnosed(tmp_path, *plain(120, **lost))
    assert "rank" not in found.findings[0].coordinates and "rank" not in str(found).split("Where")[1].splitlines()[0]
