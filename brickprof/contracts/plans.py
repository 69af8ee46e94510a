"""A configuration judged before any step is run, with the arithmetic shown.

Enters: declared settings. Leaves: a ``Judged`` for each contract that speaks of plans: the verdict and the lines that
say why, each with its numbers. A setting that is missing makes a line impossible, never true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from brickprof.contracts import spellings
from brickprof.contracts.algebra import Plan, plan
from brickprof.contracts.documents import Document
from brickprof.contracts.schema import Contract
from brickprof.contracts.spellings import Setting, number
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict

_Check = Callable[[Contract, Plan, Mapping[str, list[Setting]]], Iterator["Line | str"]]
TRAINCFG, BATCH, COSINE = "C-TRAINCFG-001", "C-BATCH-001", "C-COSINE-001"
_RANGES = {
    "lr": (0.0, None), "batch_size": (1.0, None), "accumulation": (1.0, None), "epochs": (0.0, None),
    "beta1": (0.0, 1.0), "beta2": (0.0, 1.0), "weight_decay": (0.0, None), "eps": (0.0, None),
    "grad_clip": (0.0, None), "warmup_steps": (0.0, None), "seq_len": (1.0, None), "dropout": (0.0, 1.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was worked out: what it says in words, and the arithmetic behind it."""

    severity: Severity | None
    """None where all is well."""
    text: str
    arithmetic: str = ""
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Judged:
    contract: str
    lines: list[Line] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if any(line.severity is Severity.ERROR for line in self.lines):
            return Verdict.FAIL
        return Verdict.PASS if self.lines else Verdict.NOT_EVALUATED


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is to be said of a configuration."""

    judged: tuple[Judged, ...]
    misspelt: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    settings: int

    @property
    def verdict(self) -> Verdict:
        verdicts = {each.verdict for each in self.judged}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if Verdict.PASS in verdicts else Verdict.VACUOUS


def judge(document: Document, terms: Terms | None = None) -> Opinion:
    terms = terms or Terms()
    settings = spellings.settings(document.values, document.file)
    made = plan(settings)
    checks = ((TRAINCFG, _feasible), (BATCH, _batch), (COSINE, _cosine))
    judged = [_judged(terms.contract(identifier), check, made, settings) for identifier, check in checks]
    strangers = [key for key in document.values if spellings.canonical(key) is None]
    misspelt = [(key, near) for key in strangers if (near := spellings.nearest(key)) is not None]
    unknown = [key for key in strangers if key not in dict(misspelt)]
    known = len(document.values) - len(strangers)
    return Opinion(tuple(judged), tuple(misspelt), tuple(unknown), known)


def _judged(contract: Contract, check: _Check, made: Plan, settings: Mapping[str, list[Setting]]) -> Judged:
    judged = Judged(contract.id)
    for found in check(contract, made, settings):
        if isinstance(found, Line):
            judged.lines.append(found)
        else:
            judged.missing.append(found)
    return judged


def _feasible(contract: Contract, made: Plan, settings: Mapping[str, list[Setting]]) -> Iterator[Line | str]:
    yield from _ranges(settings)
    per_epoch = made.steps_per_epoch
    if per_epoch is None:
        yield "steps in an epoch: needs the number of samples and the batch size"
    else:
        arithmetic = f"steps_per_epoch = floor({_division(made)}) = {per_epoch:,}"
        short = Severity.ERROR if per_epoch < 1 else None
        yield Line(short, "an epoch holds no whole step" if short else "an epoch holds whole steps", arithmetic)
        if per_epoch:
            yield from _reach(made, per_epoch)
    yield from _warm_up(contract, made)
    yield from _tokens(contract, made)


def _division(made: Plan) -> str:
    parts = [made.samples, made.batch, *(n for n in (made.accumulation, made.world) if n != 1)]
    return " / ".join(f"{part:,.0f}" for part in parts if part is not None)


def _reach(made: Plan, per_epoch: int) -> Iterator[Line | str]:
    if made.max_steps is None or made.achievable is None:
        yield "whether max_steps can be reached: needs max_steps and epochs"
        return
    arithmetic = f"{made.epochs:,g} x {per_epoch:,} = {made.achievable:,}"
    if made.achievable >= made.max_steps:
        yield Line(None, f"max_steps = {made.max_steps:,.0f} can be reached", f"{arithmetic} >= {made.max_steps:,.0f}")
        return
    epochs = "1 epoch" if made.epochs == 1 else f"{made.epochs:,g} epochs"
    short = f"{epochs} x {per_epoch:,} = {made.achievable:,} < {made.max_steps:,.0f}"
    text = f"max_steps = {made.max_steps:,.0f} cannot be reached"
    yield Line(Severity.ERROR, text, f"{short}; epochs >= {made.epochs_needed:,} needed")


def _warm_up(contract: Contract, made: Plan) -> Iterator[Line | str]:
    planned, warmup = made.planned, made.warmup
    if planned is None or warmup is None:
        yield "whether the warm-up ends: needs warmup and the number of steps"
        return
    if warmup >= planned > 0:
        peak = "" if made.peak is None else f": the learning rate peaks at {made.peak:.3g}, not {made.lr:.3g}"
        arithmetic = "" if made.peak is None else f"{made.lr:.3g} x {planned:,} / {warmup:,.0f} = {made.peak:.3g}"
        yield Line(Severity.ERROR, f"warmup = {warmup:,.0f} never completes in {planned:,} steps{peak}", arithmetic)
        return
    most, share = contract.threshold("warmup_fraction"), warmup / max(planned, 1)
    severity = Severity.WARNING if share > most else None
    text = f"warm-up takes {share:.1%} of the steps" + (f", more than {most:.0%}" if severity else "")
    yield Line(severity, text, f"{warmup:,.0f} / {planned:,} = {share:.3f}")


def _tokens(contract: Contract, made: Plan) -> Iterator[Line | str]:
    if made.tokens is None or made.parameters is None:
        yield "whether there are enough tokens: needs batch, length, steps and the number of parameters"
        return
    least = contract.threshold("tokens_per_parameter")
    share = made.tokens / made.parameters
    severity = Severity.WARNING if share < least else None
    yield Line(severity, f"{share:.1f} tokens a parameter" + (f", fewer than {least:g}" if severity else ""),
               f"{made.tokens_per_step:,.0f} x {made.planned:,} / {made.parameters:,.0f} = {share:.2f}")  # fmt: skip


def _batch(contract: Contract, made: Plan, settings: Mapping[str, list[Setting]]) -> Iterator[Line | str]:
    if made.tokens_per_step is None or made.parameters is None:
        yield "the effective batch: needs batch, length and the number of parameters"
        return
    if made.parameters < contract.threshold("large_model_parameters"):
        yield f"the effective batch: {made.parameters:,.0f} parameters are too few for the rule to speak"
        return
    least = contract.threshold("effective_tokens")
    severity = Severity.WARNING if made.tokens_per_step < least else None
    arithmetic = f"{made.batch:,.0f} x {made.accumulation:,.0f} x {made.length:,.0f} = {made.tokens_per_step:,.0f}"
    text = f"{made.tokens_per_step:,.0f} tokens a step" + (f", fewer than {least:,.0f}" if severity else "")
    yield Line(severity, text, arithmetic)


def _cosine(contract: Contract, made: Plan, settings: Mapping[str, list[Setting]]) -> Iterator[Line | str]:
    if "cos" not in made.schedule and made.horizon is None:
        yield "the end of the schedule: no cosine schedule is declared"
        return
    if made.planned is None or made.lr is None:
        yield "the end of the schedule: needs lr and the number of steps"
        return
    horizon = made.horizon or made.planned
    warmup = min(made.warmup or 0.0, horizon)
    progress = min(1.0, max(0.0, (made.planned - warmup) / max(horizon - warmup, 1.0)))
    last = made.min_lr + (made.lr - made.min_lr) * (1 + math.cos(math.pi * progress)) / 2
    most = max(contract.threshold("final_fraction"), made.min_lr / made.lr + 1e-9)
    severity = Severity.ERROR if last > most * made.lr else None
    text = f"the learning rate ends at {last / made.lr:.0%} of its peak" + (" and never comes down" if severity else "")
    yield Line(severity, text, f"horizon {horizon:,.0f}, steps {made.planned:,}: lr = {last:.3g}, peak {made.lr:.3g}")


def _ranges(settings: Mapping[str, list[Setting]]) -> Iterator[Line]:
    for name, (low, high) in _RANGES.items():
        for each in settings.get(name, []):
            value = number(each.value)
            outside = value is not None and (value < low or (high is not None and value >= high))
            if outside or (name == "lr" and value == 0.0):
                wanted = f"at least {low:g}" if high is None else f"from {low:g} to below {high:g}"
                yield Line(Severity.ERROR, f"{each.key} = {each.value} is not possible", f"{wanted} is", (each.key,))
