"""Logs that are tables: CSV and its kin, and Parquet."""

from __future__ import annotations

import gzip
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.errors import UnreadableInput
from brickprof.logs import csv_table, parquet
from brickprof.logs.reading import tables
from brickprof.logs.reading.model import Head
from brickprof.logs.reading.source import Source
from brickprof.logs.reading.tables import header_of

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def points(log: logs.Log, name: str) -> list[tuple[int, float]]:
    series = log.series[name]
    return [(int(step), float(value)) for step, value in zip(series.steps, series.values, strict=True)]


# -- the formats


def test_rows_of_lightning_hold_different_columns(tmp_path):
    text = """epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss
0,0.001,49,,2.5,
0,,99,,2.25,
0,,99,2.375,,
0,,99,,,2.75
1,0.0005,149,,nan,
1,,149,,,3.0
"""
    log = logs.read(write(tmp_path, "metrics.csv", text))
    assert log.format == "lightning" and not log.unread and not log.attempts
    assert points(log, "val_loss") == [(99, 2.75), (149, 3.0)]
    assert points(log, "lr-AdamW") == [(49, 0.001), (149, 0.0005)]
    assert log.series["train_loss_step"].lines.tolist() == [2, 3, 6]
    assert math.isnan(log.series["train_loss_step"].values[-1]), "nan in a cell is a NaN, an empty cell is nothing"
    assert log.series["epoch"].count == 6


@pytest.mark.parametrize("pad", ["", "      "])
def test_names_of_ultralytics_are_filled_up_with_spaces(tmp_path, pad):
    names = ["epoch", "time", "train/box_loss", "metrics/mAP50(B)", "val/box_loss", "lr/pg0"]
    rows = [[epoch, 2.5 * epoch, 1 / epoch, 0.5, 2 / epoch, 1e-3] for epoch in range(1, 30)]
    text = "\n".join(",".join(f"{pad}{cell}" for cell in row) for row in [names, *rows]) + "\n"
    log = logs.read(write(tmp_path, "results.csv", text))
    assert log.format == "ultralytics" and log.steps_by == "epoch"
    assert points(log, "train/box_loss") == [(epoch, 1 / epoch) for epoch in range(1, 30)]
    assert log.series["val/box_loss"].role == "eval_loss" and log.series["time"].role == "other"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_an_epoch_that_keras_did_not_finish_holds_nothing(tmp_path, mark):
    rows = [["epoch", "accuracy", "loss", "val_accuracy", "val_loss"], ["0", "0.5", "2.5", "0.5", "2.5"]]
    rows += [["1", "0.75", "nan", "0.5", "inf"], ["2", "NA", "1.5", "NA", "NA"]]
    log = logs.read(write(tmp_path, "training.log", "\n".join(mark.join(row) for row in rows) + "\n"))
    assert log.format == "keras"
    assert log.series["loss"].count == 3 and math.isnan(log.series["loss"].values[1])
    assert log.series["val_loss"].steps.tolist() == [0, 1] and log.series["val_loss"].values[1] == math.inf


def test_a_chart_of_weights_and_biases(tmp_path):
    text = '"Step","lucky-sun-7 - train/loss","lucky-sun-7 - train/loss__MIN","lucky-sun-7 - train/loss__MAX",'
    text += '"eval-run - train/loss","eval-run - train/loss__MIN","eval-run - train/loss__MAX"\n'
    text += '"0","2.5","2.5","2.5","","",""\n"10","NaN","NaN","NaN","3.5","3.5","3.5"\n'
    log = logs.read(write(tmp_path, "wandb_export_2024-01-01.csv", text))
    assert log.format == "wandb-csv" and set(log.series) == {"train/loss", "eval-run - train/loss"}
    assert log.series["train/loss"].steps.tolist() == [0, 10] and math.isnan(log.series["train/loss"].values[1])


