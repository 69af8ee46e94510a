"""A run as a trace: ids, parents, attributes, times, and what went wrong in it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from telemetry_cases import (
    ADAM,
    BLOCK,
    META,
    MODEL,
    STEP,
    T0,
    brick_event,
    one_step,
    run_event,
    span,
)

from brickprof.bricks import Brick, Kind
from brickprof.records import Event
from brickprof.run import Run
from brickprof.telemetry import export_run, export_to_provider


def exported(records, meta=META):
    """The spans that an exporter was handed for these records."""
    exporter = InMemorySpanExporter()
    result = export_run(Run.from_records(records, meta), exporter=exporter)
    spans = exporter.get_finished_spans()
    assert (result.spans, result.failed, result.error) == (len(spans), 0, "")
    return spans


def by_title(spans):
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def parents(spans):
    """The name of each span's parent, None for the root. Raises when a parent is not among the spans."""
    names = {span.context.span_id: span.name for span in spans}
    return {span.name: span.parent and names[span.parent.span_id] for span in spans}


def test_spans_nest_as_the_run_did():
    assert parents(exported([run_event(), *one_step()])) == {
        "run": None,
        "step": "run",
        "loader": "step",
        "forward": "step",
        "blocks.0": "forward",
        "backward": "step",
        "blocks.0 backward": "backward",
        "AdamW optimizer": "step",
    }


def test_ids_are_valid_unique_and_of_one_trace():
    spans = exported([*one_step(0), *one_step(1), *one_step(0, rank=1), *one_step(1, rank=1)])
    assert len(spans) == 4 * 7 + 1
    assert len({span.context.span_id for span in spans}) == len(spans)
    assert len({span.context.trace_id for span in spans}) == 1
    assert all(span.context.is_valid and span.context.trace_flags.sampled for span in spans)


def test_exporting_again_gives_the_same_ids_and_another_run_gives_others():
    first, again = exported(one_step()), exported(one_step())
    other = exported(one_step(), replace(META, run_id="train-20261115-0121-zzzz"))
    assert [span.context for span in first] == [span.context for span in again]
    assert first[0].context.trace_id != other[0].context.trace_id


def test_times_are_those_of_the_journal():
    spans = by_title(exported(one_step()))
    assert (spans["blocks.0"].start_time, spans["blocks.0"].end_time) == (T0 + 110_000, T0 + 190_000)
    assert (spans["step"].start_time, spans["step"].end_time) == (T0, T0 + 700_000)
    assert (spans["run"].start_time, spans["run"].end_time) == (T0, T0 + 700_000)


def test_attributes_say_what_and_where():
    spans = by_title(exported([run_event(), *one_step(step=3, rank=1)]))
    said = dict(spans["blocks.0"].attributes)
    assert said == {
        "brickprof.brick.name": "blocks.0",
        "brickprof.brick.granularity": "block",
        "brickprof.brick.actual_us": 60.0,
        "brickprof.host_us": 80.0,
        "brickprof.device_us": 60.0,
        "brickprof.device_time_known": True,
        "brickprof.phase": "forward",
        "brickprof.stream": 7,
        "brickprof.step": 3,
        "brickprof.rank": 1,
        "brickprof.node": 0,
        "brickprof.local_rank": 1,
        "brickprof.dp": 1,
        "brickprof.tp": 0,
        "brickprof.pp": 0,
        "brickprof.microbatch": 0,
    }
    assert spans["blocks.0 backward"].attributes["brickprof.microbatch"] == 1
    assert spans["AdamW optimizer"].attributes["brickprof.brick.granularity"] == "optimizer"


def test_unknown_device_time_is_said_not_invented():
    said = by_title(exported(one_step()))["forward"].attributes
    assert said["brickprof.device_time_known"] is False
    assert "brickprof.device_us" not in said
    assert said["brickprof.brick.actual_us"] == said["brickprof.host_us"] == 100.0


