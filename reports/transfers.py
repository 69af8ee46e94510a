"""The copies and host reads of a step in a small table: what, how large, how long the host took, and who asked.

Enters: the ``run`` part of a diagnosis. Leaves: lines of text, each string of the run's cleaned; none where nothing was
transferred. ``often`` and ``left_out`` say the same on the page.
"""

from __future__ import annotations

from typing import Any

from brickprof.text import clean

_WAYS = {"H2D": "to device", "D2H": "to host", "D2D": "to another device", "pin": "to pinned memory"}


def lines(run: dict[str, Any]) -> list[str]:
    """What a step makes that makes any, and in how many of those looked at."""
    copies = [_copy(row) for row in run.get("transfers") or () if isinstance(row, dict)]
    reads = [_read(row) for row in run.get("host_reads") or () if isinstance(row, dict)]
    return [*copies, *filter(None, [left_out(run, "transfers")]), *reads, *filter(None, [left_out(run, "host_reads")])]


def often(row: dict[str, Any]) -> str:
    """In how many of the steps looked at, where it is written."""
    steps, of = row.get("steps"), row.get("of")
    if not isinstance(steps, int) or not isinstance(of, int):
        return ""
    return f"all {of:,}" if steps == of else f"{steps:,} of {of:,}"


def left_out(run: dict[str, Any], name: str) -> str:
    """What the lines come to that have no row; nothing where all have one."""
    more = run.get(f"{name}_more")
    if not isinstance(more, dict) or not more.get("lines"):
        return ""
    size = f"{_size(more.get('bytes'))}, " if name == "transfers" else ""
    return f"and {_number(more['lines']):,.0f} more: {size}{_number(more.get('ns')) / 1e6:,.3f} ms in a step on average"


def _copy(row: dict[str, Any]) -> str:
    way = _WAYS.get(str(row.get("direction")), clean(row.get("direction", "")))
    memory = "pinned" if row.get("pinned") else "pageable"
    waits = "the host waits" if row.get("blocking") else "the host goes on"
    told = f"{way}, {memory}, {waits}" if row.get("direction") in ("H2D", "D2H") else way
    return _line(row, _size(row.get("bytes")), told)


def _read(row: dict[str, Any]) -> str:
    waits = row.get("waits_for")
    return _line(row, "", f"the host waits for {clean(waits, limit=20)}" if waits else "read, the host waits")


def _line(row: dict[str, Any], size: str, told: str) -> str:
    site = clean(row.get("site", ""), limit=60) or "(a thread)"
    steps = f"  in {often(row)} steps" if often(row) else ""
    return f"{_number(row.get('count')):>6}x  {size:>9}  {_number(row.get('ns')) / 1e6:8.3f} ms  {site}  {told}{steps}"


def _number(value: Any) -> float:
    return round(float(value), 1) if isinstance(value, (int, float)) else 0.0


def _size(value: Any) -> str:
    size = _number(value)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
