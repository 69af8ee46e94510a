"""The sections of the page that hold pictures, each only where there is something to draw.

Enters: the plain data of the pictures. Leaves: HTML: the places that the script draws into, and what stands beside
them in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brickprof.reports.page.parts import told

KEYS = '<span class="keys">Drag to zoom, double-click to go back; arrow keys move when it has the focus.</span>'
_READOUT = '<p class="readout" aria-live="polite"></p>'
_WORDS = {
    "loader": "waiting for data", "transfer": "copies", "sync": "waiting for the device", "forward": "forward",
    "recompute": "recomputed activations",
    "eval": "evaluation", "criterion": "from the forward to the backward: the loss", "backward": "backward",
    "gradients": "from the backward to the update: clipping and the like", "optimizer": "optimizer",
    "user": "the script's own code",
    "brickprof": "brickprof, in timed steps only", "idle": "idle: nobody's",
}  # fmt: skip


def section(identity: str, title: str, body: str, aside: str = "") -> str:
    beside = f' <span class="dim">{aside}</span>' if aside else ""
    return f'<section id="{identity}"><h2>{title}{beside}</h2>{body}</section>'


def navigation(sections: Sequence[tuple[str, str]]) -> str:
    """Buttons that go to the sections; a page of three or fewer needs none."""
    if len(sections) < 4:
        return ""
    made = "".join(f'<button type="button" data-to="{identity}">{name}</button>' for identity, name in sections)
    return f'<nav aria-label="Sections">{made}</nav>'


def course() -> str:
    tools = (
        f'<div class="tools"><button type="button" id="whole">Whole run</button><span class="dim">{KEYS}</span></div>'
    )
    return section("course", "Course of the run", f'{tools}<div id="curves"></div>{_READOUT}')


def layers(data: dict[str, Any]) -> str:
    """Update/weight by layer and step, and all layers in one step; the gradients' own map stands at the top."""
    grads, ratios = data.get("heat"), data.get("ratio")
    if not grads and not ratios:
        return ""
    maps = figure("ratios", "update / weight by layer and step", _RATIO + _shared(ratios)) if ratios else ""
    flow = figure("flow", "|grad| in this step", "") if grads else ""
    changes = figure("changes", "update / weight in this step", "1e-3 is marked.") if ratios else ""
    tools = '<div class="tools" id="choose"></div>'
    one = f'<div class="one">{tools}<div class="pair">{flow}{changes}</div></div>'
    kind = "split wide-left" if maps else "narrow"
    return section("layers", "Through the depth of the model", f'<div class="{kind}">{maps}{one}</div>')


_RATIO = "About 1e-3 is usual; the stronger the colour, the further from it."


def _shared(found: dict[str, Any]) -> str:
    return " A column of several steps shows their mean, or what is ten times off." if found["shared"] else ""


def figure(identity: str, title: str, note: str) -> str:
    """A place for a picture, with what is pointed at and a note below it; ``title`` and ``note`` are HTML."""
    words = f'<p class="dim">{note}</p>' if note else ""
    return f'<figure><figcaption>{title}</figcaption><div id="{identity}"></div>{_READOUT}{words}</figure>'


# -- time


def times(budget: dict[str, Any] | None) -> str:
    """What a step's time goes to: the middle of each part in a table, every timed step as a bar."""
    if not budget:
        return ""
    found = "".join(_budget_table(name, lane) for name, lane in budget.items())
    host = budget.get("host", {"steps": (), "of": 0})
    drawn, steps = len(host["steps"]), host["of"]
    aside = f"{steps:,} timed step{'s' * (steps != 1)}" + (f", {drawn:,} of them drawn" if drawn < steps else "")
    bars = f'<div><div id="bars"></div>{_READOUT}</div>'
    body = f'<div class="split wide-left">{bars}<div class="budgets">{found}</div></div>'
    return section("time", "What a step's time goes to", body, aside)


