"""One problem for an operation, and what became of it: output, gradients, launches.

Enters: an operator, sizes, a type, a device and a seed; then a function and arguments. Leaves: arguments that the same
words make again, and an ``Outcome``. Every call has copies of its own, so that an operation that writes into what it
was given spoils nothing for the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from brickprof.errors import ConfigurationError
from brickprof.operators import launch
from brickprof.operators.operator import Arguments, Operator, Sizes
from brickprof.text import clean

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORDS = {dtype: word for word, dtype in DTYPES.items()}
Function = Callable[..., Any]
_WRAPPERS = ("CompilationError", "InterpreterError")
"""Triton's: they quote what is inside them, one in the other."""
_UPSTREAM, _NEIGHBOURS, _ORDER = 1, 2, 3


class Refused(Exception):
    """The operation raised in the forward direction, or gave something that is no output; told in one line."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Outcome:
    output: Tensor
    gradients: Mapping[str, Tensor | None] = field(default_factory=dict)
    """By argument; None where the operation gave none. Empty when the output carries no gradient at all."""
    broken: str = ""
    """What the backward direction raised, in one line."""
    launches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    operator: Operator
    sizes: Sizes
    dtype: str
    device: str
    seed: int
    arguments: Arguments
    population: int
    """How many rows there are; -1 when no argument holds any."""

    @classmethod
    def make(cls, operator: Operator, sizes: Sizes, dtype: str, device: str, seed: int) -> Problem:
        arguments = _drawn(operator, sizes, dtype, device, seed)
        return cls(operator, dict(sizes), dtype, device, seed, arguments, _population(operator, arguments))

    def neighbours(self) -> Arguments:
        """Arguments of the same shapes with other content."""
        return _drawn(self.operator, self.sizes, self.dtype, self.device, self.seed + 1_000_003 * _NEIGHBOURS)

    def upstream(self, shape: Sequence[int]) -> Tensor:
        """A random upstream gradient: ones would hide what is wrong with a backward."""
        draw = torch.Generator(self.device).manual_seed(self.seed + 1_000_003 * _UPSTREAM)
        return torch.randn(tuple(shape), generator=draw, device=self.device).to(DTYPES[self.dtype])

    def order(self) -> torch.Generator:
        """Of permutations; on the CPU, so that they are the same on every device."""
        return torch.Generator().manual_seed(self.seed + 1_000_003 * _ORDER)


def _drawn(operator: Operator, sizes: Sizes, dtype: str, device: str, seed: int) -> Arguments:
    try:
        return operator.inputs(sizes, DTYPES[dtype], torch.Generator(device).manual_seed(seed))
    except (KeyError, ValueError, RuntimeError) as error:
        told = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ConfigurationError(f"{operator.name} has no problem of {told}: {told_in_one_line(error)}.") from error


def _population(operator: Operator, arguments: Arguments) -> int:
    held = {name: int(arguments[name].shape[dimension]) for name, dimension in operator.rows.items()}
    if len(set(held.values())) > 1:
        raise ConfigurationError(f"{operator.name}: its arguments disagree on the number of rows: {held}.")
    return next(iter(held.values()), -1)


def run(
    function: Function, arguments: Arguments, differentiable: Sequence[str], upstream: Callable[[torch.Size], Tensor]
) -> Outcome:
    """Calls ``function``, and sends ``upstream`` (of the output's shape) back through it."""
    before = {name: each.launches for name, each in launch.counts().items()}
    own = {name: _copy(value) for name, value in arguments.items()}
    leaves = {name: own[name].requires_grad_() for name in differentiable if _floating(own.get(name))}
    with in_one_line():
        output = function(**own)
        _finished(output)
    if not isinstance(output, Tensor):
        raise Refused(f"it gave a {type(output).__name__} where a tensor was expected")
    sent = upstream(output.shape)
    if sent.shape != output.shape:
        raise Refused(f"it gave the shape {tuple(output.shape)} where {tuple(sent.shape)} was expected")
    gradients, broken = _gradients(output, leaves, sent)
    after = {name: each.launches - before.get(name, 0) for name, each in launch.counts().items()}
    launched = {name: count for name, count in after.items() if count}
    return Outcome(output.detach(), gradients, broken, launched)


def _gradients(output: Tensor, leaves: Mapping[str, Tensor], sent: Tensor) -> tuple[dict[str, Tensor | None], str]:
    if not leaves or not output.requires_grad:
        return {}, ""
    try:
        with in_one_line():
            found = torch.autograd.grad(output, list(leaves.values()), sent.to(output.dtype), allow_unused=True)
            _finished(output)
    except Refused as refusal:
        return {}, str(refusal)
    return dict(zip(leaves, found, strict=True)), ""


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # somebody's operation: whatever it raises is told, not thrown
        raise Refused(told_in_one_line(error), error) from error


def told_in_one_line(error: BaseException) -> str:
    while type(error).__name__ in _WRAPPERS and error.__cause__ is not None:
        error = error.__cause__
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return clean(f"{type(error).__name__}: {first}" if first else type(error).__name__, limit=300)


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # A view keeps its strides: they are what is being tried out.
    return value.detach().clone() if value.is_contiguous() else value.detach()


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _finished(output: Any) -> None:
    """A fault on a device shows when it is waited for: here, and not in the next operation."""
    if isinstance(output, Tensor) and output.is_cuda:
        torch.cuda.synchronize(output.device)
