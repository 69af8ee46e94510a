"""MLflow's stores, in files and in SQLite, as MLflow writes them."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from brickprof import logs
from brickprof.errors import UnreadableInput
from brickprof.logs import mlflow, mlflow_db

BEGIN = 1_700_000_000_000


def make_run(folder: Path, metrics: dict[str, str], *, status: int = 3, start: int = BEGIN) -> Path:
    for name, text in metrics.items():
        path = folder / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "params").mkdir()
    (folder / "params" / "lr").write_text("0.001")
    (folder / "params" / "epochs").write_text("3")
    (folder / "params" / "model").write_text("tiny")
    (folder / "meta.yaml").write_text(f"artifact_uri: x\nrun_name: 'a b'\nstart_time: {start}\nstatus: {status}\n")
    return folder


def lines(values: list[float], *, late: int = 0, every: int = 10) -> str:
    return "".join(f"{BEGIN + 100 * i + late} {value} {i * every}\n" for i, value in enumerate(values))


def test_a_run_of_a_local_store(tmp_path):
    metrics = {"loss": lines([2.5, 2.0, math.nan]), "val/acc": lines([0.5, 0.75], late=3), "final": f"{BEGIN} 7.5 0\n"}
    run = make_run(tmp_path / "mlruns" / "0" / "abc", metrics)
    assert mlflow.READER.folder(run) and not mlflow.READER.folder(tmp_path)
    log = mlflow.READER.read_folder(run)
    assert log.format == "mlflow" and not log.damage and not log.attempts
    assert log.series["loss"].steps.tolist() == [0, 10, 20] and math.isnan(log.series["loss"].values[2])
    assert log.series["val/acc"].values.tolist() == [0.5, 0.75]
    facts = {fact.kind: fact.fields for fact in log.facts}
    assert facts["setting"]["values"] == {"lr": 0.001, "epochs": 3, "model": "tiny"}
    assert "finished" in facts


def test_runs_are_found_in_a_store_the_oldest_first(tmp_path):
    store = tmp_path / "mlruns"
    make_run(store / "1" / "bbb", {"loss": lines([1.0])}, start=BEGIN)
    make_run(store / "1" / "aaa", {"loss": lines([1.0])}, start=BEGIN + 5)
    make_run(store / "2" / "ccc", {"loss": lines([1.0])}, start=BEGIN + 3)
    (store / ".trash").mkdir()
    assert [run.name for run in mlflow.READER.runs(store)] == ["bbb", "ccc", "aaa"]
    assert [run.name for run in mlflow.READER.runs(store / "1")] == ["bbb", "aaa"]
    assert [run.name for run in mlflow.READER.runs(store / "1" / "aaa")] == ["aaa"]
    assert mlflow.READER.runs(tmp_path / "nowhere") == []


def test_metrics_of_one_step_are_one_row_and_a_resume_is_one(tmp_path):
    def some(late: int) -> str:
        steps = [*range(10), *range(5, 12)]
        return "".join(f"{BEGIN + 100 * i + late} 1.5 {step}\n" for i, step in enumerate(steps))

    log = mlflow.READER.read_folder(make_run(tmp_path / "run", {"loss": some(0), "lr": some(1), "grad": some(2)}))
    assert log.rows == 17 and len(log.attempts) == 1 and log.attempts[0].goes_on_at == 5


def test_what_the_machine_measured_has_steps_of_its_own(tmp_path):
    metrics = {"loss": lines([2.0] * 5, every=100), "system/cpu_utilization_percentage": lines([50.0] * 5, every=1)}
    log = mlflow.READER.read_folder(make_run(tmp_path / "run", metrics))
    assert log.series["loss"].steps.tolist() == [0, 100, 200, 300, 400] and not log.attempts
    assert log.series["system/cpu_utilization_percentage"].steps.tolist() == [0, 1, 2, 3, 4]


def test_a_metric_that_was_logged_without_steps_is_counted(tmp_path):
    log = mlflow.READER.read_folder(make_run(tmp_path / "run", {"loss": lines([3.0, 2.0, 1.0], every=0)}))
    assert log.series["loss"].values.tolist() == [3.0, 2.0, 1.0] and len(set(log.series["loss"].steps.tolist())) == 3


def test_how_a_run_ended(tmp_path):
    killed = mlflow.READER.read_folder(make_run(tmp_path / "a", {"loss": lines([1.0])}, status=5))
    failed = mlflow.READER.read_folder(make_run(tmp_path / "b", {"loss": lines([1.0])}, status=4))
    going = mlflow.READER.read_folder(make_run(tmp_path / "c", {"loss": lines([1.0])}, status=1))
    assert [fact.kind for fact in killed.facts][-1] == "ended" and [fact.kind for fact in failed.facts][-1] == "note"
    assert {fact.kind for fact in going.facts} == {"setting"}


def test_damage_in_a_store_is_borne(tmp_path):
    metrics = {"loss": lines([1.0, 2.0]) + "garbage\n17000", "bad": "\0\xff\n", "empty": ""}
    run = make_run(tmp_path / "run", metrics)
    os.mkfifo(run / "metrics" / "pipe")
    (run / "metrics" / "loop").symlink_to(run / "metrics")
    (run / "metrics" / "gone").symlink_to(tmp_path / "nowhere")
    log = mlflow.READER.read_folder(run)
    assert log.series["loss"].values.tolist() == [1.0, 2.0] and set(log.series) == {"loss"}
    with pytest.raises(UnreadableInput, match="no run of MLflow"):
        mlflow.READER.read_folder(tmp_path)


def test_a_metric_alone(tmp_path):
    path = tmp_path / "train_loss"
    path.write_text(lines([2.0, 1.5, 1.0]))
    log = logs.read(path)
    assert log.format == "mlflow" and log.series["train_loss"].steps.tolist() == [0, 10, 20]


def test_a_metric_cut_at_every_byte(tmp_path):
    text = lines([2.125, 1.625, 1.125])
    run = make_run(tmp_path / "run", {"loss": text})
    for length in range(len(text)):
        (run / "metrics" / "loss").write_text(text[:length])
        log = mlflow.READER.read_folder(run)
        found = log.series["loss"].values.tolist() if "loss" in log.series else []
        whole = text[:length].count("\n")
        assert found[:whole] == [2.125, 1.625, 1.125][:whole]
        assert len(found) == whole or (whole == 0 and len(found) == 1), "only a single line may lack its end"


def make_base(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INT, experiment_id INT)")
        base.execute(
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INT, run_uuid TEXT, step INT, is_nan BOOLEAN)"
        )
        base.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        for place, run in enumerate(("old", "new")):
            base.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, 0)", (run, f"{run} run", BEGIN + place))
            base.execute("INSERT INTO params VALUES ('lr', '0.1', ?)", (run,))
            for step in range(4):
                value, nan = (0.0, 1) if step == 2 else (1.7976931348623157e308, 0) if step == 3 else (place + 0.5, 0)
                base.execute(
                    "INSERT INTO metrics VALUES ('loss', ?, ?, ?, ?, ?)", (value, BEGIN + step, run, step, nan)
                )
    return path


def test_a_store_in_sqlite(tmp_path):
    path = make_base(tmp_path / "mlflow.db")
    before = path.read_bytes()
    log = logs.read(path)
    assert log.format == "mlflow-db" and log.series["loss"].values[:2].tolist() == [1.5, 1.5]
    assert math.isnan(log.series["loss"].values[2]) and log.series["loss"].values[3] == math.inf
    assert any(fact.kind == "note" and "2 runs" in fact.fields["text"] for fact in log.facts)
    assert path.read_bytes() == before and sorted(each.name for each in tmp_path.iterdir()) == ["mlflow.db"]


def test_a_database_of_others_or_a_broken_one_is_one_clear_error(tmp_path):
    path = make_base(tmp_path / "mlflow.db")
    data = path.read_bytes()
    path.write_bytes(data[:5000])
    with pytest.raises(UnreadableInput, match="no store of MLflow"):
        logs.read(path, mlflow_db.READER)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as base, base:
        base.execute("CREATE TABLE x (a INT)")
    with pytest.raises(UnreadableInput):
        logs.read(other)
