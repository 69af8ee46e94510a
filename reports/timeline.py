"""Where a step goes, as a picture of two lanes and a line of shares; and the kernels that took the device longest.

Enters: the ``run`` part of a diagnosis (``lines``, ``kernel_lines``), or spans (``kernels``). Leaves: facts and plain
lines. The lanes are drawn in letters, so that no meaning hangs on a colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brickprof import kernel_names
from brickprof.run.kernel_times import TRITON, kernel_times, of_frame
from brickprof.run.step_budget import IDLE
from brickprof.run.step_budget import drawn as draw
from brickprof.text import clean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TITLE", "draw", "kernel_lines", "kernels", "kernels_lacking", "lines"]

TITLE = "Where a step goes    Forward Backward Optimizer Loader Transfer Wait Eval Recompute User · idle"
_MOST = 8
_AROUND = 24
"""Columns of a lane's line that are not its picture."""
_LEAST = 12
_FIRST_S = 15
"""Of steps, before the first window at the default budget: what ``probes.windows`` comes to, which loads torch."""
_TRY = f"Its first window comes after about {_FIRST_S} s of steps; --deep-at STEP or --level deep opens one at once."
_TRY_LIGHT = "--level standard --deep-at STEP or --level deep opens one."


def kernels(spans: pd.DataFrame) -> list[dict[str, Any]]:
    """The kernels whose time on the device is known, the dearest first."""
    return kernel_times(of_frame(spans))[: 3 * _MOST]


def lines(told: dict[str, Any], width: int | None = None) -> list[str]:
    """The budget and the lanes, for people."""
    found = [
        f"{each['name']:<6} {_narrow(each['drawn'], width)}  {each['ms']:.2f} ms" for each in told.get("lanes") or ()
    ]
    for name in ("host", "device"):
        if shares := (told.get("step_budget") or {}).get(name):
            parts = [f"{phase} {share:.0%}" for phase, share in shares.items() if share >= 0.005 or phase == IDLE]
            found.append(f"{name:<6} {' · '.join(parts)}")
    return found


def _narrow(picture: str, width: int | None) -> str:
    """As many of its letters, evenly spread, as there is room for."""
    room = len(picture) if width is None else max(_LEAST, width - _AROUND)
    if len(picture) <= room:
        return picture
    return "".join(picture[(2 * at + 1) * len(picture) // (2 * room)] for at in range(room))


def kernel_lines(told: dict[str, Any]) -> list[str]:
    rows = (told.get("kernels") or ())[:_MOST]
    lacking = kernels_lacking(rows, told)
    return [*([lacking] if lacking else []), *map(_kernel_line, rows)]


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
