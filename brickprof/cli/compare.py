"""``brickprof compare``: the first step, brick and tensor where two runs part.

Enters: two runs, recorded or told by logs. Leaves: a table or JSON on stdout; exit code 0 when they are the same, 1
when they differ, 3 when they have nothing in common.
"""

from __future__ import annotations

from typing import Annotated

import typer

_RUN = "A run's folder, the last letters of its id, or a log."


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_RUN)],
    b: Annotated[str, typer.Argument(metavar="B", help="The run to hold it against.")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="How far numbers may be apart; 0 asks for equal bits.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show where two runs part: the first step, brick and tensor.

    Losses, gradients, weights, batches and settings are compared in the order in which they act. With --tolerance,
    measured numbers may differ by so much (relative above one), and bits and batches are not compared. Two logs are
    compared by what they tell: losses, norms and learning rates of the steps that both name.

    Examples: brickprof compare k3f9 m2x7 --tolerance 1e-4

      brickprof compare good/train.log bad/train.log
    """
    import json
    import math
    from dataclasses import replace

    from rich.console import Console

    from brickprof.analysis.opening import open_run
    from brickprof.diagnosis.compare import compare as compared
    from brickprof.errors import UsageError
    from brickprof.reports import comparison

    if not math.isfinite(tolerance):
        raise UsageError("--tolerance has to be a finite number.")
    runs = open_run(a), open_run(b)
    # A log has no id: it is called as it was typed, by which `brickprof show` finds it again.
    names = [typed if run.path is None else run.meta.run_id for typed, run in zip((a, b), runs, strict=True)]
    found = replace(compared(*runs, tolerance), a=names[0], b=names[1])
    if as_json:
        print(json.dumps(comparison.facts(found), indent=2))
    else:
        comparison.render(found, Console(highlight=False))
    return 0 if found.same else 1
