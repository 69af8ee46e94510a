"""The journal: what is written is what is read, whatever was written and whoever wrote it."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.bricks import Brick, Kind
from brickprof.journal import (
    EVENTS,
    META,
    PROCESS,
    SAMPLES,
    SPANS,
    Journal,
    ProcessLog,
    Tail,
    rank_folder,
    read_events,
    read_meta,
    read_table,
    schema,
    write_meta,
)
from brickprof.journal import lines as event_lines
from brickprof.records import HISTOGRAM_BINS, RunMeta
from tests.launching import until

ROOT = Path(__file__).parents[1]
HISTOGRAM = tuple(range(HISTOGRAM_BINS))


def sample_row(step, *, tensor=1, value=1.0, histogram=HISTOGRAM, stamp=None):
    stamp = time.time_ns() if stamp is None else stamp
    return (
        stamp,
        step,
        0,
        1,
        tensor,
        1,
        1000,
        0,
        None,
        value,
        2.0,
        0.5,
        0.1,
        None,
        2**62 + 1,
        1.0,
        histogram,
    )


def span_row(step, *, number=1, attributes=None):
    return (number, 0, 1, 2, step, 0, 10 * step, 10 * step + 5, None, 7, attributes)


def folder_size(folder):
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass
    return total


@pytest.fixture
def journal(tmp_path):
    journal = Journal(rank_folder(tmp_path, 0))
    yield journal
    journal.close()


def events_of(journal):
    events, damage = read_events(journal.folder / EVENTS)
    assert not damage
    return events


# -- events


def test_an_event_is_on_disk_when_the_call_returns(journal):
    seq = journal.event("loss", 3, {"value": 2.5, "site": "train.py:12"})
    (line,) = (journal.folder / EVENTS).read_bytes().splitlines()
    body, _, crc = line.rpartition(b',"crc":')
    assert crc == b'"%08x"}' % crc32(body)
    found = json.loads(line)
    assert (found["seq"], found["kind"], found["step"], found["value"]) == (seq, "loss", 3, 2.5)
    assert list(found)[:4] == ["seq", "t", "kind", "step"]


hostile = st.text(st.characters(exclude_categories=[]), max_size=40)
keys = st.one_of(st.text(max_size=12), st.sampled_from(["seq", "t", "kind", "step", "crc", "$float", "$step", "$$t"]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), hostile),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def same(read, written):
    if isinstance(written, float):
        return isinstance(read, float) and (read == written or (math.isnan(read) and math.isnan(written)))
    if isinstance(written, dict):
        return read.keys() == written.keys() and all(same(read[key], written[key]) for key in written)
    if isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    if isinstance(written, str):  # two halves of a character become the character
        return read == written.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return read == written and type(read) is type(written)


@given(st.dictionaries(keys, values, max_size=6), st.integers(-1, 2**40), hostile)
def test_every_event_comes_back_as_it_was(fields, step, kind):
    line = event_lines.encode(7, 123, kind, step, fields)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert json.loads(line, parse_constant=pytest.fail)  # strict JSON, for every reader
    event = event_lines.decode(line[:-1])
    assert event is not None
    assert (event.seq, event.time_ns, event.step) == (7, 123, step)
    assert same(event.kind, kind)
    assert same(event.fields, fields)


class Rude:
    def __str__(self):
        raise RuntimeError("no")


def test_what_json_lacks_is_described_and_bounded(journal):
    circle = []
    circle.append(circle)
    deep = value = {}
    for _ in range(5000):
        value["x"] = value = {}
    odd = {
        "object": Path("a/b"),
        "rude": Rude(),
        "long": "x" * 10_000,
        "long object": Path("y" * 9_000),
        "set": {1},
        "huge": 10**6000,
        "circle": circle,
        "deep": deep,
        "bytes": b"\xff",
        (1, 2): "a tuple for a key",
        3: "a number for a key",
        "tuple": (1, 2.5),
    }
    assert journal.event("note", 1, odd) == 0
    (event,) = events_of(journal)
    found = event.fields
    assert found["object"] == "a/b"
    assert found["rude"] == "<Rude>"
    assert len(found["long"]) == 4000
    assert len(found["long object"]) == 500
    assert found["set"] == "{1}"
    assert len(found["huge"]) <= 500
    assert found["tuple"] == [1, 2.5]
    assert found["(1, 2)"] == "a tuple for a key"
    assert found["3"] == "a number for a key"
    assert {"circle", "deep", "bytes"} <= found.keys()


def test_threads_and_signal_handlers_share_one_order(journal):
    def handler(*_):
        journal.event("signal", 0, {})

    def work():
        for i in range(1500):
            journal.event("loss", i, {"value": float(i)})

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    events = events_of(journal)
    assert sum(event.kind == "loss" for event in events) == 6000
    assert any(event.kind == "signal" for event in events)
    assert sorted(event.seq for event in events) == list(range(len(events)))


def test_bricks_and_tensors_are_numbered_once(journal):
    gate, up = Brick(Kind.BLOCK, "mlp.gate", "GPT"), Brick(Kind.BLOCK, "mlp.up", "GPT")
    assert [journal.brick(brick) for brick in (gate, up, gate)] == [1, 2, 1]
    fields = {"model": "GPT", "brick": 1, "shape": [2, 3]}
    assert journal.tensor("w", fields) == 1
    assert journal.tensor("w", {**fields, "model": "Other"}) == 2
    assert journal.tensor("w", fields) == 1
    events = events_of(journal)
    assert [event.kind for event in events] == ["brick", "brick", "tensor", "tensor"]
    assert events[0].fields == {"id": 1, "brick_kind": "block", "path": "mlp.gate", "model": "GPT"}
    assert events[2].fields == {"id": 1, "name": "w", **fields}


def test_a_journal_goes_on_where_another_stopped(tmp_path):
    first = Journal(tmp_path)
    first.event("loss", 0, {})
    first.sample(sample_row(0))
    first.close()
    for name, scrap in ((EVENTS, b'{"seq":1,"t":5'), (SAMPLES, b"\xff\xff\xff\xff torn")):
        with (tmp_path / name).open("ab") as stream:
            stream.write(scrap)
    second = Journal(tmp_path)
    assert second.event("loss", 1, {}) == 1
    second.sample(sample_row(1))
    second.close()
    events, damage = read_events(tmp_path / EVENTS)
    assert [event.step for event in events] == [0, 1]
    assert damage.records_lost == 1
    table = pa.ipc.open_stream((tmp_path / SAMPLES).read_bytes()).read_all()
    assert table["step"].to_pylist() == [0, 1]


# -- spans and samples


def test_rows_come_back_exactly(journal):
    samples = [
        sample_row(step, tensor=tensor, value=math.inf if step == 2 else step + 0.1)
        for step in range(4)
        for tensor in (1, 2)
    ]
    samples.append(sample_row(9, histogram=None))
    spans = [span_row(step, attributes='{"a": "é"}' if step else None) for step in range(3)]
    for row in samples:
        journal.sample(row)
    for row in spans:
        journal.span(row)
    journal.flush()
    for name, file, rows in (("samples", SAMPLES, samples), ("spans", SPANS, spans)):
        table, damage = read_table(journal.folder / file, schema(name))
        assert not damage
        found = [tuple(row.values()) for row in table.to_pylist()]
        assert [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in found] == rows


def test_the_files_are_plain_arrow_streams(journal):
    for step in range(50):
        journal.sample(sample_row(step))
        journal.flush()
    with pa.OSFile(str(journal.folder / SAMPLES)) as source:
        table = pa.ipc.open_stream(source).read_all()
    assert table["step"].to_pylist() == list(range(50))
    assert table.schema.equals(schema("samples"))


def test_rows_reach_the_disk_by_themselves(journal):
    journal.warm()
    journal.sample(sample_row(1))
    deadline, rows = time.monotonic() + 5, 0
    while not rows and time.monotonic() < deadline:
        time.sleep(0.01)
        if (journal.folder / SAMPLES).exists():  # it has its schema before it has its first row
            rows = read_table(journal.folder / SAMPLES, schema("samples"))[0].num_rows
    assert rows == 1


def test_a_row_that_fits_no_column_costs_only_itself(journal):
    for step in range(10):
        journal.sample(sample_row(step))
    journal.sample(sample_row("three"))
    journal.sample((1, 2))
    journal.sample(sample_row(11, histogram=(1, 2)))
    journal.sample(sample_row(12))
    journal.span(span_row(1, attributes="\ud800"))
    journal.flush()
    table, damage = read_table(journal.folder / SAMPLES, schema("samples"))
    assert table["step"].to_pylist() == [*range(10), 12]
    assert not damage
    assert journal.dropped == {"events": 0, "spans": 1, "samples": 3}
    assert journal.alive


def test_a_file_of_another_version_is_read_by_name(tmp_path):
    columns = schema("samples").remove(16).append(pa.field("colour", pa.string()))
    row = dict(zip(schema("samples").names, sample_row(5), strict=True)) | {"colour": "red"}
    table = pa.Table.from_pylist([row], schema=columns)
    opening = bytes(columns.serialize())
    (tmp_path / SAMPLES).write_bytes(opening)
    found, damage = read_table(tmp_path / SAMPLES, schema("samples"))
    assert found.num_rows == 0
    assert damage  # a schema without our seal is not known to be whole
    with pa.OSFile(str(tmp_path / SAMPLES), "wb") as sink, pa.ipc.new_stream(sink, columns) as writer:
        writer.write_table(table)
    found, damage = read_table(tmp_path / SAMPLES, schema("samples"))
    assert found.schema.names == schema("samples").names
    assert damage


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"BPF1 off=", b"\xff" * 4000, b"{}\n\n[]\nnull\n"])
def test_readers_take_anything(tmp_path, content):
    for name in (EVENTS, SAMPLES, META):
        (tmp_path / name).write_bytes(content)
    events, damage = read_events(tmp_path / EVENTS)
    assert events == []
    assert bool(damage) == bool(content)
    table, damage = read_table(tmp_path / SAMPLES, schema("samples"))
    assert table.num_rows == 0
    assert bool(damage) == bool(content)
    assert read_meta(tmp_path)[1]


# -- when things go wrong


def test_a_forked_child_is_silent(journal):
    journal.event("loss", 0, {})
    journal.sample(sample_row(0))
    child = os.fork()
    if not child:
        answers = [journal.event("loss", 1, {}), int(journal.alive), journal.stopped == "forked"]
        journal.sample(sample_row(1))
        journal.flush()
        journal.close()
        os._exit(0 if answers == [-1, 0, True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    journal.event("loss", 2, {})
    journal.sample(sample_row(2))
    journal.close()
    assert [event.step for event in events_of(journal)] == [0, 2]
    assert read_table(journal.folder / SAMPLES, schema("samples"))[0]["step"].to_pylist() == [0, 2]


def run_child(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip


LEAVE = """
import atexit, sys
from pathlib import Path
from brickprof.journal import Journal
from tests.test_journal import sample_row
atexit.register(lambda: journal.event("note", 99, {}))
journal = Journal(Path(sys.argv[1]), flush_seconds=float(sys.argv[2]))
for step in range(2000):
    journal.sample(sample_row(step))
