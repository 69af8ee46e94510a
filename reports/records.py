"""The records behind an evidence id.

Enters: records found by ``Run.find``. Leaves: plain data, or lines for a terminal with every foreign
string cleaned.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.records import Event, Record
from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

_MOST = 50


def facts(records: list[Record]) -> list[dict[str, Any]]:
    return [{"id": _identity(record), **_strict(dataclasses.asdict(record))} for record in records]


def render(records: list[Record], console: Console) -> None:
    lines = [_line(record) for record in records[:_MOST]]
    if len(records) > _MOST:
        lines.append(Text(f"and {len(records) - _MOST:,} more (--json shows all)", "dim"))
    console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)


def _identity(record: Record) -> str:
    identity = record.id
    return identity if isinstance(identity, str) else f"span:{identity}@{record.rank}"


def _line(record: Record) -> Text:
    fields = dataclasses.asdict(record)
    if isinstance(record, Event):
        fields = record.fields
    hidden = {"time_ns", "seq", "rank", "id", "role", "tensor", "coordinates"}
    said = [
        f"{clean(name)} {_value(value)}"
        for name, value in fields.items()
        if name not in hidden and value is not None and value != {}
    ]
    head = Text().append(clean(_identity(record)), "bold").append(f"  step {record.step:,}", "dim")
    kind = f"  {clean(record.kind)}" if isinstance(record, Event) else ""
    return head.append(kind).append("\n    " + " · ".join(said) if said else "")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and set(value) == {"kind", "path", "model"}:
        return clean(value["path"] or value["model"])
    return clean(value, limit=300)


def _strict(value: Any) -> Any:
    """``value`` as strict JSON: what is not finite becomes its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value