@pytest.mark.parametrize(
    "text",
    [
        '"Name","State","Created","Runtime","iter","train/loss"\n"a","finished","2026-05-25","732","5000","1.03"\n'
        '"b","finished","2026-05-25","702","5000","3.31"\n',
        "lr,_runtime,_step,_wandb,train_loss,name\n0.1,353.5,35,{'runtime': 353},0.05,a\n0.1,36.5,43,{},0.04,b\n",
    ],
    ids=["exported", "by the API"],
)
def test_a_table_of_runs_is_no_run(tmp_path, text):
    with pytest.raises(UnreadableInput, match="table of runs"):
        logs.read(write(tmp_path, "export.csv", text))


def test_what_tensorboard_exports(tmp_path):
    text = "Wall time,Step,Value\n1700000000.5,0,2.5\n1700000001.5,10,2.25\n"
    log = logs.read(write(tmp_path, "run-.-tag-train_loss.csv", text))
    assert points(log, "train_loss") == [(0, 2.5), (10, 2.25)] and log.series["train_loss"].role == "loss"


# -- what tables are like


def test_marks_remarks_and_decimals(tmp_path):
    for mark in ",;\t|":
        text = f"# made by x\n\nstep{mark}loss\n" + "".join(f"{step}{mark}{step / 4}\n" for step in range(5))
        log = logs.read(write(tmp_path, "log.csv", text))
        assert points(log, "loss") == [(step, step / 4) for step in range(5)], mark
        assert log.series["loss"].lines.tolist() == [4, 5, 6, 7, 8]
    log = logs.read(write(tmp_path, "log.csv", "step;loss\n1;0,25\n2;1,5e-1\n"))
    assert points(log, "loss") == [(1, 0.25), (2, 0.15)]


def test_windows_line_ends_quotes_and_a_byte_order_mark(tmp_path):
    text = '\ufeff"step","train loss","note"\r\n1,"2.5","a, b"\r\n2,"1,024.5",""\r\n'
    log = logs.read(write(tmp_path, "log.csv", text))
    assert points(log, "train loss") == [(1, 2.5), (2, 1024.5)] and "note" not in log.series


def test_a_header_again_is_a_run_started_again(tmp_path):
    first = "step,loss\n" + "".join(f"{step},1.5\n" for step in range(10))
    second = "step,loss,lr\n" + "".join(f"{step},1.25,0.1\n" for step in range(5, 12))
    log = logs.read(write(tmp_path, "log.csv", first + first + second))
    assert log.series["loss"].steps.tolist() == [*range(10), *range(10), *range(5, 12)]
    assert log.series["loss"].count == 27 and log.series["lr"].count == 7 and not log.unread
    assert log.attempts[0].goes_on_at == 0


def test_rows_that_do_not_fit_are_counted(tmp_path):
    more = "".join(f"{step},2.25,0.5\n" for step in range(4, 12))
    text = f"step,loss,acc\n1,2.5,0.5\n2,2.5\n\n3,2.5,0.5,9\nTraceback\n{more}12,2.0"
    log = logs.read(write(tmp_path, "log.csv", text))
    assert points(log, "loss") == [(1, 2.5), *((step, 2.25) for step in range(4, 12))]
    assert log.unread == 4 and [line for line, _ in log.examples] == [3, 5, 6, 15]


def test_a_number_that_is_cut_off_is_not_told(tmp_path):
    text = "step,loss,lr\n1,2.5,1.25e-05\n2,2.5,1.25e-05\n3,2.5,1.2"
    log = logs.read(write(tmp_path, "log.csv", text))
    assert points(log, "lr") == [(1, 1.25e-5), (2, 1.25e-5)] and log.series["loss"].count == 3
    log = logs.read(write(tmp_path, "log.csv", "step,loss\n1,2.5000\n2,nan"))
    assert math.isnan(log.series["loss"].values[-1]), "that is whole"


def test_words_in_a_column_are_no_numbers(tmp_path):
    text = "time,step,phase,loss\n" + "".join(
        f"2024-01-01 10:00:0{i},{i},train,{'oops' if i == 3 else i}\n" for i in range(8)
    )
    log = logs.read(write(tmp_path, "log.csv", text))
    assert log.series["loss"].steps.tolist() == [0, 1, 2, 4, 5, 6, 7] and set(log.series) == {"loss"}


