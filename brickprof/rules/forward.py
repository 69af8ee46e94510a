"""Contracts on the forward pass and on repetition, which one recorded run seldom decides.

Enters: the story. Leaves: NOT_EVALUATED with what would decide, unless the run itself shows it: an evaluation that ends
in an index or shape error while training went on breaks C-EVALBUF-001; two ranks or runs decide C-DETERM-001.
"""

from __future__ import annotations

import re

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.story import Story

_OUT_OF_RANGE = re.compile(
    r"out of range|out of bounds|must match the size|size of tensor|shape .* is invalid|sizes of tensors|exceeds", re.I
)


class Unseen:
    """An obligation that no record of an ordinary run decides."""

    contract = ""
    wanted = ""

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        return outcomes.unjudged(contract, self.wanted)


class Determinism(Unseen):
    contract = "C-DETERM-001"
    wanted = "one run says nothing about repetition: run it twice with one seed, then `brickprof compare A B`"


class EvaluationBuffers:
    """C-EVALBUF-001: evaluation cuts its sequences to what the model was built for, as training does."""

    contract = "C-EVALBUF-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        for rank in story.ranks:
            for event in story.events("exception", rank):
                passed = _open_pass(story, event)
                if passed is not None and _too_long(event):
                    return outcomes.broken(contract, [_overrun(story, event, passed)])
        passes = sum(len(story.events("evaluation", rank)) for rank in story.ranks)
        if not passes:
            return outcomes.unjudged(contract, "no evaluation was seen")
        return outcomes.held(contract, f"{passes:,} evaluations fitted into the model")


def _too_long(event: Event) -> bool:
    """An index or a shape that does not fit."""
    kind, message = str(event.fields.get("type", "")).rpartition(".")[2], str(event.fields.get("message", ""))
    return kind == "IndexError" or bool(_OUT_OF_RANGE.search(message))


def _open_pass(story: Story, event: Event) -> Event | None:
    """The pass without gradients in which the exception came: of its step, with no loss to train on after it."""
    if any(loss.step >= event.step for loss in story.events("loss", event.rank)):
        return None
    found = [passed for passed in story.events("evaluation", event.rank) if passed.step == event.step]
    return found[-1] if found else None


def _overrun(story: Story, event: Event, passed: Event) -> Violation:
    step, trained = event.step, story.steps(event.rank)
    symptom = f"the evaluation at step {step:,} ended in {event.fields.get('type')}: {event.fields.get('message')}"
    finding = f"It ran {trained:,} steps with sequences that fit; only what the evaluation feeds in is too long."
    brick = story.names.show(story.names.brick(event.rank, event.fields.get("brick")))
    proof = (event.id, passed.id)
    where = Because("Where did it happen?", "In a pass without gradients, between two training steps.", brick, proof)
    why = Because("Why does training not fail?", finding, brick, proof)
    return Violation(
        "C-EVALBUF-001", "eval-overrun", Severity.ERROR, symptom, step, step, brick, "block", event.rank, proof,
        {"question": "Why did the run end?"}, "out-of-bounds", 0.88,
        frozenset({"crashed", "exited", "out-of-bounds", "buffer-overflow"}), (where, why), (),
        "Cut the sequences of the evaluation to the model's maximum length, as the training loader does.",
    )  # fmt: skip


RULES = (Determinism, EvaluationBuffers)
