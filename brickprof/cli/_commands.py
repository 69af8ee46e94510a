"""The commands as typer knows them.

Enters: nothing, or the name of the one command that was typed. Leaves: the app. Only whoever has options to parse or
help to print waits for typer: it is a fifth of the time that ``brickprof show`` may take.
"""

from __future__ import annotations

from typing import Annotated

import typer

from brickprof import __version__, plugins


def build(only: str = "") -> tuple[typer.Typer, list[str]]:
    """The app with every command, and notes on those of third parties that could not be loaded.

    With ``only`` the one of that name, where it is ours and no third party has commands: typer takes as long to look
    at all options of all commands as a report takes to be made.
    """
    app = typer.Typer(
        name="brickprof",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    ours = [name for name in plugins.names(__package__) if name != "app"]
    if only in ours and not plugins.others(__package__):
        plugins.load(__package__, only).register(app)
        return app, []
    found = plugins.discover(__package__, leave_out=("app",))
    for register in found.exports("register").values():
        register(app)
    return app, list(found.notes)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"brickprof {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Runs a training script, records what happens in it, and says where and why it broke."""
