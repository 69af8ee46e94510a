"""What capture sees of a training loop, and what it leaves alone. All through ``brickprof.attach``."""

from __future__ import annotations

import copy
import io
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import brickprof
from brickprof.capture import hub, patches
from brickprof.capture.probe import Probe


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def data(rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    return x, x.sum(1, keepdim=True)


def events(run: brickprof.Run, kind: str) -> list[Any]:
    return [record for record in run.records() if getattr(record, "kind", "") == kind]


def train(model: nn.Module, optimizer: Any, steps: int, each: Any = None) -> list[float]:
    x, y = data()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if each is not None:
            each(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_rates_and_steps_are_the_scripts_own(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []

    def each(_: int) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        losses = train(model, optimizer, 1, each)
        for _ in range(5):
            schedule.step()
            losses += train(model, optimizer, 1, each)
    run = brickprof.load(bp.folder)
    assert run.loss["value"].tolist() == losses
    assert run.loss["step"].tolist() == list(range(6))
    assert run.lr["value"].tolist() == pytest.approx(rates)
    assert run.steps == 6


def test_gradient_samples_equal_what_torch_computes(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    truth: dict[tuple[int, str], torch.Tensor] = {}

    def each(step: int) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            truth[step, name] = parameter.grad.detach().clone().double()

    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 3, each)
    grads = brickprof.load(bp.folder).grads
    assert len(grads) == len(truth)
    for row in grads.itertuples():
        grad = truth[row.step, row.tensor]
        assert row.numel == grad.numel()
        assert row.absmax == pytest.approx(grad.abs().max().item(), rel=1e-6)
        assert row.l2 == pytest.approx(grad.norm().item(), rel=1e-5)
        assert row.mean == pytest.approx(grad.mean().item(), rel=1e-4, abs=1e-7)
        assert row.zero_fraction == pytest.approx((grad == 0).double().mean().item())
        assert (row.nan, row.inf) == (0, 0)
        assert sum(row.histogram) == min(grad.numel(), 1024)


def test_updates_and_checksums_follow_the_weights(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}

    def each(step: int) -> None:
        if step == 1:
            before.update({name: p.detach().clone() for name, p in model.named_parameters()})
        if step == 2:
            after.update({name: p.detach().clone() for name, p in model.named_parameters()})

    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 3, each)
    samples = brickprof.load(bp.folder).samples
    updates = samples[(samples["role"] == "update") & (samples["step"] == 1)].set_index("tensor")
    weights = samples[(samples["role"] == "weight") & (samples["step"] == 1)].set_index("tensor")
    for name, start in before.items():
        moved = (after[name] - start).norm().item()
        assert updates.loc[name, "l2"] == pytest.approx(moved, rel=1e-3)
        assert updates.loc[name, "ratio"] == pytest.approx(moved / after[name].norm().item(), rel=1e-3)
        assert updates.loc[name, "scale"] == pytest.approx(start.norm().item(), rel=1e-3)
        bits = after[name].view(torch.int32).sum(dtype=torch.int64).item()
        assert int(weights.loc[name, "checksum"]) == bits


@pytest.mark.parametrize("clip", [False, True])
def test_one_nan_among_a_million_is_found_and_named(tmp_path: Path, clip: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def each(step: int) -> None:
        if step == 6:
            model[1].weight.grad[777, 333] = math.nan
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        train(model, optimizer, 8, each)
    run = brickprof.load(bp.folder)
    broken = [event for event in events(run, "grad") if event.fields["nonfinite"]]
    assert broken[0].step == 6
    named = broken[0].fields["nonfinite"]
    tensors = run.tensors.set_index("id")["name"].to_dict()
    assert [(tensors[item["tensor"]], item["nan"]) for item in named] == [("1.weight", 1)]
    diagnosis = bp.diagnose()
    assert diagnosis.verdict == "FAIL"
    assert diagnosis.findings[0].contract == "C-TRAINSTABLE-001"
    assert diagnosis.findings[0].first_step == 6


def test_a_huge_finite_gradient_is_not_called_infinite(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def each(_: int) -> None:
        model.head.weight.grad.fill_(3e35)

    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 6, each)
    run = brickprof.load(bp.folder)
    assert all(not event.fields["nonfinite"] for event in events(run, "grad"))
    head = run.grads[run.grads["tensor"] == "head.weight"].iloc[0]
    assert head["absmax"] == pytest.approx(3e35, rel=1e-6)
    assert head["l2"] == pytest.approx(3e35 * math.sqrt(8), rel=1e-6)


def test_clipping_is_seen_with_the_norm_it_used(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    norms = []

    def each(_: int) -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.25).item())

    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 4, each)
    clips = events(brickprof.load(bp.folder), "clip")
    assert [event.fields["norm"] for event in clips] == norms
    assert {event.fields["max_norm"] for event in clips} == {0.25}


def test_blocks_are_found_and_timed(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 3)
    run = brickprof.load(bp.folder)
    spans = run.spans
    for phase in ("forward", "backward"):
        names = set(spans[spans["phase"] == phase]["brick"])
        assert {"embed", "blocks.0", "blocks.1", "blocks.2", "head"} <= names, phase
    by_id = spans.set_index("id")
    for row in spans[spans["phase"] == "forward"].itertuples():
        if row.brick.startswith("blocks."):
            parent = by_id.loc[row.parent]
            assert parent["start_ns"] <= row.start_ns <= row.end_ns <= parent["end_ns"]
    assert (spans["end_ns"] >= spans["start_ns"]).all()


def test_two_models_and_two_optimizers_are_told_apart(tmp_path: Path) -> None:
    class Generator(Net):
        pass

    class Critic(Net):
        pass

    generator, critic = Generator(), Critic()
    first = torch.optim.Adam(generator.parameters(), lr=1e-3)
    second = torch.optim.Adam(critic.parameters(), lr=1e-4)
    with brickprof.attach(generator, [first, second], out=tmp_path) as bp:
        for _ in range(3):
            train(critic, second, 1)
            train(generator, first, 1)
    run = brickprof.load(bp.folder)
    assert run.steps == 3
    assert {"Generator.head.weight", "Critic.head.weight"} <= set(run.grads["tensor"])
    assert run.lr.groupby("optimizer")["value"].first().tolist() == [1e-3, 1e-4]


def test_a_module_replaced_after_construction_is_watched(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        train(model, optimizer, 2)
        model.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        optimizer.add_param_group({"params": list(model.head.parameters())})
        train(model, optimizer, 12)
    run = brickprof.load(bp.folder)
    assert {"head.0.weight", "head.1.bias"} <= set(run.grads["tensor"])


def test_a_head_replaced_long_after_the_optimizer_was_built_keeps_its_name(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        train(model, optimizer, 70)
        first = torch.optim.SGD(model.parameters(), lr=1e-2)
        model.head = nn.Linear(8, 1)
        train(model, first, 20)
    names = set(brickprof.load(bp.folder).tensors["name"])
    assert not [name for name in names if name.startswith("tensor")]


def test_a_rate_that_leaps_is_told_in_steps_that_nobody_looks_at(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="0.0001%") as bp:
        train(model, optimizer, 150)
        optimizer.param_groups[0]["lr"] = 1e-3
        train(model, optimizer, 20)
    told = brickprof.load(bp.folder).lr.set_index("step")["value"]
    assert told[150] == 1e-3 and 149 not in told.index


def test_an_alarming_loss_has_the_rest_of_its_step_looked_at(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="0.0001%") as bp:
        for step in range(140):
            loss = model(torch.ones(4, 8)).square().mean() * (1e9 if step == 131 else 1.0) + 1.0
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    norms = run.events[(run.events.kind == "grad") & (run.events.step == 131)]
    assert len(norms) == 1 and norms.fields.iloc[0]["l2"] > 1e6
    assert set(run.samples[run.samples.step == 131].role) >= {"grad", "update"}
    fed = run.events[(run.events.kind == "targets") & (run.events.step == 131)]
    assert [fields["absmax"] for fields in fed.fields] == [1.0]


@pytest.mark.parametrize("alarm", [0, 1])
def test_a_step_that_is_entered_late_is_not_counted_as_a_whole(tmp_path: Path, alarm: int) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="0.0001%") as bp:
        for step in range(140):
            optimizer.zero_grad()
            for micro in range(3):
                tall = 1e9 if (step, micro) == (131, alarm) else 1.0
                (model(torch.ones(4, 8)).square().mean() * tall + 1.0).backward()
            optimizer.step()
    events = brickprof.load(bp.folder).events
    kinds = set(events[events.step == 131].kind)
    assert "anomaly" in kinds and not kinds & {"integrity", "held"}


def test_shared_and_sparse_parameters(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.embed.weight
            self.rare = nn.Embedding(1000, 8, sparse=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens) + self.rare(tokens))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(16) % 7
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    tensors = run.tensors.set_index("name")
    assert tensors.loc["head.weight", "alias_of"] == "embed.weight"
    assert set(run.grads["tensor"]) == {"embed.weight", "rare.weight"}
    assert bp.diagnose().verdict == "PASS"


def test_loader_batches_have_fingerprints_that_tell_them_apart(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*data(12)), batch_size=4)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
    batches = events(brickprof.load(bp.folder), "batch")
    prints = [event.fields["fingerprint"] for event in batches]
    assert prints[:3] == prints[3:]
    assert len(set(prints)) == 3
    assert [event.step for event in batches] == list(range(6))


@pytest.mark.parametrize(("idle", "kept"), [(50e3, True), (400e3, False)])
def test_every_batch_of_slow_steps_is_looked_at_where_that_fits_the_budget(
    tmp_path: Path, idle: float, kept: bool
) -> None:
    with brickprof.attach(nn.Linear(4, 2), out=tmp_path, level="light") as watching:
        session = watching._session
        (probe,) = (probe for probe in session.dispatch._probes if probe.name == "loader")
        session.cadence.typical_ns = 65e6
        session.cadence._idle.extend([idle] * 9)
        found = []
        for step in (128, 192, 256):
            probe.step_begin(step)
            found.append(hub.every_batch)
    assert found == [True, kept, kept] and not hub.every_batch


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    originals = (
        torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.zero_grad,
        torch.optim.Optimizer.add_param_group, nn.utils.clip_grad_norm_, torch.compile, nn.Module.zero_grad,
        torch.optim.lr_scheduler.LRScheduler.step, torch.amp.GradScaler.step,
    )  # fmt: skip
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path):
        assert torch.autograd.backward is not originals[0]
        train(model, optimizer, 2)
    assert originals == (
        torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.zero_grad,
        torch.optim.Optimizer.add_param_group, nn.utils.clip_grad_norm_, torch.compile, nn.Module.zero_grad,
        torch.optim.lr_scheduler.LRScheduler.step, torch.amp.GradScaler.step,
    )  # fmt: skip
    assert not patches.installed()
    assert not hub.sessions
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert not nn.modules.module._global_forward_pre_hooks
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def test_training_goes_on_when_a_probe_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from brickprof.probes import loss

    def broken(*_: object) -> None:
        raise RuntimeError("probe out of order")

    monkeypatch.setattr(loss.LossProbe, "backward_begin", broken)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        losses = train(model, optimizer, 10)
    assert losses[-1] < losses[0]
    off = events(brickprof.load(bp.folder), "probe_off")
    assert [event.fields["failures"] for event in off] == [1, 2, 3]
    assert "probe out of order" in off[0].fields["error"]


