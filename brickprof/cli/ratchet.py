"""``brickprof ratchet``: a finding becomes an obligation and a test, so that it does not come back.

Enters: a run and one of its findings. Leaves: two files in the user's repository, shown before they are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from brickprof.ratchet.writing import Plan


def register(app: typer.Typer) -> None:
    app.command("ratchet")(ratchet)


def ratchet(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or the last letters of its id.")],
    finding: Annotated[
        str, typer.Argument(metavar="FINDING", help="F1, its number, its contract or its root cause.")
    ] = "F1",
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The repository to write into (default: the one around here).")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call it, instead of the root cause.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print both files and write nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there and say something else.")
    ] = False,
) -> None:
    """Keep a finding from coming back: write what must hold, and a test that fails until it does.

    Two files: brickprof-contracts/NAME.yaml, a contract that every later run in this repository is judged by, with its
    bound taken from the steps before anything was wrong; and tests/test_ratchet_NAME.py, which trains again under
    brickprof (pytest fixture brickprof_run) and asserts that the contract passed and the cause was not found. Both are
    yours to edit: shorten the training, move the bound.

    Examples:

      brickprof ratchet k3f9

      brickprof ratchet k3f9 F2 --dry-run

      brickprof ratchet k3f9 C-CLIP-001 --name no-clipping --into ../trainer

    Exit codes: 0 written; 2 wrong usage, no such finding, or a file is there that says something else.
    """
    from brickprof.errors import UsageError
    from brickprof.ratchet import writing
    from brickprof.run import Run
    from brickprof.settings import repository

    root = into if into is not None else repository(Path.cwd())
    if not root.is_dir():
        raise UsageError(f"{root} is no folder.", "Give the repository's own with --into.")
    made = writing.plan(Run.open(run), finding, root.resolve(), name=name)
    _show(made)
    if dry_run:
        _print_pages(made)
        return
    writing.write(made, force=force)
    _say_next(made)


def _show(made: Plan) -> None:
    from brickprof.diagnosis.words import words
    from brickprof.ratchet.command import Hidden
    from brickprof.ratchet.documents import measure
    from brickprof.text import clean

    finding, rows = made.case.finding, []
    rows.append(("Found", f"{clean(words(finding.root_cause))} ({finding.id} of {clean(made.case.run_name)})"))
    for place, proposal in enumerate(made.case.proposals):
        rows.append(("" if place else "Must hold", clean(proposal.says)))
        rows.append(("", f"  {clean(measure(proposal))}"))
        rows.append(("", f"  {clean(proposal.because)}"))
    words_ = made.case.command.words
    shown = [clean(f"{each.before}..." if isinstance(each, Hidden) else each, limit=100) for each in words_]
    rows.append(("Trains", " ".join(shown)))
    rows += [("Note", clean(note)) for note in made.case.command.notes]
    for place, page in enumerate(made.pages):
        state = {"new": "new", "unchanged": "there already", "different": "THERE, AND DIFFERENT"}[page.state]
        rows.append(("" if place else "Writes", f"{clean(page.path.relative_to(made.root))}    {state}"))
    _print_rows(rows)


def _say_next(made: Plan) -> None:
    import shlex

    from brickprof.text import clean

    test, run = (shlex.quote(clean(each)) for each in (made.test.path.relative_to(made.root), made.run))
    _print_rows([
        ("Then", f"pytest {test}    fails until this is put right"),
        ("", f"pytest {test} --brickprof-run {run}    on this run, without training"),
    ])  # fmt: skip


def _print_rows(rows: list[tuple[str, str]]) -> None:
    for label, text in rows:
        _print(f"  {label:11}{text}".rstrip())


def _print_pages(made: Plan) -> None:
    import difflib

    from brickprof.text import clean

    for page in made.pages:
        place = str(page.path.relative_to(made.root))
        _print(f"\n--- {place}")
        if page.state == "different":
            there, ours = page.there.splitlines(), page.text.splitlines()
            for line in difflib.unified_diff(there, ours, "as it is", "as it would be", lineterm=""):
                _print(clean(line, limit=2_000, one_line=False))
        else:
            _print(page.text.rstrip("\n"))


def _print(text: str) -> None:
    import sys

    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