def test_a_column_tells_training_from_evaluation(tmp_path):
    text = "epoch,phase,loss\n" + "".join(f"{epoch},train,1.5\n{epoch},val,2.5\n" for epoch in range(9))
    for end in ("", "9,train,1.25"):
        log = logs.read(write(tmp_path, "log.csv", text + end), csv_table.READER)
        losses = {series.role: series for series in log.series.values() if series.role in ("loss", "eval_loss")}
        assert set(losses["eval_loss"].values) == {2.5} and losses["eval_loss"].steps.tolist() == list(range(9))
        assert losses["loss"].count == 9 + bool(end) and log.steps_by == "epoch"


def test_many_chunks_and_many_sets_of_columns(tmp_path):
    rng = np.random.default_rng(0)
    there = rng.random((20_000, 9)) < 0.5
    text = ["step," + ",".join(f"m{i}" for i in range(9))]
    text += [f"{step}," + ",".join(f"{step}.5" if one else "" for one in row) for step, row in enumerate(there)]
    path = write(tmp_path, "log.csv", "\n".join(text) + "\n")
    source = Source(path)
    whole = logs.read(path)
    for place in range(9):
        assert whole.series[f"m{place}"].count == there[:, place].sum()
    steps = [item.values["m3"] for item in csv_table.READER.read(source) if "m3" in getattr(item, "values", {})]
    assert (np.sort(np.concatenate(steps)) == np.flatnonzero(there[:, 3]) + 0.5).all()


def test_a_packed_table(tmp_path):
    path = write(tmp_path, "metrics.csv.gz", gzip.compress(b"epoch,step,loss\n0,1,2.5\n0,2,2.25\n"))
    assert points(logs.read(path), "loss") == [(1, 2.5), (2, 2.25)]


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 1, loss 2.5, lr 0.1\nEpoch 2, loss 2.4, lr 0.1\n",
        "step=1, loss=2.5\nstep=2, loss=2.4\n",
        "1,2.5\n2,2.5\n",
        "hello, world\nthis is, text\n",
        "{'loss': 2.5, 'step': 1}\n{'loss': 2.5, 'step': 2}\n",
    ],
)
def test_text_with_commas_is_no_table(text):
    assert header_of(Head("train.log", text.encode())) is None


def test_a_table_cut_at_every_byte(tmp_path):
    text = b"epoch,step,train_loss,val_loss\n" + b"".join(b"0,%d,%d.125,\n0,%d,,0.5\n" % (i, i, i) for i in range(1, 6))
    for length in range(len("epoch,step,train_loss,val_loss\n"), len(text)):
        log = logs.read(write(tmp_path, "metrics.csv", text[:length]), csv_table.READER)
        whole = text[:length].count(b"\n") - 1
        found = points(log, "train_loss") if "train_loss" in log.series else []
        assert found[: (whole + 1) // 2] == [(i, i + 0.125) for i in range(1, (whole + 1) // 2 + 1)]


@QUICK
@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"1,2", b"nan,", b'"', b"\r", b"step,loss", b"#"]))))
def test_any_bytes_below_a_header(tmp_path, pieces):
    path = write(tmp_path, "log.csv", b"step,loss\n1,2.5\n" + b"\n".join(pieces))
    log = logs.read(path, csv_table.READER)
    assert log.path == str(path) and (header_of(Source(path).head()) is None or (1, 2.5) in points(log, "loss"))
    for reader in logs.readers().values():
        reader.sniff(Source(path).head())


