"""When brickprof was at work outside of bricks: told with the step's span, and what covers a step by it."""

from __future__ import annotations

import json

import pytest
import torch

import brickprof
from brickprof.capture.looked import Looked
from brickprof.run.step_budget import most_idle, step_budget
from tests.test_step_budget import frame, host


def whole(**told):
    return (0, 0, "step", "step", "step", 1000, 2000, None, json.dumps(told))


def test_stretches_are_told_from_the_beginning_of_the_step_and_once():
    looked = Looked()
    for start, end in ((90_000, 110_000), (150_000, 151_000), (160_000, 170_000), (190_000, 230_000)):
        looked.add(start, end)
    assert json.loads(looked.told(100_000, 200_000)) == [[0, 10_000], [60_000, 70_000], [90_000, 100_000]]
    assert looked.told(200_000, 300_000) == "[]", "the next step begins with none"


def test_the_longest_are_told_where_there_are_many():
    looked = Looked()
    for at in range(10_000):
        looked.add(at * 10_000, at * 10_000 + 3000 + at)
    told = json.loads(looked.told(0, 10**9))
    assert len(told) == 64 and told == sorted(told) and min(end - start for start, end in told) > 3000 + 100


@pytest.mark.parametrize(
    ("looks", "idle"),
    [([], 0.4), ([[0, 200]], 0.2), ([[0, 200], [800, 1000]], 0.0), ([[100, 300], [150, 250]], 0.3)],
    ids=["not known where", "one gap", "both", "partly inside a brick"],
)
def test_what_is_known_to_lie_between_bricks_covers_that(looks, idle):
    spans = frame(whole(looking_ns=500, looks=looks), host("block", "forward", 200, 800))
    assert most_idle(spans) == idle
    assert step_budget(spans)["host"]["idle"] == 0.0, "the picture has room for all of it"


@pytest.mark.parametrize("foreign", [None, 3, "x", [3], [[1]], [["a", 2]], [[5, 2]], [[-5, 20]], [[0, 10**400]]])
def test_looks_from_elsewhere_do_no_harm(foreign):
    assert most_idle(frame(whole(looks=foreign), host("block", "forward", 200, 800))) == 0.4


def test_a_run_tells_where_it_looked(tmp_path):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with brickprof.attach(model, optimizer, out=tmp_path, level="deep") as session:
        for _ in range(6):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    spans = brickprof.load(session.folder).spans
    steps = [json.loads(told) for told in spans[spans.phase == "step"].attributes]
    assert len(steps) >= 5
    for told in steps:
        assert told["looks"] and sum(end - start for start, end in told["looks"]) > 0, told
