"""``brickprof run``: a script under watch.

Enters: options, then TARGET and its arguments, which are the script's own from the first on. Leaves: the
script's exit code.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_TAKE_THE_REST = ("-m", "-c")


class LikePython(TyperCommand):
    """``-m MODULE`` and ``-c CODE`` end the options, as they do for python."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _fenced(args, self._options_with_value()))

    def _options_with_value(self) -> frozenset[str]:
        return frozenset(
            name
            for parameter in self.params
            if not getattr(parameter, "is_flag", False)
            for name in parameter.opts
            if name.startswith("-")
        )


def _fenced(args: list[str], valued: frozenset[str]) -> list[str]:
    """``args`` with ``--`` behind the module or the code, so that nothing after it is read as ours."""
    at = 0
    while at < len(args):
        word = args[at]
        if word in _TAKE_THE_REST:
            return [*args[: at + 2], "--", *args[at + 2 :]] if at + 1 < len(args) else args
        if word[:2] in _TAKE_THE_REST:
            return [*args[:at], word[:2], word[2:], "--", *args[at + 1 :]]
        if not word.startswith("-") or word in ("-", "--"):
            return args
        at += 2 if word in valued else 1
    return args


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        cls=LikePython,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS]",
    )(run)


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET ARGS...", help="A script, and its arguments, left untouched."),
    ] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, like python -m.")] = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="Run code, like python -c.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder that will hold the run's own folder."),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The run's name, instead of the script's.")] = "",
    level: Annotated[str | None, typer.Option("--level", metavar="LEVEL", help="light, standard or deep.")] = None,
    deep_at: Annotated[
        str | None, typer.Option(metavar="STEP", help="Capture everything around this step, whatever the level.")
    ] = None,
    sync_check: Annotated[
        bool,
        typer.Option("--sync-check", help="Find missing syncs between streams and the host; --level deep does too."),
    ] = False,
    overhead: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="The share of time that capture may take: 1%, at level light 0.3%."),
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most that one rank's journal takes: 256MB, 1GiB.")
    ] = None,
    hang: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Look at the stacks when nothing moves for so long; 0: never."),
    ] = None,
    otlp: Annotated[str | None, typer.Option(metavar="URL", help="Send spans to this OTLP endpoint.")] = None,
    fail_on: Annotated[
        str,
        typer.Option(metavar="WHEN", help="error, warning or never: exit 1 when the run has such a finding."),
    ] = "never",
    halt_on: Annotated[
        str,
        typer.Option(metavar="WHEN", help="error, warning or never: interrupt the script at its next step."),
    ] = "never",
    page: Annotated[
        str, typer.Option(metavar="WHEN", help="failed, always or never: write report.html into the run's folder.")
    ] = "failed",
    config: Annotated[
        str,
        typer.Option(metavar="FILE", help="The script's configuration: what it declares is checked against the run."),
    ] = "",
    sanitizer: Annotated[
        str,
        typer.Option(metavar="TOOL", help="memcheck, racecheck, initcheck or synccheck: run under compute-sanitizer."),
    ] = "",
    thresholds: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="CONTRACT.NAME=NUMBER", help="Another threshold; again for more."),
    ] = None,
    suppress: Annotated[
        list[str] | None,
        typer.Option(metavar="CONTRACT=REASON", help="Only note what breaks this contract; again for more."),
    ] = None,
    no_live: Annotated[bool, typer.Option("--no-live", help="No live line; output goes straight through.")] = False,
) -> None:
    """Run a script, record what happens in it, and say where and why it broke.

    Example: brickprof run -o runs train.py --lr 3e-4
    """
    from brickprof import settings as configuration
    from brickprof.errors import UsageError
    from brickprof.launch import sanitizer as sanitizers
    from brickprof.launch import supervisor, target
    from brickprof.launch.conclusion import FAIL_ON, PAGES
    from brickprof.text import file_name

    chosen = ("--fail-on", fail_on, FAIL_ON), ("--halt-on", halt_on, FAIL_ON), ("--page", page, PAGES)
    for flag, given, known in chosen:
        if given not in known:
            raise UsageError(f"{flag} is {given!r}.", f"Give one of: {', '.join(known)}.")
    if sanitizer:
        sanitizers.checked(sanitizer)
    overrides = {
        "out": out,
        "level": level,
        "deep_at": deep_at,
        "sync_check": sync_check or None,
        "overhead": overhead,
        "max_bytes": max_size,
        "hang_seconds": hang,
        "otlp": otlp,
        "thresholds": thresholds or None,
        "suppress": suppress or None,
    }
    settings = configuration.load(overrides)
    wishes = supervisor.Wishes(
        live=not no_live, fail_on=fail_on, halt_on=halt_on, page=page, name=file_name(name) if name else "",
        config=config, sanitizer=sanitizer,
    )  # fmt: skip
    resolved = target.resolve(command or [], module=module, code=code)
    raise typer.Exit(supervisor.run(resolved, settings, wishes))
