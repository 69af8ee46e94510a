"""A run on a terminal: verdict, findings with their whys, contracts, the course of the loss, what cost most.

Enters: a ``Diagnosis``, which holds all of it, so that nothing else of the run is read. Leaves: styled text for people
(``render``); and, of a ``Run`` too, plain facts for programs (``facts``). Every name that came from the run is cleaned
before it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.reports import budgets, contracts, sparks, terminal, timeline, transfers
from brickprof.reports.terminal import DIM, STRONG, Line
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

NAME, SUFFIX = "terminal", ""

_MOST = 8
_INDENT = 2
_CURVES = (("loss", "Loss", "lowest"), ("grad_norm", "Gradient norm", "highest"))


def facts(run: Run, diagnosis: Diagnosis) -> dict[str, Any]:
    """What the overview says, as data, with every loss."""
    told = diagnosis.run
    return {
        **diagnosis.to_dict(),
        "steps": run.steps,
        "loss": _losses(run),
        "bricks": told.get("bricks") or [],
        "step_budget": told.get("step_budget") or {},
        "lanes": told.get("lanes") or [],
        "kernels": told.get("kernels") or [],
        "gradients": told.get("layers") or [],
        "costs": run.costs,
        "damage": list(told.get("damage") or ()),
    }


def render(diagnosis: Diagnosis, console: Console) -> None:
    terminal.put(lines(diagnosis, terminal.width_of(console)), console)


def lines(diagnosis: Diagnosis, width: int | None) -> list[Line]:
    """The report of the end of a run, and behind it a section for everything else that is known."""
    found = terminal.lines(diagnosis, width, whole=True)
    for title, make in _sections(diagnosis, width).items():
        try:
            inside = make()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            inside = _plain(["what is written of this in diagnosis.json cannot be read"])
        if inside:
            found += _section(title, inside)
    return found


def _sections(diagnosis: Diagnosis, width: int | None) -> dict[str, Callable[[], list[Line]]]:
    told = diagnosis.run
    return {
        **{title: partial(_curve, told, name, extreme, width) for name, title, extreme in _CURVES},
        f"Contracts    {contracts.counted(diagnosis)}": lambda: contracts.lines(diagnosis, width),
        "Bricks by time": lambda: _bricks(_rows(told, "bricks")),
        "Budgets": lambda: _plain(budgets.lines(told)),
        timeline.title(told): lambda: _plain(timeline.lines(told, width)),
        "Kernels by time on the device": lambda: _plain(timeline.kernel_lines(told)),
        "Gradients by layer": lambda: _layers(_rows(told, "layers"), width),
        "Transfers and host reads, in a step": lambda: _transfers(diagnosis),
        "Card": lambda: _plain(card_lines(told)),
        "Cost of looking": lambda: _looking(told),
        "Damage": lambda: _plain(told.get("damage") or ()),
    }


def _rows(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = told.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


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


# -- lines


def _section(title: str, inside: list[Line]) -> list[Line]:
    name, _, aside = title.partition("    ")
    head = Text().append(name, STRONG)
    if aside:
        head.append(f"    {aside}", DIM)
    return [terminal.EMPTY, Line(Text(" " * _INDENT), head), *inside]


def _plain(texts: Iterable[object]) -> list[Line]:
    return [Line(Text(" " * _INDENT), Text(clean(text))) for text in texts]


def _curve(told: dict[str, Any], name: str, extreme: str, width: int | None) -> list[Line]:
    curve = (told.get("curves") or {}).get(name)
    if not curve:
        return []
    bars = sparks.bars(curve, sparks.room(width, _INDENT))
    return [Line(Text(" " * _INDENT), Text(f"{bars}  {sparks.said(curve, extreme)}"))]


def _transfers(diagnosis: Diagnosis) -> list[Line]:
    return [] if terminal.shows_transfers(diagnosis) else _plain(transfers.lines(diagnosis.run))


def _looking(told: dict[str, Any]) -> list[Line]:
    shares = [f"{clean(probe)} {100 * share:.2f} %" for probe, share in (told.get("looking") or {}).items()]
    return _plain([" · ".join(shares[:_MOST])]) if shares else []


def _bricks(rows: list[dict[str, Any]]) -> list[Line]:
    """Each with the time of its own in a step: what a brick inside it took counts there."""
    if not rows:
        return []
    on = {"device": " on the device", "host": " on the host"}.get(str(rows[0].get("on")), "")
    found = [Line(Text("  "), Text(f"own time in a step{on}: without the bricks inside each", DIM))]
    for row in rows[:_MOST]:
        share = row.get("share")
        part = f"{share:6.1%}" if isinstance(share, (int, float)) else " " * 6
        name = clean(row.get("brick", ""), limit=60) or clean(row.get("kind", ""), limit=20)
        body = Text(name).append(f"  {clean(row.get('phase', ''), limit=20)}", DIM)
        found.append(Line(Text(f"  {_ms(row.get('ms_a_step'))} ms {part}  "), body))
    return found


def _ms(value: Any) -> str:
    return f"{value:9.3f}" if isinstance(value, (int, float)) else " " * 9


def _layers(rows: list[dict[str, Any]], width: int | None) -> list[Line]:
    """All blocks as one picture of their last look, and the largest by name."""
    if not rows:
        return []
    bars = sparks.sparkline((_log(row.get("last")) for row in rows), sparks.room(width, _INDENT))
    steps = f"step {_step(rows[0], 'first_step')} and step {_step(rows[0], 'last_step')} below"
    found = [Line(Text("  "), Text(f"{bars}  log max|grad|, first layer to last").append(f"  ({steps})", DIM))]
    for row in sorted(rows, key=lambda row: -_size(row.get("last")))[:_MOST]:
        label = f"  {sparks.number(row.get('first')):>10} → {sparks.number(row.get('last')):<10}  "
        found.append(Line(Text(clean(label)), Text(clean(row.get("brick", ""), limit=60))))
    return found


def _step(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return f"{value:,}" if isinstance(value, int) else "?"


def _size(value: Any) -> float:
    return value if isinstance(value, (int, float)) else math.inf


def _log(value: Any) -> sparks.Cell:
    return math.log10(max(value, 1e-30)) if isinstance(value, (int, float)) else "nan"


REPORT = render
