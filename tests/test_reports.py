"""Reports for terminals: golden files, every kind of terminal, strings that would harm one."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from making import NAN, Made
from rich.console import Console
from rich.style import Style

from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Diagnosis, Finding, RuledOut, Why, diagnose
from brickprof.reports import comparison, contracts, overview, plan, records, sparks, terminal
from brickprof.reports import json as json_report

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = {
    "ansi": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "markup": "[/foo][bold]x[/bold]",
    "bidi": "abc\u202edef\u2066",
    "long": "x" * 10_000,
    "path": "../../etc/passwd",
    "lines": "one\ntwo\r\x08three",
    "surrogate": "a\ud800b",
}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Written(io.StringIO):
    """A stream that says which encoding it has."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding


def shown(
    diagnosis: Diagnosis, *, width: int = 100, encoding: str = "utf-8", is_terminal: bool = True, colour=None,
    report=terminal,
) -> str:  # fmt: skip
    stream = Written(encoding)
    console = Console(file=stream, width=width, force_terminal=is_terminal, color_system=colour, legacy_windows=False)
    report.render(diagnosis, console)
    return stream.getvalue()


def golden(name: str, text: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("BRICKPROF_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def broken_run(name: str = "blocks.11") -> Made:
    made = Made("embed", name, "head")
    made.event("start", 0, rank=-1, pid=1)
    made.healthy(212)
    made.event("loss", 212, value=3.214)
    made.event("grad", 212, point="step", l2=3.28e35, nonfinite=[])
    made.event("optimizer", 212, optimizer=0, lr=[3e-4], count=213)
    made.broken("weight", 212, name, nan=12, when="after")
    made.event("loss", 213, value=NAN)
    text = "the script exited 1"
    made.event("exited", 0, rank=-1, code=1, text=text, seconds=9.2, **{"class": "failed"})
    return made


def healthy_run() -> Made:
    made = Made()
    made.owned()
    for step in range(6):
        made.event("sampled", step, roles=["grad"])
        for block in made.numbers:
            made.sample("grad", step, block)
        made.step(step)
    made.event("exit", 5, steps=6, overhead=0.004, costs={"loss": 1000})
    return made


def stuck_run() -> Made:
    made = Made("embed", "body", "head")
    made.owned()
    for step in range(8):
        made.event("sampled", step, roles=["grad"])
        made.sample("grad", step, "head")
        made.step(step)
    return made


def killed_run() -> Made:
    made = healthy_run()
    made.event("exited", 0, rank=-1, code=137, signal=9, name="SIGKILL", text="killed", **{"class": "killed"})
    return made


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("broken", broken_run),
        ("healthy", healthy_run),
        ("stuck", stuck_run),
        ("killed", killed_run),
        ("nothing", Made),
    ],
)
def test_the_terminal_report_is_the_golden_one(name, made):
    golden(name, shown(diagnose(made().run())))


def held(name: str, observed: str, threshold: str = "") -> ContractResult:
    return ContractResult(name, Verdict.PASS, observed, threshold)


def unjudged(name: str, why: str, verdict: Verdict = Verdict.NOT_EVALUATED) -> ContractResult:
    return ContractResult(name, verdict, why=why)


def incident(number: int, severity: Severity = Severity.ERROR, **given) -> Finding:
    told = {
        "id": f"F{number}", "contract": "C-TRAINSTABLE-001", "verdict": Verdict.FAIL, "severity": severity,
        "root_cause": "learning-rate-too-high", "confidence": 0.94, "brick": f"blocks.{number}.mlp",
        "granularity": "block", "scope": "global", "nature": "dynamic", "first_step": 20 + number,
        "detected_step": 21 + number, "coordinates": {}, "symptom": f"loss is nan from step {21 + number} on",
        "whys": (
            Why("Why is the loss nan?", "832 of 832 weights of embed.weight are nan after the update of step 21.",
                "embed", ("weight:21:embed.weight@0",)),
            Why("Why did it run away?", "The update of step 20 changed the weights by 94.9% of their size.", "",
                ("update:20:blocks.4.weight@0", "event:17@0")),
        ),
        "ruled_out": (RuledOut("fp16-overflow", "the gradient is in float32"),),
        "action": "Lower the learning rate by a factor of 10 (it is 0.213), or warm it up.",
        "next_experiment": "Run the first steps with a tenth of the learning rate.",
        "follows": ("loss jumped from 2.2 to 1.4e+21 in step 19",),
    }  # fmt: skip
    return Finding(**(told | given))


