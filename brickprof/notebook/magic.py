"""``%%brickprof``: records the training of a cell, shows what became of it, and leaves the run behind.

Enters: a cell and the words behind the magic. Leaves: the cell's own effects and nothing else in its namespace but the
run; its display, then the ``Diagnosis``, then its exception where it raised one.
"""

from __future__ import annotations

import argparse
import ast
import keyword
import os
import shlex
from pathlib import Path
from typing import Any, NoReturn

from IPython import display
from IPython.core.error import UsageError

from brickprof import settings
from brickprof.errors import BrickprofError
from brickprof.text import clean

RUN, DIAGNOSIS = "_brickprof_run", "_brickprof_diagnosis"
"""The names under which the last run and its diagnosis are found."""


def register(shell: Any) -> None:
    """Adds ``%%brickprof`` to an IPython shell; a second time changes nothing."""
    shell.register_magic_function(CellMagic(shell).brickprof, "cell", "brickprof")


def unregister(shell: Any) -> None:
    shell.magics_manager.magics["cell"].pop("brickprof", None)


class CellMagic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def brickprof(self, line: str, cell: str) -> None:
        """Record the training in this cell, then show its diagnosis.

            %%brickprof [--level light|standard|deep] [--out DIR] [--name NAME] [--as VAR]

        Models, optimizers and training functions of earlier cells are found by themselves; afterwards nothing of
        brickprof is left in torch. `%%brickprof --help` says what the options mean.

            %%brickprof --as first
            train(model, steps=200)

        Then: first.plot.loss(), first.plot.gradients(), first.grads, brickprof.diagnose(first).
        """
        from brickprof.capture.cell import Cell
        from brickprof.contracts.terms import Terms

        __tracebackhide__ = "__ipython_bottom__"  # an error of the cell begins with the cell
        asked = _asked(line)
        if asked is None:
            return
        pieces = self._compiled(cell)
        try:
            chosen = settings.load({"level": asked.level, "out": asked.out})
            Terms.of(chosen)  # says so now, should a threshold be misspelt
            recording = Cell(chosen, asked.name or self._name())
        except BrickprofError as error:
            raise UsageError(str(error)) from None
        try:
            with recording:
                for piece in pieces:
                    self._shell.ex(piece)
        finally:
            self._tell(recording.run, asked.variable)

    def _compiled(self, cell: str) -> list[Any]:
        """The cell as code; its last expression apart, so that it is shown. Tracebacks and sources find its lines."""
        shell = self._shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        pieces = [shell.compile(tree, name, "exec")]
        if last is not None:
            pieces.append(shell.compile(ast.Interactive([last]), name, "single"))
        return pieces

    def _tell(self, folder: Path, variable: str) -> None:
        """Shows the diagnosis. Whatever goes wrong with that is no reason to hide the cell's own error."""
        from brickprof.api import diagnose, load
        from brickprof.diagnosis.saving import write
        from brickprof.notebook import cards

        try:
            run = load(folder)
            diagnosis = diagnose(run)
            write(diagnosis, folder, run)
        except Exception as error:
            print(f"brickprof: {clean(error)} Recorded in {clean(folder)}.")
            return
        cards.at_hand(run)
        self._shell.push({RUN: run, DIAGNOSIS: diagnosis, **({variable: run} if variable else {})})
        _show(diagnosis)

    def _name(self) -> str:
        """The notebook's own name, where whoever shows it has said so."""
        said = self._shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME") or "notebook"
        return Path(str(said)).stem or "notebook"


_show: Any = display.display


class _Words(argparse.ArgumentParser):
    """Complains the way IPython's own magics do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%brickprof: {clean(message)} (%%brickprof --help)")


def _parser() -> _Words:
    words = _Words(
        "%%brickprof", description="Record the training in this cell, then show its diagnosis.", add_help=False
    )
    words.add_argument("--level", choices=settings.LEVELS, help="how closely to look; default: standard")
    words.add_argument("--out", metavar="DIR", help="the folder that will hold the run's own; default: brickprof-runs")
    words.add_argument("--name", metavar="NAME", help="what the run is called; default: the notebook's name")
    words.add_argument(
        "--as", dest="variable", metavar="VAR", default="", help=f"leave the Run in this variable too, beside {RUN}"
    )
    words.add_argument("--help", "-h", action="store_true", help="say this, and run nothing")
    return words


def _asked(line: str) -> argparse.Namespace | None:
    """What was typed; None for somebody who asked what there is."""
    words = _parser()
    try:
        asked = words.parse_args(shlex.split(line))
    except ValueError as error:  # a quotation that does not end
        raise UsageError(f"%%brickprof: {error}") from None
    if asked.help:
        print(words.format_help())
        return None
    if asked.variable and (not asked.variable.isidentifier() or keyword.iskeyword(asked.variable)):
        raise UsageError(f"%%brickprof: --as {clean(asked.variable)} is no name for a variable.")
    return asked
