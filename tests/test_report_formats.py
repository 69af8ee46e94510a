"""Reports for issues, CI and tables: golden files, the rules of each format, and strings that would break out of it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as xml

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import START, Made
from markdown_it import MarkdownIt
from test_reports import HOSTILE, UNSAFE, healthy_run, stuck_run

from brickprof import __version__
from brickprof.cli import _reporters as reporters
from brickprof.cli.app import main
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import Diagnosis, RuledOut, Why, diagnose
from brickprof.records import RunMeta
from brickprof.reports import csv as csv_report
from brickprof.reports import github, junit, markdown, sarif
from brickprof.reports import json as json_report
from brickprof.reports.places import EVIDENCE, SCRIPT, Place, Places
from brickprof.rules import wording
from brickprof.run import Run
from brickprof.text import capital, clean

GOLDEN = Path(__file__).with_name("golden") / "reports"
SCHEMA = json.loads(json_report.SCHEMA.read_text("utf-8"))
TEXTS = {"md": markdown, "xml": junit, "sarif": sarif, "github.txt": github, "csv": csv_report}
SHOWN = ("C-DDP-001", "C-GPUTRAIN-002", "C-GRADFLOW-001", "C-PROCESS-001", "C-TRAINSTABLE-001", "C-UTILISATION-001")
"""The contracts in the golden files: a new one elsewhere changes none of them."""
BREAKING_OUT = {
    "html": "</details></summary><script>alert(1)</script><img src=x onerror=alert(1)><!-- -->",
    "code": "``` `` ` ```` end",
    "table": "a | b \\| c || d",
    "mention": "@octocat and @org/team, me@example.com",
    "link": "[click](http://evil.example) ![i](https://evil.example/i.png) <https://evil.example> www.evil.example",
    "reference": "#1 octo/repo#2 GH-3 [x]: http://evil.example",
    "heading": "# one\n## two\n---\n===\n> quote\n- item\n1. item",
    "math": "$x$ $$y$$ :tada: ~~gone~~ **bold** _em_ &lt; &#35;",
    "entity": "]]><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>&e;<![CDATA[",
    "command": "::error::no\n::set-output name=x::y%0A::stop-commands::z\r::add-mask::a,b:c",
    "formula": "=HYPERLINK(\"http://evil.example\",\"x\")",
    "noncharacters": "a\ufffe\uffff\x00\x0b\x1bb",
    "placeholder": "{0} {{1}} %s %(x)s",
}  # fmt: skip
ALL_HOSTILE = HOSTILE | BREAKING_OUT


def told_run(made: Made, **meta: object) -> Run:
    told = {"script": "train.py", "started_ns": START, "host": "node-1", "version": __version__, "source": "capture"}
    return Run.from_records(made.records, RunMeta("k3f9", **(told | {"extra": {"cwd": "/srv/job"}} | meta)))


def several_run() -> Made:
    """Two blocks without a gradient, a read for each parameter at line 31, and an exception in a file of the user's."""
    blocks = tuple(f"blocks.{number}" for number in range(20))
    made = Made("embed", "body", *blocks, "head")
    made.owned()
    for step in range(12):
        made.event("sampled", step, roles=["grad"])
        for block in (*blocks, "head"):
            made.sample("grad", step, block)
        sites = [["train.py:31", 23], ["train.py:9", 1]]
        made.event("syncs", step, count=24, sites=sites, around={"train.py:31": ["model.parameters()"]})
        made.step(step)
    frames = [
        {"file": "/srv/job/train.py", "line": 12, "function": "<module>"},
        {"file": "/srv/job/lib/data.py", "line": 77, "function": "read"},
        {"file": "/usr/lib/python3/site-packages/torch/nn.py", "line": 5, "function": "call"},
    ]
    made.event("exception", 11, type="ValueError", message="a | `b` is <not> a number", frames=frames)
    made.event("exited", 0, rank=-1, code=1, text="the script exited 1", seconds=9.2, **{"class": "failed"})
    return made


@cache
def judged(name: str) -> tuple[Diagnosis, Run]:
    made = {"zero": healthy_run, "one": stuck_run, "several": several_run, "nothing": Made}[name]
    run = told_run(made())
    return diagnose(run), run


