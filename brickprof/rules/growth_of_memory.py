"""Memory that grows with every step.

Enters: resident and device memory over the run, and how many losses of earlier steps are still alive with their graphs.
Leaves: C-MEMSTABLE-001. Imports, first batches, caches and workers grow once and stop: only growth that goes on to the
end counts, and kept graphs decide.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.sanitizer import SANITIZED, sanitized
from brickprof.rules.story import Story, Track

_ENDS = frozenset({"out-of-memory", "killed", "memory-growth", "slow"})
_QUESTION = "Why does memory grow?"
_MOST = 256


class Growth(NamedTuple):
    """Memory after warm-up: bytes a step, and in all."""

    track: Track
    slope: float
    gained: float
    steady: bool
    """Whether it grew in every part of the run, the last included."""
    linear: float
    """How much of the change a straight line over steps explains: 1 where every step adds the same."""
    began: int
    """The first step looked at."""


class Stable:
    contract = "C-MEMSTABLE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        threshold = "no growth that goes on after warm-up"
        measured = not sanitized(story)
        for rank in story.ranks:
            leak = _kept(story, rank, contract)
            if leak is None and measured:
                leak = _device(story, rank, contract) or _resident(story, rank, contract)
            if leak is not None:
                return outcomes.broken(contract, [leak], threshold)
        if not measured:
            return outcomes.unjudged(contract, SANITIZED)
        grown = [found for rank in story.ranks if (found := growth(story.track("memory", "rss", rank))) is not None]
        if not grown:
            return outcomes.unjudged(contract, "too few looks at memory: one a second is written")
        most = max(grown, key=lambda found: found.gained)
        return outcomes.held(contract, f"{wording.size(max(0.0, most.gained))} gained after warm-up", threshold)


def growth(track: Track, least: int = 5) -> Growth | None:
    """The growth of a track after its first quarter; None where there are too few looks."""
    found = track.finite()
    if len(found) < least:
        return None
    later = found.where(np.arange(len(found)) >= len(found) // 4)
    thin = np.unique(np.linspace(0, len(later) - 1, min(len(later), _MOST)).astype(int))
    slope = _theil_sen(later.steps[thin].astype(np.float64), later.values[thin])
    quarters = [float(np.median(part)) for part in np.array_split(later.values, 4)]
    gained = quarters[-1] - quarters[0]
    parts = np.diff(quarters)
    steady = bool((parts > 0).all() and parts[-1] > 0.4 * parts.max())
    return Growth(later, slope, gained, steady, _straight(later), int(found.steps[0]))


def _straight(track: Track) -> float:
    x, y = track.steps.astype(np.float64), track.values
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def _theil_sen(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """The median of the slopes between all points: single jumps do not move it."""
    across, up = x[None, :] - x[:, None], y[None, :] - y[:, None]
    ahead = across > 0
    return float(np.median(up[ahead] / across[ahead])) if ahead.any() else 0.0


# -- graphs that are kept alive


def _kept(story: Story, rank: int, contract: Contract) -> Violation | None:
    looks = [event for event in story.events("retained", rank) if number(event.fields.get("graphs")) is not None]
    if len(looks) < 2:
        return None
    first, last = looks[0], looks[-1]
    graphs = [whole(event.fields["graphs"]) for event in looks]
    between = last.step - first.step
    rises = sum(later > earlier for earlier, later in pairwise(graphs))
    never_falls = all(later >= earlier for earlier, later in pairwise(graphs))
    enough = graphs[-1] >= contract.threshold("graphs") and graphs[-1] - graphs[0] >= 0.5 * between
    if not (enough and never_falls and rises >= 0.8 * (len(graphs) - 1)):
        return None
    known = next(event for event in looks if whole(event.fields["graphs"]) >= contract.threshold("graphs"))
    return _leak(story, first, known, last, contract)


def _leak(story: Story, first: Event, known: Event, last: Event, contract: Contract) -> Violation:
    graphs = whole(last.fields["graphs"])
    begun = whole(last.fields.get("since"), first.step)
    held = growth(story.track("memory", "rss", last.rank))
    grew = held is not None and held.slope > 0 and held.steady
    size = f"; resident memory grew {wording.size(held.slope)} a step" if held is not None and grew else ""
    symptom = f"{graphs:,} losses of earlier steps are still alive with their graphs in step {last.step:,}{size}"
    evidence = (first.id, last.id)
    text = "A tensor that keeps its grad_fn keeps every activation of its step: a list or a sum of losses does."
    return Violation(
        contract.id, "memory-growth", Severity.ERROR, symptom, begun, known.step, rank=last.rank, evidence=evidence,
        cause="memory-leak", certainty=0.95, explains=_ENDS, static=begun <= 1,
        whys=(Because(_QUESTION, text, "", evidence),), details={"question": _QUESTION, "asked": _QUESTION},
        action="Keep numbers, not tensors: losses.append(loss.item()), total += loss.detach().",
    )  # fmt: skip


# -- growth alone


def _device(story: Story, rank: int, contract: Contract) -> Violation | None:
    found = growth(story.track("memory", "device_allocated", rank), int(contract.threshold("looks")))
    if found is None or not _large(found, contract) or not found.steady:
        return None
    return _grows(found, "device memory", rank, 0.85, Severity.WARNING, contract)


def _resident(story: Story, rank: int, contract: Contract) -> Violation | None:
    """Resident memory alone proves little, for caches grow too; the same amount in every step proves more."""
    found = growth(story.track("memory", "rss", rank), int(contract.threshold("looks")))
    if found is None or not _large(found, contract) or not found.steady:
        return None
    limit = _limit(story)
    filling = limit is not None and found.gained >= contract.threshold("share_of_limit") * limit
    grave = filling or found.linear >= contract.threshold("linear")
    return _grows(found, "resident memory", rank, 0.7, Severity.WARNING if grave else Severity.INFO, contract)


def _large(found: Growth, contract: Contract) -> bool:
    return found.slope > 0 and found.gained >= _floor(found, contract)


def _floor(found: Growth, contract: Contract) -> float:
    """What may be gained without a word."""
    return max(contract.threshold("bytes"), contract.threshold("grown") * float(found.track.values[0]))


def _limit(story: Story) -> float | None:
    start = story.first("start", -1)
    limits = [number(start.fields.get(name)) for name in ("memory_limit", "memory_total")] if start else []
    return min((limit for limit in limits if limit), default=None)


def _grows(found: Growth, what: str, rank: int, certainty: float, severity: Severity, contract: Contract) -> Violation:
    track = found.track
    enough = track.values - track.values[0] >= _floor(found, contract)
    known = int(track.steps[int(np.argmax(enough))]) if enough.any() else int(track.steps[-1])
    sizes = f"{wording.size(float(track.values[0]))} to {wording.size(float(track.values[-1]))}"
    symptom = f"{what} grew from {sizes}, {wording.size(found.slope)} a step, and did not stop"
    evidence = (track.evidence(0), track.evidence(len(track) - 1))
    return Violation(
        contract.id, "memory-growth", severity, symptom, found.began, known, rank=rank, evidence=evidence,
        cause="memory-leak", certainty=certainty, explains=_ENDS,
        details={"question": _QUESTION, "asked": _QUESTION},
        action="Look for what is kept from step to step: tensors in lists, hooks, caches, a loss with its graph.",
        experiment="See which tensors live on: brickprof run --level deep SCRIPT",
    )  # fmt: skip


RULE = Stable
