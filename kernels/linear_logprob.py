"""The log probability of chosen tokens straight from hidden states: no one ever sees all logits.

    logprob = logprob(x w^T, target)

Enters: x (rows, K), the head's weight w (V, K), targets (rows). Leaves: fp32 log probabilities (rows). Rows are taken
CHUNK at a time: their logits are made by the product of gemm.py, judged by the kernel of logprob.py, and dropped;
the backward makes them again. Both are row-invariant, so the result has the same bits as the two operations one after
the other. dw is added chunk by chunk in fp32, in order, and chunks are counted from the first row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from brickprof.kernels import gemm, logprob
from brickprof.operators.launch import floating, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

CHUNK = 2048


class _LinearLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, target: Tensor, ignore: int) -> Tensor:
        ctx.save_for_backward(x, w, target)
        ctx.ignore = ignore
        with torch.no_grad():
            parts = [_chunk(x[i : i + CHUNK], w, target[i : i + CHUNK], ignore) for i in range(0, len(x), CHUNK)]
        return torch.cat(parts) if parts else x.new_empty(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, w, target = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros_like(w, dtype=torch.float32)
        for i in range(0, len(x), CHUNK):
            rows = slice(i, i + CHUNK)
            with torch.enable_grad():
                logits = gemm.product(a=x[rows], b=w.T).requires_grad_()
                chosen = logprob.logprob(logits=logits, target=target[rows], ignore_index=ctx.ignore)
            (dlogits,) = torch.autograd.grad(chosen, logits, grad[rows])
            del logits, chosen
            dx[rows] = gemm.dgrad(dy=dlogits, w=w)
            dw += gemm.wgrad(dy=dlogits, x=x[rows], dtype=torch.float32)
        return dx, dw.to(w.dtype), None, None


def _chunk(x: Tensor, w: Tensor, target: Tensor, ignore: int) -> Tensor:
    return logprob.logprob(logits=gemm.product(a=x, b=w.T), target=target, ignore_index=ignore)


def linear_logprob(*, x: Tensor, w: Tensor, target: Tensor, ignore_index: int = logprob.IGNORE) -> Tensor:
    """fp32 log probabilities (rows) of target under softmax(x w^T)."""
    floating("linear_logprob", x=x, w=w)
    wants("linear_logprob", "w", w.ndim == 2 and w.shape[0] > 0, "(V, K) with V > 0", tuple(w.shape))
    wants("linear_logprob", "x", x.ndim == 2 and x.shape[1] == w.shape[1], f"(rows, {w.shape[1]})", tuple(x.shape))
    wants("linear_logprob", "target", target.shape == x.shape[:1], f"({len(x)},)", tuple(target.shape))
    if takes_torch("linear_logprob", x):
        return reference(x=x, w=w, target=target, ignore_index=ignore_index)
    return _LinearLogProb.apply(x, w, target, ignore_index)


def reference(*, x: Tensor, w: Tensor, target: Tensor, ignore_index: int = logprob.IGNORE) -> Tensor:
    return logprob.reference(logits=x @ w.T, target=target, ignore_index=ignore_index)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    rows, vocabulary, width = sizes["rows"], sizes["vocabulary"], sizes["width"]
    x = torch.randn(rows, width, generator=draw, device=draw.device)
    w = torch.randn(vocabulary, width, generator=draw, device=draw.device) / width**0.5
    target = torch.randint(0, vocabulary, (rows,), generator=draw, device=draw.device)
    return {"x": x.to(dtype), "w": w.to(dtype), "target": target}


OPERATOR = Operator(
    name="linear_logprob", chain=7, family="logprob", gradient_family="reduction", contract="K-XENT-001",
    function=linear_logprob, reference=reference, inputs=_inputs, rows={"x": 0, "target": 0}, differentiable=("x", "w"),
    sizes=({"rows": 5, "vocabulary": 50, "width": 24},), large=({"rows": 4100, "vocabulary": 32_000, "width": 4096},),
)  # fmt: skip
