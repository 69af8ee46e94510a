"""Processes that really die and files that are really damaged: what was whole before is read after."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from brickprof import pulse
from brickprof.bricks import Brick, Kind
from brickprof.journal import (
    EVENTS,
    META,
    PROCESS,
    SAMPLES,
    SPANS,
    Journal,
    ProcessLog,
    rank_folder,
    read_events,
    read_meta,
    read_table,
    schema,
    write_meta,
)
from brickprof.journal.frames import frames
from brickprof.records import HISTOGRAM_BINS, RunMeta
from brickprof.run import Run

ROOT = Path(__file__).parents[1]
TIMES = 200
WITHIN_NS = 100_000_000
STANDSTILL_NS = 10_000_000

NURSERY = """
import json, os, random, signal, struct, sys, time
from pathlib import Path
import pyarrow
from brickprof.bricks import Brick, Kind
from brickprof.journal import Journal, rank_folder, write_meta
from brickprof.records import RunMeta

WORD = struct.Struct("<qq")


def child(folder, pipe):
    journal = Journal(rank_folder(folder, 0))
    journal.warm()
    brick = journal.brick(Brick(Kind.BLOCK, "b"))
    tensor = journal.tensor("w", {"model": "M", "brick": brick})
    for step in range(10**9):
        seq = journal.event("loss", step, {"value": step / 3, "ran": time.process_time_ns()})
        for i in range(3):
            stamp = time.time_ns()
            statistics = (1.5, 2.5, 0.0, 0.0, None, step, 1.0, None)
            journal.sample((stamp, step, i, brick, tensor, 1, 9, 0, 0, *statistics))
        journal.span((step + 1, 0, brick, 2, step, 0, stamp, stamp + 5, None, None, None))
        os.write(pipe, WORD.pack(seq, stamp))
        time.sleep(0.0005)


def last_word(pipe):
    found = b""
    while block := os.read(pipe, 2**16):
        found = (found + block)[-2 * WORD.size - (len(found + block) % WORD.size):]
    whole = len(found) - len(found) % WORD.size
    return WORD.unpack(found[whole - WORD.size:whole]) if whole else (-1, 0)


def main(folder, count, seed):
    chance = random.Random(seed)
    for i in range(count):
        home = Path(folder) / f"run-{i:04d}"
        write_meta(home, RunMeta(run_id=home.name))
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            child(home, writer)
        os.close(writer)
        time.sleep(chance.uniform(0.002, 0.22))
        os.kill(pid, signal.SIGKILL)
        seq, stamp = last_word(reader)
        os.close(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"folder": str(home), "seq": seq, "stamp": stamp, "status": status}), flush=True)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""


def test_a_process_killed_at_any_moment_loses_no_event_and_few_samples(tmp_path):
    script = tmp_path / "nursery.py"
    script.write_text(NURSERY)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(TIMES), "7"],
        capture_output=True, text=True, timeout=240, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    deaths = [json.loads(line) for line in done.stdout.splitlines()]
    assert [death["status"] for death in deaths] == [-9] * TIMES
    lived = 0
    for death in deaths:
        run = Run.open(death["folder"])
        seqs = [event.seq for event in run.records(rank=0) if hasattr(event, "seq")]
        assert seqs[: death["seq"] + 1] == list(range(death["seq"] + 1))
        stamps = run.samples["time_ns"].tolist()
        lived += bool(stamps)
        if death["seq"] >= 0:
            told = [(e.time_ns, e.fields["ran"]) for e in run.records(rank=0) if getattr(e, "kind", "") == "loss"]
            assert lived_ns(told, since=stamps[-1] if stamps else 0) <= WITHIN_NS, death
        counts = run.samples.groupby("step").size().tolist()
        assert all(count == 3 for count in counts[:-1])  # nothing is missing before the last of them
        assert run.spans["step"].tolist() == list(range(len(run.spans)))
    assert lived > TIMES // 2


