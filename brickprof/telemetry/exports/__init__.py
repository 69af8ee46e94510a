"""What a run can be written as, for other tools: one format a file, found without a list to edit.

Enters: a run. Leaves: a file, a folder, or something sent to somebody.

A format is a module here, or of a third party (an entry point ``telemetry.exports.x`` in the group
``brickprof.plugins``), with

    NAME                       what is typed behind --to
    TITLE                      one line about it
    SUFFIX                     the ending of its file; "" for a folder
    write(run, out) -> Path    writes it there, and says where the thing itself is; ``OSError`` when it cannot

and, where it can go to a server, ``send(run, endpoint) -> str``: what was done, in a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof import plugins
from brickprof.errors import NothingToJudge, UsageError
from brickprof.text import clean, file_name

if TYPE_CHECKING:
    from brickprof.run import Run

_NEEDED = ("NAME", "TITLE", "SUFFIX", "write")


def formats() -> dict[str, Any]:
    """Every format by its name, in the order of names."""
    modules = [plugin.module for plugin in plugins.discover(__package__)]
    whole = [module for module in modules if all(hasattr(module, name) for name in _NEEDED)]
    return {module.NAME: module for module in sorted(whole, key=lambda module: str(module.NAME))}


def find(name: str) -> Any:
    known = formats()
    if name not in known:
        raise UsageError(f"--to is {clean(name)!r}.", f"Formats: {', '.join(known)}.")
    return known[name]


def place(module: Any, run: Run, out: Path | None) -> Path:
    """Where ``run`` is written: as asked, into a folder that is there, or beside the run itself."""
    run_name = file_name(run.meta.run_id)
    if module.SUFFIX:
        file = f"{run_name}{module.SUFFIX}"
        return (run.path or Path()) / file if out is None else out / file if out.is_dir() else out
    if out is not None:
        return out
    return run.path / module.NAME if run.path else Path(f"{run_name}-{module.NAME}")


def times_needed(run: Run, what: str) -> None:
    """Says so where ``run`` comes from a log, whose lines have an order and no times of bricks."""
    if run.meta.level == "log":
        raise NothingToJudge(
            f"A log has no timeline, so there is nothing for {what} to show.",
            "Its numbers go to: tensorboard, wandb-csv, csv, parquet.",
        )
