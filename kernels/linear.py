"""Layers on the product of gemm.py: Linear, Embedding, and a Linear cut over several processes.

    Linear      y = x w^T + b                                  dx = dy w,  dw = dy^T x,  db = sum of dy
    column      w = [w_0; w_1; ...] by rows of w:   y_i = x w_i^T        dx = sum_i dy_i w_i   (one all_reduce)
    row         w = [w_0, w_1, ...] by columns:     y = sum_i x_i w_i^T  (one all_reduce), then + b;  dx_i = dy w_i

Enters: activations in fp32, bf16 or fp16; under torch.autocast they and the weights are cast as it casts them. Leaves:
activations of that type. No shard changes the order of a sum: the outputs of a column layer are columns of the whole
layer's, bit for bit; a row layer adds its shards' products once, in the order of the collective.

A shard is named by its structural coordinates, ``Coordinates(tp=1)``: a bare number could be a flat rank, and is
refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from brickprof.bricks import Coordinates
from brickprof.kernels.embedding import embedding
from brickprof.kernels.gemm import gemm
from brickprof.operators.launch import wants


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that torch.autocast would multiply them in; as they are outside of it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def linear(*, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (..., N) = x (..., K) @ weight (N, K)^T + bias (N)."""
    x, weight = cast(x, weight)
    y = gemm(x=x, w=weight)
    return y if bias is None else y + bias.to(y.dtype)


class Linear(nn.Linear):
    """A drop-in for torch.nn.Linear: the same parameters, the same initialisation."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x=x, weight=self.weight, bias=self.bias)


class Embedding(nn.Embedding):
    """A drop-in for torch.nn.Embedding whose gradient has the same bits in every run."""

    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(num_embeddings, embedding_dim, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens=tokens, table=self.weight)


def shard(tensor: Tensor, *, at: Coordinates, of: int, dim: int) -> Tensor:
    """The part of ``tensor`` along ``dim`` that stands at ``at.tp`` among ``of``; a view."""
    if not isinstance(at, Coordinates):
        raise TypeError(f"shard: at should be Coordinates(tp=...), which a flat index is not; given: {at!r}")
    wants("shard", "of", of > 0, "at least 1", of)
    wants("shard", "at", at.tp < of, f"tp below {of}", f"tp={at.tp}")
    size = tensor.shape[dim]
    wants("shard", f"tensor.shape[{dim}]", size % of == 0, f"a multiple of {of}", size)
    return tensor.narrow(dim, at.tp * (size // of), size // of)


class _Copied(torch.autograd.Function):
    """The same input for every shard; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _summed(dy, ctx.group), None


class _Summed(torch.autograd.Function):
    """The sum of all shards' outputs; each shard's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy, None


def _summed(x: Tensor, group: Any) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if dist.is_initialized():
        dist.all_reduce(total, group=group)
    return total


class _ParallelLinear(nn.Module):
    """What both cuts share: a weight of which this process holds the shard ``at``."""

    dim: int
    """The dimension of the weight (out, in) that is cut."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, dtype: torch.dtype | None = None, *,
        tp: int | None = None, group: Any = None,
    ) -> None:  # fmt: skip
        """``tp``: where this process stands in ``group``; its rank there unless told."""
        super().__init__()
        name = type(self).__name__
        self.group, self.world = group, dist.get_world_size(group) if dist.is_initialized() else 1
        self.at = Coordinates(tp=tp if tp is not None else dist.get_rank(group) if dist.is_initialized() else 0)
        wants(name, "tp", self.at.tp < self.world, f"below {self.world}, the size of the group", self.at.tp)
        cut = ("out_features", "in_features")[self.dim]
        sizes = [out_features, in_features]
        wants(name, cut, sizes[self.dim] % self.world == 0, f"a multiple of {self.world} processes", sizes[self.dim])
        sizes[self.dim] //= self.world
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(sizes, dtype=dtype))
        held = sizes[0] if self.dim == 0 else out_features
        self.bias = nn.Parameter(torch.empty(held, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Linear begins: every process draws the whole weight and keeps its part, so that seeded alike
        they hold the layer that one process would."""
        whole = nn.Linear(self.in_features, self.out_features, self.bias is not None, dtype=self.weight.dtype)
        self.load(whole.weight, whole.bias)

    @torch.no_grad()
    def load(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Takes this process's shard out of a whole weight (out, in) and bias (out)."""
        name, whole = type(self).__name__, (self.out_features, self.in_features)
        wants(name, "weight", tuple(weight.shape) == whole, str(whole), tuple(weight.shape))
        wants(name, "bias", (bias is None) == (self.bias is None), "there as in this layer", bias is not None)
        self.weight.copy_(shard(weight, at=self.at, of=self.world, dim=self.dim))
        if self.bias is not None and bias is not None:
            wants(name, "bias", tuple(bias.shape) == whole[:1], str(whole[:1]), tuple(bias.shape))
            self.bias.copy_(shard(bias, at=self.at, of=self.world, dim=0) if self.dim == 0 else bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, tp={self.at.tp} of {self.world}"


class ColumnParallelLinear(_ParallelLinear):
    """Takes the whole x and gives this process's columns of y, out_features / world of them."""

    dim = 0

    def forward(self, x: Tensor) -> Tensor:
        x = _Copied.apply(x, self.group)
        return linear(x=x, weight=self.weight, bias=self.bias)


class RowParallelLinear(_ParallelLinear):
    """Takes this process's columns of x, in_features / world of them, and gives the whole y; the bias is added once,
    after the sum."""

    dim = 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Summed.apply(linear(x=x, weight=self.weight), self.group)
        return y if self.bias is None else y + self.bias.to(y.dtype)
