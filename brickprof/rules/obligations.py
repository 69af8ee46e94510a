"""Contracts of the user's own: the formulas of their obligations, measured.

Enters: a contract that ``brickprof.contracts.own`` has read, the story, and what the other contracts came to. Leaves:
one result for each contract. Every obligation has to hold for a PASS: one that nothing was measured for is
NOT_EVALUATED, and says what is missing; a value that is no number keeps no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from brickprof.bricks import Brick
from brickprof.contracts import own
from brickprof.contracts.formulas import IN_WORDS, Formula
from brickprof.contracts.schema import Contract, Obligation
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules.divergence import moved
from brickprof.rules.handling import Look, bound_of, clip_norm, late, looks
from brickprof.rules.names import number, whole
from brickprof.rules.story import Grid, Story, Track

WHAT = "obligation"
_WORST_FIRST = (Verdict.FAIL, Verdict.NOT_EVALUATED, Verdict.VACUOUS, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over steps on one rank; ``evidence[i]`` is the record behind ``values[i]``."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    evidence: Sequence[str]
    rank: int = 0

    def __len__(self) -> int:
        return len(self.steps)


Measure = Callable[[Story, int, str], Series]


def result(contract: Contract, story: Story, others: Mapping[str, ContractResult]) -> ContractResult:
    """What ``contract`` comes to: as bad as its worst obligation."""
    told = [_judged(contract, place, story, others) for place in range(len(contract.obligations))]
    verdict = next(each for each in _WORST_FIRST if any(one.verdict is each for one in told))
    leading = [one for one in told if one.verdict is verdict]
    violations = tuple(violation for one in told for violation in one.violations)
    return ContractResult(
        contract.id, verdict,
        "; ".join(dict.fromkeys(one.observed for one in leading if one.observed)),
        "; ".join(dict.fromkeys(one.threshold for one in leading)),
        "; ".join(dict.fromkeys(one.why for one in leading if one.why)), violations,
    )  # fmt: skip


def _judged(contract: Contract, place: int, story: Story, others: Mapping[str, ContractResult]) -> ContractResult:
    formula = own.formula(contract, place)
    if formula.contract:
        return _holding(contract, formula, others)
    bound = formula.bound(dict(contract.thresholds))
    threshold = f"{formula.aggregate}({formula.noun}) {formula.relation} {bound:g}"
    blank = ContractResult(contract.id, Verdict.VACUOUS, "", threshold, "nothing was trained")
    if not story.trained:
        return blank
    found = measured(story, formula.quantity, formula.brick)
    if not found:
        return replace(blank, verdict=Verdict.NOT_EVALUATED, why=f"{formula.noun} was not measured in this run")
    obligation = contract.obligations[place]
    told = [_read(formula, series) for series in found]
    broken = [each for each in told if not formula.keeps(each.value, bound, obligation.tolerance)]
    worst = _worst(formula, broken or told)
    observed = f"{formula.noun} {_shown(worst.value)} (step {worst.step:,})"
    if not broken:
        return ContractResult(contract.id, Verdict.PASS, observed, threshold)
    violation = _violation(contract, obligation, formula, bound, broken)
    return ContractResult(contract.id, Verdict.FAIL, observed, threshold, violation.symptom, (violation,))


def _holding(contract: Contract, formula: Formula, others: Mapping[str, ContractResult]) -> ContractResult:
    """Another contract, whose own violations say what happened: no second one beside them."""
    other = others.get(formula.contract)
    if other is None:
        why = f"nothing judges {formula.contract} here"
        return ContractResult(contract.id, Verdict.NOT_EVALUATED, "", formula.text, why)
    why = f"{formula.contract} is {other.verdict.value}" + (f": {other.why}" if other.why else "")
    passed = other.verdict is Verdict.PASS
    return ContractResult(contract.id, other.verdict, other.observed, formula.text, "" if passed else why)


# -- from values to a verdict


class Reading(NamedTuple):
    """What an aggregate comes to on one rank, and where."""

    series: Series
    at: int
    value: float

    @property
    def step(self) -> int:
        return int(self.series.steps[self.at])

    @property
    def evidence(self) -> str:
        return self.series.evidence[self.at]


def _read(formula: Formula, series: Series) -> Reading:
    """A value that is no number stands out above all others: it must not hide behind them."""
    values = series.values
    last = len(series) - 1
    if formula.aggregate == "median":
        return Reading(series, last, _median(series))
    if formula.aggregate == "distinct":
        return Reading(series, last, float(len(np.unique(values[~np.isnan(values)]))))
    if formula.aggregate in ("first", "last"):
        at = 0 if formula.aggregate == "first" else last
    else:
        at = int(np.argmax(values) if formula.aggregate == "max" else np.argmin(values))
    return Reading(series, at, float(values[at]))


def _median(series: Series) -> float:
    """Over steps, not over looks: a look stands for the steps until the next one."""
    order = np.argsort(series.values, kind="stable")
    lasts = np.append(np.maximum(np.diff(series.steps), 1), 1)[order].cumsum()
    return float(series.values[order][np.searchsorted(lasts, lasts[-1] / 2)])


def _first(formula: Formula, reading: Reading, bound: float, tolerance: float) -> Reading:
    """The first value that the bound does not allow, where it is one for every step."""
    if formula.aggregate not in ("max", "min"):
        return reading
    each = (
        replace(formula, relation="<=" if formula.aggregate == "max" else ">=") if formula.relation == "==" else formula
    )
    values = reading.series.values
    out = (at for at in range(len(values)) if not each.keeps(float(values[at]), bound, tolerance))
    at = next(out, reading.at)
    return Reading(reading.series, at, float(values[at]))


def _finite(reading: Reading) -> Reading:
    """The largest number, where the value itself is none: "907, then nan" says more than "nan"."""
    values = np.where(np.isfinite(reading.series.values), np.abs(reading.series.values), -1.0)
    at = int(np.argmax(values))
    return Reading(reading.series, at, float(reading.series.values[at])) if values[at] >= 0 else reading


def _worst(formula: Formula, told: list[Reading]) -> Reading:
    """The reading to tell of: the largest where there is an upper bound, the smallest where there is a lower one."""
    sign = -1.0 if ">" in formula.relation else 1.0
    return max(told, key=lambda each: (not math.isfinite(each.value), sign * each.value))


def _violation(
    contract: Contract, obligation: Obligation, formula: Formula, bound: float, broken: list[Reading]
) -> Violation:
    firsts = [_first(formula, reading, bound, obligation.tolerance) for reading in broken]
    first, worst = min(firsts, key=lambda each: each.step), _worst(formula, broken)
    told = f"{_shown(worst.value)} in step {worst.step:,}"
    if not math.isfinite(worst.value) and formula.aggregate == "max":
        largest = _finite(worst)
        told = f"{_shown(largest.value)} in step {largest.step:,}, and not finite in step {worst.step:,}"
    if formula.aggregate in ("median", "distinct"):
        noun = "the number of values of " if formula.aggregate == "distinct" else "the median of "
        told = f"{noun}{formula.noun} was {_shown(worst.value)}"
    else:
        told = f"{formula.noun} was {told}"
    symptom = f"{told}; it has to be {IN_WORDS[formula.relation]} {bound:g} ({contract.id}, {obligation.id})"
    return Violation(
        contract.id, WHAT, Severity.ERROR, symptom, first.step, first.step, formula.brick,
        "block" if formula.brick else "step", first.series.rank, tuple(dict.fromkeys((first.evidence, worst.evidence))),
        {"question": f"Is it kept that {_lower(obligation.property)}?", "about": contract.metadata.depends_on},
        action=f"Find out what changed, or give {contract.id} another bound if it is meant to be so.",
    )  # fmt: skip


def _shown(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def _lower(text: str) -> str:
    sentence = text.rstrip(".")
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() or sentence[1:2] == " " else sentence


# -- the quantities


def _of_track(track: Track) -> Series:
    return Series(track.steps, track.values, _Ids(track), track.rank)


class _Ids(Sequence[str]):
    """The ids of the records behind a track; of ten thousand two are shown."""

    def __init__(self, track: Track) -> None:
        self._track = track

    def __len__(self) -> int:
        return len(self._track)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self._track.evidence(each) for each in range(*at.indices(len(self)))]
        return self._track.evidence(at)


def _of_events(events: list[tuple[Event, float]], rank: int) -> Series:
    steps = np.asarray([event.step for event, _ in events], np.int64)
    return Series(steps, np.asarray([value for _, value in events]), tuple(event.id for event, _ in events), rank)


def _loss(story: Story, rank: int, brick: str) -> Series:
    return _of_track(story.losses(rank))


def _lr(story: Story, rank: int, brick: str) -> Series:
    return _of_track(story.track("optimizer", "lr", rank))


def _grad_norm(story: Story, rank: int, brick: str) -> Series:
    if not brick:
        return _of_track(story.norms(rank))
    grid = story.grid("grad", rank)
    looked = _of_grid(grid, brick, grid.unscaled_l2, lambda values: np.sqrt(np.nansum(np.square(values), axis=1)))
    applied = [event for look in looks(story, rank) for event in look.grads]
    return _joined(looked, _of_events([(event, math.nan) for event in applied if _names(story, event, brick)], rank))


def _names(story: Story, event: Event, brick: str) -> bool:
    """Whether ``event`` says of a tensor of ``brick`` that it is not finite."""
    told = (story.names.tensor(event.rank, row.get("tensor")) for row in _listed(event))
    return any(_belongs(tensor.brick, tensor.name, brick) for tensor in told)


def _applied_grad_norm(story: Story, rank: int, brick: str) -> Series:
    told = [(look, norm) for look in looks(story, rank) if look.evidence and (norm := _applied(look)) is not None]
    steps = np.asarray([look.step for look, _ in told], np.int64)
    return Series(steps, np.asarray([norm for _, norm in told]), tuple(look.evidence[0] for look, _ in told), rank)


def _applied(look: Look) -> float | None:
    if look.broken:
        return math.nan
    if look.after is not None:
        return look.after
    # torch's own clipping, and no look after it: what it was given and what it measured say what it left.
    told = [(clip_norm(clip), bound_of(clip)) for clip in look.clips if not late(clip, look.update)]
    left = [min(norm, bound) for norm, bound in told if norm is not None and bound is not None]
    return left[-1] if left else None


def _update_ratio(story: Story, rank: int, brick: str) -> Series:
    if brick:
        grid = story.grid("update", rank)
        return _of_grid(grid, brick, grid.ratio, lambda values: np.nanmax(values, axis=1, initial=-np.inf))
    grid, moves = story.grid("update", rank), moved(story, rank)
    if moves is None:
        return _broken_updates(grid)
    largest = {int(step): int(np.nanargmax(np.where(np.isfinite(row), row, -1.0)))
               for step, row in zip(grid.steps, grid.l2, strict=True)}  # fmt: skip
    evidence = tuple(f"update:{int(step)}:{grid.tensors[largest[int(step)]]}@{rank}" for step in moves.steps)
    return _joined(Series(moves.steps, moves.shares, evidence, rank), _broken_updates(grid))


def _broken_updates(grid: Grid) -> Series:
    odd = _not_finite(grid)
    rows = np.flatnonzero(odd.any(axis=1))
    evidence = tuple(grid.evidence(int(row), int(odd[row].argmax())) for row in rows)
    return Series(grid.steps[rows], np.full(len(rows), np.nan), evidence, grid.rank)


def _weights_changed(story: Story, rank: int, brick: str) -> Series:
    """The share of tensors whose bits are not those of the first look at them."""
    grid = story.grid("weight", rank)
    if len(grid) < 2:
        return _of_events([], rank)
    taken = grid.checksum != -1
    first = taken.argmax(axis=0)  # a tensor that came later is compared with its own first look
    later = taken & (np.arange(len(grid))[:, None] > first)
    changed = np.where(later, grid.checksum != grid.checksum[first, np.arange(len(first))], np.nan)
    return _of_grid(grid, brick, changed, lambda values: np.nanmean(values, axis=1), broken=False)


def _of_grid(
    grid: Grid,
    brick: str,
    values: npt.NDArray[np.float64],
    over: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    *,
    broken: bool = True,
) -> Series:
    """One number a look, over the tensors of ``brick``; all of them where none is named.

    A look at a tensor that is not finite is no number, where ``broken`` asks for that.
    """
    places = [
        place for place in range(len(grid.tensors))
        if not brick or _belongs(grid.bricks[place], grid.tensors[place], brick)
    ]  # fmt: skip
    if not places or not len(grid):
        return _of_events([], grid.rank)
    chosen = values[:, places]
    odd = _not_finite(grid)[:, places] if broken else np.zeros(chosen.shape, np.bool_)
    rows = np.flatnonzero((np.isfinite(chosen) | odd).any(axis=1))
    with np.errstate(all="ignore"):
        told = np.where(odd[rows].any(axis=1), np.nan, over(chosen[rows]))
    return Series(grid.steps[rows], told, tuple(grid.evidence(int(row), places[0]) for row in rows), grid.rank)


def _not_finite(grid: Grid) -> npt.NDArray[np.bool_]:
    """Which cells hold values that are not finite. Of scaled gradients the steps that were applied have to say so."""
    found: npt.NDArray[np.bool_] = (grid.nan > 0) | (grid.inf > 0)
    return found & ~np.isfinite(grid.scale) if grid.role == "grad" else found


def _belongs(brick: Brick, tensor: str, name: str) -> bool:
    """Whether a tensor is ``name``, or lies in the brick of that name."""
    inside = (tensor, brick.path, f"{brick.model}.{brick.path}", f"{brick.model}.{tensor}")
    return any(each == name or each.startswith(f"{name}.") for each in inside)


def _input_size(story: Story, rank: int, brick: str) -> Series:
    """As loaders gave it; where the script makes its batches itself, as the model got it."""
    loaded = story.track("batch", "absmax", rank)
    return _of_track(loaded if len(loaded) else story.track("targets", "absmax", rank))


def _held_gradients(story: Story, rank: int, brick: str) -> Series:
    told = [(event, float(whole(event.fields.get("held")))) for event in story.events("held", rank)]
    return _of_events(told, rank)


def _nonfinite_inputs(story: Story, rank: int, brick: str) -> Series:
    looked = [event for event in story.events("batch", rank) if "nan" in event.fields]
    told = [(event, float(whole(event.fields.get("nan")) + whole(event.fields.get("inf")))) for event in looked]
    return _of_events(told, rank)


def _nonfinite_losses(story: Story, rank: int, brick: str) -> Series:
    track = story.track("loss", "value", rank)
    return _of_track(replace(track, values=(~np.isfinite(track.values)).astype(np.float64)))


def _nonfinite_gradients(story: Story, rank: int, brick: str) -> Series:
    """Of gradients that an update was made with: those of a skipped step were not applied."""
    told = [(event, _counted(event)) for look in looks(story, rank) for event in look.grads]
    return _of_events(told, rank)


def _nonfinite_weights(story: Story, rank: int, brick: str) -> Series:
    grid = story.grid("weight", rank)
    counts = np.nansum(np.stack([grid.nan, grid.inf]), axis=0)
    looked = _of_grid(grid, "", counts, lambda rows: np.nansum(rows, axis=1), broken=False)
    return _joined(looked, _of_events([(event, _counted(event)) for event in story.events("weight", rank)], rank))


def _joined(one: Series, other: Series) -> Series:
    """Both, in the order of their steps."""
    order = np.argsort(steps := np.concatenate([one.steps, other.steps]), kind="stable")
    evidence, values = (*one.evidence, *other.evidence), np.concatenate([one.values, other.values])
    return Series(steps[order], values[order], tuple(evidence[int(at)] for at in order), one.rank)


def _counted(event: Event) -> float:
    return float(sum((number(row.get("nan")) or 0.0) + (number(row.get("inf")) or 0.0) for row in _listed(event)))


def _listed(event: Event) -> list[dict[str, Any]]:
    """The tensors that ``event`` says are not finite."""
    listed = event.fields.get("nonfinite")
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


MEASURES: dict[str, Measure] = {
    "loss": _loss,
    "lr": _lr,
    "grad_norm": _grad_norm,
    "applied_grad_norm": _applied_grad_norm,
    "update_ratio": _update_ratio,
    "weights_changed": _weights_changed,
    "input_size": _input_size,
    "held_gradients": _held_gradients,
    "nonfinite_inputs": _nonfinite_inputs,
    "nonfinite_losses": _nonfinite_losses,
    "nonfinite_gradients": _nonfinite_gradients,
    "nonfinite_weights": _nonfinite_weights,
}


def measured(story: Story, quantity: str, brick: str = "") -> list[Series]:
    """A quantity on every rank where it was measured."""
    return [series for rank in story.ranks if len(series := MEASURES[quantity](story, rank, brick))]
