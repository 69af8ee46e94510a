"""Who and when: ``meta.json``, with its own checksum.

Enters: a ``RunMeta``. Leaves: the same one, or the best that the journal itself can say when the file is
damaged or was never written.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from zlib import crc32

from brickprof.errors import OutputError
from brickprof.journal.damage import Damage
from brickprof.journal.layout import EVENTS, META, PROCESS, rank_folders
from brickprof.journal.lines import read_events
from brickprof.records import Event, RunMeta

_FINISH = b',\n  "crc": "%08x"\n}\n'
_FINISH_SIZE = len(_FINISH % 0)


def write_meta(folder: Path, meta: RunMeta) -> None:
    """Writes ``meta.json``: whole or not at all."""
    body = json.dumps(asdict(meta), indent=2, default=str).encode("ascii").removesuffix(b"\n}")
    path = folder / META
    temporary = path.with_name(f".{META}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(body + _FINISH % crc32(body))
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror}.", "Choose another folder with -o.") from None


def read_meta(folder: Path) -> tuple[RunMeta, Damage]:
    """The meta data of a run. Damaged or missing, it is rebuilt from the first ``run`` event."""
    try:
        data = (folder / META).read_bytes()
    except OSError as error:
        return _rebuilt(folder), Damage(META, 0, 1, f"{error.strerror}; rebuilt from the events")
    meta = _parsed(data)
    if meta is None:
        return _rebuilt(folder), Damage(META, len(data), 1, "rebuilt from the events")
    return meta, Damage(META)


def from_fields(given: dict[str, Any]) -> RunMeta:
    """A ``RunMeta`` of the fields it knows."""
    known = {field.name: given[field.name] for field in fields(RunMeta) if field.name in given}
    known["argv"] = tuple(known.get("argv") or ())
    return RunMeta(**known)


def _parsed(data: bytes) -> RunMeta | None:
    body = data[:-_FINISH_SIZE]
    if data[-_FINISH_SIZE:] != _FINISH % crc32(body):
        return None
    try:
        meta = from_fields(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return None
    return meta if _is_sound(meta) else None


def _is_sound(meta: RunMeta) -> bool:
    """Whether everything in it is of its kind: a checksum only says that nobody's disk broke it."""
    words = (meta.run_id, meta.script, meta.level, meta.version, meta.source, meta.host, *meta.argv)
    counts = (meta.started_ns, meta.schema)
    return (
        all(isinstance(word, str) for word in words)
        and all(type(count) is int for count in counts)
        and isinstance(meta.extra, dict)
    )


def _rebuilt(folder: Path) -> RunMeta:
    first = _first_run_event(folder)
    name = re.fullmatch(r"(?P<script>.+)-\d{8}-\d{4}-(?P<id>[a-z0-9]{4})", folder.resolve().name)
    given: dict[str, Any] = {
        "run_id": name["id"] if name else folder.resolve().name,
        "script": name["script"] if name else "",
    }
    if first:
        given |= {"started_ns": first.time_ns}
        given |= {key: value for key, value in first.fields.items() if value}
    return from_fields(given)


def _first_run_event(folder: Path) -> Event | None:
    files = [folder / PROCESS, *(rank / EVENTS for rank in rank_folders(folder).values())]
    found = [event for file in files for event in read_events(file)[0] if event.kind in ("run", "start")]
    found.sort(key=lambda event: (event.kind != "run", event.time_ns))
    return found[0] if found else None
