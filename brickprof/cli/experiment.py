"""``brickprof experiment``: run a script again with one thing changed, and say what that shows.

Enters: an experiment, then TARGET (or -m MODULE, or -c CODE) and its arguments as for ``brickprof run``. Leaves: a
verdict with both runs, as text or JSON on stdout (the script's own output goes to stderr); 0 the same, 1 they differ,
2 wrong usage, 3 nothing to judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brickprof.cli.run import LikePython

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.experiments.launch_blocking import Finding

_WORDS = {
    "same": ("✓ SAME  ", "bold green"),
    "order-matters": ("✗ FAILS AS IT IS  ", "bold red"),
    "differ": ("✗ DIFFERENT  ", "bold red"),
    "not-repeatable": ("? NOT REPEATABLE  ", "bold yellow"),
}
_NO_VERDICT = ("? NOTHING TO JUDGE  ", "bold yellow")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run a script again with one thing changed, and compare.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("launch-blocking", cls=LikePython, context_settings={"allow_interspersed_args": False})(
        launch_blocking
    )
    app.add_typer(group, name="experiment")


def launch_blocking(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET ARGS...", help="A script, and its arguments, left untouched.")
    ] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, like python -m.")] = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="Run code, like python -c.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder that will hold the runs.")
    ] = None,
    level: Annotated[str | None, typer.Option("--level", metavar="LEVEL", help="light, standard or deep.")] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="How far numbers may be apart; 0 asks for equal bits.")
    ] = 0.0,
    control: Annotated[
        bool, typer.Option("--control", help="A third run, plain again: is the script repeatable by itself?")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a script as it is and with CUDA_LAUNCH_BLOCKING=1: do they end alike, and where do they part?

    What lacks a wait fails only without the variable; so may a script that does not repeat itself, which --control
    tells. Exit codes: 0 the same; 1 they differ; 2 wrong usage; 3 nothing to judge, as without a GPU.

    Example: brickprof experiment launch-blocking train.py --lr 3e-4
    """
    import math

    from brickprof import settings
    from brickprof.errors import OutputError, UsageError
    from brickprof.experiments import launch_blocking as experiment
    from brickprof.journal.folders import new_run_folder
    from brickprof.launch import target

    if not math.isfinite(tolerance):
        raise UsageError("--tolerance has to be a finite number.")
    chosen = settings.load({"out": str(out) if out else None, "level": level})
    if not command and module is None and code is None:
        raise UsageError(
            "there is nothing to run.", "Give a script: brickprof experiment launch-blocking train.py ARGS..."
        )
    target.resolve(command or [], module=module, code=code)  # says so now, should it not be there
    try:
        folder = new_run_folder(Path(chosen.out), "launch-blocking")
    except OSError as error:
        raise OutputError(
            f"cannot write to {chosen.out}: {error.strerror or error}.", "Choose another with -o."
        ) from None
    script = ("-m", module) if module is not None else ("-c", code) if code is not None else ()
    words = [*script, *(command or [])]
    found = experiment.conduct(
        [*(("--level", level) if level else ()), *words], folder, tolerance=tolerance, control=control
    )
    _show(found, folder, words, as_json=as_json)
    raise typer.Exit(found.exit_code)


def _show(found: Finding, folder: Path, words: list[str], *, as_json: bool) -> None:
    import json

    from brickprof.reports.comparison import portable

    result = json.dumps(portable(found.to_dict()), indent=2)
    kept = _kept(result, folder)
    if as_json:
        print(result)
        return
    from rich.console import Console

    _render(found, kept, words, Console(highlight=False))


def _kept(result: str, folder: Path) -> str:
    """The file that holds the result, beside the runs; why there is none, where it cannot be written."""
    file = folder / "experiment.json"
    try:
        file.write_text(result + "\n", "utf-8")
    except OSError as error:
        return f"not written: {error.strerror or error}"
    return str(file)


def _render(found: Finding, kept: str, words: list[str], console: Console) -> None:
    import shlex

    from rich.text import Text

    from brickprof.reports import comparison, terminal
    from brickprof.text import clean

    lines = [Text.assemble(_WORDS.get(found.outcome, _NO_VERDICT), found.text)]
    for trial in found.trials:
        lines.append(Text(f"  {trial.name:12}{trial.told}"))
        lines.append(Text(f"  {'':12}{clean(trial.folder or 'nothing was recorded')}"))
    lines.append(Text(f"  {'Result':12}{clean(kept)}"))
    if found.lacks_a_wait:
        then = f"brickprof run --sync-check {clean(shlex.join(words))}"
        lines.append(Text(f"  {'Then':12}{then}    names both lines"))
    console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)
    if found.decided and found.comparison is not None and not found.comparison.same:
        comparison.render(found.comparison, console)
