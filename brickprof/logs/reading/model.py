"""What a reader of logs is given, and what it gives.

Enters: nothing; these are plain types. A reader is a module of ``brickprof/logs/`` with a ``READER``: it looks at a
``Head`` and says how sure it is that the file is of its format, and turns a ``Source`` into items, in the order of the
file:

    Block      rows that hold the same numbers, in columns; one row is one line, one record, one moment
    Fact       something that is said in words: an exception, a setting, the end of the job
    Skipped    lines that say nothing to this reader; they are counted and a few are kept to be shown

What a number means (a loss, a rate, the step) is decided once for all formats, from its name; a reader that knows
better says so in ``roles``. A number that is missing is not in the row; a NaN is a NaN that the log printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from brickprof.logs.reading.source import Source

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Places = NDArray[np.int32]
"""In a chunk."""

ROLES = (
    "step", "epoch", "loss", "eval_loss", "lr", "grad_norm", "scale", "skipped", "nonfinite", "step_seconds",
    "throughput", "memory", "tokens", "quality", "time", "total_steps", "other",
)  # fmt: skip
"""What a column may be. ``skipped`` and ``nonfinite`` count updates that were left out, and why; ``quality`` is a
measure of an evaluation that is not a loss; ``memory`` is in bytes, ``step_seconds`` in seconds, ``throughput`` in
whatever a second; ``time`` is seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in columns: ``values[name][i]`` stands in line ``lines[i]`` (from 1; of a table, the row)."""

    lines: Whole
    values: Mapping[str, Floats]
    rank: int | None = None
    """Of the process that wrote it, where the line says so."""
    kind: str = ""
    """Rows of one kind have steps of their own order: "train", "eval"; empty where the reader cannot tell."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Kinds and their fields:

    exception    type, message, frames [file:line in function]
    ended        how (oom-killed|time-limit|preempted|signal|timeout|cancelled|segfault|abort), text, signal
    device       what (illegal-address|xid|ecc|lost|assert), text, xid
    collective   what (timeout|mismatch|abort), text; of a flight recorder also what (pending: it waits|under-way|
                 complete), the state of a timeout (missing: ranks never started what others wait in|stuck: all started
                 it), group, shown, seq, op, ranks, waiting, completed, unheard [ranks without a dump], last {rank:
                 {seq, op, site}}, site, calls {rank: text}, sites {rank: frame}, members, enqueued, started, recent,
                 call {seq, op, sizes, dtypes, state, frames, site, timeout_ms, waited_s}
    overflow     scale, to, step                 an update that was skipped for an overflow, by its scaler
    setting      values {dotted key: value}      hyper-parameters that the log states
    checkpoint   op (save|load), file, step
    finished     text                            the script says that it came to its end
    note         text
    written      first, last                     seconds since 1970 of the first and the last number
    histogram    tag, points, first_step, last_step, count, min, max, nonfinite_step (the first), of all its points
    trace        seconds, events, steps, kernels, kernel_seconds, launches, launch_seconds, copies and syncs {name:
                 {count, seconds, bytes}}, devices, device_busy_share, idle_share, communication_seconds,
                 exposed_communication_seconds, memory_peak {allocated, reserved}, device_names, rank, world_size
    window       step, kernels, busy_ns, step_ns, names [[name, n, ns]]; of a step in a trace, as in brickprof.records
    kernels      top [{name, count, seconds, share}]             of a trace, by their time on the device
    operators    top [{name, count, seconds}]                    of a trace; one may hold others
    spans        seconds, top [{name, granularity, count, seconds, device_seconds}]; one may hold others
    """

    kind: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    count: int
    examples: tuple[tuple[int, str], ...] = ()
    """Line and text of a few."""


Item = Block | Fact | Skipped


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, for those who want to know what it is."""

    name: str
    """The file's own name, without its folder and without .gz and the like."""
    start: bytes
    """Its first bytes, unpacked: up to 64 KiB."""
    path: str = ""

    @property
    def text(self) -> str:
        return self.start.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """Whole lines, as people see them: what a progress bar has overwritten is a line too."""
        return self.text.replace("\r", "\n").split("\n")[:400]


class Reader(Protocol):
    name: str
    """A word for the table: ``hf``, ``megatron``."""
    title: str
    """In a sentence: ``Hugging Face trainer_state.json``."""

    def sniff(self, head: Head) -> float:
        """How sure it is: 0 not at all, 1 certain; a guess that any log of numbers would fit is 0.1 to 0.3."""

    def read(self, source: Source) -> Iterator[Item]: ...


def block(lines: Any, values: Mapping[str, Any], *, rank: int | None = None, kind: str = "") -> Block:
    """A ``Block`` of lists or arrays."""
    columns = {name: np.asarray(column, dtype=np.float64) for name, column in values.items()}
    return Block(np.asarray(lines, dtype=np.int64), columns, rank, kind)
