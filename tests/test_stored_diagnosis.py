"""A diagnosis beside its run: taken where it would come out the same, and made anew where it might not."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from making import INF, NAN, START, Made

from brickprof.bricks import Brick, Kind
from brickprof.cli.app import main
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import Diagnosis, diagnose, diagnosed, keeping, saving, stored
from brickprof.diagnosis.time_facts import time_facts
from brickprof.journal import read_table, schema
from brickprof.journal.frames import batch_frame, empty, schema_frame
from brickprof.records import RunMeta, Span
from brickprof.run import Run, columns
from brickprof.run.state import state


def written(made: Made, folder) -> Run:
    """The run in a folder, judged and stored as the end of a run does it."""
    run = Run.open(made.run().save(folder))
    saving.write(diagnose(run), run.path, run)
    return run


def broken(steps: int = 12) -> Made:
    made = Made()
    made.owned()
    for step in range(steps):
        made.event("sampled", step, roles=["grad"])
        for block in made.numbers:
            made.sample("grad", step, block, absmax=10.0**-step)
        made.step(step, loss=NAN if step == steps - 1 else 3.0 - step / 10, norm=1.0 + step)
    return made


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Run:
    return written(broken(), tmp_path_factory.mktemp("runs") / "train-20261115-0121-k3f9")


@pytest.fixture
def run(judged, tmp_path) -> Run:
    """Each test has a copy of its own, times included."""
    return Run.open(shutil.copytree(judged.path, tmp_path / judged.path.name))


# -- when it is taken


def test_a_stored_diagnosis_is_the_one_that_would_be_made(run):
    fresh = Run.open(run.path)
    kept, made = stored(fresh), diagnose(Run.open(run.path))
    assert kept is not None
    assert kept.to_dict() == made.to_dict() and str(kept) == str(made)
    assert kept == Diagnosis.from_dict(json.loads(made.to_json()))


def test_the_end_of_a_run_stores_it(tmp_path):
    from brickprof.launch import conclusion

    folder = broken().run().save(tmp_path / "run")
    found, *_ = conclusion._diagnosed(folder)
    kept = stored(Run.open(folder))
    assert kept is not None and kept.to_dict() == found.to_dict()


class Unheard(io.StringIO):
    """A stream that nobody takes anything from: a full disk, or a pipe whose reader has left."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("stream", [Unheard(OSError(28, "full")), Unheard(BrokenPipeError(32, "gone")), None])
def test_the_end_of_a_run_never_changes_its_exit_code(tmp_path, monkeypatch, capsys, stream):
    from brickprof.launch import conclusion
    from brickprof.launch.exits import Exit
    from brickprof.launch.folder import Place

    folder = broken().run().save(tmp_path / "run")
    monkeypatch.setattr(sys, "stderr", stream)
    assert conclusion.conclude(Place(folder, "k3f9"), Exit(0, "ok", "the script exited 0")) == 0
    assert (folder / "report.html").exists() and capsys.readouterr().out == ""


