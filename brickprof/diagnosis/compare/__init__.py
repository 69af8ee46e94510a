"""Two runs side by side: the first step, brick and tensor where they part.

Enters: two runs, and how much they may differ (nothing, unless said). Leaves: a ``Comparison``: for each quantity how
many values were compared and how many differ, and the first difference in causal order: step by step, and within a step
settings, data, forward, loss, backward, clip, update, weights. What only one run looked at is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from brickprof import plugins
from brickprof.diagnosis.compare import values
from brickprof.diagnosis.compare.grids import of_grids
from brickprof.diagnosis.compare.outcome import Difference, Entries, Outcome, of_entries
from brickprof.errors import NothingToJudge
from brickprof.rules.story import Story
from brickprof.run import Run

__all__ = ["Comparison", "Difference", "Row", "compare"]


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity over the whole of both runs."""

    what: str
    compared: int
    different: int
    largest: float | None
    """The largest difference, relative to the values where they are above one; None where there are no numbers."""
    first: Difference | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    a: str
    b: str
    steps: tuple[int, int]
    ranks: tuple[int, int]
    tolerance: float
    rows: tuple[Row, ...]
    first: Difference | None = None
    equal_until: int | None = None
    """The last step, before the first difference, in which something was compared and nothing differed."""

    @property
    def same(self) -> bool:
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "same": self.same, **asdict(self)}

    def _repr_html_(self) -> str:
        html: str = plugins.load("brickprof.notebook", "cards").comparison(self)
        return html


def compare(a: Run, b: Run, tolerance: float = 0.0) -> Comparison:
    """Where ``a`` and ``b`` part. Without a tolerance they have to be equal to the bit."""
    stories = Story.of(a), Story.of(b)
    outcomes = [outcome for outcome in _outcomes(stories, tolerance) if outcome.compared]
    if not outcomes:
        raise NothingToJudge(
            f"{a.meta.run_id} and {b.meta.run_id} have nothing in common that could be compared.",
            "Both need losses, gradients or weights of the same steps and names.",
        )
    first = min((found.first for found in outcomes if found.first is not None), key=lambda item: item[0], default=None)
    rows = [
        Row(found.what, found.compared, found.different, found.largest, found.first[1] if found.first else None)
        for found in outcomes
    ]
    before = {step for found in outcomes for step in found.steps if first is not None and step < first[1].step}
    return Comparison(
        a.meta.run_id, b.meta.run_id, (a.steps, b.steps), (len(stories[0].ranks), len(stories[1].ranks)), tolerance,
        tuple(rows), first[1] if first else None, max(before, default=None),
    )  # fmt: skip


def _outcomes(stories: tuple[Story, Story], tolerance: float) -> Iterator[Outcome]:
    """Everything that can be compared, in the order in which it acts within a step."""
    mine, theirs = stories
    alike = mine.ranks == theirs.ranks
    # With other numbers of ranks, batches and local gradients differ by design; what was reduced should not.
    common = mine.ranks if alike else sorted(set(mine.ranks) & set(theirs.ranks))
    local = mine.ranks if alike else []

    def told(what: str, read: Callable[[Story, int], Entries], ranks: list[int], apart: float = tolerance) -> Outcome:
        a, b = ({place: entry for rank in ranks for place, entry in read(story, rank).items()} for story in stories)
        return of_entries(what, a, b, apart)

    def tensors(what: str, role: str, stage: int, ranks: list[int]) -> Outcome:
        found = Outcome(what)
        for rank in ranks:
            found.add(of_grids(what, role, stage, rank, stories, tolerance))
        return found

    yield told("setting", values.settings, common, 0.0)
    if not tolerance:
        yield told("batch", values.batches, local)
    yield tensors("activation", "activation", 2, local)
    if alike:
        yield told("loss", values.step_losses if tolerance else values.losses, local)
    else:
        yield of_entries("loss", values.mean_losses(mine), values.mean_losses(theirs), tolerance)
    yield tensors("local gradient", "grad_local", 4, local)
    yield told("norm at the clip", values.clips, common)
    yield tensors("gradient", "grad", 6, common)
    yield told("gradient norm", values.norms, common)
    yield told("learning rate", values.rates, common, 0.0)
    yield tensors("weight" if tolerance else "weight bits", "weight", 9, common)