def course(cells: list, **told) -> dict:
    return {
        "rank": 0, "from": 0, "to": len(cells) - 1, "points": len(cells), "first": {"step": 0, "value": cells[0]},
        "last": {"step": len(cells) - 1, "value": cells[-1]}, "cells": cells, **told,
    }  # fmt: skip


def broken_diagnosis(*findings: Finding) -> Diagnosis:
    """Made by hand, with everything a report may show: it stays the same when rules change their words."""
    told = {
        "id": "k3f9", "folder": "brickprof-runs/train-k3f9", "steps": 24, "ranks": 1, "overhead": 0.004,
        "exit": {"code": 1, "class": "failed", "text": "the script exited 1", "seconds": 9.2},
        "curves": {
            "loss": course([3.0 - 0.05 * i for i in range(20)] + [8.0, 1.4e21, "nan", "nan"],
                           lowest={"step": 19, "value": 2.05}, not_finite={"points": 2, "first_step": 22}),
            "grad_norm": course([1.0, None, 1.2, None, 1.1, None, 3e4, "inf"],
                                highest={"step": 6, "value": 3e4}, not_finite={"points": 1, "first_step": 7}),
        },
        "bricks": [
            {"brick": "blocks.0", "kind": "block", "phase": "backward", "on": "host", "ms_a_step": 7.6736,
             "share": 0.34, "calls": 12},
            {"brick": "AdamW", "kind": "optimizer", "phase": "optimizer", "on": "host", "ms_a_step": 0.5,
             "share": None, "calls": 12},
        ],
        "lanes": [{"name": "host", "ms": 41.59, "drawn": "·" + "L" + "F" * 25 + "·" + "B" * 24 + "O" * 8}],
        "step_budget": {"host": {"forward": 0.4, "backward": 0.5, "idle": 0.1}, "steps": 3},
        "kernels": [{"kernel": "gemm", "share": 0.8, "mean_us": 200.0, "a_step": 2.0}],
        "layers": [{"brick": f"blocks.{i}", "first": 10.0**-i, "last": "nan" if i == 2 else 10.0**i,
                    "first_step": 0, "last_step": 21} for i in range(4)],
        "looking": {"gradients": 0.0071, "loss": 0.0004},
    }  # fmt: skip
    judged = (
        held("C-CLIP-001", "clipping ran in 66 of 66 looked-at steps", "clipped norm <= bound"),
        ContractResult("C-TRAINSTABLE-001", Verdict.FAIL, "loss is nan from step 22 on", "all finite"),
        held("C-DATA-001", "66 batches, new and mixed"),
        unjudged("C-SHARD-001", "one rank trained", Verdict.VACUOUS),
        unjudged("C-RING-001", "one rank trained", Verdict.VACUOUS),
        unjudged("C-THROTTLE-001", "no GPU: nothing ran on a card"),
        unjudged("C-STREAMSYNC-001", "no GPU: a CPU has no streams"),
        *(unjudged(f"C-LONE-{number:03}", f"reason {number}") for number in range(8)),
    )
    return Diagnosis(Verdict.FAIL, told, findings or (incident(1),), judged)


def healthy_diagnosis() -> Diagnosis:
    sound = broken_diagnosis()
    told = {**sound.run, "exit": {"code": 0, "text": "the script exited 0"},
            "curves": {"loss": course([3.0, 2.0, 1.5, 1.2], lowest={"step": 3, "value": 1.2})}}  # fmt: skip
    kept = tuple(each for each in sound.contracts if each.verdict is not Verdict.FAIL)
    return Diagnosis(Verdict.PASS, told, (), kept)