if sys.argv[3:]:
    raise SystemExit("a script that fails")
"""


@pytest.mark.parametrize("seconds", [0.0005, 30])
def test_leaving_without_close_loses_nothing(tmp_path, seconds):
    done = run_child(LEAVE, tmp_path, seconds)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0].num_rows == 2000
    assert [event.step for event in read_events(tmp_path / EVENTS)[0]] == [99]
    assert run_child(LEAVE, tmp_path / "x", seconds, "fail").returncode == 1


LATE = """
import atexit, sys
def late():
    journal.sample(sample_row(1))
    journal.event("exit", 1, {})
    journal.close()
atexit.register(late)  # before the journal is imported, so it runs after the journal has come to rest
from pathlib import Path
from brickprof.journal import Journal
from tests.test_journal import sample_row
journal = Journal(Path(sys.argv[1]))
journal.sample(sample_row(0))
"""


def test_what_comes_after_everybody_has_left_is_written(tmp_path):
    done = run_child(LATE, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0]["step"].to_pylist() == [0, 1]
    assert [event.kind for event in read_events(tmp_path / EVENTS)[0]] == ["exit"]


def test_without_threads_a_journal_still_writes(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    journal = Journal(tmp_path)
    journal.sample(sample_row(0))
    journal.close()
    assert not journal.alive
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0].num_rows == 1


def test_a_flush_imports_no_pandas(tmp_path):
    code = LEAVE + "journal.flush(); print('pandas' in sys.modules, 'torch' in sys.modules)"
    code = code.replace("from tests.test_journal import sample_row", f"sample_row = lambda step: {sample_row(1)}")
    done = run_child(code, tmp_path, 30)
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0].num_rows == 2000


FILL = """
import sys, threading
from pathlib import Path
from brickprof.journal import Journal
from tests.test_journal import sample_row
journal = Journal(Path(sys.argv[1]), max_bytes=2**40)
before = threading.active_count()
for step in range(400_000):
    journal.event("loss", step, {"value": 1.0, "text": "x" * 200})
    journal.sample(sample_row(step))
    if not journal.alive:
        break
