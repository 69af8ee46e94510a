"""FALSIFY-ALBOR-002, from a log: the gradient norm after clipping is below 10 at all steps, and does not run away.

Enters: the gradient norms of a log, and the bound that its settings state. Leaves: a result that says what can be said:

    capped exactly at a value      norms are printed after clipping: they are judged
    a bound is stated              what is applied is at most that bound: it is judged
    clipping is stated to be off   the norms are what was applied: they are judged
    all below 10                   whatever clipping does, what is applied is below 10 too
    otherwise                      before or after clipping, the log does not say: not judged
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_view import View, show, view
from brickprof.rules.names import number
from brickprof.rules.story import Story, Track

CONTRACT = "FALSIFY-ALBOR-002"
_KEYS = ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip_val", "clip_grad_norm", "gradient_clipping",
         "clip_norm", "max_norm", "grad_norm_clip", "clip_gradients")  # fmt: skip
_AT_THE_CAP = 0.05
_LEAST_AT_THE_CAP = 4


class LoggedNorms:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        norms = seen.norms.finite() if seen is not None else None
        if seen is None or norms is None or not len(norms):
            return outcomes.unjudged(
                contract, "the log has no gradient norm; `brickprof run` records it (probe gradients)"
            )
        most = contract.threshold("max_norm")
        limit = f"below {most:g} after clipping"
        if (violation := _runs_away(seen, norms, contract)) is not None:
            return outcomes.broken(contract, [violation], limit)
        highest = float(norms.values.max())
        cap, bound = capped(norms), stated_bound(seen)
        if cap is not None and highest <= most:
            return outcomes.held(contract, f"norms are capped at {show(cap)}: they are printed after clipping", limit)
        if highest < most:
            return outcomes.held(contract, f"at most {show(highest)} in {wording.count(len(norms), 'line')}", limit)
        if bound is not None and bound[0] > 0:
            return outcomes.held(
                contract, f"clipped to {bound[0]:g} as the log states; up to {show(highest)} before", limit
            )
        if bound is not None:
            return outcomes.broken(contract, [_unclipped(seen, norms, bound[1], most)], limit)
        why = (
            f"norms reach {show(highest)}, and the log does not say whether that is before or after clipping; "
            "`brickprof run` measures what is applied (probe applied)"
        )
        return outcomes.unjudged(contract, why)


def capped(norms: Track) -> float | None:
    """The value that norms stop at, exactly and often: clipping shows itself."""
    values = norms.finite().values
    if len(values) < 2 * _LEAST_AT_THE_CAP:
        return None
    highest = float(values.max())
    at = int((np.abs(values - highest) <= 1e-4 * highest).sum())
    return highest if highest > 0 and at >= max(_LEAST_AT_THE_CAP, _AT_THE_CAP * len(values)) else None


def stated_bound(seen: View) -> tuple[float, str] | None:
    """The bound on the gradient norm that the log states, 0 where it says that nothing is clipped."""
    for key in _KEYS:
        if key in seen.settings:
            value, evidence = seen.settings[key]
            told = number(value)
            if told is not None:
                return max(told, 0.0), evidence
            if value is None or str(value).strip().lower() in ("none", "null", "false"):
                return 0.0, evidence
    return None


def _runs_away(seen: View, norms: Track, contract: Contract) -> Violation | None:
    """By decades above its first size, and still there at the end."""
    count = int(contract.threshold("lasting"))
    if len(norms) < 4 * count:
        return None
    usual, late = float(np.median(norms.values[: len(norms) // 2])), norms.values[-count:]
    if usual <= 0 or float(late.min()) < contract.threshold("grown") * usual:
        return None
    place = int(np.flatnonzero(norms.values > 10 * usual)[0])
    symptom = f"the gradient norm grows from {show(usual)} to {show(float(late[-1]))} and stays there"
    proof = norms.evidences((0, place, len(norms) - 1))
    return Violation(
        CONTRACT, "exploding", Severity.ERROR, symptom, int(norms.steps[place]), int(norms.steps[-count]), "", "step",
        seen.rank, proof, {"logged": True, "question": "Why do gradients grow?", "step": int(norms.steps[place])},
    )  # fmt: skip


def _unclipped(seen: View, norms: Track, evidence: str, most: float) -> Violation:
    place = int(np.flatnonzero(norms.values >= most)[0])
    times = int((norms.values >= most).sum())
    symptom = (
        f"the gradient norm is {show(float(norms.values[place]))} at {seen.at(int(norms.steps[place]))}, "
        f"{most:g} or more in {wording.count(times, 'line')}, and the log states that nothing clips"
    )
    return Violation(
        CONTRACT, "large-norm", Severity.INFO, symptom, int(norms.steps[place]), int(norms.steps[place]), "", "step",
        seen.rank, (norms.evidence(place), evidence), {"logged": True, "question": "How large are the gradients?"},
    )  # fmt: skip


RULE = LoggedNorms
