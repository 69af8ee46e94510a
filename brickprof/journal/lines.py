"""Events as lines: one event, one line of strict JSON that ends with its own checksum.

Enters: an event's fields, whatever they hold; or the bytes of an ``events.jsonl``, whatever happened to
them. Leaves: one line; or every event that is still whole, and a count of the rest.

    {"seq":12,"t":1763170000000000000,"kind":"loss","step":3,"value":2.5,"crc":"a1b2c3d4"}

Numbers that JSON lacks are written ``{"$float":"nan"}``; a field whose name would collide with the
frame of the line gets a ``$`` in front.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any
from zlib import crc32

from brickprof.journal.damage import Damage
from brickprof.journal.layout import rank_of, shown
from brickprof.records import Event

_LONGEST_STRING = 4000
_LONGEST_OBJECT = 500
_DEEPEST = 16
_WIDEST_INT = 10_000  # bits; beyond 4,300 digits Python refuses to print or parse one

FARTHEST = 1 << 63
"""No step, no time and no number of a line is beyond what a table holds."""
_FRAME = frozenset(("seq", "t", "kind", "step", "crc"))
_ESCAPABLE = _FRAME | {"float"}
_CRC_SIZE = len(',"crc":"00000000"}')
_FINISH = re.compile(rb',"crc":"[0-9a-f]{8}"\}')
_RECORD_END = re.compile(_FINISH.pattern + rb'(?=\Z|.?\{"seq":)', re.DOTALL)
_START = b'{"seq":'
_TRIES = 8


def encode(seq: int, time_ns: int, kind: str, step: int, fields: dict[str, Any]) -> bytes:
    """The line of one event."""
    body = encode_fields(fields)
    inner = "," + body[1:-1] if len(body) > 2 else ""
    line = f'{{"seq":{seq},"t":{time_ns},"kind":{_quoted(kind)},"step":{step:d}{inner}'.encode("ascii")
    return b'%b,"crc":"%08x"}\n' % (line, crc32(line))


def encode_fields(fields: dict[str, Any]) -> str:
    """Strict JSON of whatever ``fields`` hold."""
    try:
        body = _encoder.encode(fields)
        if len(body) <= _LONGEST_STRING and '"$' not in body and _FRAME.isdisjoint(fields):
            return body
    except (ValueError, TypeError, RecursionError):
        pass
    return _encoder.encode(_portable(fields, 0))


def decode_fields(text: str) -> Any:
    """What ``encode_fields`` was given; None when ``text`` is no JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _restored(found) if '"$' in text else found


def decode(line: bytes, rank: int = 0) -> Event | None:
    """The event of one line (without its newline); None when it is not exactly what was written."""
    body = line[:-_CRC_SIZE]
    if line[-_CRC_SIZE:] != b',"crc":"%08x"}' % crc32(body):
        return None
    try:
        text = line.decode("ascii")
        found, end = _scan(text)
        if end != len(text):
            return None
        seq, time_ns, kind, step = found.pop("seq"), found.pop("t"), found.pop("kind"), found.pop("step")
        del found["crc"]
        if not (type(kind) is str and type(seq) is type(time_ns) is type(step) is int):
            return None
        if not (-FARTHEST < step < FARTHEST and -1 < seq < FARTHEST and -1 < time_ns < FARTHEST):
            return None
        fields = _restored(found) if '"$' in text else found
        return Event(kind, step, fields, seq, time_ns, rank)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_events(path: Path, rank: int | None = None) -> tuple[list[Event], Damage]:
    """Every whole event of a file, in the order written, and what was lost. A missing file is empty."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    return parse_events(data, where=shown(path), rank=rank_of(path) if rank is None else rank)


def parse_events(data: bytes, *, where: str, rank: int) -> tuple[list[Event], Damage]:
    events: list[Event] = []
    stretches: list[list[bytes]] = [[]]  # of damage, each as the scraps between two whole events
    for line in data.split(b"\n"):
        event = decode(line, rank)
        for piece in (event,) if event else _pieces(line, rank):
            if isinstance(piece, bytes):
                stretches[-1].append(piece)
                continue
            events.append(piece)
            if stretches[-1]:
                stretches.append([])
    lost_bytes = sum(len(scrap) for stretch in stretches for scrap in stretch)
    return events, Damage(where, lost_bytes, sum(map(_records_in, stretches)))


def _records_in(scraps: list[bytes]) -> int:
    size = sum(map(len, scraps))
    if size == 0 or (size == 1 and scraps[0] != _START[:1]):
        return 0  # one stray byte between two whole lines is a damaged newline, not a record
    return max(1, sum(len(_RECORD_END.findall(scrap)) for scrap in scraps))


def _pieces(line: bytes, rank: int) -> Iterator[Event | bytes]:
    """The events inside a damaged line (two that lost the newline between them) and the scrap around."""
    at = 0
    for finish in _FINISH.finditer(line):
        for start in _starts(line, at, finish.end()):
            event = decode(line[start : finish.end()], rank)
            if event:
                if start > at:
                    yield line[at:start]
                yield event
                at = finish.end()
                break
    if at < len(line):
        yield line[at:]


def _starts(line: bytes, at: int, end: int) -> Iterator[int]:
    for _ in range(_TRIES):
        start = line.rfind(_START, at, end)
        if start < 0:
            return
        yield start
        end = start + len(_START) - 1


def _portable(value: Any, depth: int) -> Any:
    """``value`` as something every JSON reader takes, bounded in depth and length of strings."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, int):
        return value if value.bit_length() < _WIDEST_INT else hex(value)[:_LONGEST_OBJECT]
    if isinstance(value, str):
        return bounded(str(value), _LONGEST_STRING)
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return {_escaped(key): _portable(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_portable(item, depth + 1) for item in value]
    return _described(value)


def _escaped(key: Any) -> str:
    name = key if isinstance(key, str) else _described(key)
    collides = name in _FRAME or (name.startswith("$") and name.lstrip("$") in _ESCAPABLE)
    return f"${name}" if collides else name


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and value.get("$float") in ("nan", "inf", "-inf"):
        return float(value["$float"])
    return {
        key[1:] if key.startswith("$") and key.lstrip("$") in _ESCAPABLE else key: _restored(item)
        for key, item in value.items()
    }


def bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _described(value: Any) -> str:
    try:
        return bounded(str(value), _LONGEST_OBJECT)
    except Exception:  # a foreign __str__ may raise anything
        return f"<{type(value).__name__}>"


_scan = json.JSONDecoder().raw_decode
"""What ``json.loads`` comes to for a text without spaces around it, in half of its time."""
_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False, default=_described)