assert journal.event("loss", 1, {}) == -1
journal.sample(sample_row(1))
journal.brick(__import__("brickprof").bricks.Brick("block", "late"))
journal.flush()
journal.close()
print(step, journal.stopped)
"""


def check_filled(folder, done, reason):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last, stopped = done.stdout.strip().split(" ", 1)
    assert stopped == reason
    events, damage = read_events(folder / EVENTS)
    assert [event.step for event in events] == list(range(len(events)))
    assert len(events) >= int(last) - 1
    assert (damage.records_lost or 0) <= 1
    table, _ = read_table(folder / SAMPLES, schema("samples"))
    assert table["step"].to_pylist() == list(range(table.num_rows))


def test_a_file_that_may_not_grow_stops_the_journal_only(tmp_path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, {resource.RLIM_INFINITY}))\n"
    check_filled(tmp_path, run_child(limit + FILL, tmp_path), "file size limit reached")


def test_a_full_disk_stops_the_journal_only(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        check_filled(tmp_path / "rank00000", run_child(FILL, tmp_path / "rank00000"), "disk full")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file" / "rank00000")


# -- the size cap


CAP = 4 * 2**20


@pytest.fixture(scope="module")
def capped(tmp_path_factory):
    """A journal that was given far more than it may keep, and what could be seen meanwhile."""
    run = tmp_path_factory.mktemp("capped")
    journal = Journal(rank_folder(run, 0), max_bytes=CAP, flush_seconds=0.01)
    journal.warm()
    tail, tailed, largest = Tail(run), [], 0
    brick = journal.brick(Brick(Kind.BLOCK, "first"))
    given = {"events": 1, "spans": 0, "samples": 0}
    for step in range(6000):
        journal.event("loss", step, {"value": 1 / (step + 1), "site": "x" * 300})
        journal.event("optimizer", step, {"lr": [0.1], "count": step})
        journal.span(span_row(step, number=step + 1, attributes='{"x": "%s"}' % ("y" * 300)))
        for tensor in range(12):
            journal.sample(sample_row(step, tensor=tensor))
        given = {"events": given["events"] + 2, "spans": given["spans"] + 1, "samples": given["samples"] + 12}
        if step == 700:
            journal.event("anomaly", step, {"what": "loss"})
            given["events"] += 1
        if step % 40 == 0:
            until(lambda: not (journal._sample_rows or journal._cap.busy))  # or the flush thread starves
            largest = max(largest, folder_size(journal.folder))
            tailed += tail.poll()
    journal.close()
    tailed += tail.poll()
    assert brick == 1
    return journal, given, tailed, largest


def test_the_folder_stays_under_its_cap(capped):
    journal, _, _, largest = capped
    assert journal.stopped == ""
    assert CAP / 4 < largest <= CAP
    assert folder_size(journal.folder) <= CAP
    assert {path.name for path in journal.folder.iterdir()} == {EVENTS, SAMPLES, SPANS}


def test_what_matters_survives_the_thinning(capped):
    journal, _, _, _ = capped
    events = events_of(journal)
    losses = [event.step for event in events if event.kind == "loss"]
    table, damage = read_table(journal.folder / SAMPLES, schema("samples"))
    assert not damage
    sampled = sorted(set(table["step"].to_pylist()))
    for steps in (losses, sampled):
        assert (steps[0], steps[-1]) == (0, 5999)
        assert set(range(697, 704)) <= set(steps)
        middle = [step for step in steps if 1000 <= step < 4000]
        assert len(middle) > 10  # the middle of the run is thinner, not gone
        assert len(middle) < 1500
    assert [event.step for event in events if event.kind == "anomaly"] == [700]
    assert [event.fields["path"] for event in events if event.kind == "brick"] == ["first"]


def test_a_sampled_step_is_kept_whole_or_not_at_all(capped):
    table, _ = read_table(capped[0].folder / SAMPLES, schema("samples"))
    counts = table.group_by("step").aggregate([("tensor", "count")])["tensor_count"].to_pylist()
    assert set(counts) == {12}


def test_what_was_dropped_is_counted(capped):
    journal, given, _, _ = capped
    events = events_of(journal)
    told = [event for event in events if event.kind == "dropped"]
    assert told
    for name in ("spans", "samples"):
        kept = read_table(journal.folder / f"{name}.arrow", schema(name))[0].num_rows
        assert kept + journal.dropped[name] == given[name]
    assert len(events) - len(told) + journal.dropped["events"] == given["events"]
    for name, count in journal.dropped.items():
        assert sum(event.fields[name] for event in told) == count
        assert count > 0


def test_a_tail_sees_each_event_once_across_compactions(capped):
    journal, _, tailed, _ = capped
    seqs = [event.seq for event in tailed]
    assert len(seqs) == len(set(seqs))
    assert {event.seq for event in events_of(journal)} <= set(seqs)


def test_facts_that_come_once_outlive_a_full_journal(tmp_path):
    journal = Journal(tmp_path, max_bytes=2**20, flush_seconds=0.01)
    for step in range(3000):
        journal.event("anomaly", step, {"what": "x" * 400})
        if step % 50 == 0:
            time.sleep(0.005)
    assert journal.dropped["events"] > 0
    journal.event("exception", 3000, {"type": "ValueError"})
    journal.close()
    events, damage = read_events(tmp_path / EVENTS)
    assert not damage
    assert events[0].step == 0
    assert "exception" in {event.kind for event in events[-2:]}
    assert folder_size(tmp_path) <= 2**20


# -- tail, process log, meta


def test_a_tail_follows_ranks_that_come_late_and_lines_half_written(tmp_path):
    tail = Tail(tmp_path)
    assert tail.poll() == []
    log = ProcessLog(tmp_path)
    log.event("start", 0, {})
    first = Journal(rank_folder(tmp_path, 0))
    first.event("loss", 0, {})
    assert [(event.rank, event.kind) for event in tail.poll()] == [(-1, "start"), (0, "loss")]
    line = event_lines.encode(1, 1, "loss", 1, {})
    with (first.folder / EVENTS).open("ab", buffering=0) as stream:
        stream.write(line[:20])
        assert tail.poll() == []
        stream.write(line[20:])
    second = Journal(rank_folder(tmp_path, 3))
    second.event("loss", 7, {})
    assert [(event.rank, event.step) for event in tail.poll()] == [(0, 1), (3, 7)]
    assert tail.poll() == []
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("seq", "time_ns", "kind", "step"),
    [
        (10**400, 1, "loss", 1),
        (1, 10**400, "loss", 1),
        (1, 1, "loss", 10**400),
        (1, 1, "loss", -(2**63)),
        (-1, 1, "loss", 1),
    ],
)
def test_a_frame_that_nothing_could_have_written_is_damage(seq, time_ns, kind, step):
    sound = event_lines.encode(1, 1, "loss", 1, {})
    assert event_lines.decode(sound.rstrip(b"\n")) is not None
    assert event_lines.decode(event_lines.encode(seq, time_ns, kind, step, {}).rstrip(b"\n")) is None


def test_a_tail_goes_over_to_a_rank_that_was_started_again(tmp_path):
    tail = Tail(tmp_path)
    first = Journal(rank_folder(tmp_path, 0))
    first.event("loss", 0, {})
    first.event("loss", 1, {})
    assert len(tail.poll()) == 2
    again = Journal(tmp_path / f"{rank_folder(tmp_path, 0).name}-r1")
    again.event("loss", 5, {})
    assert [event.step for event in tail.poll()] == [5]
    first.close()
    again.close()


LOG = """
import sys
from pathlib import Path
from brickprof.journal import ProcessLog
log = ProcessLog(Path(sys.argv[1]))
for i in range(200):
    log.event("memory", i, {"who": sys.argv[2]})
