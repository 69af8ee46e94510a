"""The web page: structure, policy, hostile strings, many findings, what thinning keeps, and a real browser."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import page_runs
import pytest
from making import INF, NAN, START, Made

from brickprof.bricks import Brick, Kind
from brickprof.cli.app import main
from brickprof.contracts.registry import library
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.diagnosis import Diagnosis, diagnose
from brickprof.records import Span
from brickprof.reports import html as page
from brickprof.reports.page import heat as heat_cells
from brickprof.reports.page import resources, sections, steps, tables
from brickprof.reports.page.curves import curves, thinned
from brickprof.reports.page.graph import graph
from brickprof.reports.page.heat import heat_map
from brickprof.reports.page.proof import Prover
from brickprof.reports.page.ranks import ranks
from brickprof.run import Run

MOST_BYTES = 6_000_000
VOID = {"meta", "br", "input"}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "attribute": '" onload="alert(1)" \'><img src=x onerror=alert(1)>',
    "comment": "<!--<script>",
    "ansi": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "bidi": "abc\u202edef\u2066",
    "long": "x" * 10_000,
    "lines": "one\ntwo\r\x08three\u2028four",
    "surrogate": "a\ud800b",
}


class Read(html.parser.HTMLParser):
    """The elements of a page, and what stands in its scripts and styles; complains about what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] in self.inside:
            self.inside[self._open[-1]][-1] += data
        else:
            self.words.append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def with_class(self, name: str) -> list[str]:
        return [tag for tag, attributes in self.tags if name in (attributes.get("class") or "").split()]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if attributes.get("id")]

    @property
    def data(self) -> dict:
        return json.loads(self.inside["script"][0])

    @property
    def policy(self) -> str:
        named = [a for a in self.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy"]
        assert len(named) == 1
        return named[0]["content"] or ""

    def text(self) -> str:
        return " ".join(self.words)


def broken_run(name: str = "blocks.11", steps: int = 40) -> Made:
    made = Made("embed", name, "head")
    made.event("start", 0, rank=-1, pid=1)
    for step in range(steps):
        made.step(step, loss=3.0 - step / 100)
        for place, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=10.0 ** (place - 2), absmax=1e-3)
    made.sample("grad", steps, name, nan=7, l2=NAN, absmax=NAN)
    made.broken("grad", steps, name, nan=7, point="step", l2=NAN)
    made.broken("weight", steps, name, nan=12, when="after")
    made.event("loss", steps, value=NAN)
    made.event("exited", steps, rank=-1, code=1, text="the script exited 1", seconds=9.0)
    return made


def made_page(made: Made) -> Read:
    run = made.run()
    return Read(page.text(diagnose(run), run))


def log_file(folder: Path, rows: int = 60, broken: bool = True) -> Path:
    file = folder / "train.csv"
    lines = [f"{step},{4 - step / 50},{1 + step % 3},0.001" for step in range(rows)]
    lines += [f"{step},nan,nan,0.001" for step in range(rows, rows + 5)] if broken else []
    file.write_text("step,loss,grad_norm,lr\n" + "\n".join(lines) + "\n")
    return file


# -- structure


def test_a_broken_run_shows_verdict_whys_evidence_and_the_picture():
    read = made_page(broken_run())
    found = diagnose(broken_run().run())
    assert "FAIL" in read.text()
    assert found.findings[0].symptom in read.text()
    assert len(read.with_class("why")) >= sum(len(finding.whys) for finding in found.findings)
    assert {"heat", "curves", "contracts", "theme"} <= set(read.ids)
    assert [curve["name"] for curve in read.data["curves"]][:2] == ["loss", "|grad|"]
    rings = [a for a in read.attributes("button") if a.get("class") == "ring"]
    assert rings and all(int(a["data-first"]) <= int(a["data-last"]) for a in rings)
    assert len(read.ids) == len(set(read.ids))


def test_evidence_holds_the_values_of_the_records():
    made = broken_run()
    run = made.run()
    found = diagnose(run)
    cited = [identity for identity in found.findings[0].whys[0].evidence if run.find(identity)]
    assert cited
    text = made_page(made).text()
    for identity in cited:
        record = run.find(identity)[0]
        assert identity in text and record.kind in text
        for name, value in record.fields.items():
            if isinstance(value, float):
                assert f"{name} {value:.6g}" in text


def test_an_id_of_a_wide_range_is_looked_up_at_its_ends():
    from brickprof.diagnosis.model import Why

    run = broken_run().run()
    proof = Prover(run).of(Why("why?", "so", evidence=("grad:3-30:embed",)))
    assert (proof.first, proof.last, proof.brick) == (3, 30, "embed")
    assert [row.step for row in proof.rows] == [3, 30]
    assert "l2 0.01" in proof.rows[0].values


def test_a_healthy_run_has_no_chain_and_no_ring():
    made = Made()
    made.healthy(30)
    read = made_page(made)
    assert read.with_class("why") == [] and read.data["findings"] == []
    assert "course" in read.ids
    assert {"proof", "heat", "others", "by-rank", "traffic-use", "memory-use", "cards-use", "kernels"}.isdisjoint(
        read.ids
    )


