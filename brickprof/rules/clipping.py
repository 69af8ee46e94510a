"""C-CLIP-001 and C-EMBED-GRAD-001: a bound on the gradient norm is in force, over all gradients, and is the right one.

Enters: the story: what clipping was told (``clip``), what became of gradients between backward and update (``applied``,
``grad``), what a configuration declares. Leaves: one result each. A bound that is declared, or that clipping was given
in some step, has to hold for the gradients that the optimizer used; where it does not, the reason is told: clipping
never ran, ran too late, ran on other parameters, per block, on scaled gradients, or with a power of the norm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.rules import clip_faults, clip_reach, stated, wording
from brickprof.rules.clip_faults import Fault
from brickprof.rules.handling import Declared, Look, declared_bound, looks
from brickprof.rules.layers import Growth, gradient_growth
from brickprof.rules.names import number
from brickprof.rules.story import Story

CLIP, EMBED = "C-CLIP-001", "C-EMBED-GRAD-001"
NOT_APPLIED, WRONG = "grad-clip-not-applied", "grad-clip-wrong"
RUNAWAY = frozenset({"nonfinite", "exploding", "diverged", "spike"})
_EXPLODED = 1e3
_FAR = 10.0
_UNITS = frozenset({"dead-units", "saturated-units"})
_SOUND = 0.5


class Clip:
    """The rule of C-CLIP-001: total norm, one coefficient, the bound holds after it."""

    contract = CLIP

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "clipped norm <= bound"
        told = [look for rank in story.ranks[:1] for look in looks(story, rank)]
        if not told:
            return ContractResult(CLIP, Verdict.VACUOUS, "", threshold, "no update was looked at")
        declared = declared_bound(story)
        bound = clip_bound(told, declared)
        fault = clip_reach.find(story, told, bound, declared, contract)
        if fault is not None and fault.kind == "partial" and fault.shallowest:
            return ContractResult(CLIP, Verdict.FAIL, fault.symptom, threshold, f"see {EMBED}: {fault.symptom}")
        if fault is not None:
            violation = described(story, fault, declared, CLIP)
            return ContractResult(CLIP, Verdict.FAIL, fault.symptom, threshold, fault.symptom, (violation,))
        never = stated.never_clipped(story, story.ranks[0]) if declared is None else None
        if never is not None:
            return ContractResult(CLIP, Verdict.FAIL, never.symptom, threshold, never.symptom, (never,))
        return _clean(CLIP, told, bound, declared, threshold)


class EmbedGrad:
    """The rule of C-EMBED-GRAD-001: the gradient that leaves the model at its input end is bounded too."""

    contract = EMBED

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "the bound holds for every parameter"
        told = [look for rank in story.ranks[:1] for look in looks(story, rank)]
        if not told:
            return ContractResult(EMBED, Verdict.VACUOUS, "", threshold, "no update was looked at")
        declared = declared_bound(story)
        bound = clip_bound(told, declared)
        if not any(look.clips for look in told):
            return ContractResult(EMBED, Verdict.VACUOUS, "", threshold, "nothing was clipped")
        fault = clip_faults.scaled_or_apart(story, told, contract) or clip_reach.partial(story, told, bound, contract)
        if fault is None or fault.kind != "partial":
            return _clean(EMBED, told, bound, declared, threshold)
        violations = (described(story, fault, declared, EMBED),) if fault.shallowest else ()
        return ContractResult(EMBED, Verdict.FAIL, fault.symptom, threshold, fault.symptom, violations)


def clip_bound(told: Sequence[Look], declared: Declared | None) -> float | None:
    """The bound in force: what clipping is given most often, else what is declared."""
    given = Counter(bound for look in told for bound in look.bounds if bound is not None)
    if given:
        return given.most_common(1)[0][0]
    return declared.value if declared is not None else None


def _clean(
    identity: str, told: Sequence[Look], bound: float | None, declared: Declared | None, threshold: str
) -> ContractResult:
    clipped = sum(1 for look in told if look.clips)
    by_hand = sum(1 for look in told if not look.clips and (look.coefficient or 1.0) < 0.99)
    if bound is None and not clipped and not by_hand:
        return ContractResult(identity, Verdict.VACUOUS, "", threshold, "nothing clips, and no bound is declared")
    if clipped or by_hand:
        observed = f"clipping ran in {clipped + by_hand:,} of {wording.count(len(told), 'looked-at step')}"
        measured = any(look.after is not None for look in told)
        why = "" if measured else "the norm after clipping was not measured; the coefficient is torch's own"
        return ContractResult(identity, Verdict.PASS, observed, threshold, why)
    norms = [norm for look in told if (norm := look.before) is not None]
    if not norms:
        return ContractResult(identity, Verdict.NOT_EVALUATED, "", threshold, "no gradient norm was measured")
    observed = f"largest norm {max(norms):.3g}"
    return ContractResult(identity, Verdict.PASS, observed, threshold, "the norm never reached the declared bound")


def described(story: Story, fault: Fault, declared: Declared | None, contract: str) -> Violation:
    """The fault as a violation that is a cause, with its whys."""
    worst = max(fault.looks, key=lambda look: look.before or 0.0)
    growth = gradient_growth(story, worst.rank, worst.step)
    exploded = fault.cause == NOT_APPLIED and (worst.before or 0.0) >= _EXPLODED * fault.bound
    evidence = tuple(dict.fromkeys((*(fault.evidence or worst.evidence), *_declaration(declared))))
    grave = exploded or fault.kind == "nothing" or (declared is not None and fault.kind == "never")
    severity = Severity.ERROR if grave else Severity.WARNING
    if declared is not None and declared.plain and not exploded:
        severity = Severity.WARNING
    return Violation(
        contract, "clip", severity, fault.symptom, fault.looks[0].step, fault.looks[0].step,
        fault.brick, "block" if fault.brick else "optimizer", worst.rank, evidence,
        {"question": "Why are the gradients not bounded?", "asked": fault.asked, "bound": fault.bound,
         "norm": worst.before, "exploded": exploded, "kind": fault.kind},
        cause=fault.cause, certainty=_certainty(fault, declared, exploded),
        explains=_explains(fault, exploded) | _units(story, fault, worst),
        whys=(*_growth_why(growth, exploded), *fault.whys), action=fault.action, experiment=fault.experiment,
        static=True,
    )  # fmt: skip


def _explains(fault: Fault, exploded: bool) -> frozenset[str]:
    if fault.cause != NOT_APPLIED:
        return fault.explains
    # Of gradients decades above the bound, everything else that the update did wrong is a detail.
    return RUNAWAY | {"gradient-growth", "hyperparameters"} if exploded else RUNAWAY


def _units(story: Story, fault: Fault, worst: Look) -> frozenset[str]:
    """Units that died or stuck in updates far above the bound, and were sound when the run began."""
    if fault.cause != NOT_APPLIED or (worst.after or 0.0) < _FAR * fault.bound:
        return frozenset()
    units = story.events("units", worst.rank)
    shares = [share for event in units if event.step == units[0].step for kind in ("dead", "saturated")
              if (share := number(event.fields.get(kind))) is not None]  # fmt: skip
    return _UNITS if max(shares, default=0.0) < _SOUND else frozenset()


def _declaration(declared: Declared | None) -> tuple[str, ...]:
    return (declared.evidence,) if declared is not None else ()


def _certainty(fault: Fault, declared: Declared | None, exploded: bool) -> float:
    if fault.cause == NOT_APPLIED and declared is not None:
        return 0.8 if declared.plain and not exploded else 0.97 if exploded else 0.93
    return fault.certainty


def _growth_why(growth: Growth | None, exploded: bool) -> tuple[Because, ...]:
    if growth is None or not exploded or growth.per_layer < 2:
        return ()
    return (Because("Why are they that large?", wording.sentence(growth.text), growth.high, growth.evidence),)


RULES = (Clip, EmbedGrad)
