"""Memory that somebody else writes to.

Enters: the story: weights and moments that changed while no update was made, and gradients that are larger than all
that the step's backwards made. Leaves: for C-BUFSIZE-001 a write that ran on into its neighbour; for C-GPUINIT-001 a
first update made with what had been in its buffers before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import Tensor, number
from brickprof.rules.ownership import place, some
from brickprof.rules.story import Story

_FOLLOW = frozenset({
    "nonfinite", "diverged", "spike", "exploding", "not-learning", "plateau", "slow-learning", "optimizer-state",
    "overfitting",
})  # fmt: skip
_WHEN = {
    "backward": ("during the backward pass", "a weight of"),
    "state": ("between two updates", "the optimizer's memory of"),
    "forward": ("during the forward pass", "a weight of"),
}


class Neighbours:
    contract = "C-BUFSIZE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        for rank in story.ranks:
            looks = [event for event in story.events("integrity", rank) if _whole_numbers(event)]
            for when in ("backward", "state", "forward"):
                hit = [event for event in looks if _numbers(event, when)]
                if hit and len(hit) >= min(contract.threshold("hits"), len(looks)):
                    return outcomes.broken(contract, [_overwritten(story, rank, hit, when, len(looks))])
        return outcomes.aside(contract, "no weight was seen to change outside of updates; kernels were not watched")


class FirstUpdate:
    contract = "C-GPUINIT-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        for rank in story.ranks:
            shares = [(event, share) for event in story.events("integrity", rank) if (share := _share(event))]
            if len(shares) < 3 or not _is_first(story, shares[0][0]):
                continue
            later = float(np.max([share for _, share in shares[1:]]))
            if shares[0][1] > contract.threshold("excess") and later < 1.05:
                return outcomes.broken(contract, [_leftovers(rank, shares[0][0], shares[1][0])])
        return outcomes.aside(contract, "no update of accumulated gradients was looked at")


def _numbers(event: Event, when: str) -> list[int]:
    listed: Any = event.fields.get(when)
    return [each for each in listed if isinstance(each, int)] if isinstance(listed, list) else []


def _whole_numbers(event: Event) -> bool:
    """Whether the gradients of that step are finite: a step that is broken already proves nothing."""
    made = number(event.fields.get("made"))
    return made is None or bool(np.isfinite(made))


def _is_first(story: Story, event: Event) -> bool:
    """Whether the update of that step was its optimizer's first."""
    updates = story.events("optimizer", event.rank)
    return bool(updates) and updates[0].step == event.step and updates[0].fields.get("count") == 1


def _share(event: Event) -> float | None:
    made, used = number(event.fields.get("made")), number(event.fields.get("used"))
    return used / made if made and used is not None and np.isfinite(made) and np.isfinite(used) else None


def _overwritten(story: Story, rank: int, hit: list[Event], when: str, looks: int) -> Violation:
    numbers = sorted({each for event in hit for each in _numbers(event, when)})
    struck: list[Tensor] = [story.names.tensor(rank, each) for each in numbers]
    where, (moment, what) = place(story, struck), _WHEN[when]
    names = some(story, struck)
    symptom = f"{names} changed {moment}, when no optimizer ran"
    if when == "state":
        symptom = f"the optimizer's memory of {names} changed {moment}, when no optimizer ran"
    proof = tuple(event.id for event in hit[:3])
    finding = (
        f"In {len(hit)} of {wording.count(looks, 'look')} {what} {where or 'the model'} held other bits afterwards. "
        "A buffer beside it is too small, or was addressed with the wrong sizes."
    )
    first = hit[0].step
    return Violation(
        "C-BUFSIZE-001", "overwritten", Severity.ERROR, symptom, first, hit[min(1, len(hit) - 1)].step, where, "kernel",
        rank, proof, {"question": "Who writes to the weights?"}, "buffer-overflow", 0.85, _FOLLOW,
        (Because("Why do they change without an update?", finding, where, proof),), (),
        "Compare the size of each scratch buffer with what is written into it: a write runs on into its neighbour.",
        experiment="Give that buffer twice its size: the weights should then keep still.", static=True,
    )  # fmt: skip


def _leftovers(rank: int, first: Event, then: Event) -> Violation:
    share, proof = _share(first) or 0.0, (first.id, then.id)
    symptom = f"the first update used gradients {share:.3g} times as large as all that its backwards had made"
    finding = (
        f"{wording.count(int(first.fields.get('backwards') or 0), 'backward')} made gradients of norm "
        f"{first.fields.get('made'):.3g} at most, and the update used {first.fields.get('used'):.3g}. Later updates "
        "use what was made: the sums were cleared after every update and not before the first."
    )
    return Violation(
        "C-GPUINIT-001", "optimizer-state", Severity.ERROR, symptom, first.step, then.step, "", "optimizer", rank,
        proof, {"question": "What was the first update made of?"}, "optimizer-state-uninitialised", 0.85,
        _FOLLOW - {"optimizer-state"}, (Because("Where does the rest come from?", finding, "", proof),), (),
        "Clear the buffers of the accumulated gradients before the first micro-batch (zeros, not empty).", static=True,
    )  # fmt: skip


RULES = (Neighbours, FirstUpdate)