def vacuous_diagnosis() -> Diagnosis:
    told = {"id": "k3f9", "steps": 0, "ranks": 0, "damage": ["rank00000/events.jsonl: 1 record lost"]}
    judged = (unjudged("C-TRAINSTABLE-001", "no step was seen", Verdict.VACUOUS),)
    return Diagnosis(Verdict.VACUOUS, told, (), judged)


def many_findings() -> Diagnosis:
    warnings = (incident(n, Severity.WARNING, contract=f"C-MANY-{n:03}") for n in range(2, 21))
    notes = (incident(n, Severity.INFO, symptom=f"note {n}") for n in range(21, 31))
    return broken_diagnosis(incident(1), *warnings, *notes)


@pytest.mark.parametrize(
    ("name", "report", "diagnosis", "options"),
    [
        ("whole-broken", overview, broken_diagnosis, {}),
        ("whole-healthy", overview, healthy_diagnosis, {}),
        ("whole-vacuous", overview, vacuous_diagnosis, {}),
        ("whole-narrow", overview, broken_diagnosis, {"width": 40}),
        ("whole-ascii", overview, broken_diagnosis, {"encoding": "ascii"}),
        ("whole-piped", overview, broken_diagnosis, {"is_terminal": False}),
        ("many", terminal, many_findings, {}),
        ("narrow", terminal, broken_diagnosis, {"width": 40}),
        ("ascii", terminal, broken_diagnosis, {"encoding": "iso-8859-1"}),
    ],
)
def test_the_report_is_the_golden_one(name, report, diagnosis, options):
    golden(name, shown(diagnosis(), report=report, **options))


@pytest.mark.parametrize("report", [terminal, overview])
@pytest.mark.parametrize("made", [broken_diagnosis, healthy_diagnosis, vacuous_diagnosis, many_findings])
def test_colour_adds_no_word_and_takes_none(report, made):
    plain = shown(made(), report=report)
    coloured = shown(made(), report=report, colour="truecolor")
    assert "\x1b[" in coloured and "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_style_ends_where_its_word_does():
    text = shown(broken_diagnosis(), report=overview, colour="standard")
    first, *_ = text.splitlines()
    assert first.startswith("\x1b[1;31m✗ FAIL\x1b[0m\x1b[1m  training broke in step 21\x1b[0m")
    assert "\x1b[2m  What       \x1b[0mloss is nan from step 22 on\x1b[2m    C-TRAINSTABLE-001" in text
    assert "\x1b[1;32m✓ PASS         \x1b[0m  C-DATA-001" in text
    assert "\x1b[1mContracts\x1b[0m\x1b[2m    1 broken" in text


