"""C-CAUSAL-001 and C-ROPE-001: what a next-token model sees, and what it is asked for.

Enters: the story: how targets lie to input tokens, whether attention reaches the next place, whether keys differ by
place. Leaves: a place that reads its own answer, because the mask is missing or because the targets are not one place
ahead; PASS where the mask was seen to be closed. Models that are not asked for the next token are not judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number
from brickprof.rules.story import Story

_FOLLOWS = frozenset({"overfitting", "plateau", "not-learning"})
_WHAT_IS_ASKED = {
    -2: "the token two places back",
    -1: "the token before",
    0: "the token that stands there",
    2: "the token after the next",
}


class Causal:
    contract = "C-CAUSAL-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        looks = [event for rank in story.ranks for event in story.events("wiring", rank)]
        asked = [(event, _asked(event, contract.threshold("agreement"))) for event in looks]
        ahead = [event for event, shift in asked if shift == 1]
        leaks = [event for event in ahead if _open(event, contract.threshold("open"))]
        wrong = [(event, shift) for event, shift in asked if shift not in (None, 1) and _closed(event)]
        if leaks and 2 * len(leaks) > len(ahead):
            return outcomes.broken(contract, [_leak(story, leaks, contract)])
        if wrong and 2 * len(wrong) > len(asked) and not ahead:
            return outcomes.broken(contract, [_misaligned(wrong)])
        closed = [event for event in ahead if _closed(event)]
        if closed:
            return outcomes.held(contract, f"{wording.count(len(closed), 'look')}: no place sees the next token")
        return outcomes.unjudged(contract, "no attention over tokens whose next one is the target was seen")


class Places:
    contract = "C-ROPE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        looks = [event for rank in story.ranks for event in story.events("wiring", rank)]
        ahead = [event for event in looks if _asked(event, 0.95) == 1]
        shares = [(event, share) for event in ahead if (share := _first_placeless(event)) is not None]
        if not shares:
            return outcomes.unjudged(contract, "no first attention over tokens was seen that says it")
        blind = [event for event, share in shares if share > contract.threshold("same")]
        if len(blind) < len(shares):
            return outcomes.held(contract, "equal tokens have other keys at other places")
        found = _placeless(story, blind)
        return outcomes.broken(contract, [_never_applied(found, blind) or found])


def next_token(story: Story, rank: int) -> tuple[str, ...]:
    """The records that show that the target is the next token, where most of the looks do."""
    looks = story.events("wiring", rank)
    ahead = [event.id for event in looks if _asked(event, 0.95) == 1]
    return tuple(ahead) if 2 * len(ahead) > len(looks) else ()


def _asked(event: Event, agreement: float) -> int | None:
    """How many places ahead of the input the target lies; None where no shift, or more than one, explains it.

    Where the next token explains it, the next token is meant: lines that repeat themselves agree at other shifts too.
    """
    shares = {pair[0]: number(pair[1]) or 0.0 for pair in _pairs(event.fields.get("shifts"))}
    if not shares:
        return None
    if shares.get(1, 0.0) >= agreement and shares.get(0, 0.0) < 0.9:
        return 1
    best = max(shares, key=lambda shift: shares[shift])
    others = [share for shift, share in shares.items() if shift != best]
    return best if shares[best] >= agreement and max(others, default=0.0) < 0.9 * shares[best] else None


def _pairs(value: Any) -> list[tuple[int, Any]]:
    rows = value if isinstance(value, list) else []
    return [(row[0], row[1]) for row in rows if isinstance(row, list) and len(row) == 2 and isinstance(row[0], int)]


def _attentions(event: Event) -> list[dict[str, Any]]:
    rows = event.fields.get("attention")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _open(event: Event, least: float) -> list[dict[str, Any]]:
    return [row for row in _attentions(event) if (number(row.get("next")) or 0.0) >= least]


def _closed(event: Event) -> bool:
    """Every attention was seen, and none reaches the next place."""
    rows = _attentions(event)
    return bool(rows) and all(number(row.get("next")) == 0.0 for row in rows)


def _first_placeless(event: Event) -> float | None:
    rows = _attentions(event)
    return number(rows[0].get("placeless")) if rows else None


def _leak(story: Story, leaks: list[Event], contract: Contract) -> Violation:
    first = leaks[0]
    rows = _open(first, contract.threshold("open"))
    brick = story.names.show(story.names.brick(first.rank, rows[0].get("brick")))
    count, of = len(rows), len(_attentions(first))
    proof = tuple(event.id for event in leaks[:3])
    symptom = f"attention reads the token that it has to predict: {count} of {of} attentions have no causal mask"
    asked = f"The target at a place is the input token at the next place, in {_share(first, 1)} of all places."
    sees = f"Places whose attention reaches the next place: {(number(rows[0].get('next')) or 0) * 100:.0f} %."
    return Violation(
        contract.id, "causal-leak", Severity.ERROR, symptom, first.step, first.step, brick, "block", first.rank, proof,
        {"question": "Can a place see what comes after it?"}, "causal-leak", 0.92, _FOLLOWS,
        (Because("What is the model asked for?", asked, "loss", proof),
         Because("What does a place see?", sees, brick, proof)), (),
        "Give the attention its causal mask (is_causal=True, or -inf above the diagonal).", static=True,
    )  # fmt: skip


def _misaligned(wrong: list[tuple[Event, int]]) -> Violation:
    first, shift = wrong[0]
    proof = tuple(event.id for event, _ in wrong[:3])
    what = _WHAT_IS_ASKED.get(shift, "another token")
    symptom = f"the target at a place is {what}, in {_share(first, shift)} of all places; the next token is meant"
    seen = "A causal model already has that token at hand, so that it learns to copy it and predicts nothing."
    if shift == 2:
        seen = "The mask is causal, and the token right after a place is never asked for: the shift was made twice."
    action = "Shift once: logits at a place are for the token at the next (inputs ids[:, :-1], targets ids[:, 1:])."
    return Violation(
        "C-CAUSAL-001", "shifted-targets", Severity.ERROR, symptom, first.step, first.step, "data", "loader",
        first.rank, proof, {"question": "Do the targets belong to the inputs?"}, "labels-misaligned", 0.9, _FOLLOWS,
        (Because("What does the model see?", seen, "loss", proof),), (), action, static=True,
    )  # fmt: skip


def _placeless(story: Story, blind: list[Event]) -> Violation:
    first = blind[0]
    brick = story.names.show(story.names.brick(first.rank, _attentions(first)[0].get("brick")))
    proof = tuple(event.id for event in blind[:3])
    return Violation(
        "C-ROPE-001", "placeless", Severity.INFO,
        "nothing tells the first attention where a token stands: equal tokens have equal keys at every place",
        first.step, first.step, brick, "block", first.rank, proof,
        {"question": "Does the model know the order of its tokens?"},
        action="Add positions (rotary, learned or sinusoidal), unless a model without them is meant.", static=True,
    )  # fmt: skip


def _never_applied(found: Violation, blind: list[Event]) -> Violation | None:
    """The tables that would tell the places are there, and nothing calls the modules that hold them."""
    looks = [event for event in blind if event.fields.get("idle")]
    if not looks:
        return None
    paths = [str(path) for path in looks[0].fields["idle"]]
    finding = (
        f"{paths[0]} holds a table, and the forward does not call it: "
        "a path around it is taken, and the model learns without places."
    )
    proof = (*found.evidence[:2], looks[0].id)
    return replace(
        found, severity=Severity.WARNING, brick=paths[0], evidence=proof, cause="silent-fallback", certainty=0.75,
        explains=_FOLLOWS, whys=(Because("Is there nothing that could tell it?", finding, paths[0], proof),),
        action=f"Call {paths[0]} on queries and keys on every path, the fast one too.",
    )  # fmt: skip


def _share(event: Event, shift: int) -> str:
    shares = {pair[0]: number(pair[1]) or 0.0 for pair in _pairs(event.fields.get("shifts"))}
    return f"{shares.get(shift, 0.0) * 100:.0f} %"


RULES = (Causal, Places)
