"""Why a loss jumped: what moved first.

Enters: the symptom ``spike`` with the step of the jump. Leaves: loss-spike-data (the batch of that step is unlike all
others, the next one is fine) or loss-spike-optimizer (the rate, the gradients or the update had moved in the steps
before).
"""

from __future__ import annotations

import warnings

import numpy as np

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import again, wording
from brickprof.rules.names import number
from brickprof.rules.story import Story, Track

_UNLIKE = 4.0
_BACK = 3
_FAR = 20.0


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.what != "spike" or violation.mechanism:
        return []
    data, optimizer = _data(violation, case.story), _optimizer(violation, case.story)
    for cause, other in ((data, optimizer), (optimizer, data)):
        for fact in other.support:
            if fact.weight >= 2:
                cause.contradicts(fact.text, 1, *fact.evidence)
        _told(cause)
    return [data, optimizer]


def _told(cause: Hypothesis) -> None:
    for question, fact in zip(("What moved first?", "What else speaks for it?"), cause.support, strict=False):
        cause.whys.append(Why(question, wording.sentence(fact.text), "", fact.evidence))


def _data(violation: Violation, story: Story) -> Hypothesis:
    cause = Hypothesis("loss-spike-data")
    cause.action = "Look at the samples of that batch; clip or drop outliers before they reach the model."
    rank, at = violation.rank, int(violation.details["at"])
    cause.next_experiment = again.looking_at(story, rank, at)
    looked = False
    for name in ("absmax", "std"):
        track = story.track("batch", name, rank).finite()
        track = track if track.at(at) is not None else story.track("targets", name, rank).finite()
        found = _stands_out(track, at)
        looked = looked or track.at(at) is not None
        if found is not None:
            value, usual, evidence = found
            text = f"the batch of step {at:,} has a {_NAMES[name]} of {value:.3g}, others {usual:.3g}"
            cause.supports(text, 3, evidence)
            break
    else:
        if looked:
            cause.contradicts(f"the batch of step {at:,} looks like the others", 1.5)
        else:
            cause.lacks(f"the inputs of step {at:,}")
    _same_batch(cause, violation, story)
    _calm_before(cause, story, rank, at)
    if block := violation.details.get("block"):
        text = f"after {block} such steps the loss was back from one step to the next: data changes so, weights do not"
        cause.supports(text, 3, *violation.evidence)
    back, peak = violation.details.get("back"), float(violation.details.get("peak") or 0.0)
    if back in (1, 2) and peak >= _FAR * abs(float(violation.details.get("before") or 0.0)) > 0:
        text = (
            f"the loss was back after {wording.count(back, 'step')}: weights that were damaged so do not heal at once"
        )
        cause.supports(text, 2.5, *violation.evidence)
    if violation.details.get("recovered"):
        cause.supports("the loss came back by itself, so that the weights before it were good", 1, *violation.evidence)
    return cause


_NAMES = {"absmax": "largest value", "std": "standard deviation"}


def _calm_before(cause: Hypothesis, story: Story, rank: int, at: int) -> None:
    """Nothing that the optimizer does had moved before the loss did."""
    norms, rates = story.norms(rank).finite(), story.rates(rank)
    near = np.flatnonzero((norms.steps < at) & (norms.steps >= at - _BACK))
    if len(near) and _before(norms, at, _UNLIKE) is None and _before(rates, at, 1.5) is None:
        text = f"gradients and rate were as usual until step {at - 1:,}: the loss moved first"
        cause.supports(text, 1.5, norms.evidence(int(near[-1])))


def _same_batch(cause: Hypothesis, violation: Violation, story: Story) -> None:
    """The jumps come with one batch of the epoch."""
    steps = set(violation.details.get("steps", ()))
    drawn = [event for event in story.events("batch", violation.rank) if event.step in steps]
    prints = [event.fields.get("fingerprint") for event in drawn if event.fields.get("fingerprint")]
    if len(prints) >= 3 and len(set(prints)) == 1:
        cause.supports(f"all {len(prints):,} jumps come with the same batch", 3, *(e.id for e in drawn[:3]))


def _optimizer(violation: Violation, story: Story) -> Hypothesis:
    cause = Hypothesis("loss-spike-optimizer")
    cause.action = "Clip gradients (clip_grad_norm_) and lower or warm up the learning rate."
    rank, at = violation.rank, int(violation.details["at"])
    cause.next_experiment = again.looking_at(story, rank, at)
    rates, norms = story.rates(rank), story.norms(rank).finite()
    risen = _before(rates, at, 1.5)
    if risen is not None:
        text = (
            f"the learning rate went from {risen[1]:.3g} to {risen[0]:.3g} in step {risen[3]:,}, before the loss moved"
        )
        cause.supports(text, 3, risen[2])
    grown = _before(norms, at, _UNLIKE)
    if grown is not None:
        text = (
            f"the gradient norm was {grown[0]:.3g} in step {grown[3]:,}, before the loss moved; usual is {grown[1]:.3g}"
        )
        cause.supports(text, 2, grown[2])
    elif norms.at(at) is not None:
        cause.contradicts("gradients were as usual until the loss moved", 1)
    moved = _before(_updates(story, rank), at, _UNLIKE)
    if moved is not None:
        text = f"the update of step {moved[3]:,} was {moved[0] / moved[1]:.3g} times the usual one"
        cause.supports(text, 2.5, _update(story, rank, moved[3]))
    if not violation.details.get("recovered"):
        cause.supports("the loss did not come back: the weights had been moved", 1, *violation.evidence)
    return cause


def _updates(story: Story, rank: int) -> Track:
    """The median size of the updates against their weights, a number for each look."""
    grid = story.grid("update", rank)
    if not len(grid):
        return Track(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a look at which no update was measured
        middle = np.nanmedian(np.where(np.isfinite(grid.ratio), grid.ratio, np.nan), axis=1)
    return Track(grid.steps, middle, np.zeros(len(grid.steps), np.int64), rank).finite()


def _update(story: Story, rank: int, step: int) -> str:
    """The record of one tensor's update in ``step``."""
    grid = story.grid("update", rank)
    look = int(np.flatnonzero(grid.steps == step)[0])
    return grid.evidence(look, int(np.flatnonzero(np.isfinite(grid.ratio[look]))[0]))


def _stands_out(track: Track, at: int) -> tuple[float, float, str] | None:
    value = track.at(at)
    others = track.values[track.steps != at]
    if value is None or len(others) < 4:
        return None
    usual = float(np.median(others))
    if value <= _UNLIKE * max(usual, 1e-12) or value <= 1.5 * float(np.quantile(others, 0.98)):
        return None
    place = int(np.flatnonzero(track.steps == at)[0])
    return value, usual, track.evidence(place)


def _before(track: Track, at: int, factor: float) -> tuple[float, float, str, int] | None:
    """A value of the steps just before ``at`` that is ``factor`` times what was usual before them."""
    near = np.flatnonzero((track.steps < at) & (track.steps >= at - _BACK))
    usual = track.values[track.steps < at - _BACK][-64:]
    if not len(near) or len(usual) < 3:
        return None
    place = int(near[np.argmax(track.values[near])])
    middle = number(float(np.median(usual))) or 0.0
    if middle <= 0 or float(track.values[place]) <= factor * middle:
        return None
    return float(track.values[place]), middle, track.evidence(place), int(track.steps[place])
