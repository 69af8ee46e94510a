"""The first block that puts out something that is not finite, of code that torch.compile has made."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from brickprof.capture import blame, sentries, surroundings
from brickprof.capture import lookout as lookouts
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
    monkeypatch.setattr(surroundings._Saved, "by_others", False)
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
            self.break_it()
        return super().step(x, number)

    def break_it(self):
        with torch.no_grad():
            self.broken.mul_(1e39)


def batches(steps=400):
    torch.manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(steps * 6, 4)), batch_size=6)


def first_broken(run):
    found = run.events[run.events.kind == "activation"].iloc[0]
    return found.step, run.bricks.path[run.bricks.id == found.fields["brick"]].item(), found.fields


@pytest.mark.parametrize("compiles", KINDS)
@pytest.mark.parametrize(("at", "block"), [(160, 0), (333, 3)])
def test_the_block_is_known_whatever_was_compiled(tmp_path, stretches, counts, compiles, at, block):
    run = recorded(tmp_path, Breaks(compiles, at, block), most=32, batches=batches())
    step, path, fields = first_broken(run)
    assert (step, path, fields["inside"], fields["inputs_finite"]) == (at, f"layers.{block}", True, True)
    assert sum(stretches) > 100
    assert end_of(run)["looked_out"] >= len(counts.added) > 50


def end_of(run):
    return run.events[run.events.kind == "exit"].iloc[0].fields


def kinds_of(run):
    return set(run.events.kind)


class Accumulates(Breaks):
    def step(self, x, number):
        if number == self._at:
            self.break_it()
        for part in x.chunk(2):
            self.loss(part).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("ranks", [1, 2])
def test_so_it_is_of_steps_with_several_backwards_and_of_one_of_several_ranks(tmp_path, stretches, counts, ranks):
    run = recorded(tmp_path, Accumulates(whole, 200, 1), most=32, batches=batches(), ranks=ranks)
    step, path, fields = first_broken(run)
    assert (step, path, fields["micro"]) == (200, "layers.1", 0)
    assert bool(stretches) is (ranks == 1)


def test_a_healthy_training_is_told_nothing_and_stays_as_it_is(tmp_path, stretches, counts):
    """To the bit, and with the numbers that are drawn next."""
    watched = Breaks(whole, -1, 0)
    run = recorded(tmp_path, watched, most=32, batches=batches(200))
    assert end_of(run)["looked_out"] > 50
    assert kinds_of(run).isdisjoint({"activation", "probe_off", "anomaly"})
    drawn = torch.rand(())
    torch._dynamo.reset()
    plain = Breaks(whole, -1, 0)
    plain.run(batches(200))
    assert torch.rand(()) == drawn
    for mine, theirs in zip(watched.net.parameters(), plain.net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class WithLoss(Net):
    """A model whose own code has its loss in it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):
        return super().forward(x).square().sum() / self.count


class OwnLoss(Breaks):
    def __init__(self, compiles, at, parts=1) -> None:
        super().__init__(compiles, at, 0, WithLoss())
        self._parts = parts

    def loss(self, x):
        return self._loss(x) / self._parts

    def break_it(self):
        self.net.count.zero_()


def owns_loss(net):
    return torch.compile(net, backend=BACKEND)


def owns_loss_in_place(net):
    net.compile(backend=BACKEND)
    return net


@pytest.mark.parametrize("compiles", [owns_loss, owns_loss_in_place])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_loss_that_breaks_inside_is_the_models(tmp_path, stretches, counts, compiles, parts):
    """With the line of the division."""
    run = recorded(tmp_path, OwnLoss(compiles, 200, parts), most=32, batches=batches(230))
    step, path, fields = first_broken(run)
    assert (step, path, fields["numel"], fields["inside"], fields["inputs_finite"]) == (200, "", 1, True, None)
    assert fields["operations"] == [f"div in test_insides.py:{WithLoss.forward.__code__.co_firstlineno + 1}"]


