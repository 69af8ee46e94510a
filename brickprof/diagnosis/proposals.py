"""From a finding to what has to hold instead: a quantity, a bound, and where the bound comes from.

Enters: a finding, the story of its run, what the contracts came to. Leaves: at most two ``Proposal``, each of which
this very run breaks: what does not tell the broken run from a sound one is not proposed. A bound comes from the steps
before anything was wrong, from what the script declares, or from a threshold of the library. Where nothing that was
measured says it better, the obligation is that the broken contract holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from brickprof.contracts import registry
from brickprof.contracts.schema import Contract, Metadata, Obligation
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.rules import declared, obligations, stated
from brickprof.rules.clipping import clip_bound
from brickprof.rules.handling import declared_bound, looks
from brickprof.rules.names import number
from brickprof.rules.story import Story

if TYPE_CHECKING:
    from brickprof.diagnosis import Finding

MOST = 2
_FEWEST_HEALTHY = 3
_ROOM = 3.0
"""How far above the largest healthy value a bound lies, before it is rounded up."""
_FAR = 10.0
_HUGE = 1e300
"""Beyond it, and below its inverse, a few times a value may be no number any more."""
_OF_THE_PEAK = 1e-3
_CHECK = "C-OWN-CHECK"
_HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One obligation, and why its bound is what it is."""

    id: str
    kind: str
    says: str
    formal: str
    applies_to: str
    because: str
    """Where the bound comes from, with the numbers of this run."""
    thresholds: dict[str, float] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def obligation(self) -> Obligation:
        return Obligation(self.id, self.kind, self.says, self.formal, self.tolerance, self.applies_to)


def proposals(finding: Finding, story: Story, others: Mapping[str, ContractResult]) -> list[Proposal]:
    """What has to hold so that ``finding`` is not found again, the closest to its cause first."""
    found: list[Proposal] = []
    for propose in _families(finding):
        for proposal in propose(finding, story):
            if breaks(proposal, story, others) and proposal.id not in {each.id for each in found}:
                found.append(proposal)
    return found[:MOST] or [_holds(finding)]


def obligation(finding: Finding, story: Story, others: Mapping[str, ContractResult]) -> str:
    """What would have caught ``finding``, in words; nothing where that is its own contract."""
    first = proposals(finding, story, others)[0]
    return "" if first.id == _HOLDS else first.says


def breaks(proposal: Proposal, story: Story, others: Mapping[str, ContractResult]) -> bool:
    """Whether this run breaks what is proposed."""
    metadata = Metadata(_CHECK, "1.0.0", proposal.says)
    contract = Contract(metadata, proposal.says, (proposal.obligation,), (), tuple(proposal.thresholds.items()))
    return obligations.result(contract, story, others).verdict is Verdict.FAIL


def _holds(finding: Finding) -> Proposal:
    contract = registry.library().get(finding.contract)
    says = contract.metadata.description if contract is not None else f"{finding.contract} holds."
    because = "Nothing that was measured says it better than the contract itself, which this run broke."
    return Proposal(_HOLDS, "invariant", says, f"{finding.contract} holds", "", because)


# -- gradients


def _clipped(finding: Finding, story: Story) -> Iterator[Proposal]:
    """The bound that the script declares, or gives to its clipping."""
    rank = story.ranks[0] if story.ranks else 0
    told = declared_bound(story) or stated.bound(story, rank)
    bound = clip_bound(looks(story, rank), told)
    if bound is None:
        return
    source = f"{told.key} is declared as {told.value:g}" if told is not None else f"clipping was given {bound:g}"
    because = f"{source}; {_reached(story, 'applied_grad_norm')}."
    yield _applied(bound, because, 1e-3)


def _bounded(finding: Finding, story: Story) -> Iterator[Proposal]:
    """A few times what the norm was while all was well; the library's bound where nothing ever was."""
    made = _healthy_bound(finding, story, "applied_grad_norm")
    limit = registry.find("FALSIFY-ALBOR-002").threshold("max_norm")
    if made is not None:
        yield _applied(*made)
    elif _largest(story, "applied_grad_norm") > _FAR * limit:
        yield _applied(limit, f"FALSIFY-ALBOR-002 allows {limit:g}; {_reached(story, 'applied_grad_norm')}.")


def _applied(bound: float, because: str, tolerance: float = 0.0) -> Proposal:
    said = f"|grad| is at most {bound:g} as the optimizer uses it, after clipping."
    return Proposal(
        "applied-norm-bounded", "bound", said, "max(applied_grad_norm) <= max_norm", "grad", because,
        {"max_norm": bound}, tolerance,
    )  # fmt: skip


