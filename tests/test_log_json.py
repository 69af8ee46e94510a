"""Logs in JSON: what is read of them, and that nothing else is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.logs import hf_state, json_list, jsonl, logged_json
from brickprof.logs.reading.layouts import Lines, layout_of
from brickprof.logs.reading.model import Head
from brickprof.logs.reading.objects import flat, parse
from brickprof.logs.reading.source import Source

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def points(log: logs.Log, name: str) -> list[tuple[int, float]]:
    series = log.series[name]
    return [(int(step), float(value)) for step, value in zip(series.steps, series.values, strict=True)]


def head(path: Path) -> Head:
    return Source(path).head()


def lines_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- Hugging Face


def state(**more: Any) -> dict[str, Any]:
    history = [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2.0, "step": 10},
        {"epoch": 1.0, "grad_norm": "0.75", "learning_rate": "5e-05", "loss": "1.5", "step": 20},
        {"epoch": 1.0, "eval_loss": 1.75, "eval_runtime": 3.0, "step": 20},
        {"epoch": 1.5, "grad_norm": math.nan, "learning_rate": 0.0, "loss": math.inf, "step": 30},
        {"epoch": 1.5, "step": 30, "train_loss": 1.6, "train_runtime": 12.5, "total_flos": 1e15},
    ]
    return {
        "best_metric": None,
        "global_step": 30,
        "max_steps": 40,
        "log_history": history,
        "train_batch_size": 4,
        **more,
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_a_trainer_state_is_rows_a_summary_and_settings(tmp_path, indent):
    log = logs.read(write(tmp_path, "trainer_state.json", json.dumps(state(), indent=indent)))
    assert log.format == "hf"
    assert points(log, "loss") == [(10, 2.0), (20, 1.5), (30, math.inf)]
    assert points(log, "learning_rate") == [(10, 1e-4), (20, 5e-5), (30, 0.0)]
    assert math.isnan(log.series["grad_norm"].values[-1]) and log.series["grad_norm"].values[1] == 0.75
    assert points(log, "eval_loss") == [(20, 1.75)]
    assert "train_loss" not in log.series, "the mean over all steps is no point of the loss"
    facts = {fact.kind: fact.fields for fact in log.facts}
    assert facts["finished"]["values"]["train_loss"] == 1.6
    assert facts["setting"]["values"]["max_steps"] == 40 and facts["setting"]["values"]["train_batch_size"] == 4
    assert not log.damage and not log.attempts


def test_entries_of_a_trainer_state_know_their_lines(tmp_path):
    text = json.dumps(state(), indent=2)
    log = logs.read(write(tmp_path, "trainer_state.json", text))
    named = text.split("\n")
    at = int(log.series["loss"].lines[1])
    assert named[at - 1].strip() == "{" and '"grad_norm": "0.75"' in "".join(named[at : at + 3])


@pytest.mark.parametrize("indent", [None, 1])
def test_a_trainer_state_that_is_cut_off_keeps_what_is_whole(tmp_path, indent):
    text = json.dumps(state(), indent=indent)
    whole = points(logs.read(write(tmp_path, "whole.json", text)), "loss")
    for length in range(text.index("log_history") + 16, len(text) - 1):
        path = write(tmp_path, "cut.json", text[:length])
        log = logs.read(path, hf_state.READER)
        found = points(log, "loss") if "loss" in log.series else []
        assert found == whole[: len(found)]
        assert any("line" in said for said in log.damage), text[:length][-20:]


# -- JSON lines


def test_lines_with_the_same_keys_come_as_columns(tmp_path):
    rows = [{"step": step, "loss": 2.0 / step, "lr": 1e-3, "host": f"n{step}"} for step in range(1, 500)]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert log.format == "jsonl" and log.rows == 499 and not log.unread
    assert points(log, "loss") == [(row["step"], row["loss"]) for row in rows]
    assert log.series["loss"].lines[-1] == 499 and set(log.series) == {"loss", "lr"}


def test_numbers_as_they_are_written(tmp_path):
    text = """{"step": 1, "loss": NaN, "norm": "1.5", "n": {"a": {"b": 3}}}
{"step": 2, "loss": Infinity, "norm": "inf", "n": {"a": {"b": -4e-2}}}
{"step": 3, "loss": -Infinity, "norm": "NaN", "n": {"a": {"b": 12345678901234567890}}}
{"step": 4, "loss": "2,048", "norm": "high", "n": {"a": {"b": null}}}
"""
    log = logs.read(write(tmp_path, "log.jsonl", text))
    loss = log.series["loss"].values
    assert math.isnan(loss[0]) and loss[1] == math.inf and loss[2] == -math.inf and loss[3] == 2048
    assert points(log, "n/a/b") == [(1, 3.0), (2, -0.04), (3, 12345678901234567890.0)]
    assert log.series["norm"].steps.tolist() == [1, 2, 3], "a word is no number"


def test_keys_that_come_and_go_keep_the_order_of_the_file(tmp_path):
    rows = []
    for step in range(300):
        row = {"_step": step, "loss": float(step)}
        if step % 3 == 0:
            row["lr"] = 0.1
        if step % 7 == 0:
            row = {"lr": 0.2, **row, "acc": 0.5}
        rows.append(row)
    log = logs.read(write(tmp_path, "wandb-history.jsonl", lines_of(*rows)))
    assert points(log, "loss") == [(step, float(step)) for step in range(300)]
    assert log.series["lr"].steps.tolist() == [step for step in range(300) if step % 3 == 0 or step % 7 == 0]
    assert not log.attempts


def test_rows_that_all_hold_other_keys_are_read(tmp_path):
    rows = [{"step": step, "loss": 1.0, **{f"k{step % 97}_{i}": 2.0 for i in range(step % 5)}} for step in range(400)]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert log.series["loss"].steps.tolist() == list(range(400))


def test_a_resumed_run_with_evaluations_is_resumed_once(tmp_path):
    def some(begin: int, end: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for step in range(begin, end):
            rows.append({"step": step, "loss": 1.0})
            if step % 10 == 0:
                rows.append({"step": step, "val_loss": 1.0})
        return rows

    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*some(0, 100), *some(40, 120))))
    assert len(log.attempts) == 1
    assert (log.attempts[0].stopped_at, log.attempts[0].goes_on_at) == (99, 40)


def test_steps_that_begin_anew_in_each_epoch_are_counted_on(tmp_path):
    rows: list[dict[str, Any]] = []
    for epoch in (1, 2, 3):
        rows += [{"mode": "train", "epoch": epoch, "iter": step, "loss": 1.0} for step in (50, 100, 150)]
        rows.append({"mode": "val", "epoch": epoch, "iter": 200, "mAP": 0.5})
    log = logs.read(write(tmp_path, "log.json", lines_of(*rows)))
    assert log.series["loss"].steps.tolist() == [50, 100, 150, 200, 250, 300, 350, 400, 450] and not log.attempts
    resumed = logs.read(write(tmp_path, "log.json", lines_of(*rows, *rows[8:])))
    assert [attempt.number for attempt in resumed.attempts] == [1]
    assert resumed.series["loss"].attempts.tolist() == [0] * 9 + [1] * 3


def test_the_counter_of_the_whole_run_tells_the_steps(tmp_path):
    rows = [{"iter": step % 10, "global_step": step, "loss": 1.0} for step in range(40)]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert log.steps_by == "global_step" and log.series["loss"].steps.tolist() == list(range(40)) and not log.attempts


def test_pictures_and_histograms_are_no_numbers(tmp_path):
    drawn = {"_type": "histogram", "values": [1, 2], "bins": [0.5], "size": 7}
    rows = [{"_step": step, "train/loss": 1.0, "gradients/a": drawn, "lr": [0.1, 0.2]} for step in range(4)]
    log = logs.read(write(tmp_path, "history.jsonl", lines_of(*rows)))
    assert set(log.series) == {"train/loss", "lr/0", "lr/1"}


def test_a_split_tells_training_from_evaluation(tmp_path):
    rows = [{"split": split, "step": step, "loss": 2.0} for step in range(20) for split in ("train", "val")]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert {series.role: len(series) for series in log.series.values()} == {"loss": 20, "eval_loss": 20}


def test_ranks_are_kept_apart(tmp_path):
    rows = [{"step": step, "rank": rank, "loss": float(rank)} for step in range(50) for rank in (1, 0)]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert not log.attempts
    assert set(log.series["loss"].values) == {0.0} and set(log.series["loss@1"].values) == {1.0}


def test_true_is_a_number_only_where_updates_are_skipped(tmp_path):
    rows = [{"step": step, "loss": 1.0, "skipped": step == 3, "training": True} for step in range(9)]
    log = logs.read(write(tmp_path, "log.jsonl", lines_of(*rows)))
    assert log.series["skipped"].values.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert "training" not in log.series


def test_the_last_of_duplicate_keys_counts(tmp_path):
    log = logs.read(write(tmp_path, "log.jsonl", '{"step": 1, "loss": 1.0, "loss": 2.0}\n' * 3))
    assert set(log.series["loss"].values) == {2.0}


def test_what_a_line_says_in_words_is_heard(tmp_path):
    good = [{"level": "info", "msg": "train", "step": step, "loss": 1.0} for step in range(60)]
    died = {"level": "error", "msg": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}
    log = logs.read(write(tmp_path, "log.jsonl", lines_of({"config": {"lr": 0.1, "steps": 60}}, *good, died)))
    assert log.series["loss"].count == 60
    settings_ = next(fact for fact in log.facts if fact.kind == "setting")
    assert settings_.fields["values"]["config.lr"] == 0.1 and "config/lr" not in log.series
    told = [fact for fact in log.facts if fact.kind in ("exception", "ended", "device")]
    assert told and told[0].line == 62


def test_a_traceback_among_the_lines_is_heard(tmp_path):
    text = lines_of(*({"step": step, "loss": 1.0} for step in range(5)))
    text += (
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\nValueError: no data\n'
    )
    log = logs.read(write(tmp_path, "log.jsonl", text))
    fact = next(fact for fact in log.facts if fact.kind == "exception")
    assert (fact.fields["type"], fact.fields["message"]) == ("ValueError", "no data")
    assert log.unread == 4 and log.series["loss"].count == 5


def test_bad_lines_are_counted_and_shown(tmp_path):
    text = '{"step": 1, "loss": 1.0}\nnot json\n[1, 2]\n\n{"step": 2, "loss": \n{"step": 3, "loss": 3.0}\n'
    log = logs.read(write(tmp_path, "log.jsonl", text))
    assert points(log, "loss") == [(1, 1.0), (3, 3.0)]
    assert log.unread == 3 and [line for line, _ in log.examples] == [2, 3, 5]


def test_hostile_lines_are_lines_that_say_nothing(tmp_path):
    good = '{"step": 1, "loss": 1.0}\n'
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n"
    long = '{"step": 5, "loss": 2.5, "text": "' + "x" * (10 << 20) + '"}\n'
    huge = '{"step": 3, "loss": ' + "9" * 6000 + "}\n"
    log = logs.read(write(tmp_path, "log.jsonl", good + deep + huge + long + good.replace("1,", "7,")), jsonl.READER)
    assert points(log, "loss") == [(1, 1.0), (5, 2.5), (7, 1.0)]
    assert log.unread == 1


def test_json_lines_cut_at_every_byte(tmp_path):
    text = lines_of(*({"step": step, "m": {"loss": 1.25 * step}, "host": "a b"} for step in range(1, 7))).encode()
    for length in range(1, len(text)):
        log = logs.read(write(tmp_path, "log.jsonl", text[:length]), jsonl.READER)
        whole = text[:length].count(b'"a b"}')
        found = points(log, "m/loss") if "m/loss" in log.series else []
        assert found == [(step, 1.25 * step) for step in range(1, whole + 1)]


def test_parts_hold_every_row_once(tmp_path):
    rows = [{"step": step, "loss": float(step)} for step in range(5000)]
    path = write(tmp_path, "log.jsonl", lines_of(*rows))
    parts = Source(path).parts(3)
    assert len(parts) == 3
    found = [
        item.values["step"]
        for part in parts
        for item in jsonl.READER.read(Source(path, part))
        if hasattr(item, "values")
    ]
    assert np.concatenate(found).tolist() == list(range(5000))


KEYS = st.sampled_from(["step", "loss", "lr", "val/acc", "skipped", "n", "mode2", "a b", "é"])
NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20), st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.4g}")),
)  # fmt: skip
WORDS = st.sampled_from([
    "", "run-1", "info", "nan", "NaN", "inf", "1.5", "-3e-4", "n/a", "2024-01-01T10:00:00", "12:30:11", "ice", "12k",
    "é\n",
    'say "x"', "\\", "{}", "a, b", "1.5.2", "+", "45%", "Infinity!", "null",
])  # fmt: skip
SCALARS = st.one_of(NUMBERS, NUMBERS, NUMBERS.map(str), WORDS, st.booleans(), st.none())
VALUES = st.one_of(SCALARS, SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(KEYS, SCALARS, max_size=3))
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)
SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")])


@QUICK
@given(
    templates=st.lists(OBJECTS, min_size=1, max_size=4), data=st.data(), marks=SEPARATORS, ascii_=st.booleans()
)  # fmt: skip
def test_many_lines_at_once_are_what_each_is_alone(tmp_path, templates, data, marks, ascii_):
    """Whatever the objects are: the numbers of each line are those that a plain JSON parser finds in it."""
    objects = []
    for _ in range(data.draw(st.integers(1, 12))):
        one = dict(data.draw(st.sampled_from(templates)))
        for key in list(one):
            if data.draw(st.booleans()):
                one[key] = data.draw(VALUES)
        objects.append(one)
    written = [json.dumps(one, separators=marks, ensure_ascii=ascii_) for one in objects]
    path = write(tmp_path, "log.jsonl", "".join(line + "\n" for line in written))
    expected = {
        (line, name): value
        for line, text in enumerate(written, 1)
        for name, value in flat(parse(text)).items()
    }  # fmt: skip
    found = {
        (int(line), name): float(value)
        for item in jsonl.READER.read(Source(path))
        if hasattr(item, "values")
        for name, column in item.values.items()
        for line, value in zip(item.lines, column, strict=True)
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value or (math.isnan(value) and math.isnan(found[key])), key


@QUICK
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b'{"a": 1}', b'{"a": 1', b'"}', b"{", b"\r"]))))
def test_any_bytes_are_read_without_a_stumble(tmp_path, pieces):
    path = write(tmp_path, "log.jsonl", b"\n".join(pieces))
    for reader in (jsonl.READER, logged_json.READER):
        for item in reader.read(Source(path)):
            assert item is not None
        assert 0 <= reader.sniff(head(path)) <= 1


def test_a_layout_is_made_of_a_line_of_plain_values_only():
    assert layout_of(b'{"a": 1, "b": "x"}') is not None
    for line in (
        b'{"lr": [1, null]}',
        b'{"a": "x\\"y"}',
        b'{"config": {"a": 1}}',
        b"[1]",
        b'{"a": 1',
        b'{"a": "12 apples"}',
    ):
        assert layout_of(line) is None, line


def test_lines_know_their_quotes():
    lines = Lines(b'{"a": 1}\n\n{"b": "c"}')
    assert len(lines) == 3 and lines.counts.tolist() == [2, 0, 4] and lines.line(2) == b'{"b": "c"}'


def test_lines_that_are_as_expected_are_where_they_would_be_found():
    line = b'  {"step": 1, "loss": 2.5, "host": "a"}\n'
    layout = layout_of(line[:-1])
    more = b'  {"step": 22, "loss": -2.5e-3, "host": "bcd"}\n'
    odd = (
        line + b"\n",
        b"\n" + line,
        line[:-1],
        line + b'{"a": "b", "c": "d"}\n',
        b'  {"step": 1, "x": "\n", "host": "a"}\n',
    )
    for chunk in (line, line + more * 3, *odd, *(more + each for each in odd)):
        found, plain = Lines(chunk, layout), Lines(chunk)
        assert found.begins.tolist() == plain.begins.tolist() and found.ends.tolist() == plain.ends.tolist(), chunk
        assert found.counts.tolist() == plain.counts.tolist() and found.first.tolist() == plain.first.tolist(), chunk


# -- JSON of a logger


def of_fairseq(tag: str, **told: str | float) -> str:
    return f"2021-08-13 14:59:32 | INFO | {tag} | {json.dumps({'epoch': 1, **told})}\n"


NOTE = "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0"
INNER = {"overflow_expert1": "20.8", "lr": "2e-05", "loss_scale": "4"}
FAIRSEQ = (
    "2021-08-13 14:58:39 | INFO | fairseq_cli.train | model: {'x': 1}\n"
    + f"2021-08-13 14:58:44 | INFO | fairseq.trainer | {NOTE}\n"
    + of_fairseq("train_inner", update=0.004, loss="20.714", num_updates="100", gnorm="20.751", **INNER)
    + of_fairseq("train_inner", update=0.008, loss="nan", num_updates="200", gnorm="inf", **INNER)
    + of_fairseq("valid", valid_loss="8.751", valid_ppl="274.56", valid_num_updates="200")
)


def test_what_fairseq_logs(tmp_path):
    log = logs.read(write(tmp_path, "train.log", FAIRSEQ))
    assert log.format == "logged-json"
    assert log.series["loss"].steps.tolist() == [100, 200] and log.series["loss"].values[0] == 20.714
    assert math.isnan(log.series["loss"].values[1]) and log.series["gnorm"].values[1] == math.inf
    assert points(log, "valid_loss") == [(200, 8.751)]
    assert log.series["gnorm"].role == "grad_norm" and log.series["loss_scale"].role == "scale"
    assert log.series["overflow_expert1"].role == "other", "experts that overflow are no skipped updates"
    assert [fact.fields["to"] for fact in log.facts if fact.kind == "overflow"] == [64.0]
    assert log.unread == 1


def test_json_behind_any_prefix(tmp_path):
    text = "".join(f'INFO:root:{{"step": {step}, "loss": {1 / step}}}\n' for step in range(1, 6))
    log = logs.read(write(tmp_path, "out.log", text))
    assert log.format == "logged-json" and points(log, "loss")[-1] == (5, 0.2)


# -- JSON that is one value


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_objects(tmp_path, indent):
    rows = [{"epoch": epoch, "train_loss": 1 / epoch, "test": {"acc": 0.5}} for epoch in range(1, 6)]
    log = logs.read(write(tmp_path, "history.json", json.dumps(rows, indent=indent)))
    assert log.format == "json" and points(log, "train_loss")[-1] == (5, 0.2) and log.steps_by == "epoch"
    assert "test/acc" in log.series


def test_an_object_that_holds_a_list_of_objects(tmp_path):
    value = {"lr": 0.1, "name": "x", "log": [{"iter": step, "loss": float(step)} for step in range(4)]}
    log = logs.read(write(tmp_path, "log.json", json.dumps(value, indent=1)))
    assert points(log, "loss") == [(step, float(step)) for step in range(4)]
    assert log.facts[0].kind == "setting" and log.facts[0].fields["values"]["lr"] == 0.1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_history_of_keras(tmp_path, wrapped):
    history = {"loss": [2.0, 1.0, math.nan], "val_loss": [2.5, 2.25, 2.0], "lr": [0.1, 0.1, 0.1]}
    text = json.dumps({"history": history} if wrapped else history)
    log = logs.read(write(tmp_path, "history.json", text))
    assert log.format == "json" and set(log.series) == {"loss", "val_loss", "lr"}
    assert log.series["val_loss"].values.tolist() == [2.5, 2.25, 2.0] and log.series["val_loss"].role == "eval_loss"
    assert math.isnan(log.series["loss"].values[2])


def test_several_lists_are_told_apart(tmp_path):
    value = {"train": [{"step": 1, "loss": 1.0}], "val": [{"step": 1, "loss": 2.0}]}
    log = logs.read(write(tmp_path, "log.json", json.dumps(value)), json_list.READER)
    assert {series.role: series.values.tolist() for series in log.series.values()} == {
        "loss": [1.0],
        "eval_loss": [2.0],
    }


def test_what_tensorboard_exports(tmp_path):
    triples = [[1.7e9 + step, step, 1.0 / (step + 1)] for step in range(5)]
    log = logs.read(write(tmp_path, "run-x-tag-train_loss.json", json.dumps(triples)))
    assert points(log, "train_loss") == [(step, 1.0 / (step + 1)) for step in range(5)]


def test_one_value_cut_at_every_byte(tmp_path):
    text = json.dumps([{"step": step, "loss": 1.5 * step} for step in range(5)])
    for length in range(1, len(text)):
        log = logs.read(write(tmp_path, "cut.json", text[:length]), json_list.READER)
        found = points(log, "loss") if "loss" in log.series else []
        assert found == [(step, 1.5 * step) for step in range(len(found))]
        assert len(found) == text[:length].count("}") and log.damage


def test_deep_json_is_one_clear_line(tmp_path):
    for text in ("[" * 200_000, '{"log_history": [' + '{"a":' * 200_000):
        for reader in (json_list.READER, hf_state.READER):
            log = logs.read(write(tmp_path, "deep.json", text), reader)
            assert len(log.damage) == 1 and len(log.damage[0]) < 200 and not log.series


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_as_one_value(tmp_path, junk):
    for begin in (b"", b"{", b"[", b'{"log_history": [', b'[{"a": 1},'):
        path = write(tmp_path, "any.json", begin + junk)
        for reader in (json_list.READER, hf_state.READER):
            log = logs.read(path, reader)
            assert isinstance(log.damage, list)
            assert 0 <= reader.sniff(head(path)) <= 1
