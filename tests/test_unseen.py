"""What nobody can look into is not passed over for what comes behind it, nor what comes behind it accused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import brickprof
from brickprof.capture import surroundings
from brickprof.diagnosis import diagnose
from tests import late

BREAKS_AT = 8


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["host", "device"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "device":
        late.pretend(monkeypatch, 0.003)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Scaled(nn.Module):
    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Own.apply(x, self.factor)


class Classifier(nn.Module):
    """``behind`` is the last to touch what it puts out."""

    def __init__(self, behind: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.between, self.head, self.behind = Scaled(), nn.Linear(16, 5), behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.head(self.between(torch.tanh(self.embed(x)))))


def trained(
    folder: Path, model: nn.Module, breaks: Callable[[], object], called: Any = None
) -> tuple[brickprof.Run, list[dict[str, Any]]]:
    """The run, and what was told of the losses that broke, with paths for numbers."""
    run = model if called is None else called
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, optimizer, out=folder, overhead="100%") as bp:
        for step in range(12):
            if step == BREAKS_AT:
                breaks()
            optimizer.zero_grad()
            F.cross_entropy(run(torch.randn(8, 6)), torch.arange(8) % 5).backward()
            optimizer.step()
    found = brickprof.load(bp.folder)
    events = list(found.events.itertuples())
    assert not [event.fields for event in events if event.kind == "probe_off"]
    paths = {event.fields["id"]: event.fields["path"] for event in events if event.kind == "brick"}
    named = [{**event.fields, "step": event.step} for event in events if event.kind == "origin"]
    return found, [each | {name: paths[each[name]] for name in ("brick",) if name in each} for each in named]


def broken(module: Any) -> Callable[[], object]:
    return lambda: setattr(module, "factor", math.nan)


def told(run: brickprof.Run) -> str:
    return " ".join(why.finding for finding in diagnose(run).findings for why in finding.whys)


def test_a_function_of_somebodys_own_is_not_passed_over(tmp_path: Path, anywhere: None) -> None:
    model = Classifier(Scaled())
    run, (first, *_) = trained(tmp_path, model, broken(model.behind))
    assert (first["step"], first["op"], first["kind"]) == (BREAKS_AT, "OwnBackward", "unknown")
    assert first["brick"] == "behind"
    assert diagnose(run).findings[0].brick == "behind" and "softmax" not in told(run).lower()


def test_it_is_innocent_where_what_comes_behind_it_is_finite(tmp_path: Path, anywhere: None) -> None:
    """The head keeps what it was given: what stands before it has nothing to do with it."""

    class Logarithm(nn.Module):
        factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if self.factor == 1.0 else (x - x).log() + x

    model = Classifier(Logarithm())
    _, (first, *_) = trained(tmp_path, model, broken(model.behind))
    assert (first["op"], first["kind"], first["brick"]) == ("LogBackward0", "log-of-zero", "behind")


def test_of_several_none_is_accused(tmp_path: Path) -> None:
    class Twice(nn.Sequential):
        pass

    model = Classifier(Twice(Scaled(), Scaled()))
    run, (first, *_) = trained(tmp_path, model, broken(model.behind[0]))
    assert (first["op"], first["kind"]) == ("OwnBackward", "unknown") and "brick" not in first
    assert "softmax" not in told(run).lower()


def test_what_is_computed_again_is_not_passed_over(tmp_path: Path) -> None:
    class Recomputed(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shift = 2.0 if self.factor == 1.0 else -2.0
            return checkpoint(lambda x: (x.tanh() + shift).log(), x, use_reentrant=False)

    model = Classifier(Recomputed())
    _, (first, *_) = trained(tmp_path, model, broken(model.behind))
    assert (first["step"], first["kind"]) == (BREAKS_AT, "unknown") and not first["op"].startswith("LogSoftmax")


def test_a_bias_that_no_operation_keeps_is_looked_at(tmp_path: Path, anywhere: None) -> None:
    model = Classifier(nn.Identity())
    _, (first, *_) = trained(tmp_path, model, lambda: model.head.bias.data[2:3].fill_(math.nan))
    assert (first["step"], first["kind"], first["brick"]) == (BREAKS_AT, "weights", "head")


def test_a_product_that_outgrew_float16_is_no_empty_softmax(tmp_path: Path) -> None:
    model = Classifier(nn.Identity())

    def called(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(x).float()

    run, (first, *_) = trained(tmp_path, model, lambda: model.head.weight.data.fill_(6e4), called)
    assert (first["step"], first["op"], first["kind"]) == (BREAKS_AT, "AddmmBackward0", "overflow")
    assert (first["made_in"], first["brick"]) == ("float16", "head")
    assert diagnose(run).findings[0].root_cause == "fp16-overflow"


@pytest.mark.parametrize("masked", ["masked_fill", "added"])
def test_a_row_that_is_masked_everywhere_is_one(tmp_path: Path, masked: str) -> None:
    class Masked(nn.Module):
        factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            away = torch.zeros(5, dtype=torch.bool) if self.factor == 1.0 else torch.ones(5, dtype=torch.bool)
            if masked == "added":
                return x + torch.zeros(5).masked_fill(away, -math.inf)
            return x.masked_fill(away, -math.inf)

    model = Classifier(Masked())
    _, (first, *_) = trained(tmp_path, model, broken(model.behind))
    assert (first["op"], first["kind"]) == ("LogSoftmaxBackward0", "empty-softmax")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("parts", ["whole", "blocks"])
def test_the_block_of_compiled_code_is_known_on_a_host_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    monkeypatch.setattr(surroundings._Saved, "by_others", False)  # other tests checkpoint
    torch._dynamo.reset()
    model = Stack()
    backend = "aot_eager_decomp_partition"  # inductor's graphs, and what it keeps, without its code
    for block in model.blocks if parts == "blocks" else ():
        block.compile(backend=backend)
    called = torch.compile(model, backend=backend) if parts == "whole" else model
    overflows = model.blocks[1].down.weight.data
    run, (first, *_) = trained(tmp_path, model, lambda: overflows.fill_(3e38), called)
    paths = dict(zip(run.bricks.id, run.bricks.path, strict=True))
    looked = [event for event in run.events.itertuples() if event.kind == "activation"]
    assert (BREAKS_AT, "blocks.1") in [(event.step, paths[event.fields["brick"]]) for event in looked]
    assert parts == "blocks" or any(event.fields.get("inside") for event in looked)
    assert first["kind"] in ("unknown", "overflow") and "softmax" not in told(run).lower()
    assert diagnose(run).findings[0].brick == "blocks.1"
    torch._dynamo.reset()


class Shifted(nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("shift", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(self.linear(x)) + self.shift)


def test_the_operation_of_compiled_code_is_told_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings._Saved, "by_others", False)
    torch._dynamo.reset()
    model = Stack()
    model.blocks[1] = Shifted()
    called = torch.compile(model, backend="aot_eager_decomp_partition")
    run, _ = trained(tmp_path, model, model.blocks[1].shift.zero_, called)
    (finding, *_) = diagnose(run).findings
    place = f"test_unseen.py:{Shifted.forward.__code__.co_firstlineno + 1}"
    assert (finding.root_cause, finding.brick) == ("log-of-zero", "blocks.1") and f"log in {place}" in told(run)
    torch._dynamo.reset()
