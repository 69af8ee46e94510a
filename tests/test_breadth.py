"""Loops over rows: the first of the layers that are written alike is named."""

from __future__ import annotations

import torch

import brickprof


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


def test_the_first_layer_that_loops_is_the_place(tmp_path):
    net = torch.nn.Sequential(Layer(24), Layer(24), Layer(25))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path) as bp:
        for _ in range(20):
            optimizer.zero_grad()
            net(torch.randn(4, 24)).square().mean().backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    looks = [event.fields for event in run.events.itertuples() if event.kind == "breadth"]
    placed = {each["brick"] for each in looks if "brick" in each}
    assert looks and placed
    named = {row.path for row in run.bricks.itertuples() if row.id in placed}
    assert named == {"0.rotation"}
