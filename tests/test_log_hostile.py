"""Files that mean no good: one clear line each, no crash, no hang, and nothing that moves a cursor."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
import time
import zlib
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from logs_made import jsonl

from brickprof import logs
from brickprof.cli.app import main
from brickprof.errors import BrickprofError
from brickprof.logs.reading import source as sources

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SECONDS = 60.0


def said(*arguments: str) -> tuple[int, str, str]:
    """What a command printed, as a terminal would get it."""
    out, err = io.StringIO(), io.StringIO()
    began = time.monotonic()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["analyze", *map(str, arguments)])
    assert time.monotonic() - began < SECONDS
    assert code in (0, 1, 2, 3)
    assert not CONTROL.search(out.getvalue().replace("\n", "")), "an escape sequence reached the terminal"
    assert not CONTROL.search(err.getvalue().replace("\n", ""))
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue(), err.getvalue()


def assert_said(error: BrickprofError) -> None:
    assert error.message
    assert "\n" not in error.message


def one_line(err: str) -> bool:
    return err.startswith("brickprof: ") and err.count("\n") == 1


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return jsonl(tmp_path_factory.mktemp("good") / "good.jsonl", count=120)


# -- what is no log

NOT_LOGS = {
    "empty.log": b"",
    "blank.log": b"\n\n   \n\t\n",
    "zeros.log": bytes(100_000),
    "junk.log": os.urandom(50_000),
    "photo.png": b"\x89PNG\r\n\x1a\n" + os.urandom(2000),
    "model.bin": b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01." + os.urandom(500),
    "program": b"\x7fELF\x02\x01\x01" + os.urandom(2000),
    "cut.gz": gzip.compress(b"step 1 loss 2\n" * 1000)[:12],
    "lies.gz": b"\x1f\x8b" + os.urandom(500),
    "lies.zst": b"\x28\xb5\x2f\xfd" + os.urandom(500),
    "lies.xz": b"\xfd7zXZ\x00" + os.urandom(500),
    "lies.bz2": b"BZh9" + os.urandom(500),
    "events.out.tfevents.1.x": os.urandom(5000),
    "lies.parquet": b"PAR1" + os.urandom(200) + b"PAR1",
    "run.wandb": b":W&B" + os.urandom(500),
}


@pytest.mark.parametrize("name", NOT_LOGS)
def test_what_is_no_log_is_one_line_and_exit_2_or_3(name, tmp_path):
    file = tmp_path / name
    file.write_bytes(NOT_LOGS[name])
    code, _, err = said(file)
    assert code == 3 or (code == 2 and one_line(err) and name in err)


def test_all_of_them_beside_a_good_one_are_a_line_each_and_the_good_one_is_analysed(tmp_path, good):
    for name, content in NOT_LOGS.items():
        (tmp_path / name).write_bytes(content)
    code, out, err = said(*(tmp_path / name for name in NOT_LOGS), good, "--json")
    assert code == 2
    judged = {run["run"]["files"][0]: run["verdict"] for run in json.loads(out)}
    assert judged[str(good)] == "PASS"
    lines = err.splitlines()
    named = [name for name in NOT_LOGS if sum(name in line for line in lines) == 1]
    assert len(lines) == len(named) and len(named) + len(judged) - 1 == len(NOT_LOGS)


def test_a_folder_with_one_bad_file_among_good_ones(tmp_path, good):
    for number in range(3):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "train.jsonl").write_bytes(good.read_bytes())
    (tmp_path / "run1" / "broken.log").write_bytes(NOT_LOGS["junk.log"])
    code, out, err = said(tmp_path, "--brief")
    assert code == 0 and len(out.splitlines()) == 4 and one_line(err) and "broken.log" in err


# -- where files lie


def test_links_that_go_round_in_a_circle(tmp_path, good):
    (tmp_path / "train.jsonl").write_bytes(good.read_bytes())
    (tmp_path / "a").mkdir()
    os.symlink(tmp_path, tmp_path / "a" / "up")
    os.symlink(tmp_path / "self", tmp_path / "self")
    os.symlink("self.log", tmp_path / "self.log")
    code, out, _ = said(tmp_path, "--json")
    assert code == 0 and len(json.loads(out)) == 1
    code, _, err = said(tmp_path / "self.log")
    assert code == 2 and one_line(err)


def test_devices_pipes_and_sockets_in_a_folder_are_passed_by(tmp_path, good):
    (tmp_path / "train.jsonl").write_bytes(good.read_bytes())
    os.mkfifo(tmp_path / "pipe.log")
    assert said(tmp_path)[0] == 0


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_WRITER", 0.2)
    os.mkfifo(tmp_path / "pipe.log")
    code, _, err = said(tmp_path / "pipe.log")
    assert code == 2 and one_line(err) and "nobody writes" in err


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/proc/self/mem", "a\0b", "x" * 5000, ""])
def test_odd_paths(path):
    code, _, err = said(path)
    assert code == 2 and one_line(err)


def test_a_file_that_may_not_be_read(tmp_path, good):
    """As somebody who may not: root may read everything."""
    hidden = tmp_path / "hidden.log"
    hidden.write_bytes(good.read_bytes())
    hidden.chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    code, _, err = said(hidden)
    assert code == 2 and one_line(err) and "Permission denied" in err


# -- what stands in them

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\x08\x08\r"


def test_control_sequences_in_names_values_and_paths_reach_no_terminal(tmp_path):
    rows = [{"step": step, f"loss{EVIL}": 3.0, EVIL: step, "note": EVIL, "loss": float("nan")} for step in range(60)]
    file = tmp_path / "evil\x1b[31m.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for extra in ([], ["--json"], ["--csv", "-"], ["--markdown", "-"]):
        assert said(file, *extra)[0] in (1, 2, 3)
    text = tmp_path / "evil.log"
    text.write_text("".join(f"{EVIL} step {step}: loss nan {EVIL}\n" for step in range(60)) + f"ValueError: {EVIL}\n")
    said(text)
    said(text, file)


def test_lines_of_ten_megabytes(tmp_path):
    file = tmp_path / "long.log"
    with file.open("wb") as stream:
        for step in range(3):
            stream.write(b"step %d loss %.2f " % (step, 3 - step) + b"x" * (10 << 20) + b"\n")
    said(file)
    packed = tmp_path / "long.jsonl"
    packed.write_text(
        json.dumps({"step": 1, "loss": 2.0, "text": "y" * (10 << 20)}) + "\n" + '{"step": 2, "loss": 1.5}\n'
    )
    said(packed)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 100_000, '{"step": 1, "loss": ' + "[" * 50_000, "{" * 9999 + "}" * 9999]
)
@pytest.mark.parametrize("ending", ["json", "jsonl", "log"])
def test_deep_json(tmp_path, text, ending):
    file = tmp_path / f"deep.{ending}"
    file.write_text(text + "\n" + '{"step": 2, "loss": 1.0}\n')
    said(file)


def test_numbers_without_end(tmp_path):
    file = tmp_path / "big.jsonl"
    numbers = ["1" * 5000, "1e999999", "-1e400", "0." + "0" * 5000 + "1", "1e-999999"]
    file.write_text("".join(f'{{"step": {n}, "loss": {number}}}\n' for n, number in enumerate(numbers)))
    said(file)
    text = tmp_path / "big.log"
    text.write_text("".join(f"step {number} loss {number}\n" for number in numbers * 20))
    said(text)


def test_a_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_SUSPECT", 8 << 20)
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = (
        bomb.compress(b"".join(b"step %d loss 2.5\n" % step for step in range(6000)))
        + b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64))
        + bomb.flush()
    )
    (tmp_path / "bomb.log.gz").write_bytes(data)
    code, _, err = said(tmp_path / "bomb.log.gz")
    assert code == 2 and one_line(err) and "unpacks into more than" in err


def test_very_many_names_and_kinds_stay_bounded(tmp_path):
    file = tmp_path / "wide.jsonl"
    with file.open("w") as stream:
        for step in range(300):
            stream.write(json.dumps({"step": step, **{f"m{step}_{n}": 1.0 for n in range(40)}}) + "\n")
    log = logs.read(file)
    assert len(log.series) <= 2_000
    said(file, "--brief")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of a process is read from /proc")
def test_in_a_process_of_its_own_memory_stays_bounded(tmp_path):
    """60 MB without an end of line, and 60 MB of returns."""
    for name, piece in (("endless.log", b"loss 1 "), ("returns.log", b"step 1 loss 2\r")):
        (tmp_path / name).write_bytes(piece * ((60 << 20) // len(piece)))
    files = [str(tmp_path / name) for name in ("endless.log", "returns.log")]
    program = (
        "from brickprof.cli.app import main\n"
        f"code = main(['analyze', *{files!r}, '--jobs', '1'])\n"
        "most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(code, int(most.split()[1]) // 1024)"  # getrusage would count what the tests' own process held
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    code, megabytes = map(int, done.stdout.split()[-2:])
    assert code in (0, 1, 2, 3) and megabytes < 700


# -- cut at every byte


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A log of each of some formats, as small as can be."""
    folder = tmp_path_factory.mktemp("small")
    rows = [{"step": step, "loss": 3 - step / 10, "lr": 1e-4} for step in range(6)]
    texts = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "trainer_state.json": json.dumps({"log_history": rows, "global_step": 6, "max_steps": 6, "epoch": 1.0}),
        "metrics.csv": "epoch,step,train_loss\n" + "".join(f"0,{row['step']},{row['loss']}\n" for row in rows),
        "a.log": "".join(f"step {row['step']} | loss {row['loss']:.3f} | norm 1.0\n" for row in rows),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    event = struct.pack("<d", 1.0)
    (folder / "events.out.tfevents.1.h").write_bytes(
        b"".join(struct.pack("<Q", 9) + b"0000" + b"\x09" + event + b"0000" for _ in range(4))
    )
    return folder


