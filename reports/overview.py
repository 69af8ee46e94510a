"""A recorded run at a glance: verdict, loss, the bricks by time, gradients by layer, what looking cost.

Enters: a ``Run`` and its ``Diagnosis``. Leaves: plain facts for programs (``facts``) and styled text
for people (``render``). Every name that came from the run is cleaned before it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.reports import terminal, timeline, transfers
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_MOST = 8


def facts(run: Run, diagnosis: Diagnosis) -> dict[str, Any]:
    """What the overview says, as data."""
    return {
        **diagnosis.to_dict(),
        "steps": run.steps,
        "loss": _losses(run),
        "bricks": _bricks(run),
        **timeline.facts(run),
        "gradients": _gradients(run),
        "costs": run.costs,
        "damage": [str(damage) for damage in run.damage],
    }


def render(run: Run, diagnosis: Diagnosis, console: Console) -> None:
    terminal.render(diagnosis, console)
    told = facts(run, diagnosis)
    lines: list[Text] = []
    if told["loss"]:
        lines += _title("Loss"), _loss_line(told["loss"])
    if told["bricks"]:
        lines += [_title("Bricks by time"), *map(_brick_line, told["bricks"][:_MOST])]
    if told["lanes"]:
        title = "Where a step goes (Forward, Backward, Optimizer, Loader, Transfer, Eval, Recompute, User; · idle)"
        lines += [_title(title), *(Text(f"  {line}") for line in timeline.lines(told))]
    if told["kernels"]:
        lines += [_title("Kernels by time on the device"), *(Text(f"  {line}") for line in timeline.kernel_lines(told))]
    if told["gradients"]:
        lines += [_title("Gradients by layer"), *_gradient_lines(told["gradients"])]
    if (moved := transfers.lines(told["run"])) and not terminal.shows_transfers(diagnosis):
        lines += [_title("Transfers and host reads, in a step"), *(Text(f"  {line}") for line in moved)]
    if card := card_lines(told["run"]):
        lines += [_title("Card"), *(Text(f"  {clean(line)}") for line in card)]
    if told["costs"]:
        shares = [f"{clean(probe)} {100 * share:.2f} %" for probe, share in list(told["costs"].items())[:_MOST]]
        lines += _title("Cost of looking"), Text(f"  {' · '.join(shares)}")
    if told["damage"]:
        lines += [_title("Damage"), *(Text(f"  {clean(text)}") for text in told["damage"])]
    if lines:
        console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)


def card_lines(run: dict[str, Any]) -> list[str]:
    """The cards of a run, and how much of the first one's arithmetic was used."""
    lines = [_card_line(card) for card in run.get("cards") or ()]
    used = run.get("mfu")
    return lines + ([mfu_line(used)] if isinstance(used, dict) else [])


def mfu_line(used: dict[str, Any]) -> str:
    if used.get("ratio") is None:
        return f"MFU not known: {used.get('why', '')}"
    rate, best = used["tflops"], used["peak_tflops"]
    return f"MFU {used['ratio']:.1%} {used['how']} ({rate:,.3g} of {best:,.4g} TFLOP/s, {used['dtype']}; {used['why']})"


def _card_line(card: dict[str, Any]) -> str:
    parts = [str(card.get("name", "card"))]
    if (share := card.get("utilisation")) is not None:
        parts.append(f"in use {share:.0%}")
    if card.get("memory_peak") and card.get("memory_total"):
        parts.append(f"memory {card['memory_peak'] / 1e9:.1f} of {card['memory_total'] / 1e9:.0f} GB")
    if card.get("power") is not None:
        limit = f" of {card['power_limit']:.0f}" if card.get("power_limit") else ""
        parts.append(f"{card['power']:.0f}{limit} W")
    if card.get("temperature") is not None:
        parts.append(f"{card['temperature']:.0f} °C")
    return " · ".join(parts)


# -- facts


def _losses(run: Run) -> list[dict[str, Any]]:
    """One loss a step, of the lowest rank; None where it is not finite."""
    frame = run.loss
    if frame.empty:
        return []
    frame = frame[frame["rank"] == frame["rank"].min()].groupby("step", sort=True)["value"].last()
    return [
        {"step": int(str(step)), "value": float(value) if math.isfinite(value) else None}
        for step, value in frame.items()
    ]


def _bricks(run: Run) -> list[dict[str, Any]]:
    """Host time of each brick in the steps that were timed, and its share of the dearest kind of phase."""
    frame = run.spans
    if frame.empty:
        return []
    frame = frame[~frame["phase"].isin(["run", "step"]) & (frame["kind"] != "step")]
    grouped = frame.groupby(["brick", "kind", "phase"], sort=False)["host_ns"].agg(["mean", "count", "sum"])
    grouped = grouped.sort_values("sum", ascending=False)
    grouped = grouped.head(4 * _MOST).reset_index()
    grouped["mean_ms"] = grouped["mean"] / 1e6
    rows = grouped[["brick", "kind", "phase", "mean_ms", "count"]].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _gradients(run: Run) -> list[dict[str, Any]]:
    """The largest gradient of each block: in the first and in the last step that was sampled."""
    frame = run.grads
    if frame.empty:
        return []
    rows = []
    for brick, part in frame.groupby("brick", sort=False):
        by_step = part.groupby("step", sort=True)["absmax"].max()
        rows.append(
            {
                "brick": str(brick),
                "first": _finite(by_step.iloc[0]),
                "last": _finite(by_step.iloc[-1]),
                "first_step": int(str(by_step.index[0])),
                "last_step": int(str(by_step.index[-1])),
            }
        )
    return rows


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


# -- lines


def _title(words: str) -> Text:
    return Text(f"\n  {words}", "bold")


def sparkline(values: Iterable[float | None], width: int = _WIDTH) -> str:
    """Values as bars of eight heights; x where one is missing or not finite."""
    given = list(values)
    if len(given) > width:
        given = [_last(given[i * len(given) // width : (i + 1) * len(given) // width]) for i in range(width)]
    known = [value for value in given if value is not None]
    if not known:
        return "x" * len(given)
    low, high = min(known), max(known)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join("x" if value is None else _BARS[round((value - low) * scale)] for value in given)


def _last(part: list[float | None]) -> float | None:
    return None if None in part else part[-1]


def _loss_line(losses: list[dict[str, Any]]) -> Text:
    first, last = losses[0], losses[-1]
    bars = sparkline(loss["value"] for loss in losses)
    return Text(f"  {bars}  {_number(first['value'])} → {_number(last['value'])}")


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4g}"


def _brick_line(row: dict[str, Any]) -> Text:
    name = clean(row["brick"], limit=60) or clean(row["kind"])
    return Text(f"  {row['mean_ms']:9.3f} ms  {row['phase']:<9}  {name}").append(f"  x{row['count']:,}", "dim")


def _gradient_lines(rows: list[dict[str, Any]]) -> list[Text]:
    bars = sparkline(_log(row["last"]) for row in rows)
    span = f"step {rows[0]['first_step']:,} and step {rows[0]['last_step']:,}"
    lines = [Text(f"  {bars}  log max|grad|, first layer to last").append(f"  ({span} below)", "dim")]
    ordered = sorted(rows, key=lambda row: -(math.inf if row["last"] is None else row["last"]))
    for row in ordered[:_MOST]:
        name = clean(row["brick"], limit=60)
        lines.append(Text(f"  {_number(row['first']):>10} → {_number(row['last']):<10}  {name}"))
    return lines


def _log(value: float | None) -> float | None:
    return None if value is None else math.log10(max(value, 1e-30))
