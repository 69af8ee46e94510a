"""The web page: structure, policy, hostile strings, many findings, what thinning keeps, and a real browser."""

from __future__ import annotations

import base64
import hashlib
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
from making import INF, NAN, Made

from brickprof.cli.app import main
from brickprof.diagnosis import Diagnosis, diagnose
from brickprof.reports import html as page
from brickprof.reports.page import heat as heat_cells
from brickprof.reports.page.curves import curves, thinned
from brickprof.reports.page.heat import heat_map
from brickprof.reports.page.proof import Prover
from brickprof.run import Run

MOST_BYTES = 6_000_000
VOID = {"meta", "br"}
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
    assert "proof" in read.ids and "others" not in read.ids


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
        follows=(said,), nature=said, scope=said,
    )  # fmt: skip
    contracts = tuple(replace(c, observed=said, threshold=said, why=said) for c in found.contracts)
    log = {"series": [{"name": said, "role": said, "points": 1}], "damage": [said]}
    about = {**found.run, "id": said, "name": said, "script": said, "format": said, "log": log}
    text = page.text(Diagnosis(found.verdict, about, (finding, finding), contracts), run)
    only_ours(Read(text), text)


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
    assert len(page.text(diagnose(run), run)) < MOST_BYTES / 4


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
ACTS = """
  const said = {};
  const button = document.querySelector("button.ring");
  button.click();
  said.pressed = button.getAttribute("aria-pressed");
  said.chosen = button.closest(".why").classList.contains("chosen");
  said.readout = document.querySelector(".picture .readout").textContent;
  const canvas = document.querySelector("#curves canvas"), box = canvas.getBoundingClientRect();
  const at = (kind, x) => canvas.dispatchEvent(new MouseEvent(kind, {clientX: box.left + x, clientY: box.top + 40}));
  canvas.setPointerCapture = () => {};
  const shown = () => canvas.toDataURL();
  const whole = shown();
  at("pointerdown", 200); at("pointermove", 400); at("pointerup", 400); at("pointerleave", 400);
  said.zoomed = shown() !== whole;
  document.getElementById("whole").click();
  said.back = shown() === whole;
  at("pointermove", 300);
  said.value = document.querySelector("#curves .value").textContent;
  const ground = () => getComputedStyle(document.body).backgroundColor;
  const before = ground();
  document.getElementById("theme").click();
  said.turned = ground() !== before;
  said.fits = document.documentElement.scrollWidth <= window.innerWidth;
  const evidence = document.querySelector(".evidence details");
  evidence.open = true;
  said.rows = evidence.querySelectorAll("tbody tr").length;
  document.body.dataset.said = JSON.stringify(said);
"""


def seen(text: str, folder: Path, width: int) -> tuple[dict, str]:
    """What the page is like after somebody has used it, and what the browser complained of."""
    digest = base64.b64encode(hashlib.sha256(ACTS.encode()).digest()).decode()
    text = text.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    file = folder / "acted.html"
    file.write_text(text.replace("</body>", f"<script>{ACTS}</script></body>"), "utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    body = next(attributes for tag, attributes in Read(done.stdout).tags if tag == "body")
    complaints = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(body.get("data-said") or "{}"), complaints


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_in_a_browser_a_why_rings_its_evidence_charts_zoom_and_the_theme_turns(tmp_path, width):
    run = broken_run().run()
    said, complaints = seen(page.text(diagnose(run), run), tmp_path, width)
    assert complaints == ""
    assert said["pressed"] == "true" and said["chosen"] and said["turned"] and said["fits"]
    assert said["readout"].startswith(("Ringed:", "No gradients were sampled"))
    assert said["zoomed"] and said["back"] and "in step" in said["value"]
    assert said["rows"] >= 1
