"""When lines were written: read from their beginnings or a column, and pauses that are no part of the work."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from logs_made import falling

from brickprof import logs
from brickprof.analysis import analyse
from brickprof.logs.reading.clock import Clock

BEGIN = datetime(2024, 2, 28, 21, 0, 0)
FORMS = {
    "iso": "{0:%Y-%m-%d %H:%M:%S},123 INFO ", "bracket": "[{0:%Y-%m-%dT%H:%M:%S}] ",
    "slash": "{0:%m/%d/%Y %H:%M:%S} - ",
    "glog": "I{0:%m%d %H:%M:%S}.000001 99 x.cpp:1] ", "detectron": "[{0:%m/%d %H:%M:%S} d2.utils]: ",
    "titan": "[titan] {0:%Y-%m-%d %H:%M:%S},001 - root - INFO - ",
}  # fmt: skip


def written(
    count: int = 300, every: float = 2.0, pauses: dict[int, float] | None = None, form: str = "iso"
) -> list[str]:
    """A log with times; ``pauses`` says behind which step it stands still, for how many seconds."""
    at, lines = BEGIN, []
    for step in range(count):
        lines.append(f"{FORMS[form].format(at)}step {step} loss {falling(step):.4f}")
        at += timedelta(seconds=every + (pauses or {}).get(step, 0.0))
    return lines


def notes(folder: Path, lines: list[str], name: str = "train.log") -> list[tuple[int, str]]:
    (folder / name).write_text("\n".join(lines) + "\n")
    (run,) = analyse([folder / name]).runs
    assert [one for one in run.diagnosis.findings if one.severity.value != "info"] == []
    return [(one.first_step, one.symptom) for one in run.diagnosis.findings]


@pytest.mark.parametrize("form", FORMS)
def test_a_night_in_which_nothing_was_logged_is_told(tmp_path, form):
    (told,) = notes(tmp_path, written(pauses={170: 9 * 3600.0}, form=form))
    assert told[0] == 170 and "9.0 hours between step 170 and 171" in told[1] and "stalled" in told[1]


def test_a_steady_log_has_no_pause(tmp_path):
    assert notes(tmp_path, written()) == []


def test_a_pause_before_a_restart_is_told_as_one(tmp_path):
    lines = written(200)
    again = written(260, pauses={0: 8 * 3600.0})[180:]
    (told,) = [text for _, text in notes(tmp_path, lines + again) if "nothing was logged" in text]
    assert "started again" in told


def again(first: int, back_to: int, second: int, waited: float = 0.0) -> list[str]:
    """A run that stops after ``first`` steps and is started again, ``waited`` seconds later, at ``back_to``."""
    lines, at = [], BEGIN
    for step in (*range(first), *range(back_to, second)):
        at += timedelta(seconds=20 + (waited if len(lines) == first else 0.0))
        lines.append(f"{at:%Y-%m-%d %H:%M:%S} step {step} loss {falling(step / 10):.4f}")
    return lines


def test_steps_that_were_made_again_took_time_and_are_no_pause(tmp_path):
    assert [text for _, text in notes(tmp_path, again(2_000, 800, 2_600)) if "logged" in text or "took" in text] == []


def test_a_pause_lasts_from_the_last_line_not_from_the_step_it_goes_back_to(tmp_path):
    told = [(step, text) for step, text in notes(tmp_path, again(2_000, 800, 2_600, 8 * 3600.0)) if "logged" in text]
    assert told == [
        (1_999, "nothing was logged for 8.0 hours after step 1,999: then the run was started again, at step 800")
    ]


def test_what_a_run_says_before_its_first_step_is_said_by_the_run_that_was_started_again(tmp_path):
    lines = again(400, 300, 500, 8 * 3600.0)
    lines.insert(400, lines[400].partition(" step")[0] + " building the model")
    (told,) = [text for _, text in notes(tmp_path, lines) if "logged" in text]
    assert told == "nothing was logged for 8.0 hours after step 399: then the run was started again, at step 300"


def test_evaluations_and_checkpoints_take_their_time(tmp_path):
    pauses = dict.fromkeys(range(49, 300, 50), 900.0)
    lines = []
    for step, line in enumerate(written(pauses=pauses)):
        lines.append(line)
        if step in pauses:
            lines.append(line.split(" step")[0] + f" eval: val_loss {falling(step) + 0.1:.4f}")
    assert notes(tmp_path, lines) == []


def test_one_long_evaluation_is_no_stall(tmp_path):
    lines = written(pauses={150: 2 * 3600.0})
    lines.insert(151, lines[150].split(" step")[0] + " Saved checkpoint to out/model-150.pt")
    assert notes(tmp_path, lines) == []


def test_epochs_that_tell_only_their_end_are_no_pauses(tmp_path):
    lines = []
    for epoch in range(12):
        at = BEGIN + timedelta(hours=7.8 * epoch)
        lines += [f"{at:%Y-%m-%d %H:%M:%S} filling buffer {part} of 9" for part in range(4)]
        lines.append(f"{at:%Y-%m-%d %H:%M:%S} epoch {epoch} loss {falling(5 * epoch):.4f}")
    assert notes(tmp_path, lines) == []


def test_a_column_tells_the_time_as_well(tmp_path):
    lines = [
        json.dumps({"step": step, "loss": falling(step), "timestamp": 1.7e9 + 2 * step + (30_000 if step > 120 else 0)})
        for step in range(300)
    ]
    (told,) = notes(tmp_path, lines, "metrics.jsonl")
    assert told[0] == 120 and "8.3 hours" in told[1]


def test_midnight_is_no_pause_where_only_the_time_of_day_is_told(tmp_path):
    lines = []
    for step in range(300):
        at = datetime(2024, 1, 1, 23, 55) + timedelta(seconds=2 * step)
        lines.append(f"{at:%H:%M:%S} step {step} loss {falling(step):.4f}")
    assert notes(tmp_path, lines) == []


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"])
@pytest.mark.parametrize("begin", [datetime(2024, 2, 5, 23, 50), datetime(2024, 2, 12, 23, 50)])
def test_midnight_is_no_month_whichever_comes_first(tmp_path, form, begin):
    lines = [
        f"{begin + timedelta(seconds=4 * step):{form}} step {step} loss {falling(step):.4f}" for step in range(400)
    ]
    assert notes(tmp_path, lines) == []
    log = logs.read(tmp_path / "train.log")
    assert log.clock is not None and len(log.clock) == 400 and np.ptp(log.clock.values) == 4 * 399


def test_the_clock_is_beside_the_series_and_leaves_them_alone(tmp_path):
    (tmp_path / "t.log").write_text("\n".join(written(50)) + "\n")
    log = logs.read(tmp_path / "t.log")
    assert set(log.series) == {"loss"} and log.clock is not None
    assert log.clock.steps.tolist() == list(range(50)) and np.diff(log.clock.values).tolist() == [2.0] * 49


def test_a_large_chunk_is_sampled_and_looked_at_closely_where_time_went_on():
    lines = written(40_000, every=0.5, pauses={23_456: 5_000.0})
    chunk = ("\n".join(line + " " + "x" * 40 for line in lines) + "\n").encode()
    clock = Clock()
    assert clock.look(chunk, 1) == 40_000
    at, seconds = clock.times()
    assert len(at) < 2_000
    place = int(np.argmax(np.diff(seconds)))
    assert (at[place], at[place + 1]) == (23_457, 23_458)


def test_a_log_without_times_is_soon_not_asked_any_more():
    clock = Clock()
    assert clock.look(b"step 1 loss 2\n" * 100, 1) == 100
    assert clock.idle and clock.times() is None


def test_a_lasting_drop_by_the_times_of_lines_is_worth_knowing(tmp_path):
    slow = dict.fromkeys(range(200, 300), 6.0)
    (told,) = notes(tmp_path, written(pauses=slow))
    assert "times as long from step" in told[1] and 190 <= told[0] <= 210