@cache
def hostile(name: str) -> tuple[Diagnosis, Run]:
    """A diagnosis all of whose strings are the hostile one: names, messages, files, ids of contracts and causes."""
    text = ALL_HOSTILE[name]
    made = several_run()
    for event in (record for record in made.records if getattr(record, "kind", "") == "exception"):
        event.fields["frames"] = [{"file": f"/srv/job/{text}.py", "line": 3, "function": text}]
    found = judged("several")[0]
    run = told_run(made, script=f"/srv/job/{text}.py", host=text)
    findings = tuple(
        replace(
            finding, contract=text, root_cause=text, brick=text, symptom=text, action=text, next_experiment=text,
            follows=(text,), granularity=text, scope=text, nature=text, id=text, obligation=text,
            whys=tuple(replace(why, question=text, finding=text, brick=text, evidence=(*why.evidence, text))
                       for why in finding.whys),
            ruled_out=(RuledOut(text, text, (text,)),),
        )
        for finding in found.findings
    )  # fmt: skip
    contracts = tuple(
        replace(each, id=f"{text}{place}", verdict=verdict, observed=text, threshold=text, why=text)
        for place, (each, verdict) in enumerate(zip(found.contracts, [*Verdict, *Verdict], strict=False))
    )
    facts = found.run | {"id": text, "script": text, "folder": text, "exit": {"text": text, "seconds": 1.0}}
    return replace(found, run=facts, findings=findings, contracts=contracts), run


def test_the_fixtures_have_zero_one_and_several_findings():
    assert [len(judged(name)[0].findings) for name in ("zero", "one", "several")] == [0, 1, 3]


# -- golden files


@pytest.mark.parametrize("ending", TEXTS)
@pytest.mark.parametrize("name", ["zero", "one", "several"])
def test_the_report_is_the_golden_one(name, ending):
    diagnosis, run = judged(name)
    diagnosis = replace(diagnosis, contracts=tuple(each for each in diagnosis.contracts if each.id in SHOWN))
    text = TEXTS[ending].text(diagnosis, run).replace(f'"{__version__}"', '"0.0.0"')
    file = GOLDEN / f"{name}.{ending}"
    if os.environ.get("BRICKPROF_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", [*TEXTS, "html", "parquet", "json", "txt"])
def test_what_would_have_caught_it_is_in_every_report(ending):
    diagnosis, run = judged("one")
    first, promise = diagnosis.findings[0], "The rate is at most 0.25."
    promised = replace(diagnosis, findings=(replace(first, obligation=promise),))
    module = reporters.by_ending(f"x.{ending}") if ending != "txt" else reporters.named("terminal")

    def shown(given: Diagnosis) -> str:
        made = reporters.content(module, given, run)
        return made if isinstance(made, str) else str(pq.read_table(io.BytesIO(made)).to_pylist())

    assert promise in shown(promised) and promise not in shown(diagnosis)
    if ending not in ("csv", "parquet", "json"):
        assert "promise" in shown(promised).lower() and "promise:" not in shown(diagnosis).lower()


# -- where a finding stands


def place_of(finding: int, *, traced: bool = True, **meta: object) -> Place | None:
    diagnosis, made = judged("several")[0], several_run()
    made.records = [each for each in made.records if traced or getattr(each, "kind", "") != "exception"]
    return Places(diagnosis, told_run(made, **meta)).of(diagnosis.findings[finding])


def test_places_come_from_tracebacks_callers_and_else_the_script():
    assert place_of(0) == Place("train.py", 1, True, SCRIPT)
    assert place_of(1) == Place("lib/data.py", 77, True, EVIDENCE)
    assert place_of(2) == Place("train.py", 31, True, EVIDENCE)


def test_places_are_relative_to_the_repository_around_the_run(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "examples").mkdir()
    cwd = str(tmp_path / "examples")
    assert place_of(2, extra={"cwd": cwd}) == Place("examples/train.py", 31, True, EVIDENCE)


def test_a_traceback_elsewhere_is_no_place_in_the_repository():
    assert place_of(1, extra={"cwd": "/home/other"}, script="/home/other/run.py") == Place("run.py", 1, True, SCRIPT)


