"""Over the wire and into a file: what arrives, and what a bad endpoint costs."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_cases import META, grpc_receiver, http_receiver, one_step, run_event

from brickprof.errors import NotARun
from brickprof.records import Event
from brickprof.run import Run
from brickprof.telemetry import configured_endpoint, export_run

STEPS = 80  # 561 spans: two batches


@pytest.fixture(autouse=True)
def no_otel_variables(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def a_run(steps: int = STEPS) -> Run:
    trouble = Event("exception", 0, {"type": "ValueError", "message": "no"}, 9, META.started_ns + 10)
    values = {"nan": float("nan"), "inf": float("-inf"), "big": 2**60, "yes": True, "text": 'é\u2028"<'}
    odd = Event("anomaly", 0, {"what": "loss", **values}, 10, META.started_ns + 20)
    rows = [row for step in range(steps) for row in one_step(step)]
    return Run.from_records([run_event(), trouble, odd, *rows], META)


def encoded(run: Run) -> ExportTraceServiceRequest:
    """What an exporter in this process was handed, through the SDK's own encoder."""
    exporter = InMemorySpanExporter()
    export_run(run, exporter=exporter)
    return encode_spans(exporter.get_finished_spans())


def expected(run: Run) -> dict[bytes, bytes]:
    """Each span by its id, as bytes of protobuf."""
    return by_id(encoded(run))


def resources_of(requests) -> set[tuple[bytes, bytes]]:
    return {
        (resource.resource.SerializeToString(), scope.scope.SerializeToString())
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
    }


def by_id(*requests: ExportTraceServiceRequest) -> dict[bytes, bytes]:
    spans = [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    found = {span.span_id: span.SerializeToString(deterministic=True) for span in spans}
    assert len(found) == len(spans)
    return found


def test_http_receives_every_span():
    run = a_run()
    with http_receiver() as received:
        result = export_run(run, endpoint=received.url)
    assert (result.spans, result.batches, result.failed, result.error) == (STEPS * 7 + 1, 2, 0, "")
    assert received.paths == ["/v1/traces"] * 2
    assert received.headers[0]["content-type"] == "application/x-protobuf"
    assert by_id(*received.requests) == expected(run)
    resources = {
        item.value.string_value
        for request in received.requests
        for resource in request.resource_spans
        for item in resource.resource.attributes
        if item.key == "brickprof.run.id"
    }
    assert resources == {META.run_id}


@pytest.mark.parametrize("how", ["scheme", "protocol", "variable"])
def test_grpc_receives_every_span(how, monkeypatch):
    run = a_run()
    with grpc_receiver() as received:
        if how == "scheme":
            result = export_run(run, endpoint=f"grpc://{received.url}")
        elif how == "protocol":
            result = export_run(run, endpoint=f"http://{received.url}", protocol="grpc")
        else:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{received.url}")
            result = export_run(run)
    assert (result.spans, result.failed, result.error) == (STEPS * 7 + 1, 0, "")
    assert by_id(*received.requests) == expected(run)


def test_variables_say_where_and_with_what(monkeypatch):
    with http_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{received.url}/base/")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret,x=1")
        result = export_run(a_run(1))
    assert result.complete
    assert received.paths == ["/base/v1/traces"]
    assert received.headers[0]["api-key"] == "s3cret"


def test_variables_of_the_signal_win_and_are_taken_as_they_are(monkeypatch):
    with http_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{received.url}/here")
        assert export_run(a_run(1)).complete
    assert received.paths == ["/here"]


@pytest.mark.parametrize("suffix", ["", "/", "/v1/traces", "/v1/traces/"])
def test_an_endpoint_may_be_a_base_or_the_whole(suffix):
    with http_receiver() as received:
        assert export_run(a_run(1), endpoint=received.url + suffix).complete
        assert export_run(a_run(1), endpoint=received.url.removeprefix("http://") + suffix).complete
    assert received.paths == ["/v1/traces"] * 2


