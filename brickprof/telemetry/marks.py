"""What went wrong, as OpenTelemetry says it: span events, an error status, ``error.type``.

Enters: events of the journal. Leaves: a ``Mark`` for each one that a span should carry, None for the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brickprof.records import Event
from brickprof.text import clean

Scalar = str | bool | int | float

_INT64 = range(-(2**63), 2**63)
_TEXT_LIMIT = 4000
_FAILED = {"exception", "hang", "signal"}
"""These end the run, or should: its root span carries them too."""


@dataclass(frozen=True, slots=True)
class Mark:
    name: str
    time_ns: int
    error_type: str
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
    elif kind in ("activation", "weight"):
        error_type, message = "non_finite", f"{kind} values are not finite"
    elif kind == "signal":
        error_type, message = _signal_name(fields), f"ended by {_signal_name(fields)}"
    elif kind == "hang":
        error_type, message = "hang", "nothing moved"
    elif kind == "exited" and _failed_exit(fields):
        error_type, message = _exit_name(fields), f"ended by {_exit_name(fields)}"
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
        kind in _FAILED or kind == "exited",
    )


def attributes(fields: Mapping[str, Any], prefix: str) -> dict[str, Scalar]:
    """``fields`` as attribute values that every OTLP encoder takes; what is not measured is left out."""
    return {
        clean(f"{prefix}{name}"): value
        for name, given in fields.items()
        if (value := scalar(given)) is not None
    }


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


def _signal_name(fields: Mapping[str, Any]) -> str:
    return str(fields.get("name") or fields.get("signal") or "signal")


def _failed_exit(fields: Mapping[str, Any]) -> bool:
    return bool(fields.get("signal")) or fields.get("code", 0) not in (0, None)


def _exit_name(fields: Mapping[str, Any]) -> str:
    return _signal_name(fields) if fields.get("signal") else f"exit {fields.get('code')}"