def test_a_line_of_an_unknown_file_is_not_given_to_the_script(tmp_path):
    told = {"script": "main.py", "extra": {"cwd": str(tmp_path)}}
    assert place_of(2, traced=False, **told) == Place("main.py", 1, True, SCRIPT)
    (tmp_path / "train.py").write_text("")
    assert place_of(2, traced=False, **told) == Place("train.py", 31, True, EVIDENCE)
    assert place_of(2, **told) == Place("main.py", 1, True, SCRIPT)  # the run names another train.py in full


def test_a_script_outside_the_working_directory_is_no_place_inside():
    assert place_of(0, script="/opt/x/train.py") == Place("/opt/x/train.py", 1, False, SCRIPT)


def test_the_script_of_a_run_that_attached_itself_is_among_its_arguments():
    assert place_of(0, script="train", argv=("/srv/job/bin/train.py", "--lr", "1")).file == "bin/train.py"
    notebook = ("/usr/lib/python3/site-packages/ipykernel_launcher.py", "-f", "x.json")
    assert place_of(0, traced=False, script="notebook", argv=notebook) is None
    assert sarif._locations(judged("several")[0].findings[1], None) == []


def test_without_a_run_the_script_is_all_that_is_known():
    diagnosis = judged("several")[0]
    assert Places(diagnosis, None).of(diagnosis.findings[2]) == Place("train.py", 1, True, SCRIPT)
    nameless = replace(diagnosis, run={})
    assert Places(nameless, None).of(diagnosis.findings[2]) is None


def test_of_several_lines_the_one_that_the_finding_speaks_of():
    diagnosis = judged("several")[0]
    silent = replace(diagnosis.findings[2], symptom="many reads", whys=tuple(
        replace(why, finding="many reads") for why in diagnosis.findings[2].whys
    ))  # fmt: skip
    run = told_run(several_run())
    assert Places(replace(diagnosis, findings=(silent,)), run).of(silent).by == SCRIPT


STACK = (
    'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 355 in wait\n'
    '  File "/srv/job/lib/data.py", line 20 in fetch\n  File "/srv/job/train.py", line 44 in <module>'
)
ROWS = [["train.py:3", "H2D", 9, 8]]
RACE = {"first": {"site": "train.py:5", "stack": ["train.py:5 in f"]}, "second": {"site": "train.py:8"}}


@pytest.mark.parametrize(
    ("kind", "fields", "said", "where"),
    [
        ("hang", {"seconds": 60, "ranks": [{"rank": 0, "stalled": True, "stacks": [STACK]}]}, "", "lib/data.py:20"),
        ("stacks", {"stacks": [STACK]}, "", "lib/data.py:20"),
        ("loss", {"value": 1.0, "site": "train.py:40"}, "", "train.py:40"),
        ("collective", {"op": "all_reduce", "site": "train.py:7"}, "", "train.py:7"),
        ("transfers", {"rows": [*ROWS, ["train.py:4", "H2D", 1, 8]]}, "at train.py:4", "train.py:4"),
        ("transfers", {"rows": [*ROWS, ["train.py:4", "H2D", 1, 8]]}, "", ""),
        ("transfers", {"rows": ROWS}, "at train.py:99, says a message", "train.py:3"),
        ("race", RACE, "train.py:8 reads what train.py:5 copies", "train.py:8"),
        ("swallowed", {"sites": [{"type": "E", "at": "train.py:6", "message": "x.py:1"}]}, "", "train.py:6"),
        ("launches", {"kernels": [["softmax", 3, "train.py:11"]]}, "", "train.py:11"),
        ("exception", {"type": "E", "frames": [{"file": "/opt/lib/x.py", "line": 4}]}, "", ""),
        ("exception", {"type": "E", "frames": "broken"}, "", ""),
    ],
)  # fmt: skip
def test_every_kind_of_record_can_name_a_line(kind, fields, said, where):
    made = Made()
    event = made.event(kind, 3, **fields)
    why = Why("Why?", said or "because", evidence=("grad:3:x@0", event.id, "event:999@0"))
    finding = replace(judged("one")[0].findings[0], brick="", symptom="it broke", whys=(why,))
    place = Places(replace(judged("one")[0], findings=(finding,)), told_run(made)).of(finding)
    assert (f"{place.file}:{place.line}" if place.by == EVIDENCE else "") == where