def test_a_dispatch_mode_of_the_users_sees_nothing_of_ours(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.calls += 1
            return func(*args, **(kwargs or {}))

    def counted() -> int:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
        Count.calls = 0
        with Count(), FlopCounterMode(display=False):
            train(model, optimizer, 3)
        return Count.calls

    plain = counted()
    with brickprof.attach(Net(), out=tmp_path):
        watched = counted()
    assert watched == plain


def test_own_bricks_nest_and_cost_nothing_when_nobody_watches(tmp_path: Path) -> None:
    @brickprof.brick("tokenise")
    def tokenise(text: str) -> list[str]:
        return text.split()

    assert tokenise("a b") == ["a", "b"]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp, brickprof.brick("epoch"):
        tokenise("a b")
        train(model, optimizer, 3)
    spans = brickprof.load(bp.folder).spans
    epoch = spans[spans["brick"] == "epoch"].iloc[0]
    inner = spans[spans["brick"] == "tokenise"].iloc[0]
    assert inner["parent"] == epoch["id"]
    assert epoch["start_ns"] <= inner["start_ns"] <= inner["end_ns"] <= epoch["end_ns"]


def test_accumulation_counts_micro_batches(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x, y = data()
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(4):
                (nn.functional.mse_loss(model(x), y) / 4).backward()
            optimizer.step()
    loss = brickprof.load(bp.folder).loss
    assert loss["step"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert loss["micro"].tolist() == [0, 1, 2, 3] * 3


@pytest.mark.parametrize("parts", [7, 8, 9, 17])
def test_long_accumulation_is_one_step_whoever_looks(tmp_path: Path, parts: int) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x, y = data()
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="0.01%") as bp:
        for _ in range(90):  # from some step on nobody looks
            optimizer.zero_grad()
            for _ in range(parts):
                (nn.functional.mse_loss(model(x), y) / parts).backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    end = run.events[run.events.kind == "exit"].iloc[0].fields
    assert (end["steps"], end["updates"]) == (90, 90) and run.loss["micro"].max() == parts - 1


def test_skipped_scaler_steps_are_recorded_and_healthy(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    x, y = data()
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for _ in range(24):
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(model(x), 10 * y)).backward()
            scaler.step(optimizer)
            scaler.update()
    run = brickprof.load(bp.folder)
    skipped = [event.fields["skipped"] for event in events(run, "scaler") if event.fields["op"] == "step"]
    assert any(skipped) and not skipped[-1]
    assert run.steps == 24
    assert run.loss["value"].max() < 1e5  # the loss as the user computed it, not multiplied by the scale
    assert bp.diagnose().verdict == "PASS"


def test_train_and_eval_modes_are_events(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 2)
        model.eval()
        train(model, optimizer, 2)
    modes = events(brickprof.load(bp.folder), "mode")
    assert [(event.step, event.fields["training"]) for event in modes] == [(0, True), (2, False)]


def test_an_exception_is_journalled_with_the_brick_it_came_from(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    attached = brickprof.attach(model, optimizer, out=tmp_path)

    def broken_training() -> None:
        with attached:
            train(model, optimizer, 2)
            model.blocks[1].up = nn.Linear(5, 16)
            model(data()[0])

    with pytest.raises(RuntimeError, match="shape"):
        broken_training()
    run = brickprof.load(attached.folder)
    (event,) = events(run, "exception")
    assert event.fields["type"] == "RuntimeError"
    bricks = run.bricks.set_index("id")["name"].to_dict() if "name" in run.bricks else {}
    assert not bricks or bricks[event.fields["brick"]].startswith("blocks.1")
    assert all("brickprof" not in frame["file"] for frame in event.fields["frames"])


def test_a_probe_of_a_third_party_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    from brickprof import plugins

    class CountingProbe(Probe):
        name = "counting"
        backwards = 0

        def backward_end(self, losses: Any, ok: bool) -> None:
            CountingProbe.backwards += 1

    module = ModuleType("third.party")
    CountingProbe.__module__ = "third.party"
    module.CountingProbe = CountingProbe  # type: ignore[attr-defined]
    real = plugins.discover

    def with_ours(package: str) -> plugins.Found:
        found = real(package)
        return plugins.Found((*found.plugins, plugins.Plugin("counting", module)), found.notes)

    monkeypatch.setattr("brickprof.capture.dispatch.discover", with_ours)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path):
        train(model, optimizer, 4)
    assert CountingProbe.backwards == 4


def test_the_run_is_a_dataframe_one_call_away(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 3)
    run = brickprof.load(bp.folder)
    for table in (run.spans, run.samples, run.events, run.loss, run.lr, run.grads, run.bricks, run.tensors):
        assert isinstance(table, pd.DataFrame)
        assert len(table)
    assert sum(run.costs.values()) > 0


def test_a_model_that_takes_no_part_is_not_named(tmp_path: Path) -> None:
    bystander = Net()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 3)
    run = brickprof.load(bp.folder)
    assert [event.fields["model"] for event in events(run, "model")] == ["Net"]
    assert "embed.weight" in set(run.grads["tensor"])
    assert all(not m._forward_pre_hooks for m in bystander.modules())


def test_a_frozen_teacher_joins_when_it_is_called(tmp_path: Path) -> None:
    class Teacher(Net):
        pass

    teacher, model = Teacher().requires_grad_(False), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x, _ = data()
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), teacher(x)).backward()
            optimizer.step()
    run = brickprof.load(bp.folder)
    assert {event.fields["model"] for event in events(run, "model")} == {"Net", "Teacher"}
    assert {"Net.blocks.0", "Teacher.blocks.0"} <= set(run.spans["brick"])
    assert bp.diagnose().verdict == "PASS"


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8)

    def forward(self, labels: Any = None, attention_mask: Any = None, input_ids: Any = None) -> torch.Tensor:
        logits = self.head(self.embed(input_ids) * attention_mask[..., None])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize(
    "order", [("labels", "attention_mask", "input_ids"), ("input_ids", "labels", "attention_mask")]
)
def test_what_a_model_is_given_by_name_is_known(tmp_path: Path, order: tuple[str, ...]) -> None:
    """As in ``model(**batch)``, whatever stands beside it; and the module is left as it was."""
    net = Named()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ids = torch.arange(15).reshape(3, 5) % 8
    batch = {"input_ids": ids, "labels": ids[:, :1].expand(3, 5), "attention_mask": torch.ones(3, 5)}
    with brickprof.attach(net, optimizer, out=tmp_path) as bp:
        for _ in range(3):
            net(**{name: batch[name] for name in order}).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not net._forward_pre_hooks_with_kwargs and not net._forward_hooks_with_kwargs
    events = list(brickprof.load(bp.folder).events.itertuples())
    assert next(event.fields["fed"] for event in events if event.kind == "shapes") == [3, 5]
    assert {event.fields["rows"] for event in events if event.kind == "targets"} == {3}
    inputs = {event.fields["input"] for event in events if event.kind == "targets"}
    assert len(inputs) == 1 and None not in inputs


