"""The notebook: what objects look like, and the figures."""

from __future__ import annotations

import html.parser
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from making import INF, NAN, START, Made

import brickprof
from brickprof.bricks import Brick, Kind
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import Diagnosis, diagnose
from brickprof.diagnosis.compare import compare
from brickprof.diagnosis.several import Diagnoses
from brickprof.errors import NothingToJudge, UsageError
from brickprof.notebook import cards, lanes, pictures, words
from brickprof.records import Event, RunMeta, Span
from brickprof.reports.page import heat as heat_cells
from brickprof.run import Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = {
    "script": "</style></svg></title><script>alert(1)</script>",
    "attribute": '" onload="alert(1)" \'><img src=x onerror=alert(1)>',
    "comment": "<!--<script>",
    "link": "<a href='https://example.org'>here</a> $\\href{x}{y}$ [a](b) **c** `d`",
    "ansi": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "bidi": "abc\u202edef\u2066",
    "long": "x" * 10_000,
    "lines": "one\ntwo\r\x08three\u2028four",
}
VOID = {"br"}
ALLOWED = {
    "div", "style", "p", "span", "strong", "ol", "li", "details", "summary", "code", "table", "thead", "tbody", "tr",
    "th", "td", "br", "svg", "title", "path", "g", "text", "tspan", "rect",
}  # fmt: skip
MOST_BYTES = 50_000