def _budget_table(name: str, lane: dict[str, Any]) -> str:
    whole = sum(lane["usual"]) or 1.0
    rows = "".join(
        f'<tr><td><span class="swatch {part}"></span>{_WORDS[part]}</td><td class="n">{_ms(ms)}</td>'
        f'<td class="n">{_share(ms / whole)}</td></tr>'
        for part, ms in zip(lane["parts"], lane["usual"], strict=True)
        if ms > 0
    )
    return (
        f'<table><thead><tr><th scope="col">usual step on the {name}</th><th class="n" scope="col">ms</th>'
        f'<th class="n" scope="col">share</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.005 else "< 1%"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def timeline(steps: list[dict[str, Any]] | None) -> str:
    """The bricks of a few steps, one by one."""
    if not steps:
        return ""
    device = any(lane["name"] != "host" for step in steps for lane in step["lanes"])
    aside = "host and device" if device else "host"
    keys = (
        '<span class="dim keys">Drag or + and - to zoom, Enter to fill with a brick, arrow keys from brick to brick, '
        "Escape for the whole step.</span>"
    )
    body = f'<div class="tools" id="moments">{keys}</div><div id="timeline"></div>{_READOUT}'
    return section("bricks-in-time", "A step, brick by brick", body, aside)


# -- what was used


def use(identity: str, title: str, panels: list[dict[str, Any]], aside: str = "", after: str = "") -> str:
    """Small charts side by side, and a table below them."""
    charts = f'<div class="panels" id="{identity}"></div>{_READOUT}' if panels else ""
    return section(f"{identity}-use", title, charts + after, aside) if charts or after else ""


# -- ranks


def ranks(found: dict[str, Any] | None) -> str:
    """Maps of rank and step, one at a time, and a row for each rank."""
    if not found:
        return ""
    rows = found["rows"]
    table = _rank_table(rows, found["late"])
    if len(rows) > 16:
        table = f"<details><summary>All {len(rows)} ranks in numbers</summary>{table}</details>"
    picture = '<div class="tools" id="compared"></div><div id="ranks"></div>' + _READOUT if found["maps"] else ""
    same = "" if found["maps"] else '<p class="dim">The ranks tell the same numbers in every step.</p>'
    return section("by-rank", "Ranks beside each other", _slowest(rows, found["late"]) + picture + same + table,
                   f"{len(rows)} ranks")  # fmt: skip


_OFTEN = 0.9


def _slowest(rows: list[dict[str, Any]], late: bool) -> str:
    """One rank that is behind in most steps is worth a sentence; ranks that take turns are not."""
    known = [row for row in rows if row["last"]]
    if not known:
        return ""
    worst = max(known, key=lambda row: row["last"])
    if worst["last"] < _OFTEN:
        return ""
    what = "is clearly the last to have its loss" if late else "is clearly the slowest"
    behind = f", usually {1e3 * worst['lateness']:,.3g} ms after the first" if late else ""
    return f"<p>Rank {worst['rank']} {what} in {worst['last']:.0%} of the steps{behind}.</p>"


def _rank_table(rows: list[dict[str, Any]], late: bool) -> str:
    heads = [("rank", "rank"), ("node", "node"), ("step time", "step time, ms"), ("lateness", "after the first, ms"),
             ("last", "clearly last"), ("loss", "last loss"), ("|grad|", "last |grad|")]  # fmt: skip
    heads = [head for head in heads if any(row.get(head[0]) is not None for row in rows)]
    if len({row["node"] for row in rows}) == 1:
        heads = [head for head in heads if head[0] != "node"]
    top = "".join(f'<th scope="col" class="n">{word}</th>' for _, word in heads)
    body = "".join(
        "<tr>" + "".join(f'<td class="n">{_rank_cell(name, row.get(name))}</td>' for name, _ in heads) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table class="few"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _rank_cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("rank", "node"):
        return told(value)
    if name == "last":
        return f"{value:.0%}"
    return f"{1e3 * value:,.3f}" if name in ("step time", "lateness") else f"{value:.5g}"