@pytest.mark.parametrize(
    ("contract", "told"), [("C-COSINE-001", "wrong from step 0 on"), ("C-TRAINSTABLE-001", "training broke in step 0")]
)
def test_what_was_wrong_from_the_start_did_not_break_unless_the_numbers_did(contract, told):
    made = broken_diagnosis(incident(1, nature="static", first_step=0, contract="C-COSINE-001"))
    results = [replace(each, id=contract) if each.verdict is Verdict.FAIL else each for each in made.contracts]
    assert shown(replace(made, contracts=tuple(results))).startswith(f"✗ FAIL  {told}")


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colour_gets_none(variable, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    stream = Written("utf-8")
    overview.render(broken_diagnosis(), Console(file=stream, width=100, force_terminal=True, legacy_windows=False))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", stream.getvalue())
    assert "✗ FAIL" in stream.getvalue()


LIGHT, DARK = 1.0, 0.0
XTERM = {"red": (205, 0, 0), "green": (0, 205, 0), "magenta": (205, 0, 205), "yellow": (205, 205, 0)}


def contrast(colour: tuple[int, int, int], ground: float) -> float:
    """As the web's guidelines reckon it."""
    parts = [value / 255 for value in colour]
    lit = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    bright = 0.2126 * lit[0] + 0.7152 * lit[1] + 0.0722 * lit[2]
    high, low = max(bright, ground), min(bright, ground)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_can_be_read_on_light_and_on_dark():
    styles = [terminal.GOOD, terminal.BAD, terminal.OPEN, terminal.PLAIN, terminal.DIM, terminal.STRONG]
    used = {style.color.name for style in map(Style.parse, filter(None, styles)) if style.color is not None}
    assert used == {"green", "red", "magenta"}
    for report in (terminal, overview, contracts, plan, comparison, records, sparks):
        named = set(
            re.findall(r"\b(red|green|blue|yellow|cyan|magenta|white|black)\b", Path(report.__file__).read_text())
        )
        assert named <= used | ({"yellow", "cyan", "blue", "white", "black"} if report is terminal else set())
    for name in used:
        assert min(contrast(XTERM[name], LIGHT), contrast(XTERM[name], DARK)) > 2, name
    assert contrast(XTERM["yellow"], LIGHT) < 2  # why it is not among them


def leaves(value, path=()):
    """The way to everything that is no list and no dict."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path] if not isinstance(value, (dict, list)) else [each for k, v in inside for each in leaves(v, (*path, k))]
    )


@pytest.mark.parametrize("foreign", ["\x1b[31mred\x07\u202e", None, -1, [], {}], ids=repr)
def test_facts_that_are_not_what_they_should_be_do_no_harm(foreign):
    """diagnosis.json may come from anywhere: a part that is wrong is said to be, and the rest is shown."""
    sound = broken_diagnosis()
    for path in leaves(sound.run):
        told = json.loads(json.dumps(sound.run))
        place = told
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = foreign
        text = shown(replace(sound, run=told), report=overview)
        assert not UNSAFE.search(text), path
        assert "✗ FAIL  training broke" in text and "C-CLIP-001" in text, path


def test_narrow_lines_fit():
    for report, made in ((terminal, many_findings), (overview, broken_diagnosis)):
        for width in (40, 60, 80, 120):
            assert max(map(len, shown(made(), report=report, width=width).splitlines())) <= width


def test_not_evaluated_contracts_share_a_line_where_they_share_the_reason():
    groups = contracts.by_reason(broken_diagnosis().contracts[5:])
    assert groups["no GPU"] == ["C-THROTTLE-001", "C-STREAMSYNC-001"]
    assert groups["reason 3"] == ["C-LONE-003"]
    text = shown(broken_diagnosis(), report=overview, width=200)
    for contract in broken_diagnosis().contracts:
        assert text.count(contract.id) >= 1, contract.id
    assert text.count("NOT EVALUATED") < 8


def test_commands_to_paste_hold_nothing_for_a_shell():
    evil = "x; rm -rf $HOME `id`"
    finding = incident(1, whys=(Why("Why?", "Because.", "", (f"grad:1:{evil}@0",)),))
    made = broken_diagnosis(finding)
    text = shown(replace(made, run={**made.run, "id": evil}), width=400)
    (command,) = re.findall(r"brickprof show .*(?=    the evidence)", text)
    assert shlex.split(command) == ["brickprof", "show", evil, f"grad:1:{evil}@0"]
    assert "brickprof show" not in shown(replace(made, run={**made.run, "id": "a\x1bb"}), width=400)


def test_the_loss_is_drawn_at_the_end_of_a_run_only_where_it_shows_what_broke():
    assert "Loss  " in shown(broken_diagnosis())
    assert "Loss  " not in shown(broken_diagnosis(incident(1, contract="C-GRADFLOW-001")))
    assert "Loss  " not in shown(healthy_diagnosis())


def test_a_healthy_run_is_one_line():
    text = shown(diagnose(healthy_run().run()), width=200)
    assert text.count("\n") == 1
    assert text.startswith("✓ PASS  6 steps, nothing wrong")
    assert "4 contracts held" in text and "brickprof cost 0.4 %" in text


def test_what_the_first_looks_cost_is_told_apart_where_it_is_most_of_it():
    made = healthy_run()
    told = {"overhead": 0.12, "spent_seconds": 0.4, "first_seconds": 0.3, "settled_overhead": 0.009}
    made.event("exit", 5, steps=6, costs={}, **told)
    assert "brickprof cost 0.3 s at the start, then 0.9 %" in shown(diagnose(made.run()), width=200)
    made.event("exit", 5, steps=6, costs={}, **{**told, "overhead": 0.01, "spent_seconds": 60.0})
    assert "brickprof cost 0.9 % (60.0 s)" in shown(diagnose(made.run()), width=200)


def test_lines_hang_below_their_label_on_a_terminal_and_stay_whole_in_a_file():
    diagnosis = diagnose(broken_run().run())
    assert all(len(line) <= 80 for line in shown(diagnosis, width=80).splitlines())
    piped = shown(diagnosis, width=80, is_terminal=False)
    assert any(len(line) > 80 for line in piped.splitlines())
    assert "\x1b" not in piped


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_do_no_harm(hostile):
    made = broken_run(hostile)
    made.event("exception", 213, type=f"Bad{hostile}", message=hostile)
    made.records = [r for r in made.records if getattr(r, "kind", "") != "run"]
    run = made.run()
    diagnosis = diagnose(run)
    for text in (shown(diagnosis), str(diagnosis), shown(diagnosis, encoding="ascii")):
        assert not UNSAFE.search(text)
        assert len(text) < 20_000
    assert json.loads(json_report.text(diagnosis))["verdict"] == "FAIL"
    html = diagnosis._repr_html_()
    assert "<script" not in html
    for render in (
        lambda console: overview.render(diagnosis, console),
        lambda console: records.render(list(run.find("event:20@0")) + list(run.find("weight:212")), console),
    ):
        stream = Written("utf-8")
        render(Console(file=stream, width=100))
        assert not UNSAFE.search(stream.getvalue())


def test_markup_in_html_is_escaped():
    made = broken_run("<img src=x onerror=alert(1)>")
    assert "<img" not in diagnose(made.run())._repr_html_()


def test_ascii_output_is_ascii():
    text = shown(diagnose(broken_run("größe.βeta").run()), encoding="ascii")
    assert text.isascii()
    assert "x FAIL" in text
    assert "\\u03b2eta" in text


def test_a_diagnosis_prints_itself():
    diagnosis = diagnose(broken_run().run())
    stream = io.StringIO()
    Console(file=stream, width=100).print(diagnosis)
    assert "✗ FAIL  training broke in step 212" in stream.getvalue()
    assert str(diagnosis).startswith("✗ FAIL")
    assert terminal.html(diagnosis).startswith("<pre")


def test_json_is_the_diagnosis():
    diagnosis = diagnose(broken_run().run())
    stream = io.StringIO()
    json_report.render(diagnosis, Console(file=stream, width=20))
    assert json.loads(stream.getvalue()) == diagnosis.to_dict()


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0, 1], "▁█"),
        ([0.0, "nan", 1.0], "▁x█"),
        ([0.0, float("inf"), 1.0], "▁x█"),
        ([0.0, None, 1.0], "▁·█"),
        (["nan"], "x"),
        ([2.0, 2.0], "▁▁"),
        ([1.0, 1e2, 1e4], "▁▅█"),  # by digits, where linear heights would show one bar
        ([-1e308, 1e308], "▁█"),
        ([0.0, 5e-324], "▁▁"),
    ],
)
def test_sparkline(values, bars):
    assert sparks.sparkline(values) == bars


def test_a_long_sparkline_keeps_what_is_broken_and_what_stands_out():
    line = sparks.sparkline([1.0] * 500 + ["nan"] + [1.0] * 200 + [9.0] + [1.0] * 298)
    assert len(line) == 48
    assert line.count("x") == 1 and line.count("█") == 1 and line.count("▁") == 46


def test_a_curve_is_told_in_words_too():
    curve = broken_diagnosis().run["curves"]["loss"]
    assert sparks.said(curve, "lowest") == (
        "3 → nan · lowest 2.05 in step 19 · 2 of 24 not finite, the first in step 22"
    )
