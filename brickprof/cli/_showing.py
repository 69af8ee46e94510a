"""What ``brickprof show`` does, without its options.

Enters: a run's folder or id, or a log, and perhaps an evidence id. Leaves: an overview or records, on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from brickprof.errors import NotARun, UnreadableInput
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

_JUDGED = "judged.json"  # as ``brickprof.diagnosis.keeping`` calls it


def overview(typed: str, *, as_json: bool = False) -> Run:
    """The verdict, the findings and the course of a run, which comes back; kept where nobody had judged it yet."""
    run = _opened(typed)
    if run.path is not None and not (run.path / _JUDGED).exists():
        run.read_ahead()  # nobody has judged it: what judges is loaded while it is read
    from rich.console import Console

    from brickprof.diagnosis import diagnosed
    from brickprof.diagnosis.saving import keep
    from brickprof.reports import overview

    diagnosis = diagnosed(run)
    _warn(diagnosis.run.get("damage") or ())
    if as_json:
        print(json.dumps(overview.facts(run, diagnosis), indent=2))
    else:
        overview.render(diagnosis, Console(highlight=False))
    sys.stdout.flush()
    keep(diagnosis, run)
    return run


def evidence(typed: str, identity: str, *, as_json: bool = False) -> None:
    """The records that an id names."""
    from rich.console import Console

    from brickprof.diagnosis import stored
    from brickprof.reports import records

    run = _opened(typed)
    kept = stored(run)
    _warn(run.damage if kept is None else kept.run.get("damage") or ())
    found = run.find(identity)
    if not found:
        raise UnreadableInput(f"Nothing in this run is called {clean(identity)}.", "Without an id: an overview.")
    if as_json:
        print(json.dumps(records.facts(found), indent=2, default=str))
    else:
        records.render(found, Console(highlight=False))


def _opened(typed: str) -> Run:
    """The run that is meant; what reads logs is loaded only where there is no run of that name."""
    from brickprof.run import Run

    try:
        return Run.open(typed)
    except NotARun:
        from brickprof.analysis.opening import open_run

        return open_run(typed)


def _warn(damage: Iterable[object]) -> None:
    if lost := "; ".join(clean(each) for each in damage):
        print(f"brickprof: this run is damaged, and what is whole is shown: {lost}", file=sys.stderr)
