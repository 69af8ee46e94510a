"""C-GPUINIT-001: an optimizer's moments begin at zero, and the first update makes them from the gradient alone.

Enters: a story. Leaves: one violation for each optimizer whose moments held something before the first update, or do
not follow from its gradients: m = (1 - b1) g and v = (1 - b2) g^2 after one update, and v is never below zero. An
optimizer that is none of torch's may have a rule of its own: there, only what was there before counts, and what no rule
makes of finite gradients: no numbers, millions of times their size, or a moment that has nothing of gradient or weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-GPUINIT-001"
_LOW = ("float16", "bfloat16", "half")
_KNOWN = ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop")
_FOLLOW = frozenset({"nonfinite", "diverged", "spike", "exploding", "not-learning", "plateau", "slow-learning"})


class InitialState:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        events = [event for rank in story.ranks for event in story.events("moments", rank)]
        if not events:
            return outcomes.unjudged(contract, "no optimizer with moments was looked at in its first update")
        violations = [found for event in events for found in _judged(story, event, contract)]
        if violations:
            return outcomes.broken(contract, violations, "m = (1 - b1) g, v = (1 - b2) g^2, v >= 0")
        looked = sum(_known(row) for event in events for row in _rows(event))
        if not looked:
            return outcomes.unjudged(contract, "the optimizer keeps its moments in a way of its own")
        observed = f"moments of {wording.count(looked, 'tensor')} follow from their gradients"
        return outcomes.held(contract, observed, "m = (1 - b1) g, v = (1 - b2) g^2, v >= 0")


def _judged(story: Story, event: Event, contract: Contract) -> Iterator[Violation]:
    rows = _rows(event)
    loose = str(event.fields.get("dtype", "")) in _LOW
    most = contract.threshold("error_in_low_precision" if loose else "error")
    stale = [] if _restored(story, event) else [row for row in rows if row.get("stale")]
    negative = [row for row in rows if (low := number(row.get("v_min"))) is not None and low < 0]
    wrong = [row for row in rows if _strange(row, most)]
    made_up = [row for row in rows if _made_up(row, contract)]
    share = contract.threshold("share_of_tensors")
    if stale or negative or made_up or (wrong and len(wrong) >= share * len(rows)):
        yield _violation(story, event, stale, made_up, negative, wrong, len(rows))


def _made_up(row: dict[str, Any], contract: Contract) -> bool:
    """Whether a moment that began in this update holds what no rule makes of its gradients."""
    beyond = _error(row, "beyond") >= contract.threshold("beyond")
    strange = _error(row, "unlike") >= contract.threshold("unlike")
    return bool(row.get("broken")) or beyond or (strange and _error(row, "grown") >= contract.threshold("grown"))


def _violation(
    story: Story, event: Event, stale: list[dict[str, Any]], made_up: list[dict[str, Any]],
    negative: list[dict[str, Any]], wrong: list[dict[str, Any]], looked: int,
) -> Violation:  # fmt: skip
    cls = str(event.fields.get("cls") or "the optimizer")
    shown = stale or made_up or negative or wrong
    tensor = story.names.tensor(event.rank, whole(shown[0].get("tensor"), -1))
    of = f"{len(shown)} of {wording.count(looked, 'tensor')}"
    if stale:
        symptom = f"the moments of {of} held values before the first update of {cls}"
    elif made_up:
        symptom = f"the moments of {of} hold after the first update of {cls} what its gradients did not bring: "
        symptom += _strangest(made_up)
    elif negative:
        symptom = f"the second moment of {of} is negative after the first update that was seen"
    else:
        worst = max(max(_error(row, "m_error"), _error(row, "v_error")) for row in wrong)
        symptom = f"the moments of {of} do not follow from their gradients: off by {worst:.3g} of their size"
    begun = bool(stale or made_up)
    finding = (
        f"{story.names.show_tensor(tensor)}: "
        + ("m and v are not (1 - b1) g and (1 - b2) g^2", "the state was not zero when it was first used")[begun]
        + ": memory that was used before, or a state that was made without being cleared."
    )
    sure = begun or cls in _KNOWN
    fresh = bool(stale) or whole(event.fields.get("count"), 1) <= 1
    # An optimizer of one's own may take its memory from where others write: then the state is a symptom.
    certainty = (0.95 if cls in _KNOWN else 0.88) if stale else 0.9 if made_up else 0.85 if fresh else 0.6
    return Violation(
        CONTRACT, "optimizer-state", Severity.ERROR if sure else Severity.INFO, symptom, event.step, event.step, "",
        "optimizer", event.rank, (event.id,), {"question": "Is the first update made of the gradients?",
                      "asked": "What was the first update made of?", "tensor": tensor.name},
        "optimizer-state-uninitialised", certainty, _FOLLOW,
        (Because("Why is the first update wrong?", finding, "", (event.id,)),),
        action="Make the moments with torch.zeros_like (not torch.empty, not memory from a pool that is not cleared).",
        static=True,
    )  # fmt: skip


def _strangest(rows: list[dict[str, Any]]) -> str:
    broken = sum(whole(row.get("broken"), 0) for row in rows)
    if broken:
        return f"{wording.count(broken, 'element')} of those looked at are no finite numbers"
    beyond = max(_error(row, "beyond") for row in rows)
    if beyond > 1e3:
        return f"{beyond:.3g} times the largest gradient or weight"
    return f"{max(_error(row, 'unlike') for row in rows) * 100:.0f} % of it is neither gradient nor weight"


def _known(row: dict[str, Any]) -> bool:
    """Whether there was a moment to compare with its gradient."""
    return any(number(row.get(name)) is not None for name in ("m_error", "v_error", "beyond"))


def _strange(row: dict[str, Any], most: float) -> bool:
    """Whether a moment holds what no gradient gave it, or lacks what one did."""
    return max(_error(row, "m_error"), _error(row, "v_error")) > most


def _restored(story: Story, event: Event) -> bool:
    """Whether a file brought the state: then it may well be there before the first update."""
    given = [each for each in story.events("restored", event.rank) if each.fields.get("what") == "optimizer"]
    return any(each.moment < event.moment for each in given)


def _rows(event: Event) -> list[dict[str, Any]]:
    listed = event.fields.get("tensors")
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _error(row: dict[str, Any], name: str) -> float:
    return number(row.get(name)) or 0.0


RULE = InitialState