def test_models_are_named_only_when_there_are_two():
    other = Brick(Kind.BLOCK, "blocks.0", "Critic")
    spans = exported([*one_step(), span(90, other, "forward", 610, 620, parent=1)])
    names = {span.attributes.get("brickprof.brick.name") for span in spans}
    assert {"GPT.blocks.0", "Critic.blocks.0"} <= names


def test_a_lost_parent_moves_its_children_up_to_the_step():
    spans = [row for row in one_step() if row.brick != MODEL]
    assert parents(exported(spans))["blocks.0"] == "step"


def test_a_lost_step_moves_its_children_up_to_the_run():
    spans = [row for row in one_step() if row.brick != STEP]
    assert parents(exported(spans))["loader"] == "run"
    assert parents(exported(spans))["blocks.0"] == "forward"


def test_a_brick_that_holds_many_steps_is_their_parent():
    epoch = span(999, Brick(Kind.BLOCK, "epoch"), "user", 0, 90_000, step=60)
    steps = [replace(row, parent=999) if row.brick == STEP else row for n in range(60) for row in one_step(n)]
    spans = exported([*steps, epoch])
    above = next(span for span in spans if span.name == "epoch user").context.span_id
    assert {span.parent.span_id for span in spans if span.name == "step"} == {above}


@pytest.mark.parametrize("seed", range(20))
def test_no_parent_dangles_whatever_is_lost(seed):
    draw = random.Random(seed)
    rows = [row for rank in (0, 1) for step in range(12) for row in one_step(step, rank) if draw.random() < 0.6]
    spans = exported(rows)
    assert len(spans) == len(rows) + 1
    everyone = {span.context.span_id for span in spans}
    roots = [span for span in spans if span.parent is None]
    assert [span.name for span in roots] == ["run"]
    assert all(span.parent.span_id in everyone - {span.context.span_id} for span in spans if span.parent)


def test_ranks_keep_their_own_spans_and_processes():
    spans = exported([run_event(0), run_event(1), *one_step(rank=0), *one_step(rank=1)])
    steps = [span for span in spans if span.name == "step"]
    assert [span.resource.attributes["process.pid"] for span in steps] == [4000, 4001]
    for step in steps:
        below = [span for span in spans if span.parent and span.parent.span_id == step.context.span_id]
        assert {span.attributes["brickprof.rank"] for span in below} == {step.attributes["brickprof.rank"]}


def test_resource_names_the_process(monkeypatch):
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    said = by_title(exported([run_event(), *one_step()]))["step"].resource.attributes
    assert said["service.name"] == "brickprof"
    assert said["host.name"] == "box"
    assert said["process.pid"] == 4000
    assert said["brickprof.run.id"] == META.run_id


def test_resource_variables_win(monkeypatch):
    asked = "service.name=lower,team=vision%20a,brickprof.run.id=x,broken"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", asked)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer")
    said = exported(one_step())[0].resource.attributes
    assert said["service.name"] == "trainer"
    assert said["team"] == "vision a"
    assert said["brickprof.run.id"] == META.run_id


def test_an_exception_marks_its_step_and_the_run():
    fields = {
        "type": "ValueError",
        "message": "bad \x1b[31mbatch",
        "frames": ["train.py:3 in main", "step()"],
    }
    spans = by_title(exported([*one_step(), Event("exception", 0, fields, 9, T0 + 650_000)]))
    for name in ("step", "run"):
        assert spans[name].status.status_code is StatusCode.ERROR
        assert spans[name].attributes["error.type"] == "ValueError"
        [event] = spans[name].events
        assert (event.name, event.timestamp) == ("exception", T0 + 650_000)
        assert event.attributes["exception.type"] == "ValueError"
        assert event.attributes["exception.message"] == "bad \\x1b[31mbatch"
        assert event.attributes["exception.stacktrace"] == "train.py:3 in main\nstep()"
    assert spans["forward"].status.status_code is StatusCode.UNSET


