"""Layers that are built alike: where several do the same, the first stands for them.

Enters: an amount for each block, such as its time or its launches. Leaves: the block that has most, with those that
stand in its place in other layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from brickprof.bricks import Brick
from brickprof.rules.story import Story

_ABOUT = 0.5
"""Layers that have so much of what the one with most has do as it does."""


def alike(amounts: Mapping[Brick, float], story: Story) -> list[Brick]:
    """The one with most, and those of other layers that have about as much, in the order of the forward."""
    most = max(amounts, key=lambda brick: amounts[brick])
    found = [
        brick
        for brick, amount in amounts.items()
        if _layerless(brick) == _layerless(most) and amount >= _ABOUT * amounts[most]
    ]
    return sorted(found, key=lambda brick: story.depth.of(brick) or 0)


def _layerless(brick: Brick) -> tuple[str, str]:
    """Where it stands in its layer, whichever layer that is."""
    return brick.model, re.sub(r"\d+", "#", brick.path)
