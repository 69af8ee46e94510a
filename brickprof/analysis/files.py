"""Which files are to be read.

Enters: what was typed: files, folders, globs, "-". Leaves: files and recorded runs, each once, in the order they were
named. A folder is searched; loops of links end, and what cannot be a log is passed by.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
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
_MOST_FILES = 200_000


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    named: bool = True
    """It was named, by itself or by a glob; not only come upon in a folder."""
    sure: bool = True
    """Its name is one that logs have."""


def find(typed: Iterable[str | os.PathLike[str]]) -> Iterator[Found | UnreadableInput]:
    """Everything to read, each once; an error in the place of what is not there."""
    seen: set[str] = set()
    for each in typed:
        for found in _of(os.fspath(each)):
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


def _of(typed: str) -> Iterator[Found | UnreadableInput]:
    if typed == "-":
        yield Found("-")
        return
    try:
        mode = os.stat(typed).st_mode
    except (OSError, ValueError) as error:
        yield from _globbed(typed, error)
        return
    if stat.S_ISDIR(mode):
        yield from _folder(typed)
    else:
        yield Found(typed)


def _globbed(typed: str, error: OSError | ValueError) -> Iterator[Found | UnreadableInput]:
    if glob.has_magic(typed) and "\0" not in typed:
        matching = sorted(glob.glob(typed, recursive=True))
        for path in matching:
            yield from _folder(path) if os.path.isdir(path) else [Found(path)]
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


def _folder(folder: str) -> Iterator[Found | UnreadableInput]:
    count = 0
    for found in _walk(folder, set()):
        if isinstance(found, Found):
            count += 1
            if count > _MOST_FILES:
                yield UnreadableInput(f"{clean(folder)} holds more than {_MOST_FILES:,} logs.", "Name some of them.")
                return
        yield found
    if not count:
        yield UnreadableInput(f"{clean(folder)} holds no logs.", "Name a file to have it read whatever it is called.")


def _walk(folder: str, seen: set[tuple[int, int]]) -> Iterator[Found | UnreadableInput]:
    try:
        described = os.stat(folder)
        if (described.st_dev, described.st_ino) in seen:
            return
        seen.add((described.st_dev, described.st_ino))
        if is_recorded(folder):
            yield Found(folder, named=False)
            return
        if is_store(folder):
            yield Found(os.path.join(folder, "meta.yaml"), named=False)
            return
        entries = sorted(os.scandir(folder), key=lambda entry: _natural(entry.name))
    except OSError as error:
        yield UnreadableInput(f"{clean(folder)} cannot be read: {error.strerror or error}.")
        return
    for entry in entries:
        if not entry.name.startswith(".") and _kind(entry) == "file":
            yield from _file(entry)
    for entry in entries:
        if not entry.name.startswith(".") and entry.name not in _PASSED_BY and _kind(entry) == "folder":
            yield from _walk(entry.path, seen)


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
