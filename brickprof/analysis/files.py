"""Which files are to be read.

Enters: what was typed: files, folders, globs, "-". Leaves: files and recorded runs, each once, in the order they were
named. A folder is searched; loops of links end, and what cannot be a log is passed by. What the kernel shows as files
is never looked into, and a folder that holds more than anybody means is refused before anything of it is read.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from brickprof.errors import UnreadableInput
from brickprof.logs import journal
from brickprof.text import clean

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_SURELY = re.compile(
    r"(\.(log|out|err|jsonl|ndjson|csv|tsv|parquet|wandb|logfmt)(\.\d+)?|\.[oe]\d+|^trainer_state\.json|"
    r".*tfevents.*|^(stdout|stderr|log)(\.txt)?|^main\.log)$",
    re.IGNORECASE,
)
"""Names that logs have: one of these that cannot be read is worth a word."""
_PERHAPS = re.compile(r"(\.(txt|json|db|sqlite|trace)|^[^.]+)$", re.IGNORECASE)
_PASSED_BY = frozenset({"__pycache__", "node_modules", "site-packages", "wandb-cache", "artifacts"})
_NOT_FILES = ("/proc", "/sys", "/dev")
MOST_FILES = 10_000
_PASSED_FOR_ONE = 100
"""Files and folders that are looked at for each one that may be a log."""
_TELL_EVERY = 1_000

Looked = Callable[[int], None]
"""Is told how many files and folders were looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    named: bool = True
    """It was named, by itself or by a glob; not only come upon in a folder."""
    sure: bool = True
    """Its name is one that logs have."""


def find(
    typed: Iterable[str | os.PathLike[str]], most: int = MOST_FILES, looked: Looked | None = None
) -> Iterator[Found | UnreadableInput]:
    """Everything to read, each once; an error in the place of what is not there, or of a folder with too much in it."""
    seen: set[str] = set()
    search = _Search(most, looked)
    for each in typed:
        for found in _of(os.fspath(each), search):
            if isinstance(found, UnreadableInput):
                yield found
                continue
            real = found.path if found.path == "-" else os.path.realpath(found.path)
            if real not in seen:
                seen.add(real)
                yield found


def is_recorded(folder: str | Path) -> bool:
    """Whether this is the folder of a run that brickprof recorded."""
    return journal.folder(folder)


def is_store(folder: str) -> bool:
    """Whether this is a run of a local MLflow store."""
    return os.path.isdir(os.path.join(folder, "metrics")) and os.path.isfile(os.path.join(folder, "meta.yaml"))


def _of(typed: str, search: _Search) -> Iterator[Found | UnreadableInput]:
    if typed == "-":
        yield Found("-")
        return
    try:
        mode = os.stat(typed).st_mode
    except (OSError, ValueError) as error:
        yield from _globbed(typed, error, search)
        return
    if stat.S_ISDIR(mode):
        yield from search.folder(typed)
    else:
        yield Found(typed)


def _globbed(typed: str, error: OSError | ValueError, search: _Search) -> Iterator[Found | UnreadableInput]:
    if glob.has_magic(typed) and "\0" not in typed:
        matching = sorted(glob.glob(typed, recursive=True))
        for path in matching:
            yield from search.folder(path) if os.path.isdir(path) else [Found(path)]
        if not matching:
            yield UnreadableInput(f"nothing fits {clean(typed)}.")
        return
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        yield UnreadableInput(f"there is no file {clean(typed)} here.", _nearest(typed))
    else:
        yield UnreadableInput(f"{clean(typed)} cannot be read: {clean(getattr(error, 'strerror', '') or error)}.")


def _nearest(typed: str) -> str:
    folder, name = os.path.split(typed)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return ""
    near = get_close_matches(name, there, n=1, cutoff=0.6)
    return f"Did you mean {clean(os.path.join(folder, near[0]))}?" if near else ""


class _Search:
    """Looks through folders, until it has seen too much."""

    def __init__(self, most: int, looked: Looked | None) -> None:
        self._most, self._told = most, looked
        self._seen = 0

    def folder(self, folder: str) -> Iterator[Found | UnreadableInput]:
        held: list[Found | UnreadableInput] = []
        count, before = 0, self._seen
        for found in self._walk(folder):
            if found is not None:
                held.append(found)
                count += isinstance(found, Found)
            if count > self._most:
                yield self._too_many(folder, f"{self._most:,} files that may be logs")
                return
            if self._seen - before > _PASSED_FOR_ONE * self._most:
                yield self._too_many(folder, f"{_PASSED_FOR_ONE * self._most:,} files")
                return
        yield from held
        if not held:
            hint = "Name a file to have it read whatever it is called."
            yield UnreadableInput(f"{clean(folder)} holds no logs.", hint)

    @staticmethod
    def _too_many(folder: str, what: str) -> UnreadableInput:
        hint = "Name the folder of the runs, or raise --max-files."
        return UnreadableInput(f"{clean(folder)} holds more than {what}; none of them was read.", hint)

    def _walk(self, begin: str) -> Iterator[Found | UnreadableInput | None]:
        """Files of a folder before those of the folders in it; a folder that is there twice, by links, once. None after
        each folder, so that whoever asks may stop."""
        known: set[tuple[int, int]] = set()
        left = [begin]
        while left:
            folder = left.pop()
            try:
                described = os.stat(folder)
                if (described.st_dev, described.st_ino) in known or _of_the_kernel(folder):
                    continue
                known.add((described.st_dev, described.st_ino))
                if is_recorded(folder):
                    yield Found(folder, named=False)
                    continue
                if is_store(folder):
                    yield Found(os.path.join(folder, "meta.yaml"), named=False)
                    continue
                with os.scandir(folder) as listed:
                    entries = sorted(listed, key=lambda entry: _natural(entry.name))
            except OSError as error:
                yield UnreadableInput(f"{clean(folder)} cannot be read: {error.strerror or error}.")
                continue
            self._look(len(entries))
            shown = [entry for entry in entries if not entry.name.startswith(".")]
            for entry in shown:
                if _kind(entry) == "file":
                    yield from _file(entry)
            within = [entry.path for entry in shown if entry.name not in _PASSED_BY and _kind(entry) == "folder"]
            left += reversed(within)
            yield None

    def _look(self, count: int) -> None:
        before, self._seen = self._seen, self._seen + count
        if self._told is not None and before // _TELL_EVERY != self._seen // _TELL_EVERY:
            self._told(self._seen)


def _of_the_kernel(folder: str) -> bool:
    real = os.path.realpath(folder)
    return real in _NOT_FILES or real.startswith(tuple(f"{each}/" for each in _NOT_FILES))


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else ""
    except OSError:
        return ""


def _file(entry: os.DirEntry[str]) -> Iterator[Found]:
    name = entry.name
    for ending in _PACKED:
        name = name.removesuffix(ending)
    if _SURELY.search(name):
        yield Found(entry.path, named=False)
    elif _PERHAPS.search(name):
        yield Found(entry.path, named=False, sure=False)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", name)]
