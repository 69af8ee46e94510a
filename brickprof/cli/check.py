"""``brickprof check``: judge a thing without running it. ``check config FILE`` is the first of them.

Enters: a kind of thing and where it is. Leaves: verdicts with their arithmetic; 0 clean, 1 violations, 2 wrong usage,
3 nothing to judge.
"""

from __future__ import annotations

from typing import Annotated

import typer

_CODES = {"PASS": 0, "FAIL": 1, "VACUOUS": 3, "NOT_EVALUATED": 3}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Judge a configuration before anything is run.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("config")(config)
    app.add_typer(group, name="check")


def config(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML, TOML or JSON; Hugging Face's arguments too.")],
    thresholds: Annotated[
        list[str] | None, typer.Option("--set", metavar="CONTRACT.NAME=NUMBER", help="Another threshold.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Work out what a training configuration promises: steps, epochs, warm-up, peak rate, batch, horizon.

    Example: brickprof check config train.yaml
    """
    from pathlib import Path

    from brickprof import settings
    from brickprof.contracts import documents, plans
    from brickprof.contracts.terms import Terms
    from brickprof.reports import plan as shown

    chosen = settings.load({"thresholds": thresholds or None})
    document = documents.read(Path(file))
    opinion = plans.judge(document, Terms(chosen.thresholds, chosen.suppress))
    if as_json:
        print(shown.to_json(document, opinion))
    else:
        from rich.console import Console

        shown.render(document, opinion, Console(highlight=False))
    raise typer.Exit(_CODES[opinion.verdict.value])
