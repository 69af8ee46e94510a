"""``brickprof zoo``: what brickprof finds in trainings of which the truth is known.

Enters: ids, or which part of the zoo. Leaves: a table and figures, JSON and Markdown where asked; 0 when the bar is
met, else 1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brickprof.cli import _writing as writing

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.reference.keeper import Told
    from brickprof.reference.score import Mark, Outcome
    from brickprof.reference.zoo import Specimen

MARK = "<!-- from here on made by: brickprof zoo --markdown -->"


def register(app: typer.Typer) -> None:
    app.command("zoo")(zoo)


def zoo(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help="Faults and controls, such as alb-044a or 'alb-*'.")
    ] = None,
    faults: Annotated[bool, typer.Option("--faults", help="Only the faults.")] = False,
    controls: Annotated[bool, typer.Option("--controls", help="Only the healthy controls.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Faults and controls, which is the default.")] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Only what a GPU shows, or shows differently, and all of it on the GPU.")
    ] = False,
    on_gpu: Annotated[
        bool, typer.Option("--on-gpu", help="Move what the scripts make to the GPU, though they name none.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compile the models of the scripts, though they compile none.")
    ] = False,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Watch them at this level: light, standard (default), deep.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind: numeric, silent, ...")] = None,
    family: Annotated[str | None, typer.Option(metavar="FAMILY", help="Only this family: mlp, gpt, ...")] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at a time; default: a core each.")] = None,
    timeout: Annotated[float, typer.Option(metavar="S", min=1.0, help="Seconds that a run may take.")] = 180.0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON; - for stdout.")
    ] = None,
    markdown_file: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown; - for stdout.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Specimens of your own instead: scripts with a TRUTH.")
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Say what there is, and run nothing.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Keep the runs in this folder.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Judge the runs kept in -o DIR anew, and run nothing.")
    ] = False,
) -> None:
    """Run the faults and the healthy controls, and score what is found in them.

    Example: brickprof zoo --kind numeric --json zoo.json
    """
    from brickprof.errors import UsageError
    from brickprof.reference import zoo as known
    from brickprof.settings import LEVELS

    if level is not None and level not in LEVELS:
        raise UsageError(f"--level is {level!r}.", f"Give one of: {', '.join(LEVELS)}.")
    for option, given in (("--level", level is not None), ("--compiled", compiled)):
        if given and again:
            raise UsageError(f"--again runs nothing, so that {option} has nothing to say.", "Leave one of the two out.")
    both = everything or faults == controls
    ours = known.faults() | known.controls() if folder is None else known.elsewhere(folder)
    pool = [each for each in ours.values() if (both or each.healthy is controls) and (each.for_gpu or not gpu)]
    chosen = choose(pool, ids or [], kind, family)
    shown = writing.console(to_stderr="-" in (json_file, markdown_file))
    if only_list:
        _list(chosen, shown, json_file)
        return
    if again:
        marks = _judged_again(chosen, out)
    else:
        ways = {"on_gpu": on_gpu or gpu, "compiled": compiled, "level": level or ""}
        marks = _judged(chosen, shown, jobs or _cores(), timeout, out, ways)
    raise typer.Exit(_report(marks, shown, json_file, markdown_file))


def choose(pool: Sequence[Specimen], ids: Sequence[str], kind: str | None, family: str | None) -> list[Specimen]:
    """The specimens of ``pool`` that were asked for; a word that fits none is wrong usage."""
    from brickprof.errors import UsageError

    kinds, families = {specimen.kind for specimen in pool}, {specimen.family for specimen in pool}
    for word, option, there in ((kind, "--kind", kinds), (family, "--family", families)):
        if word is not None and word not in there:
            raise UsageError(f"{option} {word!r} fits nothing.", f"There are: {', '.join(sorted(there))}.")
    for word in ids:
        if not any(fnmatchcase(specimen.id, word) for specimen in pool):
            _unknown(word)
    return [
        specimen
        for specimen in pool
        if (not ids or any(fnmatchcase(specimen.id, word) for word in ids))
        and kind in (None, specimen.kind)
        and family in (None, specimen.family)
    ]


def _unknown(word: str) -> None:
    from brickprof.errors import UsageError
    from brickprof.reference import zoo as known

    known.find(word)
    raise UsageError(f"{word!r} is not in the part of the zoo that was asked for.", "See: brickprof zoo --list")


def _judged(
    chosen: Sequence[Specimen], console: Console, jobs: int, timeout: float, out: Path | None, ways: dict[str, Any]
) -> list[Mark]:
    """``ways``: how they are run, as a ``Keeper`` is told."""
    from brickprof.errors import NothingToJudge, OutputError
    from brickprof.reference.keeper import Keeper
    from brickprof.reference.score import judge

    lacks = lacking(chosen, ways["on_gpu"])
    if chosen and all(specimen.needs in lacks for specimen in chosen):
        missing = "GPU" if "gpu" in lacks else "Triton"
        raise NothingToJudge(f"Nothing of what was asked for can run on this machine: there is no {missing}.")
    try:
        with _place(out) as folder, _orderly_end(), _progress(console, len(chosen)) as told:
            kept = out is not None
            keeper = Keeper(folder, timeout=timeout, jobs=jobs, keep_runs=kept, **ways)
            outcomes = keeper.run_all(chosen, lacks, told)
    except OSError as error:
        raise OutputError(f"{out or tempfile.gettempdir()} cannot be written: {error.strerror or error}.") from None
    return [judge(specimen, outcome) for specimen, outcome in zip(chosen, outcomes, strict=True)]


def _judged_again(chosen: Sequence[Specimen], out: Path | None) -> list[Mark]:
    from brickprof.errors import UsageError
    from brickprof.reference.keeper import rejudge
    from brickprof.reference.score import judge

    if out is None or not out.is_dir():
        raise UsageError("--again needs -o DIR with the runs of an earlier `brickprof zoo -o DIR`.")
    return [judge(specimen, rejudge(specimen, out)) for specimen in chosen]


def _place(out: Path | None) -> Any:
    return nullcontext(out) if out is not None else _scratch()


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="brickprof-zoo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """A request to stop ends the runs too, instead of leaving them behind."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def lacking(chosen: Sequence[Specimen], on_gpu: bool = False) -> dict[str, str]:
    """Why what needs a GPU, or Triton, cannot run on this machine; torch is asked in a process of its own."""
    from importlib.util import find_spec

    from brickprof.cli import doctor

    if not on_gpu and all(specimen.needs == "cpu" for specimen in chosen):
        return {}
    gpu = bool(doctor.ask_torch().get("available"))
    lacks = {} if gpu else {"gpu": "needs a GPU", "triton": "needs a GPU and Triton"}
    if on_gpu and not gpu:
        lacks["cpu"] = "no GPU to move it to"
    return lacks if find_spec("triton") else lacks | {"triton": "needs Triton"}


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Told]:
    """A bar on a terminal; elsewhere a line for each run that ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from brickprof.reference.score import judge

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)

        def told(specimen: Specimen, outcome: Outcome) -> None:
            mark = judge(specimen, outcome)
            progress.update(task, advance=1, description=specimen.id)
            if not console.is_terminal:
                word = "right" if mark.right else mark.why or "wrong"
                print(f"{specimen.id}: {word} ({mark.seconds:.1f} s)", file=sys.stderr, flush=True)

        yield told


def _report(marks: Sequence[Mark], console: Console, json_file: str | None, markdown_file: str | None) -> int:
    from brickprof.errors import NothingToJudge
    from brickprof.reference import board
    from brickprof.reference.tally import tally

    if not any(mark.counts for mark in marks):
        raise NothingToJudge("Nothing of what was asked for was run.", "See: brickprof zoo --list")
    figures = tally(marks)
    console.print(board.shown(marks, figures), highlight=False)
    if json_file:
        document = {"schema": 1, "tally": figures.to_dict(), "specimens": [mark.to_dict() for mark in marks]}
        writing.write(json_file, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if markdown_file:
        writing.write(markdown_file, _kept(markdown_file) + board.markdown(marks, figures))
    return 0 if figures.met else 1


def _kept(file: str) -> str:
    """What stands in ``file`` up to the mark behind which the tables belong; nothing where there is no such mark."""
    there = Path(file).read_text("utf-8") if file != "-" and Path(file).is_file() else ""
    before, mark, _ = there.partition(MARK)
    return f"{before}{MARK}\n\n" if mark else ""


def _list(chosen: Sequence[Specimen], console: Console, json_file: str | None) -> None:
    from dataclasses import asdict

    from brickprof.reference import board

    console.print(board.listing(chosen), highlight=False)
    if json_file:
        truths = [asdict(one) | {"path": one.path.name, "files": dict(one.files)} for one in chosen]
        writing.write(json_file, json.dumps(truths, indent=2) + "\n")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
