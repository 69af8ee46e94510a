"""What is said of an operation: four judgments for each type, and who is to blame.

Enters: differences, refusals and missing evidence, one by one. Leaves: ``Cell``, one judgment in one type, and
``Judgement``, all of an operation. Verdicts are those of contracts: only PASS is a pass, and without evidence there
is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from brickprof.operators.bits import Difference, portable
from brickprof.operators.drift import Drift

Verdict = Literal["PASS", "FAIL", "VACUOUS", "NOT_EVALUATED"]
FORWARD_ACCURACY = "forward accuracy"
FORWARD_INVARIANCE = "forward invariance"
GRADIENT_ACCURACY = "gradient accuracy"
GRADIENT_INVARIANCE = "gradient invariance"
JUDGMENTS = (FORWARD_ACCURACY, FORWARD_INVARIANCE, GRADIENT_ACCURACY, GRADIENT_INVARIANCE)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """One FAIL fails, and a pass needs something that passed."""
    seen = set(verdicts)
    for verdict in ("FAIL", "PASS", "VACUOUS"):
        if verdict in seen:
            return verdict
    return "NOT_EVALUATED"


@dataclass(frozen=True, slots=True)
class Cell:
    """One judgment of one operation in one type, over all its problems."""

    dtype: str
    judgment: str
    verdict: Verdict
    cases: int = 0
    """How many comparisons it rests on."""
    max_error: float = 0.0
    mean_error: float = 0.0
    """The largest mean over the problems."""
    share: float = 0.0
    """The largest error as a share of what was allowed; of accuracy only."""
    why: str = ""
    drifts: tuple[Drift, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in ("max_error", "mean_error", "share"):
            fields[name] = portable(fields[name])
        return fields | {"drifts": [drift.id for drift in self.drifts]}


@dataclass(frozen=True, slots=True)
class Judgement:
    operator: str
    chain: int
    family: str
    candidate: str
    reference: str
    device: str
    seed: int
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return overall(cell.verdict for cell in self.cells)

    @property
    def blame(self) -> str:
        """Invariance comes first: a kernel that is not equal to itself has no accuracy to speak of."""
        failed = {cell.judgment for cell in self.cells if cell.verdict == "FAIL"}
        if failed & {FORWARD_INVARIANCE, GRADIENT_INVARIANCE}:
            return "kernel"
        return "accuracy" if failed else ""

    @property
    def drifts(self) -> tuple[Drift, ...]:
        return tuple(drift for cell in self.cells for drift in cell.drifts)

    def cell(self, judgment: str, dtype: str) -> Cell:
        return next(cell for cell in self.cells if (cell.judgment, cell.dtype) == (judgment, dtype))

    def to_dict(self) -> dict[str, Any]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        cells, notes = [cell.to_dict() for cell in self.cells], list(self.notes)
        return {**fields, "verdict": self.verdict, "blame": self.blame, "cells": cells, "notes": notes}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], drifts: Iterable[Drift]) -> Judgement:
        """The judgement that was written as ``fields``; its drifts stand beside it in a file."""
        by_id = {drift.id: drift for drift in drifts}
        named = {each.name for each in dataclasses.fields(cls)} - {"cells", "notes"}
        cells = tuple(_cell(each, by_id) for each in fields["cells"])
        return cls(cells=cells, notes=tuple(fields["notes"]), **{name: fields[name] for name in named})


def _cell(fields: Mapping[str, Any], by_id: Mapping[str, Drift]) -> Cell:
    errors = {name: float(fields[name]) for name in ("max_error", "mean_error", "share")}
    return Cell(**{**fields, **errors, "drifts": tuple(by_id[identity] for identity in fields["drifts"])})


@dataclass
class Tally:
    """The evidence on one judgment while it is being gathered."""

    dtype: str
    judgment: str
    cases: int = 0
    max_error: float = 0.0
    mean_error: float = 0.0
    share: float = 0.0
    drifts: list[Drift] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def measured(self, difference: Difference, *, evidence: bool = True) -> None:
        self.cases += evidence
        self.max_error = max(self.max_error, difference.max_error)
        self.mean_error = max(self.mean_error, difference.mean_error)
        self.share = max(self.share, difference.share)

    def cell(self) -> Cell:
        verdict, why = self._verdict()
        return Cell(
            self.dtype, self.judgment, verdict, self.cases, self.max_error, self.mean_error, self.share, why,
            tuple(self.drifts),
        )  # fmt: skip

    def _verdict(self) -> tuple[Verdict, str]:
        if self.failures or self.drifts:
            return "FAIL", next(iter([*self.failures, *(drift.note for drift in self.drifts if drift.note)]), "")
        if self.cases:
            return "PASS", ""
        if self.missing:
            return "NOT_EVALUATED", self.missing[0]
        return "VACUOUS", next(iter(self.empty), "no case applies")
