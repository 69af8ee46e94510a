"""The same run once more, with a closer look.

Enters: the story, and the step in question. Leaves: a command to paste.
"""

from __future__ import annotations

import shlex

from brickprof.rules.story import Story


def looking_at(story: Story, rank: int, step: int) -> str:
    """The command that captures everything around ``step``."""
    started = story.first("run", rank)
    argv = started.fields.get("argv") if started is not None else None
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return f"brickprof run --deep-at {step} {shlex.join(words) if words and words[0] else 'SCRIPT'}"