class Read(html.parser.HTMLParser):
    """The elements and the words of a card; every element has to be closed, and to be one of those we mean to use."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in ALLOWED
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def attributes(self) -> set[str]:
        return {name for _, attributes in self.tags for name in attributes}

    def text(self) -> str:
        return " ".join(self.words)


def broken(name: str = "blocks.11", steps: int = 20) -> Made:
    made = Made("embed", name, "head")
    for step in range(steps):
        made.step(step, loss=3.0 - step / 100)
        for place, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=10.0 ** (place - 2), absmax=1e-3)
            made.sample("update", step, block, l2=1e-3, absmax=1e-3, ratio=10.0 ** -(place + 2))
    made.sample("grad", steps, name, nan=7, l2=NAN, absmax=NAN)
    made.broken("grad", steps, name, nan=7, point="step", l2=NAN)
    made.broken("weight", steps, name, nan=12, when="after")
    made.event("loss", steps, value=NAN)
    return made


@pytest.fixture
def saved(tmp_path) -> tuple[Diagnosis, Run]:
    run = Run.open(broken().run().save(tmp_path / "run"))
    return diagnose(run), run


# -- lines and Markdown


def test_a_line_says_what_it_is(saved):
    found, run = saved
    first = found.findings[0]
    assert repr(run) == "<Run k3f9: 21 steps, 1 rank>"
    assert repr(found).startswith("<Diagnosis ✗ FAIL k3f9: 21 steps, ") and first.symptom in repr(found)
    assert repr(first) == (
        f"<Finding error in step {first.first_step} of {first.brick}: {first.symptom} "
        f"({first.root_cause}, {100 * first.confidence:.0f} %)>"
    )
    assert "✓ PASS" in repr(replace(found, verdict=Verdict.PASS, findings=()))
    assert "0 findings" in repr(replace(found, findings=()))


def test_markdown_has_the_verdict_the_whys_and_what_to_do(saved):
    found, _ = saved
    lines = found._repr_markdown_().splitlines()
    assert lines[0].startswith("**✗ FAIL**")
    numbered = [line for line in lines if re.match(r"\d\. ", line)]
    assert len(numbered) == len(found.findings[0].whys) >= 2
    assert any(line.startswith("- Do: ") for line in lines)


def test_ipython_shows_the_report_alone_and_a_line_inside_a_list(saved):
    from IPython.lib.pretty import pretty

    found, _ = saved
    assert pretty(found) == str(found)
    assert pretty([found]) == f"[{found!r}]"
    assert "\n  What " in pretty(found)


# -- cards


def test_a_broken_run_is_shown_with_its_whys_its_evidence_and_pictures(saved):
    found, run = saved
    read = Read(found._repr_html_())
    first = found.findings[0]
    assert "✗ FAIL" in read.text() and first.symptom in read.text()
    for why in first.whys:
        assert why.question in read.text()
    cited = [identity for why in first.whys for identity in why.evidence[:1] if run.find(identity)]
    assert cited and all(identity in read.text() for identity in cited)
    assert read.count("details") >= len(first.whys) - 1
    assert read.count("svg") == 2
    assert "log10 |grad| by layer and step" in read.text() and "× NaN from step 20" in read.text()
    assert first.action in read.text()


def test_what_is_shown_runs_nothing_and_asks_nobody(saved):
    found, run = saved
    for shown in (found, run, found.findings[0], Diagnoses([found])):
        text = shown._repr_html_()
        read = Read(text)
        assert not any(name.startswith("on") or name in ("href", "src") for name in read.attributes())
        assert "url(" not in text and "@import" not in text
        assert len(text) < MOST_BYTES


def test_every_rule_of_the_style_is_bound_to_our_own_output():
    from brickprof.notebook.style import CLASS, STYLE

    rules = re.sub(r"@supports \(.*?\) \{(.*?\}) \}", r"\1", STYLE.removeprefix("<style>").removesuffix("</style>"),
                   flags=re.DOTALL)  # fmt: skip
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", rules)
    assert len(selectors) > 20
    assert all(part.strip().startswith(f".{CLASS}") for selector in selectors for part in selector.split(","))


def test_a_healthy_run_is_a_line_and_a_curve(tmp_path):
    made = Made()
    made.healthy(5)
    found = diagnose(Run.open(made.run().save(tmp_path / "run")))
    read = Read(found._repr_html_())
    assert "✓ PASS" in read.text() and "nothing wrong" in read.text()
    assert read.count("svg") == 1 and "What" not in read.text()


def test_without_its_run_a_diagnosis_has_the_words(saved, tmp_path):
    found, run = saved
    shutil.rmtree(run.path)
    read = Read(found._repr_html_())
    assert read.count("svg") == 0 and found.findings[0].whys[0].question in read.text()
    other = Made("other")
    other.healthy(3)
    Run.from_records(other.records, RunMeta("else", source="records")).save(run.path)
    assert Read(found._repr_html_()).count("svg") == 0  # another run lies where it lay


def test_a_run_that_somebody_holds_is_not_read_again(saved):
    found, run = saved
    assert cards._run_of(found) is not run
    cards.at_hand(run)
    assert cards._run_of(found) is run
    events = next(run.path.rglob("events.jsonl"))
    events.write_bytes(events.read_bytes() + b"\n")
    assert cards._run_of(found) is not run  # it was written on since


def test_a_log_is_shown_with_its_curves(tmp_path):
    rows = [f"{step},{4 - step / 50},{1 + step % 3}" for step in range(60)] + ["60,nan,nan", "61,nan,nan"]
    (tmp_path / "train.csv").write_text("step,loss,grad_norm\n" + "\n".join(rows) + "\n")
    found = brickprof.analyze(tmp_path / "train.csv")
    assert isinstance(found, Diagnosis)
    read = Read(found._repr_html_())
    assert read.count("svg") == 1 and "× NaN from step 60" in read.text()


def test_a_run_says_what_was_recorded(saved):
    _, run = saved
    text = Read(run._repr_html_()).text()
    samples = sum(part.samples[0].num_rows for part in run.parts)
    for said in (
        "k3f9",
        "train.py",
        "steps",
        "21",
        "ranks",
        f"{samples:,} samples of tensors",
        "on disk",
        str(run.path),
    ):
        assert said in text


@pytest.mark.parametrize("records", [[], [Event("run", 0, {})], [Event("loss", 0, {"value": NAN}, 0, START)]])
def test_next_to_nothing_is_shown_too(records):
    run = Run.from_records(records)
    assert "Run" in Read(run._repr_html_()).text()
    assert Read(diagnose(run)._repr_html_()).count("p") >= 1


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_shown_and_not_executed(kind, tmp_path):
    name = HOSTILE[kind]
    run = broken(name).run()
    run = Run.open(Run.from_records(list(run.records()), RunMeta(name, script=name)).save(tmp_path / "run"))
    found = diagnose(run)
    finding = replace(found.findings[0], brick=name, symptom=name, root_cause=name, action=name, follows=(name,))
    whys = tuple(replace(why, question=name, finding=name, evidence=(name,)) for why in finding.whys)
    bad = replace(
        found, findings=(replace(finding, whys=whys), finding), run={**found.run, "name": name, "format": name}
    )
    for shown in (bad, finding, run, Diagnoses([bad])):
        text = shown._repr_html_()
        read = Read(text)
        assert not UNSAFE.search(text)
        assert not any(attribute.startswith("on") or attribute == "href" for attribute in read.attributes())
        assert not UNSAFE.search(repr(shown) + str(shown)) and "\n" not in repr(run)
        assert len(text) < 2 * MOST_BYTES
    for markdown in (bad._repr_markdown_(), finding._repr_markdown_()):
        assert not UNSAFE.search(markdown)
        assert not re.search(r"(?<!\\)<|(?<!\\)`|(?<!\\)\]\(", markdown)


def test_many_findings_stay_within_bounds(saved):
    found, _ = saved
    many = replace(found, findings=found.findings[:1] * 40)
    text = many._repr_html_()
    assert "more in" in Read(text).text() and len(text) < 2 * MOST_BYTES


def test_a_long_run_is_a_small_picture():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100_000)
    series = {"name": "loss", "steps": list(range(100_000)), "values": noise.tolist(), "odd": [], "log": False}
    from brickprof.reports.page.curves import thinned

    few = thinned("loss", series["steps"], series["values"], (), pictures.MOST_POINTS)
    cells = [[int(code) for code in row] for row in rng.integers(-500, 500, (128, 400))]
    cells[100][399] = heat_cells.NAN
    found = {
        "rows": [f"blocks.{row // 4}.part{row % 4}" for row in range(128)], "first": list(range(0, 40_000, 100)),
        "last": list(range(99, 40_000, 100)), "cells": cells, "shared": True,
    }  # fmt: skip
    drawn = pictures.curves([few]) + pictures.heat(found, ("blocks.25.part0", 39_950))
    assert len(drawn) < MOST_BYTES - 8_000
    assert f"{noise.max():.3g}" in drawn and f"{noise.min():.3g}" in drawn
    assert pictures._BAD in drawn and "<rect" in drawn


# -- pictures


def heat_of(cells: list[list[int | None]], names: list[str] | None = None) -> dict:
    steps = list(range(len(cells[0])))
    return {"rows": names or [f"l{n}" for n in range(len(cells))], "first": steps, "last": steps, "cells": cells}


def test_layers_that_do_not_fit_are_folded_and_lose_no_mark():
    names = [f"blocks.{block}.mlp.{part}" for block in range(20) for part in range(5)]
    cells: list[list[int | None]] = [[0, 100] for _ in names]
    cells[52][1] = heat_cells.NAN
    rows, folded = pictures._fewer_rows(names, cells)
    assert len(rows) == 20 <= pictures.MOST_ROWS and rows[10].startswith("blocks.10")
    assert folded[10] == [0, heat_cells.NAN] and folded[9] == [0, 100]
    flat = [f"layer{n}" for n in range(200)]
    rows, folded = pictures._fewer_rows(flat, [[n] for n in range(200)])
    assert len(rows) <= pictures.MOST_ROWS and max(row[0] or 0 for row in folded) == 199


def test_columns_that_do_not_fit_show_the_largest():
    cells: list[list[int | None]] = [[None] * 1_000]
    cells[0][500], cells[0][999] = heat_cells.INF, 7
    firsts, lasts, few = pictures._fewer_columns(list(range(1_000)), list(range(1_000)), cells)
    assert len(firsts) == pictures.MOST_COLUMNS and lasts[-1] == 999
    assert few[0].count(heat_cells.INF) == 1 and few[0][-1] == 7


def test_cells_are_marked_not_by_colour_alone():
    drawn = pictures.heat(heat_of([[0, heat_cells.NAN, heat_cells.INF, heat_cells.ZERO, None, 300]]))
    assert "l6 6m0-6l-6 6" in drawn and "h8m-4-4v8" in drawn
    assert drawn.count(pictures._BAD) == 1 and pictures._NOTHING in drawn
    assert drawn.count("M4 0.5") == 0  # what was not looked at is left blank


def test_a_line_breaks_where_it_is_not_finite():
    one = {"name": "loss", "steps": [0, 1, 2, 3], "values": [1.0, 2.0, None, 3.0], "odd": [[2, "NaN"]], "log": False}
    drawn = pictures.curves([one])
    line = re.search(r'd="(M[^"]+)" fill="none" stroke="#3f83c8"', drawn)
    assert line is not None and line[1].count("M") == 2 and line[1].endswith("h.01")


def test_a_few_cells_far_off_do_not_take_the_colours_of_all():
    assert pictures.ends_of([0] * 90 + [100] * 9 + [2_000]) == (0, 300)
    assert pictures.ends_of([5, 10]) == (5, 10)
    assert pictures.ends_of([]) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.02, "20 ms"), (9, "9.0 s"), (600, "10 min"), (9_000, "2.5 h"), (3e5, "3.5 days")]
)
def test_times_for_people(seconds, said):
    assert words.span(seconds) == said


@pytest.mark.parametrize(("count", "said"), [(999, "999 bytes"), (1_500, "1.5 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB")])
def test_sizes_for_people(count, said):
    assert words.size(count) == said


# -- several, and comparisons


def test_several_logs_are_a_table_and_a_frame(tmp_path):
    for name, last in (("good", 1.0), ("bad", math.nan)):
        rows = [f"{step},{4 - step / 50}" for step in range(60)] + [f"60,{last}", f"61,{last}"]
        (tmp_path / f"{name}.csv").write_text("step,loss\n" + "\n".join(rows) + "\n")
    found = brickprof.analyze([tmp_path / "good.csv", tmp_path / "bad.csv"])
    assert isinstance(found, list) and isinstance(found, Diagnoses) and len(found) == 2
    frame = found.to_frame()
    assert dict(zip(frame["run"], frame["verdict"], strict=True))["bad"] == "FAIL"
    text = Read(found._repr_html_()).text()
    assert "2 runs" in text and "bad" in text and "FAIL" in text
    assert str(found).splitlines() == [repr(one) for one in found]


def test_a_comparison_says_where_runs_part():
    a, b = broken(), Made("embed", "blocks.11", "head")
    b.step(0, loss=3.0)
    b.step(1, loss=7.0)
    text = Read(compare(a.run(), b.run())._repr_html_()).text()
    assert "✗ DIFFERENT" in text and "the runs part in step 1" in text
    assert "✓ SAME" in Read(compare(a.run(), a.run())._repr_html_()).text()


# -- figures


def trace(figure, name: str):
    found = [one for one in figure.data if one.name == name]
    assert len(found) == 1, [one.name for one in figure.data]
    return found[0]


def drawn(figure) -> str:
    text = figure.to_html(include_plotlyjs=False)
    assert "Plotly.newPlot" in text
    return text


def test_the_loss_has_its_marks_and_its_axes(saved):
    found, run = saved
    figure = run.plot.loss(found)
    line = trace(figure, "loss")
    assert list(line.x) == list(range(21)) and line.y[0] == 3.0 and line.y[20] is None
    crosses = trace(figure, "loss not finite")
    assert list(crosses.x) == [20] and list(crosses.text) == ["NaN"] and crosses.marker.symbol == "x"
    assert figure.layout.xaxis.title.text == "step" and figure.layout.yaxis.title.text == "loss"
    assert figure.layout.title.text.startswith("Loss") and "k3f9" in figure.layout.title.text
    assert [note.text for note in figure.layout.annotations] == ["F1"]
    assert figure.layout.shapes[0].x0 == found.findings[0].first_step
    assert not run.plot.loss().layout.annotations
    drawn(figure)


def test_values_that_span_decades_are_on_a_log_scale():
    made = Made()
    for step in range(10):
        made.step(step, loss=10.0**-step, norm=1.0)
    assert made.run().plot.loss().layout.yaxis.type == "log"
    made.event("loss", 10, value=-1.0)
    assert made.run().plot.loss().layout.yaxis.type == "linear"


def test_all_curves_share_one_axis(saved):
    found, run = saved
    figure = run.plot.curves(found)
    names = {one.name for one in figure.data}
    assert {"loss", "|grad|", "learning rate"} <= names
    assert trace(figure, "|grad|").yaxis != trace(figure, "loss").yaxis
    assert figure.layout.xaxis.matches is not None


def test_gradients_are_a_map_of_layers_and_steps(saved):
    found, run = saved
    figure = run.plot.gradients(found)
    heat = trace(figure, "log10 |grad|")
    assert list(figure.layout.yaxis.ticktext) == ["embed", "blocks.11", "head"]
    z = np.array(heat.z, dtype=float)
    assert z.shape == (3, 21) and z[:, 0].tolist() == [-2.0, -1.0, 0.0]
    assert np.isnan(z[1, 20]) and len(heat.x) == 22 and heat.x[0] == -0.5
    nan = trace(figure, "NaN")
    assert list(nan.x) == [20] and list(nan.y) == [1]
    assert "step 20: |grad| NaN" in heat.text[1][20] and "0.1" in heat.text[1][0]
    assert heat.colorbar.title.text == "log10 |grad|"
    drawn(figure)


def test_updates_are_shares_of_the_weights(saved):
    _, run = saved
    heat = trace(run.plot.updates(), "log10 |update| / |weight|")
    assert np.array(heat.z, dtype=float)[:, 0].tolist() == [-2.0, -3.0, -4.0]


def timed(step: int, *, rank: int = 0, begin: int = START, device: bool = False) -> list[Span]:
    """A step of 100 ms: forward with two blocks inside, backward; half as long on the device, 10 ms later."""
    ms = 1_000_000
    rows = [("step", "step", 0, 100), ("model", "forward", 0, 40), ("model.a", "forward", 5, 15),
            ("model.b", "forward", 20, 40), ("model", "backward", 50, 90)]  # fmt: skip
    told = []
    for number, (brick, phase, start, end) in enumerate(rows, start=1):
        kind = Kind.STEP if phase == "step" else Kind.BLOCK
        more = {}
        if device and phase != "step":
            at = begin + (start + 10) * ms
            more = {"device_ns": (end - start) * ms // 2, "stream": 7, "attributes": {"device_start_ns": at}}
        told.append(Span(Brick(kind, brick, "Net"), step, begin + start * ms, begin + end * ms, phase, number, 0,
                         rank=rank, **more))  # fmt: skip
    return told


def test_a_step_is_drawn_in_lanes_that_nest():
    run = Run.from_records([*timed(0), *timed(3, begin=START + 10**9, device=True)])
    found = lanes.timeline(run)
    assert (found.step, found.rank, found.length, found.left_out) == (3, 0, 100.0, 0)
    host = [(bar.brick, bar.depth, bar.start, bar.length) for bar in found.bars if bar.lane == "host"]
    assert host == [("model", 0, 0, 40), ("model.a", 1, 5, 10), ("model.b", 1, 20, 20), ("model", 0, 50, 40)]
    device = [(bar.brick, bar.start, bar.length) for bar in found.bars if bar.lane == "device, stream 7"]
    assert device == [("model", 10, 20), ("model.a", 15, 5), ("model.b", 30, 10), ("model", 60, 20)]
    figure = run.plot.timeline(3)
    forward = trace(figure, "forward")
    assert forward.orientation == "h" and "model.a" in forward.text
    assert set(figure.layout.yaxis.ticktext) == {"host", "device, stream 7", ""}
    assert "milliseconds" in figure.layout.xaxis.title.text and "Step 3" in figure.layout.title.text
    drawn(figure)


def test_of_very_many_bars_the_longest_are_drawn(monkeypatch):
    monkeypatch.setattr(lanes, "MOST_BARS", 2)
    found = lanes.timeline(Run.from_records(timed(0)))
    assert [bar.length for bar in found.bars] == [40.0, 40.0] and found.left_out == 2


def test_a_step_that_was_not_timed_says_which_were():
    run = Run.from_records([*timed(0), *timed(8)])
    with pytest.raises(UsageError, match=r"step 5 was not timed\. Steps near it that were: 0, 8"):
        run.plot.timeline(5)
    with pytest.raises(UsageError, match=r"no step of rank 4 was timed\. There are ranks 0"):
        run.plot.timeline(rank=4)


def two_ranks(count: int = 2) -> Run:
    records = []
    for rank in range(count):
        made = Made(rank=rank)
        made.healthy(6)
        late = 50_000_000 * (rank == 1)
        records += [
            replace(record, time_ns=START + record.step * 10**8 + late, fields={**record.fields, "value": 1.0 + rank})
            if isinstance(record, Event) and record.kind == "loss" else record
            for record in made.records
        ]  # fmt: skip
    return Run.from_records(records)


@pytest.mark.parametrize("count", [2, 12])
def test_ranks_lie_beside_each_other(count):
    figure = two_ranks(count).plot.ranks()
    assert f"{count} ranks" in figure.layout.title.text
    names = [one.name for one in figure.data]
    loss = next(one for one in figure.data if one.name == "loss" and one.type == "heatmap")
    assert list(loss.y) == [f"rank {rank}" for rank in range(count)]
    assert ("rank 1" in names) == (count == 2) and ("highest rank" in names) == (count == 12)
    bars = next(one for one in figure.data if one.type == "bar")
    assert len(bars.x) == count
    drawn(figure)


@pytest.mark.parametrize(
    ("method", "says"),
    [("loss", "no loss"), ("curves", "by step"), ("gradients", "no gradients"), ("updates", "no updates"),
     ("timeline", "no step"), ("ranks", "one rank")],
)  # fmt: skip
def test_what_was_not_recorded_is_said(method, says):
    run = Run.from_records([Event("run", 0, {})])
    with pytest.raises(NothingToJudge, match=says):
        getattr(run.plot, method)()


@pytest.mark.parametrize("method", ["loss", "curves", "gradients", "updates"])
def test_without_plotly_it_says_what_to_install(method, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(UsageError, match=r"pip install 'brickprof\[notebook\]'"):
        getattr(saved[1].plot, method)()


def test_cards_need_no_plotly(saved, monkeypatch):
    for name in ("plotly", "plotly.graph_objects", "IPython"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "svg" in saved[0]._repr_html_()


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_in_figures_are_text(kind, tmp_path):
    name = HOSTILE[kind]
    made = broken(name)
    run = Run.from_records(list(made.run().records()), RunMeta(name, script=name))
    found = diagnose(run)
    for figure in (run.plot.loss(found), run.plot.gradients(found), run.plot.curves(found)):
        text = figure.to_json()
        assert not re.search(r"<(script|img|a|!--)", json.loads(text)["layout"]["title"]["text"])
        told = json.dumps(json.loads(text))
        assert not re.search(r"<(script|img|a )", told) and "$\\\\href" not in told
        assert not UNSAFE.search(text)
        assert len(text) < 300_000
        drawn(figure)


def test_the_accessor_says_what_it_can(saved):
    assert "gradients" in repr(saved[1].plot) and "k3f9" in repr(saved[1].plot)


def test_help_tells_what_there_is():
    import pydoc

    told = pydoc.plain(pydoc.render_doc(brickprof))
    for said in ("with brickprof.attach(", "%load_ext brickprof", "load(path", "diagnose(run", "analyze(", "class Run",
                 "plot", "gradients"):  # fmt: skip
        assert said in told


def test_importing_brickprof_does_not_ask_for_ipython_or_plotly():
    program = "import sys, brickprof, brickprof.notebook.cards; print(sorted({'IPython', 'plotly'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_infinite_gradients_are_plus_signs():
    made = Made("one", "two")
    made.step(0)
    made.sample("grad", 0, "one", l2=INF, absmax=INF, inf=3)
    made.sample("grad", 0, "two", l2=0.0, absmax=0.0)
    figure = made.run().plot.gradients()
    assert list(trace(figure, "Inf").y) == [0] and trace(figure, "zero").z[1][0] == 1
