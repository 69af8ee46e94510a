"""The loss as a curve: where it started, how noisy it is, where it stands, and what guessing would cost.

Enters: the story of one rank. Leaves: a ``Curve`` of its finite losses, one a step, and the ``Chance`` level of its
loss function where that is known. A curve knows when its level says nothing: several losses that work against each
other, losses of both signs.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from brickprof.records import Event
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story
from brickprof.rules.story.tracks import Floats, Track

SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a bell curve."""
_KEPT: weakref.WeakKeyDictionary[Story, dict[int, tuple[tuple[int, int], Curve]]] = weakref.WeakKeyDictionary()
_MOST_CALLS = 256
_CLASSED = ("cross_entropy", "nll")
_BINARY = ("bce", "bce_logits")
_SETTLED = 1e-3


class Chance(NamedTuple):
    """The loss of a model that knows nothing but the number of classes."""

    level: float
    classes: int
    evidence: str
    lowest: float = 0.0
    """What knowing how often each class comes, and nothing else, would cost."""


@dataclass(frozen=True, slots=True)
class Curve:
    track: Track
    several: bool
    """Several losses in a step (adversaries, parts that are trained in turns): their mean has no meaning."""
    phases: bool
    """Different steps have different losses."""
    broken: int
    """How many losses were not finite."""

    def __len__(self) -> int:
        return len(self.track)

    @property
    def values(self) -> Floats:
        return self.track.values

    @property
    def signed(self) -> bool:
        return bool(np.any(self.track.values < 0))

    @property
    def comparable(self) -> bool:
        """Whether a lower loss is a better one, and its distance to zero means something."""
        return not (self.several or self.signed)

    @property
    def why_not(self) -> str:
        return "several losses in a step" if self.several else "losses below zero" if self.signed else ""

    @property
    def start(self) -> float:
        """The level of the first few steps."""
        return float(np.median(self.values[: min(5, max(1, len(self) // 3))]))

    @property
    def noise(self) -> float:
        """The standard deviation from step to step, whatever the trend."""
        return jitter(self.values)

    def tail(self, count: int) -> float:
        return float(np.median(self.values[-max(1, count) :]))

    def step(self, place: int) -> int:
        return int(self.track.steps[place])


def curve(story: Story, rank: int) -> Curve:
    """The curve so far; several rules ask for it, so that it is kept until more is known."""
    known = (len(story.events("loss", rank)), len(story.events("criterion", rank)))
    kept = _KEPT.setdefault(story, {})
    if rank not in kept or kept[rank][0] != known:
        kept[rank] = known, _curve(story, rank)
    return kept[rank][1]


def _curve(story: Story, rank: int) -> Curve:
    losses = story.losses(rank)
    finite = losses.finite()
    several, phases = _kinds(story.events("loss", rank), story.names.optimizers(rank))
    phases = phases or bool(beginnings(story, rank))
    return Curve(finite, several or _opponents(story, rank), phases, len(losses) - len(finite))


def beginnings(story: Story, rank: int) -> list[int]:
    """The steps at which another training began: an optimizer that was built when others had done their work."""
    made = [event.step for event in story.events("optimizer_created", rank)]
    if not any(step > 0 for step in made):
        return []
    last: dict[Any, int] = {}
    for event in story.events("optimizer", rank):
        last[event.fields.get("optimizer")] = event.step
    ends = sorted(last.values())[:-1]
    return [step for step in made if step > 0 and any(end <= step for end in ends)]


def stage(story: Story, rank: int) -> tuple[int, int]:
    """The step at which the last training of this run began, and its optimizer: (0, 0) where there is only one."""
    begun = beginnings(story, rank)
    if not begun:
        return 0, 0
    since = max(begun)
    numbers = [whole(e.fields.get("optimizer")) for e in story.events("optimizer_created", rank) if e.step == since]
    others = [e.step for e in story.events("optimizer", rank) if whole(e.fields.get("optimizer")) not in numbers]
    return (since, max(numbers)) if max(others, default=0) < since else (0, 0)


def jitter(values: Floats) -> float:
    """Robust: the median deviation of the differences."""
    if len(values) < 3:
        return 0.0
    differences = np.diff(values)
    return float(SIGMA * np.median(np.abs(differences - np.median(differences))) / math.sqrt(2))


def spread(values: Floats) -> float:
    """Robust standard deviation around the median."""
    return float(SIGMA * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def slope(values: Floats) -> float:
    """How many standard errors the straight line through ``values`` falls (below zero) or rises."""
    count = len(values)
    if count < 8:
        return 0.0
    place = np.arange(count) - (count - 1) / 2
    tilt = float(place @ values) / float(place @ place)
    rest = values - values.mean() - tilt * place
    error = math.sqrt(float(rest @ rest) / (count - 2) / float(place @ place))
    return tilt / error if error > 0 else math.copysign(math.inf, tilt) if tilt else 0.0


def smooth(values: Floats, window: int) -> Floats:
    """Means of ``window`` neighbours; shorter than ``values`` by ``window - 1``."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    made: Floats = (sums[window:] - sums[:-window]) / window
    return made


def _kinds(events: list[Event], optimizers: int) -> tuple[bool, bool]:
    sites: dict[int, set[str]] = {}
    for event, site in [(event, site) for event in events if (site := event.fields.get("site"))]:
        sites.setdefault(event.step, set()).add(str(site))
    many = sum(1 for found in sites.values() if len(found) > 1)
    counts = Counter(event.step for event in events) if optimizers > 1 else Counter()
    in_turns = optimizers > 1 and sum(1 for count in counts.values() if count > 1) * 2 > len(counts)
    every = set().union(*sites.values()) if sites else set()
    return many * 4 > len(sites) > 0 or in_turns, len(every) > 1


def _opponents(story: Story, rank: int) -> bool:
    """Whether one step asks the same kind of question with opposite answers, as adversaries do."""
    answers: dict[tuple[int, str], set[float]] = {}
    for event in training_calls(story, rank):
        target = event.fields.get("target")
        if not isinstance(target, dict) or target.get("min") is None or target.get("min") != target.get("max"):
            continue
        answers.setdefault((event.step, str(event.fields.get("name"))), set()).add(float(target["min"]))
    return sum(1 for found in answers.values() if len(found) > 1) >= 2


def training_calls(story: Story, rank: int) -> list[Event]:
    """The calls of a loss function that were differentiated."""
    return [event for event in story.events("criterion", rank) if event.fields.get("grad") is not False]


def evaluations(story: Story, rank: int) -> Track:
    """The loss of each evaluation: passes without gradients that are no part of every step."""
    if any("frequent" in event.fields for event in story.events("evaluation", rank)):
        return story.track("evaluation", "loss", rank, frequent=False).finite()
    return story.track("evaluation", "loss", rank).finite()


def chance(story: Story, rank: int, since: int = 0) -> Chance | None:
    """What guessing costs: ln(classes), where the loss is seen to be a cross-entropy (or its share of a step)."""
    trained = [event for event in training_calls(story, rank) if event.step >= since]
    calls = [event for event in trained if event.fields.get("name") in _CLASSED]
    calls = calls or _yes_or_no(trained)
    calls = calls[:: max(1, len(calls) // _MOST_CALLS)]
    return _called(story, rank, calls) if calls else None if since else _implied(story, rank)


def _yes_or_no(trained: list[Event]) -> list[Event]:
    """The calls of a binary cross-entropy, where every target that was looked at is 0 or 1, and both are met."""
    calls = [event for event in trained if event.fields.get("name") in _BINARY]
    targets = [target for event in calls if isinstance(target := event.fields.get("target"), dict)]
    mixed = [target for target in targets if target.get("entropy") is not None]
    return calls if len(mixed) >= 3 and len(mixed) == len(targets) else []


def _called(story: Story, rank: int, calls: list[Event]) -> Chance | None:
    classes = {2 if event.fields.get("name") in _BINARY else whole(event.fields.get("classes")) for event in calls}
    if len(classes) != 1 or min(classes) < 2:
        return None
    losses = story.losses(rank)
    shares = []
    for event in calls:
        value, loss = number(event.fields.get("value")), losses.at(event.step)
        if value and loss is not None and math.isfinite(value) and math.isfinite(loss) and abs(value) > 1e-6:
            rows = whole(event.fields.get("rows"), 1) if event.fields.get("reduction") == "sum" else 1
            shares.append(loss / value * rows)
    if not shares:
        return None
    share = float(np.median(shares))
    steady = spread(np.asarray(shares)) <= 0.05 * abs(share)
    found = min(classes)
    level = share * math.log(found)
    lowest = min(level, share * _marginal(calls, math.log(found)))
    if lowest < _SETTLED * level:
        lowest = level  # the answer stands in the same place by design (the first of many): to know that is no skill
    return Chance(level, found, calls[0].id, lowest) if steady and share > _SETTLED else None


def _marginal(calls: list[Event], otherwise: float) -> float:
    """The entropy of the targets, as far as they were looked at."""
    targets = [event.fields.get("target") for event in calls]
    known = [number(target.get("entropy")) for target in targets if isinstance(target, dict)]
    seen = [entropy for entropy in known if entropy is not None]
    return float(np.median(seen)) if len(seen) >= 3 else otherwise


def _implied(story: Story, rank: int) -> Chance | None:
    """Without the calls themselves: the loss is a log-likelihood, and the last matrix has a row for each class."""
    told = [event for event in story.events("loss", rank) if event.fields.get("grad_fn")]
    if not told or any(event.fields["grad_fn"] != "NllLossBackward0" for event in told):
        return None
    matrices = [event for event in story.events("tensor", rank) if _is_matrix(event)]
    models = {event.fields.get("model") for event in matrices}
    if not matrices or len(models) != 1:
        return None
    classes = whole(matrices[-1].fields["shape"][0])
    return Chance(math.log(classes), classes, matrices[-1].id, math.log(classes)) if classes >= 2 else None


def _is_matrix(event: Event) -> bool:
    shape, fields = event.fields.get("shape"), event.fields
    owned = bool(fields.get("model")) and bool(fields.get("trainable", True))
    return isinstance(shape, list) and len(shape) == 2 and owned