@pytest.mark.parametrize("count", [0, 1, 30])
def test_any_number_of_findings(count):
    run = broken_run().run()
    found = diagnose(run)
    many = tuple(replace(found.findings[0], id=f"F{n}", first_step=n) for n in range(count))
    read = Read(page.text(replace(found, findings=many), run))
    assert len(read.data["findings"]) == count
    assert len(read.with_class("finding")) == max(count - 1, 0)


def test_a_diagnosis_without_its_run_says_that_there_are_no_pictures():
    read = Read(page.text(diagnose(broken_run().run())))
    assert "No pictures" in read.text()
    assert read.data["curves"] == [] and read.data["heat"] is None
    assert read.with_class("why")


def test_an_empty_run_is_a_page():
    run = Run.from_records([])
    assert "no training was observed" in Read(page.text(diagnose(run), run)).text()


# -- the policy


def test_the_policy_names_style_and_script_by_their_hashes_and_nothing_else():
    read = made_page(broken_run())

    def hashed(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    (style,), (_, script) = read.inside["style"], read.inside["script"]
    rules = dict(rule.strip().split(" ", 1) for rule in read.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == f"'sha256-{hashed(style)}'"
    assert rules["script-src"] == f"'sha256-{hashed(script)}'"
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}


def test_nothing_is_fetched_and_no_attribute_is_code():
    read = made_page(broken_run())
    names = {name for _, attributes in read.tags for name in attributes}
    assert not {"src", "href", "srcset", "action", "style"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|eval\(|innerHTML", "".join(read.inside["script"][1:]))
    assert not re.search(r"https?:|url\(|@import", read.inside["style"][0])


# -- hostile strings


def only_ours(read: Read, text: str) -> None:
    assert len(read.inside["script"]) == 2 and len(read.inside["style"]) == 1
    assert {tag for tag, _ in read.tags}.isdisjoint({"img", "iframe", "object", "link", "a", "svg"})
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert not UNSAFE.search(text)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_shown_and_not_executed(kind):
    made = broken_run(HOSTILE[kind])
    made.event("exception", 3, type=HOSTILE[kind], message=HOSTILE[kind], frames=[], where=HOSTILE[kind])
    run = made.run()
    text = page.text(diagnose(run), run)
    only_ours(Read(text), text)
    assert len(text) < 300_000


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_diagnosis_is_shown_and_not_executed(kind):
    said = HOSTILE[kind]
    run = broken_run().run()
    found = diagnose(run)
    first = found.findings[0]
    whys = tuple(replace(why, question=said, finding=said, brick=said, evidence=(said,)) for why in first.whys)
    finding = replace(
        first, contract=said, root_cause=said, brick=said, symptom=said, whys=whys, action=said, next_experiment=said,
        follows=(said,), nature=said, scope=said, obligation=said,
    )  # fmt: skip
    contracts = tuple(replace(c, observed=said, threshold=said, why=said) for c in found.contracts)
    log = {"series": [{"name": said, "role": said, "points": 1}], "damage": [said]}
    about = {**found.run, "id": said, "name": said, "script": said, "format": said, "log": log}
    text = page.text(Diagnosis(found.verdict, about, (finding, finding), contracts), run)
    only_ours(Read(text), text)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_bricks_kernels_cards_and_callers_are_shown_and_not_executed(kind):
    said = HOSTILE[kind]
    made = page_runs.Device(1)
    made.block(said)
    for step in range(3):
        made.step(step)
        made.timed(step)
        made.resources(step)
        made.span(Kind.KERNEL, said, step, 1, 0.1, "forward", device=(5, 1), stream=7)
        made.sample("update", step, said, ratio=1e-3)
        made.event("launches", step, kernels=[[said, 1, said], said, [said]])
        rows = [[said, said, 1, 2, True, True, 3], [said, "H2D", said, said], said]
        made.event("transfers", step, rows=rows, count=1)
        made.event("memory", step, rss=10**400, device_allocated=said)
        made.event("card", step, rank=-1, what="sample", device=said, utilisation=said, power=1.0, power_limit=said)
    made.event("card", 0, rank=-1, what="device", device=said, name=said)
    made.event("loss", 2**70, value=1.0)
    run = made.run()
    rows = [{"site": said, "direction": said, "count": said, "bytes": said, "ns": said}, said]
    found = Diagnosis(
        Verdict.FAIL,
        {"transfers": rows, "host_reads": rows},
        (),
        (ContractResult(said, Verdict.FAIL, said, said, said),),
    )
    text = page.text(found, run)
    only_ours(Read(text), text)
    assert {"kernels", "traffic-use", "cards-use", "bricks-in-time"} <= set(Read(text).ids)


# -- what is drawn


@pytest.mark.parametrize("seed", range(5))
def test_thinning_keeps_the_extremes_the_breaks_and_the_neighbourhood_of_findings(seed):
    chance = np.random.default_rng(seed)
    steps = np.arange(100_000)
    values = 2 + chance.normal(0, 0.1, len(steps))
    high, low, broken, near = (int(place) for place in chance.choice(len(steps) - 200, 4, replace=False) + 100)
    values[high], values[low], values[broken] = 50.0, -50.0, math.nan
    kept = thinned("loss", steps, values, near=[near])
    told = dict(zip(kept["steps"], kept["values"], strict=True))
    assert told[high] == 50.0 and told[low] == -50.0 and told[broken] is None
    assert kept["odd"] == [[broken, "NaN"]] and kept["of"] == 100_000
    assert set(range(near - 30, near + 31)) <= set(told)
    assert len(told) < 10_000
    assert kept["steps"] == sorted(kept["steps"])


def test_a_step_is_the_mean_over_ranks_and_what_is_not_finite_stays_so():
    kept = thinned("loss", [0, 0, 1, 1, 2], [1.0, 3.0, 2.0, INF, NAN])
    assert kept["values"] == [2.0, None, None]
    assert kept["odd"] == [[1, "+Inf"], [2, "NaN"]]


def test_only_series_that_span_decades_begin_on_a_log_scale():
    assert thinned("loss", range(3), [1e-6, 1.0, 2.0])["log"] is True
    assert thinned("loss", range(3), [1.0, 2.0, 3.0])["log"] is False
    assert thinned("loss", range(3), [-1.0, 1e6, 3.0])["log"] is False


def test_the_norm_before_clipping_is_a_series_of_its_own():
    made = Made()
    for step in range(5):
        made.step(step, norm=1.0)
        made.event("clip", step, norm=8.0, max_norm=1.0, how="norm")
    told = {curve["name"]: set(curve["values"]) for curve in curves(made.run())}
    assert told["|grad|"] == {1.0} and told["|grad| before clipping"] == {8.0}


def test_the_heat_map_has_logarithms_marks_and_gaps():
    made = Made("a", "b")
    made.sample("grad", 0, "a", l2=100.0)
    made.sample("grad", 1, "a", nan=3, l2=NAN)
    made.sample("grad", 2, "a", inf=1, l2=INF)
    made.sample("grad", 0, "b", l2=0.0)
    made.sample("grad", 2, "b", l2=None, absmax=0.1)
    made.sample("weight", 1, "b", l2=5.0)
    told = heat_map(made.run())
    assert told["rows"] == ["a", "b"] and told["first"] == told["last"] == [0, 1, 2]
    assert told["cells"] == [[200, heat_cells.NAN, heat_cells.INF], [heat_cells.ZERO, None, -100]]


def test_a_long_heat_map_keeps_what_stands_out_and_single_steps_around_the_focus():
    made = Made("a")
    for step in range(3_000):
        made.sample(
            "grad", step, "a", l2={777: 1e6, 888: 1e-6}.get(step, 0.5 if step % 2 else 2.0), nan=int(step == 1_234)
        )
    told = heat_map(made.run(), focus=2_000)
    assert len(told["first"]) <= heat_cells.MOST_COLUMNS + 1 and told["shared"]
    spans = list(zip(told["first"], told["last"], strict=True))
    assert all((step, step) in spans for step in range(1_981, 2_020))
    assert [b + 1 for _, b in spans[:-1]] == [a for a, _ in spans[1:]] and spans[0][0] == 0 and spans[-1][1] == 2_999
    cell = {step: told["cells"][0][n] for n, (a, b) in enumerate(spans) for step in range(a, b + 1)}
    assert cell[777] == 600 and cell[888] == -600 and cell[1_234] == heat_cells.NAN
    assert cell[2_000] == 30 and cell[2_001] == -30
    assert all(abs(cell[step]) <= 6 for step in range(100, 700))


def test_many_layers_are_folded_into_what_holds_them():
    made = Made(*(f"blocks.{n // 4}.w{n % 4}" for n in range(400)))
    for block in list(made.numbers):
        made.sample("grad", 0, block, l2=10.0 if block == "blocks.7.w2" else 1.0)
    told = heat_map(made.run())
    assert len(told["rows"]) == 100 and told["cells"][told["rows"].index("blocks.7")] == [100]


def test_a_long_run_is_a_small_page():
    made = Made()
    for step in range(20_000):
        made.event("loss", step, value=2.0 + (step % 7) / 10)
        made.event("grad", step, point="step", l2=1.0 + step % 11)
        made.event("optimizer", step, optimizer=0, lr=[1e-3 / (step + 1)], count=step + 1)
    run = made.run()
    assert len(page.text(Diagnosis(Verdict.PASS), run)) < MOST_BYTES / 4


# -- pictures of layers, time, use, ranks and contracts


def test_updates_beside_weights_have_a_map_of_their_own():
    made = Made("a", "b")
    for step, ratio in ((0, 1e-3), (1, 1e-2), (2, NAN), (3, INF), (4, 0.0)):
        made.sample("update", step, "a", ratio=ratio)
    made.sample("update", 0, "b", ratio=None)
    made.sample("grad", 7, "b", l2=5.0)
    told = heat_map(made.run(), role="update")
    assert told["rows"] == ["a"] and told["first"] == [0, 1, 2, 3, 4]
    assert told["cells"] == [[-300, -200, heat_cells.NAN, heat_cells.INF, heat_cells.ZERO]]
    assert heat_map(Made("a").run(), role="update") is None


def test_a_norm_that_was_not_written_because_it_is_broken_is_shown_as_broken():
    made = Made("a")
    made.step(0)
    for step, (nan, inf) in enumerate([(0, 3), (2, 0)], start=1):
        made.broken("grad", step, "a", nan=nan, inf=inf, point="step", l2=None)
    made.event("grad", 3, point="step", l2=None, nonfinite=[])
    norm = next(curve for curve in curves(made.run()) if curve["name"] == "|grad|")
    assert norm["odd"] == [[1, "+Inf"], [2, "NaN"]] and norm["steps"] == [0, 1, 2]


def test_few_ranks_have_lines_many_a_band_and_equal_ones_nothing():
    steps_ = [0, 1] * 3
    few = thinned("loss", steps_, [1.0, 2.0, 1.5, NAN, 1.25, 2.25], ranks=[0, 0, 1, 1, 2, 2])
    assert [(line["name"], line["values"]) for line in few["lines"]] == [
        ("rank 0", [1.0, 2.0]), ("rank 1", [1.5, None]), ("rank 2", [1.25, 2.25]),
    ]  # fmt: skip
    assert few["odd"] == [[1, "NaN"]]
    many = thinned("loss", [0] * 20, [float(rank % 7) for rank in range(20)], ranks=list(range(20)))
    assert many["band"] == {"low": [0.0], "high": [6.0], "lowest": [0], "highest": [6]}
    assert not {"lines", "band"} & set(thinned("lr", [0, 0], [1.0, 1.0], ranks=[0, 1]))


def test_thinning_keeps_what_one_rank_alone_shows():
    places = np.arange(20_000)
    values = np.ones((4, len(places)))
    values[2, 7_777] = 50.0
    kept = thinned("loss", np.tile(places, 4), values.ravel(), ranks=np.repeat(range(4), len(places)))
    at = kept["steps"].index(7_777)
    assert kept["lines"][2]["values"][at] == 50.0 and len(kept["steps"]) < 8_000
    assert len(kept["smooth"]["steps"]) < 1_000 and set(kept["smooth"]["values"][:50]) == {1.0}


def test_the_budget_of_a_step_names_all_its_time():
    timed = steps.Timed(page_runs.device_run())
    told = steps.budget(timed)
    assert set(told) == {"host", "device"} and told["host"]["steps"] == list(range(0, 40, 4))
    for lane in told.values():
        for at in range(len(lane["steps"])):
            assert sum(part[at] for part in lane["ms"]) == pytest.approx(40, rel=1e-3)
    usual = dict(zip(told["host"]["parts"], told["host"]["usual"], strict=True))
    assert usual["loader"] == 2 and usual["transfer"] == 0.5 and usual["optimizer"] == 2 and usual["idle"] > 0


def test_many_timed_steps_are_spread_and_hold_the_one_that_matters():
    made = page_runs.Device(1)
    for step in range(120):
        made.timed(step, kernels=False)
    told = steps.budget(steps.Timed(made.run()), focus=61)
    assert 61 in told["host"]["steps"] and len(told["host"]["steps"]) <= steps.MOST_STEPS + 1
    assert told["host"]["steps"][0] == 0 and told["host"]["steps"][-1] == 119
    assert "120 timed steps, 49 of them drawn" in sections.times(told)
    few = steps.budget(steps.Timed(page_runs.device_run()))
    assert "10 timed steps<" in sections.times(few)


def test_the_timeline_nests_bricks_and_gives_each_stream_a_lane():
    shown = steps.timeline(steps.Timed(page_runs.device_run()), focus=8)
    assert [step["why"] for step in shown][:2] == ["where it began", "most bricks on the device"]
    deep = shown[1]
    lanes = {lane["name"]: lane["bricks"] for lane in deep["lanes"]}
    kernels, copies = (f"kernels and copies, stream {number}" for number in (7, 13))
    assert deep["step"] == 24 and set(lanes) == {"host", "device", kernels, copies}
    names = [(deep["names"][name], depth) for _, _, depth, name, _ in lanes["device"]]
    assert names[0] == ("step", 0) and ("embed", 1) in names
    assert {deep["names"][name] for _, _, _, name, _ in lanes[kernels]} == set(page_runs.KERNELS)
    assert [deep["names"][name] for _, _, _, name, _ in lanes[copies]] == ["H2D"]
    for bricks in lanes.values():
        ends = {}
        for start, length, depth, _, _ in bricks:
            assert start >= ends.get(depth, start) and length > 0
            ends[depth] = start + length


def test_a_step_of_very_many_bricks_keeps_the_longest_and_counts_the_others():
    made = page_runs.Device(1)
    whole = made.span(Kind.STEP, "step", 0, 0, 40, "step")
    made.span(Kind.BLOCK, "embed", 0, 1, 20, "forward", whole)
    for n in range(steps.MOST_BRICKS):
        made.span(Kind.KERNEL, "tiny", 0, 22 + n / 1000, 0.0001, "forward", whole)
    (lane,) = steps.timeline(steps.Timed(made.run()))[0]["lanes"]
    assert len(lane["bricks"]) == steps.MOST_BRICKS and lane["left_out"] == 2


def test_what_was_used_has_panels_with_units_and_lines():
    run = page_runs.device_run()
    host, device = resources.memory(run)
    assert host["unit"] == "bytes" and host["values"][0] == 1e9
    assert [line["name"] for line in device["alone"]] == ["allocated", "reserved", "peak"]
    copied, copies, reads, waits = resources.traffic(run)
    assert {line["name"]: set(line["values"]) for line in copies["alone"]} == {"to device": {2.0}, "to host": {1.0}}
    assert copied["unit"] == "bytes" and set(reads["values"]) == {1.0} and waits["unit"] == "ns"
    cards = {panel["name"]: panel for panel in resources.cards(run)}
    assert [line["name"] for line in cards["utilisation"]["alone"]] == ["card 0", "card 1"]
    assert cards["power"]["level"]["at"] == 700.0 and resources.card_names(run) == ["2 x NVIDIA H200"]


def test_memory_of_the_launch_stands_in_where_no_rank_tells_its_own():
    made = Made()
    for step in range(5):
        made.event("memory", step, rank=-1, rss=10**9, tree=2 * 10**9)
    (panel,) = resources.memory(made.run())
    assert [line["name"] for line in panel["alone"]] == ["resident", "with its children"]


def test_ranks_are_compared_and_the_late_one_is_named():
    told = ranks(page_runs.many_ranks(16, 30, slow=3))
    assert [each["name"] for each in told["maps"]] == ["lateness", "step time", "loss", "|grad|"]
    late = told["maps"][0]
    assert late["rows"][3] == "rank 3" and min(late["cells"][3]) > 8_000 > max(late["cells"][4])
    assert told["rows"][3]["last"] == 1.0 and told["rows"][4]["last"] == 0.0
    drift = told["maps"][2]["cells"][5]
    assert drift[-1] > 100 > abs(drift[0])
    assert ranks(Made().run()) is None


def test_ranks_of_several_hosts_are_not_compared_by_their_clocks_and_broken_ones_are_marked():
    one, two = Made(rank=0), Made(rank=1)
    for step in range(4):
        one.event("loss", step, value=1.0)
        two.event("loss", step, value=NAN if step == 2 else 1.1)
    one.records[0].fields["host"], two.records[0].fields["host"] = "a", "b"
    told = ranks(Run.from_records([*one.records, *two.records]))
    assert "lateness" not in [each["name"] for each in told["maps"]]
    loss = next(each for each in told["maps"] if each["name"] == "loss")
    assert loss["cells"][1][2] == heat_cells.NAN and loss["cells"][0][2] is not None


def test_the_graph_has_every_contract_and_puts_it_behind_what_it_rests_on():
    found = diagnose(broken_run().run())
    told = graph(found)
    assert {node["id"] for node in told["nodes"]} == {result.id for result in found.contracts}
    assert told["nodes"][0]["verdict"] == "FAIL"
    joined = {(told["nodes"][base]["id"], told["nodes"][above]["id"]) for base, above in told["edges"]}
    known = {result.id for result in found.contracts}
    judged = {result.id for result in found.contracts if result.verdict is not Verdict.NOT_EVALUATED}
    wanted = {
        (base, each.id)
        for each in library().values()
        for base in each.metadata.depends_on
        if {base, each.id} <= known and {base, each.id} & judged
    }
    assert joined == wanted and joined
    for base, above in told["edges"]:
        assert told["nodes"][base]["layer"] < told["nodes"][above]["layer"]
    assert graph(Diagnosis(Verdict.PASS)) is None


def test_contracts_of_others_are_nodes_that_rest_on_nothing():
    theirs = Diagnosis(Verdict.PASS, contracts=(ContractResult("THEIRS-001", Verdict.PASS),))
    assert graph(theirs) == {
        "nodes": [{"id": "THEIRS-001", "verdict": "PASS", "says": "", "layer": None, "finding": ""}], "edges": [],
    }  # fmt: skip


def test_a_run_on_a_device_has_kernels_with_blocks_and_callers_and_copies_with_theirs():
    run = page_runs.device_run()
    read = Read(page.text(diagnose(run), run))
    assert {"layers", "time", "bricks-in-time", "kernels", "traffic-use", "memory-use", "cards-use"} <= set(read.ids)
    text = " ".join(read.text().split())
    assert page_runs.GEMM in text and "fused_rmsnorm 25.0% 400.0 12.0 embed train.py:33" in text
    assert "copy to device train.py:41 all 10 2 1.05 MB 0.040 pinned no" in text
    assert "read of a device tensor train.py:60" in text


def test_bricks_are_ranked_by_what_they_take_on_the_device_in_a_step():
    made = page_runs.Device(1)
    for step in (0, 4):
        made.timed(step, kernels=False)
        made.span(Kind.BLOCK, "slow to ask for", step, 0, 9, "forward", device=(5, 1))
        made.span(Kind.BLOCK, "half", step, 0, 1, "forward", device=(5, 3))
        made.span(Kind.BLOCK, "half", step, 1, 1, "forward")
    body = tables.bricks(made.run())
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
    assert "By their time on the device in a step, as the bar shows it" in text and "device ms in a step" in text
    names = re.findall(r"<tr[^>]*><td><code>([^<]+)", body)
    assert names[:2] == ["half", "AdamW"] and names.index("embed") < names.index("slow to ask for")
    assert "half forward 4 1.000 3.000 100% 6.000" in text and names[-1] == "loader"
    assert 'value="0.667"' in body


def test_without_a_device_bricks_are_ranked_by_the_hosts_time_and_the_heading_says_so():
    made = Made()
    made.records.append(Span(Brick(Kind.BLOCK, "head", "Net"), 0, START, START + page_runs.MS, "forward", 1, 0))
    body = tables.bricks(made.run())
    assert "host ms in a step" in body and "By their time on the host" in body and "device" not in body


def test_sixty_four_ranks_are_a_section_and_a_small_page():
    run = page_runs.many_ranks()
    text = page.text(diagnose(run), run)
    read = Read(text)
    assert "by-rank" in read.ids
    assert "Rank 17 is clearly the last to have its loss in 100% of the steps, usually 9" in read.text()
    assert "band" in read.data["curves"][0] and len(text) < MOST_BYTES / 10


# -- the commands


@pytest.fixture
def folder(tmp_path) -> Path:
    return broken_run().run().save(tmp_path / "runs" / "k3f9")


def test_report_writes_the_page(folder, tmp_path, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / "out.html")]) == 0
    assert "written to" in capsys.readouterr().err
    assert Read((tmp_path / "out.html").read_text("utf-8")).data["heat"]["rows"] == ["embed", "blocks.11", "head"]


def test_report_without_a_file_lies_beside_the_run(folder):
    assert main(["report", str(folder)]) == 0
    assert "heat" in Read((folder / "report.html").read_text("utf-8")).ids


def test_report_by_name_goes_to_stdout(folder, capsys):
    assert main(["report", str(folder), "-r", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "FAIL"
    assert main(["report", str(folder), "-r", "terminal"]) == 0
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-r", "pdf"], "there is no report pdf"),
        (["-o", "out.pdf"], "no report is written as out.pdf"),
        (["-o", "/nowhere/at/all/out.html"], "cannot be written"),
    ],
)
def test_wrong_reports_are_one_line(folder, words, said, capsys):
    assert main(["report", str(folder), *words]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_analyze_writes_the_page_of_a_log(tmp_path):
    out = tmp_path / "out.html"
    assert main(["analyze", str(log_file(tmp_path)), "--report", str(out)]) == 1
    read = Read(out.read_text("utf-8"))
    assert {"proof", "curves", "holdings"} <= set(read.ids)
    loss = read.data["curves"][0]
    assert loss["name"] == "loss" and [step for step, _ in loss["odd"]] == [60, 61, 62, 63, 64]
    assert "grad_norm" in read.text()


def test_a_log_from_a_pipe_has_words_without_pictures(tmp_path):
    out, log = tmp_path / "out.html", log_file(tmp_path).read_bytes()
    command = [sys.executable, "-m", "brickprof", "analyze", "-", "--report", str(out)]
    done = subprocess.run(command, input=log, capture_output=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "No pictures" in Read(out.read_text("utf-8")).text()


# -- a real browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
HANDS = """
  const said = {};
  const key = (canvas, name) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
  const pointer = (canvas) => {
    const box = canvas.getBoundingClientRect();
    canvas.setPointerCapture = () => {};
    const event = (kind, x, y) => new MouseEvent(kind, {clientX: box.left + x, clientY: box.top + y});
    return (kind, x, y = 40) => canvas.dispatchEvent(event(kind, x, y));
  };
  const words = (place) => place.closest("figure, section").querySelector(".readout").textContent;
"""
BROKEN = """
  const button = document.querySelector("button.ring");
  button.click();
  said.pressed = button.getAttribute("aria-pressed");
  said.chosen = button.closest(".why").classList.contains("chosen");
  said.readout = document.querySelector(".picture .readout").textContent;
  const canvas = document.querySelector("#curves canvas"), at = pointer(canvas);
  const shown = () => canvas.toDataURL();
  const whole = shown();
  at("pointerdown", 200); at("pointermove", 400); at("pointerup", 400); at("pointerleave", 400);
  said.zoomed = shown() !== whole;
  document.getElementById("whole").click();
  said.back = shown() === whole;
  at("pointermove", 300);
  said.value = document.querySelector("#curves .value").textContent;
  key(canvas, "+");
  said.nearer = shown() !== whole;
  key(canvas, "Escape");
  at("pointerleave", 300);
  said.escaped = shown() === whole;
  const heat = document.querySelector("#heat canvas");
  key(heat, "ArrowRight"); key(heat, "ArrowDown");
  said.moved = words(heat);
  key(heat, "Enter");
  said.taken = document.querySelector("output").textContent;
  document.querySelector("button.ring").click();
  const slider = document.querySelector("input[type=range]"), flow = document.querySelector("#flow canvas");
  said.first = document.querySelector("output").textContent;
  const before = flow.toDataURL();
  slider.value = "3";
  slider.dispatchEvent(new Event("input"));
  said.then = document.querySelector("output").textContent;
  said.flowed = flow.toDataURL() !== before;
  const ground = () => getComputedStyle(document.body).backgroundColor;
  const light = ground();
  document.getElementById("theme").click();
  said.turned = ground() !== light;
  const dark = document.documentElement.dataset.theme;
  window.dispatchEvent(new Event("beforeprint"));
  said.paper = document.documentElement.dataset.theme;
  window.dispatchEvent(new Event("afterprint"));
  said.restored = document.documentElement.dataset.theme === dark;
  said.fits = document.documentElement.scrollWidth <= window.innerWidth;
  const evidence = document.querySelector(".evidence details");
  said.folded = !evidence.open && !evidence.querySelector("tbody").checkVisibility();
  evidence.querySelector("summary").click();
  said.rows = evidence.querySelectorAll("tbody tr").length;
  said.unfolded = evidence.querySelector("tbody").checkVisibility();
"""
DEVICE = """
  const canvas = document.querySelector("#timeline canvas"), whole = canvas.toDataURL();
  key(canvas, "ArrowRight"); key(canvas, "ArrowDown");
  said.brick = words(canvas);
  key(canvas, "ArrowRight");
  said.next = words(canvas);
  key(canvas, "Enter");
  said.filled = canvas.toDataURL() !== whole;
  key(canvas, "Escape");
  const at = pointer(canvas);
  at("pointermove", 300, 35);
  said.hovered = words(canvas);
  at("pointerleave", 300, 35);
  said.back = canvas.toDataURL() === whole;
  const other = document.querySelectorAll("#moments button")[1];
  other.click();
  said.other = other.getAttribute("aria-pressed") === "true" && canvas.toDataURL() !== whole;
  const bars = document.querySelector("#bars canvas");
  key(bars, "ArrowRight");
  said.bar = words(bars);
  const graph = document.querySelector("#graph canvas");
  key(graph, "ArrowRight");
  key(graph, "ArrowDown");
  said.contract = words(graph);
  key(graph, "Enter");
  said.row = document.querySelector("tr.chosen").dataset.contract;
  document.querySelector("nav button").click();
  said.pictures = document.querySelectorAll("canvas").length;
"""
LEGIBLE = """
  const pen = CanvasRenderingContext2D.prototype, sheets = new Map();
  const hear = (name, told) => {
    const real = pen[name];
    pen[name] = function (...given) {
      if (!sheets.has(this)) sheets.set(this, []);
      sheets.get(this).push([name, told(this, ...given)]);
      return real.apply(this, given);
    };
  };
  hear("fillText", (on, word, x, y) => ({ word, y, tick: on.textAlign === "right" }));
  hear("fillRect", () => null);
  hear("lineTo", (on, x, y) => y);
  for (const id of ["traffic", "memory", "cards"]) {
    document.querySelector(`#${id} canvas`).dispatchEvent(new MouseEvent("dblclick"));
  }
  const all = [...sheets.values()].map((acts) => acts.filter(([name, what]) => name !== "lineTo" || what < 1e4));
  const texts = all.map((acts) => acts.filter(([name]) => name === "fillText").map(([, what]) => what));
  said.words = texts.flat().map((what) => what.word);
  said.limits = all.flatMap((acts) => acts.filter(([, what], at) => what && what.word === "limit" && at &&
    acts[at - 1][0] === "fillRect")).length;
  const highest = (numbers) => Math.min(...numbers);
  const above = all.map((acts, at) => {
    const ticks = texts[at].filter((what) => what.tick).map((what) => what.y);
    const lines = acts.filter(([name]) => name === "lineTo").map(([, y]) => y);
    return ticks.length ? highest(ticks) - highest(lines) : 0;
  });
  said.charts = above.length;
  said.above = above.filter((by) => by > 0.5).length;
  const wide = (id) => [...document.querySelectorAll(`#${id} .wide`)];
  const off = (one) => one.scrollWidth > one.clientWidth;
  said.off = ["bricks", "kernels", "traffic-use"].filter((id) => !wide(id).length || wide(id).some(off));
"""
RANKS = """
  const buttons = [...document.querySelectorAll("#compared button")];
  const seen = () => [...document.querySelectorAll("#ranks canvas")].map((one) => one.clientWidth > 0);
  said.before = seen();
  buttons[2].click();
  said.after = seen();
  const canvas = document.querySelectorAll("#ranks canvas")[2];
  for (let n = 0; n < 5; n++) key(canvas, "ArrowDown");
  said.cell = words(canvas);
  const loss = document.querySelector("#curves canvas");
  key(loss, "ArrowRight");
  said.value = document.querySelector("#curves .value").textContent;
"""
HOSTS = """
  said.asked = performance.getEntriesByType("resource").map((entry) => entry.name);
  said.strange = document.querySelectorAll("img, iframe, object, link, script[src]").length;
"""


def seen(text: str, folder: Path, width: int, acts: str) -> tuple[dict, str]:
    """What the page is like after somebody has used it, and what the browser complained of."""
    script = f"{HANDS}{acts}\n  document.body.dataset.said = JSON.stringify(said);\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = text.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    file = folder / "acted.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         "--disable-background-networking", "--no-first-run", f"--user-data-dir={folder / 'profile'}",
         f"--window-size={width},900", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    body = next(attributes for tag, attributes in Read(done.stdout).tags if tag == "body")
    complaints = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(body.get("data-said") or "{}"), complaints


@browser
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_in_a_browser_a_why_rings_its_evidence_charts_zoom_and_the_theme_turns(tmp_path, width):
    run = broken_run().run()
    said, complaints = seen(page.text(diagnose(run), run), tmp_path, width, BROKEN)
    assert complaints == ""
    assert said["pressed"] == "true" and said["chosen"] and said["turned"] and said["fits"]
    assert said["readout"].startswith(("Ringed:", "No gradients were sampled"))
    assert said["zoomed"] and said["back"] and "in step" in said["value"] and said["nearer"] and said["escaped"]
    assert "|grad|" in said["moved"] and said["moved"].startswith(said["taken"])
    assert said["first"].startswith("step 4") and said["then"] == "step 3"
    assert said["flowed"] and said["paper"] == "light" and said["restored"]
    assert said["folded"] and said["rows"] >= 1 and said["unfolded"]


@browser
def test_in_a_browser_bricks_are_named_by_keyboard_and_pointer_and_a_contract_leads_to_its_row(tmp_path):
    run = page_runs.device_run()
    said, complaints = seen(page.text(diagnose(run), run), tmp_path, 1440, DEVICE)
    assert complaints == ""
    assert said["brick"].startswith("loader · loader · host · 2 ms (5 % of the step)")
    assert said["next"] != said["brick"] and said["filled"] and said["back"] and said["other"]
    assert "step 24" not in said["hovered"] and "· host ·" in said["hovered"]
    assert said["bar"].startswith("step 0 · host 40 ms: loader 1.99 ms, transfer 500 µs")
    assert said["row"] and said["contract"].startswith(said["row"]) and said["pictures"] > 15


def long_names() -> Run:
    """A run on a device with names that need room: of kernels, of paths, of directions."""
    made = page_runs.Device(1)
    for step in (0, 4):
        made.step(step)
        made.timed(step)
        made.resources(step)
        made.span(Kind.KERNEL, "void_" + "elementwise" * 12, step, 1, 0, "forward", device=(5, 1), source="profiler")
        rows = [["a/long/path/of/" + "folders/" * 6 + "train.py:41", "pin", 1, 900, True, False, 9],
                ["train.py:9", "H2D", 1, 900, True, False, 9]]  # fmt: skip
        made.event("transfers", step, count=2, bytes=1800, rows=rows)
    return made.run()


@browser
@pytest.mark.parametrize("width", [1440, 700])
def test_in_a_browser_legends_limits_ticks_and_tables_can_be_read(tmp_path, width):
    run = long_names()
    said, complaints = seen(page.text(diagnose(run), run), tmp_path, width, LEGIBLE)
    assert complaints == "" and said["off"] == []
    assert {"to pinned memory", "to device"} <= set(said["words"]) and said["limits"] == 1
    assert said["charts"] > 8 and said["above"] == 0  # no line goes higher than the highest tick


@browser
def test_in_a_browser_ranks_are_compared_by_one_thing_at_a_time(tmp_path):
    run = page_runs.many_ranks(12, 20)
    said, complaints = seen(page.text(diagnose(run), run), tmp_path, 1024, RANKS)
    assert complaints == ""
    assert said["before"] == [True, False, False, False] and said["after"] == [False, False, True, False]
    assert "rank 5" in said["cell"] and "% off the middle" in said["cell"]
    assert "(rank " in said["value"] and " to rank " in said["value"]


@browser
def test_in_a_browser_hostile_names_are_text_and_no_request_leaves_the_page(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        there = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        name = f'"><img src={there}><script src={there}></script><style>@import "{there}";</style>'
        made = broken_run(name)
        made.event("exception", 3, type=name, message=name, frames=[], where=name)
        run = made.run()
        said, complaints = seen(page.text(diagnose(run), run), tmp_path, 1024, HOSTS)
        with pytest.raises(TimeoutError):
            listening.accept()
    assert complaints == "" and said == {"asked": [], "strange": 0}
