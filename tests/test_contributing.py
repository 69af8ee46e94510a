"""The examples of CONTRIBUTING.md are true: each one is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from brickprof.contracts import registry
from brickprof.contracts.schema import Place, contract
from brickprof.records import Event
from brickprof.rules.story import Story
from brickprof.run import Run

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: ([a-z ]+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))


def run(*names: str) -> dict:
    space: dict = {"__name__": "example"}
    for name in names:
        exec(compile(EXAMPLES[name], f"CONTRIBUTING.md ({name})", "exec"), space)
    return space


def test_every_seam_has_an_example():
    assert EXAMPLES.keys() >= {"probe", "contract", "rule", "reader", "kernel", "reporter"}


def test_probe_counts_backward_passes():
    facts = []
    session = SimpleNamespace(fact=lambda kind, fields, step: facts.append((kind, fields, step)))
    probe = run("probe")["BackwardsProbe"](session)
    probe.backward_begin([], None)
    probe.backward_begin([], None)
    probe.step_end(3)
    probe.step_end(4)
    assert facts == [("backwards", {"count": 2}, 3), ("backwards", {"count": 0}, 4)]


def test_contract_is_one():
    document, lines = registry.parse(EXAMPLES["contract"].encode(), "example.yaml")
    found = contract(document, Place("example.yaml", lines))
    assert found.id == run("rule")["RULE"].contract
    assert found.bindings.rules == ("loss_falls",)


def test_rule_judges_and_abstains():
    space = run("rule", "rule test")
    rule, story = space["RULE"](), Story()
    assert rule.judge(story, None).verdict == "VACUOUS"
    for step, value in enumerate([3.0, 2.0]):
        story.feed(Event("loss", step, {"value": value}))
    assert rule.judge(story, None).verdict == "PASS"


def test_reader_makes_a_run():
    run("reader", "reader test")


def test_kernel_agrees_with_its_reference(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "scale.py").write_text(EXAMPLES["kernel"])
    program = (
        "import torch, scale\n"
        "from brickprof.operators.launch import counts\n"
        "operator, draw = scale.OPERATOR, torch.Generator().manual_seed(0)\n"
        "for sizes in operator.sizes:\n"
        "    given = operator.inputs(sizes, torch.float32, draw)\n"
        "    x = given['x'].requires_grad_()\n"
        "    ours, theirs = operator.function(**given), operator.reference(**given)\n"
        "    torch.testing.assert_close(ours, theirs)\n"
        "    dy = torch.randn(ours.shape, generator=draw)\n"
        "    torch.testing.assert_close(*(torch.autograd.grad(y, x, dy)[0] for y in (ours, theirs)))\n"
        "assert counts()['scale'].launches == 2 * len(operator.sizes)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, timeout=120)


def test_reporter_shows_a_diagnosis():
    from brickprof.diagnosis import diagnose

    space = run("reporter")
    losses = [Event("loss", 0, {"value": 1.0}, 0), Event("loss", 1, {"value": float("nan")}, 1)]
    shown = space["text"](diagnose(Run.from_records(losses)))
    assert shown.startswith("FAIL: ")
    assert "nan" in shown
