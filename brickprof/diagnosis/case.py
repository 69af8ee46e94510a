"""The case that causes are weighed in: everything that is known of the run.

Enters: the story (columns, for what is judged over many steps) and the timeline (what led up to a moment). Leaves:
both.
"""

from __future__ import annotations

from dataclasses import dataclass

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules.story import Story


@dataclass(frozen=True, slots=True)
class Case:
    story: Story
    timeline: Timeline
    violations: tuple[Violation, ...] = ()
    """Everything that was found broken, symptoms and mechanisms."""
