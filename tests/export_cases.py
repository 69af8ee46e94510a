"""Runs whose exports are known in advance: two ranks, a device, kernels, copies, trouble, and names made to harm."""

from __future__ import annotations

from telemetry_cases import ADAM, BACKWARD, BLOCK, LOADER, META, MODEL, STEP, T0, one_step, run_event, span

from brickprof.bricks import Brick, Kind
from brickprof.records import HISTOGRAM_BINS, Event, Record, RunMeta, Sample
from brickprof.run import Run

KERNEL = Brick(Kind.KERNEL, "softmax_kernel")
COPY = Brick(Kind.TRANSFER, "H2D")
HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e"\\\n=HYPERLINK(1)' + "x" * 10_000

__all__ = ["ADAM", "BACKWARD", "BLOCK", "COPY", "HOSTILE", "KERNEL", "LOADER", "META", "MODEL", "STEP", "T0"]


def us(micros: float) -> int:
    return T0 + int(micros * 1000)


def started(micros: float, **more) -> dict:
    return {"device_start_ns": us(micros), **more}


def device_step(step: int = 0, rank: int = 0) -> list[Record]:
    """A step that a device was timed in: bricks on stream 0, what a profiler saw on stream 7."""
    at, first = 1000 * step, 1000 * step + 1
    where = {"step": step, "rank": rank}
    seen = {"device_ns": 20_000, "stream": 7, **where}
    return [
        span(first + 1, LOADER, "loader", at, at + 50, parent=first, **where),
        span(first + 2, MODEL, "forward", at + 100, at + 200, parent=first, device_ns=300_000, stream=0,
             attributes=started(at + 120), **where),
        span(first + 3, BLOCK, "forward", at + 110, at + 190, parent=first + 2, device_ns=100_000, stream=0,
             attributes=started(at + 150), **where),
        span(first + 4, KERNEL, "forward", at + 130, at + 130, parent=first + 3,
             attributes=started(at + 170, source="profiler"), **seen),
        span(first + 5, COPY, "transfer", at + 60, at + 90, parent=first,
             attributes={"bytes": 4096, "site": "train.py:3"}, **where),
        span(first + 6, COPY, "forward", at + 105, at + 105, parent=first + 2,
             attributes=started(at + 140, source="profiler", bytes=64), **seen),
        span(first, STEP, "step", at, at + 700, device_ns=500_000, stream=0, attributes=started(at + 110), **where),
    ]  # fmt: skip


def numbers(steps: int, rank: int = 0) -> list[Event]:
    """What a healthy run tells at every step."""
    told: list[Event] = []
    for step in range(steps):
        at, seq = 1000 * step, 10 * step + 10
        told += [
            Event("loss", step, {"value": 2.0 - step, "micro": 0}, seq, us(at + 210), rank),
            Event("loss", step, {"value": 4.0 - step, "micro": 1}, seq + 1, us(at + 220), rank),
            Event("grad", step, {"l2": 0.5, "point": "step"}, seq + 2, us(at + 450), rank),
            Event("optimizer", step, {"optimizer": 0, "lr": [0.1, 0.01]}, seq + 3, us(at + 550), rank),
            Event("memory", step, {"rss": 1000 + step}, seq + 4, us(at + 650), rank),
        ]
    return told


def trouble() -> list[Event]:
    return [
        Event("loss", 3, {"value": float("nan"), "micro": 0}, 90, us(3210)),
        Event("loss", 4, {"value": float("nan"), "micro": 0}, 91, us(4210)),
        Event("exception", 4, {"type": "ValueError", "message": HOSTILE}, 92, us(4300)),
        Event(
            "exited", 0, {"code": None, "signal": 9, "class": "killed", "text": "killed by SIGKILL"}, 3, us(4400), -1
        ),
        card(2, us(2500)),
    ]


def card(step: int, time_ns: int) -> Event:
    fields = {"what": "sample", "device": 0, "ordinal": 0, "utilisation": 0.75, "power": 310.0, "memory_used": 10**9}
    return Event("card", step, fields, 2, time_ns, -1)


def samples(steps: int) -> list[Sample]:
    counts = [0] * HISTOGRAM_BINS
    counts[12], counts[13] = 600, 400
    return [
        Sample(
            BLOCK, "blocks.0.weight", role, step, 1024, absmax=1.0, l2=2.0, histogram=tuple(counts), time_ns=us(step)
        )
        for step in range(steps)
        for role in ("grad", "weight")
    ]


def two_ranks(steps: int = 3) -> Run:
    rows = [row for rank in (0, 1) for step in range(steps) for row in device_step(step, rank)]
    told = [event for rank in (0, 1) for event in (run_event(rank), *numbers(steps, rank))]
    return Run.from_records([*told, *rows, *samples(steps), *trouble()], META)


def hostile() -> Run:
    brick = Brick(Kind.BLOCK, HOSTILE, HOSTILE)
    fields = {"name": HOSTILE, "role": "other", "value": 1.0}
    sample = samples(1)[0]
    return Run.from_records(
        [
            run_event(),
            *one_step(),
            span(90, brick, "forward", 610, 620, parent=1, attributes={HOSTILE: HOSTILE, "nan": float("nan")}),
            Event("metric", 0, fields, 5, us(300)),
            Event("note", 0, {"text": HOSTILE}, 6, us(310)),
            Event("exception", 0, {"type": HOSTILE, "message": HOSTILE}, 7, us(320)),
            Event("collective", 0, {"op": HOSTILE, "ns": 1000, "phase": "done", "seq": 1}, 8, us(330)),
            Sample(brick, HOSTILE, "grad", 0, 8, histogram=sample.histogram, time_ns=us(1)),
        ],
        RunMeta(HOSTILE, script=HOSTILE, host=HOSTILE, started_ns=T0),
    )


def bare() -> Run:
    """A run that began, and of which nothing more is known."""
    return Run.from_records([run_event()], META)
