"""The card of a run in a few numbers, for the ``run`` part of diagnosis.json.

Enters: the story. Leaves: ``card`` (name, utilisation, memory, power, temperature, over the training) and ``mfu``;
nothing for a run that was seen on no card.
"""

from __future__ import annotations

from typing import Any

from brickprof.rules import cards
from brickprof.rules.mfu import mfu
from brickprof.rules.story import Story


def card_facts(story: Story) -> dict[str, Any]:
    found = [card for card in cards.cards(story) if card.about is not None and card.looks]
    if not found:
        return {}
    used = mfu(story)
    facts: dict[str, Any] = {"cards": [_facts(card, cards.training(story)) for card in found]}
    return facts | ({"mfu": used.to_dict()} if used is not None else {})


def _facts(card: cards.Card, window: tuple[int, int] | None) -> dict[str, Any]:
    looks = (card.during(window) if window else []) or card.looks
    means = {name: cards.mean(looks, name) for name in ("utilisation", "power", "sm_clock", "temperature")}
    peaks = [value for look in looks if (value := look.value("memory_peak")) is not None]
    limits = {name: looks[-1].value(name) for name in ("memory_total", "power_limit")}
    facts = {"device": card.device, "name": card.name, "looks": cards.count(looks), **means, **limits}
    facts["memory_peak"] = max(peaks, default=None)
    return {name: value for name, value in facts.items() if value is not None}
