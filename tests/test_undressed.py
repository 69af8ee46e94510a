"""Whoever takes a watched module apart finds nothing of ours in it."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import brickprof
from brickprof.capture.undressed import is_ours


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        x = self.backbone(x)
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def hooks(net):
    return [hook for module in net.modules() for hook in module._forward_hooks.values() if is_ours(hook)]


def saved(net):
    torch.save(net, file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def scripted(net):
    return torch.jit.script(net)


@pytest.mark.parametrize("take_apart", [copy.deepcopy, saved, scripted])
def test_it_works_in_any_step_and_the_hooks_are_back(tmp_path, take_apart):
    net = Net() if take_apart is not scripted else torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = 0
    with brickprof.attach(net, out=tmp_path):
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            before = hooks(net)
            watched += bool(before)
            made = take_apart(net)
            assert hooks(net) == before
            if take_apart is not scripted:
                assert not hooks(made)
            optimizer.step()
    assert watched > 3


def test_what_is_no_module_is_scripted_where_it_stands(tmp_path):
    """A class is looked up in the frame of whoever scripts it."""
    with brickprof.attach(None, out=tmp_path):
        local = script_a_class()
    assert local(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]


def script_a_class():
    @torch.jit.script
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    class Scaled:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = tripled(x)

    scaled = torch.jit.script(Scaled)
    assert scaled(torch.ones(1)).x.item() == 3.0
    return tripled
