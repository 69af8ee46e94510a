"""Where a step goes, as a picture of two lanes and a line of shares; and the kernels that took the device longest.

Enters: a ``Run``. Leaves: facts (``facts``) and plain lines (``lines``). The lanes are drawn in letters, so that no
meaning hangs on a colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.run.step_budget import IDLE, Lane, lanes, step_budget
from brickprof.text import clean

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run import Run

_WIDTH = 60
_MOST = 8
_LETTERS = {
    "loader": "L", "transfer": "T", "forward": "F", "recompute": "R", "eval": "E", "backward": "B", "optimizer": "O",
    "user": "U",
}  # fmt: skip


def facts(run: Run) -> dict[str, Any]:
    """The shares of a step, its lanes, and the kernels by their time on the device."""
    spans = run.spans
    return {
        "step_budget": step_budget(spans),
        "lanes": [{"name": each.name, "ms": each.length / 1e6, "drawn": draw(each)} for each in lanes(spans)],
        "kernels": kernels(spans),
    }


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


def draw(lane: Lane, width: int = _WIDTH) -> str:
    """A letter for each part of the step that a phase had most of; a dot where nobody did."""
    cells = []
    for cell in range(width):
        low, high = cell * lane.length / width, (cell + 1) * lane.length / width
        shares: dict[str, float] = {}
        for start, end, phase in lane.parts:
            inside = min(end, high) - max(start, low)
            if inside > 0:
                shares[phase] = shares.get(phase, 0.0) + inside
        phase = max(shares, key=lambda name: shares[name], default="")
        cells.append(_LETTERS.get(phase, "·") if 2 * sum(shares.values()) > high - low else "·")
    return "".join(cells)


def lines(told: dict[str, Any]) -> list[str]:
    """The budget and the lanes, for people."""
    found = [f"{each['name']:<6} {each['drawn']}  {each['ms']:.2f} ms" for each in told["lanes"]]
    for name in ("host", "device"):
        if shares := told["step_budget"].get(name):
            parts = [f"{phase} {share:.0%}" for phase, share in shares.items() if share >= 0.005 or phase == IDLE]
            found.append(f"{name:<6} {' · '.join(parts)}")
    return found


def kernel_lines(told: dict[str, Any]) -> list[str]:
    return [
        f"{row['share']:6.1%}  {row['mean_us']:9.1f} us  x{row['a_step']:,.0f} a step  {clean(row['kernel'], limit=80)}"
        for row in told["kernels"][:_MOST]
    ]
