"""The four judgments of an operation: forward and gradient, against the gold and against itself.

Enters: an operator, perhaps somebody's function in its place, types, sizes, a device, a seed. Leaves: a ``Judgement``,
or for a drift that was seen before, whether it is still there.

What the function raises is a finding, told in one line. What cannot run here is no evidence, and that is no pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from brickprof.errors import NothingToJudge
from brickprof.operators.drift import FORWARD, Drift
from brickprof.operators.judgement import JUDGMENTS, Cell, Judgement, Tally
from brickprof.operators.operator import Operator, Sizes
from brickprof.operators.problem import WORDS, Function, Problem
from brickprof.operators.subject import Subject, name_of
from brickprof.operators.transforms import TRANSFORMS, cases
from brickprof.operators.trial import Tell, Trial


def judge(
    operator: Operator,
    *,
    candidate: Function | None = None,
    reference: Function | None = None,
    dtypes: Sequence[str] | None = None,
    sizes: Sequence[Sizes] | None = None,
    device: str = "cpu",
    seed: int = 0,
    transforms: Collection[str] = TRANSFORMS,
    names: tuple[str, str] = ("", ""),
    tell: Tell | None = None,
) -> Judgement:
    """Judges ``operator``, or ``candidate`` in its place. ``names``: of candidate and reference, for a replay."""
    subject = Subject(
        operator, candidate or operator.function, reference or operator.reference,
        names[0] or name_of(candidate), names[1] or name_of(reference), device, seed, transforms,
    )  # fmt: skip
    cells: list[Cell] = []
    notes: list[str] = []
    for dtype in [WORDS[each] for each in operator.dtypes] if dtypes is None else dtypes:
        book = {judgment: Tally(dtype, judgment) for judgment in JUDGMENTS}
        for each in operator.sizes if sizes is None else sizes:
            trial = Trial(subject, Problem.make(operator, each, dtype, device, seed), book, tell or _silent)
            trial.examine()
            notes += trial.notes
        cells += [tally.cell() for tally in book.values()]
    return Judgement(
        operator.name, operator.chain, operator.family, subject.candidate, subject.reference_name, device, seed,
        tuple(cells), tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def replay(
    record: Drift | Mapping[str, Any],
    operator: Operator,
    *,
    candidate: Function | None = None,
    reference: Function | None = None,
    tell: Tell | None = None,
) -> Drift | None:
    """The same drift measured again, or None when it is gone; ``NothingToJudge`` when it cannot be tried any more."""
    drift = record if isinstance(record, Drift) else Drift.from_dict(record)
    again = judge(
        operator, candidate=candidate, reference=reference, dtypes=[drift.dtype], sizes=[drift.sizes],
        device=drift.device, seed=drift.seed, transforms={drift.transform}, names=(drift.candidate, drift.reference),
        tell=tell,
    )  # fmt: skip
    found = next((each for each in again.drifts if each.id == drift.id), None)
    why = "" if found else _not_tried(drift, again, operator)
    if why:
        raise NothingToJudge(f"{drift.id} cannot be tried any more: {why}.")
    return found


def _not_tried(drift: Drift, again: Judgement, operator: Operator) -> str:
    """Why ``again`` says nothing of ``drift``; empty where it was tried and held."""
    accuracy, forward = drift.relation == "A", drift.direction == FORWARD
    cell = again.cell(JUDGMENTS[2 * (not forward) + (not accuracy)], drift.dtype)
    if cell.verdict in ("NOT_EVALUATED", "VACUOUS"):
        return cell.why
    if accuracy:
        raised = next((each.note for each in cell.drifts if not each.elements), "")
        return f"it raises now: {raised}" if raised and drift.elements else ""
    refused = next((note for note in again.notes if note.startswith(f"{drift.transform} {drift.case}: ")), "")
    problem = Problem.make(operator, drift.sizes, drift.dtype, drift.device, drift.seed)
    known = {case.name for case in cases(problem)} | {schedule.name for schedule in operator.schedules}
    return refused if drift.case in known else f"there is no case {drift.case!r}"


def _silent(_: str) -> None:
    return None