def test_file_holds_one_request_a_line_in_otlp_json(tmp_path):
    run = a_run()
    file = tmp_path / "trace.jsonl"
    result = export_run(run, file=file)
    assert (result.spans, result.batches, result.error) == (STEPS * 7 + 1, 2, "")
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) == 2
    spans = [
        span
        for line in lines
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    root = next(span for span in spans if span["name"] == "run")
    assert len(bytes.fromhex(root["traceId"])) == 16
    assert len(bytes.fromhex(root["spanId"])) == 8
    assert "parentSpanId" not in root
    assert root["startTimeUnixNano"] == str(META.started_ns)
    assert root["kind"] == 1
    assert root["status"]["code"] == 2
    said = {item["key"]: item["value"] for item in root["attributes"]}
    assert said["brickprof.run.ranks"] == {"intValue": "1"}
    assert {span.get("parentSpanId") for span in spans} - {None} <= {span["spanId"] for span in spans}
    requests = [ParseDict(with_base64_ids(json.loads(line)), ExportTraceServiceRequest()) for line in lines]
    assert by_id(*requests) == expected(run)
    assert resources_of(requests) == resources_of([encoded(run)])


def with_base64_ids(document):
    """OTLP's JSON writes ids in hexadecimal, where protobuf's own has base64; all else is the same."""
    if isinstance(document, list):
        return [with_base64_ids(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        key: b64encode(bytes.fromhex(value)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else with_base64_ids(value)
        for key, value in document.items()
    }


def test_a_file_that_cannot_be_written_is_an_answer(tmp_path):
    result = export_run(a_run(1), file=tmp_path / "missing" / "trace.jsonl")
    assert (result.spans, result.failed) == (0, 8)
    assert "missing" in result.error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_answer():
    result = export_run(a_run(), file=Path("/dev/full"))
    assert "No space left" in result.error
    assert not result.complete


@contextmanager
def deaf_server():
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def dribbling_server():
    """Answers one byte at a time, so that no time limit of a socket ever fires."""
    stop = threading.Event()

    def serve(server):
        connection, _ = server.accept()
        with connection, suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x-slow: 1\r\n" * 500:
                if stop.wait(0.05):
                    return
                connection.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        stop.set()


@contextmanager
def nobody():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    yield address


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("place", [nobody, deaf_server, dribbling_server])
def test_a_bad_endpoint_costs_bounded_time_and_raises_nothing(place, scheme, capfd):
    with place() as address:
        start = time.monotonic()
        result = export_run(a_run(), endpoint=f"{scheme}://{address}", deadline=1.0)
        took = time.monotonic() - start
    assert took < 4
    assert (result.spans, result.failed) == (0, STEPS * 7 + 1)
    assert result.error
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


@pytest.mark.parametrize("status", [500, 404])
def test_a_refusal_is_reported_with_what_had_arrived(status):
    with http_receiver() as received:
        received.statuses = [200, *[status] * 50]
        result = export_run(a_run(), endpoint=received.url, deadline=5)
    assert (result.spans, result.batches, result.failed) == (512, 1, STEPS * 7 + 1 - 512)
    # Older SDKs ask again after a 500, until the deadline.
    assert str(status) in result.error or "no answer within 5 s" in result.error


def test_a_busy_endpoint_is_asked_again():
    with http_receiver() as received:
        received.statuses = [503]
        assert export_run(a_run(1), endpoint=received.url).complete


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("ftp://x", None),
        ("http://", None),
        ("http://x:notaport", None),
        ("http://x", "http/json"),
        ("grpc://", None),
    ],
)
def test_a_wrong_endpoint_is_an_answer_with_a_hint(endpoint, protocol):
    result = export_run(a_run(1), endpoint=endpoint, protocol=protocol)
    assert (result.spans, result.failed) == (0, 8)
    assert "localhost:4318" in result.error or "http/protobuf" in result.error


class Raising(SpanExporter):
    def export(self, spans):
        raise RuntimeError("boom")


def test_an_exporter_that_raises_is_an_answer():
    assert "RuntimeError: boom" in export_run(a_run(1), exporter=Raising()).error


def test_a_folder_that_is_no_run_raises(tmp_path):
    with pytest.raises(NotARun):
        export_run(tmp_path, exporter=InMemorySpanExporter())


def test_the_global_provider_and_the_loggers_are_left_as_they_were():
    before = otel.get_tracer_provider()
    logger = logging.getLogger("opentelemetry")
    state = (logger.propagate, list(logger.handlers))
    with nobody() as address:
        export_run(a_run(1), endpoint=f"http://{address}", deadline=0.5)
    for _ in range(100):
        if (logger.propagate, logger.handlers) == state:
            break
        time.sleep(0.05)
    assert (logger.propagate, logger.handlers) == state
    assert otel.get_tracer_provider() is before


def test_a_hanging_endpoint_does_not_hold_the_process_at_its_end():
    with deaf_server() as address:
        program = (
            "import telemetry_cases as cases\n"
            "from brickprof.run import Run\n"
            "from brickprof.telemetry import export_run\n"
            "run = Run.from_records(cases.one_step(), cases.META)\n"
            f"print(export_run(run, endpoint='http://{address}', deadline=0.5).error)\n"
        )
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=Path(__file__).parent,
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    assert time.monotonic() - start < 15
    assert "no answer within 0.5 s" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://a:1"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b"},
            "http://b",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_TRACES_EXPORTER": "otlp"}, "http://a:1"),
    ],
)
def test_whether_the_environment_asks_for_traces(variables, endpoint, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert configured_endpoint() == endpoint


def test_the_time_limit_of_the_environment_is_kept(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    with deaf_server() as address:
        start = time.monotonic()
        result = export_run(a_run(1), endpoint=f"http://{address}", deadline=20)
    assert time.monotonic() - start < 5
    assert result.error