def test_a_compiled_model_keeps_its_name(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        compiled = torch.compile(model, backend="eager")
        train(compiled, optimizer, 4)
    run = brickprof.load(bp.folder)
    assert {event.fields["model"] for event in events(run, "model")} == {"Net"}
    assert events(run, "model")[-1].fields["compiled"] is True
    assert {"embed.weight", "blocks.2.down.bias"} <= set(run.grads["tensor"])


def test_no_loss_is_left_out_whatever_the_cadence(tmp_path: Path) -> None:
    model = Net(width=4, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="0.01%") as bp:
        losses = train(model, optimizer, 300)
    run = brickprof.load(bp.folder)
    assert any(event.kind == "losses" for event in run._parts[0].written[0])  # the budget did bite
    assert run.loss["value"].tolist() == losses
    assert run.loss["step"].tolist() == list(range(300))


def test_a_scaler_that_is_switched_off_changes_nothing(tmp_path: Path) -> None:
    model, scaler = nn.Sequential(nn.Linear(8, 4)), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with brickprof.attach(model, optimizer, out=tmp_path) as session:
        for _ in range(12):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    run = brickprof.load(session.folder)
    assert len(run.loss) == 12
    assert run.events[run.events["kind"].isin(["probe_off", "scaler"])].empty
    assert {"grad", "clip"} <= set(run.events["kind"])


def test_a_model_is_copied_and_pickled_without_our_hooks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = io.BytesIO()
    torch.save(model, plain)
    with brickprof.attach(model, optimizer, out=tmp_path, level="deep"):
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        model(torch.randn(2, 8)).sum().backward()
        assert any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        twin = copy.deepcopy(model)
        watched = io.BytesIO()
        torch.save(model, watched)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in twin.modules())
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    assert b"brickprof" not in watched.getvalue()
    watched.seek(0)
    assert torch.load(watched, weights_only=False)(torch.randn(2, 8)).shape == (2, 1)


