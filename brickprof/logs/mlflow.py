"""MLflow's local store: a folder a run, in it a file a metric.

Enters: a run's folder ``mlruns/EXPERIMENT/RUN`` with ``metrics/NAME`` (lines ``time value step``), ``params/NAME`` and
``meta.yaml``; or a folder that holds such ones, for ``runs``. A metric's file that is given alone is read alone.
Leaves: rows over steps, parameters as settings, and how the run ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import tracking
from brickprof.logs.reading.gather import Gathering, Log
from brickprof.logs.reading.model import Head, Item
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.source import Source
from brickprof.logs.reading.tracking import Metric, Stored
from brickprof.text import clean

_LINE = re.compile(rb"(\d{9,16}) (\S+)(?: (-?\d{1,18}))?(?: .*)?")
_FIELD = re.compile(r"(\w+):\s*(.*?)\s*$", re.MULTILINE)
_MOST_METRICS = 2_000
_MOST_RUNS = 10_000
_MOST_BYTES = 256 << 20
_LONGEST_PARAM = 500


class MLflow:
    name = "mlflow"
    title = "MLflow, a local store"

    def sniff(self, head: Head) -> float:
        lines = [line for line in head.start.split(b"\n")[:50] if line.strip()]
        whole = lines if len(lines) == 1 else lines[:-1]
        return 0.85 if whole and all(_LINE.fullmatch(line.rstrip(b"\r")) for line in whole) else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        yield from tracking.items(Stored({source.name: _metric(source.whole(_MOST_BYTES))}))

    def folder(self, path: str | Path) -> bool:
        """Whether this folder is one run's."""
        place = Path(path)
        return (place / "meta.yaml").is_file() and (place / "metrics").is_dir()

    def runs(self, path: str | Path) -> list[Path]:
        """The folders of runs in a store or an experiment, or the folder itself; the oldest first."""
        place = Path(path)
        if self.folder(place):
            return [place]
        below = [each for each in _folders(place) if self.folder(each)]
        deeper = [each for one in _folders(place) if not self.folder(one) for each in _folders(one)]
        found = below or [each for each in deeper if self.folder(each)]
        return sorted(found, key=lambda run: (_meta(run).get("start_time", "").zfill(20), run.name))[:_MOST_RUNS]

    def read_folder(self, path: str | Path) -> Log:
        """The log of one run's folder."""
        place = Path(path)
        if not self.folder(place):
            raise UnreadableInput(f"{clean(path)} is no run of MLflow.", "A run's folder holds meta.yaml and metrics.")
        gathering = Gathering(str(place), self.name)
        stored, damage = _stored(place)
        gathering.take(tracking.items(stored))
        log = gathering.log()
        log.damage += damage
        return log


def _folders(place: Path) -> list[Path]:
    try:
        found = [Path(each.path) for each in os.scandir(place) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(found)[:_MOST_RUNS]


def _stored(run: Path) -> tuple[Stored, list[str]]:
    stored, damage = Stored(status=_meta(run).get("status", "")), []
    for name, path in _files(run / "metrics"):
        try:
            stored.metrics[name] = _metric(path.read_bytes() if path.stat().st_size < _MOST_BYTES else b"")
        except OSError as error:
            damage.append(f"metric {clean(name, limit=100)} cannot be read: {clean(error.strerror or error)}")
    for name, path in _files(run / "params"):
        try:
            with path.open("rb") as stream:
                stored.params[clean(name, limit=200)] = _param(stream.read(_LONGEST_PARAM))
        except OSError:
            damage.append(f"parameter {clean(name, limit=100)} cannot be read")
    return stored, damage


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The plain files in a folder and below, by the names that MLflow knows them by."""
    count = 0
    for place, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > _MOST_METRICS:
                return
            yield path.relative_to(folder).as_posix(), path


def _meta(run: Path) -> dict[str, str]:
    try:
        with (run / "meta.yaml").open("rb") as stream:
            text = stream.read(64 << 10).decode("utf-8", "replace")
    except OSError:
        return {}
    return {found[1]: found[2].strip("'\"") for found in _FIELD.finditer(text)}


def _metric(data: bytes) -> Metric:
    """The values in a metric's file; a line that is no value, or is cut off, is none."""
    lines = data.split(b"\n")
    found = [_LINE.fullmatch(line.rstrip(b"\r")) for line in (lines[:-1] if len(lines) > 1 else lines)]
    told = [(each[1], number(each[2].decode("ascii", "replace")), each[3] or b"0") for each in found if each]
    whole = [(float(time), value, float(step)) for time, value, step in told if value is not None]
    columns = np.array(whole, dtype=np.float64).reshape(-1, 3)
    return Metric(columns[:, 0].copy(), columns[:, 2].copy(), columns[:, 1].copy())


def _param(data: bytes) -> Any:
    text = data.decode("utf-8", "replace").strip()
    value = number(text) if re.fullmatch(r"[-+.\deE]+", text) else None
    return clean(text) if value is None else int(value) if text.lstrip("-").isdigit() else value


READER = MLflow()
