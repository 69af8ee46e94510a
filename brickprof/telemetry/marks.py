"""What went wrong, as OpenTelemetry says it: span events, an error status, ``error.type``.

Enters: events of the journal, and what the diagnosis found. Leaves: a ``Mark`` for each one that a span should carry,
None for the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brickprof.records import Event
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

Scalar = str | bool | int | float

_INT64 = range(-(2**63), 2**63)
_TEXT_LIMIT = 4000
_FATAL = {"exception", "exited", "hang"}
"""These end the run, or should: its root span carries them too."""


@dataclass(frozen=True, slots=True)
class Mark:
    name: str
    time_ns: int
    error_type: str
    """Empty for what is worth a note and no error by itself."""
    message: str
    attributes: dict[str, Scalar]
    brick: int | str | None = None
    phase: str = ""
    fatal: bool = False


def mark(event: Event) -> Mark | None:
    """How ``event`` shows on a span; None for what is no trouble."""
    kind, fields = event.kind, event.fields
    if kind == "exception":
        return _exception(event)
    if kind == "anomaly":
        error_type, message = _anomaly(fields)
    elif kind == "weight":
        error_type, message = "non_finite_weight", "weights are not finite"
    elif kind in ("activation", "signal"):
        error_type, message = "", ""  # a mask may hold infinities; a signal may be survived
    elif kind == "hang":
        error_type, message = "hang", "no brick closed"
    elif kind == "exited" and (fields.get("code") or fields.get("signal")):
        error_type, message = _exit(fields)
    else:
        return None
    return Mark(
        f"brickprof.{kind}",
        event.time_ns,
        clean(error_type),
        clean(message),
        attributes(fields, f"brickprof.{kind}."),
        fields.get("brick"),
        str(fields.get("phase", "")),
        kind in _FATAL,
    )


def finding_marks(run: Run) -> list[Mark]:
    """What the diagnosis of ``run`` found; an error of it is one of the trace."""
    from brickprof.telemetry.findings import placed, told

    marks = []
    for time_ns, finding in placed(run):
        error = finding.severity == "error"
        name = clean(finding.root_cause or finding.contract) if error else ""
        said = attributes(told(finding), "brickprof.finding.")
        marks.append(Mark("brickprof.finding", time_ns, name, clean(finding.symptom), said, fatal=error))
    return marks


def attributes(fields: Mapping[str, Any], prefix: str) -> dict[str, Scalar]:
    """``fields`` as attribute values that every OTLP encoder takes; what is not measured is left out."""
    return {clean(f"{prefix}{name}"): value for name, given in fields.items() if (value := scalar(given)) is not None}


def scalar(value: Any) -> Scalar | None:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return clean(text, limit=_TEXT_LIMIT, one_line=False)


def _anomaly(fields: Mapping[str, Any]) -> tuple[str, str]:
    what, value = fields.get("what", "value"), fields.get("value")
    if isinstance(value, float) and not math.isfinite(value):
        return f"non_finite_{what}", f"{what} is not finite"
    return f"anomalous_{what}", f"{what} stands out"


def _exception(event: Event) -> Mark:
    fields = event.fields
    error_type, message = clean(fields.get("type", "Exception")), clean(fields.get("message", ""))
    said: dict[str, Scalar] = {"exception.type": error_type, "exception.message": message}
    frames = fields.get("frames")
    if frames:
        said["exception.stacktrace"] = clean(_stack(frames), limit=_TEXT_LIMIT, one_line=False)
    return Mark("exception", event.time_ns, error_type, message, said, fields.get("brick"), fatal=True)


def _stack(frames: Any) -> str:
    lines = frames if isinstance(frames, list) else [frames]
    return "\n".join(line if isinstance(line, str) else json.dumps(line, default=str) for line in lines)


def _exit(fields: Mapping[str, Any]) -> tuple[str, str]:
    code = f"exit {fields.get('code')}"
    return str(fields.get("class") or code), str(fields.get("text") or code)
