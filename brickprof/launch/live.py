"""The live line: where the training is, in one line of text.

Enters: the pulses of a run. Leaves: ``step 212 · loss 3.214 · |g| 1.8 · lr 3.0e-04 · 41 ms · brickprof
+0.4 %``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from brickprof import pulse
from brickprof.journal.layout import rank_folders

_SEPARATOR = " · "


def line(beat: pulse.Beat) -> str:
    parts = [f"step {beat.step:,}"]
    for name, value, how in (("loss", beat.loss, ".4g"), ("|g|", beat.norm, ".2g"), ("lr", beat.lr, ".1e")):
        if not (math.isnan(value) and name != "loss") and beat.step > 0:
            parts.append(f"{name} {value:{how}}")
    if beat.step_ns > 0:
        parts.append(duration(beat.step_ns))
    if math.isfinite(beat.overhead):
        parts.append(f"brickprof +{100 * beat.overhead:.1f} %")
    return _SEPARATOR.join(parts)


def duration(nanoseconds: int) -> str:
    milliseconds = nanoseconds / 1e6
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def of_run(folder: Path) -> str:
    """The line of the first rank that has begun to train; "" before that."""
    return next((line(beat) for beat in _beats(folder) if beat.step > 0), "")


def step(folder: Path) -> int:
    """The step that the run is in."""
    return max((beat.step for beat in _beats(folder)), default=0)


def _beats(folder: Path) -> Iterator[pulse.Beat]:
    for rank in rank_folders(folder).values():
        beat = pulse.read(rank)
        if beat is not None:
            yield beat
