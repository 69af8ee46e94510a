"""``brickprof show``: a recorded run, or the evidence behind one of its ids.

Enters: a run's folder or id, or a log, and perhaps an evidence id. Leaves: an overview or records, on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from brickprof.run import Run


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, the last letters of its id, or a log.")],
    identity: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An evidence id, such as g:212 or event:17@0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a recorded run, or the evidence behind an id.

    Without an id: the verdict, each finding with its whys, the course of the loss and of the gradient norm, every
    contract with what was observed and what is asked for, the bricks that cost most, and where a step goes. With one:
    the records that it names.

    Examples:

      brickprof show k3f9

      brickprof show k3f9 g:212

      brickprof show k3f9 loss:200-213 --json

    A run that has ended is not judged again: what was found then is shown, as long as nothing has changed since.
    Exit codes: 0 shown; 2 wrong usage, no such run, or nothing of that id in it.
    """
    import json

    from rich.console import Console

    from brickprof.diagnosis import diagnosed, stored
    from brickprof.diagnosis.saving import keep
    from brickprof.errors import UnreadableInput
    from brickprof.reports import overview, records
    from brickprof.text import clean

    opened = _opened(run)
    console = Console(highlight=False)
    if identity is None:
        diagnosis = diagnosed(opened)
        _warn(diagnosis.run.get("damage") or ())
        if as_json:
            print(json.dumps(overview.facts(opened, diagnosis), indent=2))
        else:
            overview.render(diagnosis, console)
        sys.stdout.flush()
        keep(diagnosis, opened)
        return
    kept = stored(opened)
    _warn(opened.damage if kept is None else kept.run.get("damage") or ())
    found = opened.find(identity)
    if not found:
        raise UnreadableInput(f"Nothing in this run is called {clean(identity)}.", "Without an id: an overview.")
    if as_json:
        print(json.dumps(records.facts(found), indent=2, default=str))
    else:
        records.render(found, console)


def _opened(typed: str) -> Run:
    """The run that is meant; what reads logs is loaded only where there is no run of that name."""
    from brickprof.errors import NotARun
    from brickprof.run import Run

    try:
        return Run.open(typed)
    except NotARun:
        from brickprof.analysis.opening import open_run

        return open_run(typed)


def _warn(damage: Iterable[object]) -> None:
    import sys

    from brickprof.text import clean

    if lost := "; ".join(clean(each) for each in damage):
        print(f"brickprof: this run is damaged, and what is whole is shown: {lost}", file=sys.stderr)
