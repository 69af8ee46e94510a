"""Settings that a script holds itself: what is read of them, and what is made of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import launching
import pytest
from making import Made

from brickprof.capture import plain
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Verdict
from brickprof.probes import stated as stated_probe
from brickprof.rules import stated
from brickprof.rules.accumulated import Accumulated
from brickprof.rules.clipping import Clip
from brickprof.rules.in_force import InForce
from brickprof.rules.story import Story
from brickprof.run import Run


class Loud:
    @property
    def lr(self):
        raise AssertionError("nobody may call this")


@dataclass
class Inner:
    lr: float = 0.1
    api_key: str = "hush"


@dataclass
class Outer:
    steps: int = 3
    name: str = "x" * 100
    optim: Inner = field(default_factory=Inner)
    loud: Loud = field(default_factory=Loud)


def test_plain_values_only():
    assert plain.settings(Outer()) == {"steps": 3, "optim.lr": 0.1}
    assert plain.settings(argparse.Namespace(a=None, b=[1], c=SimpleNamespace(d=True))) == {"a": None, "c.d": True}
    assert plain.settings({"x": {"y": {"z": {"w": {"deep": 1}}}}}) == {}
    assert len(plain.settings({str(i): i for i in range(1000)})) == 128
    assert not plain.is_settings(Outer) or plain.settings(Outer) == {}


class Nosy(argparse.Namespace):
    def __getattribute__(self, name):
        raise AssertionError("nobody may call this")


def test_no_code_of_the_script_runs():
    made = Nosy.__new__(Nosy)
    object.__getattribute__(made, "__dict__")["lr"] = 0.1
    assert plain.is_settings(made) and plain.settings(made) == {"lr": 0.1}


def test_the_variables_of_functions_are_read_where_that_keeps_nothing(monkeypatch):
    class Trainer:
        def __init__(self):
            self.cfg, self.secret_cfg = Inner(lr=0.5), Outer()

        def step(self):
            hp = {"clip": 2.0}
            found = {}
            stated_probe._of_frame(sys._getframe(), found)
            return found, hp

    monkeypatch.setattr(stated_probe, "_WITHOUT_A_COPY", False)
    assert Trainer().step()[0] == {}
    monkeypatch.setattr(stated_probe, "_WITHOUT_A_COPY", True)
    assert Trainer().step()[0] == {"clip": 2.0, "lr": 0.5}


SCRIPT = """
import argparse
from dataclasses import dataclass
import torch

@dataclass
class Config:
    max_grad_norm: float = 1.0

