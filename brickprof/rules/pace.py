"""Slow steps: time that is spent waiting, on data, on another rank, or on many small launches.

Enters: the times of batches, losses and updates; spans of the steps that were timed. Leaves: C-BUDGET-001; of bricks
over a declared budget, ``budgeted`` says which. Machines are noisy, so one slow step is nothing: a share of the time
has to be lost in nearly every step that was looked at. What covers a step is what the step budget of the reports gives
a name: all but what is idle on the host. Where brickprof itself looked is known in part: what it took may cover a
gap in a picture; what decides that a step is covered is what is known to lie between bricks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import outcomes, traffic, wording
from brickprof.rules.budgeted import Budgeted
from brickprof.rules.like_layers import alike
from brickprof.rules.names import whole
from brickprof.rules.replicas import replicas
from brickprof.rules.story import Story
from brickprof.rules.tempo import Pace, Waits, paces, waits
from brickprof.run.step_budget import IDLE, LOOKING, Latest, latest, most_idle, step_budget

_KEPT = 512
Times = deque[tuple[int, int, int]]
"""Of one block: step, nanoseconds, and the span that says so."""
_QUESTION = "What makes the steps slow?"
_LEAST = 3
"""Steps whose parts say where a step goes."""


class _Covered(NamedTuple):
    """How much of the step has a name: if brickprof looked inside of bricks alone, and if outside of them first."""

    least: float
    most: float
    looking: float


class Budget:
    contract = "C-BUDGET-001"
    hears = (Span,)

    def __init__(self) -> None:
        self._bricks: dict[tuple[int, Brick], Times] = {}
        self._latest = Latest()
        self._declared = Budgeted()

    def feed(self, record: Record) -> None:
        if not isinstance(record, Span):
            return
        self._latest.add(record)
        self._declared.feed(record)
        if record.phase == "forward" and record.brick.kind is Kind.BLOCK:
            self._bricks.setdefault((record.rank, record.brick), deque(maxlen=_KEPT)).append(
                (record.step, record.host_ns, record.id)
            )

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        found = [self._loading(story, rank, contract) for rank in story.ranks]
        wrong = [violation for violation in found if violation is not None][:1]
        for other in (_straggler(story, contract), self._launches(story, contract) or self._loops(story, contract)):
            wrong += [other] if other is not None else []
        if (over := self._declared.worst(story, contract)) is not None:
            # Whatever else makes the same brick slow is the reason.
            wrong = [replace(each, explains=each.explains | {over.what}) if each.brick == over.brick else each
                     for each in wrong] + [over]  # fmt: skip
        threshold = f"bricks cover {contract.threshold('covered'):.0%} of the step"
        if wrong:
            return outcomes.broken(contract, wrong, threshold)
        covered = self._covered(story)
        if covered is None:
            return outcomes.unjudged(contract, "too few steps were timed with their forward, backward and update")
        least, most, looking = covered
        told = f"bricks cover {most:.1%} of the step"
        if least >= contract.threshold("covered"):
            told = told if least == most else f"bricks cover at least {least:.1%} of the step"
            return outcomes.held(contract, told, threshold)
        if most >= contract.threshold("covered"):
            told = f"bricks cover {least:.1%} to {most:.1%} of the step"
            why = f"brickprof's own looking takes {looking:.0%} of these steps, and some of it may lie inside bricks"
            return outcomes.unjudged(contract, f"{told}: {why}", told)
        why = "the rest is the script's own code between them; brickprof.brick(name) times a part of it"
        return outcomes.unjudged(contract, f"{told}; {why}", told)

    def _covered(self, story: Story) -> _Covered | None:
        """Of the steps that the reports draw, which the whole run has where it is over."""
        timed = [part for part in (story.run.parts if story.run is not None else ()) if part.rank >= 0]
        part = next((part for part in timed if part.spans[0].num_rows), None)
        spans = latest(part) if part is not None else self._latest.spans()
        budget = step_budget(spans)
        host = budget.get("host", {})
        if budget.get("steps", 0) < _LEAST or not host.get("backward"):
            return None
        return _Covered(1.0 - most_idle(spans), 1.0 - host[IDLE], host.get(LOOKING, 0.0))

    def _loading(self, story: Story, rank: int, contract: Contract) -> Violation | None:
        for each in waits(story, rank):
            if _bound(each, contract):
                return _loader(each, rank, _runs_ahead(story, rank), contract)
        return None

    # -- a brick without matrices that takes longer than those with

    def _launches(self, story: Story, contract: Contract) -> Violation | None:
        for rank in story.ranks:
            times = {brick: seen for (of, brick), seen in self._bricks.items() if of == rank}
            lasted = max((_usual(seen) for brick, seen in times.items() if not brick.path), default=0.0)
            shapes = _shapes(story, rank)
            matrices = [_usual(seen) for brick, seen in times.items() if max(shapes.get(brick.path, (0,))) > 1]
            if not lasted or not matrices:
                continue
            for brick, seen in times.items():
                plain = brick.path and not any(max(dims) > 1 for path, dims in shapes.items() if _inside(path, brick))
                if plain and self._storms(story, rank, brick, seen, lasted, max(matrices), contract):
                    return _storm(brick, seen, lasted, max(matrices), rank, story, contract)
        return None

    def _loops(self, story: Story, contract: Contract) -> Violation | None:
        """Hundreds of equal operations side by side, in most of the graph."""
        for rank in story.ranks:
            looks = story.events("breadth", rank)
            broad = [event for event in looks if _is_broad(event, contract)]
            if len(broad) >= 2 and 2 * len(broad) > len(looks):
                return _loop(broad, self._slowest(rank, story), rank, story, contract)
        return None

    def _slowest(self, rank: int, story: Story) -> Brick | None:
        """The block that takes longest, without the time of the blocks inside it. Of layers that are built alike and
        take about as long, the first in the forward."""
        times = {brick: _usual(seen) for (of, brick), seen in self._bricks.items() if of == rank}
        own = {
            brick: lasted - sum(other for each, other in times.items() if _directly_inside(each, brick, times))
            for brick, lasted in times.items()
        }
        return alike(own, story)[0] if own else None

    @staticmethod
    def _storms(
        story: Story, rank: int, brick: Brick, seen: Times, lasted: float, most: float,
        contract: Contract,
    ) -> bool:  # fmt: skip
        own = _usual(seen)
        elements = _elements(story, rank, brick)
        slow = elements is None or own >= contract.threshold("ns_per_element") * elements
        long = own >= max(contract.threshold("share") * lasted, 4 * most, 1e9 * contract.threshold("block_seconds"))
        return long and slow and len(seen) >= contract.threshold("steps")


def _is_broad(event: Event, contract: Contract) -> bool:
    most, broad, nodes = (whole(event.fields.get(name)) for name in ("most", "broad", "nodes"))
    many = contract.threshold("side_by_side")
    return most >= many and broad >= max(4 * many, 0.5 * nodes)


def _directly_inside(inner: Brick, outer: Brick, times: Mapping[Brick, float]) -> bool:
    def below(a: Brick, b: Brick) -> bool:
        return a.model == b.model and a.path != b.path and (not b.path or a.path.startswith(f"{b.path}."))

    return below(inner, outer) and not any(below(inner, each) and below(each, outer) for each in times)


def _loop(broad: list[Event], slowest: Brick | None, rank: int, story: Story, contract: Contract) -> Violation:
    first, name = broad[0], story.names.show(slowest) if slowest is not None else ""
    placed = next((event for event in broad if isinstance(event.fields.get("brick"), int)), None)
    if placed is not None:
        name = story.names.show(story.names.brick(rank, placed.fields["brick"]))
    most, nodes, op = (first.fields.get(key) for key in ("most", "nodes", "op"))
    symptom = f"the forward makes {most:,} operations {op} side by side, where one would do"
    share = whole(first.fields.get("broad")) / max(whole(nodes), 1)
    text = f"{share:.0%} of {nodes:,} operations of a step stand beside 15 or more of their own kind: a Python loop "
    text += "over rows or groups whose turns do not depend on each other."
    proof = tuple(event.id for event in broad[:2])
    return Violation(
        contract.id, "launch-storm", Severity.WARNING, symptom, first.step, broad[1].step, name, "kernel", rank, proof,
        cause="launch-storm", certainty=0.8, static=True, whys=(Because("Why so many?", text, name, proof),),
        details={"question": _QUESTION, "asked": _QUESTION},
        action="Do all rows (or groups) in one operation: reshape, and let the operation run over that dimension.",
    )  # fmt: skip


def _usual(seen: Times) -> float:
    return float(np.median([lasted for _, lasted, _ in seen]))


def _inside(path: str, brick: Brick) -> bool:
    return path == brick.path or path.startswith(f"{brick.path}.")


def _shapes(story: Story, rank: int) -> dict[str, list[int]]:
    """The dimensions of the parameters that belong to each block itself."""
    found: dict[str, list[int]] = {}
    for event in story.events("tensor", rank):
        shape, path = event.fields.get("shape"), str(event.fields.get("name", "")).rpartition(".")[0]
        if isinstance(shape, list) and event.fields.get("model"):
            found.setdefault(path, []).append(len(shape))
    return found


def _elements(story: Story, rank: int, brick: Brick) -> float | None:
    """How many values the block puts out, where its output was looked at."""
    grid = story.grid("activation", rank)
    places = [place for place, other in enumerate(grid.bricks) if other == brick]
    counts = grid.numel[:, places[0]] if places and len(grid) else np.empty(0)
    known = counts[np.isfinite(counts) & (counts > 0)]
    return float(np.median(known)) if len(known) else None


def _storm(
    brick: Brick, seen: Times, lasted: float, most: float, rank: int, story: Story, contract: Contract
) -> Violation:
    share, own = _usual(seen) / lasted, _usual(seen) / 1e6
    name, first, known = story.names.show(brick), seen[0][0], seen[int(contract.threshold("steps")) - 1][0]
    symptom = f"{name} takes {share:.0%} of the forward ({own:.3g} ms), and multiplies no matrices"
    text = f"The slowest block with a matrix of its own takes {most / 1e6:.3g} ms. What works on values one by one "
    text += "needs less, in a few launches: this is many small ones."
    return Violation(
        contract.id, "launch-storm", Severity.WARNING, symptom, first, known, name, "kernel", rank,
        (f"span:{seen[0][2]}@{rank}",), cause="launch-storm", certainty=0.75, static=True,
        whys=(Because("Why is that too much?", text, name),), details={"question": _QUESTION, "asked": _QUESTION},
        action="Look for a Python loop over rows or positions in it, and do them all in one operation.",
        experiment="Count its launches: brickprof run --level deep SCRIPT",
    )  # fmt: skip


# -- waiting for data


def _bound(each: Waits, contract: Contract) -> bool:
    if len(each.waited) < contract.threshold("steps"):
        return False
    usual = float(np.median(each.waited))
    lost = usual * each.drawn
    mostly = float(np.percentile(each.shares, 25)) >= contract.threshold("wait_share")
    return mostly and usual >= contract.threshold("wait_seconds") and lost >= contract.threshold("lost_seconds")


def _loader(each: Waits, rank: int, ahead: bool, contract: Contract) -> Violation:
    share, usual = float(np.median(each.shares)), float(np.median(each.waited)) * 1e3
    symptom = f"the training waits for data {share:.0%} of the time ({usual:.3g} ms for a batch)"
    first, known = each.events[0], each.events[int(contract.threshold("steps")) - 1]
    evidence = tuple(event.id for event in each.events[:3])
    severity = Severity.INFO if ahead else Severity.WARNING
    return Violation(
        contract.id, "loader-bound", severity, symptom, first.step, known.step, "", "loader", rank,
        evidence, cause="loader-bound", certainty=0.9, static=True,
        details={"question": _QUESTION, "asked": _QUESTION},
        whys=(Because("Where does the time go?", wording.sentence(symptom), "loader", evidence),),
        action="Give the DataLoader workers (num_workers=4, persistent_workers=True), and do once, ahead of the "
        "training, what the dataset does for every sample.",
    )  # fmt: skip


def _runs_ahead(story: Story, rank: int) -> bool:
    """On a device the host may wait for data while the device is busy: then a wait proves nothing.

    Where each step reads a number of the device, or waits for all of it, the device has nothing left to do when the
    host goes on.
    """
    looks = [
        whole(event.fields.get("device"))
        + sum(count for _, kind, count, _ in traffic.waits(event) if kind == traffic.WHOLE_DEVICE)
        for event in story.events("syncs", rank)
    ]
    if looks and float(np.median(looks)) >= 1:
        return False
    return any(str(event.fields.get("device", "")).startswith("cuda") for event in story.events("tensor", rank))


# -- waiting for a rank


def _straggler(story: Story, contract: Contract) -> Violation | None:
    found = replicas(story)
    if isinstance(found, str) or not found.together:
        return None
    timed = {rank: paces(story, rank) for rank in found.ranks}
    common = sorted(set.intersection(*(set(steps) for steps in timed.values())))[2:]
    if len(common) < contract.threshold("steps"):
        return None
    alone = np.array([[timed[rank][step].alone for step in common] for rank in found.ranks])
    together = np.array([[timed[rank][step].together for step in common] for rank in found.ranks])
    slowest = int(np.argmax(np.median(alone, axis=1)))
    rest = [place for place in range(len(found.ranks)) if place != slowest]
    behind = alone[slowest] - alone[rest].max(axis=0)
    waited = together[rest].min(axis=0) - together[slowest]
    whole = (alone + together).max(axis=0)
    lost = (behind >= contract.threshold("straggle_share") * whole) & (waited >= 0.5 * behind) & (behind >= 5e-3)
    if lost.mean() < 0.8:
        return None
    share = float(np.median(behind / whole))
    rank, step = found.ranks[slowest], int(common[int(np.argmax(lost))])
    return _late(
        rank, step, common[int(contract.threshold("steps")) - 1], float(np.median(behind)), share, timed, contract
    )


def _late(
    rank: int, step: int, known: int, behind: float, share: float, timed: dict[int, dict[int, Pace]], contract: Contract
) -> Violation:
    symptom = f"the other ranks wait for rank {rank}: {behind * 1e3:.3g} ms in every step, {share:.0%} of it"
    evidence = tuple(steps[step].evidence for steps in timed.values())[:4]
    pace = timed[rank][step]
    text = f"In step {step:,} rank {rank} began its backward {pace.alone * 1e3:.3g} ms after its last update; then the "
    text += f"backward took {pace.together * 1e3:.3g} ms, and longer on the others, which waited."
    return Violation(
        contract.id, "straggler", Severity.WARNING, symptom, step, known, "", "step", rank, evidence, cause="straggler",
        certainty=0.9, explains=frozenset({"slow"}), whys=(Because(_QUESTION, text, "", evidence),),
        details={"question": _QUESTION, "asked": _QUESTION},
        action=f"Look at what rank {rank} does between its steps: its data, its disk, logging, a slower machine.",
    )  # fmt: skip


RULE = Budget
