"""What a recorded run was started with, as a test in the repository can start it again.

Enters: a run, and the root of the repository. Leaves: a ``Command``: the words behind ``brickprof run``, the folder to
start them in, the configuration they were checked against. A value that looks like a secret is not written down: the
test reads it from the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof import settings
from brickprof.errors import UsageError

if TYPE_CHECKING:
    from brickprof.records import Event
    from brickprof.run import Run

_SECRETS = frozenset({"secret", "password", "passwd", "passphrase", "credential", "credentials", "apikey"})
_LONG = 16
_KEY = re.compile(r"\+{0,2}[\w./-]+")
"""As Hydra and OmegaConf take them."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """A word of the command line, or its end, that stands in an environment variable instead."""

    variable: str
    before: str = ""
    """What comes before it in the same word: ``wandb.api_key=``."""


Word = str | Hidden


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]
    cwd: str = ""
    """Relative to the repository's root; empty for the root itself."""
    config: str = ""
    level: str = ""
    """Empty for the usual one."""
    notes: tuple[str, ...] = ()
    """What the user should look at."""


def recorded(run: Run, root: Path) -> Command:
    """The command of ``run``; UsageError where there is none to start again."""
    if run.meta.source not in ("capture", "attach") or not _startable(run):
        raise UsageError(
            "this run does not say how it was started: it was told by a log or a notebook, typed into an interpreter, "
            "or its meta.json is damaged.",
            "Record one with brickprof run, and ratchet that.",
        )
    words = _words(run)
    started = Path(str(run.meta.extra.get("cwd") or root))
    notes: list[str] = []
    cwd = inside(started, root)
    if cwd is None:
        notes.append(f"it was started in {started}, outside of this repository: look at the paths among its arguments")
    words = [_script(words[0], started, root, moved=cwd is None), *words[1:]]
    if Path(words[0]).is_absolute():
        notes.append(f"{words[0]} lies outside of this repository: a test of it works on this machine only")
    words = _launched(words, run)
    hidden = _hidden(words)
    notes += [f"${word.variable} takes the place of a value that looks like a secret" for word in hidden
              if isinstance(word, Hidden)]  # fmt: skip
    notes += _other_terms(run, root)
    level = run.meta.level if run.meta.level != "standard" else ""
    return Command(tuple(hidden), cwd or "", _config(run), level, tuple(notes))


def _startable(run: Run) -> bool:
    """An attachment knows what ``sys.argv`` had: nothing of an interactive session, and not the code behind ``-c``."""
    known = run.meta.argv[:1]
    return bool(known) and not (run.meta.source == "attach" and known[0] in ("", "-", "-c"))


def _words(run: Run) -> list[str]:
    """The words that were given to ``brickprof run``: without the interpreter and its flags."""
    argv, script = list(run.meta.argv), run.meta.script
    if run.meta.source == "attach":
        return argv
    if script.startswith("-m ") and "-m" in argv:
        return argv[argv.index("-m") :]
    if script == "-c" and "-c" in argv:
        return argv[argv.index("-c") :]
    if script in argv:
        return argv[argv.index(script) :]
    return [script or argv[0], *argv[1:]]


def _script(word: str, started: Path, root: Path, *, moved: bool) -> str:
    """The script as it is called from where the test will start it."""
    if word.startswith("-") or not (started / word).exists():
        return word
    home = root if moved else started
    found = inside(started / word, home)
    return found if found is not None else str((started / word).resolve())


def inside(path: Path, root: Path) -> str | None:
    """``path`` relative to ``root``, empty for the root itself; None where it lies elsewhere."""
    try:
        relative = path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return None
    return "" if relative == "." else relative


def _launched(words: list[str], run: Run) -> list[str]:
    """Ranks that a launcher started above brickprof, each of which recorded only its own part of the command."""
    ranks = {event.fields.get("rank") for event in _of_launch(run, "start")} - {None}
    if len(ranks) < 2 or words[0] == "-c":
        return words
    return ["torchrun", "--nproc-per-node", str(len(ranks)), *words]


def _other_terms(run: Run, root: Path) -> list[str]:
    """What the run was judged by and a test would not be: given on the command line, and not in the project."""
    here = settings.load(start=root)
    for table, known in (("thresholds", set(here.thresholds)), ("suppress", set(here.suppress))):
        told = run.meta.extra.get(table)
        missing = sorted(set(told) - known) if isinstance(told, dict) else []
        if missing:
            return [f"it was run with another term for {', '.join(missing)}: put that under [tool.brickprof.{table}]"]
    return []


def _config(run: Run) -> str:
    told = (event.fields.get("source") for event in _of_launch(run, "config"))
    return next((source for source in told if isinstance(source, str)), "")


def _of_launch(run: Run, kind: str) -> list[Event]:
    return [event for part in run.parts if part.rank < 0 for event in part.events if event.kind == kind]


def _hidden(words: list[str]) -> list[Word]:
    """``words`` with the values of options that sound secret taken out."""
    found: list[Word] = []
    option = ""
    for word in words:
        name, separator, value = word.partition("=")
        if option and not word.startswith("-") and _secret(option, word):
            found.append(Hidden(_variable(option)))
        elif separator and name.startswith("--") and _secret(name, value):
            found += [name, Hidden(_variable(name))]
        elif separator and _KEY.fullmatch(name) and _secret(name, value):
            found.append(Hidden(_variable(name), name + separator))
        else:
            found.append(word)
        option = word if word.startswith("--") and not separator else ""
    return found


def _secret(option: str, value: str) -> bool:
    parts = [part for part in re.split(r"[^a-z0-9]+", option.lower()) if part]
    named = bool(_SECRETS & set(parts)) or parts[-2:] in (["api", "key"], ["access", "key"], ["private", "key"])
    return named or (parts[-1:] == ["token"] and len(value) >= _LONG)


def _variable(option: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", option.upper()).strip("_")
