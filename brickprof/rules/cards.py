"""What the supervisor saw of the cards, beside the steps that were trained meanwhile.

Enters: ``card`` events of the launch, and the times of the ranks' updates and losses. Leaves: a ``Card`` for each
device that the run used, with its looks inside the training (start-up, compilation and the end left out), and what a
step took while the card was in one state or another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.device import has_device
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

WARM_UP = 10
"""Steps that are not judged: compilation, tuning, first batches."""
_SECOND = 1_000_000_000
_LONGEST, _MOST_LOOKS = 3600, 1_000_000
"""Seconds between two looks, and looks in one line: what is said beyond that is damaged."""


@dataclass(frozen=True, slots=True)
class Looks:
    """One line about a card: an average over some looks."""

    event: Event
    count: int
    begun_ns: int

    def value(self, name: str) -> float | None:
        return number(self.event.fields.get(name))

    def share(self, words: frozenset[str]) -> float | None:
        """The share of its looks in which one of ``words`` held the clocks down; None where that is not told."""
        told = self.event.fields.get("throttled")
        if not isinstance(told, dict):
            return None
        most = max((whole(times) for word, times in told.items() if word in words), default=0)
        return min(1.0, most / self.count)


@dataclass(slots=True)
class Card:
    device: int
    ordinal: int = 0
    """The run's own number for it."""
    about: Event | None = None
    looks: list[Looks] = field(default_factory=list)
    """In order of time, all of them."""
    others: dict[str, list[Event]] = field(default_factory=dict)
    """What happened, by kind: xid, ecc, lost, throttle, process."""

    @property
    def known_by(self) -> str:
        """How it is known that the run uses it: "listed", or "grown"; "" where it only told of an error at the end."""
        return str(self.about.fields.get("known_by", "")) if self.about else ""

    @property
    def alone(self) -> bool:
        """Whether nobody else was seen on it, where others would have been seen: not in a container, not on a slice."""
        others = self.others.get("process") or (self.about is not None and self.about.fields.get("mig"))
        return self.known_by == "listed" and not others

    @property
    def name(self) -> str:
        told = self.about.fields.get("name") if self.about else None
        return str(told) if told else f"card {self.device}"

    def fact(self, name: str) -> float | None:
        return number(self.about.fields.get(name)) if self.about else None

    def during(self, window: tuple[int, int]) -> list[Looks]:
        begun, ended = window
        return [look for look in self.looks if look.begun_ns >= begun and look.event.time_ns <= ended]


def sampled(story: Story, contract: Contract) -> list[Card] | ContractResult:
    """The cards of a run, or why there is nothing to judge."""
    if not story.trained:
        return outcomes.vacuous(contract, "nothing was trained")
    found = [card for card in cards(story) if card.looks]
    if found:
        return found
    absent = "no card was sampled; `brickprof doctor` says what can be read here"
    return outcomes.unjudged(contract, absent if has_device(story) else "no GPU: nothing ran on a card")


def count(looks: Sequence[Looks]) -> int:
    return sum(look.count for look in looks)


def mean(looks: Sequence[Looks], name: str) -> float | None:
    """The mean of a value over all looks that have it."""
    known = [(value, look.count) for look in looks if (value := look.value(name)) is not None]
    return float(np.average([value for value, _ in known], weights=[n for _, n in known])) if known else None


def cards(story: Story) -> list[Card]:
    found: dict[tuple[int, int], Card] = {}
    for event in story.events("card", -1):
        fields = event.fields
        where = whole(fields.get("device")), whole(fields.get("ordinal"))
        card = found.setdefault(where, Card(*where))
        what = str(fields.get("what", ""))
        if what == "device":
            card.about = event
        elif what == "sample":
            card.looks.append(_looks(card, event))
        else:
            card.others.setdefault(what, []).append(event)
    return list(found.values())


def _looks(card: Card, event: Event) -> Looks:
    count = min(max(1, whole(event.fields.get("looks"), 1)), _MOST_LOOKS)
    told = card.fact("interval")
    interval = told if told is not None and 0 < told < _LONGEST else 1.0
    return Looks(event, count, event.time_ns - int(count * interval * _SECOND))


def training(story: Story) -> tuple[int, int] | None:
    """From the first step after warm-up to the last, in nanoseconds; None where so many were not made."""
    begun, ended = [], []
    for rank in story.ranks:
        times = step_ends(story, rank)
        steps = sorted(times)
        if len(steps) > WARM_UP:
            begun.append(times[steps[WARM_UP]])
            ended.append(times[steps[-1]])
    return (min(begun), max(ended)) if begun else None


def step_ends(story: Story, rank: int) -> dict[int, int]:
    """When each step was last heard of: at its update, or else at its loss."""
    found = {event.step: event.time_ns for event in story.events("loss", rank)}
    found.update({event.step: event.time_ns for event in story.events("optimizer", rank)})
    return found


def step_seconds(story: Story, rank: int) -> dict[int, tuple[int, float]]:
    """Of steps whose predecessor is known too: when each ended, and what it took."""
    times = step_ends(story, rank)
    return {
        step: (times[step], (times[step] - times[before]) / _SECOND)
        for before, step in pairwise(sorted(times))
        if step == before + 1 and times[step] > times[before] and step > WARM_UP
    }


def slower(story: Story, looks: list[Looks], is_so: Callable[[Looks], bool | None]) -> tuple[float, float] | None:
    """How much longer a step takes while ``is_so``, and the share of steps of which it is; None where it is not known.

    Looks of which ``is_so`` gives None count as neither.
    """
    so: list[float] = []
    otherwise: list[float] = []
    ends = np.array([look.event.time_ns for look in looks], np.int64)
    for ended, seconds in step_seconds(story, min(story.ranks, default=0)).values():
        place = int(np.searchsorted(ends, ended))
        told = is_so(looks[place]) if place < len(looks) and looks[place].begun_ns <= ended else None
        if told is not None:
            (so if told else otherwise).append(seconds)
    if len(so) < 5 or len(otherwise) < 5:
        return None
    return float(np.median(so) / np.median(otherwise)) - 1.0, len(so) / (len(so) + len(otherwise))
