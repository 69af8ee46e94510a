"""``brickprof run --sanitizer TOOL``: the script under NVIDIA's compute-sanitizer.

Enters: a ``Target`` and one of its tools. Leaves: the same target behind ``compute-sanitizer``, which writes to a log
in the run's folder and not among the script's own output; and, while the script runs, a ``sanitizer`` event for each
different thing that it reports. Signals go past the tool to the script, which ends as it would by itself; what the tool
has written by then is read whatever became of it.

    memcheck   accesses out of bounds or misaligned      racecheck   hazards in shared memory
    initcheck  reads of memory that nobody wrote         synccheck   barriers that not all threads reach
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from brickprof.errors import UsageError
from brickprof.journal import ProcessLog
from brickprof.launch.complaints import Complaint, Reader, Summary
from brickprof.launch.target import Target

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LOG = f"sanitizer-{os.getpid()}-%p.log"
"""By supervisor, for several may share a run; and by the tool's own process, which speaks for all those below it."""
_MOST = 500
_PRINTED = 1000
"""Complaints that the tool writes down: a hundred, as it would by itself, are threads of the first kernel at fault."""
_MOST_DOUBTS = 4
_ONE_BY_ONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""torch cuts tensors out of large blocks: an access past one of them stays inside the block, and nobody sees it."""


def found(environment: Mapping[str, str] | None = None) -> str:
    """The program, from PATH, CUDA_HOME or a pip package; a ``UsageError`` that says how to get it."""
    given = os.environ if environment is None else environment
    for path in _places(given):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise UsageError(
        "compute-sanitizer is not installed here.",
        "It comes with the CUDA toolkit: install that, put its bin folder on PATH or name it in CUDA_HOME "
        "(apt install cuda-sanitizer-12-8, conda install -c nvidia cuda-sanitizer-api).",
    )


def _places(given: Mapping[str, str]) -> Iterator[Path]:
    if on_path := shutil.which("compute-sanitizer", path=given.get("PATH")):
        yield Path(on_path)
    homes = [Path(given[name]) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX") if given.get(name)]
    for home in (*homes, Path("/usr/local/cuda"), *_packages()):
        for folder in ("bin", "compute-sanitizer", "extras/compute-sanitizer"):
            yield home / folder / "compute-sanitizer"


def _packages() -> Iterator[Path]:
    """Folders of the nvidia-* pip packages."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia")
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(each for each in Path(root).glob("*") if each.is_dir())


def checked(tool: str) -> str:
    if tool not in TOOLS:
        raise UsageError(f"--sanitizer is {tool!r}.", f"Give one of: {', '.join(TOOLS)}.")
    return tool


def behind(target: Target, tool: str, program: str, run: Path) -> Target:
    """``target``, started by the sanitizer, which looks at every process below it."""
    log = str(run).replace("%", "%%") + os.sep + LOG
    options = ("--tool", checked(tool), "--target-processes", "all", "--print-limit", str(_PRINTED), "--log-file", log)
    return replace(target, command=(program, *options, *target.command), python=False, wrapped=target.command)


def prepare(tool: str, environment: MutableMapping[str, str]) -> None:
    """What the script needs in its environment for the tool to see each buffer by itself."""
    if tool in ("memcheck", "initcheck"):
        for name, value in _ONE_BY_ONE.items():
            environment.setdefault(name, value)


class Complaints:
    """Follows the sanitizer's logs: one for each process that it looked at."""

    def __init__(self, run: Path, tool: str, log: ProcessLog) -> None:
        self._run = run
        self._log = log
        self._readers: dict[Path, tuple[Reader, int]] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        rank = os.environ.get("RANK", "")
        self._about: dict[str, Any] = {"tool": tool} | ({"rank": int(rank)} if rank.isdecimal() else {})
        log.event("sanitizer", 0, {"what": "start", **self._about})

    def tick(self, step: int) -> None:
        """Takes in what is new."""
        with suppress(OSError):
            for path in sorted(self._run.glob(LOG.replace("%p", "*"))):
                reader, at = self._readers.get(path, (Reader(), 0))
                with path.open("rb") as stream:
                    stream.seek(at)
                    text = stream.read(2**22)
                self._readers[path] = reader, at + len(text)
                for complaint in reader.feed(text.decode("utf-8", "replace")):
                    self._tell(complaint, step)

    def finish(self, step: int) -> None:
        """What is left, and how often each complaint came."""
        before = -1
        while (now := sum(at for _, at in self._readers.values())) != before:
            before = now
            self.tick(step)
        for reader, _ in self._readers.values():
            for complaint in reader.finish():
                self._tell(complaint, step)
        summaries = [reader.summary for reader, _ in self._readers.values()]
        by_error: Counter[str] = Counter()
        for key, times in self._counts.items():
            by_error[key[0]] += times
        fields = {
            "complaints": by_error.total(), "kinds": len(self._counts), "logs": len(summaries), "by_error": by_error,
            "unprinted": sum(summary.unprinted for summary in summaries),
            "doubts": [doubt for summary in summaries for doubt in summary.doubts][:_MOST_DOUBTS],
        }  # fmt: skip
        if errors := _errors(summaries):
            fields["errors"] = errors[0]
        self._log.event("sanitizer", step, {"what": "summary", **self._about, **fields})

    def _tell(self, complaint: Complaint, step: int) -> None:
        self._counts[complaint.key] += 1
        if self._counts[complaint.key] == 1 and len(self._counts) <= _MOST:
            self._log.event("sanitizer", step, {"what": "error", **self._about, **complaint.fields()})


def _errors(summaries: list[Summary]) -> list[int]:
    """How many errors the tool counted; nothing where it did not come to its end."""
    counted = [summary.errors for summary in summaries if summary.errors is not None]
    return [sum(counted)] if counted and len(counted) == len(summaries) else []
