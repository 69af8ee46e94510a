"""What took the place of our own kernels, in a line for each reason.

Enters: the ``run`` part of a diagnosis. Leaves: lines of text, each string of the run's cleaned; none where every
kernel ran. That there is none on a CPU is no news, and told where everything is.
"""

from __future__ import annotations

from typing import Any

from brickprof.text import clean

_WORDS = {"statistics": "statistics", "nonfinite": "blocks that are not finite"}
_REASONS = {"no thread to compile on": "no thread was there to compile Triton's kernels on"}


def lines(run: dict[str, Any]) -> list[str]:
    """``statistics by torch's foreach calls: Triton is not installed``."""
    rows = run.get("fallbacks")
    by_reason: dict[str, list[str]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            operation = str(row.get("operation") or "a kernel")
            said = f"{_WORDS.get(operation, operation)} by {row.get('instead') or 'torch'}"
            by_reason.setdefault(_reason(str(row.get("reason") or "")), []).append(said)
    return [_line(", ".join(dict.fromkeys(said)), reason) for reason, said in by_reason.items()]


def on_host(run: dict[str, Any]) -> list[str]:
    """``statistics by torch's foreach calls: no GPU is used``."""
    return [_line(f"statistics by {run['statistics_by']}", "no GPU is used")] if run.get("statistics_by") else []


def _line(said: str, reason: str) -> str:
    told = f"{said}: {reason}" if reason else said
    return clean(" ".join(told.split()), limit=240)


def _reason(told: str) -> str:
    """An exception in words, where it is one that people meet."""
    if told.startswith(("ImportError", "ModuleNotFoundError")) and "triton" in told:
        return "Triton is not installed" if "No module named" in told else f"Triton cannot be imported ({told})"
    return _REASONS.get(told, told)
