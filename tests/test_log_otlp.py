"""OTLP JSON lines, our own and the collector's; and our own recordings, which need no reading."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_cases import META, T0, one_step, run_event

import brickprof
from brickprof import logs
from brickprof.analysis import analyse
from brickprof.errors import NotARun
from brickprof.journal.lines import encode
from brickprof.logs import journal
from brickprof.logs.otlp import READER
from brickprof.logs.reading.model import Head
from brickprof.records import Event
from brickprof.run import Run
from brickprof.telemetry import export_run


def attributes(**said) -> list[dict]:
    def value(one):
        if isinstance(one, bool):
            return {"boolValue": one}
        if isinstance(one, int):
            return {"intValue": str(one)}
        return {"doubleValue": one} if isinstance(one, float) else {"stringValue": one}

    return [{"key": key.replace("__", "."), "value": value(one)} for key, one in said.items()]


def metric(name: str, *points: dict, kind: str = "gauge") -> dict:
    held = {kind: {"dataPoints": list(points)}}
    return {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": [{"name": name, **held}]}]}]}


def spans(*found: dict) -> dict:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(found)}]}]}


def a_span(name: str, start: int, nanoseconds: int, **more) -> dict:
    return {
        "name": name,
        "startTimeUnixNano": str(T0 + start),
        "endTimeUnixNano": str(T0 + start + nanoseconds),
        **more,
    }


def written(path, *exports):
    path.write_text("".join(json.dumps(export) + "\n" for export in exports))
    return path


def test_what_brickprof_exports_comes_back_as_steps_and_bricks(tmp_path):
    path = tmp_path / "trace.jsonl"
    broken = Event("exception", 4, {"type": "RuntimeError", "message": "boom", "frames": ["train.py:3 in step"]}, 9, T0)
    run = Run.from_records([run_event(), *(span for step in range(5) for span in one_step(step)), broken], META)
    assert export_run(run, file=path).failed == 0
    log = logs.read(path)
    assert log.format == "otlp" and not log.damage and not log.unread
    assert list(log.series) == ["step_seconds"]
    assert log.series["step_seconds"].steps.tolist() == [0, 1, 2, 3, 4]
    assert log.series["step_seconds"].values.tolist() == pytest.approx([700e-6] * 5)
    (top,) = [fact.fields["top"] for fact in log.facts if fact.kind == "spans"]
    blocks = next(one for one in top if one["name"] == "blocks.0")
    assert blocks["granularity"] == "block" and blocks["count"] == 10
    assert blocks["seconds"] == pytest.approx(10 * 80e-6) and blocks["device_seconds"] == pytest.approx(5 * 60e-6)
    (thrown,) = {fact.fields["message"]: fact.fields for fact in log.facts if fact.kind == "exception"}.values()
    assert thrown["type"] == "RuntimeError" and thrown["frames"] == ["train.py:3 in step"]
    assert any(fact.fields["values"].get("service.name") == "brickprof" for fact in log.facts if fact.kind == "setting")


def test_points_of_metrics_are_series(tmp_path):
    exports = [
        metric("train.loss", {"asDouble": 2.0 - step, "attributes": attributes(step=step)}, kind="gauge")
        for step in range(3)
    ]
    exports.append(metric("train.loss", {"asDouble": "NaN", "attributes": attributes(step=3)}))
    exports += [metric("tokens", {"asInt": str(2**40 + step)}, kind="sum") for step in range(2)]
    exports.append(metric("gpu.memory", {"asInt": 7, "attributes": attributes(device=1)}))
    exports.append(metric("latency", {"count": "4", "sum": 2.0, "min": 0.25, "max": 1.0}, kind="histogram"))
    log = logs.read(written(tmp_path / "metrics.json", *exports))
    loss = log.series["train.loss"]
    assert loss.role == "loss" and loss.steps.tolist() == [0, 1, 2, 3]
    assert loss.values[:3].tolist() == [2.0, 1.0, 0.0] and math.isnan(loss.values[3])
    assert log.series["tokens"].values.tolist() == [2.0**40, 2.0**40 + 1]
    assert log.series["gpu.memory{device=1}"].values.tolist() == [7.0]
    assert log.series["latency/mean"].values.tolist() == [0.5] and log.series["latency/max"].values.tolist() == [1.0]


def test_spans_of_others_that_name_their_step(tmp_path):
    stepped = [
        a_span(
            "train_step", 10**9 * step, 250_000_000, attributes=attributes(global_step=step, loss=1.5 - step, ok=True)
        )
        for step in range(3)
    ]
    failed = a_span("save", 0, 5, events=[{"name": "exception", "attributes": attributes(exception__type="OSError")}])
    log = logs.read(written(tmp_path / "t.json", spans(*stepped, failed)))
    assert log.series["loss"].steps.tolist() == [0, 1, 2] and log.series["loss"].values.tolist() == [1.5, 0.5, -0.5]
    assert log.series["train_step seconds"].role == "step_seconds"
    assert log.series["train_step seconds"].values.tolist() == [0.25] * 3
    assert [fact.fields["type"] for fact in log.facts if fact.kind == "exception"] == ["OSError"]


def test_logs_that_tell_of_an_exception(tmp_path):
    said = attributes(exception__type="ValueError", exception__message="no", exception__stacktrace="a.py:1\nb.py:2")
    record = {"timeUnixNano": "1", "body": {"stringValue": "failed"}, "attributes": said}
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, {"body": {"stringValue": "fine"}}]}]}]}
    (fact,) = logs.read(written(tmp_path / "l.json", export)).facts
    assert fact.fields == {"type": "ValueError", "message": "no", "frames": ["a.py:1", "b.py:2"]}


def test_one_export_over_many_lines_and_packed(tmp_path):
    export = metric("loss", {"asDouble": 1.0, "attributes": attributes(step=1)})
    path = tmp_path / "pretty.json.gz"
    path.write_bytes(gzip.compress(json.dumps(export, indent=2).encode()))
    log = logs.read(path)
    assert log.format == "otlp" and log.series["loss"].values.tolist() == [1.0]


def test_cut_off_anywhere_it_gives_what_came_before(tmp_path):
    exports = [metric("loss", {"asDouble": 1.0, "attributes": attributes(step=step)}) for step in range(3)]
    path = written(tmp_path / "m.json", *exports)
    whole = path.read_bytes()
    size = len(whole) // 3
    for cut in range(30, len(whole)):
        path.write_bytes(whole[:cut])
        log = logs.read(path, READER)
        count = len(log.series["loss"]) if "loss" in log.series else 0
        assert count == (cut + 1) // size
        assert log.unread == (0 if cut % size in (0, size - 1) else 1)


@pytest.mark.parametrize(
    "export",
    [
        {"resourceSpans": 7}, {"resourceSpans": [None, {"scopeSpans": {}}]},
        {"resourceMetrics": [{"scopeMetrics": [[]]}]},
        spans({"name": ["x"], "startTimeUnixNano": "x", "endTimeUnixNano": 10**40}),
        spans(a_span("\x1b[2J", 0, 5, attributes=[{"key": 1}, {"value": {"arrayValue": {"values": [[], {}]}}}])),
        spans(a_span("x", 0, 5, attributes=attributes(step=10**18), events={})),
        metric("\x1b]0;", {"asDouble": 10**400}, {"asInt": "many"}, {"count": 0, "sum": 1}, {"count": "x"}),
        metric("m", {"asDouble": float("inf"), "attributes": [{"key": "k", "value": {"kvlistValue": {}}}]}),
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"attributes": "x"}]}]}]},
    ],
)  # fmt: skip
def test_exports_that_are_not_as_they_should_be(tmp_path, export):
    good = metric("loss", {"asDouble": 1.0, "attributes": attributes(step=1)})
    log = logs.read(written(tmp_path / "m.json", export, good), READER)
    assert log.series["loss"].values.tolist() == [1.0] and not log.damage
    assert all(name.isprintable() for name in log.series)
    assert all(str(fact.fields).isprintable() for fact in log.facts)


def test_attributes_without_bound_do_not_become_series_without_bound(tmp_path):
    points = [{"asInt": 1, "attributes": attributes(request=number)} for number in range(5_000)]
    log = logs.read(written(tmp_path / "m.json", metric("hits", *points)), READER)
    assert len(log.series) <= 4_000


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["resourceSpans", "scopeSpans", "spans", "resourceMetrics", "scopeMetrics", "metrics", "gauge",
                 "dataPoints", "attributes", "key", "value", "asDouble", "asInt", "name", "events", "intValue"]
            ), inner, max_size=4,
        ),
        max_leaves=25,
    )
)  # fmt: skip
def test_arbitrary_json_is_read_or_passed_by(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("any") / "m.json"
    path.write_text(json.dumps({"resourceSpans": value, "resourceMetrics": value}) + "\n")
    log = logs.read(path, READER)
    assert not log.damage


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_counted_as_unread(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "m.json"
    path.write_bytes(b'{"resourceSpans": []}\n' + data)
    log = logs.read(path, READER)
    assert not log.series and not log.damage


def test_other_lines_are_not_taken_for_it():
    assert READER.sniff(Head("a.jsonl", b'{"step": 1, "loss": 2}')) == 0.0
    assert READER.sniff(Head("a.jsonl", b'{"text": "resourceSpans"}')) == 0.0
    assert READER.sniff(Head("a.log", b"resourceSpans")) == 0.0


# -- our own recordings


def recorded(folder, steps: int = 6):
    home = folder / "rank00000"
    home.mkdir(parents=True)
    lines = [encode(0, T0, "run", 0, {"run_id": "r", "rank": 0})]
    for step in range(steps):
        lines.append(encode(len(lines), T0 + step, "loss", step, {"value": 2.0 - step / 4}))
        lines.append(encode(len(lines), T0 + step, "optimizer", step, {"lr": [0.1, 0.2]}))
        lines.append(encode(len(lines), T0 + step, "grad", step, {"l2": 0.5}))
    packed = {"steps": [steps, steps + 1], "micros": [0, 0], "values": [math.nan, 1.0], "times": [T0 + 7, T0 + 8]}
    lines.append(encode(len(lines), T0 + 9, "losses", steps + 1, packed))
    lines.append(encode(len(lines), T0 + 9, "exception", steps, {"type": "E", "message": "m", "frames": ["a.py:1"]}))
    (home / "events.jsonl").write_bytes(b"".join(lines))
    return home / "events.jsonl"


def test_a_run_and_its_files_are_known_for_what_they_are(tmp_path):
    events = recorded(tmp_path / "run")
    assert journal.folder(tmp_path / "run") and journal.folder(events)
    assert journal.run(tmp_path / "run").loss["value"].tolist()[:2] == [2.0, 1.75]
    assert len(journal.run(events).loss) == len(brickprof.load(tmp_path / "run").loss) == 8
    alone = tmp_path / "copied" / "events.jsonl"
    alone.parent.mkdir()
    alone.write_bytes(events.read_bytes())
    assert journal.folder(alone) and len(journal.run(alone).loss) == 8


def test_other_folders_and_files_are_not(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "events.jsonl").write_text('{"step": 1, "loss": 2}\n')
    (tmp_path / "train.log").write_text('{"seq":0}\n')
    for path in (
        tmp_path,
        tmp_path / "meta.json",
        tmp_path / "events.jsonl",
        tmp_path / "train.log",
        tmp_path / "none",
    ):
        assert not journal.folder(path), path
    stranger = tmp_path / "a" / "b" / "events.jsonl"
    stranger.parent.mkdir(parents=True)
    stranger.write_text('{"step": 1, "loss": 2}\n')
    with pytest.raises(NotARun):
        journal.run(stranger)


def test_recordings_are_judged_as_what_they_are_and_folders_of_ranks_are_not_taken_for_one(tmp_path):
    events = recorded(tmp_path / "run")
    for path in (tmp_path / "run", events):
        (run,) = analyse([path]).runs
        assert run.diagnosis.findings[0].root_cause == "exception" and run.rows == 8
    for rank in range(2):
        home = tmp_path / "foreign" / f"rank{rank}"
        home.mkdir(parents=True)
        (home / "train.log").write_text("".join(f"step {step} loss {2 - step / 90:.3f}\n" for step in range(50)))
    assert not journal.folder(tmp_path / "foreign")
    (run,) = analyse([tmp_path / "foreign"]).runs
    assert run.format == "text" and run.rows == 100


def test_packed_events_are_read_like_any_log(tmp_path):
    events = recorded(tmp_path / "run")
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress(events.read_bytes() + b'{"seq":99,"t":1,"kind":"loss","step":9,"value":1}\n'))
    log = logs.read(path)
    assert log.format == "brickprof" and log.unread == 1
    assert log.series["loss"].steps.tolist() == list(range(8)) and math.isnan(log.series["loss"].values[6])
    assert log.series["lr"].values.tolist() == [0.1] * 6 and log.series["grad_norm"].role == "grad_norm"
    (thrown,) = [fact.fields for fact in log.facts if fact.kind == "exception"]
    assert thrown == {"type": "E", "message": "m", "frames": ["a.py:1"]}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=120))
def test_arbitrary_lines_among_events_are_unread(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "events.jsonl"
    path.write_bytes(encode(0, T0, "loss", 1, {"value": 1.0}) + data)
    log = logs.read(path, journal.READER)
    assert log.series["loss"].values.tolist() == [1.0]
    assert log.unread == sum(bool(line.strip()) for line in data.split(b"\n"))
