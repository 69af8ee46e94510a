"""Statistics of tensors without disturbing them.

Enters: the user's gradients, weights and activations. Leaves: small tensors of statistics on the same
device (never synchronised here) and, once they are on the host, plain numbers.

Nothing here draws random numbers, writes in place, or touches autograd. Finiteness is decided on the
whole tensor; the strided 1K sample is for histograms and update sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from brickprof.records import HISTOGRAM_BINS, HISTOGRAM_LOW, HISTOGRAM_OCTAVES

Tensor = torch.Tensor
SAMPLE = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INFINITY = float("inf")


def local(tensor: Tensor) -> Tensor:
    """The values this process holds: a DTensor's shard, a sparse tensor's values, else the tensor itself."""
    if type(tensor) not in _PLAIN:
        to_local = getattr(tensor, "to_local", None)
        if to_local is not None:
            tensor = to_local()
    if tensor.layout is not torch.strided:
        tensor = tensor._values() if tensor.is_sparse else tensor.values()
    return tensor.detach() if tensor.requires_grad else tensor


def watchable(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and tensor.is_floating_point() and not tensor.is_meta


def first_tensor(value: Any) -> Tensor | None:
    """The first floating tensor in whatever a module returned."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return None
    for item in value:
        found = first_tensor(item)
        if found is not None:
            return found
    return None


