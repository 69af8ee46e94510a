"""Reports: golden files, strings that would harm a terminal, and output that can only say ASCII."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from making import NAN, Made
from rich.console import Console

from brickprof.diagnosis import Diagnosis, diagnose
from brickprof.reports import json as json_report
from brickprof.reports import overview, records, terminal

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


def shown(diagnosis: Diagnosis, *, width: int = 100, encoding: str = "utf-8", is_terminal: bool = True) -> str:
    stream = Written(encoding)
    console = Console(file=stream, width=width, force_terminal=is_terminal, color_system=None, legacy_windows=False)
    terminal.render(diagnosis, console)
    return stream.getvalue()


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
    text = shown(diagnose(made().run()))
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("BRICKPROF_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


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
    assert "brickprof cost 1.0 % (60.0 s)" in shown(diagnose(made.run()), width=200)


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
        lambda console: overview.render(run, diagnosis, console),
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
    assert diagnosis._repr_html_().startswith("<pre")


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
        ([0.0, 1.0], "▁█"),
        ([0.0, None, 1.0], "▁x█"),
        ([None], "x"),
        ([2.0, 2.0], "▁▁"),
    ],
)
def test_sparkline(values, bars):
    assert overview.sparkline(values) == bars


def test_a_long_sparkline_keeps_what_is_broken():
    line = overview.sparkline([1.0] * 500 + [None] + [1.0] * 499)
    assert len(line) == 48
    assert line.count("x") == 1
