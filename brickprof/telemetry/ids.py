"""Trace and span ids that follow from the run itself.

Enters: a run's meta, a rank and a span's number in that rank's journal. Leaves: the 16 and 8 byte ids of
OpenTelemetry, the same every time, so that exporting a run again overwrites instead of doubling it.
"""

from __future__ import annotations

from hashlib import blake2b

from brickprof.records import RunMeta

ROOT_RANK = -1
"""The rank of what belongs to no training process: the launch, and the span of the run itself."""


def trace_id(meta: RunMeta) -> int:
    return _digest(f"{meta.run_id}\0{meta.started_ns}", size=16)


def span_id(trace: int, rank: int, number: int) -> int:
    return _digest(f"{trace:032x}\0{rank}\0{number}", size=8)


def root_id(trace: int) -> int:
    return span_id(trace, ROOT_RANK, 0)


def _digest(text: str, *, size: int) -> int:
    """Never zero: OpenTelemetry calls a zero id invalid."""
    raw = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=size, person=b"brickprof").digest()) or 1