def on_host(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read at once; those of a device arrive later (see ``readback``)."""
    return tensor.is_cpu


def total(tensor: Tensor) -> Tensor:
    """A sum that is finite only if every element is (the converse is checked where it matters)."""
    if tensor.dtype is torch.float16 or tensor.dtype is torch.bfloat16:
        return tensor.sum(dtype=torch.float32)
    return tensor.sum()


def l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """One L2 norm per tensor, on the tensors' device, in float32 or wider; non-finite values propagate."""
    return _norms(tensors, 2.0)


def guard_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Norms that show a non-finite element: L2 on a CPU (its inf-norm is 15x slower there), else inf-norm."""
    return _norms(tensors, 2.0 if on_host(tensors[0]) else _INFINITY)


def infinity_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The largest size in each tensor: inf where one is infinite and none NaN, NaN where one is NaN."""
    return _norms(tensors, _INFINITY)


def _norms(tensors: Sequence[Tensor], order: float) -> Tensor:
    groups = _by_kind(tensors)
    if len(groups) == 1:
        return torch.stack(_foreach_norm(tensors, order))
    results: list[Tensor | None] = [None] * len(tensors)
    home = tensors[0].device
    for places in groups.values():
        norms = _foreach_norm([tensors[i] for i in places], order)
        for place, norm in zip(places, norms, strict=True):
            results[place] = norm.to(device=home, dtype=torch.float32, non_blocking=True)
    return torch.stack([result for result in results if result is not None])


def _foreach_norm(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    narrow = tensors[0].dtype in (torch.float16, torch.bfloat16)
    norms = torch._foreach_norm(list(tensors), order, dtype=torch.float32 if narrow else None)
    return list(norms)


def _by_kind(tensors: Sequence[Tensor]) -> dict[tuple[Any, Any], list[int]]:
    groups: dict[tuple[Any, Any], list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    return groups


def exact(tensor: Tensor) -> tuple[int, int, float, float]:
    """(nan, inf, absmax, l2) of one tensor, read on the host: for a CPU tensor that looks wrong."""
    nan = int(torch.isnan(tensor).sum())
    inf = int(torch.isinf(tensor).sum())
    if nan or inf:
        return nan, inf, math.nan if nan else math.inf, math.nan
    wide = tensor.double()
    return 0, 0, float(wide.abs().max()), float(torch.linalg.vector_norm(wide))


def sample(tensor: Tensor) -> Tensor:
    """Up to 1K elements at a fixed stride, as a 1-D view where the layout allows it."""
    return strided(tensor, SAMPLE)


def strided(tensor: Tensor, most: int) -> Tensor:
    """Up to ``most`` elements at a fixed stride, which is not in step with the last dimension: of rows that begin
    alike, other columns are seen too."""
    numel = tensor.numel()
    if not tensor.is_contiguous():
        tensor = tensor.t() if tensor.dim() == 2 and tensor.t().is_contiguous() else tensor.reshape(-1)
    stride, width = max(1, numel // most), tensor.shape[-1] if tensor.dim() > 1 else 1
    while math.gcd(stride, width) > 1:
        stride -= 1
    return tensor.as_strided((min(most, numel),), (stride,), tensor.storage_offset())


def samples(tensors: Sequence[Tensor]) -> Tensor:
    """The samples of all tensors behind one another, float32, on the first tensor's device (a copy)."""
    home = tensors[0].device
    parts = [
        part if part.device == home and part.dtype is torch.float32 else part.to(home, torch.float32)
        for part in map(sample, tensors)
    ]
    return torch.cat(parts)


def sample_lengths(tensors: Iterable[Tensor]) -> list[int]:
    return [min(SAMPLE, tensor.numel()) for tensor in tensors]


def laid_out(host: Tensor, lengths: Sequence[int]) -> Tensor:
    """Host samples behind one another; our kernel's come in rows of equal length, the shorter ones filled up."""
    if host.dim() == 1:
        return host
    rows = host.numpy()
    return torch.from_numpy(np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)]))


def statistics(tensors: Sequence[Tensor]) -> Tensor:
    """Rows (l2, absmax), and on a CPU also (sum, non-zeros); a column per tensor, float64, on the device.

    On a device each further row would be a launch per tensor: mean and zero fraction come from the sample there.
    """
    if not on_host(tensors[0]):
        return torch.stack([l2_norms(tensors).double(), _norms(tensors, _INFINITY).double()])
    pairs = [torch.aminmax(tensor) for tensor in tensors]
    low = torch.stack([pair.min for pair in pairs]).double()
    high = torch.stack([pair.max for pair in pairs]).double()
    sums = torch.stack([total(tensor) for tensor in tensors]).double()
    full = torch.stack([torch.count_nonzero(tensor) for tensor in tensors]).double()
    return torch.stack([l2_norms(tensors).double(), torch.maximum(low.abs(), high.abs()), sums, full])


def means_and_zeros(
    table: Sequence[Sequence[float]], values: Tensor | None, lengths: Sequence[int], numels: Sequence[int]
) -> list[tuple[float, float]]:
    """(mean, zero fraction) per tensor: exact where ``statistics`` counted them, else from the host sample."""
    if len(table) == 4:
        return [(s / n, 1 - full / n) for s, full, n in zip(table[2], table[3], numels, strict=True)]
    if values is None:
        return [(math.nan, math.nan)] * len(numels)
    x, counts = values.numpy(), np.asarray(lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        means = _sums(x.astype(np.float64), lengths) / counts
    zeros = _sums((x == 0).astype(np.float64), lengths) / counts
    return list(zip(means.tolist(), zeros.tolist(), strict=True))


def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of each tensor's bits read as integers: equal bits give equal sums, whatever the order."""
    home = tensors[0].device
    parts = [bits(tensor).sum(dtype=torch.int64).to(home) for tensor in tensors]
    return torch.stack(parts)


def bits(tensor: Tensor) -> Tensor:
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.view(_INTEGER[tensor.element_size()])


def histograms(values: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    """Counts of log2 |x| per tensor, from host samples laid behind one another.

    In numpy: torch would wake its threads for this, beside a training that needs them.
    """
    x = values.numpy()
    bins = (np.frexp(x)[1].astype(np.int64) - HISTOGRAM_LOW) // HISTOGRAM_OCTAVES
    np.clip(bins, 0, HISTOGRAM_BINS - 1, out=bins)
    bins[~np.isfinite(x)] = HISTOGRAM_BINS - 1
    bins[x == 0] = 0
    bins += np.repeat(np.arange(len(lengths)) * HISTOGRAM_BINS, lengths)
    counts = np.bincount(bins, minlength=len(lengths) * HISTOGRAM_BINS)
    table: list[list[int]] = counts.reshape(len(lengths), HISTOGRAM_BINS).tolist()
    return table


def differences(after: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        gap: np.ndarray[Any, Any] = after - before
    return gap


def segment_norms(values: np.ndarray[Any, Any], lengths: Sequence[int]) -> list[float]:
    """The root mean square of each tensor's part of ``values``."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(values.astype(np.float64))
        norms: list[float] = np.sqrt(_sums(squares, lengths) / np.asarray(lengths)).tolist()
    return norms


def segment_means(values: np.ndarray[Any, Any], lengths: Sequence[int]) -> list[float]:
    """The mean of each tensor's part of ``values``."""
    means: list[float] = (_sums(values.astype(np.float64), lengths) / np.asarray(lengths)).tolist()
    return means


def _sums(values: np.ndarray[Any, Any], lengths: Sequence[int]) -> np.ndarray[Any, Any]:
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    sums: np.ndarray[Any, Any] = np.add.reduceat(values, starts)
    return sums
