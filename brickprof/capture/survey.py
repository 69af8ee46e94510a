"""Full statistics of several tensors at once, from the device to rows.

Enters: tensors of one device. Leaves: a ``Row`` for each, now (CPU) or some steps later (CUDA). No tensor of the
user's is kept alive meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from brickprof.capture import tensors
from brickprof.capture.readback import Readback


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


Done = Callable[[list[Row]], None]


def survey(
    values: Sequence[torch.Tensor], readback: Readback, done: Done, *, sampled: torch.Tensor | None = None
) -> None:
    """Measures ``values`` and hands the rows to ``done``; ``sampled`` is their 1K samples, if at hand."""
    numels, lengths = [value.numel() for value in values], tensors.sample_lengths(values)
    on_host = list(values) if values[0].device.type == "cpu" else None
    table: list[list[float]] = []

    def finish(host: torch.Tensor) -> None:
        averages = tensors.means_and_zeros(table, host, lengths, numels)
        counts = tensors.histograms(host, lengths)
        exact: Sequence[torch.Tensor | None] = on_host or [None] * len(numels)
        done(
            [
                _row(numel, l2, absmax, average, count, tensor)
                for numel, l2, absmax, average, count, tensor in zip(
                    numels, table[0], table[1], averages, counts, exact, strict=True
                )
            ]
        )

    readback.read(tensors.statistics(values), lambda host: table.extend(host.tolist()))
    readback.read(tensors.samples(values) if sampled is None else sampled, finish)


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
