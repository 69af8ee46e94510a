"""``--to otlp`` from end to end: a recorded run, the command, and a receiver that parses what arrives.

Against a real backend on demand: ``BRICKPROF_PHOENIX=/path/to/phoenix pytest tests/test_export_otlp.py`` starts
arize-phoenix (``pip install arize-phoenix``, best in an environment of its own), sends runs to it over HTTP and over
gRPC, and asks it for the spans.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import pytest
from export_cases import META, hostile, two_ranks
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_cases import grpc_receiver, http_receiver, one_step, run_event

from brickprof.cli.app import main
from brickprof.journal import Journal, write_meta
from brickprof.records import PHASES, Event, RunMeta
from brickprof.run import Run
from brickprof.telemetry import LiveExporter
from brickprof.telemetry.jsonlines import JsonLines

PHOENIX = os.environ.get("BRICKPROF_PHOENIX", "")


@pytest.fixture(autouse=True)
def no_otel_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path):
    return str(two_ranks().save(tmp_path / "run"))


def said(span) -> dict:
    return {item.key: item.value for item in span.attributes}


def whole(spans) -> dict[str, object]:
    """The trace hangs together: one root, and every parent is there. The root."""
    numbers = {span.span_id for span in spans}
    assert len(numbers) == len(spans) and len({span.trace_id for span in spans}) == 1
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["run"]
    assert all(span.parent_span_id in numbers for span in spans if span.parent_span_id)
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    return roots[0]


@pytest.mark.parametrize("how", ["http", "grpc"])
def test_every_span_arrives_over_the_wire(folder, how, capsys):
    with (http_receiver if how == "http" else grpc_receiver)() as received:
        url = received.url if how == "http" else f"grpc://{received.url}"
        assert main(["export", folder, "--to", "otlp", "--endpoint", url]) == 0
        spans = received.spans()
    assert capsys.readouterr().out == f"exported 43 spans to {url}\n"
    assert len(spans) == 2 * 3 * 7 + 1
    whole(spans)
    assert {span.name for span in spans} == {
        "run", "step", "loader", "forward", "blocks.0", "softmax_kernel", "H2D transfer",
    }  # fmt: skip
    kernel = next(span for span in spans if span.name == "softmax_kernel")
    assert said(kernel)["brickprof.device_us"].double_value == 20.0
    assert {said(span)["brickprof.rank"].int_value for span in spans if span.name == "step"} == {0, 1}


def test_the_run_carries_what_was_found(folder):
    with http_receiver() as received:
        assert main(["export", folder, "--to", "otlp", "--endpoint", received.url]) == 0
        root = whole(received.spans())
    found = [event for event in root.events if event.name == "brickprof.finding"]
    assert found and root.status.code == 2
    told = {item.key: item.value for item in found[0].attributes}
    assert told["brickprof.finding.severity"].string_value == "error"
    assert told["brickprof.finding.symptom"].string_value


def test_a_healthy_run_is_no_error(tmp_path):
    run = Run.from_records([run_event(), *one_step()], META).save(tmp_path / "run")
    with http_receiver() as received:
        assert main(["export", str(run), "--to", "otlp", "--endpoint", received.url]) == 0
        assert whole(received.spans()).status.code == 0


def test_the_variables_say_where(folder, monkeypatch, capsys):
    with http_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        assert main(["export", folder, "--to", "otlp"]) == 0
        assert len(received.spans()) == 43
    assert received.url in capsys.readouterr().out


def test_a_window_of_steps_is_a_trace_too(folder):
    with http_receiver() as received:
        assert main(["export", folder, "--to", "otlp", "--endpoint", received.url, "--steps", "1"]) == 0
        spans = received.spans()
    whole(spans)
    assert {said(span)["brickprof.step"].int_value for span in spans if span.name != "run"} == {1}


def test_sending_and_writing_at_once_is_asked_about(folder, tmp_path, capsys):
    words = ["export", folder, "--to", "otlp", "--endpoint", "http://127.0.0.1:9", "-o", str(tmp_path / "x.jsonl")]
    assert main(words) == 2
    assert "--endpoint sends" in capsys.readouterr().err and not (tmp_path / "x.jsonl").exists()


def test_nobody_said_where_to(folder, capsys):
    assert main(["export", folder, "--to", "otlp"]) == 2
    assert "--endpoint http://localhost:4318, or -o FILE" in capsys.readouterr().err


def test_hostile_names_arrive_as_text(tmp_path):
    run = hostile().save(tmp_path / "run")
    with http_receiver() as received:
        assert main(["export", str(run), "--to", "otlp", "--endpoint", received.url]) == 0
        names = {span.name for span in received.spans()}
    assert any("<script>" in name for name in names) and all("\x1b" not in name and len(name) < 1000 for name in names)


def test_a_file_is_packed_where_its_name_says_so_and_whole_or_not_there(folder, tmp_path, monkeypatch, capsys):
    plain, packed = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    assert main(["export", folder, "--to", "otlp", "-o", str(plain)]) == 0
    assert main(["export", folder, "--to", "otlp", "-o", str(packed)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() != b""
    before = plain.read_bytes()

    def breaks(self, spans, of=JsonLines.export):
        of(self, spans)
        raise OSError("the disk is gone")

    monkeypatch.setattr(JsonLines, "export", breaks)
    assert main(["export", folder, "--to", "otlp", "-o", str(plain)]) == 2
    assert "the disk is gone" in capsys.readouterr().err and plain.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.jsonl", "trace.jsonl.gz"]


def test_a_rank_that_is_started_again_is_exported_while_it_goes_on(tmp_path):
    write_meta(tmp_path, META)
    exporter = InMemorySpanExporter()
    live = LiveExporter(tmp_path, exporter=exporter)
    for attempt, steps in (("rank00000", (0, 1)), ("rank00000-r1", (1, 2))):
        journal = Journal(tmp_path / attempt)
        journal.event("run", 0, {"pid": 1, "host": "box", "rank": 0})
        for each in (span for step in steps for span in one_step(step)):
            row = (each.id, each.parent, journal.brick(each.brick), PHASES.index(each.phase), each.step, 0,
                   each.start_ns, each.end_ns, None, None, None)  # fmt: skip
            journal.span(row)
        journal.close()
        live.poll()
    live.close()
    found = [span.attributes.get("brickprof.step") for span in exporter.get_finished_spans() if span.name == "step"]
    assert sorted(found) == [0, 1, 1, 2]


def test_a_log_has_no_spans(tmp_path, capsys):
    (tmp_path / "m.csv").write_text("step,train_loss\n0,3\n1,2\n2,1\n")
    assert main(["export", str(tmp_path / "m.csv"), "--to", "otlp", "--endpoint", "http://127.0.0.1:9"]) == 3
    assert "no timeline" in capsys.readouterr().err


# -- a real backend


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@contextmanager
def phoenix(folder):
    """A server of its own; its address, and the one it takes gRPC at."""
    web, grpc = free_port(), free_port()
    own = {"PHOENIX_WORKING_DIR": str(folder), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(web)}
    own |= {"PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_TELEMETRY_ENABLED": "false"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([PHOENIX, "serve"], env=os.environ | own, stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: asked(f"http://127.0.0.1:{web}/v1/projects"), seconds=120)
        yield f"http://127.0.0.1:{web}", f"grpc://127.0.0.1:{grpc}"
    finally:
        server.terminate()
        server.wait(30)


def asked(url: str):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


def until(question, *, seconds: float):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.5)
    raise AssertionError("no answer in time")


@pytest.mark.skipif(not PHOENIX, reason="BRICKPROF_PHOENIX does not name a phoenix to start")
def test_phoenix_shows_every_span(tmp_path):
    (tmp_path / "server").mkdir()
    meta = RunMeta("train-over-grpc", script="train.py", started_ns=META.started_ns)
    over = {
        "http": two_ranks().save(tmp_path / "http"),
        "grpc": Run.from_records([run_event(), *one_step(), Event("note", 0, {"text": "x"}, 3)], meta).save(
            tmp_path / "grpc"
        ),
    }
    with phoenix(tmp_path / "server") as (web, grpc):
        for _ in range(2):  # the same ids again: nothing doubles
            assert main(["export", str(over["http"]), "--to", "otlp", "--endpoint", web]) == 0
        assert main(["export", str(over["grpc"]), "--to", "otlp", "--endpoint", grpc]) == 0
        (project,) = asked(f"{web}/v1/projects")["data"]
        url = f"{web}/v1/projects/{project['id']}/spans?limit=1000"
        spans = until(lambda: (found := asked(url)["data"]) and len(found) >= 43 + 8 and found, seconds=60)
    traces = {span["context"]["trace_id"] for span in spans}
    assert len(spans) == 43 + 8 and len(traces) == 2
    ids = {span["context"]["span_id"] for span in spans}
    assert all(span["parent_id"] in ids for span in spans if span["parent_id"])
    roots = {span["status_code"]: span for span in spans if not span["parent_id"]}
    assert set(roots) == {"ERROR", "UNSET"}
    assert "brickprof.finding" in {event["name"] for event in roots["ERROR"]["events"]}
    block = next(span for span in spans if span["name"] == "blocks.0")
    assert block["attributes"]["brickprof.brick.name"] == "blocks.0"
