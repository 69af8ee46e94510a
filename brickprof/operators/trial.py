"""One problem in one type, tried: against the gold within a tolerance, against itself to the byte.

Enters: a subject and a problem. Leaves: evidence in the tallies of the four judgments.

    problem ── gold (fp32) ─────────────── accuracy
       └────── function ── baseline ──┬───────┘
                           variants ──┴─── invariance (T1 to T7)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brickprof.operators import launch
from brickprof.operators.bits import compare, within
from brickprof.operators.drift import FORWARD, GOLD
from brickprof.operators.gold import gold
from brickprof.operators.judgement import (
    FORWARD_ACCURACY,
    FORWARD_INVARIANCE,
    GRADIENT_ACCURACY,
    GRADIENT_INVARIANCE,
    Tally,
)
from brickprof.operators.operator import Arguments, Schedule
from brickprof.operators.problem import Outcome, Problem, Refused, run, told_in_one_line
from brickprof.operators.subject import Subject
from brickprof.operators.tolerances import tolerance
from brickprof.operators.transforms import Case, Variant, cases

EMPTY = "the active set is empty: there is no row to compare"
NO_ROWS = "no argument holds rows"
NOT_DIFFERENTIABLE = "no argument has a gradient"
NO_GRADIENT = "its output carries no gradient"
RAISED = "it raised before this could be judged"
Tell = Callable[[str], None]


@dataclass
class Trial:
    subject: Subject
    problem: Problem
    book: dict[str, Tally]
    """The tally of each judgment."""
    tell: Tell
    notes: list[str] = field(default_factory=list)

    def examine(self) -> None:
        truth = None
        if self.problem.population:
            self._say("gold")
            truth = gold(self.problem, self.subject.reference)
        if truth is None or not truth.output.numel():
            return self._all(lambda tally: tally.failures.append(EMPTY))
        sent = self.problem.upstream(truth.output.shape)
        try:
            baseline = self._run(self.problem.arguments, sent)
        except Refused as refusal:
            return self._refused(refusal)
        self._accuracy(truth, baseline)
        self._absent(baseline)
        return self._invariance(baseline, sent)

    def _run(self, arguments: Arguments, sent: Tensor) -> Outcome:
        return run(self.subject.function, arguments, self.problem.operator.differentiable, lambda _: sent)

    def _refused(self, refusal: Refused) -> None:
        """The baseline raised: the forward fails, and the rest has nothing to go by."""
        if self._cannot_run_here(refusal.cause):
            return self._all(lambda tally: tally.missing.append(str(refusal)))
        made = self.subject.drift(self.problem, GOLD, "the call itself", FORWARD, note=str(refusal))
        self.book[FORWARD_ACCURACY].drifts.append(made)
        return self._all(lambda tally: tally.missing.append(RAISED))

    def _cannot_run_here(self, cause: BaseException | None) -> bool:
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        return self.problem.device == "cpu" and not launch.interpreted() and type(cause) is launch.CannotLaunch

    def _all(self, act: Callable[[Tally], None]) -> None:
        for tally in self.book.values():
            act(tally)

    def _absent(self, baseline: Outcome) -> None:
        """What there is no evidence for, before any is looked at."""
        if self.problem.population < 0:
            self.book[FORWARD_INVARIANCE].missing.append(NO_ROWS)
            self.book[GRADIENT_INVARIANCE].missing.append(NO_ROWS)
        if not baseline.gradients:
            why = NO_GRADIENT if self.problem.operator.differentiable else NOT_DIFFERENTIABLE
            self.book[GRADIENT_INVARIANCE].missing.append(RAISED if baseline.broken else why)

    # -- accuracy

    def _accuracy(self, truth: Outcome, baseline: Outcome) -> None:
        self._held(truth.output, baseline.output, FORWARD, baseline)
        tally = self.book[GRADIENT_ACCURACY]
        if not self.problem.operator.differentiable:
            tally.missing.append(NOT_DIFFERENTIABLE)
        elif baseline.broken:
            tally.drifts.append(self.subject.drift(self.problem, GOLD, "backward", "gradient", note=baseline.broken))
        elif not truth.gradients:
            tally.missing.append("the reference carries no gradient")
        elif not baseline.gradients:
            tally.missing.append(NO_GRADIENT)
        else:
            for name, expected in truth.gradients.items():
                self._gradient_held(name, expected, baseline)

    def _gradient_held(self, name: str, expected: Tensor | None, baseline: Outcome) -> None:
        given, direction = baseline.gradients.get(name), f"gradient of {name}"
        if expected is None:
            self.book[GRADIENT_ACCURACY].missing.append(f"the reference has no gradient of {name}")
        elif given is None:
            made = self.subject.drift(self.problem, GOLD, "backward", direction, note=f"it gives no {direction}")
            self.book[GRADIENT_ACCURACY].drifts.append(made)
        else:
            self._held(self._upright(name, expected), self._upright(name, given), direction, baseline)

    def _held(self, truth: Tensor, given: Tensor, direction: str, outcome: Outcome) -> None:
        gradient = direction != FORWARD
        tally = self.book[GRADIENT_ACCURACY if gradient else FORWARD_ACCURACY]
        operator = self.problem.operator
        family = (gradient and operator.gradient_family) or operator.family
        allowed = tolerance(family, self.problem.dtype, gradient=gradient)
        difference = within(truth, given, allowed)
        shows = bool(difference.mismatches) or bool(truth.count_nonzero())
        tally.measured(difference, evidence=shows)
        if not shows:
            tally.empty.append("the gold is zero everywhere")
        if difference.mismatches:
            made = self.subject.drift(
                self.problem, GOLD, "fp32 gold", direction, difference, allowed=allowed, launches=outcome.launches
            )
            tally.drifts.append(made)

    # -- invariance

    def _invariance(self, baseline: Outcome, sent: Tensor) -> None:
        for case in cases(self.problem, self.subject.transforms):
            self._say(f"{case.transform} {case.name}")
            self._varied(case, case.build(self.problem, sent), baseline)
        for schedule in self.problem.operator.schedules:
            if schedule.transform in self.subject.transforms:
                self._say(f"{schedule.transform} {schedule.name}")
                self._scheduled(schedule)

    def _varied(self, case: Case, variant: Variant, baseline: Outcome) -> None:
        try:
            outcome = self._run(variant.arguments, variant.upstream)
        except Refused as refusal:
            if case.layout and isinstance(refusal.cause, ValueError | launch.CannotLaunch):
                self.notes.append(f"{case.transform} {case.name}: not judged, it refuses that: {refusal}")
            else:
                self._raised(case, variant, FORWARD_INVARIANCE, FORWARD, str(refusal))
            return
        if outcome.broken and baseline.gradients:
            self._raised(case, variant, GRADIENT_INVARIANCE, "gradient", outcome.broken)
        elif lost := [name for name in baseline.gradients if _lost(name, baseline, outcome)]:
            self._raised(case, variant, GRADIENT_INVARIANCE, "gradient", f"it gives no gradient of {lost[0]}")
        for judgment, direction, was, now, rows in self._pairs(case, variant, baseline, outcome):
            difference = compare(was, now).at_rows(rows)
            self.book[judgment].measured(difference, evidence=case.evidence)
            if difference.mismatches:
                made = self.subject.drift(
                    self.problem, case.transform, case.name, direction, difference, parameters=case.parameters,
                    variant=variant.arguments, launches=outcome.launches,
                )  # fmt: skip
                self.book[judgment].drifts.append(made)

    def _raised(self, case: Case, variant: Variant, judgment: str, direction: str, note: str) -> None:
        made = self.subject.drift(
            self.problem, case.transform, case.name, direction, note=note, parameters=case.parameters,
            variant=variant.arguments,
        )  # fmt: skip
        self.book[judgment].drifts.append(made)

    def _pairs(
        self, case: Case, variant: Variant, baseline: Outcome, outcome: Outcome
    ) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor | None]]:
        """What has to be equal: judgment, direction, both sides, and which rows of the baseline they are."""
        rows, order = self.problem.operator.rows, variant.was.argsort(stable=True)
        was, now = (index[order].to(baseline.output.device) for index in (variant.was, variant.now))

        def taken(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return before.index_select(0, was), after.index_select(0, now), was

        both = taken(baseline.output, outcome.output) if rows else (baseline.output, outcome.output, None)
        yield FORWARD_INVARIANCE, FORWARD, *both
        for name, before in baseline.gradients.items():
            after = outcome.gradients.get(name)
            if before is None or after is None:
                continue
            before, after, direction = self._upright(name, before), self._upright(name, after), f"gradient of {name}"
            if name in rows:
                yield GRADIENT_INVARIANCE, direction, *taken(before, after)
            elif case.whole:
                yield GRADIENT_INVARIANCE, direction, before, after, None

    def _scheduled(self, schedule: Schedule) -> None:
        """Another way to the same rows; one whose name begins with ``gradient`` compares gradients."""
        gradient = schedule.name.startswith("gradient")
        tally = self.book[GRADIENT_INVARIANCE if gradient else FORWARD_INVARIANCE]
        where = self.problem, schedule.transform, schedule.name, "gradient" if gradient else FORWARD
        try:
            was, now = schedule.compare(self.subject.function, dict(self.problem.arguments))
        except Exception as error:  # somebody's operation: whatever it raises is told, not thrown
            told = told_in_one_line(error)
            if isinstance(error, TypeError) and not self.subject.own:
                # A function that lacks the arguments that the operation has for caches and chunks.
                self.notes.append(f"{schedule.transform} {schedule.name}: not judged: {told}")
            else:
                tally.drifts.append(self.subject.drift(*where, note=told))
            return
        difference = compare(was.detach(), now.detach())
        tally.measured(difference, evidence=difference.elements > 0)
        if difference.mismatches:
            tally.drifts.append(self.subject.drift(*where, difference))

    def _upright(self, argument: str, tensor: Tensor) -> Tensor:
        return tensor.movedim(self.problem.operator.rows.get(argument, 0), 0) if tensor.ndim else tensor

    def _say(self, what: str) -> None:
        told = ", ".join(f"{name} {size}" for name, size in self.problem.sizes.items())
        self.tell(f"{self.problem.operator.name} {self.problem.dtype} ({told}): {what}")


def _lost(name: str, baseline: Outcome, outcome: Outcome) -> bool:
    return baseline.gradients[name] is not None and outcome.gradients.get(name) is None
