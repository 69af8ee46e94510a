"""Operations of a step, against torch's own counter of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import brickprof
from brickprof.capture import graph
from brickprof.probes.operations import counted
from brickprof.rules.story import Story


def mlp():
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8)), torch.randn(5, 7, 24)


def without_bias():
    return nn.Sequential(nn.Linear(24, 40, bias=False), nn.Tanh(), nn.Linear(40, 8, bias=False)), torch.randn(6, 24)


def frozen():
    model, x = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model, x


def convolutions():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, dilation=2), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2), nn.Flatten(), nn.LazyLinear(3),
    ), torch.randn(2, 4, 16, 16)  # fmt: skip


def along_one_dimension():
    return nn.Sequential(nn.Conv1d(3, 6, 5, padding=2), nn.GELU(), nn.Conv1d(6, 2, 1)), torch.randn(4, 3, 20)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def attention():
    return Attends(), torch.randn(3, 10, 16)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, 5))
        self.last = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return torch.bmm(x, self.weight).sum(0) @ self.last


def by_hand():
    return ByHand(), torch.randn(3, 4, 6)


@pytest.mark.parametrize(
    "made", [mlp, without_bias, frozen, convolutions, along_one_dimension, by_hand], ids=lambda made: made.__name__
)
@pytest.mark.parametrize("given", [False, True], ids=["of leaves", "of what has a gradient"])
def test_as_many_as_torch_counts(made, given):
    torch.manual_seed(0)
    model, x = made()
    model(x)
    x.requires_grad_(given)
    with FlopCounterMode(display=False) as forward:
        loss = model(x).square().mean()
    found = counted(graph.nodes(loss))
    graph.forget()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    vectors = 3 * 2 * 4 * 5 if made is by_hand else 0  # torch's counter has none for a matrix with a vector
    assert found.unknown == ()
    if made is frozen and not given:
        assert found == (22_400, 22_400, 1, ())  # what no gradient flows through is in no graph
        return
    assert found.forward + found.backward - vectors == forward.get_total_flops() + backward.get_total_flops()
    assert found.forward - vectors // 3 == forward.get_total_flops()


def test_of_a_convolution_in_groups_each_has_its_own_part_alone():
    loss = nn.Conv2d(8, 12, 3, groups=4)(torch.randn(2, 8, 9, 9)).sum()
    operations = 2 * (2 * 12 * 7 * 7) * (2 * 3 * 3)
    assert counted(graph.nodes(loss)) == (operations, operations, 1, ())
    graph.forget()


def test_attention_counts_whole_and_what_is_computed_again_does_not():
    model, x = attention()
    loss = model(x).square().mean()
    found = counted(graph.nodes(loss))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        model(x.detach()).square().mean().backward()
    assert found.unknown == () and found.forward + found.backward == torchs.get_total_flops()
    again = checkpoint(model, x, use_reentrant=False).square().mean()
    assert counted(graph.nodes(again)) == found
    graph.forget()


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Owns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, 2)

    def forward(self, x):
        return Own.apply(self.last(x))


def test_what_cannot_be_counted_is_said():
    found = counted(graph.nodes(Owns()(torch.randn(3, 24)).sum()))
    assert found.unknown == ("Own",) and found.forward == 2 * 3 * 24 * 2
    graph.forget()


@pytest.mark.parametrize(("model", "whole"), [(mlp()[0], True), (Owns(), False)], ids=["torch's", "one's own"])
def test_a_run_says_how_many_a_step_makes(tmp_path, model, whole):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, out=tmp_path) as bp:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 24)).square().mean().backward()
            optimizer.step()
    told = [event.fields for event in Story.of(brickprof.load(bp.folder)).events("operations")]
    assert told and all(fields["whole"] is whole for fields in told)
    if whole:
        forward = 2 * 4 * 24 * 40 + 2 * 4 * 40 * 8
        assert {(fields["forward"], fields["backward"]) for fields in told} == {
            (forward, 2 * forward - 2 * 4 * 24 * 40)
        }
