"""Which files tell of one run.

Enters: paths, and later what stands in the files. Leaves: groups. Ranks (by the number in their name or folder), the
event files of one folder, output and errors of one job are one run by their names. Files that are numbered are one run
where each goes on where another ended. Everything else is a run by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brickprof.logs import tensorboard
from brickprof.logs.reading.gather import Log

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_RANK = re.compile(
    r"(?<![a-z])((?:global|local)?[_-]?rank|worker|proc(?:ess)?|node)[_\-=]?\d{1,6}(?!\d)", re.IGNORECASE
)
_ELASTIC = re.compile(r"^(.*?)[/\\]attempt_\d+[/\\]\d+$")
_STREAMS = re.compile(r"(?<![a-z])(std)?(out|err)(?![a-z])|(?<=\.)[oe](?=\d+$)", re.IGNORECASE)
_CHECKPOINT = re.compile(r"^checkpoint-(\d{1,12})$")
_NUMBER = re.compile(r"\d+")
_MOST_TO_JOIN = 64
_PLAIN = frozenset({
    "", "train", "training", "metrics", "log", "logs", "trainer_state", "stdout", "stderr", "out", "err", "output",
    "main", "results", "history", "meta", "run", "events", "console", "train_log",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    paths: tuple[str, ...]
    sure: bool
    """One run by their names; else only if what they hold says so."""


def by_name(paths: Sequence[str]) -> list[Group]:
    """The groups that names suggest, in the order of their first files."""
    surely: dict[str, list[str]] = {}
    for path in _without_older_checkpoints(paths):
        surely.setdefault(_one_run(path) or f"file:{path}", []).append(path)
    perhaps: dict[str, list[tuple[str, ...]]] = {}
    for key, members in surely.items():
        alike = _numbered(members[0]) if len(members) == 1 and members[0] != "-" else ""
        perhaps.setdefault(f"numbered:{alike}" if alike else key, []).append(tuple(members))
    groups = []
    for found in perhaps.values():
        if len(found) == 1:
            groups.append(Group(found[0], sure=True))
        elif len(found) <= _MOST_TO_JOIN:
            groups.append(Group(tuple(path for members in found for path in members), sure=False))
        else:
            groups += [Group(members, sure=True) for members in found]
    order = {path: place for place, path in enumerate(paths)}
    return sorted(groups, key=lambda group: order[group.paths[0]])


def _one_run(path: str) -> str:
    """What the names of all files of this run come to; empty where its name says nothing of others."""
    folder, name = os.path.split(_unpacked(path))
    if "tfevents" in name:
        return f"tensorboard:{tensorboard.home(path)[0]}"
    elastic = _ELASTIC.match(folder)
    if elastic:
        return f"elastic:{elastic[1]}"
    above, last = os.path.split(folder)
    told = _RANK.sub(r"\1#", name), _RANK.sub(r"\1#", last)
    if told != (name, last):
        return f"ranks:{above}/{told[1]}/{_STREAMS.sub('#', told[0])}"
    streams = _STREAMS.sub("#", name)
    return f"streams:{folder}/{streams}" if streams != name else ""


def _numbered(path: str) -> str:
    folder, name = os.path.split(_unpacked(path))
    alike = _NUMBER.sub("#", re.sub(r"\.\d+$", "", name))
    return f"{folder}/{alike}"


def _unpacked(path: str) -> str:
    for ending in _PACKED:
        path = path.removesuffix(ending)
    return path


def _without_older_checkpoints(paths: Sequence[str]) -> list[str]:
    """Each checkpoint of a run holds the whole history up to it: the last one is enough."""
    newest: dict[str, tuple[int, str]] = {}
    kept = []
    for path in paths:
        folder, name = os.path.split(path)
        above, last = os.path.split(folder)
        found = _CHECKPOINT.match(last)
        if name != "trainer_state.json" or not found:
            kept.append(path)
            continue
        step = int(found[1])
        if above not in newest:
            kept.append(path)
        if step >= newest.get(above, (-1, ""))[0]:
            newest[above] = step, path
    last_of = {above: path for above, (_, path) in newest.items()}
    beside = {os.path.dirname(path) for path in kept if os.path.basename(path) == "trainer_state.json"}
    chosen = []
    for path in kept:
        above, last = os.path.split(os.path.dirname(path))
        if os.path.basename(path) == "trainer_state.json" and _CHECKPOINT.match(last):
            if above in beside:
                continue
            path = last_of[above]
        chosen.append(path)
    return chosen


# -- by what they hold


def by_content(logs: Sequence[Log]) -> list[list[Log]]:
    """Numbered files, as runs: a file that goes on where another ended is of the same run."""
    runs: list[list[Log]] = []
    for log in sorted(logs, key=lambda log: log.first_step):
        before = [run for run in runs if _goes_on(run[-1], log)]
        if before:
            max(before, key=lambda run: run[-1].last_step).append(log)
        else:
            runs.append([log])
    order = {id(log): place for place, log in enumerate(logs)}
    return sorted(runs, key=lambda run: min(order[id(log)] for log in run))


def _goes_on(before: Log, after: Log) -> bool:
    losses = before.loss, after.loss
    if before.format != after.format or losses[0] is None or losses[1] is None or losses[0].name != losses[1].name:
        return False
    if "row" in (before.steps_by, after.steps_by) or len(losses[0]) < 2:
        return False
    apart = max(int(np.median(np.diff(np.unique(losses[0].steps)))) if len(losses[0]) > 1 else 1, 1)
    begins = before.first_step + apart < after.first_step <= before.last_step + 2 * apart
    return begins and after.last_step > before.last_step


# -- what to call them


def called(runs: Sequence[Sequence[str]]) -> list[str]:
    """A short name for each run, by which it can be told from the others."""
    parts = [_parts(paths[0], several=len(paths) > 1) for paths in runs]
    names = [told[-1:] for told in parts]
    for depth in range(2, 12):
        shown = ["/".join(name) for name in names]
        twice = {name for name in shown if shown.count(name) > 1} if len(shown) < 2_000 else _repeated(shown)
        if not twice:
            break
        names = [
            told[-depth:] if name in twice else short for told, name, short in zip(parts, shown, names, strict=True)
        ]
    return ["/".join(name) for name in names]


def _repeated(names: Sequence[str]) -> set[str]:
    seen: set[str] = set()
    return {name for name in names if name in seen or seen.add(name)}  # type: ignore[func-returns-value]


def _parts(path: str, several: bool) -> list[str]:
    if path == "-":
        return ["stdin"]
    whole = os.path.abspath(_unpacked(path))
    folder, name = os.path.split(whole)
    if "tfevents" in name:
        parts = tensorboard.home(whole)[0].split(os.sep)
        return [part for part in parts if part] or [name]
    stem = os.path.splitext(name)[0]
    if several:
        stem = _STREAMS.sub("", _RANK.sub("", stem)).strip("._-")
    above = [part for part in folder.split(os.sep) if part]
    return above if stem.lower() in _PLAIN and above else [*above, stem]
