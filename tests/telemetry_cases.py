"""Small runs whose trace is known in advance, and receivers that a test can ask what arrived."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from brickprof.bricks import Brick, Coordinates, Kind
from brickprof.records import Event, RunMeta, Span

T0 = 1_763_170_000_000_000_000
META = RunMeta("train-20261115-0121-k3f9", script="train.py", started_ns=T0, host="box", version="0.1.0")

STEP = Brick(Kind.STEP, "step")
MODEL = Brick(Kind.BLOCK, "", "GPT")
BLOCK = Brick(Kind.BLOCK, "blocks.0", "GPT")
ADAM = Brick(Kind.OPTIMIZER, "AdamW")
LOADER = Brick(Kind.LOADER, "loader")
BACKWARD = Brick(Kind.STEP, "backward")


def span(number, brick, phase, start, end, *, parent=0, step=0, rank=0, **more: Any) -> Span:
    place = Coordinates(node=0, local_rank=rank, dp=rank, microbatch=more.pop("micro", 0))
    return Span(
        brick, step, T0 + start * 1000, T0 + end * 1000, phase, number, parent,
        coordinates=place, rank=rank, **more,
    )  # fmt: skip


def one_step(step: int = 0, rank: int = 0, base: int | None = None) -> list[Span]:
    """The spans of a whole step, in the order in which bricks close; times are microseconds after T0."""
    first = 10 * step + 1 if base is None else base
    at = 1000 * step
    where = {"step": step, "rank": rank}
    device = {"device_ns": 60_000, "stream": 7}
    return [
        span(first + 1, LOADER, "loader", at, at + 50, parent=first, **where),
        span(first + 3, BLOCK, "forward", at + 110, at + 190, parent=first + 2, **device, **where),
        span(first + 2, MODEL, "forward", at + 100, at + 200, parent=first, **where),
        span(first + 5, BLOCK, "backward", at + 310, at + 390, parent=first + 4, micro=1, **where),
        span(first + 4, BACKWARD, "backward", at + 300, at + 400, parent=first, **where),
        span(first + 6, ADAM, "optimizer", at + 500, at + 600, parent=first, **where),
        span(first, STEP, "step", at, at + 700, **where),
    ]  # fmt: skip


def run_event(rank: int = 0) -> Event:
    fields = {"run_id": META.run_id, "pid": 4000 + rank, "host": "box", "rank": rank, "world_size": 2}
    return Event("run", 0, {**fields, "coordinates": {"local_rank": rank, "dp": rank}}, 0, T0, rank)


def brick_event(number: int, brick: Brick, rank: int = 0) -> Event:
    fields = {"id": number, "brick_kind": str(brick.kind), "path": brick.path, "model": brick.model}
    return Event("brick", 0, fields, number, T0, rank)


class Received:
    """What a receiver was sent, and how it answers."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.statuses: list[int] = []
        """Answers to give, in order; then 200."""
        self.hang = threading.Event()
        self.hang.set()
        self.url = ""

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def http_receiver() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.hang.wait(30)
            status = received.statuses.pop(0) if received.statuses else 200
            if status == 200:
                received.requests.append(ExportTraceServiceRequest.FromString(body))
            received.headers.append({name.lower(): value for name, value in self.headers.items()})
            received.paths.append(self.path)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        received.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver() -> Iterator[Received]:
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
        TraceServiceServicer,
        add_TraceServiceServicer_to_server,
    )

    received = Received()

    class Service(TraceServiceServicer):
        def Export(self, request, context):
            received.requests.append(request)
            received.headers.append(dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)
    received.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()
