"""The logits of a language model: hidden states against the weight of every token.

    logits[m, n] = sum_k x[m, k] w[n, k]
    dx[m, k] = sum_n dlogits[m, n] w[n, k],   dw[n, k] = sum_m dlogits[m, n] x[m, k]

Enters: x (..., K) and the head's weight w (V, K) in fp32, bf16 or fp16. Leaves: logits (..., V) of the same type. It is
the product of gemm.py with its gradients, as wide as a vocabulary; so a row's bits are its own, and trailing rows
without gradient leave dw as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from brickprof.kernels.gemm import gemm
from brickprof.operators.launch import floating, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes


def lm_head(*, x: Tensor, w: Tensor) -> Tensor:
    """logits (..., V) = x (..., K) @ w (V, K)^T."""
    floating("lm_head", x=x, w=w)
    wants("lm_head", "w", w.ndim == 2, "(V, K)", tuple(w.shape))
    wants("lm_head", "x", x.ndim >= 1 and x.shape[-1] == w.shape[1], f"(..., {w.shape[-1]})", tuple(x.shape))
    return reference(x=x, w=w) if takes_torch("lm_head", x) else gemm(x=x, w=w)


def reference(*, x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    x = torch.randn(m, k, generator=draw, device=draw.device)
    w = torch.randn(n, k, generator=draw, device=draw.device) / k**0.5
    return {"x": x.to(dtype), "w": w.to(dtype)}


OPERATOR = Operator(
    name="lm_head", chain=6, family="reduction", contract="K-MATMUL-001", function=lm_head, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x", "w"),
    sizes=({"m": 5, "n": 24, "k": 40}, {"m": 33, "n": 17, "k": 70}), large=({"m": 256, "n": 32_000, "k": 4096},),
)  # fmt: skip
