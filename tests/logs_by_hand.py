"""Logs for tests, made by hand: columns in, a ``Log`` out, as a reader would have gathered it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brickprof.diagnosis import diagnose
from brickprof.diagnosis.model import Diagnosis
from brickprof.logs.reading.gather import Gathering, Log
from brickprof.logs.reading.model import Fact, Item, block
from brickprof.logs.reading.to_run import to_run

NAN = float("nan")


def rows(first_line: int = 1, every: int = 1, **columns: Any) -> Item:
    """One block of rows; names may have spaces: write them with a dict."""
    return table(columns, first_line, every)


def table(columns: dict[str, Any], first_line: int = 1, every: int = 1, kind: str = "") -> Item:
    count = len(next(iter(columns.values())))
    return block(first_line + every * np.arange(count), columns, kind=kind)


def log(*items: Item, path: str = "train.log", format: str = "plain", roles: dict[str, str] | None = None) -> Log:
    return Gathering(path, format, roles).take(items).log()


def judged(*items: Item, **options: Any) -> Diagnosis:
    return diagnose(to_run([log(*items, **options)]))


def grave(diagnosis: Diagnosis) -> list[tuple[str, str, int]]:
    """Severity, root cause and first step of all that is more than worth knowing."""
    return [
        (finding.severity.value, finding.root_cause, finding.first_step)
        for finding in diagnosis.findings
        if finding.severity.value != "info"
    ]


def fact(kind: str, line: int, **fields: Any) -> Fact:
    return Fact(kind, line, fields)


def setting(**values: Any) -> Fact:
    return Fact("setting", 1, {"values": values})


def noise(seed: int, count: int, size: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, size, count)


def decay(count: int, start: float, end: float, tau: float = 0.15) -> np.ndarray:
    x = np.linspace(0, 1, count)
    return end + (start - end) * np.exp(-x / tau)


def no_rule_failed(diagnosis: Diagnosis) -> bool:
    return not [one.id for one in diagnosis.contracts if "the rule failed" in one.why] and not diagnosis.run.get(
        "notes"
    )


def steps(count: int, every: int = 1, first: int = 1) -> np.ndarray:
    return first + every * np.arange(count)


def powerlaw(at: Sequence[float] | np.ndarray, start: float, floor: float, exponent: float = 0.3) -> np.ndarray:
    x = np.asarray(at, float)
    return floor + (start - floor) * (1 + x / 20.0) ** -exponent
