"""``brickprof watch``: a run while it is recorded, from another terminal.

Enters: a run, or nothing for the one being recorded. Leaves: a full screen, lines, or one frame; the run is only read.
"""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's folder, the last letters of its id, or a folder of runs."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and leave.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Stay when the run has ended, until q.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="Print lines instead of drawing a screen.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one look as JSON and leave.")] = False,
) -> None:
    """Watch a run while it is recorded: loss, gradients by block, time of a step, findings as they come, ranks, GPU.

    Without RUN it is the run being recorded in brickprof-runs, else the newest there. It may be somebody else's, of
    this machine, and it may be recorded by `brickprof run` or by brickprof.attach. Nothing is written into its folder,
    and the training does not notice.

    Keys: q quits, p pauses, arrows or tab choose a finding. The screen closes when the run ends, and leaves its report.
    Where there is no terminal, a line is printed every five seconds.

    Examples:

      brickprof watch

      brickprof watch k3f9 --stay

      brickprof watch /home/ada/project/brickprof-runs --once

    Exit codes: 0, also for a run that broke; 2 no such run, or one that may not be read.
    """
    import json

    from rich.console import Console

    from brickprof import settings
    from brickprof.errors import UsageError
    from brickprof.live import finding, watching
    from brickprof.live.following import Follow
    from brickprof.reports import terminal
    from brickprof.reports.live.facts import facts
    from brickprof.reports.live.scene import Scene

    if once and stay:
        raise UsageError("--once leaves at once, --stay never.", "Give one of them.")
    folder = finding.the_run(run, settings.load().out)
    console = Console(highlight=False)
    if as_json:
        print(json.dumps(facts(watching.once(folder)), indent=2, allow_nan=False))
        return
    ended_before = Follow(folder).ended
    if once or (ended_before and not stay):
        watching.frame(watching.once(folder), console)
        return
    scene: Scene
    if lines or not watching.on_terminal(console):
        scene = watching.in_lines(folder, console, stay=stay)
    else:
        scene = watching.full_screen(folder, console, stay=stay)
    if scene.condition.over and scene.diagnosis is not None:
        terminal.render(scene.diagnosis, console)