def test_an_anomaly_marks_the_brick_it_names():
    fields = {"what": "activation", "brick": 2, "value": float("nan"), "until": 8, "tensor": None}
    trouble = Event("anomaly", 0, fields, 9, T0 + 150_000)
    spans = by_title(exported([brick_event(2, BLOCK), *one_step(), trouble]))
    block = spans["blocks.0"]
    assert block.status.status_code is StatusCode.ERROR
    assert block.attributes["error.type"] == "non_finite_activation"
    assert block.events[0].name == "brickprof.anomaly"
    assert block.events[0].attributes["brickprof.anomaly.until"] == 8
    assert "brickprof.anomaly.tensor" not in block.events[0].attributes
    assert spans["run"].status.status_code is StatusCode.UNSET


def test_trouble_in_a_step_without_spans_is_kept_on_the_run():
    spans = by_title(exported([*one_step(0), Event("anomaly", 7, {"what": "spike"}, 9, T0 + 5)]))
    assert [event.name for event in spans["run"].events] == ["brickprof.anomaly"]
    assert "error.type" not in spans["run"].attributes


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        ("exited", {"code": 0}, None),
        ("exited", {"code": 3}, "exit 3"),
        ("exited", {"code": 137, "class": "killed", "text": "by SIGKILL", "signal": 9}, "killed"),
        ("signal", {"name": "SIGTERM", "signal": 15}, None),
        ("hang", {"seconds": 300.0}, "hang"),
    ],
)
def test_the_end_of_the_process_is_the_state_of_the_run(kind, fields, error):
    run = by_title(exported([*one_step(), Event(kind, 0, fields, 1, T0 + 800_000, rank=-1)]))["run"]
    assert run.attributes.get("error.type") == error
    assert (run.status.status_code is StatusCode.ERROR) is (error is not None)


def test_hostile_names_and_values_survive_the_encoder():
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    brick = Brick(Kind.BLOCK, "a\ud800\x1b]0;x\x07" + "y" * 5000, "M")
    rows = [span(2**62, brick, "forward", 5, 1, attributes={"big": 2**70, "none": None, "list": [1, {"a": 2}]})]
    found = exported(rows)
    [encoded] = [s for s in encode_spans(found).resource_spans[0].scope_spans[0].spans if s.name != "run"]
    assert len(encoded.name) < 500
    assert "\x1b" not in encoded.name
    assert encoded.end_time_unix_nano >= encoded.start_time_unix_nano
    said = {item.key: item.value for item in encoded.attributes}
    assert said["brickprof.big"].string_value == str(2**70)
    assert "brickprof.none" not in said


def test_a_run_without_spans_is_one_span():
    [run] = exported([run_event()])
    assert (run.name, run.parent) == ("run", None)


def test_a_provider_of_the_users_own_gets_the_same_tree():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "mine"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = otel.get_tracer_provider()
    trouble = Event("exception", 0, {"type": "ValueError", "message": "no"}, 9, T0 + 650_000)
    records = [run_event(), *one_step(), trouble]
    result = export_to_provider(Run.from_records(records, META), provider)
    spans = exporter.get_finished_spans()
    assert (result.spans, result.error) == (len(spans), "")
    theirs, ours = by_title(spans), by_title(exported(records))
    assert parents(spans) == parents(ours.values())
    assert {span.resource.attributes["service.name"] for span in spans} == {"mine"}
    for name, span_ in theirs.items():
        assert dict(span_.attributes) == dict(ours[name].attributes)
        assert (span_.start_time, span_.end_time) == (ours[name].start_time, ours[name].end_time)
        assert span_.status.status_code is ours[name].status.status_code
        assert [event.name for event in span_.events] == [event.name for event in ours[name].events]
    assert otel.get_tracer_provider() is before


def test_the_optimizer_is_a_brick_of_its_own():
    assert by_title(exported(one_step()))["AdamW optimizer"].attributes["brickprof.brick.name"] == ADAM.path
