"""A scene as one line, where there is no terminal to draw on.

Enters: a ``Scene``. Leaves: ``running · step 212 · 0:01:20 · loss 3.214 · ...``, and a line for each new finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brickprof.diagnosis.words import words
from brickprof.reports.live import screen
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Finding
    from brickprof.reports.live.scene import Scene


def line(scene: Scene) -> str:
    said = scene.condition.text
    state = f"{scene.condition.word} ({said})" if said else scene.condition.word
    numbers = "".join(text for text, _ in screen.numbers(scene))
    behind = [rank for rank in scene.ranks if rank.step < scene.step and rank.state != "finished"]
    told = f" · {len(scene.ranks)} ranks" if len(scene.ranks) > 1 else ""
    ranks = f"{told}, {len(behind)} behind" if told and behind else told
    return f"{state} · {numbers}{ranks}"


def finding(found: Finding) -> str:
    cause = f"{words(found.root_cause)}, {100 * found.confidence:.0f} %"
    return f"{found.severity.value} in step {found.first_step:,}: {clean(found.symptom)} ({clean(cause)})"
