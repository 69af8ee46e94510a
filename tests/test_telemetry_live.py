"""A run that goes on: every span once, whenever it is asked, whatever the endpoint does meanwhile."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_cases import BLOCK, META, STEP, T0, http_receiver, one_step

from brickprof.journal import Journal, ProcessLog, rank_folder, write_meta
from brickprof.records import PHASES
from brickprof.telemetry import LiveExporter, export_run


class Writer:
    """A rank that trains: its spans go to a real journal."""

    def __init__(self, folder, rank=0):
        self.journal = Journal(rank_folder(folder, rank), flush_seconds=60)
        self.rank = rank
        about = {"run_id": META.run_id, "pid": 4000 + rank, "host": "box", "rank": rank}
        self.journal.event("run", 0, {**about, "coordinates": {"local_rank": rank, "dp": rank}})

    def spans(self, spans):
        for span in spans:
            self.journal.span(
                (span.id, span.parent, self.journal.brick(span.brick), PHASES.index(span.phase), span.step,
                 span.coordinates.microbatch, span.start_ns, span.end_ns, span.device_ns, span.stream, None)
            )  # fmt: skip
        self.journal.flush()


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "train-20261115-0121-k3f9"
    run.mkdir()
    write_meta(run, META)
    return run


def seen(exporter):
    """How often each span was handed over, by name, rank and step."""
    return Counter(
        (span.name, span.attributes.get("brickprof.rank"), span.attributes.get("brickprof.step"))
        for span in exporter.get_finished_spans()
    )


def test_each_span_arrives_once_with_its_parent(folder):
    exporter = InMemorySpanExporter()
    live = LiveExporter(folder, exporter=exporter)
    assert live.poll().spans == 0
    writer = Writer(folder)
    for step in range(10):
        rows = one_step(step)
        writer.spans(rows[:3])
        live.poll()
        writer.spans(rows[3:])
        live.poll()
    assert 0 < live.total.spans < 70
    total = live.close()
    assert (total.spans, total.failed, total.error) == (71, 0, "")
    assert set(seen(exporter).values()) == {1}
    everyone = {span.context.span_id: span for span in exporter.get_finished_spans()}
    blocks = [span for span in everyone.values() if span.name == "blocks.0"]
    assert len(blocks) == 10
    assert {everyone[span.parent.span_id].name for span in blocks} == {"forward"}
    assert [span.name for span in everyone.values() if span.parent is None] == ["run"]
    assert live.close() is total or live.close() == total
    assert len(exporter.get_finished_spans()) == 71


def test_many_steps_in_one_poll_keep_their_parents(folder):
    exporter = InMemorySpanExporter()
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    for step in range(60):
        writer.spans(one_step(step))
    live.poll()
    live.close()
    everyone = {span.context.span_id: span for span in exporter.get_finished_spans()}
    above = Counter((span.name, everyone[span.parent.span_id].name) for span in everyone.values() if span.parent)
    assert above["blocks.0", "forward"] == above["forward", "step"] == above["step", "run"] == 60


def test_live_and_afterwards_are_the_same_trace(folder):
    live_exporter, later_exporter = InMemorySpanExporter(), InMemorySpanExporter()
    live = LiveExporter(folder, exporter=live_exporter)
    ranks = [Writer(folder, rank) for rank in (0, 1)]
    ProcessLog(folder).event("exited", 5, {"code": 1})
    for step in range(6):
        for writer in ranks:
            writer.spans(one_step(step, writer.rank))
        live.poll()
    ranks[1].journal.event("exception", 5, {"type": "ValueError", "message": "no"})
    live.close()
    for writer in ranks:
        writer.journal.close()
    export_run(folder, exporter=later_exporter)

    def trace(exporter):
        return {span.context.span_id: span.to_json() for span in exporter.get_finished_spans()}

    assert len(trace(live_exporter)) == 2 * 6 * 7 + 1
    assert trace(live_exporter) == trace(later_exporter)


def test_a_straggler_still_finds_its_parent(folder):
    exporter = InMemorySpanExporter()
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    late = next(span for span in one_step(0) if span.brick == BLOCK)
    writer.spans([span for span in one_step(0) if span is not late and span != late])
    for step in range(1, 5):
        writer.spans(one_step(step))
        live.poll()
    writer.spans([late])
    live.close()
    everyone = {span.context.span_id: span for span in exporter.get_finished_spans()}
    [found] = [s for s in everyone.values() if s.name == "blocks.0" and s.attributes["brickprof.step"] == 0]
    assert everyone[found.parent.span_id].name == "forward"


def test_a_compacted_file_brings_nothing_twice(folder):
    exporter = InMemorySpanExporter()
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    file = rank_folder(folder, 0) / "spans.arrow"
    for step in range(6):
        writer.spans(one_step(step))
    live.poll()
    copy = file.with_suffix(".new")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)  # what compaction does: another file under the same name
    live.poll()
    live.close()
    assert sum(seen(exporter).values()) == 43
    assert set(seen(exporter).values()) == {1}


def test_a_torn_end_is_read_when_it_is_whole(folder):
    exporter = InMemorySpanExporter()
    writer = Writer(folder)
    for step in range(4):
        writer.spans(one_step(step))
    writer.journal.close()
    file = rank_folder(folder, 0) / "spans.arrow"
    whole = file.read_bytes()
    live = LiveExporter(folder, exporter=exporter)
    with file.open("r+b") as stream:
        stream.truncate(len(whole) - 40)
        live.poll()
        stream.seek(0, 2)
        stream.write(whole[-40:])
    live.close()
    assert sum(seen(exporter).values()) == 29


class Flaky(SpanExporter):
    def __init__(self, failures):
        self.failures = failures
        self.got = InMemorySpanExporter()

    def export(self, spans):
        if self.failures:
            self.failures -= 1
            return SpanExportResult.FAILURE
        return self.got.export(spans)


def test_what_an_endpoint_refused_is_sent_again(folder, monkeypatch):
    monkeypatch.setattr("brickprof.telemetry.live._FIRST_PAUSE", 0.0)
    exporter = Flaky(3)
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    for step in range(8):
        writer.spans(one_step(step))
        live.poll()
    total = live.close()
    assert (total.spans, total.failed, total.error) == (57, 0, "")
    assert set(seen(exporter.got).values()) == {1}


def test_an_endpoint_that_is_down_is_left_in_peace_and_memory_is_bounded(folder, monkeypatch):
    monkeypatch.setattr("brickprof.telemetry.live.BACKLOG", 50)
    exporter = Flaky(10**9)
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    for step in range(40):
        writer.spans(one_step(step))
        live.poll()
    assert exporter.failures == 10**9 - 1
    assert len(live._waiting) <= 50
    total = live.close()
    assert (total.spans, total.failed) == (0, 281)
    assert total.error


def test_over_http_until_the_end(folder):
    with http_receiver() as received:
        live = LiveExporter(folder, received.url)
        writer = Writer(folder)
        for step in range(5):
            writer.spans(one_step(step))
            live.poll()
        total = live.close()
    assert (total.spans, total.failed, total.error) == (36, 0, "")
    assert len({span.span_id for span in received.spans()}) == len(received.spans()) == 36


def test_a_hanging_endpoint_takes_its_deadline_and_no_more(folder):
    with http_receiver() as received:
        received.hang.clear()
        live = LiveExporter(folder, received.url, deadline=0.4)
        writer = Writer(folder)
        for step in range(5):
            writer.spans(one_step(step))
        start = time.monotonic()
        assert live.poll().error
        assert live.poll().spans == 0
        total = live.close()
        assert time.monotonic() - start < 8  # an exporter of its own accord takes ten seconds, and tries again
    assert (total.spans, total.failed) == (0, 36)
    assert "no answer" in total.error or "timeout" in total.error  # whoever was the first to give up


def test_a_wrong_endpoint_is_said_not_raised(folder):
    live = LiveExporter(folder, "ftp://nowhere")
    writer = Writer(folder)
    for step in range(5):
        writer.spans(one_step(step))
    assert "ftp://nowhere" in live.poll().error
    assert live.close().spans == 0


def test_a_folder_with_nothing_in_it_yet(tmp_path):
    exporter = InMemorySpanExporter()
    live = LiveExporter(tmp_path / "not-there-yet", exporter=exporter)
    assert live.poll().complete
    assert live.close().spans == 1


def test_the_names_of_bricks_are_there_before_their_spans(folder):
    exporter = InMemorySpanExporter()
    live = LiveExporter(folder, exporter=exporter)
    writer = Writer(folder)
    writer.spans(one_step(0))
    live.close()
    names = {span.attributes.get("brickprof.brick.name") for span in exporter.get_finished_spans()}
    assert {"blocks.0", STEP.path, "AdamW"} <= names
    assert min(span.start_time for span in exporter.get_finished_spans()) == T0
