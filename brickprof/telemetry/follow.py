"""What is new in the journal of a run that goes on: events and spans, each once.

Enters: the folder of a run, again and again. Leaves: whole records, ready for the trace.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from brickprof.bricks import Brick, Coordinates, Kind
from brickprof.journal import SPANS, Tail, rank_folders, schema
from brickprof.journal.frames import frames, schema_frame
from brickprof.journal.lines import decode_fields
from brickprof.records import PHASES, Event, Span

_NOWHERE = Coordinates()


class Follower:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events = Tail(folder)
        self._files: dict[int, _Spans] = {}
        self._bricks: dict[tuple[int, int], Brick] = {}
        self._places: dict[int, Coordinates] = {}

    def poll(self) -> tuple[list[Event], list[Span]]:
        """The events and spans written since the last call. Never raises on what it finds in the files."""
        rows = {rank: self._spans(rank, folder) for rank, folder in rank_folders(self._folder).items()}
        # Events after spans: the name of a brick is written before its first span.
        events = self._events.poll()
        for event in events:
            self._learn(event)
        return events, [self._span(rank, row) for rank, found in rows.items() for row in found]

    def _spans(self, rank: int, folder: Path) -> list[dict[str, Any]]:
        followed = self._files.get(rank)
        if followed is None or followed.path != folder / SPANS:  # a rank that was started again writes elsewhere
            followed = self._files[rank] = _Spans(folder / SPANS)
        return followed.poll()

    def _learn(self, event: Event) -> None:
        fields = event.fields
        try:
            if event.kind == "brick":
                brick = Brick(Kind(fields["brick_kind"]), str(fields["path"]), str(fields.get("model", "")))
                self._bricks[event.rank, fields["id"]] = brick
            elif event.kind == "run":
                self._places[event.rank] = Coordinates.from_dict(fields.get("coordinates") or {})
        except (KeyError, TypeError, ValueError):
            pass

    def _span(self, rank: int, row: dict[str, Any]) -> Span:
        place = self._places.get(rank, _NOWHERE).to_dict() | {"microbatch": max(row["micro"] or 0, 0)}
        return Span(
            brick=self._bricks.get((rank, row["brick"])) or Brick(Kind.BLOCK, f"brick {row['brick']}"),
            step=row["step"],
            start_ns=row["start_ns"],
            end_ns=row["end_ns"],
            phase=PHASES[row["phase"]] if 0 <= row["phase"] < len(PHASES) else "user",
            id=row["id"],
            parent=row["parent"],
            device_ns=row["device_ns"],
            stream=row["stream"],
            coordinates=Coordinates(**place),
            attributes=_attributes(row["attributes"]),
            rank=rank,
        )


class _Spans:
    """One file of spans, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = 0
        self._at = 0
        self._seq = 0

    def poll(self) -> list[dict[str, Any]]:
        try:
            with self.path.open("rb") as stream:
                self._notice(os.fstat(stream.fileno()))
                stream.seek(self._at)
                data = stream.read()
        except OSError:
            return []
        found = []
        end = 0
        for frame in frames(data):
            end = frame.end
            if frame.seq > self._seq:
                self._seq = frame.seq
                found.append(data[frame.start : frame.end])
        self._at += end
        return _rows(found)

    def _notice(self, status: os.stat_result) -> None:
        """A compacted file is another file: read it from its start, and skip what is known."""
        if status.st_ino != self._file or status.st_size < self._at:
            self._file, self._at = status.st_ino, 0


def _rows(messages: list[bytes]) -> list[dict[str, Any]]:
    import pyarrow as pa

    if not messages:
        return []
    try:
        table = pa.ipc.open_stream(b"".join([schema_frame("spans"), *messages])).read_all()
    except (pa.ArrowException, ValueError):
        return []  # of another version; Run.open reads such a file with more patience
    rows: list[dict[str, Any]] = table.select(schema("spans").names).to_pylist()
    return rows


def _attributes(text: str | None) -> dict[str, Any]:
    found = decode_fields(text) if text else None
    return found if isinstance(found, dict) else {}
