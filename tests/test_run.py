"""A Run: one face for a folder and for records, with names, times and evidence."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest

from brickprof.bricks import Brick, Coordinates, Kind
from brickprof.errors import NotARun, OutputError, UsageError
from brickprof.journal import EVENTS, SAMPLES, Journal, ProcessLog, rank_folder, write_meta
from brickprof.journal.frames import batch_frame, schema_frame
from brickprof.records import HISTOGRAM_BINS, Event, RunMeta, Sample, Span
from brickprof.run import Run

ROOT = Path(__file__).parents[1]
HISTOGRAM = tuple(range(HISTOGRAM_BINS))
START = 1_763_170_000_000_000_000


def write_rank(folder, rank, *, model="GPT", steps=5):
    journal = Journal(rank_folder(folder, rank))
    journal.event("run", 0, {"pid": 40 + rank, "host": "h", "coordinates": {"node": 1, "local_rank": rank}})
    block = journal.brick(Brick(Kind.BLOCK, "blocks.0.mlp", model))
    step_brick = journal.brick(Brick(Kind.STEP, "step"))
    fields = {"model": model, "brick": block, "shape": [2, 3], "dtype": "float32", "trainable": True}
    tensors = [journal.tensor(name, fields) for name in ("embed.weight", "blocks.0.mlp.weight")]
    for step in range(steps):
        stamp = START + step * 10**9 + rank
        loss = math.nan if step == 4 else 1 / (step + 1)
        journal.event("loss", step, {"value": loss, "micro": 0, "scale": 1.0, "site": "t.py:3", "training": True})
        journal.event("optimizer", step, {"optimizer": 0, "lr": [0.1, 0.01], "count": step + 1})
        statistics = (3.5, 2.0, 0.0, 0.0, None, 2**62 + step, 1.0, HISTOGRAM if step else None)
        for role in (1, 2):
            for tensor in tensors:
                journal.sample((stamp, step, 0, block, tensor, role, 6, None, 0, *statistics))
        journal.sample((stamp, step, 0, block, 0, 4, 6, 0, 0, *[None] * 8))
        journal.span((10 * step + 1, 0, step_brick, 1, step, 0, stamp, stamp + 900, None, None, None))
        journal.span((10 * step + 2, 10 * step + 1, block, 2, step, 1, stamp + 5, stamp + 50, 30, 7, '{"a": 1}'))
    journal.event("exit", steps, {"steps": steps, "costs": {"loss": 10**6, "grad": 10**7}, "overhead": 0.004})
    journal.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "train-20261115-0121-k3f9"
    write_meta(folder, RunMeta("k3f9", "train.py", ("--lr", "3"), START))
    ProcessLog(folder).event("start", 0, {"argv": ["train.py"]})
    for rank in (0, 1):
        write_rank(folder, rank)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return Run.open(folder)


# -- tables


def test_samples_carry_names_and_times(run):
    samples = run.samples
    assert len(samples) == 2 * 5 * 5
    first = samples.iloc[0]
    assert (first["role"], first["tensor"], first["brick"], first["model"]) == (
        "grad",
        "embed.weight",
        "blocks.0.mlp",
        "GPT",
    )
    assert first["time"] == pd.Timestamp(START, unit="ns", tz="UTC")
    assert first["time_ns"] == START
    assert samples["checksum"].dropna().iloc[0] == 2**62  # a float would have rounded it
    assert samples["nan"].isna().sum() == 40
    assert samples["histogram"].isna().sum() == 2 * (4 + 5)
    assert list(samples[samples["step"] == 1]["histogram"].iloc[0]) == list(HISTOGRAM)
    outputs = samples[samples["role"] == "activation"]
    assert set(outputs["tensor"]) == {"blocks.0.mlp"}
    assert set(samples["rank"]) == {0, 1}


def test_spans_carry_names_and_times(run):
    spans = run.spans
    assert len(spans) == 20
    inner = spans[spans["id"] == 12].iloc[0]
    assert (inner["phase"], inner["brick"], inner["kind"], inner["parent"]) == (
        "forward",
        "blocks.0.mlp",
        "block",
        11,
    )
    assert (inner["host_ns"], inner["device_ns"], inner["stream"], inner["micro"]) == (45, 30, 7, 1)
    assert spans["device_ns"].isna().sum() == 10
    assert str(spans["time"].dt.tz) == "UTC"


def test_events_are_ordered_by_time_and_include_the_launch(run):
    events = run.events
    assert events["time_ns"].is_monotonic_increasing
    launch = events[events["rank"] == -1]
    assert launch["kind"].tolist() == ["start"]
    assert launch["fields"].iloc[0] == {"argv": ["train.py"]}


def test_loss_lr_grads_bricks_tensors_ranks(run):
    assert list(run.loss.columns) == ["step", "micro", "value", "scale", "site", "training", "rank", "time"]
    assert run.loss[run.loss["rank"] == 0]["value"].tolist()[:2] == [1.0, 0.5]
    assert run.loss["value"].isna().sum() == 2
    assert list(run.lr.columns)[:5] == ["step", "optimizer", "group", "value", "rank"]
    assert run.lr[(run.lr["rank"] == 1) & (run.lr["group"] == 1)]["value"].tolist() == [0.01] * 5
    assert set(run.grads["role"]) == {"grad"}
    assert len(run.grads) == 20
    assert run.bricks[run.bricks["rank"] == 0]["name"].tolist() == ["blocks.0.mlp", "step"]
    assert run.tensors["shape"].iloc[0] == [2, 3]
    assert run.tensors["brick"].iloc[0] == "blocks.0.mlp"
    assert run.ranks[["rank", "pid", "node", "local_rank", "steps"]].to_numpy().tolist() == [
        [0, 40, 1, 0, 5],
        [1, 41, 1, 1, 5],
    ]


def test_a_run_sums_itself_up(run):
    assert run.steps == 5
    assert run.meta.argv == ("--lr", "3")
    assert run.overhead == pytest.approx(0.004)
    assert list(run.costs) == ["grad", "loss"]
    assert run.costs["grad"] == pytest.approx(10 * run.costs["loss"])
    assert run.damage == []
    assert repr(run) == "<Run k3f9: 5 steps, 2 ranks>"


def test_two_models_are_told_apart(tmp_path):
    journal = Journal(rank_folder(tmp_path, 0))
    for model in ("G", "D"):
        brick = journal.brick(Brick(Kind.BLOCK, "0", model))
        tensor = journal.tensor("0.weight", {"model": model, "brick": brick})
        journal.sample((1, 0, 0, brick, tensor, 1, 6, *[None] * 10))
    journal.close()
    run = Run.open(tmp_path)
    assert run.samples["brick"].tolist() == ["G.0", "D.0"]
    assert run.samples["tensor"].tolist() == ["G.0.weight", "D.0.weight"]
    (found,) = run.find("grad:0:D.0.weight@0")
    assert found.brick.model == "D"


def test_an_empty_run_has_empty_tables(tmp_path):
    write_meta(tmp_path / "run", RunMeta("empty"))
    for run in (Run.open(tmp_path / "run"), Run.from_records([])):
        for table in (
            run.spans,
            run.samples,
            run.events,
            run.loss,
            run.lr,
            run.grads,
            run.bricks,
            run.tensors,
            run.ranks,
        ):
            assert isinstance(table, pd.DataFrame)
            assert len(table) == 0
            assert len(table.columns) > 4
        assert run.steps == 0
        assert run.overhead is None
        assert run.costs == {}
        assert list(run.records()) == []
        assert run.find("g:3") == []


def test_hostile_names_do_not_break_a_table(tmp_path):
    name = "a\ud800\x1b[31m\u202e../../etc"
    journal = Journal(rank_folder(tmp_path, 0))
    brick = journal.brick(Brick(Kind.BLOCK, name, name))
    tensor = journal.tensor(name, {"model": name, "brick": brick, "dtype": name})
    journal.sample((1, 0, 0, brick, tensor, 1, 6, *[None] * 10))
    journal.span((1, 0, brick, 2, 0, 0, 1, 2, None, None, None))
    journal.event(name, 0, {"site": name})
    journal.event("loss", 0, {"value": "not a number", "site": name, "micro": None})
    journal.close()
    run = Run.open(tmp_path)
    for table in (run.samples, run.spans, run.bricks, run.tensors, run.events, run.loss):
        assert len(table) > 0
    assert math.isnan(run.loss["value"].iloc[0])
    run.to_parquet(tmp_path / "parquet")
    (sample,) = [record for record in run.records() if isinstance(record, Sample)]
    assert run.find(sample.id) == [sample]


# -- records


def test_records_come_in_order_of_time(run):
    records = list(run.records())
    times = [record.start_ns if isinstance(record, Span) else record.time_ns for record in records]
    assert times == sorted(times)
    assert len(records) == len(run.events) + len(run.samples) + len(run.spans)
    assert {record.rank for record in run.records(rank=1)} == {1}
    span = next(record for record in records if isinstance(record, Span) and record.id == 12 and record.rank == 1)
    assert span.brick == Brick(Kind.BLOCK, "blocks.0.mlp", "GPT")
    assert span.coordinates == Coordinates(node=1, local_rank=1, microbatch=1)
    assert (span.attributes, span.device_ns) == ({"a": 1}, 30)
    sample = next(record for record in records if isinstance(record, Sample) and record.step == 1)
    assert (sample.histogram, sample.nan, sample.inf, sample.checksum) == (HISTOGRAM, None, 0, 2**62 + 1)


MADE = [
    Event("loss", 0, {"value": math.inf}, seq=0, time_ns=START, rank=0),
    Event("loss", 1, {"value": 2.0}, seq=1, time_ns=START + 9, rank=1),
    Sample(Brick(Kind.BLOCK, "a", "M"), "a.w", "grad", 0, numel=3, l2=1.5, time_ns=START + 1, histogram=HISTOGRAM),
    Sample(Brick(Kind.BLOCK, "a", "M"), "a.w", "weight", 1, checksum=-5, time_ns=START + 8, rank=1),
    Span(Brick(Kind.STEP, "step"), 0, START, START + 5, "step", id=4, attributes={"x": [1]}),
    Event("exited", 0, {"code": 1}, seq=0, time_ns=START + 20, rank=-1),
]


def key(record):
    return (type(record).__name__, record.rank, record.step, repr(record))


def test_records_in_hand_are_a_run_too():
    run = Run.from_records(MADE, RunMeta("made"))
    assert sorted(run.records(), key=key) == sorted(MADE, key=key)
    assert run.loss["value"].tolist() == [math.inf, 2.0]
    assert run.grads["tensor"].tolist() == ["a.w"]
    assert run.spans["brick"].tolist() == ["step"]
    assert run.bricks["path"].tolist() == ["a", "step", "a"]
    assert run.events["kind"].tolist() == ["loss", "loss", "exited"]
    assert run.find("w:1") == [MADE[3]]


def test_saving_and_opening_gives_the_same_records(tmp_path, run):
    for i, original in enumerate((Run.from_records(MADE, RunMeta("made", argv=("x",))), run)):
        again = Run.open(original.save(tmp_path / str(i)))
        assert again.meta == original.meta
        assert again.damage == []
        assert sorted(map(key, again.records())) == sorted(map(key, original.records()))
        pd.testing.assert_frame_equal(again.loss, original.loss)
        assert again.samples["tensor"].tolist() == original.samples["tensor"].tolist()
    with pytest.raises(OutputError, match="not empty"):
        run.save(tmp_path / "0")


# -- evidence


def test_every_record_id_leads_back_to_its_record(run):
    for record in run.records():
        if not isinstance(record, Span):
            assert [found.id for found in run.find(record.id)] == [record.id]
    (span,) = run.find("span:12@1")
    assert (span.id, span.rank) == (12, 1)
    (event,) = run.find("event:0@-1")
    assert event.kind == "start"


@pytest.mark.parametrize(
    ("identity", "count", "roles"),
    [
        ("g:2", 4, {"grad"}),
        ("w:2:embed", 2, {"weight"}),
        ("w:1-3:embed@1", 3, {"weight"}),
        ("weight:2:embed.weight@0", 1, {"weight"}),
        ("a:0", 2, {"activation"}),
        ("loss:3", 2, set()),
        ("loss:3@1", 1, set()),
        ("optimizer:0-4@0", 5, set()),
        ("g:99", 0, set()),
        ("event:9999@0", 0, set()),
        ("event:0@7", 0, set()),
        ("event:0", 3, set()),
        ("g:2:no such tensor", 0, set()),
    ],
)
def test_short_ids_find_what_they_mean(run, identity, count, roles):
    found = run.find(identity)
    assert len(found) == count
    assert {record.role for record in found if isinstance(record, Sample)} == roles


@pytest.mark.parametrize("identity", ["", "nonsense", "g", "g:", "g:x", "event:@0", "event:x@0", "\x1b[31m"])
def test_what_is_no_id_says_what_is(run, identity):
    with pytest.raises(UsageError, match="look like") as caught:
        run.find(identity)
    assert "\x1b" not in str(caught.value)


# -- Parquet


def test_parquet_is_read_by_others(run, tmp_path):
    run.to_parquet(tmp_path)
    samples = ds.dataset(tmp_path / "samples", partitioning="hive").to_table()
    assert samples.num_rows == 50
    assert set(samples["rank"].to_pylist()) == {0, 1}
    assert set(samples["tensor"].to_pylist()) == {"embed.weight", "blocks.0.mlp.weight", "blocks.0.mlp"}
    events = ds.dataset(tmp_path / "events", partitioning="hive").to_table().to_pandas()
    assert set(events["rank"]) == {-1, 0, 1}
    nan = events[(events["kind"] == "loss") & (events["step"] == 4)]["fields"].iloc[0]
    assert json.loads(nan)["value"] == {"$float": "nan"}
    assert len(pd.read_parquet(tmp_path / "spans")) == 20


# -- where the run is


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train-20261115-0121-k3f9", "train-20261115-0122-aaaa", "other-20261115-0122-bbbb"):
        write_meta(tmp_path / "brickprof-runs" / name, RunMeta(name[-4:]))
    return tmp_path / "brickprof-runs"


@pytest.mark.parametrize(
    "typed",
    [
        "k3f9",
        "20261115-0121-k3f9",
        "train-20261115-0121-k3f9",
        "brickprof-runs/k3f9",
        "brickprof-runs/train-20261115-0121-k3f9",
        "brickprof-runs/train-20261115-0121-k3f9/meta.json",
    ],
)
def test_a_run_is_found_by_what_people_type(home, typed):
    assert Run.open(typed).meta.run_id == "k3f9"


def test_a_folder_with_one_run_is_that_run(home, folder):
    assert Run.open(folder.parent).meta.run_id == "k3f9"
    assert Run.open(rank_folder(folder, 1) / EVENTS).meta.run_id == "k3f9"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("brickprof-runs", ["3 runs", "train-20261115-0121-k3f9"]),
        ("k3f8", ["no run k3f8", "Did you mean train-20261115-0121-k3f9"]),
        ("trian-20261115-0122-aaaa", ["Did you mean train-20261115-0122-aaaa"]),
        ("zzzzzzzz", ["no run", "bbbb"]),
        ("nowhere/k3f9", ["no run", "nowhere holds no runs"]),
        (".", ["holds no run"]),
        ("photo.png", ["is a file, not a run"]),
        ("evil\x1b]0;x\x07", ["no run"]),
        ("x" * 5000, ["cannot be opened"]),
        ("a\0b", []),
    ],
)
def test_what_is_no_run_gets_help(home, typed, words):
    (home.parent / "photo.png").write_bytes(b"\x89PNG")
    with pytest.raises(NotARun) as caught:
        Run.open(typed)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\x1b" not in message


def test_opening_needs_no_heavy_import():
    code = (
        "import sys, brickprof.run, brickprof.journal\n"
        "print(sorted({'pandas', 'pyarrow', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_a_million_samples_are_read_whole(tmp_path):
    journal = Journal(rank_folder(tmp_path, 0))
    brick = journal.brick(Brick(Kind.BLOCK, "b", "M"))
    tensors = [journal.tensor(f"t{i}", {"model": "M", "brick": brick}) for i in range(100)]
    journal.close()
    statistics = (6, 0, 0, 3.5, 2.0, 0.0, 0.0, None, 5, 1.0, HISTOGRAM)
    frame = batch_frame("samples", [(START, 3, 0, brick, tensor, 1, *statistics) for tensor in tensors], 1)
    (journal.folder / SAMPLES).write_bytes(schema_frame("samples") + 10_000 * frame.data)
    assert len(Run.open(tmp_path).samples) == 10**6


def test_a_restarted_rank_is_read_from_its_last_attempt(tmp_path: Path) -> None:
    for name, value in (("rank00000", 1.0), ("rank00000-r1", 2.0), ("rank00000-r10", 3.0), ("rank00001", 4.0)):
        journal = Journal(tmp_path / name)
        journal.event("loss", 0, {"value": value})
        journal.close()
    run = Run.open(tmp_path)
    assert run.loss.sort_values("rank")["value"].tolist() == [3.0, 4.0]