"""


def test_several_processes_share_one_process_log(tmp_path):
    command = [sys.executable, "-c", LOG, str(tmp_path)]
    children = [subprocess.Popen([*command, str(i)], cwd=ROOT) for i in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    events, damage = read_events(tmp_path / PROCESS)
    assert not damage
    assert [event.seq for event in events] == list(range(600))
    assert {event.rank for event in events} == {-1}
    assert ProcessLog(tmp_path / "missing").event("start", 0, {}) == -1


@pytest.mark.parametrize(
    "wrong", [{"script": [1]}, {"extra": [1]}, {"started_ns": "x"}, {"argv": [1]}, {"run_id": None}, {"schema": True}]
)
def test_meta_of_the_wrong_kind_is_damage(tmp_path, wrong):
    write_meta(tmp_path, replace(RunMeta("k3f9", "train.py"), **wrong))
    meta, damage = read_meta(tmp_path)
    assert damage and isinstance(meta.script, str) and isinstance(meta.extra, dict)


def test_meta_comes_back_and_is_rebuilt_when_damaged(tmp_path):
    run = tmp_path / "train-20261115-0121-k3f9"
    meta = RunMeta("k3f9", "train.py", ("--lr", "3"), 5, host="\ud800", extra={"a": [1, None]})
    write_meta(run, meta)
    assert read_meta(run) == (meta, read_meta(run)[1])
    assert not read_meta(run)[1]
    journal = Journal(rank_folder(run, 0))
    journal.event("run", 0, {"run_id": "k3f9", "argv": ["--lr", "3"], "level": "deep", "host": "h"})
    journal.close()
    (run / META).write_text("{}")
    rebuilt, damage = read_meta(run)
    assert (rebuilt.run_id, rebuilt.argv, rebuilt.level, rebuilt.script) == (
        "k3f9",
        ("--lr", "3"),
        "deep",
        "train",
    )
    assert "rebuilt" in str(damage)
