"""Whether a loss moved at all: for rules that need to know if what they saw had an effect.

Enters: a track of losses, one a step. Leaves: how far it fell relative to its start, and whether that is more than its
own noise.
"""

from __future__ import annotations

import numpy as np

from brickprof.rules.story import Track

_FEWEST = 20
_THIRD = 3


def fall(losses: Track) -> float | None:
    """By which part of its start the loss fell between the first third and the last; negative where it rose."""
    values = losses.finite().values
    if len(values) < _FEWEST:
        return None
    part = len(values) // _THIRD
    first, last = float(np.median(values[:part])), float(np.median(values[-part:]))
    return (first - last) / abs(first) if first else None


def noise(losses: Track) -> float:
    """The usual difference between neighbouring losses, relative to their size."""
    values = losses.finite().values
    if len(values) < 2:
        return 0.0
    middle = abs(float(np.median(values))) or 1.0
    return float(np.median(np.abs(np.diff(values)))) / middle


def stands(losses: Track, least: float = 0.02) -> bool:
    """Whether the loss stayed where it was: it fell by less than ``least``, or by less than its own noise."""
    found = fall(losses)
    if found is None:
        return False
    return bool(found < max(least, noise(losses) / np.sqrt(max(1, len(losses) // _THIRD))))