def lived_ns(moments, since):
    """How long a process that spoke every millisecond ran after ``since``: a pause in which none of its threads had a
    processor is the machine's and not its own."""
    after = [(moment, ran) for moment, ran in moments if moment >= since]
    total = 0
    for (earlier, ran), (later, more) in itertools.pairwise(after):
        stood = later - earlier > STANDSTILL_NS and more - ran < (later - earlier) / 2
        total += STANDSTILL_NS if stood else later - earlier
    return total


# -- damage to what a run left behind


@dataclass(frozen=True)
class Left:
    """A finished run, and what its files said before anything happened to them."""

    folder: Path
    events: list
    process: list
    tables: dict
    meta: RunMeta


def row(step, tensor, stamp):
    histogram = tuple(step + i for i in range(HISTOGRAM_BINS)) if step % 2 else None
    return (
        stamp,
        step,
        0,
        1,
        tensor,
        1,
        9,
        step,
        None,
        step / 7,
        2.5,
        0.0,
        0.0,
        None,
        step - 2**60,
        1.0,
        histogram,
    )


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("left") / "train-20261115-0121-k3f9"
    meta = RunMeta("k3f9", "train.py", ("--lr", "3"), 17, "deep", "0.1", host="here")
    write_meta(folder, meta)
    log = ProcessLog(folder)
    journal = Journal(rank_folder(folder, 0), flush_seconds=3600)  # flushed below, and at no other moment
    told = {
        name: getattr(meta, name) for name in ("run_id", "script", "argv", "started_ns", "level", "version", "host")
    }
    journal.event("run", 0, told)
    brick = journal.brick(Brick(Kind.BLOCK, "b", "M"))
    tensors = [journal.tensor(name, {"model": "M", "brick": brick}) for name in "uvw"]
    for step in range(40):
        log.event("memory", step, {"rss": step * 1000, "nested": [{"x": step, "crc": "0badcafe"}]})
        journal.event("loss", step, {"value": step / 3, "nested": {"x": step, "crc": "0badcafe"}, "nan": float("nan")})
        with journal._flushing:  # a first sample wakes its thread, and a second one hurries it
            for tensor in tensors:
                journal.sample(row(step, tensor, time.time_ns()))
            journal.span((step + 1, 0, brick, 2, step, 0, step, step + 5, None, None, json.dumps({"step": step})))
            journal.flush()
    journal.close()
    beat = pulse.Pulse(journal.folder)
    beat.step, beat.loss = 39, 1.5
    beat.beat(time.time_ns())
    beat.close()
    return Left(
        folder,
        comparable(read_events(journal.folder / EVENTS)[0]),
        comparable(read_events(folder / PROCESS)[0]),
        {
            name: read_table(journal.folder / name, schema(name.split(".")[0]))[0].to_pylist()
            for name in (SAMPLES, SPANS)
        },
        read_meta(folder)[0],
    )


def comparable(events):
    return [(event.seq, event.time_ns, event.kind, event.step, repr(event.fields)) for event in events]


def cut(data, chance):
    at = chance.randrange(len(data))
    return data[:at], range(at, len(data))


def flip(data, chance):
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :], range(at, at + 1)


@pytest.fixture(params=[cut, flip], ids=["truncated", "flipped"])
def damaged(request, tmp_path):
    """Copies of a file, each damaged in another place, with the places."""

    def copies(original):
        chance = random.Random(f"{request.param.__name__} {original.name}")
        data = original.read_bytes()
        for _ in range(TIMES):
            changed, touched = request.param(data, chance)
            copy = tmp_path / original.parent.name / original.name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(changed)
            yield copy, touched

    return copies


