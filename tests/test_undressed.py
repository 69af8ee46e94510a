"""Whoever takes a watched module apart finds nothing of ours in it."""

from __future__ import annotations

import copy
import inspect
import io
import sys

import pytest
import torch

import brickprof
from brickprof.capture.undressed import WhileCompiling, is_ours, undressed


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


def steps(net, error, count=24):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        error(torch.ones(2, 4)).backward()
        optimizer.step()


@pytest.fixture
def frames():
    """How many frames dynamo has compiled."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda: torch._dynamo.utils.counters["frames"]["total"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("level", ["light", "standard"])
@pytest.mark.parametrize("before", [True, False])
def test_a_function_that_calls_the_model_is_compiled_once(tmp_path, frames, level, before):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))

    def error(x):
        return net(x).square().mean()

    handed = torch.compile(error, backend="eager") if before else None
    with brickprof.attach(net, out=tmp_path, level=level) as bp:
        steps(net, handed or torch.compile(error, backend="eager"))
    assert frames() == 1
    losses = [event for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "loss"]
    assert len(losses) == 24


def test_around_what_is_compiled_blocks_are_still_seen(tmp_path, frames):
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.gate = torch.compile(lambda x: x * torch.sigmoid(x), backend="eager")

        def forward(self, x):
            return self.gate(self.linear(x))

    net = torch.nn.Sequential(Gated(), Gated())
    with brickprof.attach(net, out=tmp_path) as bp:
        steps(net, lambda x: net(x).square().mean())
    run = brickprof.load(bp.folder)
    names = {brick.name for brick in run.bricks.itertuples()} if hasattr(run.bricks, "itertuples") else set()
    assert frames() >= 1 and any("0" in str(name) for name in names), names


def test_every_hook_is_one_that_any_dynamo_can_guard(tmp_path):
    """Of a hook that is an object with a ``__call__`` some versions ask for its ``__func__``, and give up."""
    net, seen = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path):
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            for module in net.modules():
                seen += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            optimizer.step()
    assert seen and all(map(inspect.ismethod, seen)) and all(map(is_ours, seen))


def test_a_failure_of_ours_is_none_of_the_compilers(tmp_path, frames):
    def fails():
        raise RuntimeError("ours")

    watch = WhileCompiling(fails)
    torch.compile(lambda x: x + 1, backend="eager")
    watch.watch()
    watch.watch()
    try:
        assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(1)).item() == 2.0
        assert sys.modules["torch._dynamo"].callback_handler.start_callbacks.count(watch._begins) == 1
    finally:
        watch.forget()
    assert watch._begins not in sys.modules["torch._dynamo"].callback_handler.start_callbacks


def left(net):
    """Hooks of ours anywhere in it."""
    return [
        hook
        for module in net.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if is_ours(hook)
    ]


def small():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))


def test_a_compiler_that_compiles_again_leaves_no_hook_behind(tmp_path, frames):
    net = small()

    def backend(made, inputs):
        return torch.compile(made, backend="eager")

    compiled = torch.compile(lambda x: net(x).square().mean(), backend=backend)
    with brickprof.attach(net, out=tmp_path):
        steps(net, compiled)
        during = left(net)
    assert len(during) == len(set(map(id, during))) and not left(net)
    copy.deepcopy(net)


def test_a_reset_does_not_lose_it(tmp_path, frames):
    net = small()
    compiled = torch.compile(lambda x: net(x).square().mean(), backend="eager")
    with brickprof.attach(net, out=tmp_path):
        steps(net, compiled)
        torch._dynamo.reset()
        steps(net, compiled)
    assert frames() == 2
    assert "clear" not in vars(sys.modules["torch._dynamo"].callback_handler)


def test_where_hooks_are_guarded_they_stay(tmp_path, frames):
    net = small()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False), brickprof.attach(net, out=tmp_path):
        steps(net, torch.compile(lambda x: net(x).square().mean(), backend="eager"))
    assert frames() <= 2


def test_hooks_come_back_in_their_order():
    net, calls = torch.nn.Linear(2, 2), []

    class Ours:
        def first(self, _module, _args):
            calls.append("ours")

    Ours.first.__module__ = "brickprof.pretended"
    net.register_forward_pre_hook(lambda module, args: calls.append("users"))
    net.register_forward_pre_hook(Ours().first, prepend=True)
    gone = net.register_forward_pre_hook(lambda module, args: calls.append("gone"))
    with undressed([net]):
        net(torch.ones(2))
        gone.remove()
        net.register_forward_pre_hook(lambda module, args: calls.append("new"))
    net(torch.ones(2))
    assert calls == ["users", "gone", "ours", "users", "new"]
