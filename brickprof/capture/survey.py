"""Full statistics of tensors, from the device to rows.

Enters: tensors. Leaves: a ``Row`` for each, now (CPU) or some steps later (CUDA). ``measure`` takes the statistics and
keeps only them; ``deliver`` brings those of many measurements home in two copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry
from brickprof.capture.fused import Fused
from brickprof.capture.readback import Readback
from brickprof.capture.tensors import on_host
from brickprof.journal import Sheet


class Row(NamedTuple):
    numel: int
    nan: int | None
    inf: int | None
    absmax: float
    l2: float
    mean: float
    zero_fraction: float
    histogram: list[int]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.absmax)


class Look(NamedTuple):
    """What all samples of one look have in common."""

    time_ns: int
    step: int
    micro: int
    role: int
    scale: float | None


class Measured(NamedTuple):
    numels: list[int]
    lengths: list[int]
    table: torch.Tensor
    samples: torch.Tensor
    exact: Sequence[torch.Tensor | None]
    """The tensors themselves where a second look is possible (CPU); None on a device."""
    order: Callable[[Any], Any] | None = None
    """Set where our kernel made the table: puts its rows, one a tensor, into the order of the tensors."""


Done = Callable[[list[Row]], None]


def measure(values: Sequence[torch.Tensor], samples: torch.Tensor | None = None) -> Measured:
    """The statistics of ``values``, all on one device; ``samples`` are their 1K samples, if at hand."""
    return Measured(
        [value.numel() for value in values],
        tensors.sample_lengths(values),
        tensors.statistics(values),
        tensors.samples(values) if samples is None else samples,
        values if on_host(values[0]) else [None] * len(values),
    )


def measure_all(fused: Fused, purpose: str, values: Sequence[torch.Tensor]) -> Measured:
    """The same in two launches where our kernel runs. ``purpose`` names tensors that come again and again."""
    table, samples = fused.table(purpose, values), fused.samples(purpose, values)
    if table is None:
        return measure(values, samples)
    return Measured(
        [value.numel() for value in values],
        tensors.sample_lengths(values),
        table.values,
        tensors.samples(values) if samples is None else samples,
        [None] * len(values),
        table.in_order,
    )


def deliver(measured: Sequence[Measured], readback: Readback, done: Done) -> None:
    """Hands a row for every measured tensor to ``done``, in order."""
    if len(measured) == 1 and measured[0].order is not None:
        _deliver_fused(measured[0], measured[0].order, readback, done)
        return
    numels = [numel for each in measured for numel in each.numels]
    lengths = [length for each in measured for length in each.lengths]
    exact = [tensor for each in measured for tensor in each.exact]
    table: list[list[float]] = []

    def finish(host: torch.Tensor) -> None:
        host = tensors.laid_out(host, lengths)
        averages = tensors.means_and_zeros(table, host, lengths, numels)
        counts = tensors.histograms(host, lengths)
        columns = zip(numels, table[0], table[1], averages, counts, exact, strict=True)
        done([_row(*column) for column in columns])

    readback.read(_joined([each.table for each in measured], 1), lambda host: table.extend(host.tolist()))
    readback.read(_joined([each.samples for each in measured], 0), finish)


def _deliver_fused(measured: Measured, order: Callable[[Any], Any], readback: Readback, done: Done) -> None:
    rows: list[list[float]] = []

    def finish(host: torch.Tensor) -> None:
        counts = tensors.histograms(tensors.laid_out(host, measured.lengths), measured.lengths)
        done([row(each)._replace(histogram=count) for each, count in zip(rows, counts, strict=True)])

    readback.read(measured.table, lambda host: rows.extend(order(host.numpy()).tolist()))
    readback.read(measured.samples, finish)


def row(of: Sequence[float]) -> Row:
    """A row from our kernel's table, which counts and leaves out what is not finite."""
    nan, inf, absmax, l2, mean, zeros, _, numel = of
    if nan or inf:
        absmax, l2 = (math.nan if nan else math.inf), math.nan
    return Row(int(numel), int(nan), int(inf), absmax, l2, mean, zeros, [])


class Whose(NamedTuple):
    """The tensors of a table, row by row; the numbers of their bricks and themselves, and their sizes, as arrays."""

    entries: list[Entry]
    bricks: Any
    tensors: Any
    numels: Any


def whose(entries: list[Entry]) -> Whose:
    import numpy as np

    bricks, numbers = (np.array([getattr(e, name) for e in entries], np.int32) for name in ("brick", "number"))
    alive = (entry.tensor() for entry in entries)
    return Whose(entries, bricks, numbers, np.array([0 if each is None else each.numel() for each in alive], np.int64))


def sheet(table: Any, of: Whose, look: Look) -> Sheet:
    """Our kernel's table as a sheet of the journal: the same as a ``row`` for each of its rows."""
    # A copy: the memory of the table is used again.
    return Sheet(look.time_ns, look.step, look.micro, look.role, look.scale, of.bricks, of.tensors, table.copy())


def sheet_of_norms(norms: Any, of: Whose, look: Look) -> Sheet:
    """The norms of finite tensors, an array, as a sheet."""
    import numpy as np

    table = np.zeros((len(norms), 8))
    table[:, 3], table[:, 7] = norms, of.numels
    return Sheet(look.time_ns, look.step, look.micro, look.role, look.scale, of.bricks, of.tensors, table, True)


def _joined(parts: list[torch.Tensor], along: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, along)


def survey(fused: Fused, purpose: str, values: Sequence[torch.Tensor], readback: Readback, done: Done) -> None:
    """Measures and delivers in one go."""
    deliver([measure_all(fused, purpose, values)], readback, done)


def _row(
    numel: int, l2: float, absmax: float, average: tuple[float, float], count: list[int], tensor: torch.Tensor | None
) -> Row:
    nan: int | None = 0
    inf: int | None = 0
    if not (math.isfinite(l2) and math.isfinite(absmax)):
        if tensor is not None:
            nan, inf, absmax, l2 = tensors.exact(tensor)
        elif not math.isfinite(absmax):
            nan = inf = None  # not finite for sure; which of the two, and how many, was not counted
    return Row(numel, nan, inf, absmax, l2, *average, count)
