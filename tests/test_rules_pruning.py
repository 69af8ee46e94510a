"""What pruning leaves, against what was asked for."""

from __future__ import annotations

import pytest
import torch
from making import Made
from torch.nn.utils import prune

import brickprof
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Verdict
from brickprof.rules.pruning import Pruned
from brickprof.rules.story import Story


def judged(made: Made):
    story = Story()
    for record in made.records:
        story.feed(record)
    return Pruned().judge(story, Terms().contract(Pruned.contract))


def pruning(*shares: float, asked: dict[str, object] | None = None, over: bool = True) -> Made:
    made = Made()
    made.event("config", 0, rank=-1, source="prune.yaml", values=asked or {})
    made.healthy(5)
    for step, share in enumerate(shares, 5):
        for tensor in (1, 2):
            made.event("pruned", step, tensor=tensor, how="l1_unstructured", zeros=round(1000 * share), numel=1000)
    if over:
        made.event("exit", 9, steps=10)
    return made


@pytest.mark.parametrize(
    ("shares", "asked", "verdict"),
    [
        ((0.5,), {"sparsity": 0.3}, Verdict.FAIL),
        ((0.3,), {"sparsity": 0.3}, Verdict.PASS),
        ((0.1, 0.2, 0.3), {"prune.target_sparsity": 0.3}, Verdict.PASS),
        ((0.5,), {"pruning_amount": 0.3}, Verdict.FAIL),
        ((0.5,), {"sparsity_weight": 0.3}, Verdict.NOT_EVALUATED),
        ((0.5,), {"sparsity": 0.3, "head.sparsity": 0.5}, Verdict.NOT_EVALUATED),
        ((), {"sparsity": 0.3}, Verdict.NOT_EVALUATED),
    ],
)
def test_the_sparsity_that_was_asked_for(shares, asked, verdict):
    assert judged(pruning(*shares, asked=asked)).verdict is verdict


def test_stages_are_not_judged_before_the_end():
    assert judged(pruning(0.1, asked={"sparsity": 0.3}, over=False)).verdict is Verdict.NOT_EVALUATED


def test_what_pruning_left_is_recorded(tmp_path):
    def body():
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if step == 2:
                prune.l1_unstructured(model[0], "weight", amount=0.5)
                prune.global_unstructured([(model[1], "weight")], prune.L1Unstructured, amount=0.25)
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()

    with brickprof.attach(None, out=tmp_path) as watching:
        body()
    events = brickprof.load(watching.folder).events
    told = list(events[events.kind == "pruned"].fields)
    assert [(each["how"], each["zeros"], each["numel"]) for each in told] == [
        ("l1_unstructured", 32, 64), ("custom_from_mask", 16, 64),
    ]  # fmt: skip
    assert len({each["tensor"] for each in told} - {None}) == 2
