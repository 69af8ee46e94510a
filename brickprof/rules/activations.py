"""C-ACT-001: units answer to their input.

Enters: the story: the share of units of each activation that are zero, or at their bounds, for every sample of a batch.
Leaves: layers that are all but dead or saturated in every look; some dead units are usual and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-ACT-001"
_FOLLOWS = frozenset({"not-learning", "plateau", "no-gradient", "vanishing", "diverged", "spike"})
_KINDS = {"dead": "dead-activations", "saturated": "saturated-activations"}
_ACTIONS = {
    "dead": "Lower the learning rate or the scale of the inputs, check the bias, or use LeakyReLU or GELU.",
    "saturated": "Scale the inputs and the initial weights down (Xavier), or normalise before the activation.",
}
_ALL = 0.999
_BOUNDED = ("tanh", "sigmoid", "hardtanh", "hardsigmoid", "softsign")


class Activations:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        looks = sum(len(story.events("units", rank)) for rank in story.ranks)
        if not looks:
            return outcomes.unjudged(contract, "no activation was looked at")
        found = [layer for rank in story.ranks for layer in _layers(story, rank, contract)]
        if not found:
            return outcomes.held(contract, f"{wording.count(looks, 'look')} at activations that answer to their input")
        # The first in the forward pass: what comes after it may only follow from it.
        return outcomes.broken(contract, [min(found, key=lambda layer: layer[0])[1]])


def _layers(story: Story, rank: int, contract: Contract) -> Iterator[tuple[tuple[int, int], Violation]]:
    layers: dict[str, list[Event]] = {}
    for event in story.events("units", rank):
        brick = story.names.brick(rank, event.fields.get("brick"))
        layers.setdefault(story.names.show(brick) or str(event.fields.get("brick", "")), []).append(event)
    for place, (name, events) in enumerate(layers.items()):
        last = place == len(layers) - 1 and len(layers) > 1
        for kind in _KINDS:
            violation = _violation(story, rank, name, events, kind, contract)
            # An output may come to lie at its bounds by learning; it does not begin there.
            if violation is not None and not (last and kind == "saturated" and not violation.static):
                yield (violation.first_step, place), violation


def _violation(
    story: Story, rank: int, name: str, events: list[Event], kind: str, contract: Contract
) -> Violation | None:
    activation = str(events[0].fields.get("activation") or "")
    if kind == "saturated" and activation and activation.lower() not in _BOUNDED:
        return None
    shares = [(event, share) for event in events if (share := number(event.fields.get(kind))) is not None]
    wide = [pair for pair in shares if whole(pair[0].fields.get("units"), 8) >= contract.threshold("units")]
    onset = _onset([share >= contract.threshold(kind) for _, share in wide])
    # A layer in which nothing moves at all needs one look less.
    wanted = contract.threshold("looks") - (onset is not None and wide[onset][1] >= _ALL)
    if onset is None or len(wide) - onset < wanted:
        return None
    return _told(story, rank, name, activation, kind, wide, onset, contract)


def _onset(over: list[bool]) -> int | None:
    """From which look on the share stays over its bound."""
    if not over or not over[-1]:
        return None
    place = len(over) - 1
    while place > 0 and over[place - 1]:
        place -= 1
    return place


def _told(
    story: Story, rank: int, name: str, activation: str, kind: str, looks: list[tuple[Event, float]], onset: int,
    contract: Contract,
) -> Violation:  # fmt: skip
    event = looks[onset][0]
    latest = looks[-1][1]
    state = "are 0 for every sample" if kind == "dead" else "are at their bounds for every sample"
    since = "from the first look on" if onset == 0 else f"since step {event.step:,}"
    units = whole(event.fields.get("units"))
    symptom = f"{latest * 100:.0f} % of {f'the {units:,} ' if units else 'all '}units of {name} {state}, {since}"
    before = "" if onset == 0 else f" At step {looks[onset - 1][0].step:,} it was {looks[onset - 1][1] * 100:.0f} %."
    flat = f"{activation or 'The activation'} is flat where they stand: its derivative is zero, and they stay there."
    finding = f"{flat}{before}"
    proof = tuple(e.id for e, _ in (looks[onset], looks[-1]))
    detected = looks[min(onset + int(contract.threshold("looks")) - 1, len(looks) - 1)][0].step
    severity = Severity.ERROR if latest >= _ALL else Severity.WARNING
    return Violation(
        CONTRACT, f"{kind}-units", severity, symptom, event.step, detected, name, "block", rank, proof,
        {"question": f"Do the units of {name} still answer?", "asked": "Do the units still answer to their input?"},
        _KINDS[kind], 0.88 if onset == 0 else 0.65, _FOLLOWS,
        (Because("Why does it not come back?", finding, name, proof),), (), _ACTIONS[kind],
        static=onset == 0,
    )  # fmt: skip


RULE = Activations
