"""The command line: commands found by themselves, and the one place where errors become exit codes.

Enters: arguments. Leaves: an exit code. A command is a module of this package with ``register(app)``;
nothing heavy is imported before a command runs. What is typed most, ``show RUN``, has nothing in it to be parsed, and
waits for no parser.
"""

from __future__ import annotations

import difflib
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brickprof import plugins
from brickprof.errors import BrickprofError, UsageError
from brickprof.text import clean

if TYPE_CHECKING:
    import typer

_ONLY_READ = ("report", "show")
INTERRUPTED, BROKEN_PIPE = 130, 141
_SELDOM = 100_000
"""Objects between two looks for cycles in garbage: a command makes records by the ten thousand, which hold none."""


def build(only: str = "") -> tuple[typer.Typer, list[str]]:
    """The app with every command, or with ``only`` one (see ``_commands``), and notes on those that would not load."""
    from brickprof.cli import _commands

    return _commands.build(only)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        gc.set_threshold(_SELDOM, *gc.get_threshold()[1:])
        if given and given[0] in _ONLY_READ:
            gc.disable()  # it holds on to nearly all that it makes until it ends, which is soon
            from brickprof.journal import errands

            errands.alone()
    held: list[object] = []
    try:
        code = _run(given or ["--help"], held)
        sys.stdout.flush()
        if arguments is None and given and given[0] in _ONLY_READ:
            sys.stderr.flush()
            os._exit(code)  # to take apart what a long run was read into, object by object, takes as long as a report
        return code if given else UsageError.exit_code
    except BrickprofError as error:
        _say(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except SystemExit as error:
        # typer and rich meet a broken pipe themselves, and end with a code that would say that something failed.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _reader_is_gone()


def _reader_is_gone() -> int:
    """Quietly: the interpreter's own flush at exit must not say so again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    return BROKEN_PIPE


def _run(arguments: list[str], held: list[object]) -> int:
    """One command; what is put into ``held`` is not taken apart before the process ends."""
    if _plainly_shown(arguments):
        from brickprof.cli import _showing

        held.append(_showing.overview(arguments[1]))
        return 0
    import typer

    app, notes = build(arguments[0])
    for note in notes:
        _say(note, "")
    _check_command(app, arguments)
    try:
        code = app(args=arguments, prog_name="brickprof", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # typer's own usage errors; their class has moved between its versions, their shape has not.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        raise UsageError(_sentence(error.format_message()), _see(arguments)) from None
    return code if isinstance(code, int) else 0


def _plainly_shown(arguments: list[str]) -> bool:
    """Whether it is ``show RUN``, without any option and with no command of a third party beside it."""
    plain = len(arguments) == 2 and arguments[0] == "show" and arguments[1].isprintable()
    return plain and not arguments[1].startswith("-") and not plugins.others(__package__)


def _check_command(app: typer.Typer, arguments: list[str]) -> None:
    known = [command.name for command in app.registered_commands if command.name]
    known += [group.name for group in app.registered_groups if group.name]
    word = next((argument for argument in arguments if not argument.startswith("-")), None)
    if word is None or word in known or any(a in ("-h", "--help", "--version") for a in arguments[:1]):
        return
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        hint = f"Did you mean {near[0]}?"
    elif word.endswith(".py"):
        hint = f"Did you mean brickprof run {clean(word)}?"
    else:
        hint = f"Commands: {', '.join(known)}."
    raise UsageError(f"there is no command {clean(word)}.", hint)


def _see(arguments: list[str]) -> str:
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    return f"See: {' '.join(part for part in ('brickprof', command, '--help') if part)}"


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _say(message: str, hint: str) -> None:
    text = f"brickprof: {clean(message, limit=2000)} {clean(hint, limit=2000)}".rstrip()
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
