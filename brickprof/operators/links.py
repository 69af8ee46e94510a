"""Tokens walked through five operations, and the other companies in which the same tokens can be.

Enters: functions by the names of their operators, and tokens (batch, length, width) with their targets. Leaves: what
each link was given and gave, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brickprof.operators.operator import Arguments, Sizes
from brickprof.operators.problem import DTYPES, Function, Refused, in_one_line

LINKS = ("rmsnorm", "gemm", "attention", "lm_head", "logprob")
_EPS = 1e-5


class Stopped(Exception):
    """A link raised, or gave another shape."""

    def __init__(self, link: str, message: str) -> None:
        super().__init__(message)
        self.link = link


@dataclass(frozen=True)
class Tokens:
    x: Tensor
    target: Tensor
    norm: Tensor
    projection: Tensor
    head: Tensor
    heads: int

    def widened(self) -> Tokens:
        wide = {name: getattr(self, name).float() for name in ("x", "norm", "projection", "head")}
        return replace(self, **wide)

    def of(self, x: Tensor, target: Tensor) -> Tokens:
        return replace(self, x=x, target=target)


@dataclass(frozen=True)
class Pass:
    arguments: Mapping[str, Arguments]
    raw: Mapping[str, Tensor]
    by_token: Mapping[str, Tensor]
    """Outputs as (batch, length, ...)."""

    @property
    def logprob(self) -> Tensor:
        return self.by_token["logprob"]


@dataclass(frozen=True)
class Variant:
    transform: str
    name: str
    build: Callable[[Tokens], Tokens]
    was: Callable[[Tensor], Tensor]
    """The part of the baseline that is compared ..."""
    now: Callable[[Tensor], Tensor]
    """... and the part of the variant, sequences and tokens in the same order."""


def tokens(sizes: Sizes, dtype: str, device: str, seed: int) -> Tokens:
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device)

    batch, length, vocabulary = sizes["batch"], sizes["length"], sizes["vocabulary"]
    width = sizes["heads"] * sizes["channels"]
    made = normal(batch, length, width), 1 + 0.1 * normal(width), normal(3 * width, width), normal(vocabulary, width)
    x, norm, projection, head = made
    target = torch.randint(0, vocabulary, (batch, length), generator=draw, device=device)
    wanted = DTYPES[dtype]
    return Tokens(
        x.to(wanted), target, norm.to(wanted), (projection / width**0.5).to(wanted), (head / width**0.5).to(wanted),
        sizes["heads"],
    )  # fmt: skip


def walk(functions: Mapping[str, Function], tokens: Tokens) -> Pass:
    """All links, one behind the other."""
    batch, length, width = tokens.x.shape
    rows, channels = batch * length, width // tokens.heads
    taken: dict[str, Arguments] = {}
    given: dict[str, Tensor] = {}

    def through(link: str, shape: tuple[int, ...], **arguments: object) -> Tensor:
        taken[link] = dict(arguments)
        given[link] = _called(functions[link], link, shape, taken[link])
        return given[link]

    normed = through(
        "rmsnorm", (rows, width), x=tokens.x.reshape(rows, width).contiguous(), weight=tokens.norm, eps=_EPS
    )
    projected = through("gemm", (rows, 3 * width), x=normed, w=tokens.projection)
    split = projected.view(batch, length, 3, tokens.heads, channels).permute(2, 0, 3, 1, 4)
    q, k, v = (part.contiguous() for part in split)
    attended = through("attention", (batch, tokens.heads, length, channels), q=q, k=k, v=v)
    mixed = attended.permute(0, 2, 1, 3).reshape(rows, width).contiguous()
    logits = through("lm_head", (rows, tokens.head.shape[0]), x=mixed, w=tokens.head)
    through("logprob", (rows,), logits=logits, target=tokens.target.reshape(rows).contiguous())
    by_token = {link: output.reshape(batch, length, -1) for link, output in given.items()}
    by_token["attention"] = mixed.view(batch, length, width)
    return Pass(taken, given, by_token)


def _called(function: Function, link: str, shape: tuple[int, ...], arguments: Arguments) -> Tensor:
    try:
        with torch.no_grad(), in_one_line():
            output = function(**arguments)
    except Refused as refusal:
        raise Stopped(link, str(refusal)) from refusal
    if not isinstance(output, Tensor) or tuple(output.shape) != shape:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise Stopped(link, f"it gave {found} where {shape} was expected")
    return output


def variants(tokens: Tokens) -> list[Variant]:
    """The same tokens in other company."""
    batch, length = tokens.target.shape
    half = max(1, length // 2)
    return [
        *(_alone(at) for at in sorted({0, batch - 1})),
        Variant("T2", "sequences reversed", lambda t: t.of(t.x.flip(0), t.target.flip(0)), _all, lambda y: y.flip(0)),
        Variant("T4", "a sequence of zeros behind", _padded, _all, lambda y: y[:batch]),
        Variant(
            "T5", f"only the first {half} tokens", lambda t: t.of(t.x[:, :half], t.target[:, :half]),
            lambda y: y[:, :half], _all,
        ),
    ]  # fmt: skip


def _alone(at: int) -> Variant:
    return Variant(
        "T1", f"sequence {at} alone", lambda t: t.of(t.x[at : at + 1], t.target[at : at + 1]),
        lambda y: y[at : at + 1], _all,
    )  # fmt: skip


def _padded(tokens: Tokens) -> Tokens:
    return tokens.of(
        torch.cat([tokens.x, torch.zeros_like(tokens.x[:1])]), torch.cat([tokens.target, tokens.target[:1]])
    )


def _all(tensor: Tensor) -> Tensor:
    return tensor
