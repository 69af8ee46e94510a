"""Modules that are compiled in place are watched from outside: nothing of it is traced, and nothing of it stays."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brickprof
from brickprof.capture.seats import around

STEPS = 24


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def whole(net: Net) -> None:
    net.compile(backend="aot_eager")


def blocks(net: Net) -> None:
    for block in net.blocks:
        block.compile(backend="aot_eager")


def containers(net: Net) -> None:
    net.blocks = nn.ModuleList(nn.Sequential(block, nn.GELU()) for block in net.blocks)
    blocks(net)


def train(net: Net, steps: int = STEPS, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 6)
        loss = F.cross_entropy(net(x), x.argmax(1) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def watched(folder: Path, net: Net, steps: int = STEPS) -> tuple[brickprof.Run, list[float]]:
    with brickprof.attach(net, out=folder, overhead="100%") as bp:
        losses = train(net, steps)
    run = brickprof.load(bp.folder)
    assert run.events[run.events.kind == "probe_off"].empty
    return run, losses


@pytest.mark.parametrize("compiles", [whole, blocks, containers])
def test_a_training_is_the_same_and_compiled_as_often(tmp_path: Path, compiles: Any) -> None:
    told = []
    for watch in (False, True):
        torch.manual_seed(0)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        net = Net()
        compiles(net)
        losses = watched(tmp_path, net)[1] if watch else train(net)
        counted = dict(torch._dynamo.utils.counters["frames"])
        told.append((losses, counted, [value.tolist() for value in net.state_dict().values()], torch.rand(()).item()))
    assert told[0] == told[1] and told[0][1]["ok"] > 0


@pytest.mark.parametrize("compiles", [whole, blocks, containers])
def test_nothing_stays(tmp_path: Path, compiles: Any) -> None:
    net = Net()
    compiles(net)
    before = {name: module._compiled_call_impl for name, module in net.named_modules()}
    watched(tmp_path, net)
    assert {name: module._compiled_call_impl for name, module in net.named_modules()} == before
    assert any(before.values())


@pytest.mark.parametrize("compiles", [whole, blocks, None])
def test_nothing_keeps_what_its_script_has_let_go(tmp_path: Path, compiles: Any) -> None:
    gone: list[Any] = []
    with brickprof.attach(nn.Linear(2, 2), out=tmp_path, overhead="100%"):
        for _ in range(3):
            net = Net()
            if compiles is not None:
                compiles(net)
            gone.append(weakref.ref(net))
            train(net, 3)
            torch._dynamo.reset()
        del net
        train(Net(), 3)
        gc.collect()
        assert [each() for each in gone] == [None, None, None]


def test_who_watches_a_module_does_not_keep_it() -> None:
    net = Net()
    whole(net)
    handles = around(net, lambda module, args: None)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    handles[0].remove()


def test_steps_begin_with_the_forward_of_what_was_compiled_in_place(tmp_path: Path) -> None:
    net = Net()
    whole(net)
    run, _ = watched(tmp_path, net)
    calls = run.events[run.events.kind == "criterion"]
    assert list(calls.step)[:6] == list(range(6))
    shapes = [event.fields["fed"] for event in run.events.itertuples() if event.kind == "shapes"]
    assert shapes[0] == [8, 6]
    assert {event.fields["fed"] for event in calls.itertuples()} == {8}


def test_what_is_compiled_in_mid_run_is_watched_from_its_first_call_on(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with brickprof.attach(net, out=tmp_path, overhead="100%") as bp:
        train(net, 5, optimizer)
        whole(net)
        train(net, 5, optimizer)
    run = brickprof.load(bp.folder)
    calls = run.events[run.events.kind == "criterion"]
    assert list(calls.step) == list(range(10)) and {event.fields["fed"] for event in calls.itertuples()} == {8}


def test_blocks_that_were_compiled_in_place_have_times(tmp_path: Path) -> None:
    net = Net()
    blocks(net)
    run, _ = watched(tmp_path, net)
    timed = run.spans[run.spans.phase == "forward"].groupby("brick").size()
    assert {"blocks.0", "blocks.1", "blocks.2", "head", "Net"} <= set(timed.index)
    assert timed["blocks.1"] == timed["head"]


def test_an_evaluation_of_what_was_compiled_is_seen(tmp_path: Path) -> None:
    net = Net()
    whole(net)
    with brickprof.attach(net, out=tmp_path, overhead="100%") as bp:
        for _ in range(3):
            train(net, 4)
            with torch.no_grad():
                for _ in range(3):
                    F.cross_entropy(net(torch.randn(8, 6)), torch.arange(8) % 4).item()
    run = brickprof.load(bp.folder)
    assert not run.events[run.events.kind == "evaluation"].empty


def test_copies_and_checkpoints_know_nothing_of_it(tmp_path: Path) -> None:
    net = Net()
    whole(net)
    impl = net._compiled_call_impl
    told: list[Any] = []
    (handle,) = around(net, lambda module, args: told.append(args))
    assert net._compiled_call_impl is not impl
    twin, kept = copy.deepcopy(net), io.BytesIO()
    torch.save(net, kept)
    assert twin._compiled_call_impl is None and b"brickprof" not in kept.getvalue()
    net(torch.randn(2, 6))
    assert len(told) == 1
    handle.remove()
    assert net._compiled_call_impl is impl


@pytest.mark.parametrize("first_out", [0, 1])
def test_of_several_each_comes_and_goes_alone(first_out: int) -> None:
    net = Net()
    whole(net)
    impl, told = net._compiled_call_impl, []
    handles = [
        *around(net, lambda module, args: told.append("a"), lambda module, args, output: told.append("A")),
        *around(net, lambda module, args: told.append("b"), first=True),
    ]
    x = torch.randn(2, 6)
    net(x)
    assert told == ["b", "a", "A"]
    told.clear()
    handles[first_out].remove()
    net(x)
    assert told == (["b"] if first_out == 0 else ["a", "A"])
    handles[1 - first_out].remove()
    handles[first_out].remove()  # twice is once
    assert net._compiled_call_impl is impl


def test_what_is_compiled_anew_is_watched_anew() -> None:
    net = Net()
    whole(net)
    told: list[str] = []
    (old,) = around(net, lambda module, args: told.append("old"))
    whole(net)
    impl = net._compiled_call_impl
    (new,) = around(net, lambda module, args: told.append("new"))
    old.remove()
    net(torch.randn(2, 6))
    assert told == ["new"]
    new.remove()
    assert net._compiled_call_impl is impl


def test_it_is_not_traced_into_what_is_compiled_around_it() -> None:
    net = Net()
    whole(net)
    told: list[Any] = []
    around(net, lambda module, args: told.append(args))
    outer = torch.compile(lambda x: net(x).sum(), backend="aot_eager", fullgraph=True)
    assert torch.equal(outer(x := torch.randn(2, 6)), net(x).sum()) and len(told) == 1


def test_an_error_of_the_script_stays_its_own(tmp_path: Path) -> None:
    net = Net()
    whole(net)
    with brickprof.attach(net, out=tmp_path, overhead="100%") as bp:
        with pytest.raises(
            Exception, match=r"size mismatch|shapes cannot be multiplied|mat1 and mat2|same reduction dim"
        ):
            net(torch.randn(2, 5))
        torch._dynamo.reset()
        losses = train(net, 6)
    run = brickprof.load(bp.folder)
    assert len(losses) == 6 and run.events[run.events.kind == "probe_off"].empty
