"""The first block that puts out something that is not finite, of code that torch.compile has made."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from brickprof.capture import lookout as lookouts
from brickprof.capture import sentry as sentries
from tests.test_stretch import CountsInPassing, Training, recorded, stretches

__all__ = ["stretches"]
BACKEND = "aot_eager_decomp_partition"


@pytest.fixture
def counts(monkeypatch):
    torch._dynamo.reset()
    made = CountsInPassing()
    monkeypatch.setattr(lookouts, "on_device", lambda tensor: True)
    monkeypatch.setattr(lookouts, "Counts", lambda: made)
    monkeypatch.setattr(sentries, "_SHARE", 1e9)  # whatever it costs on this machine
    monkeypatch.setattr(lookouts, "_SHARE", 1e9)
    yield made
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, turned):
        return x + self.down(F.gelu(self.up(self.norm(x)) * turned))


class Net(nn.Module):
    def __init__(self, width: int = 4, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)
        self.register_buffer("angles", torch.arange(2.0 * width))

    def forward(self, x):
        turned = (self.angles * x[:1, :1]).cos()  # of no block, and used in all of them
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, turned)
        return self.head(self.norm(x))


def whole(net):
    compiled = torch.compile(net, backend=BACKEND)
    return lambda x: compiled(x).square().mean()


def in_place(net):
    net.compile(backend=BACKEND)
    return lambda x: net(x).square().mean()


def function(net):
    return torch.compile(lambda x: net(x).square().mean(), backend=BACKEND)


def blocks(net):
    for number, layer in enumerate(net.layers):
        net.layers[number] = torch.compile(layer, backend=BACKEND)
    return lambda x: net(x).square().mean()


def blocks_in_place(net):
    for layer in net.layers:
        layer.compile(backend=BACKEND)
    return lambda x: net(x).square().mean()


KINDS = [whole, in_place, function, blocks, blocks_in_place]


class Breaks(Training):
    """One of the blocks puts out a NaN in some step."""

    def __init__(self, compiles, at, block, net=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = net or Net()
        self.broken = self.net.layers[block].up.weight
        self._loss = compiles(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.001)
        self._at = at

    def loss(self, x):
        return self._loss(x)

    def step(self, x, number):
        if number == self._at:
            with torch.no_grad():
                self.broken.mul_(1e39)
        return super().step(x, number)


def batches(steps=500):
    torch.manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(steps * 6, 4)), batch_size=6)


def first_broken(run):
    found = run.events[run.events.kind == "activation"].iloc[0]
    return found.step, run.bricks.path[run.bricks.id == found.fields["brick"]].item(), found.fields


@pytest.mark.parametrize("compiles", KINDS)
@pytest.mark.parametrize("at", [160, 333])
@pytest.mark.parametrize("block", [0, 2, 3])
def test_the_block_is_known_whatever_was_compiled(tmp_path, stretches, counts, compiles, at, block):
    run = recorded(tmp_path, Breaks(compiles, at, block), most=32, batches=batches())
    step, path, _ = first_broken(run)
    assert (step, path) == (at, f"layers.{block}")
    assert sum(stretches) > 100
    assert run.events[run.events.kind == "exit"].iloc[0].fields["looked_out"] >= 100