def test_an_attribute_that_is_spelt_nearly_like_requires_grad_is_seen(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = next(name for name, _ in model.named_parameters())
    dict(model.named_parameters())[first].require_grad = True
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        train(model, optimizer, 2, lambda _: None)
    told = [event.fields for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "ownership"]
    assert told and all(fields["wished"] == [[first, True, "require_grad"]] for fields in told)


def test_a_schedule_that_waits_for_progress_is_seen_with_what_it_is_told(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for measure in (0.5, torch.tensor(0.25), 0.75):
            train(model, optimizer, 1, lambda _: None)
            schedule.step(measure)
    events = [event.fields for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "schedule"]
    told = [(fields["measure"], fields["mode"], fields["lr"]) for fields in events if "measure" in fields]
    assert told == [(0.5, "max", [0.1]), (0.25, "max", [pytest.approx(0.01)]), (0.75, "max", [pytest.approx(0.01)])]


def test_a_small_model_is_found_among_many_large_ones(tmp_path: Path) -> None:
    others = [nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)]) for _ in range(40)]
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path) as bp:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert [model.root() for model in bp._session.models] == [net]
    assert len(others) == 40


def test_a_zero_grad_of_the_users_own_gets_what_it_was_given(tmp_path: Path, monkeypatch) -> None:
    cleared = []

    def mine(self) -> None:
        cleared.append(self)

    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", mine)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with brickprof.attach(net, out=tmp_path):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert cleared == [optimizer]


def test_what_was_asked_for_whatever_it_costs_is_in_what_the_run_cost(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with brickprof.attach(net, out=tmp_path) as bp:
        for _ in range(5):
            optimizer.zero_grad()
            bp._session.charge_apart("pending", 10**9)
            net(torch.randn(8, 4)).mean().backward()
            optimizer.step()
    cost = brickprof.diagnose(brickprof.load(bp.folder)).run
    assert 5 <= cost["overhead_seconds"] < 10