@pytest.mark.parametrize("name", [EVENTS, PROCESS])
def test_lines_around_the_damage_are_read_and_none_is_changed(left, damaged, name):
    path = left.folder / PROCESS if name == PROCESS else rank_folder(left.folder, 0) / EVENTS
    known = left.process if name == PROCESS else left.events
    ends = [i for i, byte in enumerate(path.read_bytes()) if byte == ord("\n")]
    starts = [0, *(end + 1 for end in ends)]
    for copy, touched in damaged(path):
        events, damage = read_events(copy)
        untouched = [
            event
            for event, start, end in zip(known, starts, ends, strict=False)
            if touched.stop <= start or touched.start >= end
        ]
        assert comparable(events) == untouched
        torn = touched.start not in {*starts, *ends} and touched.stop == ends[-1] + 1
        flipped = len(touched) == 1 and not torn
        assert bool(damage) == (torn or flipped)
        assert damage.records_lost == (len(known) - len(untouched) if flipped else torn)


@pytest.mark.parametrize("name", [SAMPLES, SPANS])
def test_frames_around_the_damage_are_read_and_none_is_changed(left, damaged, name):
    path = rank_folder(left.folder, 0) / name
    spots = list(frames(path.read_bytes()))
    assert len(spots) == 41
    for copy, touched in damaged(path):
        table, damage = read_table(copy, schema(name.split(".")[0]))
        expected, at = [], 0
        for spot in spots:
            rows = left.tables[name][at : at + spot.rows]
            at += spot.rows
            if touched.stop <= spot.start or touched.start >= spot.end:
                expected += rows
        assert table.to_pylist() == expected
        assert table.schema.equals(schema(name.split(".")[0]))
        at_an_end = len(touched) > 1 and touched.start in {0, *(spot.end for spot in spots)}
        assert bool(damage) != at_an_end
        if damage.records_lost is not None and len(touched) == 1:
            lost = len(left.tables[name]) - len(expected)
            assert damage.records_lost == lost or touched.start in header_digits(path, spots)


def header_digits(path, spots):
    """Where the headers say how many rows a frame has: damaged there, the count itself is damaged."""
    data = path.read_bytes()
    found = set()
    for spot in spots:
        at = data.index(b" rows=", spot.start) + len(" rows=")
        found.update(range(at, at + 8))
    return found


def test_a_frame_file_cut_off_is_still_a_stream_for_others(left, tmp_path):
    data = (rank_folder(left.folder, 0) / SAMPLES).read_bytes()
    end = list(frames(data))[20].end
    assert pa.ipc.open_stream(data[:end]).read_all().num_rows == 60


def test_damaged_meta_is_rebuilt_and_never_changed(left, damaged, tmp_path):
    home = tmp_path / left.folder.name
    home.mkdir()
    (home / "rank00000").symlink_to(rank_folder(left.folder, 0))
    for copy, _ in damaged(left.folder / META):
        meta, damage = read_meta(copy.parent)
        assert damage
        assert meta == left.meta


def test_a_damaged_pulse_is_read_or_refused(left, damaged):
    for copy, touched in damaged(rank_folder(left.folder, 0) / pulse.NAME):
        found = pulse.read(copy.parent)
        assert found is None or (len(touched) == 1 and found.state in pulse.STATES)


def test_a_run_opens_whatever_happened_to_its_files(left, tmp_path):
    chance = random.Random(3)
    files = [path.relative_to(left.folder) for path in left.folder.rglob("*") if path.is_file()]
    for turn in range(40):
        home = tmp_path / f"train-20261115-0121-{turn:04d}"
        for name in files:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            data = (left.folder / name).read_bytes()
            for _ in range(chance.randrange(3)):
                data = chance.choice([cut, flip])(data, chance)[0] or b"\0"
            (home / name).write_bytes(data)
        run = Run.open(home)
        assert run.meta.script.startswith("train")
        assert len(run.samples) <= 120
        assert len(run.events) <= len(left.events) + len(left.process)
        assert all(str(damage) for damage in run.damage)
        assert sum(1 for _ in run.records()) == len(run.samples) + len(run.spans) + len(run.events)
