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
_EVALUATING = re.compile(r"eval|valid|test|score|perplexity|generate", re.I)


class Unseen:
    """An obligation that no record of an ordinary run decides."""

    contract = ""
    wanted = ""

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        return outcomes.unjudged(contract, self.wanted)


class Causal(Unseen):
    contract = "C-CAUSAL-001"
    wanted = "a forward with one future token changed was not run: comparing the two would decide"


class Rotation(Unseen):
    contract = "C-ROPE-001"
    wanted = "a forward with its tokens permuted was not run: comparing the two would decide"


class Determinism(Unseen):
    contract = "C-DETERM-001"
    wanted = "one run says nothing about repetition: run it twice with one seed, then `brickprof compare A B`"


class EvaluationBuffers:
    """C-EVALBUF-001: evaluation cuts its sequences to what the model was built for, as training does."""

    contract = "C-EVALBUF-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        for rank in (*story.ranks, -1):
            for event in story.events("exception", rank):
                if _too_long(event):
                    return outcomes.broken(contract, [_overrun(story, event)])
        passes = sum(len(story.events("evaluation", rank)) for rank in story.ranks)
        if not passes:
            return outcomes.unjudged(contract, "no evaluation was seen")
        return outcomes.held(contract, f"{passes:,} evaluations fitted into the model")


def _frames(event: Event) -> list[str]:
    frames = event.fields.get("frames")
    return [str(frame) for frame in frames] if isinstance(frames, list) else []


def _too_long(event: Event) -> bool:
    """An index or shape error below a function that evaluates."""
    kind, message = str(event.fields.get("type", "")), str(event.fields.get("message", ""))
    indexed = kind in ("IndexError", "RuntimeError", "ValueError", "AssertionError") and _OUT_OF_RANGE.search(message)
    return bool(indexed) and any(_EVALUATING.search(frame) for frame in _frames(event))


def _overrun(story: Story, event: Event) -> Violation:
    rank = event.rank if event.rank in story.ranks else story.ranks[0]
    step = max(event.step, story.steps(rank) - 1) if event.rank < 0 else event.step
    trained = story.steps(rank)
    symptom = f"the evaluation at step {step:,} ends in {event.fields.get('type')}: {event.fields.get('message')}"
    finding = f"Training fitted in {trained:,} steps: only what the evaluation feeds in is too long for the model."
    place = next((frame for frame in reversed(_frames(event)) if _EVALUATING.search(frame)), "")
    why = Because("Why does training not fail?", finding, "", (event.id,))
    where = Because("Where is it fed in?", f"In {place}." if place else "In the evaluation.", "", (event.id,))
    return Violation(
        "C-EVALBUF-001", "eval-overrun", Severity.ERROR, symptom, step, step, "", "block", rank, (event.id,),
        {"question": "Why did the run end?"}, "out-of-bounds", 0.85, frozenset({"crashed", "exited"}), (why, where), (),
        "Cut the sequences of the evaluation to the model's maximum length, as the training loader does.",
    )  # fmt: skip


RULES = (Causal, Rotation, Determinism, EvaluationBuffers)
