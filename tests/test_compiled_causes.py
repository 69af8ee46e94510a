"""Causes in trainings whose model is compiled and no block of it can be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brickprof
from brickprof.capture import surroundings
from brickprof.diagnosis import diagnose
from brickprof.diagnosis.model import Finding

BACKEND = "aot_eager_decomp_partition"
STEPS = 24


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(surroundings._Saved, "by_others", False)  # other tests checkpoint
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def in_place(net: nn.Module) -> nn.Module:
    net.compile(backend=BACKEND)
    return net


def wrapped(net: nn.Module) -> Any:
    return torch.compile(net, backend=BACKEND)


def first_finding(
    folder: Path, net: nn.Module, run: Any, loss_of: Callable[[Any, int], torch.Tensor], **attached: Any
) -> Finding:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with brickprof.attach(net, optimizer, out=folder, overhead="100%", **attached) as bp:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(run, step).backward()
            optimizer.step()
    recorded = brickprof.load(bp.folder)
    assert recorded.events[recorded.events.kind == "probe_off"].empty
    return diagnose(recorded).findings[0]


def answers(finding: Finding) -> str:
    return " ".join(why.finding for why in finding.whys)


class Standardise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.square().mean(1, keepdim=True) - x.mean(1, keepdim=True) ** 2).sqrt()


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.standardise, self.body, self.head = Standardise(), nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.standardise(x))))


@pytest.mark.parametrize("compiles", [in_place, wrapped])
def test_a_block_without_weights_is_told_from_the_one_that_it_feeds(tmp_path: Path, compiles: Any) -> None:
    net = Reader()

    def loss_of(run: Any, step: int) -> torch.Tensor:
        x = torch.randn(8, 6)
        return F.cross_entropy(run(100.0 + 0 * x if step == 9 else x), x.argmax(1) % 4)

    finding = first_finding(tmp_path, net, compiles(net), loss_of)
    assert (finding.first_step, finding.brick) == (9, "standardise")
    line = Standardise.forward.__code__.co_firstlineno + 1
    assert f"sqrt in test_compiled_causes.py:{line}" in answers(finding)


class WithLoss(nn.Module):
    """Its own code has its loss in it."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.body, self.head, self.alone = nn.Linear(6, 16), nn.Linear(16, 4), alone

    def forward(self, x: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> Any:
        logits = self.head(torch.tanh(self.body(x)))
        loss = self.loss(logits, y, number)
        return loss if self.alone else (loss, logits)


class Surprise(WithLoss):
    def loss(self, logits: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return -torch.log(torch.softmax(logits / (1e-5 + number), -1).gather(1, y[:, None])).mean()


class Ratio(WithLoss):
    def loss(self, logits: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y, reduction="sum") * number / number


class Mean(WithLoss):
    def loss(self, logits: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, torch.where(number > 0, y, -100))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("compiles", [in_place, wrapped])
@pytest.mark.parametrize(
    ("kind", "operation", "cause"),
    [
        (Surprise, "log", "log-of-zero"), (Ratio, "div", "division-by-zero"), (Mean, "nll_loss", "division-by-zero"),
    ],
)  # fmt: skip
def test_a_loss_that_breaks_in_the_models_own_code(
    tmp_path: Path, compiles: Any, kind: type[WithLoss], operation: str, cause: str, alone: bool
) -> None:
    net = kind(alone)

    def loss_of(run: Any, step: int) -> torch.Tensor:
        x = torch.randn(8, 6)
        put_out = run(x, x.argmax(1) % 4, torch.tensor(0.0 if step == 9 else 1.0))
        return put_out if alone else put_out[0]

    finding = first_finding(tmp_path, net, compiles(net), loss_of)
    assert (finding.first_step, finding.root_cause, finding.brick) == (9, cause, kind.__name__)
    assert f"{operation} in test_compiled_causes.py:{kind.loss.__code__.co_firstlineno + 1}" in answers(finding)


class Sums(nn.Module):
    """A product and a sum, in float16, and nothing kept between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pool, self.head = nn.Linear(3, 8), Sum(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(torch.relu(self.body(x))))


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


def test_where_it_may_be_one_or_the_other_it_is_the_models(tmp_path: Path) -> None:
    net = Sums().half()

    def loss_of(run: Any, step: int) -> torch.Tensor:
        x = 4 * torch.rand(4, 9000 if step == 9 else 90, 3) + 20
        return F.cross_entropy(run(x.half()).float() * 1e-3, torch.arange(4) % 2)

    with torch.no_grad():
        net.body.bias.fill_(1.0)
    finding = first_finding(tmp_path, net, wrapped(net), loss_of)
    assert (finding.first_step, finding.root_cause, finding.brick) == (9, "fp16-overflow", "Sums")


class Dead(nn.Module):
    def __init__(self, kills: bool = True) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 16), nn.Linear(16, 1)
        if kills:
            with torch.no_grad():
                self.hidden.bias.fill_(-100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


@pytest.mark.parametrize("compiles", [in_place, wrapped])
def test_a_layer_that_is_given_zeros_is_on_the_path(tmp_path: Path, compiles: Any) -> None:
    """Its bias has a gradient: the path is open, and what comes before it is dead."""
    net = Dead()
    finding = first_finding(
        tmp_path, net, compiles(net), lambda run, step: (run(torch.randn(8, 6)) - 1).square().mean()
    )
    assert finding.root_cause == "dead-activations" and "all that out is given is zero" in answers(finding)


class Fallback(Dead):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.zeros_like(self.hidden(x)))


def test_zeros_that_nothing_is_behind_are_not_those_of_dead_units(tmp_path: Path) -> None:
    net = Fallback(kills=False)
    finding = first_finding(tmp_path, net, wrapped(net), lambda run, step: (run(torch.randn(8, 6)) - 1).square().mean())
    assert finding.root_cause == "no-gradient-path"


class ForgetsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, weight = ctx.saved_tensors
        return grad @ weight, torch.zeros_like(weight), grad.sum(0)


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ForgetsWeight.apply(x, self.weight, self.bias)


def test_where_its_input_was_seen_to_be_none_it_is_the_path(tmp_path: Path) -> None:
    net = Dead(kills=False)
    net.out = Own(16, 1)
    finding = first_finding(tmp_path, net, net, lambda run, step: (run(torch.randn(8, 6)) - 1).square().mean())
    assert (finding.root_cause, finding.brick) == ("no-gradient-path", "out")


def test_a_scale_that_nothing_takes_back_is_found(tmp_path: Path) -> None:
    """By the step that each loss belongs to: it begins with the forward of what was compiled in place."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss_of(run: Any, step: int) -> torch.Tensor:
        x = torch.randn(8, 6)
        return F.cross_entropy(run(x), x.argmax(1) % 4) * 2.0**16

    finding = first_finding(tmp_path, net, in_place(net), loss_of)
    assert finding.root_cause == "loss-scale-misused" and math.isfinite(finding.confidence)
