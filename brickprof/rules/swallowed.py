"""C-SENTINEL-001, its third part: what a model computes is what was written, not what an except clause has instead.

Enters: the story: exceptions that came out of the user's own code in a few early forwards, while training went on.
Leaves: a violation for a line that raised in every call of its function, in every look, and was never heard of.

An exception now and then is how ordinary code decides; so are those with which it asks what there is (an optional
package, a file, a device, a process group) or what the numbers allow (a division, a factorisation). These are told as
worth knowing, unless the module in which they are raised has parameters that no gradient reaches: then what took over
is not the same computation.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

from brickprof.bricks import Brick
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import Tensor, whole
from brickprof.rules.ownership import some
from brickprof.rules.story import Story

CONTRACT = "C-SENTINEL-001"
_FOLLOWS = frozenset({
    "no-gradient", "not-learning", "plateau", "slow-learning", "underfitting", "vanishing", "gradient-decay",
    "small-updates", "no-update", "dead-units", "saturated-units", "constant-loss", "placeless", "launch-storm", "slow",
})  # fmt: skip
_QUESTIONS = (ImportError, NotImplementedError, OSError, LookupError, ArithmeticError)
_OF_THE_NUMBERS = frozenset({"LinAlgError", "_LinAlgError"})
_SURROUNDINGS = ("importlib", "torch.accelerator", "torch.backends", "torch.cuda", "torch.distributed")
_MOST_TOLD = 3
_MOST_LETTERS = 160


class Fallback(NamedTuple):
    """A line that raised whenever it was reached, in one or several modules."""

    row: dict[str, Any]
    bricks: tuple[Brick, ...]
    times: int
    calls: int


class Fallbacks:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        for rank in story.ranks:
            looks = story.events("swallowed", rank)
            found = _fallbacks(story, rank, looks) if len(looks) >= contract.threshold("looks") else []
            if found:
                return outcomes.broken(contract, [_violation(story, rank, looks, each) for each in found[:_MOST_TOLD]])
        most = max((len(story.events("swallowed", rank)) for rank in story.ranks), default=0)
        if not most:
            return outcomes.unjudged(contract, "whether forwards swallow exceptions was not looked at")
        seen = f"no line raised in every call, in {wording.count(most, 'forward')}"
        return outcomes.unjudged(contract, f"{seen}; later ones were not looked at")


def _fallbacks(story: Story, rank: int, looks: list[Event]) -> list[Fallback]:
    """In the order in which they were raised; of several for the same modules (one raised from another) the first."""
    rows = [{_key(row): row for row in _rows(event)} for event in looks]
    always = [key for key in rows[0] if all(key in each and _whenever(each[key]) for each in rows)]
    by_line: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in always:
        by_line.setdefault(key[:-1], []).append(key)
    found: dict[tuple[Brick, ...], Fallback] = {}
    for keys in by_line.values():
        bricks = tuple(brick for key in keys if (brick := story.names.brick(rank, key[-1])) is not None)
        times, calls = (sum(whole(each[key].get(name)) for each in rows for key in keys) for name in ("times", "calls"))
        found.setdefault(bricks, Fallback(rows[0][keys[0]], bricks, times, calls))
    return list(found.values())


def _rows(event: Event) -> list[dict[str, Any]]:
    listed = event.fields.get("sites")
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The line and what it raised; the module last."""
    return (*(str(row.get(name, "")) for name in ("at", "function", "type")), row.get("brick"))


def _whenever(row: dict[str, Any]) -> bool:
    return 0 < whole(row.get("calls")) <= whole(row.get("times"))


def _asks(row: dict[str, Any]) -> bool:
    """Whether such code asks what there is or what can be computed, and may well live with the answer."""
    kind = getattr(builtins, str(row.get("kind", "")), Exception)
    raised_in = f"{row.get('raised_in', '')}."
    asked = isinstance(kind, type) and issubclass(kind, _QUESTIONS)
    around = any(raised_in.startswith(f"{name}.") for name in _SURROUNDINGS)
    return asked or around or row.get("type") in _OF_THE_NUMBERS


def _starved(story: Story, rank: int, bricks: tuple[Brick, ...]) -> list[Tensor]:
    """Trained parameters of these modules whose gradient was zero or missing whenever it was looked at."""
    looks = [event for event in story.events("grad", rank) if event.step > 0]
    if not looks:
        return []
    without = set.intersection(*({*_numbers(event, "zero"), *_numbers(event, "missing")} for event in looks))
    inside = [story.names.tensor(rank, each) for each in sorted(without)]
    inside = [tensor for tensor in inside if any(_holds(brick, tensor) for brick in bricks)]
    return [tensor for tensor in inside if story.names.trained(rank, tensor)]


def _numbers(event: Event, name: str) -> list[int]:
    listed = event.fields.get(name)
    return [each for each in listed if isinstance(each, int)] if isinstance(listed, list) else []


def _holds(brick: Brick, tensor: Tensor) -> bool:
    return tensor.model == brick.model and (not brick.path or tensor.name.startswith(f"{brick.path}."))


def _violation(story: Story, rank: int, looks: list[Event], found: Fallback) -> Violation:
    row, starved = found.row, _starved(story, rank, found.bricks)
    names = [name for brick in found.bricks if (name := story.names.show(brick))]
    where = names[0] if names else ""
    others = f" and {wording.count(len(names) - 1, 'other')}" if len(names) > 1 else ""
    line, function, proof = row.get("at"), row.get("function"), tuple(event.id for event in looks[:4])
    forward = f"every forward of {where}{others}" if where else "every forward"
    symptom = f"{_quoted(row)} is raised in {forward} and swallowed ({line}, {function})"
    finding = (
        f"All {wording.count(found.calls, 'call')} of {function} in {wording.count(len(looks), 'look')} raised there, "
        "and the forward went on with something else."
    )
    if starved:
        finding += f" No gradient reaches {some(story, starved)}: what took over does without."
    severity = Severity.INFO if _asks(row) and not starved else Severity.WARNING
    return Violation(
        CONTRACT, "swallowed", severity, symptom, looks[0].step, looks[1].step if len(looks) > 1 else looks[0].step,
        where, "block", rank, proof, {"question": "What does the forward compute?", "asked": "What runs instead?"},
        "silent-fallback", 0.95 if starved else 0.9, _FOLLOWS,
        (Because("Does the code that was written ever run?", finding, where, proof),), (),
        f"Fix the call at {line}; where a fallback is wanted, let its except clause say that it was taken.",
        experiment="Take the try away for one run: it will stop at that line in the first step.", static=True,
    )  # fmt: skip


def _quoted(row: dict[str, Any]) -> str:
    message = str(row.get("message", ""))
    cut = f"{message[: _MOST_LETTERS - 3]}..." if len(message) > _MOST_LETTERS else message
    return f'{row.get("type")} "{cut}"' if cut else str(row.get("type"))


RULE = Fallbacks
