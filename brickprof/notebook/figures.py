"""The figures of a run, in plotly.

Enters: a ``Run``, and a ``Diagnosis`` whose findings are to be marked. Leaves: figures with a title, axes with units, a
log scale where values span decades, and marks on what is not finite. What is drawn is thinned as in the web page: the
highest, the lowest and the broken points stay. plotly is asked for when the first figure is; names of a run are text
and neither markup nor formulas.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brickprof.contracts.verdicts import Severity
from brickprof.errors import NothingToJudge, UsageError
from brickprof.notebook import lanes
from brickprof.notebook.pictures import ends_of
from brickprof.reports.page import ranks as by_rank
from brickprof.reports.page.curves import curves
from brickprof.reports.page.heat import INF, NAN, ZERO, heat_map
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run

_BAD, _GREY = "#d1343f", "#9a9a9a"
_COLOURS = ("#3f83c8", "#e08a1e", "#2b9348", "#8b5fbf", "#c2588b", "#0f9aa0", "#8a6d3b", "#6b7280")
_PHASES = {
    "forward": "#3f83c8", "backward": "#e08a1e", "optimizer": "#2b9348", "loader": "#8b5fbf", "transfer": "#c2588b",
    "eval": "#0f9aa0", "recompute": "#8a6d3b", "user": "#6b7280", "sync": "#b0413e",
}  # fmt: skip
_UNITS = {"seconds a step": "seconds", "learning rate": "learning rate", "scale": "loss scale"}
_MOST_FINDINGS, _MOST_CROSSES = 8, 2_000


class Mark(NamedTuple):
    """A finding, where it began."""

    label: str
    step: int
    brick: str
    symptom: str


def loss(run: Run, diagnosis: Diagnosis | None) -> Any:
    marks = _marks(diagnosis)
    series = [one for one in _series(run, marks) if _kind(one) in ("loss", "evaluation loss")]
    if not series:
        raise NothingToJudge("no loss was recorded in this run.", "What there is: run.events['kind'].value_counts().")
    figure = _figure(run, "Loss", height=420)
    for number, one in enumerate(series):
        _draw(figure, one, _COLOURS[number % len(_COLOURS)])
    figure.update_yaxes(title_text="loss", **_scale(all(map(_scaled, series))))
    figure.update_xaxes(title_text="step")
    _mark_steps(figure, marks)
    return figure


def course(run: Run, diagnosis: Diagnosis | None) -> Any:
    marks = _marks(diagnosis)
    series = _series(run, marks)
    if not series:
        raise NothingToJudge("nothing of this run is known by step.")
    figure = _stacked(run, "Course of the run", len(series))
    for number, one in enumerate(series, start=1):
        _draw(figure, one, _COLOURS[(number - 1) % len(_COLOURS)], row=number)
        unit = _UNITS.get(_kind(one), one["name"])
        figure.update_yaxes(title_text=label(unit, 40), **_scale(_scaled(one)), row=number, col=1)
    figure.update_xaxes(title_text="step", row=len(series), col=1)
    _mark_steps(figure, marks)
    return figure


def gradients(run: Run, diagnosis: Diagnosis | None) -> Any:
    marks = _marks(diagnosis)
    found = heat_map(run, marks[0].step if marks else None)
    if found is None:
        hint = "Capture samples them (`brickprof run`, `brickprof.attach`); logs of other tools hold norms at most."
        raise NothingToJudge("no gradients of layers were sampled in this run.", hint)
    return _map(_figure(run, "Gradients by layer and step"), found, marks, "log10 |grad|")


def updates(run: Run, diagnosis: Diagnosis | None) -> Any:
    marks = _marks(diagnosis)
    found = heat_map(run, marks[0].step if marks else None, "update")
    if found is None:
        hint = "Capture samples them in the steps that it looks at in full: `--level deep` does so in every step."
        raise NothingToJudge("no updates of weights were sampled in this run.", hint)
    return _map(_figure(run, "Update / weight by layer and step"), found, marks, "log10 |update| / |weight|")


def timeline(run: Run, step: int | None, rank: int | None) -> Any:
    plotly = _plotly()
    found = lanes.timeline(run, step, rank)
    rows = sorted({(bar.lane != "host", bar.lane, bar.depth) for bar in found.bars})
    place = {row[1:]: number for number, row in enumerate(rows)}
    left = f"; the {found.left_out:,} shortest bars are left out" if found.left_out else ""
    of = f" of rank {found.rank}" if len(run.ranks) > 1 else ""
    title = f"Step {found.step:,}{of}: {found.length:,.2f} ms on the host{left}"
    figure = _figure(run, title, height=160 + 30 * max(len(rows), 3))
    for phase in dict.fromkeys(bar.phase for bar in found.bars):
        mine = [bar for bar in found.bars if bar.phase == phase]
        figure.add_trace(
            plotly.Bar(
                orientation="h", name=label(phase), marker_color=_PHASES.get(phase, _GREY),
                base=[bar.start for bar in mine], x=[bar.length for bar in mine],
                y=[place[bar.lane, bar.depth] for bar in mine], text=[label(bar.brick, 80) for bar in mine],
                textposition="inside", insidetextanchor="start", textangle=0,
                customdata=[[label(bar.lane), bar.start] for bar in mine],
                hovertemplate="%{text}<br>%{x:.3f} ms, from %{customdata[1]:.3f} ms on<br>%{customdata[0]}",
            )
        )  # fmt: skip
    names = [f"{lane}" if depth == 0 else "" for _, lane, depth in rows]
    figure.update_layout(barmode="overlay", bargap=0.08, hovermode="closest")
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=[label(name) for name in names], autorange="reversed")
    figure.update_xaxes(title_text="milliseconds from the beginning of the step")
    return figure


def ranks(run: Run, diagnosis: Diagnosis | None) -> Any:
    """The loss of each rank, and below it a map for each thing in which they differ."""
    plotly = _plotly()
    told = by_rank.ranks(run)
    if told is None:
        raise NothingToJudge("this run has one rank: there is nothing to compare.", "run.plot.loss() draws it.")
    marks = _marks(diagnosis)
    series = [one for one in _series(run, marks) if _kind(one) == "loss"][:1]
    maps, rows = told["maps"], told["rows"]
    figure = _stacked(run, f"{len(rows):,} ranks", len(series) + len(maps) + 1, [_map_title(one) for one in maps])
    for one in series:
        _draw(figure, one, _COLOURS[0], row=1)
        figure.update_yaxes(title_text="loss", **_scale(_scaled(one)), row=1, col=1)
    for number, one in enumerate(maps, start=len(series) + 1):
        _rank_map(figure, one, number)
    figure.update_xaxes(title_text="step", row=len(series) + len(maps), col=1)
    figure.update_layout(hovermode="closest")
    number = len(series) + len(maps) + 1
    name, unit = ("lateness", "ms late") if told["late"] else ("step time", "ms a step")
    known = [row for row in rows if row.get(name) is not None]
    bars = plotly.Bar(
        x=[f"rank {row['rank']}" for row in known], y=[1e3 * row[name] for row in known], showlegend=False,
        marker_color=_COLOURS[0], customdata=[[row["last"] or 0.0] for row in known],
        hovertemplate="%{x}: %{y:.3f} " + unit + "<br>last in %{customdata[0]:.0%} of the steps<extra></extra>",
    )  # fmt: skip
    figure.add_trace(bars, row=number, col=1)
    figure.update_yaxes(title_text=unit, row=number, col=1)
    figure.update_xaxes(matches=None, title_text="rank", row=number, col=1)
    _mark_steps(figure, marks, rows=len(series) + len(maps))
    return figure


# -- lines


def _series(run: Run, marks: Sequence[Mark]) -> list[dict[str, Any]]:
    return curves(run, [mark.step for mark in marks])


def _kind(one: dict[str, Any]) -> str:
    return str(one["name"]).partition(": ")[0]


def _scaled(one: dict[str, Any]) -> bool:
    """Whether it is drawn on a log scale: it spans decades, and none of it is zero or less."""
    known = [value for line in _lines(one) for value in line if value is not None]
    return bool(one["log"]) and all(value > 0 for value in known)


def _scale(log: bool) -> dict[str, Any]:
    return {"type": "log", "dtick": 1} if log else {"type": "linear"}


def _lines(one: dict[str, Any]) -> list[list[float | None]]:
    band = one.get("band")
    others = [line["values"] for line in one.get("lines", ())] + ([band["low"], band["high"]] if band else [])
    return [one["values"], *others]


def _draw(figure: Any, one: dict[str, Any], colour: str, row: int | None = None) -> None:
    """A line, those of its ranks or their band below it, and crosses where it is not finite."""
    plotly, place = _plotly(), ({} if row is None else {"row": row, "col": 1})
    name, steps = label(one["name"], 60), one["steps"]
    for number, line in enumerate(one.get("lines", ())):
        shade = _COLOURS[number % len(_COLOURS)]
        thin = plotly.Scatter(
            x=steps, y=line["values"], name=label(line["name"]), mode="lines", line={"width": 1, "color": shade},
            opacity=0.7, legendgroup=label(line["name"]),
        )  # fmt: skip
        figure.add_trace(thin, **place)
    if band := one.get("band"):
        edge = {"width": 0, "color": colour}
        for which, fill in (("low", None), ("high", "tonexty")):
            side = plotly.Scatter(
                x=steps, y=band[which], mode="lines", line=edge, fill=fill, name=f"{which}est rank", showlegend=False,
                customdata=band[f"{which}est"], hovertemplate="%{y:.6g}, rank %{customdata}",
            )  # fmt: skip
            figure.add_trace(side, **place)
    of = f" ({one['of']:,} points, thinned)" if one["of"] > len(steps) else ""
    whole = plotly.Scatter(
        x=steps, y=one["values"], name=name + of, mode="lines" if len(steps) > 1 else "markers",
        line={"color": colour, "width": 2}, hovertemplate="step %{x:,}: %{y:.6g}", connectgaps=False,
    )  # fmt: skip
    figure.add_trace(whole, **place)
    if one["odd"]:
        top = max((value for line in _lines(one) for value in line if value is not None), default=1.0)
        crosses = plotly.Scatter(
            x=[step for step, _ in one["odd"]], y=[top] * len(one["odd"]), mode="markers", name=f"{name} not finite",
            marker={"symbol": "x", "color": _BAD, "size": 8}, text=[str(word) for _, word in one["odd"]],
            hovertemplate="step %{x:,}: %{text}",
        )  # fmt: skip
        figure.add_trace(crosses, **place)


# -- maps


def _map(figure: Any, found: dict[str, Any], marks: Sequence[Mark], what: str) -> Any:
    """Layers by step: a colour for each number, red and a cross where it is not finite, grey where it is zero."""
    plotly = _plotly()
    cells, names = found["cells"], found["rows"]
    numbers = [cell for row in cells for cell in row if cell is not None and cell not in (NAN, INF, ZERO)]
    low, high = ends_of(numbers)
    edges = [step - 0.5 for step in found["first"]] + [found["last"][-1] + 0.5]
    said = [[_cell_text(names[row], column, cell, found, what) for column, cell in enumerate(line)]
            for row, line in enumerate(cells)]  # fmt: skip
    common = {"x": edges, "text": said, "hovertemplate": "%{text}<extra></extra>", "xgap": 0, "ygap": 1}
    for colour, codes, name in ((_GREY, (ZERO,), "zero"), (_BAD, (NAN, INF), "not finite")):
        if any(cell in codes for row in cells for cell in row):
            flat = [[1 if cell in codes else None for cell in row] for row in cells]
            figure.add_trace(
                plotly.Heatmap(
                    z=flat, zmin=0, zmax=1, colorscale=[[0, colour], [1, colour]], showscale=False, name=name, **common
                )
            )
    if numbers:
        z = [[cell / 100 if cell not in (None, NAN, INF, ZERO) else None for cell in row] for row in cells]
        figure.add_trace(
            plotly.Heatmap(
                z=z, zmin=low / 100, zmax=high / 100 if high > low else low / 100 + 1, colorscale="Viridis", name=what,
                colorbar={"title": {"text": what, "side": "right"}}, **common,
            )
        )  # fmt: skip
    _crosses(figure, found)
    figure.update_layout(height=min(max(260, 140 + 14 * len(names)), 1_400), hovermode="closest")
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=[label(name, 48) for name in names], showgrid=False,
        range=[len(names) - 0.5, -0.5], title_text="layer",
    )  # fmt: skip
    note = "step; a column of several shows their mean, or what is ten times off" if found["shared"] else "step"
    figure.update_xaxes(title_text=note, showgrid=False, range=[edges[0], edges[-1]])
    _mark_steps(figure, marks)
    _ring(figure, found, marks)
    return figure


def _cell_text(name: str, column: int, cell: int | None, found: dict[str, Any], what: str) -> str:
    first, last = found["first"][column], found["last"][column]
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    words = {None: "not sampled", NAN: "NaN", INF: "Inf", ZERO: "zero"}
    value = words[cell] if cell in words else f"{10 ** (cell / 100):.3g}" if cell is not None else ""
    return f"{label(name, 80)}<br>{steps}: {what.removeprefix('log10 ')} {value}"


def _crosses(figure: Any, found: dict[str, Any]) -> None:
    """× and + on what is not finite, so that no colour has to be told; of very many the first."""
    plotly = _plotly()
    for code, name, symbol in ((NAN, "NaN", "x-thin"), (INF, "Inf", "cross-thin")):
        at = [(row, column) for row, line in enumerate(found["cells"]) for column, c in enumerate(line) if c == code]
        if at:
            centres = [_centre(found, column) for _, column in at[:_MOST_CROSSES]]
            figure.add_trace(
                plotly.Scatter(
                    x=centres, y=[row for row, _ in at[:_MOST_CROSSES]], mode="markers", name=name, hoverinfo="skip",
                    marker={"symbol": symbol, "size": 6, "line": {"width": 1.2, "color": "#ffffff"}}, showlegend=False,
                )
            )  # fmt: skip


def _centre(found: dict[str, Any], column: int) -> float:
    firsts = found["first"]
    end = firsts[column + 1] if column + 1 < len(firsts) else found["last"][-1] + 1
    return float(firsts[column] + end - 1) / 2


def _ring(figure: Any, found: dict[str, Any], marks: Sequence[Mark]) -> None:
    """A frame around the cell in which the first finding began."""
    for mark in marks[:1]:
        rows = [n for n, name in enumerate(found["rows"]) if mark.brick == name or mark.brick.startswith(f"{name}.")]
        columns = [n for n, first in enumerate(found["first"]) if first <= mark.step <= found["last"][n]]
        if mark.brick and rows and columns:
            x = found["first"][columns[0]] - 0.5
            end = 2 * _centre(found, columns[0]) - x
            figure.add_shape(
                type="rect", x0=x, x1=end, y0=rows[0] - 0.5, y1=rows[0] + 0.5, line={"color": "#ffffff", "width": 3}
            )


def _map_title(one: dict[str, Any]) -> str:
    return "lateness behind the first rank" if one["late"] else f"{one['name']} off the middle of all ranks"


def _rank_map(figure: Any, one: dict[str, Any], row: int) -> None:
    plotly = _plotly()
    known = [cell for line in one["cells"] for cell in line if cell is not None and cell not in (NAN, INF)]
    scale, unit = (1e-3, "ms") if one["late"] else (0.1, "%")
    most = max((abs(cell) for cell in known), default=1.0) * scale or 1.0
    z = [[cell * scale if cell is not None and cell not in (NAN, INF) else None for cell in line]
         for line in one["cells"]]  # fmt: skip
    said = [["NaN or Inf" if cell in (NAN, INF) else "" if cell is None else f"{cell * scale:+.3g} {unit}"
             for cell in line] for line in one["cells"]]  # fmt: skip
    figure.add_trace(
        plotly.Heatmap(
            z=z, x=[step - 0.5 for step in one["first"]] + [one["last"][-1] + 0.5], y=one["rows"], text=said,
            zmin=0 if one["late"] else -most, zmax=most, colorscale="Viridis" if one["late"] else "RdBu_r",
            showscale=False, name=one["name"], hovertemplate="%{y}, step %{x:.0f}: %{text}<extra></extra>",
        ),
        row=row, col=1,
    )  # fmt: skip
    broken = [(line, column) for line, cells in enumerate(one["cells"]) for column, c in enumerate(cells)
              if c in (NAN, INF)][:_MOST_CROSSES]  # fmt: skip
    if broken:
        figure.add_trace(
            plotly.Scatter(
                x=[_centre(one, column) for _, column in broken], y=[one["rows"][line] for line, _ in broken],
                mode="markers", name="not finite", marker={"symbol": "x", "color": _BAD, "size": 7}, hoverinfo="skip",
            ),
            row=row, col=1,
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", row=row, col=1)


# -- what all have


def _plotly() -> Any:
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError:
        raise UsageError("figures are drawn by plotly, which is not here.", _INSTALL) from None


_INSTALL = "pip install 'brickprof[notebook]'"


def _figure(run: Run, title: str, height: int = 480) -> Any:
    figure = _plotly().Figure()
    _dress(figure, run, title, height)
    return figure


def _stacked(run: Run, title: str, rows: int, titles: Iterable[str] = ()) -> Any:
    """Panels one below the other, on one axis of steps."""
    _plotly()
    panels = importlib.import_module("plotly.subplots")
    named = [label(each) for each in titles]
    names = [""] * (rows - len(named) - 1) + [*named, ""] if named else None
    space = min(0.12, 0.45 / rows) if named else min(0.03, 0.3 / rows)
    figure = panels.make_subplots(
        rows=rows, cols=1, shared_xaxes=not named, vertical_spacing=space, subplot_titles=names
    )
    _dress(figure, run, title, 120 + 170 * rows)
    return figure


def _dress(figure: Any, run: Run, title: str, height: int) -> None:
    who = label(" ".join(part for part in (run.meta.run_id, run.meta.script) if part), 100)
    figure.update_layout(
        title={"text": f"{title}<br><sup>{who}</sup>"}, height=height, hovermode="x unified",
        margin={"l": 70, "r": 30, "t": 90, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
    )  # fmt: skip
    figure.update_yaxes(exponentformat="power")


def _marks(diagnosis: Diagnosis | None) -> list[Mark]:
    """Where the findings began that are more than notes."""
    found = [one for one in diagnosis.findings if one.severity is not Severity.INFO] if diagnosis is not None else []
    return [
        Mark(f"F{number}", one.first_step, one.brick, label(one.symptom, 160))
        for number, one in enumerate(found[:_MOST_FINDINGS], start=1)
    ]


def _mark_steps(figure: Any, marks: Sequence[Mark], rows: int | None = None) -> None:
    for mark in marks:
        for row in ("all",) if rows is None else range(1, rows + 1):
            place = {} if rows is None else {"row": row, "col": 1}
            first = row in ("all", 1)
            figure.add_vline(
                x=mark.step, line={"color": _BAD, "dash": "dash", "width": 1.2},
                annotation={"text": mark.label, "hovertext": mark.symptom, "font": {"color": _BAD}} if first else None,
                **place,
            )  # fmt: skip


def label(foreign: object, limit: int = 120) -> str:
    """``foreign`` as text of a figure: neither plotly's markup (links, too) nor a formula."""
    return html.escape(clean(foreign, limit=limit), quote=False).replace("$", "&#36;")