@QUICK
@given(
    rows=st.lists(
        st.lists(st.one_of(st.none(), st.floats(), st.integers(-99, 99)), min_size=3, max_size=3), min_size=1
    ),
    mark=st.sampled_from(",;\t"),
    ended=st.booleans(),
)
def test_cells_are_what_was_written(tmp_path, rows, mark, ended):
    body = ["step,a,b,c".replace(",", mark)]
    body += [mark.join([str(step), *("" if one is None else str(one) for one in row)]) for step, row in enumerate(rows)]
    path = write(tmp_path, "log.csv", "\n".join(body) + "\n" * ended)
    log = logs.read(path, csv_table.READER)
    for place, name in enumerate("abc"):
        expected = [(step, float(row[place])) for step, row in enumerate(rows) if row[place] is not None]
        found = points(log, name) if name in log.series else []
        if not ended and name == "c" and len(found) < len(expected):
            expected.pop()  # a last cell without an end that is shorter than the others
        assert repr(found) == repr(expected)


# -- Parquet


def history() -> pa.Table:
    return pa.table(
        {
            "_step": pa.array(range(100), pa.int64()),
            "_timestamp": pa.array([1.7e9 + i for i in range(100)]),
            "train/loss": pa.array([None if i % 4 else float(i) for i in range(100)]),
            "eval": pa.array([{"acc": 0.5 + i} if i % 10 == 0 else None for i in range(100)]),
            "grad_norm": pa.array(["NaN" if i == 50 else str(i) for i in range(100)]),
            "note": pa.array(["x"] * 100),
            "done": pa.array([False] * 100),
        }
    )


def test_a_history_in_parquet(tmp_path):
    pq.write_table(history(), tmp_path / "history.parquet", row_group_size=30)
    log = logs.read(tmp_path / "history.parquet")
    assert log.format == "parquet" and log.rows == 100 and not log.attempts
    assert points(log, "train/loss") == [(i, float(i)) for i in range(0, 100, 4)]
    assert points(log, "eval/acc") == [(i, 0.5 + i) for i in range(0, 100, 10)]
    assert math.isnan(log.series["grad_norm"].values[50]) and log.series["grad_norm"].values[51] == 51
    assert not {"note", "done"} & set(log.series)


def test_lists_inside_of_structs_do_not_keep_the_numbers_beside_them_from_being_read(tmp_path):
    rows = [{"step": n, "train": {"loss": 3 - n / 9, "tags": ["a", "b"], "deep": {"norm": 1.0 * n}}} for n in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "h.parquet", row_group_size=4)
    log = logs.read(tmp_path / "h.parquet")
    assert {name: series.count for name, series in log.series.items()} == {"train/loss": 9, "train/deep/norm": 9}


@pytest.mark.parametrize("first", ["", "index"])
def test_an_unnamed_first_column_is_read_at_once(tmp_path, monkeypatch, first):
    """As pandas writes tables; among words, so that all columns are read as text."""
    monkeypatch.setattr(tables._Reader, "_one_by_one", lambda *_: pytest.fail("read line by line"))
    lines = [f"{n},{n},{3 - n / 99:.4f},{'warm' if n % 2 else n}" for n in range(99)]
    (tmp_path / "t.csv").write_text("\n".join([f"{first},step,loss,note", *lines, ""]))
    assert logs.read(tmp_path / "t.csv").series["loss"].count == 99


