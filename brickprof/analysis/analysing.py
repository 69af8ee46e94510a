"""From paths to verdicts: find, read, join, judge.

Enters: paths and options. Leaves: an ``Analysis``. Each file is read, and each run judged, by pure functions that any
engine may run anywhere; what comes out does not depend on the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from brickprof import logs as reading
from brickprof.analysis import files, groups
from brickprof.analysis.engines import Engine, Here
from brickprof.analysis.judging import Judged, Options, Problem, judge, problem, recorded
from brickprof.errors import OutputError, UnreadableInput
from brickprof.logs import Log, journal
from brickprof.logs.reading.source import PIECE

Told = Callable[[int, int], None]
"""Is told how many of how many are done; of 0, how many files were looked at in search of logs."""


@dataclass(frozen=True, slots=True)
class Analysis:
    runs: tuple[Judged, ...]
    problems: tuple[Problem, ...] = ()
    passed_by: int = 0
    """Files of folders that are no logs."""


@dataclass(frozen=True, slots=True)
class _Work:
    """One file to be read; and to be judged at once, where it is a run by itself."""

    path: str
    options: Options
    named: bool
    sure: bool
    alone: bool


def analyse(
    paths: Iterable[str | os.PathLike[str]],
    options: Options | None = None,
    engine: Engine | None = None,
    progress: Told | None = None,
) -> Analysis:
    """Every run that ``paths`` tell of, in the order they were named."""
    chosen, where = options or Options(), engine or Here()
    found, problems = _found(paths, chosen.max_files, progress)
    kinds = {each.path: each for each in found}
    grouped = groups.by_name([each.path for each in found])
    work = [
        _Work(path, chosen, kinds[path].named, kinds[path].sure, len(group.paths) == 1)
        for group in grouped
        for path in group.paths
    ]
    made = dict(zip((item.path for item in work), _done(work, where, progress), strict=True))
    runs: list[Judged] = []
    joined: list[list[Log]] = []
    for group in grouped:
        results = [made[path] for path in group.paths]
        problems += [result for result in results if isinstance(result, Problem)]
        runs += [result for result in results if isinstance(result, Judged)]
        told = [result for result in results if isinstance(result, Log)]
        if told:
            joined += [told] if group.sure else groups.by_content(told)
    runs += where.map(_judged, [(logs, chosen) for logs in joined])
    return _in_order(runs, problems, found, kinds)


def _found(
    paths: Iterable[str | os.PathLike[str]], most: int, progress: Told | None
) -> tuple[list[files.Found], list[Problem]]:
    found, problems = [], []
    looked = None if progress is None else lambda count: progress(count, 0)
    for each in files.find(paths, most, looked):
        if isinstance(each, UnreadableInput):
            problems.append(problem("", each, named=True))
        else:
            found.append(each)
    return found, problems


def _done(work: Sequence[_Work], engine: Engine, progress: Told | None) -> Iterator[Judged | Log | Problem]:
    """Small files many at a time; a large one by all, one after another."""
    large = {place for place, item in enumerate(work) if _is_large(item) and engine.workers > 1}
    elsewhere = iter(engine.map(_read, [item for place, item in enumerate(work) if place not in large]))
    for place, item in enumerate(work):
        yield _read(item, engine) if place in large else next(elsewhere)
        if progress is not None:
            progress(place + 1, len(work))


def _is_large(item: _Work) -> bool:
    try:
        return item.path != "-" and os.stat(item.path).st_size >= 2 * PIECE
    except OSError:
        return False


def _read(item: _Work, engine: Engine | None = None) -> Judged | Log | Problem:
    """One file: a verdict, or the log where others belong to it."""
    try:
        told_how = item.options.format or item.options.pattern
        if os.path.isdir(item.path) or (not told_how and journal.folder(item.path)):
            return recorded(item.path, "", item.options)
        reader = reading.choose(item.options.format, item.options.pattern)
        log = reading.read(item.path, reader, mapped=engine.map if engine is not None else map)
        return judge([log], "", item.options) if item.alone else log
    except OutputError:
        raise
    except Exception as error:  # one bad file among many: a line for it, and the others go on
        return problem(item.path, error, named=item.named, sure=item.sure)


def _judged(item: tuple[Sequence[Log], Options]) -> Judged:
    return judge(item[0], "", item[1])


def _in_order(
    runs: Sequence[Judged], problems: list[Problem], found: Sequence[files.Found], kinds: dict[str, files.Found]
) -> Analysis:
    """Runs as they were named, with names; of what a folder holds, only what tells of a training."""
    order = {each.path: place for place, each in enumerate(found)}
    shown = [run for run in runs if run.trained or any(kinds[file].named for file in run.files)]
    shown.sort(key=lambda run: min(order[file] for file in run.files))
    names = groups.called([run.files for run in shown])
    named = [_called(run, name) for run, name in zip(shown, names, strict=True)]
    said = [each for each in problems if each.worth_a_word]
    return Analysis(tuple(named), tuple(said), len(problems) - len(said) + len(runs) - len(shown))


def _called(run: Judged, name: str) -> Judged:
    return replace(run, name=name, diagnosis=replace(run.diagnosis, run={**run.diagnosis.run, "name": name}))