def test_a_log_is_cited_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    lines = [json.dumps({"step": step, "loss": 2.0 if step < 60 else float("nan")}) for step in range(65)]
    (tmp_path / "logs" / "train.jsonl").write_text("\n".join(lines))
    run = Run.from_log("logs/train.jsonl")
    diagnosis = diagnose(run)
    place = Places(diagnosis, run).of(diagnosis.findings[0])
    assert (place.file, place.inside, place.by) == ("logs/train.jsonl", True, EVIDENCE)
    assert json.loads(lines[place.line - 1])["step"] >= 59


# -- Markdown


class Rendered(HTMLParser):
    """What a renderer of Markdown makes of a report."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.live, self.all = "", ""
        self._code = 0
        self.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        self._code += tag == "code"
        self.live += "\n" if tag == "br" else ""

    def handle_endtag(self, tag):
        self._code -= tag == "code"
        self.ended[tag] += 1

    def handle_data(self, data):
        self.all += data
        self.live += "" if self._code else data


TAGS = {
    "h2", "h3", "p", "ul", "ol", "li", "strong", "code", "pre", "br", "span", "details", "summary", "table", "thead",
    "tbody", "tr", "th", "td", "em",
}  # fmt: skip


def test_markdown_has_what_a_reader_needs():
    read = Rendered(markdown.text(*judged("several")))
    assert read.all.startswith("❌ FAIL: ")
    for said in ("embed.weight, body.weight", "Why", "Do:", "brickprof show k3f9", "Other findings (2)", "train.py:31",
                 "lib/data.py:77", "a | `b` is <not> a number", "contracts: "):  # fmt: skip
        assert said in read.all
    assert read.tags["table"] == 1 and read.tags["h2"] == 1


def test_markdown_of_a_healthy_run_is_short():
    text = markdown.text(*judged("zero"))
    head = text.partition("<details>")[0]
    assert head.count("\n") == 4 and "✅ PASS: 6 steps, nothing wrong" in head


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_hostile_text_cannot_break_out_of_markdown(name):
    diagnosis, run = hostile(name)
    text = markdown.text(diagnosis, run)
    read = Rendered(text)
    assert set(read.tags) <= TAGS and read.tags["em"] <= text.count("_more part")
    assert read.tags["h2"] == 1 and read.tags["h3"] == 1
    folded = 2 + 3 * 2 + 1  # the other findings; what was ruled out and what follows, of each; the contracts
    assert {read.tags[tag] for tag in ("details", "summary")} == {read.ended[tag] for tag in ("details", "summary")}
    assert read.tags["details"] == folded
    assert {name for name, _ in read.attributes} <= {"class", "start"}
    for live in (r"@\w", r"#\d", r"GH-\d", r"://", r"www\.", r":[\w+-]+:"):
        assert not re.search(live, read.live), live
    cells = [line for line in text.splitlines() if line.startswith("|")]
    assert len(cells) == 2 + sum(each.verdict in ("FAIL", "PASS") for each in diagnosis.contracts)
    assert read.tags["td"] == 5 * (len(cells) - 2) and read.tags["th"] == 5
    assert not UNSAFE.search(text)
    assert len(text) < 65_536


@pytest.mark.parametrize("name", ["html", "code", "table", "mention", "link", "math"])
def test_hostile_text_is_shown_as_it_is(name):
    shown = Rendered(f"x {markdown.escaped(ALL_HOSTILE[name])}").all.replace("\u200b", "").strip()
    assert shown == f"x {ALL_HOSTILE[name]}"
    coded = Rendered(f"x {markdown.code(ALL_HOSTILE[name])}")
    assert coded.all.strip() == f"x {ALL_HOSTILE[name]}" and coded.tags["code"] == 1


def test_a_report_without_escapes_would_break_out(monkeypatch):
    """The control of the tests above: they see what gets out."""
    monkeypatch.setattr(markdown, "_LETTERS", {})
    assert not set(Rendered(f"x {markdown.escaped(BREAKING_OUT['html'])}").tags) <= TAGS
    assert "a" in Rendered(f"x {markdown.escaped('[c](http://evil.example)')}").tags


LETTERS = st.text(
    st.sampled_from("\\`*_{}[]()#+-.!|~<>&$@:/=\"'%^ \t\n\r\x00\x1b\u202e\u200bab19wG") | st.characters(), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(text=LETTERS)
def test_any_text_is_shown_as_it_is_in_markdown(text):
    told = " ".join(clean(text).replace("\u200b", "").split())
    for made, tags in ((markdown.escaped(text), {"p", "span"}), (markdown.code(text), {"p", "code"})):
        read = Rendered(f"x {made} y")
        assert set(read.tags) <= tags
        assert " ".join(read.all.replace("\u200b", "").split()) == " ".join(f"x {told} y".split())
        cell = Rendered(f"|a|b|\n|-|-|\n|x {made.replace('|', chr(92) + '|')}|y|\n")
        assert (cell.tags["td"], cell.tags["tr"]) == (2, 2)


@settings(max_examples=150, deadline=None)
@given(text=LETTERS)
def test_any_text_is_data_in_xml_commands_and_tables(text):
    element = xml.Element("a", {"b": junit.legal(text)})
    element.text = junit.legal(text)
    assert xml.fromstring(xml.tostring(element)).tag == "a"
    ((kind, at, said),) = annotations(github.command("error", text, file=text, title="t"))
    assert (kind, set(at)) == ("error", {"file", "title"})
    assert said == clean(text, limit=4_000, one_line=False) and at["file"] == clean(text)
    assert list(csv.reader(io.StringIO(csv_report.table(["a", "b"], [{"a": clean(text), "b": 1}]))))[1][1] == "1"


def test_markdown_fits_into_a_comment_and_says_what_did_not():
    diagnosis, run = judged("several")
    many = replace(diagnosis, findings=tuple(replace(diagnosis.findings[0], id=f"F{n}") for n in range(300)))
    text = markdown.text(many, run)
    assert len(text) <= 65_536 and re.search(r"\d+ more parts did not fit here", text)


# -- JUnit

_CHILDREN = {
    "testsuites": ("testsuite",), "testsuite": ("properties", "testcase", "system-out", "system-err"),
    "testcase": ("skipped", "error", "failure", "system-out", "system-err"), "properties": ("property",),
    "property": (), "skipped": (), "error": (), "failure": (), "system-out": (), "system-err": (),
}  # fmt: skip
_COUNTED = {"name", "tests", "failures", "errors", "skipped", "time"}
_ATTRIBUTES = {
    "testsuites": (_COUNTED, set()), "testsuite": (_COUNTED, {"timestamp", "hostname", "package", "id", "file"}),
    "property": ({"name", "value"}, set()), "testcase": ({"classname", "name", "time"}, {"file", "line"}),
    **dict.fromkeys(("failure", "error", "skipped"), (set(), {"message", "type"})),
}  # fmt: skip


def complaints(element: xml.Element) -> list[str]:
    """What is wrong with ``element`` by the rules that the schemas of Jenkins and pytest share."""
    needed, allowed = _ATTRIBUTES.get(element.tag, (set(), set()))
    found = [f"{element.tag}: {name}?" for name in needed ^ (set(element.attrib) & (needed | set(element.attrib)))
             if name not in allowed]  # fmt: skip
    order = [
        _CHILDREN[element.tag].index(child.tag) if child.tag in _CHILDREN[element.tag] else -1 for child in element
    ]
    if -1 in order:
        found.append(f"{element.tag}: a child that does not belong")
    if order != sorted(order):
        found.append(f"{element.tag}: the order of its children")
    if element.tag == "testsuite":
        cases = element.findall("testcase")
        for name, tag in (("tests", None), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            seen = len(cases) if tag is None else len(element.findall(f"testcase/{tag}"))
            found += [f"{name} is {element.get(name)}, not {seen}"] if element.get(name) != str(seen) else []
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", element.get("timestamp", "2026-01-01T00:00:00")):
            found.append("timestamp")
    if element.tag == "testcase" and sum(child.tag in ("skipped", "error", "failure") for child in element) > 1:
        found.append("a case with two outcomes")
    if "time" in element.attrib and not re.fullmatch(r"\d+\.\d+", element.attrib["time"]):
        found.append("time")
    return found + [each for child in element for each in complaints(child)]


def parsed(diagnosis: Diagnosis, run: Run | None) -> xml.Element:
    text = junit.text(diagnosis, run)
    root = xml.fromstring(text.encode("utf-8"))
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites ') and root.tag == "testsuites"
    return root


@pytest.mark.parametrize("name", ["zero", "one", "several", "nothing"])
def test_junit_keeps_to_the_common_schema(name):
    diagnosis, run = judged(name)
    root = parsed(diagnosis, run)
    assert complaints(root) == []
    outcomes = {
        case.get("name"): next((child.tag for child in case if child.tag != "system-out"), "passed")
        for case in root.iter("testcase")
    }
    for contract in diagnosis.contracts:
        assert outcomes[contract.id] == {"PASS": "passed", "FAIL": "failure"}.get(contract.verdict, "skipped")
    properties = {each.get("name"): each.get("value") for each in root.iter("property")}
    assert properties["run"] == "k3f9" and properties["version"] == __version__
    assert properties["steps"] == str(diagnosis.run["steps"])


@pytest.mark.parametrize(
    "broken",
    [
        '<testsuite name="a" tests="1" failures="0" errors="0" skipped="0" time="0.0"/>',
        '<testsuite name="a" tests="0" failures="0" errors="0" skipped="0"/>',
        '<testcase classname="a" name="b" time="1.0"><failure/><skipped/></testcase>',
        '<testcase classname="a" name="b" time="1.0"><properties/></testcase>',
        '<testcase classname="a" name="b" time="1.0" colour="red"/>',
        '<testcase classname="a" name="b" time="fast"/>',
        '<property name="a"/>',
    ],
)
def test_the_rules_of_junit_find_what_is_wrong(broken):
    assert complaints(xml.fromstring(broken)) != []


def test_a_failure_says_why():
    root = parsed(*judged("several"))
    (failure,) = root.findall("./testsuite/testcase[@name='C-PROCESS-001']/failure")
    assert failure.get("type") == "exception" and "ValueError" in failure.get("message")
    assert "Why did the run end?" in failure.text and "At: lib/data.py:77" in failure.text and "Do:" in failure.text
    (suite,) = root
    assert (suite.get("time"), suite.get("hostname"), suite.get("name")) == ("9.200", "node-1", "train.py")
    assert suite.get("timestamp") == "2025-11-15T01:26:40"
    assert suite.find("system-out").text.startswith("FAIL: a part of the model does not learn\n")


@pytest.mark.parametrize("started", [0, -5, 10**21, 10**30])
def test_a_start_that_no_calendar_has_is_left_out(started):
    diagnosis, _ = judged("zero")
    text = junit.text(diagnosis, told_run(healthy_run(), started_ns=started))
    assert xml.fromstring(text)[0].get("timestamp") is None


def test_what_was_not_evaluated_says_why():
    diagnosis, run = judged("zero")
    skipped = {case.get("name"): case.find("skipped") for case in parsed(diagnosis, run).iter("testcase")}
    for contract in diagnosis.contracts:
        if contract.verdict in ("NOT_EVALUATED", "VACUOUS"):
            assert contract.why in skipped[contract.id].get("message")


def test_a_run_of_which_nothing_was_judged_is_not_green():
    root = parsed(*judged("nothing"))
    assert root.get("errors") == "1" and root.find("./testsuite/testcase[@name='verdict']/error") is not None
    assert parsed(*judged("zero")).get("errors") == "0"


def test_a_finding_of_no_listed_contract_is_a_case_of_its_own():
    diagnosis, run = judged("one")
    stray = replace(diagnosis, findings=(replace(diagnosis.findings[0], contract=""),), contracts=())
    (case,) = parsed(stray, run).iter("testcase")
    assert case.get("name") == "no-gradient-path" and case.find("failure") is not None
    note = replace(diagnosis.findings[0], severity=Severity.INFO)
    assert not list(parsed(replace(stray, findings=(note,)), run).iter("failure"))


def test_notes_are_no_failures_and_are_not_lost():
    diagnosis, run = judged("zero")
    note = replace(judged("one")[0].findings[0], severity=Severity.INFO, symptom="a thing to note")
    root = parsed(replace(diagnosis, findings=(note,)), run)
    assert root.get("failures") == "0" and "Note: a thing to note" in root.find("./testsuite/system-out").text


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_any_text_is_xml(name):
    root = parsed(*hostile(name))
    assert complaints(root) == []
    assert {element.tag for element in root.iter()} <= set(_CHILDREN)
    text = "".join(root.itertext()) + "".join(value for element in root.iter() for value in element.attrib.values())
    assert not UNSAFE.search(text)


def test_every_character_can_be_said_in_xml():
    for code in (*range(0x20), *range(0x7F, 0xA0), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF):
        xml.fromstring(f"<a>{junit.legal(chr(code)).replace('<', '&lt;')}</a>".encode())


# -- SARIF


def scanned(diagnosis: Diagnosis, run: Run | None) -> dict:
    """The one run of a SARIF log that has what SARIF 2.1.0 and GitHub's code scanning demand."""
    text = sarif.text(diagnosis, run)
    assert text.isascii()
    log = json.loads(text)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert driver["name"] == "brickprof" and driver["version"] == __version__
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        assert 0 < len(rule["id"]) <= 255
        for part in ("shortDescription", "fullDescription", "help"):
            assert rule[part]["text"].strip() and len(rule[part]["text"]) <= 1024 * (1 if part != "help" else 8)
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for result in one["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("note", "warning", "error") and result["message"]["text"].strip()
        assert result["partialFingerprints"]["primaryLocationLineHash"]
        (location,) = result["locations"]
        if result["properties"]["located_by"] == "nothing":
            assert Places(diagnosis, run).script is None
            continue
        physical = location["physicalLocation"]
        uri = physical["artifactLocation"]["uri"]
        assert uri and re.fullmatch(r"[A-Za-z0-9._~/%:-]+", uri) and ".." not in uri.split("/")
        assert uri.startswith("file:///") or physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
        assert not uri.startswith("/") and (uri.startswith("file:") or ":" not in uri.split("/")[0])
        assert physical["region"]["startLine"] >= 1
        assert all(logical["name"] for logical in location.get("logicalLocations", ()))
    assert [each["executionSuccessful"] for each in one["invocations"]] == [True]
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in one["results"]]
    assert len(prints) == len(set(prints)) == len(diagnosis.findings)
    return one


