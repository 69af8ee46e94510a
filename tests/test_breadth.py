"""Loops over rows: the first of the layers that are written alike is named."""

from __future__ import annotations

import pytest
import torch

import brickprof
from brickprof.capture import graph


class Rotation(torch.nn.Module):
    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places

    def forward(self, x):
        return torch.stack([x[:, place % 24].sin() * 0.5 for place in range(self.places)], dim=1)[:, :24]


class Layer(torch.nn.Module):
    def __init__(self, places: int) -> None:
        super().__init__()
        self.first, self.rotation, self.second = torch.nn.Linear(24, 24), Rotation(places), torch.nn.Linear(24, 24)

    def forward(self, x):
        return x + self.second(self.rotation(self.first(x)))


@pytest.mark.parametrize("most", [4000, 90])
def test_the_first_layer_that_loops_is_the_place(tmp_path, monkeypatch, most):
    """Also where the graph is so large that only its end was walked through."""
    monkeypatch.setattr(graph, "MOST_NODES", most)
    net = torch.nn.Sequential(Layer(24), Layer(24), Layer(25))
    assert named_in(tmp_path, net) == {"0.rotation"}


def named_in(folder, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=folder) as bp:
        for _ in range(20):
            optimizer.zero_grad()
            net(torch.randn(4, 24)).square().mean().backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    looks = [event.fields for event in run.events.itertuples() if event.kind == "breadth"]
    placed = {each["brick"] for each in looks if "brick" in each}
    assert looks and placed
    return {row.path for row in run.bricks.itertuples() if row.id in placed}


def test_a_module_of_another_class_at_the_same_place_is_not_like_it(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "MOST_NODES", 90)
    net = torch.nn.Sequential(torch.nn.Linear(24, 24), Rotation(120), torch.nn.Linear(24, 24))
    assert named_in(tmp_path, net) == {"1"}


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (lambda: torch.nn.Sequential(Rotation(1), torch.nn.Linear(1, 24), Rotation(120), torch.nn.Linear(24, 24)), "2"),
        (lambda: Layers({"01": Layer(24), "02": Layer(24), "03": Layer(25)}), "layers.01.rotation"),
    ],
    ids=["the other does less", "numbers with zeros"],
)
def test_what_is_named_is_there_and_does_as_much(tmp_path, monkeypatch, net, named):
    monkeypatch.setattr(graph, "MOST_NODES", 90)
    assert named_in(tmp_path, net()) == {named}


class Layers(torch.nn.Module):
    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict(layers)

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x