@pytest.mark.parametrize(
    "name", ["a.jsonl", "trainer_state.json", "metrics.csv", "a.log", "a.jsonl.gz", "events.out.tfevents.1.h"]
)
def test_cut_at_every_byte(small, tmp_path, name):
    whole = (small / name).read_bytes()
    file = tmp_path / name
    for end in range(len(whole) + 1):
        file.write_bytes(whole[:end])
        try:
            log = logs.read(file)
        except BrickprofError as error:
            assert_said(error)
        else:
            assert all(len(series.steps) == len(series.values) for series in log.series.values())


@pytest.mark.parametrize("name", ["a.jsonl", "trainer_state.json", "metrics.csv", "a.log"])
def test_a_cut_log_still_tells_what_is_whole(small, tmp_path, name):
    whole = (small / name).read_bytes()
    file = tmp_path / name
    file.write_bytes(whole[: len(whole) * 3 // 4])
    log = logs.read(file)
    assert log.loss is not None and len(log.loss) >= 3
    assert log.loss.values[0] == 3.0


# -- anything at all

PIECES = st.sampled_from(
    [
        b"step ", b"loss ", b"nan", b"{", b"}", b'"loss": ', b"[", b"]", b",", b"\n", b"\r", b"|", b"\x1b[31m",
        b"1e999", b"=", b"iteration 5/ 10 |", b" 3.5", b"-", b"\x00", b"\xff\xfe",
        b"Traceback (most recent call last):\n", b'  File "a", line 1',
        b"epoch,step,loss\n", b"1,2,3\n", b"{'loss': 2.0, 'epoch': 1.0}", b"\xe2\x80\xae",
        b"tfevents", b"%|###|", b"it/s", b": ",
    ]
)  # fmt: skip
ANYTHING = st.one_of(st.binary(max_size=400), st.lists(PIECES, max_size=60).map(b"".join))
NAMES = st.sampled_from(
    [
        "x.log", "x.json", "x.jsonl", "metrics.csv", "trainer_state.json", "events.out.tfevents.1.x", "x.parquet",
        "x.wandb", "results.csv", "meta.yaml", "x.txt", "x",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING, NAMES)
@example(b"step 1 loss nan\n" * 3, "x.log")
def test_whatever_is_in_a_file_is_read_or_refused(tmp_path_factory, content, name):
    file = tmp_path_factory.mktemp("any") / name
    file.write_bytes(content)
    try:
        log = logs.read(file)
    except BrickprofError as error:
        assert_said(error)
    else:
        assert log.frame() is not None and log.holds() is not None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING, st.sampled_from(sorted(logs.readers())))
def test_every_reader_given_anything_reads_or_refuses(tmp_path_factory, content, name):
    file = tmp_path_factory.mktemp("forced") / "x"
    file.write_bytes(content)
    try:
        logs.read(file, logs.readers()[name])
    except BrickprofError as error:
        assert_said(error)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING, NAMES)
def test_whatever_is_in_a_file_the_command_ends_well(tmp_path_factory, content, name):
    file = tmp_path_factory.mktemp("command") / name
    file.write_bytes(content)
    said(file)