def _small_updates(finding: Finding, story: Story) -> Iterator[Proposal]:
    share = registry.find("C-STEPSIZE-001").threshold("share")
    because = f"C-STEPSIZE-001 allows {share:g} of the weights; {_reached(story, 'update_ratio')}."
    said = f"No update changes the weights by more than {100 * share:g} % of their size."
    yield Proposal(
        "updates-small", "bound", said, "max(update_ratio) <= update_share", "update", because, {"update_share": share}
    )


def _cleared(finding: Finding, story: Story) -> Iterator[Proposal]:
    because = f"Gradients are cleared before a step begins; {_reached(story, 'held_gradients')}."
    said = "No gradient holds those of earlier steps when a backward begins."
    yield Proposal("gradients-cleared", "bound", said, "max(held_gradients) == 0", "grad", because)


def _learning(finding: Finding, story: Story) -> Iterator[Proposal]:
    """Every parameter of the brick that stood still moves."""
    if not finding.brick or re.search("[\ud800-\udfff]", finding.brick):  # no YAML can spell those
        return
    told = obligations.measured(story, "weights_changed", finding.brick)
    if not told:
        return
    seen = f"in step {int(told[0].steps[-1]):,} of this run {100 * float(told[0].values[-1]):.3g} % of them had"
    said = f"Every parameter of {finding.brick} has changed by the end of the training."
    yield Proposal(
        "parameters-learn", "completeness", said, f"last(weights_changed[{finding.brick}]) >= changed_share", "weight",
        f"An optimizer changes what it is given; {seen}.", {"changed_share": 1.0},
    )  # fmt: skip


# -- data and numbers


def _finite_inputs(finding: Finding, story: Story) -> Iterator[Proposal]:
    because = f"A batch holds numbers only; {_reached(story, 'nonfinite_inputs')}."
    said = "Every value of every batch is finite."
    yield Proposal("inputs-finite", "invariant", said, "max(nonfinite_inputs) == 0", "input", because)


def _sized_inputs(finding: Finding, story: Story) -> Iterator[Proposal]:
    made = _healthy_bound(finding, story, "input_size")
    if made is not None:
        said = f"No value of a batch is larger than {made[0]:g}."
        yield Proposal(
            "inputs-bounded", "bound", said, "max(input_size) <= max_input", "input", made[1], {"max_input": made[0]}
        )


def _finite(finding: Finding, story: Story) -> Iterator[Proposal]:
    for quantity, noun, role in (
        ("nonfinite_losses", "loss", "loss"),
        ("nonfinite_gradients", "gradient that is applied", "grad"),
        ("nonfinite_weights", "weight", "weight"),
    ):
        because = f"What is not finite spreads to every weight; {_reached(story, quantity)}."
        said = f"Every {noun} is finite in every step."
        yield Proposal(f"{role}-finite", "invariant", said, f"max({quantity}) == 0", role, because)


# -- learning rate


def _scheduled(finding: Finding, story: Story) -> Iterator[Proposal]:
    because = "A schedule that is stepped changes the rate; in this run it never changed."
    said = "The learning rate takes more than one value: the schedule is stepped."
    yield Proposal("rate-scheduled", "bound", said, "distinct(lr) > 1", "optimizer", because)


def _peaks(finding: Finding, story: Story) -> Iterator[Proposal]:
    peak, source = _meant_rate(story)
    if peak is None:
        return
    because = f"{source} {peak:g}; {_reached(story, 'lr')}."
    said = f"The learning rate reaches {peak:g}."
    yield Proposal("rate-peaks", "bound", said, "max(lr) >= peak_lr", "optimizer", because, {"peak_lr": peak}, 0.01)


def _meant_rate(story: Story) -> tuple[float | None, str]:
    """The rate that was asked for, or that the optimizer was built with."""
    asked = declared.amount(declared.only(declared.settings(story), "lr"))
    if asked is not None and asked > 0:
        return asked, "The rate that is declared is"
    built = story.first("optimizer_created")
    rate = number(built.fields.get("built_lr")) if built is not None else None
    return (rate, "The optimizer was built for") if rate is not None and 0 < rate < math.inf else (None, "")


def _lasting(finding: Finding, story: Story) -> Iterator[Proposal]:
    found = obligations.measured(story, "lr")
    if not found or not (peak := float(np.nanmax(found[0].values))) > 0:
        return
    least = _OF_THE_PEAK * peak
    because = f"A thousandth of the peak, {peak:g}: below that, nothing is learnt any more."
    said = f"For at least half of the training the learning rate is {least:g} or more."
    yield Proposal("rate-lasts", "bound", said, "median(lr) >= least_lr", "optimizer", because, {"least_lr": least})


