"""What took the place of our own kernels, for the ``run`` part of diagnosis.json.

Enters: the story. Leaves: ``fallbacks``, a row for each operation (``operation``, ``instead``, ``reason``); nothing for
a run in which every kernel ran. Of a run on the host alone ``statistics_by``: there is nothing for kernels to do.
"""

from __future__ import annotations

from typing import Any

from brickprof.rules.story import Story

_MOST = 8
_NAMES = ("operation", "instead", "reason")


def fallback_facts(story: Story) -> dict[str, Any]:
    told = (event.fields for rank in story.ranks for event in story.events("fallback", rank))
    rows = dict.fromkeys(tuple(str(fields.get(name) or "") for name in _NAMES) for fields in told)
    found = [dict(zip(_NAMES, row, strict=True)) for row in rows][:_MOST]
    facts: dict[str, Any] = {"fallbacks": found} if found else {}
    return facts | ({"statistics_by": "torch's foreach calls"} if _on_host(story) else {})


def _on_host(story: Story) -> bool:
    """Whether every tensor is known to be there."""
    devices = {str(event.fields.get("device")) for rank in story.ranks for event in story.events("tensor", rank)}
    return devices == {"cpu"}
