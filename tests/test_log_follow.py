"""A log that grows: rotation, truncation, alarms as it happens, commands, and when to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from logs_made import jsonl

from brickprof.analysis import Options
from brickprof.analysis.following import Alarms, Following, Tail
from brickprof.cli.app import main
from brickprof.errors import UnreadableInput, UsageError


@pytest.fixture
def lines(tmp_path):
    """A run that breaks in step 150, line by line."""
    return jsonl(tmp_path / "made.jsonl", broken_at=150).read_text().splitlines(keepends=True)


class Clock:
    """Time that passes only while somebody sleeps; what happens meanwhile is scripted."""

    def __init__(self, *events):
        self.now = 0.0
        self.events = list(events)

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()


def watched(path, clock, **more):
    alarms = []
    following = Following(
        str(path), Options(), clock=clock, sleep=clock.sleep,
        alarm=lambda finding, judged: alarms.append((clock.now, finding)), **{"until_idle": 5.0} | more,
    )  # fmt: skip
    return following.watch(), alarms


def appended(path, text):
    def do():
        with open(path, "a") as stream:
            stream.write("".join(text))

    return do


# -- the tail


def test_the_tail_survives_rotation_truncation_and_absence(tmp_path):
    file = tmp_path / "x.log"
    tail = Tail(str(file))
    assert tail.read() == b""
    file.write_text("one\n")
    assert tail.read() == b"one\n" and tail.read() == b""
    appended(file, "two\n")()
    os.rename(file, tmp_path / "x.log.1")
    appended(tmp_path / "x.log.1", "late\n")()
    assert tail.read() == b"two\nlate\n" and tail.read() == b""
    file.write_text("three\n")
    assert tail.read() == b"three\n"
    file.write_text("4\n")
    assert tail.read() == b"4\n"
    assert tail.begun_anew == 2
    tail.close()


def test_a_folder_cannot_be_followed(tmp_path):
    with pytest.raises(UnreadableInput, match="is a folder"):
        Tail(str(tmp_path)).read()


# -- watching


def test_an_alarm_comes_once_and_before_the_end(tmp_path, lines):
    file = tmp_path / "x.jsonl"
    parts = [lines[begin : begin + 10] for begin in range(0, 200, 10)]
    clock = Clock(*((3.0 + place, appended(file, part)) for place, part in enumerate(parts)))
    judged, alarms = watched(file, clock)
    assert judged.diagnosis.verdict == "FAIL"
    about = [(finding.contract, finding.first_step) for _, finding in alarms]
    assert len(about) == len(set(about)) and any("nan" in finding.symptom for _, finding in alarms)
    first = min(when for when, finding in alarms if "nan" in finding.symptom)
    assert 18.0 <= first <= 21.0  # step 150 was written at 18
    assert clock.now >= 22.0 + 5.0


def test_what_it_comes_to_is_what_the_file_says(tmp_path, lines):
    from brickprof.analysis import analyse

    file = tmp_path / "x.jsonl"
    file.write_text("".join(lines[:37]) + lines[37][:10])
    clock = Clock((1.0, appended(file, lines[37][10:])), (4.0, appended(file, lines[38:])))
    judged, _ = watched(file, clock)
    (whole,) = analyse([file]).runs
    assert judged.diagnosis.findings == whole.diagnosis.findings and judged.holds == whole.holds


def test_a_rotated_and_a_cut_file_is_read_on(tmp_path, lines):
    file = tmp_path / "x.jsonl"
    file.write_text("".join(lines[:60]))

    def rotate():
        os.rename(file, tmp_path / "x.jsonl.1")
        file.write_text("".join(lines[60:100]))

    def cut():
        file.write_text("".join(lines[100:110]))

    clock = Clock((1.0, rotate), (3.0, cut), (5.0, appended(file, lines[110:])))
    judged, alarms = watched(file, clock)
    assert judged.rows == 200 and judged.attempts == 1 and judged.diagnosis.verdict == "FAIL" and alarms


def test_it_stops_at_the_first_error(tmp_path, lines):
    file = tmp_path / "x.jsonl"
    clock = Clock((1.0, appended(file, lines[:160])), (60.0, appended(file, lines[160:])))
    judged, alarms = watched(file, clock, until_idle=None, halt_on="error")
    assert judged.diagnosis.verdict == "FAIL" and alarms and clock.now < 30


def test_a_healthy_one_is_quiet(tmp_path, lines):
    file = tmp_path / "x.jsonl"
    file.write_text("".join(lines[:140]))
    judged, alarms = watched(file, Clock())
    assert judged.diagnosis.verdict == "PASS" and alarms == []


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    with pytest.raises(UnreadableInput, match="nothing was written to"):
        watched(tmp_path / "never.log", Clock())
    (tmp_path / "junk.log").write_bytes(bytes(range(256)) * 2000)
    with pytest.raises(UnreadableInput):
        watched(tmp_path / "junk.log", Clock())


def test_a_format_that_is_one_object_is_read_anew(tmp_path):
    file = tmp_path / "trainer_state.json"

    def write(count, broken=False):
        history = [{"step": 10 * n, "loss": 5.0 - n / 100, "grad_norm": 1.0, "epoch": n / 10} for n in range(1, count)]
        history += [{"step": 10 * count, "loss": float("nan"), "grad_norm": 1.0, "epoch": count / 10}] * broken
        file.write_text(json.dumps({"log_history": history, "global_step": 10 * count, "max_steps": 5000}))

    clock = Clock((1.0, lambda: write(50)), (4.0, lambda: write(80, broken=True)))
    judged, alarms = watched(file, clock)
    assert judged.diagnosis.verdict == "FAIL" and judged.steps == 800 and alarms


# -- commands


def test_the_command_is_told_in_its_environment_and_never_by_its_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = (
        jsonl(tmp_path / "a.jsonl", broken_at=150).read_text().replace('"loss"', '"loss $(touch pwned);`touch pwned`"')
    )
    (tmp_path / "x.jsonl").write_text(lines)
    told = tmp_path / "told.py"
    told.write_text(
        "import json, os, sys\n"
        "known = {k: v for k, v in os.environ.items() if k.startswith('BRICKPROF_')}\n"
        "open('told.json', 'a').write(json.dumps([sys.argv[1:], known]) + '\\n')\n"
    )
    command = f"{sys.executable} {told} 'a word' $HOME"
    code = main(["analyze", "--follow", "x.jsonl", "--until-idle", "0.5", "--exec", command])
    assert code == 1 and "nan" in capsys.readouterr().out
    words, known = json.loads((tmp_path / "told.json").read_text().splitlines()[0])
    assert words == ["a word", "$HOME"]
    assert known["BRICKPROF_VERDICT"] == "FAIL" and known["BRICKPROF_LOG"] == "x.jsonl"
    assert known["BRICKPROF_CAUSE"] and known["BRICKPROF_STEP"].isdigit() and known["BRICKPROF_SYMPTOM"]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("command", ["no-such-program-here x", "'unclosed"])
def test_a_command_that_cannot_run_is_said_at_once(command):
    with pytest.raises(UsageError, match="--exec"):
        Alarms(command)


# -- the command line


def test_ctrl_c_ends_it_with_the_verdict(tmp_path, lines):
    file = tmp_path / "x.jsonl"
    file.write_text("".join(lines))
    command = [sys.executable, "-m", "brickprof", "analyze", "--follow", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        assert "step 1" in first and "✗" in first
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "✗ FAIL" in out and "Traceback" not in err


def test_a_pipe_is_followed_to_its_end(tmp_path, lines):
    command = [sys.executable, "-m", "brickprof", "analyze", "--follow", "-", "--brief"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def write():
            for begin in range(0, 200, 50):
                process.stdin.write("".join(lines[begin : begin + 50]))
                process.stdin.flush()
                time.sleep(0.1)
            process.stdin.close()

        writer = threading.Thread(target=write)
        writer.start()
        out = process.stdout.read()
        writer.join()
    assert process.wait(60) == 1 and "✗ FAIL" in out
