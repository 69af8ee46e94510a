"""``brickprof demo``: the reference training twice, once as it should be and once with a mistake that somebody made.

Enters: perhaps the id of a fault. Leaves: two runs with their verdicts; 0 when both are what they should be, else 1.
"""

from __future__ import annotations

from typing import Annotated

import typer

_FAULT = "alb-044a"


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    fault: Annotated[
        str, typer.Option("--fault", metavar="ID", help="Which mistake; `brickprof zoo --list`.")
    ] = _FAULT,
    steps: Annotated[int, typer.Option(min=10, help="Steps of the healthy training.")] = 120,
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder for the runs.")] = "brickprof-runs",
) -> None:
    """Train a small Llama twice, once healthy and once broken, and show what brickprof says of each.

    Example: brickprof demo --fault alb-044a
    """
    from brickprof.reference import zoo

    found = zoo.find(fault)
    healthy = ["-m", "brickprof.reference", "--config", "tiny", "--steps", str(steps)]
    broken = ["-m", "brickprof.reference", "--config", "tiny", "--fault", fault]
    if found.family != "reference":
        broken = [str(found.path), *found.args]
    _title("A training that is fine")
    first = _run(out, "healthy", healthy, ())
    _title(f"The same, with a mistake: {found.title}")
    second = _run(out, "broken", broken, found.run, found.files)
    raise typer.Exit(0 if (first, second) == ("PASS", "FAIL") else 1)


def _title(text: str) -> None:
    print(f"\n=== {text} ===\n", flush=True)


def _run(
    out: str, name: str, target: list[str], flags: tuple[str, ...], files: tuple[tuple[str, str], ...] = ()
) -> str:
    """Runs it under watch, in a folder of its own where it brings files, and says how it was judged."""
    import json
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    home = Path(out).absolute()
    with tempfile.TemporaryDirectory(prefix="brickprof-demo-") as scratch:
        for file, text in files:
            (Path(scratch) / file).write_text(text, "utf-8")
        before = set(home.glob("*")) if home.is_dir() else set()
        command = [sys.executable, "-m", "brickprof", "run", "-o", str(home), "--name", f"demo-{name}", *flags, *target]
        subprocess.run(command, cwd=scratch if files else None, check=False)
    fresh = [path for path in home.glob("*/diagnosis.json") if path.parent not in before]
    if len(fresh) != 1:
        return "NOT_EVALUATED"
    verdict: str = json.loads(fresh[0].read_text("utf-8"))["verdict"]
    return verdict
