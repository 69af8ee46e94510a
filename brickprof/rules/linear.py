"""FALSIFY-ALBOR-001: a loss that stops falling because the model cannot bend.

Enters: the story's ``shapes`` events: which matrix products lie one behind the other, and whether anything but sums
lies between them. Leaves: ``linear`` where three or more products with weights of their own amount to one: a warning
once the loss has levelled off far above zero, else only worth knowing. One or two products are a choice (a regression,
a factorisation), and so is a weight that is used again and again (a linear system over time).
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, outcomes
from brickprof.rules.story import Story

CONTRACT = "FALSIFY-ALBOR-001"
_FEWEST_PRODUCTS = 3
_FEWEST_LOOKS = 2
_FAR_ABOVE_ZERO = 0.2
_STILL = 0.03
_SHOWN = 6
_FOLLOWS = frozenset({"plateau", "not-learning", "slow-learning", "underfitting"})


class Linear:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        for rank in story.ranks:
            looks = story.events("shapes", rank)
            if len(looks) >= _FEWEST_LOOKS and all(map(_straight, looks)):
                return outcomes.broken(contract, [_violation(story, looks, rank, contract)])
        return outcomes.aside(contract, "no model was seen that is linear")


def _straight(event: Event) -> bool:
    chain = event.fields.get("chain")
    return event.fields.get("bent") is False and isinstance(chain, list) and len(chain) >= _FEWEST_PRODUCTS


def _violation(story: Story, looks: list[Event], rank: int, contract: Contract) -> Violation:
    first, chain = looks[0], looks[0].fields["chain"]
    bound = _whole_model(story, first, rank)
    level = _levelled(story, rank, int(contract.threshold("plateau"))) if bound else None
    curve = curves.curve(story, rank)
    proof = tuple(event.id for event in looks[:2])
    symptom = f"the model is linear: {len(chain)} matrix products one behind the other and nothing between them"
    names = [story.names.show(story.names.tensor(rank, number).brick) for number in chain]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    text = f"{shown} follow each other without an activation. Together they are one matrix: more layers add nothing."
    whys = [Because("What lies between the layers?", text, names[0], proof)]
    seen = looks[_FEWEST_LOOKS - 1].step
    if level is not None:
        stood = f"The loss started at {curve.start:.4g} and stays at {level:.4g}: what is left is not linear."
        seen = curve.step(len(curve) - 1)
        whys.insert(0, Because("Does it fit the data?", stood, "loss", curve.track.evidences((0, len(curve) - 1))))
    return Violation(
        CONTRACT, "linear", Severity.INFO if level is None else Severity.WARNING, symptom, first.step, seen, names[0],
        "block", rank, proof, {"question": "Why does it learn so little?", "asked": "What can the model express?"},
        "underfitting", 0.9 if level is not None else 0.5, _FOLLOWS, tuple(whys), (),
        "Call an activation (ReLU, GELU, SiLU) between the layers; look for one that is created and never used.",
        "Train on one batch only: a model that can bend brings its loss to zero.", static=True,
    )  # fmt: skip


def _whole_model(story: Story, look: Event, rank: int) -> bool:
    """Whether the loss was seen to depend on every matrix of the models: none is frozen, compiled or left out."""
    reached = set(look.fields.get("matrices") or ())
    for event in story.events("tensor", rank):
        shape = event.fields.get("shape")
        matrix = bool(event.fields.get("model")) and isinstance(shape, list) and len(shape) > 1
        if matrix and event.fields.get("alias_of") is None and event.fields.get("id") not in reached:
            return False
    return True


def _levelled(story: Story, rank: int, fewest: int) -> float | None:
    """The level at which the loss stands in the second half, where that is far above zero; None while it falls."""
    curve = curves.curve(story, rank)
    if len(curve) < fewest or not curve.comparable or curve.phases:
        return None
    half = curve.values[len(curve) // 2 :]
    level, last = float(np.median(half)), float(np.median(half[-max(1, len(half) // 4) :]))
    still = curves.slope(half) > -2 or level - last < _STILL * level
    return level if still and level > _FAR_ABOVE_ZERO * curve.start else None


RULE = Linear
