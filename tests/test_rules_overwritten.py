"""Memory that somebody else writes to: from real backward passes to the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brickprof
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.rules import overwritten
from brickprof.rules.story import Story


def judged(tmp_path: Path, body: Callable[[], None], rule: type) -> ContractResult:
    torch.manual_seed(0)
    with brickprof.attach(None, out=tmp_path) as session:
        body()
    return rule().judge(Story.of(brickprof.load(session.folder)), registry.find(rule.contract))


class Spill(torch.autograd.Function):
    """A backward that writes ``count`` elements into a scratch of eight."""

    @staticmethod
    def forward(ctx, x, arena, count):  # type: ignore[no-untyped-def]
        ctx.arena, ctx.count = arena, count
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        ctx.arena[: ctx.count].copy_(grad.flatten()[: ctx.count] + 1)
        return grad, None, None


def in_an_arena(count: int, optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam) -> Callable[[], None]:
    def body() -> None:
        arena, model = torch.zeros(256), nn.Linear(8, 4)
        arena[8:40] = model.weight.detach().flatten()
        model.weight.data = arena[8:40].view(4, 8)
        optimizer = optimizer_class(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.randn(16, 8, requires_grad=True)
            F.cross_entropy(model(Spill.apply(x, arena, count)), torch.randint(4, (16,))).backward()
            optimizer.step()

    return body


@pytest.mark.parametrize(("count", "verdict"), [(8, Verdict.NOT_EVALUATED), (24, Verdict.FAIL)])
def test_a_backward_that_runs_on_into_a_weight(count: int, verdict: Verdict, tmp_path: Path) -> None:
    result = judged(tmp_path, in_an_arena(count), overwritten.Neighbours)
    assert result.verdict is verdict, result
    if verdict is Verdict.FAIL:
        (found,) = result.violations
        assert found.cause == "buffer-overflow" and "weight" in found.symptom and "bias" not in found.symptom


def test_an_optimizer_that_runs_inside_the_backward_is_no_stranger(tmp_path: Path) -> None:
    def body() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            each[parameter].step()  # type: ignore[index]
            each[parameter].zero_grad()  # type: ignore[index]

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for _ in range(6):
            F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()

    assert judged(tmp_path, body, overwritten.Neighbours).verdict is not Verdict.FAIL


def test_weights_that_are_clamped_after_each_update_are_no_strangers(tmp_path: Path) -> None:
    def body() -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
            optimizer.step()
            for p in model.parameters():
                p.data.clamp_(-0.05, 0.05)

    assert judged(tmp_path, body, overwritten.Neighbours).verdict is not Verdict.FAIL


@pytest.mark.parametrize("cleared", [True, False])
def test_sums_that_were_not_cleared_before_the_first_update(cleared: bool, tmp_path: Path) -> None:
    def body() -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sums = [torch.full_like(p, 0.0 if cleared else 50.0) for p in model.parameters()]
        for _ in range(20):
            for _ in range(3):
                (F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))) / 3).backward()
                for total, p in zip(sums, model.parameters(), strict=True):
                    total += p.grad
                    p.grad = None
            for total, p in zip(sums, model.parameters(), strict=True):
                p.grad = total.clone()
                total.zero_()
            optimizer.step()
            optimizer.zero_grad()

    result = judged(tmp_path, body, overwritten.FirstUpdate)
    assert result.verdict is (Verdict.NOT_EVALUATED if cleared else Verdict.FAIL), result
    if not cleared:
        assert result.violations[0].cause == "optimizer-state-uninitialised"
