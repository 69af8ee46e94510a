"""What a user of torch would write in the place of each operation, in the type of its inputs.

Enters: the operation's own arguments, by keyword. Leaves: torch's output, with torch's choice of kernel. These are
candidates, not references: whether they keep their bits is what the judgement is for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_IGNORE = -100


def linear(*, x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def rmsnorm(*, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def attention(*, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal; the last query stands at the last key, which ``is_causal`` says only of squares."""
    queries, keys, grouped = q.shape[2], k.shape[2], q.shape[1] != k.shape[1]
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=grouped)


def logprob(*, logits: Tensor, target: Tensor, ignore_index: int = _IGNORE) -> Tensor:
    chosen = F.log_softmax(logits, dim=-1).gather(1, target.clamp(min=0)[:, None].long())[:, 0]
    return torch.where(target == ignore_index, torch.zeros_like(chosen), chosen)


def linear_logprob(*, x: Tensor, w: Tensor, target: Tensor, ignore_index: int = _IGNORE) -> Tensor:
    return logprob(logits=F.linear(x, w), target=target, ignore_index=ignore_index)


def cross_entropy(*, logits: Tensor, target: Tensor, ignore_index: int = _IGNORE) -> Tensor:
    return F.cross_entropy(logits, target, ignore_index=ignore_index)


def swiglu(*, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def silu(*, x: Tensor) -> Tensor:
    return F.silu(x)


def gelu(*, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def softmax(*, x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def embedding(*, tokens: Tensor, table: Tensor) -> Tensor:
    return F.embedding(tokens, table)


def rope(*, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


def transpose(*, x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous()


CANDIDATES: dict[str, Callable[..., Tensor]] = {
    "attention": attention,
    "cross_entropy": cross_entropy,
    "embedding": embedding,
    "gelu": gelu,
    "gemm": linear,
    "linear_logprob": linear_logprob,
    "lm_head": linear,
    "logprob": logprob,
    "rmsnorm": rmsnorm,
    "rope": rope,
    "silu": silu,
    "softmax": softmax,
    "swiglu": swiglu,
    "transpose": transpose,
}