def test_parquet_that_is_cut_off_is_one_clear_error(tmp_path):
    pq.write_table(history(), tmp_path / "whole.parquet")
    data = (tmp_path / "whole.parquet").read_bytes()
    for length in (4, 12, len(data) // 2, len(data) - 1):
        path = write(tmp_path, "cut.parquet", data[:length])
        with pytest.raises(UnreadableInput, match="no whole Parquet file"):
            logs.read(path)


@QUICK
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_parquet_with_a_changed_byte_never_breaks_out(tmp_path, place, byte):
    path = tmp_path / "whole.parquet"
    if not path.exists():
        pq.write_table(history(), path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    changed = write(tmp_path, "changed.parquet", bytes(data))
    with suppress(UnreadableInput):
        log = logs.read(changed, parquet.READER)
        assert log.rows <= 100 or log.damage


# -- names with settings in them, commas for points, no names at all


def test_a_setting_in_a_name_is_no_row(tmp_path):
    runs = ("lr=0.1 bs=8", "lr=0.01 bs=8")
    top = ",".join(['"Step"', *(f'"{run} - train/loss{end}"' for run in runs for end in ("", "__MIN", "__MAX"))])
    rows = [",".join(f'"{value}"' for value in (n, *[3 / (n + 1)] * 3, *[2 / (n + 1)] * 3)) for n in range(8)]
    log = logs.read(write(tmp_path, "sweep.csv", "\n".join([top, *rows]) + "\n"))
    assert log.format == "wandb-csv" and points(log, "train/loss")[1] == (1, 1.5)
    assert {series.role for series in log.series.values()} == {"loss"}


def test_rows_of_settings_are_no_table():
    assert header_of(Head("x.csv", b"step=1,loss=2.5\nstep=2,loss=2.4\nstep=3,loss=2.3\n")) is None


@pytest.mark.parametrize("separator", [";", "\t"])
def test_commas_may_stand_for_points(tmp_path, separator):
    rows = [
        ["step", "loss", "tokens"],
        *([str(n), f"{3 / n:.4f}".replace(".", ","), f"{n}.000,5"] for n in range(1, 9)),
    ]
    log = logs.read(write(tmp_path, "eu.csv", "\n".join(separator.join(row) for row in rows) + "\n"))
    assert points(log, "loss")[1] == (2, 1.5) and points(log, "tokens")[2] == (3, 3000.5)


def test_thousands_between_tabs_are_thousands(tmp_path):
    text = "step\tloss\ttokens\n" + "".join(f"{n}\t{3 / n:.3f}\t{n},000\n" for n in range(1, 9))
    assert points(logs.read(write(tmp_path, "us.tsv", text)), "tokens")[2] == (3, 3000.0)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_two_bytes_a_letter_with_a_mark_are_read(tmp_path, encoding):
    text = "epoch;loss;val_loss\r\n" + "".join(
        f"{n};{3 / n:.4f};{4 / n:.4f}\r\n".replace(".", ",") for n in range(1, 9)
    )
    mark = "" if encoding == "utf-16" else "\ufeff"
    log = logs.read(write(tmp_path, "t.csv", (mark + text).encode(encoding)))
    assert log.format == "keras" and points(log, "val_loss")[1] == (2, 2.0)


LOSSES = [round(3 / (1 + n / 10), 4) for n in range(40)]


@pytest.mark.parametrize(
    ("name", "text", "called", "role"),
    [
        ("losses.csv", ",0\n" + "".join(f"{n},{value}\n" for n, value in enumerate(LOSSES)), "losses", "loss"),
        ("run.val_loss.csv", "0\n" + "".join(f"{value}\n" for value in LOSSES), "run.val_loss", "eval_loss"),
        ("train_history.txt", "".join(f"{value}\n" for value in LOSSES), "loss", "loss"),
        ("x.csv", "train_loss\n" + "".join(f"{value}\n" for value in LOSSES), "train_loss", "loss"),
        ("loss.txt", "".join(f"{n},{value}\n" for n, value in enumerate(LOSSES)), "loss", "loss"),
        ("labels.csv", ",0\n" + "".join(f"{n},{value}\n" for n, value in enumerate(LOSSES)), "0", "other"),
    ],
)
def test_numbers_without_a_name_are_called_by_their_file(tmp_path, name, text, called, role):
    log = logs.read(write(tmp_path, name, text))
    assert log.format == "csv" and log.series[called].role == role
    assert points(log, called) == list(enumerate(LOSSES))


def test_a_second_nameless_column_is_nothing_in_particular(tmp_path):
    text = ",0,1\n" + "".join(f"{n},{value},{2 * value}\n" for n, value in enumerate(LOSSES))
    log = logs.read(write(tmp_path, "loss.csv", text))
    assert {name: series.role for name, series in log.series.items()} == {"loss": "loss", "1": "other"}


def test_a_few_numbers_or_words_among_them_are_no_column():
    assert csv_table.tables.bare(Head("loss.txt", b"1.5\n1.4\n")) is None
    assert csv_table.tables.bare(Head("loss.txt", b"1.5\n" * 9 + b"done\n")) is None
