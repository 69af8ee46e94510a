"""C-SENTINEL-001, from a log: a loss is computed, never a value that stands for an error.

Enters: the losses of a log, with the digits they were printed in. Leaves: losses that are exactly 0 from one line to
the next although they were far from it, or that repeat in all their digits; where gradient norms say that training goes
on, nothing.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_view import View, digits, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-SENTINEL-001"
_ZEROS = 3
_FAR = 20.0
_OF_USUAL = 0.1
_FOLLOWS = frozenset({"not-learning", "plateau"})


class LoggedSentinel:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not len(seen.loss):
            return outcomes.vacuous(contract, "the log has no loss")
        if bool((~np.isfinite(seen.norms.values)).any()) and bool((seen.loss.values == 0.0).any()):
            return outcomes.unjudged(contract, "losses of 0 beside norms that are not finite: see C-TRAINSTABLE-001")
        violation = _zeros(seen) or _repeats(seen, contract)
        if violation is not None:
            return outcomes.broken(contract, [violation])
        if len(seen.finite) < contract.threshold("repeats"):
            return outcomes.unjudged(contract, f"{wording.count(len(seen.finite), 'loss', 'losses')} say too little")
        return outcomes.held(
            contract, f"{wording.count(len(seen.finite), 'logged loss', 'logged losses')}, no constant"
        )


def _zeros(seen: View) -> Violation | None:
    """Exact zeros to the end of the log, from one line to the next."""
    found = seen.finite
    whole = np.flatnonzero(found.values != 0.0)
    begin = int(whole[-1]) + 1 if len(whole) else 0
    if len(found) - begin < _ZEROS or begin == 0:
        return None
    before = np.abs(found.values[max(0, begin - 10) : begin])
    near = max(_FAR * digits(found.values), _OF_USUAL * float(np.median(np.abs(found.values[:begin]))))
    if float(before[-1]) < near or float(np.median(before)) < near or _moves(seen, found, begin):
        return None
    text = f"The loss before was {show(float(before[-1]))}: training does not bring a loss to exactly 0 at once."
    return _violation(seen, found, begin, f"loss is exactly 0 from {seen.at(int(found.steps[begin]))} on", text)


def _repeats(seen: View, contract: Contract) -> Violation | None:
    """One value in all its digits, line after line, to the end of the log."""
    found = seen.finite
    same = np.flatnonzero(found.values != found.values[-1]) if len(found) else np.empty(0)
    begin = int(same[-1]) + 1 if len(same) else 0
    value = float(found.values[-1]) if len(found) else 0.0
    precise = abs(value) > 0 and len(f"{abs(value):.12g}".replace(".", "").strip("0")) >= 5
    if len(found) - begin < contract.threshold("repeats") or not precise or _moves(seen, found, begin):
        return None
    text = "Every step has its own batch: a computed loss would differ in its last digits."
    symptom = (
        f"loss is exactly {value:.12g} in {len(found) - begin:,} lines, from {seen.at(int(found.steps[begin]))} on"
    )
    return _violation(seen, found, begin, symptom, text)


def _moves(seen: View, found: Track, begin: int) -> bool:
    """Whether norms of those lines are such as a loss that is computed gives."""
    norms = seen.norms.finite().since(int(found.steps[begin]))
    return len(norms) >= 2 and bool(np.all(norms.values[1:] > 0)) and len(np.unique(norms.values)) > 1


def _violation(seen: View, found: Track, begin: int, symptom: str, text: str) -> Violation:
    proof = found.evidences((max(begin - 1, 0), begin, len(found) - 1))
    step = int(found.steps[begin])
    return Violation(
        CONTRACT, "constant-loss", Severity.ERROR, symptom, step, step, "loss", "step", seen.rank, proof,
        {"logged": True, "question": "Is this a loss at all?"}, "sentinel-loss", 0.8, _FOLLOWS,
        (Because("Could training have brought this about?", text, "loss", proof),), (),
        "Look for what returns a constant, or leaves out losses that are not finite; let the error pass.",
        "Print the loss as it comes out of the loss function, before anything averages or replaces it.",
        static=begin == 0,
    )  # fmt: skip


RULE = LoggedSentinel
