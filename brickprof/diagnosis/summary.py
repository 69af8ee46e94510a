"""What a diagnosis says about its run: who, how long, how it ended, what looking at it cost.

Enters: the run, the timeline, the results. Leaves: the ``run`` part of diagnosis.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import ContractResult
from brickprof.diagnosis.timeline import Timeline
from brickprof.records import RunMeta
from brickprof.rules.names import number, whole

if TYPE_CHECKING:
    from brickprof.run import Run


def about(run: Run | None, timeline: Timeline, results: Iterable[ContractResult]) -> dict[str, Any]:
    meta = run.meta if run is not None else RunMeta("")
    facts: dict[str, Any] = {
        "id": meta.run_id,
        "script": meta.script,
        "source": meta.source,
        "level": meta.level,
        "steps": _steps(timeline),
        "ranks": len(timeline.steps),
        "overhead": _most(timeline, "overhead"),
        "overhead_seconds": _most(timeline, "spent_seconds"),
        "overhead_first_seconds": _most(timeline, "first_seconds"),
        "overhead_settled": _most(timeline, "settled_overhead"),
        "not_evaluated": {
            result.id: result.why for result in results if result.id and result.verdict == "NOT_EVALUATED"
        },
    }
    if timeline.ended is not None:
        facts["exit"] = {name: timeline.ended.fields.get(name) for name in ("code", "class", "text", "seconds")}
    if run is not None and run.path is not None:
        facts["folder"] = str(run.path)
    if run is not None and run.damage:
        facts["damage"] = [str(damage) for damage in run.damage]
    return facts


def _steps(timeline: Timeline) -> int:
    """Steps of the rank that got furthest: what it counted itself, else the last one it spoke of."""
    counted = {rank: whole(event.fields["steps"]) for rank, event in timeline.exits.items() if "steps" in event.fields}
    trained = timeline.losses.count or timeline.updates or timeline.norms.count
    spoken = {rank: last + 1 for rank, last in timeline.steps.items()} if trained else {}
    return max((spoken | counted).values(), default=0)


def _most(timeline: Timeline, field: str) -> float | None:
    """The rank that paid most."""
    told = (number(event.fields.get(field)) for event in timeline.exits.values())
    return max((value for value in told if value is not None), default=None)
