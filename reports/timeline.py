"""Where a step goes, as a picture of two lanes and a line of shares; and the kernels that took the device longest.

Enters: the ``run`` part of a diagnosis (``lines``, ``kernel_lines``), or spans (``kernels``). Leaves: facts and plain
lines. The lanes are drawn in letters, so that no meaning hangs on a colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.reports import kernel_names
from brickprof.run.step_budget import IDLE
from brickprof.run.step_budget import drawn as draw
from brickprof.text import clean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TITLE", "draw", "kernel_lines", "kernels", "lines"]

TITLE = "Where a step goes    Forward, Backward, Optimizer, Loader, Transfer, Eval, Recompute, User; · idle"
_MOST = 8
_AROUND = 24
"""Columns of a lane's line that are not its picture."""
_LEAST = 12


def kernels(spans: pd.DataFrame) -> list[dict[str, Any]]:
    """The kernels whose time on the device is known, the dearest first."""
    if spans.empty:
        return []
    frame = spans[(spans["kind"] == "kernel") & spans["device_ns"].notna()]
    if frame.empty:
        return []
    steps, whole = frame["step"].nunique(), float(frame["device_ns"].sum()) or 1.0
    grouped = frame.groupby("brick", sort=False)["device_ns"].agg(["sum", "mean", "count"])
    grouped = grouped.sort_values("sum", ascending=False).head(3 * _MOST)
    return [
        {
            "kernel": str(name), "share": float(row["sum"]) / whole, "mean_us": float(row["mean"]) / 1e3,
            "a_step": float(row["count"]) / steps,
        }
        for name, row in grouped.iterrows()
    ]  # fmt: skip


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
    return [
        f"{row['share']:6.1%}  {row['mean_us']:9.1f} us  x{row['a_step']:,.0f} a step  "
        f"{clean(kernel_names.short(str(row['kernel'])), limit=72)}"
        for row in (told.get("kernels") or ())[:_MOST]
    ]