def test_nothing_of_the_journal_is_read_for_it(run, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the journal was read")

    fresh = Run.open(run.path)
    for name in ("run.parts.read_table", "run.parts.read_slate", "journal.pages.Page.read", "journal.pages.Page.begin"):
        monkeypatch.setattr(f"brickprof.{name}", refuse)
    assert diagnosed(fresh).verdict == "FAIL"
    assert main(["show", str(run.path)]) == 0


def test_reading_one_loads_no_rule_and_no_table(run):
    program = (
        "import sys; from brickprof.run import Run; from brickprof.diagnosis import stored\n"
        "assert stored(Run.open(sys.argv[1])) is not None\n"
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'torch', 'brickprof.rules.engine'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run.path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_judging_needs_no_pandas(tmp_path):
    folder = broken().run().save(tmp_path / "run")
    program = (
        "import sys; from brickprof.run import Run; from brickprof.diagnosis import diagnose\n"
        "print(diagnose(Run.open(sys.argv[1])).verdict, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "FAIL False\n"


def test_a_folder_that_moved_or_was_copied_keeps_its_diagnosis(run, tmp_path):
    copied = shutil.copytree(run.path, tmp_path / "elsewhere", copy_function=shutil.copyfile)  # with times of its own
    kept = stored(Run.open(copied))
    assert kept is not None and kept.run["folder"] == str(copied)
    assert stored(Run.open(run.path.rename(tmp_path / "moved"))) is not None


# -- when it is not


def grown(folder):
    with (folder / "rank00000" / "events.jsonl").open("ab") as file:
        file.write(b"{}\n")


def flipped(folder):
    """One byte is another one, in a file of the same size."""
    file = folder / "rank00000" / "samples.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def another_rank(folder):
    shutil.copytree(folder / "rank00000", folder / "rank00001")


def lost(folder):
    (folder / "rank00000" / "spans.arrow").unlink()


def no_note(folder):
    (folder / "judged.json").unlink()


def torn_note(folder):
    (folder / "judged.json").write_text((folder / "judged.json").read_text()[:-20])


def strange_note(folder):
    (folder / "judged.json").write_text("[1, 2]")


def by_hand(folder):
    """Somebody wrote a verdict of his own."""
    file = folder / "diagnosis.json"
    file.write_text(file.read_text().replace('"FAIL"', '"PASS"'))


def other_terms(folder):
    from brickprof.journal import write_meta

    write_meta(folder, RunMeta("k3f9", extra={"suppress": {"C-TRAINSTABLE-001": "on purpose"}}))


def other_schema(folder):
    file = folder / "diagnosis.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 99'))
    note = json.loads((folder / "judged.json").read_text())
    (folder / "judged.json").write_text(json.dumps({**note, "diagnosis": keeping._digest(file.read_bytes())}))


def forged(part: str, name: str, value: object):
    """With a note that fits, and something in it that is not what it should be."""

    def change(folder):
        file = folder / "diagnosis.json"
        told = json.loads(file.read_text())
        place = told["run"] if part == "run" else told["findings"][0]
        place[name] = value
        file.write_text(json.dumps(told))
        note = json.loads((folder / "judged.json").read_text())
        (folder / "judged.json").write_text(json.dumps({**note, "diagnosis": keeping._digest(file.read_bytes())}))

    return change


FORGED = [
    forged("finding", "confidence", "very"), forged("finding", "detected_step", 1e300),
    forged("finding", "first_step", True), forged("finding", "obligation", ["\x1b[2J"]),
    forged("finding", "coordinates", {"rank": "\x1b[2J"}), forged("run", "steps", "many"), forged("run", "ranks", [1]),
    forged("run", "id", {"k": 3}), forged("run", "exit", "well"), forged("run", "curves", "steep"),
    forged("run", "curves", {"loss": "steep"}),
]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [grown, flipped, another_rank, lost, no_note, torn_note, strange_note, by_hand, other_terms, other_schema, *FORGED],
)
def test_what_was_touched_is_judged_anew(run, change, monkeypatch):
    change(run.path)
    assert stored(Run.open(run.path)) is None
    anew = Diagnosis(Verdict.VACUOUS)
    monkeypatch.setattr("brickprof.diagnosis.doctor.diagnose", lambda run: anew)
    assert diagnosed(Run.open(run.path)) is anew


def test_another_judge_judges_anew(run, monkeypatch):
    monkeypatch.setattr(keeping, "judge", lambda: "somebody else")
    assert stored(Run.open(run.path)) is None


def test_the_judge_is_told_by_rules_contracts_and_plugins(monkeypatch):
    import importlib.metadata

    ours = keeping.judge()
    keeping.judge.cache_clear()
    point = importlib.metadata.EntryPoint("rules.mine", "mine.rule", "brickprof.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    theirs = keeping.judge()
    monkeypatch.undo()
    keeping.judge.cache_clear()
    assert ours != theirs and keeping.judge() == ours


def test_the_judge_is_told_by_every_module_that_a_verdict_depends_on():
    """What judging loads of the package is in the digest: a change of it is another judge."""
    program = (
        "import sys; from brickprof import plugins; from brickprof.diagnosis import diagnose, keeping\n"
        "from brickprof.records import Event; from brickprof.run import Run\n"
        "diagnose(Run.from_records([]))\n"
        "diagnose(Run.from_records([Event('log', 0, {'format': 'text', 'rows': 1}, 1, 1, -1)]))\n"
        "plugins.discover('brickprof.diagnosis.causes')\n"
        "assert 'brickprof.rules.log_view' in sys.modules and 'brickprof.diagnosis.causes.logged' in sys.modules\n"
        "loaded = {module.__file__ for name, module in sys.modules.items() if name.partition('.')[0] == 'brickprof'}\n"
        "told = {str(file) for file in keeping._judging(str(keeping._PACKAGE))}\n"
        "print([file for file in loaded - told if file and not file.endswith('logs/__init__.py')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_plugin_that_was_edited_is_another_judge(tmp_path, monkeypatch):
    import importlib.metadata

    package = tmp_path / "their_rules"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('nobody is to import this')\n")
    (package / "strict.py").write_text("BOUND = 1\n")
    (package / "helping.py").write_text("A = 1\n")
    point = importlib.metadata.EntryPoint("rules.strict", "their_rules.strict", "brickprof.plugins")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    told = []
    for file, words in (("strict.py", "BOUND = 1\n"), ("strict.py", "BOUND = 2\n"), ("helping.py", "A = 2\n")):
        (package / file).write_text(words)
        keeping.judge.cache_clear()
        told.append(keeping.judge())
    monkeypatch.undo()
    keeping.judge.cache_clear()
    assert len(set(told)) == 3


def test_what_is_written_while_it_is_judged_makes_it_stale(tmp_path):
    """A rank that is still training: what it adds after the run was opened is not in the diagnosis."""
    run = Run.open(broken().run().save(tmp_path / "run"))
    found = diagnose(run)
    grown(run.path)
    saving.write(found, run.path, run)
    assert stored(Run.open(run.path)) is None


def test_a_diagnosis_of_nobody_knows_what_is_not_taken(tmp_path):
    run = Run.open(broken().run().save(tmp_path / "run"))
    saving.write(diagnose(run), run.path)
    assert (run.path / "diagnosis.json").exists() and stored(Run.open(run.path)) is None


def test_records_in_hand_have_nothing_stored():
    assert stored(broken().run()) is None and diagnosed(broken().run()).verdict == "FAIL"


def test_a_folder_that_takes_no_note_still_takes_the_diagnosis(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    no_note(run.path)
    monkeypatch.setattr(keeping, "remember", full)
    saving.write(diagnose(run), run.path, run)
    assert sorted(each.name for each in run.path.iterdir() if each.name.startswith(".")) == []
    assert stored(Run.open(run.path)) is None


def test_a_damaged_run_says_so_from_what_is_stored(run, capsys):
    flipped(run.path)
    damaged = Run.open(run.path)
    saving.write(diagnose(damaged), run.path, damaged)
    assert stored(Run.open(run.path)) is not None
    for arguments in ([], ["loss:3"]):
        assert main(["show", str(run.path), *arguments]) == 0
        assert "this run is damaged" in capsys.readouterr().err


def test_the_state_of_a_run_is_that_of_what_it_is_read_from(run):
    found = state(run.path)
    assert {"meta.json", "rank00000/events.jsonl", "rank00000/samples.arrow"} <= found.keys()
    assert not {"diagnosis.json", "judged.json"} & found.keys()
    size, written_at = found["rank00000/events.jsonl"]
    told = os.stat(run.path / "rank00000" / "events.jsonl")
    assert (size, written_at) == (told.st_size, told.st_mtime_ns)


# -- what it holds for a report


def test_the_course_of_a_run_keeps_ends_extremes_and_what_broke():
    made = Made()
    for step in range(1000):
        made.step(step, loss={500: 90.0, 999: NAN}.get(step, 2.0))
    made.event("grad", 700, point="step", l2=INF, absmax=INF)
    curves = diagnose(made.run()).run["curves"]
    loss, norm = curves["loss"], curves["grad_norm"]
    assert len(loss["cells"]) == len(norm["cells"]) == 96
    assert loss["cells"].count(90.0) == 1 and loss["cells"][-1] == "nan" and loss["cells"].count(2.0) == 94
    assert loss["highest"] == {"step": 500, "value": 90.0} and loss["last"] == {"step": 999, "value": "nan"}
    assert loss["not_finite"] == {"points": 1, "first_step": 999}
    assert norm["cells"].count("inf") == 1 and norm["not_finite"]["first_step"] == 700


def test_layers_are_told_by_their_first_and_last_look():
    made = Made("a", "b")
    made.sample("grad", 0, "a", absmax=0.5)
    made.sample("grad", 1, "b", absmax=0.25)
    made.sample("grad", 7, "a", absmax=4.0, nan=1)
    made.step(8)
    assert diagnose(made.run()).run["layers"] == [
        {"brick": "a", "first": 0.5, "last": "nan", "first_step": 0, "last_step": 7},
        {"brick": "b", "first": 0.25, "last": 0.25, "first_step": 1, "last_step": 1},
    ]


def test_hundreds_of_layers_are_some_and_the_largest():
    made = Made(*(f"blocks.{i}" for i in range(200)))
    for i in range(200):
        made.sample("grad", 0, f"blocks.{i}", absmax=100.0 if i == 137 else 1.0)
    made.step(1)
    layers = diagnose(made.run()).run["layers"]
    assert len(layers) <= 48 and layers[0]["brick"] == "blocks.0" and layers[-1]["brick"] == "blocks.199"
    assert "blocks.137" in [row["brick"] for row in layers]


def span(name: str, phase: str, start: int, end: int, identity: int, parent: int = 0, **fields) -> Span:
    kind = Kind.STEP if phase == "step" else Kind.BLOCK
    return Span(Brick(kind, name, "Net"), 3, START + start, START + end, phase, identity, parent, **fields)


def test_a_brick_costs_what_is_its_own():
    run = Run.from_records([
        span("step", "step", 0, 10_000_000, 1),
        span("net", "forward", 0, 6_000_000, 2, 1),
        span("net.a", "forward", 1_000_000, 5_000_000, 3, 2),
        span("net", "backward", 6_000_000, 9_000_000, 4, 1),
    ])  # fmt: skip
    told = time_facts(run)
    assert [(row["brick"], row["phase"], row["ms_a_step"], row["share"]) for row in told["bricks"]] == [
        ("net.a", "forward", 4.0, 0.4), ("net", "backward", 3.0, 0.3), ("net", "forward", 2.0, 0.2),
    ]  # fmt: skip
    assert told["bricks"][0]["on"] == "host" and "kernels" not in told
    assert told["step_budget"]["host"] == {"forward": 0.6, "backward": 0.3, "idle": 0.1}


def test_where_the_device_was_timed_its_time_decides():
    run = Run.from_records([
        span("step", "step", 0, 10_000_000, 1, device_ns=8_000_000),
        span("slow to ask for", "forward", 0, 6_000_000, 2, 1, device_ns=1_000_000),
        span("slow", "forward", 6_000_000, 7_000_000, 3, 1, device_ns=4_000_000),
    ])  # fmt: skip
    first, second = time_facts(run)["bricks"]
    assert (first["brick"], first["on"], first["ms_a_step"], first["share"]) == ("slow", "device", 4.0, 0.5)
    assert second["ms_a_step"] == 1.0


def test_what_was_timed_on_the_device_stands_for_all_and_the_order_is_that_of_the_numbers():
    """One of two calls of ``half`` has a time on the device; ``seldom`` runs in one step of two."""
    half = [span("half", "forward", at, at + 1000, 4 + at // 1000, 1, **told)
            for at, told in ((0, {"device_ns": 3_000_000}), (1000, {}))]  # fmt: skip
    often = [replace(span("often", "forward", 3000, 4000, 8 + step, 1, device_ns=4_000_000), step=step)
             for step in (3, 4)]  # fmt: skip
    seldom = span("seldom", "forward", 5000, 6000, 20, 1, device_ns=5_000_000)
    whole = span("step", "step", 0, 10_000_000, 1, device_ns=20_000_000)
    told = time_facts(Run.from_records([whole, replace(whole, step=4, id=2), *half, *often, seldom]))["bricks"]
    assert [(row["brick"], row["ms_a_step"]) for row in told] == [("half", 6.0), ("seldom", 5.0), ("often", 4.0)]


def test_a_run_that_goes_on_is_not_asked_for_its_course():
    from brickprof.diagnosis import Doctor

    doctor = Doctor()
    for record in broken().records:
        doctor.feed(record)
    assert "curves" not in doctor.diagnosis().run


# -- reading a table piece by piece


def rows(first: int, count: int, histogram=None) -> list[tuple]:
    return [(START + i, i, 0, 1, 1, 1, 64, None if i % 3 else 0, 0, i / 7, 2.0, 0.0, None, None, None, None, histogram)
            for i in range(first, first + count)]  # fmt: skip


@pytest.mark.parametrize("piece", [1, 1000, 5000, 2**24])
def test_a_table_is_the_same_however_it_is_read(tmp_path, piece):
    file = tmp_path / "samples.arrow"
    frames = [batch_frame("samples", rows(100 * n, 100), n + 1).data for n in range(8)]
    if piece == 1:
        frames = frames[:1]
    file.write_bytes(schema_frame("samples") + b"".join(frames))
    table, damage = read_table(file, schema("samples"), piece)
    assert not damage and table.num_rows == 100 * len(frames)
    assert table["step"].to_pylist() == list(range(table.num_rows))
    assert table["nan"].to_pylist() == [None if i % 3 else 0 for i in range(table.num_rows)]
    assert table["histogram"].to_pylist() == [None] * table.num_rows
    table.validate(full=True)


@pytest.mark.parametrize("piece", [700, 9000, 2**24])
def test_damage_is_counted_alike_however_it_is_read(tmp_path, piece):
    file = tmp_path / "samples.arrow"
    frames = [bytearray(batch_frame("samples", rows(50 * n, 50, (1,) * 24), n + 1).data) for n in range(6)]
    frames[2][len(frames[2]) // 2] ^= 0xFF
    data = schema_frame("samples") + b"".join(frames)
    file.write_bytes(data[:-10])
    table, damage = read_table(file, schema("samples"), piece)
    assert table["step"].to_pylist() == [*range(100), *range(150, 250)]
    assert (damage.bytes_lost, damage.records_lost) == (len(frames[2]) + len(frames[5]) - 10, 100)


def test_an_empty_table_has_its_columns(tmp_path):
    table, damage = read_table(tmp_path / "none.arrow", schema("spans"))
    assert table.num_rows == 0 and table.schema.equals(schema("spans")) and not damage
    assert empty(schema("spans")).equals(table)


@pytest.mark.parametrize("values", [[], [3], [3, 3, 5], [5, 3, 3, 9], [1, 2, 2, 1]])
def test_distinct_is_unique(values):
    given = np.asarray(values, np.int64)
    for found, wanted in zip(columns.distinct(given), np.unique(given, return_inverse=True), strict=True):
        assert found.tolist() == wanted.tolist()


def test_columns_are_read_past_what_is_missing_and_past_slices():
    import pyarrow as pa

    wholes = pa.chunked_array([pa.array([1, None, 3, 2**60]), pa.array([None, 6])])
    assert columns.whole(wholes, -1).tolist() == [1, -1, 3, 2**60, -1, 6]
    assert columns.whole(wholes.slice(2, 3), -1).tolist() == [3, 2**60, -1]
    assert columns.present(wholes.slice(1)).tolist() == [False, True, True, False, True]
    floats = pa.chunked_array([pa.array([0.5, None])])
    assert np.array_equal(columns.numbers(floats), [0.5, NAN], equal_nan=True)
    assert columns.whole(pa.chunked_array([], pa.int64())).tolist() == []
    table = pa.table({"a": wholes})
    assert columns.rows(table, np.asarray([True] + [False] * 4 + [True]))["a"].to_pylist() == [1, 6]


# -- a run that goes on


def begun(made: Made) -> Made:
    made.event("start", 0, rank=-1, pid=4242)
    made.event("run", 0, run_id="k3f9", pid=4243)
    return made


def healthy() -> Made:
    made = Made()
    made.owned()
    for step in range(12):
        made.step(step, loss=3.0 - step / 10)
    return made


def test_a_run_that_goes_on_is_told_so_far(tmp_path, capsys):
    folder = begun(healthy()).run().save(tmp_path / "run")
    assert main(["show", str(folder)]) == 0
    assert "12 steps so far" in capsys.readouterr().out
    for name in ("markdown", "github", "junit"):
        assert main(["report", str(folder), "-r", name]) == 0
        assert "12 steps so far" in capsys.readouterr().out
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "12 steps so far" in (tmp_path / "page.html").read_text("utf-8")


def test_a_broken_run_that_goes_on_has_no_end_yet(tmp_path, capsys):
    assert main(["show", str(begun(broken()).run().save(tmp_path / "run"))]) == 0
    assert "(it goes on, or was killed: no end is recorded)" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "rank"), [("exited", -1), ("exit", 0)])
def test_a_run_that_ended_is_not_told_so_far(kind, rank):
    made = begun(healthy())
    made.event(kind, 12, rank=rank, code=0, text="the script exited 0", steps=12, **{"class": "ok"})
    told = diagnose(made.run())
    assert "ended" not in told.run and "so far" not in str(told)
