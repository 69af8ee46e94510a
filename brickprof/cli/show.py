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
    from brickprof.cli import _showing

    if identity is None:
        _showing.overview(run, as_json=as_json)
    else:
        _showing.evidence(run, identity, as_json=as_json)
