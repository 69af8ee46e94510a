"""What a kernel file says about its operation, so that tests, checks and benchmarks run over all of them.

Enters: nothing. Leaves: ``Operator``, the one object that a file in kernels/ exports as ``OPERATOR`` (or several as
``OPERATORS``), and the registry that finds them.

An operation is a function of tensors by keyword. Some arguments hold *rows*: independent tokens, or sequences, that
must not feel each other. All invariance is about them: a row's output and gradient have the same bits alone, in a
batch, at another place, beside other neighbours, and with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Schedule:
    """Another way to the same rows: chunks, a cache, packing, or padding where no argument holds rows. It gives tensors
    to compare bit by bit; a name that begins with "gradient" says that they are gradients."""

    transform: str
    """Usually T5, T6 or T7."""
    name: str
    compare: Callable[[Callable[..., Any], Arguments], tuple[Tensor, Tensor]]
    """From the operation and its arguments: what it gives, and what it gives the other way."""


@dataclass(frozen=True)
class Operator:
    name: str
    chain: int
    """Its place in the chain of a model (INVARIANCE): a drift is blamed on the lowest. -1: in no chain."""
    family: str
    """elementwise, reduction, logprob or attention: which tolerances hold."""
    contract: str
    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    """The same mathematics in plain torch; given fp32 arguments it is the gold."""
    inputs: Callable[[Sizes, torch.dtype, torch.Generator], Arguments]
    """Arguments of one problem, made on the generator's device."""
    sizes: tuple[Sizes, ...]
    """Problems small enough for the interpreter."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Argument -> the dimension along which it holds rows. The output holds them along dimension 0."""
    differentiable: tuple[str, ...] = ()
    """Arguments with a gradient. Those with rows must have row-invariant ones, others padding-invariant ones."""
    schedules: tuple[Schedule, ...] = ()
    large: tuple[Sizes, ...] = ()
    """Problems for a GPU, as models have them."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    gradient_family: str = ""
    """When gradients are sums of another kind than values: a linear layer before a logprob has products for them."""


def all_operators() -> dict[str, Operator]:
    """Every operation in kernels/ and of third parties, by name, in the order of the chain."""
    from brickprof import plugins

    found: list[Operator] = []
    for plugin in plugins.discover("brickprof.kernels"):
        found += getattr(plugin.module, "OPERATORS", ())
        if hasattr(plugin.module, "OPERATOR"):
            found.append(plugin.module.OPERATOR)
    return {each.name: each for each in sorted(found, key=lambda each: (each.chain < 0, each.chain, each.name))}