class OutsideIsBad:
    """What breaks is what is done to the loss, and no block."""

    def loss(self, x):
        return self._loss(x) / self._next()

    def _next(self):
        self._seen = getattr(self, "_seen", -1) + 1
        return 0.0 if self._seen == self._at else 1.0

    def break_it(self):
        pass


class Divides(OutsideIsBad, Breaks):
    pass


class DividesOwn(OutsideIsBad, OwnLoss):
    pass


def function_of_two(net):
    return torch.compile(lambda x, by: net(x).square().mean() / by, backend=BACKEND)


class DividesWithin(OutsideIsBad, Breaks):
    """In code that was compiled with the model's, and is not the model's."""

    def loss(self, x):
        return self._loss(x, torch.tensor(self._next()))


NOBODYS = {
    "outside": lambda: Divides(function, 200, 0),
    "outside of its own": lambda: DividesOwn(owns_loss, 200),
    "within a function": lambda: DividesWithin(function_of_two, 200, 0),
}


@pytest.mark.parametrize("training", NOBODYS.values(), ids=NOBODYS)
def test_where_no_block_is_to_blame_none_is(tmp_path, stretches, counts, training):
    run = recorded(tmp_path, training(), most=32, batches=batches(230))
    first = run.loss[~run.loss["value"].map(math.isfinite)].iloc[0]
    broken = run.events[(run.events.kind == "activation") & (run.events.step == 200)]
    assert first["step"] == 200 and broken.empty


class Counted(torch.autograd.graph.saved_tensors_hooks):
    """Somebody's own way to keep tensors, who counts how often he is asked for one."""

    def __init__(self):
        self.asked = 0
        super().__init__(lambda tensor: tensor, self._ask)

    def _ask(self, tensor):
        self.asked += 1
        return tensor


class Offloads(Breaks):
    def loss(self, x):
        self.hooks = getattr(self, "hooks", None) or Counted()
        with self.hooks:
            return self._loss(x)


def test_what_others_keep_in_their_own_way_is_not_asked_for(tmp_path, stretches, counts, monkeypatch):
    plain = Offloads(whole, -1, 0)
    plain.run(batches(100))
    torch._dynamo.reset()
    watched = Offloads(whole, -1, 0)
    run = recorded(tmp_path, watched, most=32, batches=batches(100))
    assert watched.hooks.asked == plain.hooks.asked > 0
    assert end_of(run)["looked_out"] == 0 and "probe_off" not in kinds_of(run)


def test_code_from_before_anybody_watched_is_not_looked_into(tmp_path, stretches, counts):
    training = Breaks(whole, 200, 1)
    training.step(next(iter(batches(1)))[0], -1)
    run = recorded(tmp_path, training, most=32, batches=batches(230))
    assert end_of(run)["looked_out"] == 0 and "probe_off" not in kinds_of(run)
    assert sum(stretches) > 50


@pytest.mark.parametrize("where", ["on a host", "where graphs are replayed"])
def test_where_nothing_is_to_be_seen_inside_stretches_go_on(tmp_path, stretches, counts, monkeypatch, where):
    if where == "on a host":
        monkeypatch.setattr(lookouts, "on_device", lambda tensor: False)
    else:
        monkeypatch.setattr(lookouts, "static_outputs", lambda: True)
    run = recorded(tmp_path, Breaks(whole, -1, 0), most=32, batches=batches(200))
    assert sum(stretches) > 50 and end_of(run)["looked_out"] == 0 and "probe_off" not in kinds_of(run)


def test_an_error_of_ours_is_no_error_of_the_training(tmp_path, stretches, counts, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such graph")

    monkeypatch.setattr(blame, "witnesses", fails)
    run = recorded(tmp_path, Breaks(whole, -1, 0), most=32, batches=batches(200))
    told = [event.fields for event in run.events.itertuples() if event.kind == "probe_off"]
    assert {fields["probe"] for fields in told} == {"lookout"}
    assert end_of(run)["steps"] == 200