@pytest.mark.parametrize("name", ["zero", "one", "several", "nothing"])
def test_sarif_has_what_code_scanning_needs(name):
    diagnosis, run = judged(name)
    one = scanned(diagnosis, run)
    assert [rule["id"] for rule in one["tool"]["driver"]["rules"]] == [each.id for each in diagnosis.contracts]
    assert [result["ruleId"] for result in one["results"]] == [each.contract for each in diagnosis.findings]


def test_sarif_results_stand_at_the_users_lines():
    one = scanned(*judged("several"))
    at = [result["locations"][0]["physicalLocation"] for result in one["results"]]
    where = [(each["artifactLocation"]["uri"], each["region"]["startLine"]) for each in at]
    assert where == [("train.py", 1), ("lib/data.py", 77), ("train.py", 31)]
    assert [result["properties"]["located_by"] for result in one["results"]] == ["script", "evidence", "evidence"]
    assert one["results"][0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "body"
    assert [result["level"] for result in one["results"]] == ["error", "error", "warning"]
    properties = one["results"][2]["properties"]
    assert properties["root_cause"] == "host-sync-in-loop" and 0 < properties["confidence"] <= 1 and properties["whys"]


def test_sarif_rules_are_explained():
    rules = {rule["id"]: rule for rule in scanned(*judged("several"))["tool"]["driver"]["rules"]}
    rule = rules["C-GRADFLOW-001"]
    assert rule["shortDescription"]["text"] != "C-GRADFLOW-001" and "What has to hold:" in rule["help"]["text"]


def test_a_fingerprint_is_that_of_the_fault_and_not_of_the_run():
    diagnosis, run = judged("several")
    finding = diagnosis.findings[0]
    place = Places(diagnosis, run).of(finding)
    later = replace(finding, first_step=99, detected_step=99, symptom="other words", confidence=0.5)
    assert sarif.fingerprint(finding, place) == sarif.fingerprint(later, replace(place, line=7))
    assert sarif.fingerprint(finding, place) != sarif.fingerprint(replace(finding, brick="head"), place)


def test_a_run_of_which_nothing_was_judged_warns_in_sarif():
    (invocation,) = scanned(*judged("nothing"))["invocations"]
    assert invocation["toolExecutionNotifications"][0]["level"] == "warning"
    assert "toolExecutionNotifications" not in scanned(*judged("zero"))["invocations"][0]


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_hostile_text_in_sarif(name):
    diagnosis, run = hostile(name)
    one = scanned(diagnosis, run)
    for result in one["results"]:
        text = result["message"]["text"]
        assert not UNSAFE.search(text)
        assert not re.search(r"(?<!\\)\]\(", text)
        assert not re.search(r"(?<!\{)\{\d+\}(?!\})", text)


def test_sarif_shows_a_link_as_text():
    assert sarif.message("[a](http://b)") == "\\[a\\](http://b)"
    assert sarif.message("lr [1e-3] {0}") == "lr [1e-3] {{0}}"


def test_the_users_own_contract_explains_its_rule():
    own = (
        "metadata: {id: C-MINE-001, version: 1.0.0, description: The loss falls.}\nmotivation: Because.\n"
        "obligations:\n  - {id: falls, kind: bound, property: The loss is below 3., formal: max(loss) <= 3}\n"
    )
    diagnosis, run = judged("one")
    run = told_run(stuck_run(), extra={"cwd": "/srv/job", "contracts": {"mine.yaml": own}})
    mine = replace(diagnosis.contracts[0], id="C-MINE-001")
    rules = scanned(replace(diagnosis, contracts=(mine,)), run)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["C-MINE-001", "C-GRADFLOW-001"]
    assert rules[0]["shortDescription"]["text"] == "The loss falls." and "below 3." in rules[0]["help"]["text"]


# -- annotations

_COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def annotations(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as GitHub's runner reads them."""
    found = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        assert match, line
        properties = dict(part.split("=", 1) for part in match[2].split(","))
        found.append((match[1], {key: unquote(value) for key, value in properties.items()}, unquote(match[3])))
    return found


def test_annotations_stand_at_the_users_lines():
    found = annotations(github.text(*judged("several")))
    assert [(kind, at.get("file"), at.get("line")) for kind, at, _ in found] == [
        ("error", "train.py", None), ("error", "lib/data.py", "77"), ("warning", "train.py", "31"),
        ("notice", None, None),
    ]  # fmt: skip
    assert found[1][1]["title"] == "brickprof: C-PROCESS-001" and "\nDo: " in found[1][2]
    assert re.search(r"\d+ contracts: 3 held, 3 broken, .*\. Not judged: C-\S+, .* and \d+ more", found[3][2])


def test_a_healthy_run_is_two_notices_and_an_unjudged_one_a_warning():
    assert [kind for kind, _, _ in annotations(github.text(*judged("zero")))] == ["notice", "notice"]
    assert [kind for kind, _, _ in annotations(github.text(*judged("nothing")))] == ["warning", "notice"]


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_hostile_text_ends_no_command(name):
    diagnosis, run = hostile(name)
    text = github.text(diagnosis, run)
    found = annotations(text)
    assert len(found) == text.count("\n") == len(diagnosis.findings) + 1
    assert all(set(at) <= {"file", "line", "title"} for _, at, _ in found)
    assert not UNSAFE.search(text)


def test_the_escapes_of_a_command():
    line = github.command("error", "a%\nb::c", file="x,y:z%.py")
    assert line == "::error file=x%2Cy%3Az%25.py::a%25%0Ab::c"


def test_no_summary_is_written_unasked(tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    folder = several_run().run().save(tmp_path / "k3f9")
    assert main(["report", str(folder), "-r", "github"]) == 0
    assert not summary.exists()


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        ("train.py:60 reads", "train.py:60"), ("src/data reads", "src/data"), ("weight_decay is 0", "weight_decay"),
        ("bf16 overflows", "bf16"), ("forward() returns", "forward()"), ("lossScale falls", "lossScale"),
        ("the loss, falls", "The"), ("here: nothing", "Here:"), ("loss.", "Loss."), ("re-run it", "Re-run"), ("", ""),
    ],
)  # fmt: skip
def test_a_sentence_that_begins_with_a_name_keeps_its_case(said, begins):
    assert wording.sentence(said).startswith(begins) and capital(said).startswith(begins)
    assert capital(said)[1:] == said[1:]