CLIP_AT = 3
cfg = Config()
parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.5)
args = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_what_a_script_states_is_recorded(tmp_path):
    launching.script(tmp_path, SCRIPT)
    done = launching.run(["t.py", "--dropout", "0.25"], tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.open(launching.recorded(tmp_path))
    told = {fields["source"]: fields["values"] for fields in run.events[run.events.kind == "stated"].fields}
    assert told["argparse"] == {"dropout": 0.25}
    assert told["script"] == {"max_grad_norm": 1.0, "CLIP_AT": 3, "dropout": 0.25}
    assert [fields["rates"] for fields in run.events[run.events.kind == "dropout"].fields] == [[0.0]]


def judged(rule, made):
    story = Story()
    for record in made.records:
        story.feed(record)
    return rule().judge(story, Terms().contract(rule.contract))


@pytest.mark.parametrize(
    ("norm", "loss", "clips", "fails"),
    [(500.0, 40.0, 0, True), (500.0, 2.0, 0, False), (5.0, 40.0, 0, False), (500.0, 40.0, 1, False)],
    ids=["lost", "no harm", "small", "clipped"],
)
def test_a_bound_that_the_script_states_and_nothing_keeps(norm, loss, clips, fails):
    made = Made()
    made.event("stated", 0, source="script", values={"max_grad_norm": 1.0, "lr": 0.1})
    for step in range(6):
        made.step(step, loss=loss if step == 4 else 1.0, norm=norm if step == 3 else 2.0)
        made.event("applied", step, optimizer=0, coefficient=1.0, before=2.0, after=2.0, blocks=[])
        if clips:
            made.event("clip", step, max_norm=1.0, norm_type=2.0, tensors=3, how="norm", late=False, norm=2.0)
    found = [each for each in judged(Clip, made).violations if "the script has max_grad_norm" in each.symptom]
    assert [each.cause for each in found] == (["grad-clip-not-applied"] if fails else [])


def test_whoever_makes_gradients_smaller_himself_is_believed():
    made = Made()
    made.event("stated", 0, source="script", values={"max_grad_norm": 1.0})
    for step in range(6):
        made.step(step, loss=40.0 if step == 4 else 1.0, norm=500.0 if step == 3 else 2.0)
        made.event("applied", step, optimizer=0, coefficient=0.5, before=2.0, after=1.0, blocks=[])
    assert not [each for each in judged(Clip, made).violations if "the script has max_grad_norm" in each.symptom]


@pytest.mark.parametrize(
    ("values", "rates", "fails"),
    [({"dropout": 0.5}, [0.0], True), ({"dropout": 0.0}, [0.0], False), ({"dropout": 0.5}, [0.5], False),
     ({"dropout": 0.5}, [0.0, 0.5], False), ({"attn.dropout": 0.1, "drop_rate": 0.2}, [0.0], False)],
)  # fmt: skip
def test_dropout_that_is_stated_and_off(values, rates, fails):
    made = Made()
    made.event("stated", 0, source="argparse", values=values)
    made.event("dropout", 0, model="Net", modules=2, rates=rates)
    made.healthy(6)
    result = judged(InForce, made)
    assert (result.verdict is Verdict.FAIL) is fails
    if fails:
        assert result.violations[0].cause == "config-unused"


def test_a_damaged_statement_breaks_nothing():
    made = Made()
    made.event("stated", 0, source="script", values=[1, 2])
    made.event("dropout", 0, model=None, modules="x", rates=None)
    made.healthy(6)
    story = Story()
    for record in made.records:
        story.feed(record)
    assert stated.values(story, 0) == {} and stated.never_clipped(story, 0) is None


def accumulating(values, *, micros=1, fed=4, held=0, calls=1, batches=1):
    made = Made()
    made.event("stated", 0, source="argparse", values=values)
    for step in range(20):
        for _ in range(batches):
            made.event("batch", step, loader=0, fingerprint=f"{step:x}", samples=fed)
        for _ in range(calls):
            made.event("criterion", step, name="mse", value=1.0, grad=True, site="train.py:9")
        for micro in range(micros):
            made.event("loss", step, value=1.0, micro=micro, grad_fn="MseLossBackward0")
        made.event("held", step, optimizer=0, tensors=3, held=held)
        made.event("optimizer", step, optimizer=0, lr=[0.1], count=step + 1)
    return judged(Accumulated, made)


@pytest.mark.parametrize(
    "key",
    ["grad_accum", "accumulate", "accum_steps", "gradient_accumulation_steps", "accumulation", "train.grad_acc_steps",
     "ACCUM", "accumulate_grad_batches", "grad-accum", "num_accumulation_steps", "accum_iter"],
)  # fmt: skip
def test_an_accumulation_that_the_script_states_and_nobody_does(key):
    result = accumulating({key: 8})
    assert [each.cause for each in result.violations] == ["config-unused"]
    assert f"{key}: 8" in result.violations[0].symptom


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"grad_accum": 1}, {}),
        ({"grad_accum": 8}, {"micros": 8}),
        ({"grad_accum": 8}, {"calls": 8}),
        ({"grad_accum": 8}, {"batches": 8}),
        ({"grad_accum": 8}, {"held": 3}),
        ({"grad_accum": 8, "batch_size": 4}, {"fed": 32}),
        ({"grad_accum": 8, "accumulate": 4}, {}),
        ({"accum_decay": 8, "accumulator": 3, "update_freq": 10, "accumulate_metrics": 5, "accuracy": 9}, {}),
        ({"grad_accum": 0.9}, {}),
        ({"grad_accum": True}, {}),
    ],
    ids=["one", "done", "one backward of many", "many batches", "cleared later", "drawn at once", "two numbers",
         "other things", "no count", "a flag"],
)  # fmt: skip
def test_an_accumulation_that_is_done_or_that_nobody_states(values, more):
    assert not accumulating(values, **more).violations
