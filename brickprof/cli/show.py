"""``brickprof show``: a recorded run, or the evidence behind one of its ids.

Enters: a run's folder or id, or a log, and perhaps an evidence id. Leaves: an overview or records, on stdout.
"""

from __future__ import annotations

from typing import Annotated

import typer


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

    Example: brickprof show k3f9 g:212
    """
    import json
    import sys

    from rich.console import Console

    from brickprof.analysis.opening import open_run
    from brickprof.diagnosis import diagnose
    from brickprof.errors import UnreadableInput
    from brickprof.reports import overview, records
    from brickprof.text import clean

    opened = open_run(run)
    console = Console(highlight=False)
    if opened.damage:
        lost = "; ".join(clean(damage) for damage in opened.damage)
        print(f"brickprof: this run is damaged, and what is whole is shown: {lost}", file=sys.stderr)
    if identity is None:
        diagnosis = diagnose(opened)
        if as_json:
            print(json.dumps(overview.facts(opened, diagnosis), indent=2))
        else:
            overview.render(opened, diagnosis, console)
        return
    found = opened.find(identity)
    if not found:
        raise UnreadableInput(f"Nothing in this run is called {clean(identity)}.", "Without an id: an overview.")
    if as_json:
        print(json.dumps(records.facts(found), indent=2, default=str))
    else:
        records.render(found, console)
