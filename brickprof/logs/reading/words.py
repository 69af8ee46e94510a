"""Texts compared at many places of a chunk at once, eight bytes at a time.

Enters: a chunk with room behind its end, and places in it. Leaves: whether a text stands there, place by place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading.model import Places, Whole

WORD = 8
_EVERYTHING = np.uint64((1 << 64) - 1)

Words = tuple[tuple[np.uint64, np.uint64], ...]
"""A text as words of eight bytes, each with a mask that leaves out what is behind its end."""


def words_of(text: bytes) -> Words:
    parts = (text[at : at + WORD] for at in range(0, len(text), WORD))
    return tuple((np.uint64(int.from_bytes(part, "little")), np.uint64((1 << 8 * len(part)) - 1)) for part in parts)


def stands(words: Words, padded: bytes, places: Whole | Places) -> NDArray[np.bool_]:
    """Whether the text stands at each place. ``padded`` goes on behind the last of them for as long as the text."""
    good = np.ones(len(places), dtype=bool)
    if not words:
        return good
    width = len(words) * WORD
    anywhere: Any = np.ndarray((len(padded) - width + 1,), f"V{width}", padded, 0, (1,))
    found = anywhere[places].view("<u8").reshape(len(places), len(words))
    for at, (word, mask) in enumerate(words):
        good &= (found[:, at] if mask == _EVERYTHING else found[:, at] & mask) == word
    return good