# -- where bounds come from


def _healthy_bound(finding: Finding, story: Story, quantity: str) -> tuple[float, str] | None:
    """Room above the largest value of the time when all was well: the first half of the steps before the first bad one.

    The second half is left out because things run away before they break.
    """
    found = obligations.measured(story, quantity)
    if not found:
        return None
    before = found[0].values[(found[0].steps < finding.first_step) & np.isfinite(found[0].values)]
    healthy = before[: max(_FEWEST_HEALTHY, len(before) // 2)]
    if len(healthy) < _FEWEST_HEALTHY or not 1 / _HUGE < (largest := float(healthy.max())) < _HUGE:
        return None
    bound = rounded_up(_ROOM * largest)
    last = int(found[0].steps[len(healthy) - 1])
    because = (
        f"{_ROOM:g} x {largest:.3g}, the largest until step {last:,}, when all was well, rounded up; "
        f"{_reached(story, quantity)}."
    )
    return bound, because


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ...: a bound that a person would have written."""
    power = 10.0 ** math.floor(math.log10(value))
    digit = next((each for each in (1, 2, 5) if value <= each * power * (1 + 1e-9)), 10)
    return float(f"{digit * power:.1g}")


def _largest(story: Story, quantity: str) -> float:
    """The largest number; none at all is nothing."""
    found = [series.values[np.isfinite(series.values)] for series in obligations.measured(story, quantity)]
    return max((float(values.max()) for values in found if len(values)), default=0.0)


def _reached(story: Story, quantity: str) -> str:
    """How far this run went, in words."""
    found = obligations.measured(story, quantity)
    if not found:
        return "it was not measured in this run"
    values, steps = (np.concatenate(each) for each in ([s.values for s in found], [s.steps for s in found]))
    finite = np.isfinite(values)
    if not finite.any():
        return "it was not finite in this run"
    at = int(np.argmax(np.where(finite, values, -np.inf)))
    ended = "" if finite.all() else ", and was not finite later"
    verb = "had" if quantity.startswith(("nonfinite", "held")) else "came to"
    return f"this run {verb} {float(values[at]):.3g} in step {int(steps[at]):,}{ended}"


# -- which of them a cause asks for

Family = Callable[["Finding", Story], Iterator[Proposal]]

_BY_CAUSE: dict[str, tuple[Family, ...]] = {
    "grad-clip-not-applied": (_clipped, _bounded),
    "grad-clip-wrong": (_clipped,),
    "exploding-gradients": (_bounded, _finite),
    "learning-rate-too-high": (_bounded, _small_updates, _finite),
    "warmup-missing": (_bounded, _small_updates, _finite),
    "bad-initialisation": (_bounded, _small_updates, _finite),
    "accumulation-not-normalised": (_bounded, _small_updates),
    "loss-spike-optimizer": (_bounded, _small_updates),
    "missing-zero-grad": (_cleared,),
    "parameters-frozen": (_learning,),
    "optimizer-missing-parameters": (_learning,),
    "optimizer-stale-parameters": (_learning,),
    "no-gradient-path": (_learning,),
    "data-nonfinite": (_finite_inputs, _finite),
    "loss-spike-data": (_sized_inputs,),
    "unnormalised-inputs": (_sized_inputs,),
    "schedule-not-stepped": (_scheduled,),
    "schedule-never-peaks": (_peaks,),
    "schedule-horizon-wrong": (_lasting,),
    "log-of-zero": (_finite,),
    "division-by-zero": (_finite,),
    "invalid-op": (_finite,),
    "fp16-overflow": (_finite,),
    "loss-scale-misused": (_finite,),
    "optimizer-state-uninitialised": (_finite,),
}
_BY_CONTRACT: dict[str, tuple[Family, ...]] = {
    "C-TRAINSTABLE-001": (_bounded, _finite),
    "FALSIFY-ALBOR-002": (_bounded,),
    "C-CLIP-001": (_clipped,),
    "C-STEPSIZE-001": (_small_updates,),
    "C-GRADFLOW-001": (_learning,),
    "C-INPUT-001": (_finite_inputs,),
}


def _families(finding: Finding) -> tuple[Family, ...]:
    return _BY_CAUSE.get(finding.root_cause) or _BY_CONTRACT.get(finding.contract, ())
