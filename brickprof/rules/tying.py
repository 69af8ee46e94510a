"""C-TIEDOPT-001: weights that are declared to be one are one, with one state and one update.

Enters: a story. Leaves: a violation for each pair of an embedding and a head that is declared tied, or was equal when
the run began, and lies in two places; and for two parameters over one memory, which is updated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes
from brickprof.rules.names import whole
from brickprof.rules.story import Grid, Story

CONTRACT = "C-TIEDOPT-001"
_FOLLOW = frozenset({"plateau", "slow-learning", "resume", "checkpoint", "tying"})


class _Drift(NamedTuple):
    step: int
    evidence: tuple[str, ...]


class Tying:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        pairs = story.events("tied", rank)
        if not pairs:
            if not story.trained:
                return outcomes.vacuous(contract, "no training was observed")
            return outcomes.vacuous(contract, "no weights are tied, equal, or declared to be tied")
        by_names = {str(pair.fields.get("names")): pair for pair in reversed(pairs)}
        found = [_judged(story, rank, pair, pairs) for pair in by_names.values()]
        violations = [violation for violation in found if violation is not None]
        if violations:
            return outcomes.broken(contract, violations, "one storage, one parameter")
        return outcomes.held(contract, "tied weights are one tensor", "one storage, one parameter")


def _judged(story: Story, rank: int, pair: Event, pairs: list[Event]) -> Violation | None:
    names = [str(name) for name in _listed(pair, "names") or ("", "")]
    if pair.fields.get("same_storage"):
        return None if pair.fields.get("same_parameter", True) else _twice(story, rank, pair, names)
    head = names[-1]
    settled = any(
        other.fields.get("same_storage") and head in _listed(other, "names")
        and other.fields.get("model") == pair.fields.get("model")
        for other in pairs
    )  # fmt: skip
    asked = _declared(story, pair)
    drift = _drift(story, rank, names)
    if settled or not (asked or (pair.fields.get("equal") and drift)):
        return None
    return _parted(story, rank, pair, names, drift, asked=asked)


def _declared(story: Story, pair: Event) -> bool:
    said = [setting.value for setting in declared.settings(story).get("tie_weights", [])]
    return bool(pair.fields.get("declared")) or any(value is True for value in said)


def _parted(story: Story, rank: int, pair: Event, names: list[str], drift: _Drift | None, *, asked: bool) -> Violation:
    one, other = names[0], names[-1]
    reason = "are declared to be tied" if asked else "were equal when the run began"
    evidence = (pair.id, *(drift.evidence if drift else ()))
    apart = f" and differ after step {drift.step:,}" if drift else ""
    where = other.rpartition(".")[0]
    return Violation(
        CONTRACT, "tying", Severity.ERROR if asked else Severity.WARNING,
        f"{one} and {other} {reason}, lie in two places{apart}", pair.step, drift.step if drift else pair.step,
        where, "block", rank, evidence,
        {"question": f"Are {one} and {other} one weight?", "asked": "Are the tied weights still one?"},
        "weight-tying-broken", 0.93 if asked else 0.75, _FOLLOW,
        (Because("Why do they part?", "They are two tensors with a memory each: the head is a copy, and every update "
                 "moves each of them by its own gradient.", where, evidence),),
        action=f"Share the parameter after the model is built and after every load: {where or 'head'}.weight = "
        f"{one.rpartition('.')[0] or 'embedding'}.weight.",
        static=True,
    )  # fmt: skip


def _twice(story: Story, rank: int, pair: Event, names: list[str]) -> Violation | None:
    """Two parameters over one memory: each has a gradient and a state, and both are applied to it."""
    numbers = [whole(each, -1) for each in _listed(pair, "tensors")]
    owned = story.names.owned(rank)
    if len(set(numbers)) < 2 or not owned.issuperset(numbers):
        return None
    where = names[-1].rpartition(".")[0]
    return Violation(
        CONTRACT, "tying", Severity.WARNING,
        f"{names[0]} and {names[-1]} share their memory and are two parameters: the optimizer updates it twice",
        pair.step, pair.step, where, "block", rank, (pair.id,),
        {"question": "Are the tied weights one parameter?", "asked": "Are the tied weights still one?"},
        "weight-tying-broken", 0.8, _FOLLOW,
        (Because("Why twice?", "Their .data is one tensor, but each is a parameter of its own with its own gradient "
                 "and its own state.", where, (pair.id,)),),
        action="Assign the parameter itself (head.weight = embedding.weight), not its .data.", static=True,
    )  # fmt: skip


def _drift(story: Story, rank: int, names: list[str]) -> _Drift | None:
    """The first step after which the two weights were seen to be different."""
    grid = story.grid("weight", rank)
    places = [_place(grid, name) for name in (names[0], names[-1])]
    if None in places:
        return None
    one, other = (int(place) for place in places if place is not None)
    for look, step in enumerate(grid.steps):
        bits = grid.checksum[look, one], grid.checksum[look, other]
        if -1 not in bits and bits[0] != bits[1]:
            return _Drift(int(step), (grid.evidence(look, one), grid.evidence(look, other)))
    return None


def _place(grid: Grid, name: str) -> int | None:
    found: Iterator[int] = (at for at, each in enumerate(grid.tensors) if each == name or each.endswith(f".{name}"))
    return next(found, None)


def _listed(event: Event, name: str) -> list[Any]:
    value = event.fields.get(name)
    return value if isinstance(value, list) else []


RULE = Tying
