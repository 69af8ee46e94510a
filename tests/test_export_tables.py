"""Numbers for other tools: TensorBoard's event files, Weights & Biases' tables, CSV; read back by them and by us."""

from __future__ import annotations

import csv
import math
import sys

import pandas as pd
import pytest
from export_cases import HOSTILE, META, bare, hostile, numbers, samples, two_ranks, us
from telemetry_cases import run_event

from brickprof import logs
from brickprof.errors import ConfigurationError, NothingToJudge
from brickprof.records import Event, RunMeta
from brickprof.run import Run
from brickprof.telemetry.curves import by_step
from brickprof.telemetry.exports import csv as tables
from brickprof.telemetry.exports import tensorboard, wandb_csv

LOG = """step,train_loss,lr,val_loss
0,3.5,0.1,
1,3.0,0.1,3.2
2,nan,0.1,
3,2.0,0.1,2.5
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(LOG)
    return Run.from_log(path)


# -- the numbers themselves


def test_micro_batches_are_a_mean_with_bounds():
    curves = by_step(two_ranks().parts[1])
    loss = curves["train/loss"]
    assert loss.steps.tolist() == [0, 1, 2, 3, 4]
    assert loss.means.tolist()[:3] == [3.0, 2.0, 1.0] and math.isnan(loss.means[3])
    assert (loss.lows.tolist()[0], loss.highs.tolist()[0]) == (2.0, 4.0)
    assert curves["time/step_seconds"].means.tolist()[:2] == pytest.approx([1e-3, 1e-3])
    assert curves["train/lr/0.1"].means.tolist() == [0.01] * 3


def test_what_people_look_at_comes_first():
    assert list(by_step(two_ranks().parts[1])) == [
        "train/loss", "train/lr", "train/lr/0.1", "train/grad_norm", "time/step_seconds", "memory/rss",
    ]  # fmt: skip


def test_gradients_that_are_not_finite_are_no_gap():
    broken = [{"tensor": 1, "nan": 3, "inf": 0}]
    told = [Event("grad", 0, {"l2": None, "point": "step", "nonfinite": broken}, 1, us(1))]
    assert math.isnan(by_step(Run.from_records(told).parts[0])["train/grad_norm"].means[0])


def test_a_whole_number_that_no_float_holds_is_infinite():
    told = [Event("loss", 0, {"value": 10**400}, 1, us(1)), Event("loss", 1, {"value": -(10**400)}, 2, us(2))]
    assert by_step(Run.from_records(told).parts[0])["train/loss"].means.tolist() == [math.inf, -math.inf]


# -- TensorBoard


def accumulated(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    found.Reload()
    return found


def test_tensorboard_reads_numbers_histograms_and_findings(tmp_path):
    folder = tensorboard.write(two_ranks(), tmp_path / "board")
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["rank00000", "rank00001"]
    first, top = accumulated(folder / "rank00000"), accumulated(folder)
    loss = first.Scalars("train/loss")
    assert [(point.step, point.value) for point in loss][:3] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert math.isnan(loss[3].value)
    assert loss[0].wall_time == pytest.approx(us(210) / 1e9)
    assert set(first.Tags()["scalars"]) >= {"train/lr", "train/grad_norm", "memory/rss", "time/step_seconds"}
    assert first.Tags()["histograms"] == ["grad_log2_abs/blocks.0.weight", "weight_log2_abs/blocks.0.weight"]
    shape = first.Histograms("grad_log2_abs/blocks.0.weight")[1].histogram_value
    assert (shape.num, shape.min, shape.max) == (1000, -10.0, 0.0)
    assert shape.sum == 600 * -7.5 + 400 * -2.5
    assert dict(zip(shape.bucket_limit, shape.bucket, strict=True))[-5.0] == 600
    assert [point.value for point in top.Scalars("gpu0/utilisation")] == [0.75]
    texts = [tag for tag in top.Tags()["tensors"] if tag.startswith("findings/")]
    assert texts and all(tag.endswith("/text_summary") for tag in texts)
    said = top.Tensors(texts[0])[0].tensor_proto.string_val[0].decode()
    assert "ValueError" in said or "nan" in said


def test_our_own_reader_reads_event_files_back(tmp_path):
    folder = tensorboard.write(Run.from_records([run_event(), *numbers(4), *samples(2)], META), tmp_path)
    (file,) = (folder / "rank00000").iterdir()
    log = logs.read(file)
    assert log.format == "tensorboard" and log.damage == []
    known = {name.rpartition("rank00000/")[2]: series for name, series in log.series.items()}
    assert known["train/loss"].values.tolist() == [3.0, 2.0, 1.0, 0.0]
    roles = {name: series.role for name, series in known.items()}
    assert (roles["train/loss"], roles["train/lr"], roles["train/grad_norm"]) == ("loss", "lr", "grad_norm")
    assert (roles["time/step_seconds"], roles["memory/rss"]) == ("step_seconds", "memory")
    assert {fact.fields["tag"].rpartition("rank00000/")[2] for fact in log.facts if fact.kind == "histogram"} == {
        "grad_log2_abs/blocks.0.weight", "weight_log2_abs/blocks.0.weight",
    }  # fmt: skip


def test_a_second_export_takes_the_place_of_the_first(tmp_path):
    run = Run.from_records([run_event(), *numbers(3)], META)
    for _ in range(2):
        tensorboard.write(run, tmp_path)
    assert len(accumulated(tmp_path / "rank00000").Scalars("train/loss")) == 3


def test_a_log_becomes_event_files(log, tmp_path):
    folder = tensorboard.write(log, tmp_path / "board")
    found = accumulated(folder / "rank00000")
    assert [point.value for point in found.Scalars("val_loss")] == pytest.approx([3.2, 2.5])
    assert [point.step for point in found.Scalars("train_loss")] == [0, 1, 2, 3]


def test_hostile_findings_are_neither_markdown_nor_html(tmp_path):
    folder = tensorboard.write(hostile(), tmp_path)
    top = accumulated(folder)
    texts = [top.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in top.Tags()["tensors"]]
    assert texts
    whole = "\n".join(texts)
    assert "<script>" not in whole and "\x1b" not in whole and "\u202e" not in whole
    first = accumulated(folder / "rank00000")
    tags = [*first.Tags()["scalars"], *first.Tags()["histograms"]]
    assert any("alert" in tag for tag in tags) and all(len(tag) < 500 and "\x1b" not in tag for tag in tags)


def test_without_tensorboard_there_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'brickprof\[logs\]'"):
        tensorboard.write(two_ranks(), tmp_path)


@pytest.mark.parametrize("module", [tensorboard, wandb_csv])
def test_a_run_that_tells_nothing(module, tmp_path):
    with pytest.raises(NothingToJudge):
        module.write(bare(), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


# -- Weights & Biases


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_table_has_the_shape_of_an_exported_chart(tmp_path):
    path = wandb_csv.write(two_ranks(), tmp_path / "run.csv")
    table = rows(path)
    names = list(table[0])
    whose = f"{META.run_id} rank 0"
    assert names[:4] == ["Step", f"{whose} - train/loss", f"{whose} - train/loss__MIN", f"{whose} - train/loss__MAX"]
    assert [table[0][name] for name in names[:4]] == ["0", "3", "2", "4"]
    assert table[3][f"{whose} - train/loss"] == "NaN"
    assert table[3][f"{META.run_id} rank 1 - train/loss"] == "", "nothing was told: empty, not a number"
    assert f"{META.run_id} launch - gpu0/power" in names
    assert path.read_text("utf-8").startswith('"Step","')


def test_one_rank_is_the_run_itself(tmp_path):
    path = wandb_csv.write(Run.from_records([run_event(), *numbers(3)], META), tmp_path / "run.csv")
    assert list(rows(path)[0])[1] == f"{META.run_id} - train/loss"


def test_our_own_reader_reads_the_table_back(tmp_path):
    run = Run.from_records([run_event(), *numbers(4)], META)
    log = logs.read(wandb_csv.write(run, tmp_path / "run.csv"))
    assert log.format == "wandb-csv" and log.damage == []
    assert log.series["train/loss"].values.tolist() == [3.0, 2.0, 1.0, 0.0]
    assert log.series["train/lr"].role == "lr" and log.series["time/step_seconds"].role == "step_seconds"


def test_numbers_survive_to_the_last_digit(tmp_path):
    values = [0.1, 1 / 3, 1e-300, 12345678.9, -0.0, float("-inf")]
    told = [Event("loss", step, {"value": value}, step, us(step)) for step, value in enumerate(values)]
    path = wandb_csv.write(Run.from_records(told, RunMeta("r")), tmp_path / "run.csv")
    assert [float(row["r - train/loss"]) for row in rows(path)] == values


def test_a_log_becomes_a_table(log, tmp_path):
    assert list(by_step(next(part for part in log.parts if part.rank == 0))) == ["train_loss", "val_loss", "lr"]
    table = rows(wandb_csv.write(log, tmp_path / "run.csv"))
    assert [row["metrics.csv - train_loss"] for row in table] == ["3.5", "3", "NaN", "2"]
    assert [row["metrics.csv - val_loss"] for row in table] == ["", "3.2", "", "2.5"]


def test_no_cell_is_a_formula(tmp_path):
    meta = RunMeta("=cmd|' /C calc'!A0", started_ns=META.started_ns)
    named = Event("metric", 0, {"name": "=1+1", "value": 1.0}, 1, us(1))
    path = wandb_csv.write(Run.from_records([run_event(), *numbers(2), named], meta), tmp_path / "run.csv")
    with path.open(newline="", encoding="utf-8") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t"))]
    assert rows(wandb_csv.write(hostile(), tmp_path / "hostile.csv"))


# -- CSV


def test_tables_are_whole_and_no_formula(tmp_path):
    folder = tables.write(hostile(), tmp_path / "tables")
    spans = pd.read_csv(folder / "spans.csv")
    assert len(spans) == 8 and (folder / "samples.csv").exists()
    assert HOSTILE.replace("\r", "")[:20] in spans["brick"].astype(str).str[:20].tolist()
    assert tables.harmless("=1") == "'=1" and tables.harmless("a=1") == "a=1"
