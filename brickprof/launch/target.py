"""What to run: the words after ``brickprof run`` as a command line.

Enters: TARGET and its arguments, or ``-m module``, or ``-c code``. Leaves: a ``Target``, the command
that plain Python (or the shell, for a program on PATH such as torchrun) would run, its arguments
untouched.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brickprof.errors import UsageError
from brickprof.text import clean, file_name

_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.")
_MOST_NAMES = 2000
_NOT_THE_SCRIPTS = ("-I", "-E", "-s", "-S", "-P")
"""Flags of brickprof's own start that say nothing about the script, and would keep capture out."""


@dataclass(frozen=True, slots=True)
class Target:
    command: tuple[str, ...]
    script: str
    """What the user would call it: a path, a module, ``-c``."""
    name: str
    """The first part of the run folder's name."""
    python: bool
    """Whether the command itself is a Python process, and not, say, a shell that starts some."""
    wrapped: tuple[str, ...] = ()
    """The script's own command, where the command is a tool that starts it."""


def resolve(words: Sequence[str], *, module: str | None = None, code: str | None = None) -> Target:
    """The target that ``words`` name, or a ``UsageError`` that says what to type instead."""
    if module is not None:
        if not module:
            raise UsageError("-m needs the name of a module.")
        return _of_module(module, words)
    if code is not None:
        return Target((*python(), "-c", code, *words), "-c", "code", python=True)
    if not words:
        raise UsageError("there is nothing to run.", "Give a script: brickprof run train.py ARGS...")
    first, *rest = words
    if first == "-":
        return Target((*python(), "-", *rest), "-", "stdin", python=True)
    if Path(first).exists():
        return _of_file(first, rest)
    if program := shutil.which(first) if os.sep not in first else None:
        return Target((program, *rest), first, _script_name(rest) or file_name(first), _is_python(program))
    raise UsageError(_missing(first))


def python() -> tuple[str, ...]:
    """This interpreter with the flags it was given (-O, -W, -X, -u, ...)."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return (sys.executable, *(flag for flag in flags if flag not in _NOT_THE_SCRIPTS))


def _of_module(module: str, words: Sequence[str]) -> Target:
    inner = _script_name(words) if module.startswith(_LAUNCHER_MODULES) else ""
    return Target((*python(), "-m", module, *words), f"-m {module}", inner or file_name(module), python=True)


def _of_file(path: str, rest: Sequence[str]) -> Target:
    name = file_name(Path(path).resolve().name.removesuffix(".py"))
    if _is_program(path):
        program = path if os.sep in path else f".{os.sep}{path}"
        return Target((program, *rest), path, _script_name(rest) or name, _is_python(program))
    return Target((*python(), path, *rest), path, name, python=True)


def _script_name(words: Sequence[str]) -> str:
    """The name of the script that a launcher is given among its own arguments."""
    for word in words:
        if word.endswith(".py") and Path(word).is_file():
            return file_name(Path(word).stem)
    return ""


def _first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.readline(256)
    except OSError:
        return b""


def _is_program(path: str) -> bool:
    """An executable file that says itself it is not Python: a shell script, a compiled program."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return False
    line = _first_line(path)
    return line.startswith(b"\x7fELF") or (line.startswith(b"#!") and b"python" not in line)


def _is_python(program: str) -> bool:
    line = _first_line(program)
    real = Path(program).resolve().name
    return (line.startswith(b"#!") and b"python" in line) or real.startswith("python")


def _missing(path: str) -> str:
    folder, name = os.path.split(path)
    where = "" if folder else " here"
    problem = f"there is no file {clean(path, limit=200)}{where}."
    close = difflib.get_close_matches(name, _names(folder or "."), n=1, cutoff=0.6)
    return f"{problem} Did you mean {clean(os.path.join(folder, close[0]))}?" if close else problem


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
    except OSError:
        return []
    scripts = [name for name in found if name.endswith(".py")]
    return scripts or found
