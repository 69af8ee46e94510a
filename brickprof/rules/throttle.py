"""Clocks that a card holds down by itself.

Enters: the reasons that the card gave, second by second, joined to the steps by time. Leaves: C-THROTTLE-001: heat, a
power supply or a fault that slows a card, with the share of the time and what a step took meanwhile. A card at its own
power limit works hard; that is told only where the clocks are far down.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import cards, outcomes
from brickprof.rules.cards import Card, Looks
from brickprof.rules.story import Story

_SLOWS = frozenset({"thermal", "hw_thermal", "hw_slowdown", "power_brake"})
_POWER = frozenset({"power_cap"})


class Throttle:
    contract = "C-THROTTLE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found, window = cards.sampled(story, contract), cards.training(story)
        if isinstance(found, ContractResult):
            return found
        least = contract.threshold("looks")
        told = [(card, looks) for card in found if cards.count(looks := _told(card, window)) >= least]
        if not told:
            return outcomes.unjudged(contract, "too few looks at the clocks: one a second is taken")
        threshold = "no slowdown for heat, power supply or a fault"
        slow = [one for card, looks in told if (one := _throttled(story, card, looks, contract)) is not None]
        if slow:
            return outcomes.broken(contract, slow, threshold)
        capped = max(_share(looks, _POWER) for _, looks in told)
        return outcomes.held(contract, f"clocks not held down; at the power limit {capped:.0%} of the time", threshold)


def _told(card: Card, window: tuple[int, int] | None) -> list[Looks]:
    return [look for look in card.during(window) if look.share(_SLOWS) is not None] if window else []


def _share(looks: list[Looks], words: frozenset[str]) -> float:
    return sum((look.share(words) or 0.0) * look.count for look in looks) / cards.count(looks)


def _throttled(story: Story, card: Card, looks: list[Looks], contract: Contract) -> Violation | None:
    words = _SLOWS if _often(_share(looks, _SLOWS), looks, contract) else _POWER
    share, clock = _share(looks, words), _clock(card, looks, words)
    low = clock is not None and clock < contract.threshold("clock")
    if words is _POWER and not (share >= 0.5 and low):  # a card that works hard is at its power limit: that is healthy
        return None
    effect = cards.slower(story, looks, lambda look: _held(look, words))
    felt = effect[0] >= contract.threshold("longer") if effect else low
    severity = Severity.WARNING if felt and words is _SLOWS else Severity.INFO
    return _slowdown(card, looks, words, share, clock, effect, severity, contract)


def _often(share: float, looks: list[Looks], contract: Contract) -> bool:
    return share >= contract.threshold("share") and share * cards.count(looks) >= contract.threshold("times")


def _held(look: Looks, words: frozenset[str]) -> bool | None:
    """None where a line holds both: an average says nothing about one step."""
    share = look.share(words)
    return None if share is None or 0.2 < share < 0.8 else share >= 0.8


def _clock(card: Card, looks: list[Looks], words: frozenset[str]) -> float | None:
    """The clock while held down, as a share of the highest."""
    top = card.fact("sm_clock_max")
    held = [look.value("sm_clock") for look in looks if _held(look, words)]
    known = [clock for clock in held if clock is not None]
    return float(np.median(known)) / top if top and known else None


def _slowdown(
    card: Card, looks: list[Looks], words: frozenset[str], share: float, clock: float | None,
    effect: tuple[float, float] | None, severity: Severity, contract: Contract,
) -> Violation:  # fmt: skip
    held = [look for look in looks if (look.share(words) or 0.0) > 0]
    why = Counter(word for look in held for word in _words(look) if word in words)
    reason = ", ".join(_IN_WORDS.get(word, word) for word, _ in why.most_common(2))
    symptom = f"{card.name} held its clocks down {share:.0%} of the time: {reason}"
    details = [f"to {clock:.0%} of the highest clock" if clock is not None else ""]
    hottest = max((value for look in held if (value := look.value("temperature")) is not None), default=None)
    details.append(f"at up to {hottest:.0f} °C" if hottest is not None else "")
    text = f"The clocks went down {', '.join(each for each in details if each) or 'by themselves'}"
    if effect is not None:
        text += f"; a step took {effect[0]:+.0%} then, and {effect[1]:.0%} of the steps were made so"
    question = "What did it cost?"
    return Violation(
        contract.id, "throttled", severity, symptom, held[0].event.step, held[-1].event.step, "", "step", 0,
        tuple(look.event.id for look in held[:3]), cause="hardware-error" if severity is Severity.WARNING else "",
        certainty=0.85, explains=frozenset({"slow"}), whys=(Because(question, f"{text}.", ""),),
        details={"question": question, "asked": question, "share": share, "longer": effect[0] if effect else None},
        action=_COOL if words is _SLOWS else "",
    )  # fmt: skip


def _words(look: Looks) -> list[str]:
    told = look.event.fields.get("throttled")
    return [str(word) for word in told] if isinstance(told, dict) else []


_IN_WORDS = {
    "thermal": "too hot (the driver slows it)", "hw_thermal": "too hot (the hardware slows it)",
    "hw_slowdown": "the hardware slows it", "power_brake": "the power supply slows it", "power_cap": "its power limit",
}  # fmt: skip
_COOL = (
    "Look at its cooling and its power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER), or use another card."
)


RULE = Throttle
