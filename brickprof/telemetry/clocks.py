"""How far the clocks of the ranks are apart.

Enters: a run. Leaves: for each rank, what has to be added to its times so that they fit the first rank's.

Processes of one host share its clock. Those of another host are laid by what ranks do together: nobody leaves a
barrier before all have come, so all leave it at about the same moment. Where there are too few of them, nothing is
moved: a guess would look like a measurement.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brickprof.run import Run
    from brickprof.run.parts import Part

_FEWEST = 3
_WAITING = frozenset({"barrier", "monitored_barrier", "all_gather_object"})
"""The host itself waits in these, whatever the backend; of others a device may still be at work when it goes on."""
Meeting = tuple[str, str, int]


def offsets(run: Run) -> dict[int, int]:
    """Nanoseconds to add to each rank's times; 0 where its clock is the first rank's, or nothing tells."""
    parts = [part for part in run.parts if part.rank >= 0]
    if not parts:
        return {}
    home, met = _host(parts[0]), _meetings(parts[0])
    return {part.rank: 0 if _host(part) == home else _apart(met, _meetings(part)) for part in parts}


def _apart(first: dict[Meeting, int], other: dict[Meeting, int]) -> int:
    gaps = [first[each] - other[each] for each in first.keys() & other.keys()]
    return int(median(gaps)) if len(gaps) >= _FEWEST else 0


def _meetings(part: Part) -> dict[Meeting, int]:
    """When this rank left each collective that all of its group had to come to."""
    found: dict[Meeting, int] = {}
    for event in part.events:
        fields = event.fields
        done = event.kind == "collective" and fields.get("phase") == "done" and not fields.get("asynchronous")
        if done and fields.get("op") in _WAITING and isinstance(fields.get("seq"), int):
            found[str(fields.get("group")), str(fields["op"]), fields["seq"]] = event.time_ns
    return found


def _host(part: Part) -> str:
    return next((str(event.fields.get("host", "")) for event in part.events if event.kind == "run"), "")
