"""What the OTEL_* variables ask for, read without importing OpenTelemetry.

Enters: the environment. Leaves: the endpoint, protocol and time limit it names.
"""

from __future__ import annotations

import math
import os

_PREFIXES = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")
_DEFAULT_TIMEOUT = 10.0


def endpoint() -> str:
    """The endpoint that the variables name; empty when they name none, or switch traces off."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    elsewhere = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp")
    return "" if off or elsewhere else _either("ENDPOINT")


def protocol() -> str:
    return _either("PROTOCOL")


def timeout() -> float:
    """Seconds that one request may take."""
    try:
        seconds = float(_either("TIMEOUT") or _DEFAULT_TIMEOUT)
    except ValueError:
        seconds = math.nan
    return seconds if math.isfinite(seconds) and seconds > 0 else _DEFAULT_TIMEOUT


def _either(name: str) -> str:
    """The variable of the signal, else the general one."""
    return next((found for prefix in _PREFIXES if (found := os.environ.get(prefix + name, "").strip())), "")
