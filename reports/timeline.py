"""Where a step goes, as a picture of two lanes and a line of shares; and the kernels that took the device longest.

Enters: the ``run`` part of a diagnosis (``lines``, ``kernel_lines``, ``without_span``), a run (``kernels``), or rows of
kernels (``covered``, ``left_out``). Leaves: facts and plain lines. The lanes are drawn in letters, so that no meaning
hangs on a colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brickprof import kernel_names
from brickprof.run.kernel_times import TRITON, kernel_times, of_part
from brickprof.run.step_budget import IDLE, legend
from brickprof.run.step_budget import drawn as draw
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

__all__ = [
    "covered", "draw", "kernel_lines", "kernels", "kernels_lacking", "left_out", "lines", "title", "without_span",
]  # fmt: skip

_TITLE = "Where a step goes"
_MOST = 8
_AROUND = 24
"""Columns of a lane's line that are not its picture."""
_LEAST = 12
_FIRST_S = 15
"""Of steps, before the first window at the default budget: what ``probes.windows`` comes to, which loads torch."""
_TRY = f"Its first window comes after about {_FIRST_S} s of steps; --deep-at STEP or --level deep opens one at once."
_TRY_LIGHT = "--level standard --deep-at STEP or --level deep opens one."


def kernels(run: Run) -> list[dict[str, Any]]:
    """The kernels whose time on the device is known, the dearest first."""
    timed = [part for part in run.parts if part.rank >= 0 and part.spans[0].num_rows]
    return kernel_times([of_part(part, qualified=run.qualified) for part in timed])


def title(told: dict[str, Any]) -> str:
    """With what the letters of its lanes stand for."""
    lanes = told.get("lanes")
    drawn = [str(each.get("drawn")) for each in lanes if isinstance(each, dict)] if isinstance(lanes, list) else []
    return f"{_TITLE}    {legend(drawn)}"


def lines(told: dict[str, Any], width: int | None = None) -> list[str]:
    """The budget and the lanes, for people."""
    found = [_meant(told)] if told.get("lanes") and told.get("step_budget") else []
    found += [
        f"{each['name']:<6} {_narrow(each['drawn'], width)}  {each['ms']:.2f} ms" for each in told.get("lanes") or ()
    ]
    for name in ("host", "device"):
        if shares := (told.get("step_budget") or {}).get(name):
            parts = [f"{phase} {share:.0%}" for phase, share in shares.items() if share >= 0.005 or phase == IDLE]
            found.append(f"{name:<6} {' · '.join(parts)}")
    return found


def _meant(told: dict[str, Any]) -> str:
    steps = told["step_budget"].get("steps")
    many = isinstance(steps, int) and steps > 1
    return f"The lanes are one step, the shares the mean of {steps:,}." if many else "Lanes and shares are of one step."


def _narrow(picture: str, width: int | None) -> str:
    """As many of its letters, evenly spread, as there is room for."""
    room = len(picture) if width is None else max(_LEAST, width - _AROUND)
    if len(picture) <= room:
        return picture
    return "".join(picture[(2 * at + 1) * len(picture) // (2 * room)] for at in range(room))


def kernel_lines(told: dict[str, Any]) -> list[str]:
    found = told.get("kernels") or ()
    rows = found[:_MOST]
    more = len(found) - len(rows) + (told.get("kernels_more") or 0)
    heads = [line for line in (kernels_lacking(rows, told), covered(rows), without_span(told)) if line]
    return [*heads, *map(_kernel_line, rows), *([left_out(rows, more)] if more else [])]


def covered(rows: Sequence[dict[str, Any]]) -> str:
    """How many steps the rows are of, and what all kernels take in one; nothing where that is not written."""
    if not rows or not rows[0].get("steps"):
        return ""
    steps = rows[0]["steps"]
    return f"Of {steps:,} {'step' if steps == 1 else 'steps'}: {_us_a_step(rows) / 1e3:,.3f} ms of kernels in a step."


def left_out(rows: Sequence[dict[str, Any]], more: int) -> str:
    """What the kernels come to that have no row."""
    share = max(1.0 - sum(row["share"] for row in rows), 0.0)
    return f"and {more:,} more: {share:.1%}, {share * _us_a_step(rows):,.1f} us in a step"


def without_span(told: dict[str, Any]) -> str:
    """How many launches have no span, and whether the rows have them all the same."""
    found = told.get("kernels_unwritten")
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int) for name in ("count", "of")):
        return ""
    said = f"{found['count']:,} of {found['of']:,} kernels and copies in the profiler's windows have no span"
    if found.get("counted") is True:
        return f"{said} of their own: they are counted here, by their sums."
    return f"{said}, the last of their steps, and are missing here: shares and times are of the others."


def _us_a_step(rows: Sequence[dict[str, Any]]) -> float:
    """What all kernels take, of which each row has its share."""
    first = rows[0]
    return float(first["mean_us"] * first["a_step"] / first["share"]) if first["share"] else 0.0


def _kernel_line(row: dict[str, Any]) -> str:
    name, site = clean(kernel_names.short(str(row["kernel"])), limit=72), clean(row.get("site") or "", limit=60)
    shares = f"{row['share']:6.1%}  {row['mean_us']:9.1f} us  x{row['a_step']:,.0f} a step"
    return f"{shares}  {name}  {site}".rstrip()


def kernels_lacking(rows: Sequence[dict[str, Any]], told: dict[str, Any]) -> str:
    """Which kernels the table does not have, and how to get them; nothing where it has all."""
    heard = "Triton kernels alone, and shares of their time." if rows and rows[0].get("source") == TRITON else ""
    if not told.get("unprofiled"):
        return heard
    if told.get("level") == "light":
        why = f"Kernels of torch are not known: level light has no windows of the profiler. {_TRY_LIGHT}"
    else:
        why = f"Kernels of torch are not known: the profiler looked at no step. {_TRY}"
    return f"{heard} {why}".lstrip()
