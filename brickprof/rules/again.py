"""The same run once more, with a closer look.

Enters: the story, and the step in question. Leaves: a command to paste.
"""

from __future__ import annotations

import shlex

from brickprof.rules.story import Story


def looking_at(story: Story, rank: int, step: int) -> str:
    """The command that captures everything around ``step``."""
    return f"brickprof run --deep-at {step} {_script(story, rank)}"


def in_order(story: Story, rank: int) -> str:
    """The command in which a device finishes each call before the next: an error stops at the line that made it."""
    return f"CUDA_LAUNCH_BLOCKING=1 brickprof run {_script(story, rank)}"


def _script(story: Story, rank: int) -> str:
    started = story.first("run", rank)
    argv = started.fields.get("argv") if started is not None else None
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return shlex.join(words) if words and words[0] else "SCRIPT"
