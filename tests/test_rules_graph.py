"""What real graphs behind a loss tell: tables of all pairs, models that are linear, loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brickprof
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.rules import criterion, linear, pace
from brickprof.rules.story import Story

Loss = Callable[[nn.Module], torch.Tensor]
ROWS = 16


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def recorded(tmp_path: Path, model: nn.Module, loss: Loss, steps: int = 6, rate: float = 0.01) -> brickprof.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with brickprof.attach(model, optimizer, out=tmp_path) as session:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    run = brickprof.load(session.folder)
    assert not [record for record in run.records() if getattr(record, "kind", "") == "probe_off"]
    return run


def judged(run: brickprof.Run, rule: Any) -> ContractResult:
    made = rule()
    if hasattr(made, "feed"):
        for record in run.records():
            made.feed(record)
    result: ContractResult = made.judge(Story.of(run), registry.find(rule.contract))
    return result


# -- one value for each sample, crossed with those of all


def net(out: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(5, ROWS), nn.Tanh(), nn.Linear(ROWS, out))


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(ROWS, *shape)


def huber(error: torch.Tensor) -> torch.Tensor:
    size = error.abs()
    return torch.where(size < 1, 0.5 * error**2, size - 0.5).mean()


def gaussian(model: nn.Module) -> torch.Tensor:
    mean, log_scale = model(rows(5)).chunk(2, -1)
    return -torch.distributions.Normal(mean, log_scale.exp()).log_prob(rows()).mean()


def importance(model: nn.Module) -> torch.Tensor:
    return ((model(rows(5)) - rows(1)) ** 2 * torch.rand(ROWS)).mean()


def policy(model: nn.Module) -> torch.Tensor:
    chosen = model(rows(5)).log_softmax(-1)[torch.arange(ROWS), torch.randint(3, (ROWS,))]
    return -(chosen * rows(1)).mean()


MISTAKES: dict[str, tuple[int, Loss]] = {
    "a huber loss by hand": (1, lambda model: huber(model(rows(5)) - rows())),
    "target minus output": (1, lambda model: ((rows() - model(rows(5))) ** 2).mean()),
    "a squeezed output": (1, lambda model: (model(rows(5)).squeeze(-1) - rows(1)).abs().mean()),
    "a mean over rows of sums": (1, lambda model: ((model(rows(5)) - rows()) ** 2).sum(-1).mean()),
    "log cosh": (1, lambda model: (model(rows(5)) - rows()).cosh().log().mean()),
    "a scaled difference": (1, lambda model: ((0.5 * -(model(rows(5)) - rows())) ** 2).mean()),
    "one of two terms": (1, lambda model: huber(model(rows(5)) - rows()) + F.mse_loss(model(rows(5)), rows(1))),
    "an extra dimension": (3, lambda model: ((model(rows(2, 5)).mean(1, keepdim=True) - rows(3)) ** 2).mean()),
    "a likelihood": (2, gaussian),
    "weights of samples": (1, importance),
    "advantages": (3, policy),
    "half precision": (1, lambda model: huber(model(rows(5)).bfloat16() - rows().bfloat16())),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_outputs_of_another_shape_than_their_targets_are_found(name: str, tmp_path: Path) -> None:
    out, loss = MISTAKES[name]
    result = judged(recorded(tmp_path, net(out), loss), criterion.Criterion)
    assert result.verdict is Verdict.FAIL, result
    (found,) = result.violations
    assert (found.cause, found.severity) == ("loss-input-mismatch", Severity.ERROR)
    assert str(ROWS) in found.symptom and found.first_step == 0


def energy(model: nn.Module) -> torch.Tensor:
    made, real = model(rows(5)), rows(1)
    return 2 * (made - real.T).abs().mean() - (made - made.T).abs().mean()


def kernel(model: nn.Module) -> torch.Tensor:
    made, real = model(rows(5)), rows(4)
    squared = (made**2).sum(1, keepdim=True) + (real**2).sum(1) - 2 * made @ real.T
    return (-squared.clamp(min=0)).exp().mean().neg()


def hazards(model: nn.Module) -> torch.Tensor:
    risk, times = model(rows(5)).squeeze(-1), torch.rand(ROWS)
    open_ = torch.zeros(ROWS, ROWS).masked_fill(times[None, :] < times[:, None], -1e9)
    return ((risk + open_).logsumexp(1) - risk).mean()


def ranks(model: nn.Module) -> torch.Tensor:
    score, wanted = model(rows(5)), rows(1)
    return F.softplus(-(score - score.T) * (wanted - wanted.T).sign()).mean()


def against_a_queue(model: nn.Module) -> torch.Tensor:
    made, queue = F.normalize(model(rows(5)), dim=-1), F.normalize(rows(4), dim=-1)
    return F.cross_entropy(made @ queue.T / 0.1, torch.arange(ROWS))


def quantiles(model: nn.Module) -> torch.Tensor:
    error, levels = rows(1) - model(rows(5)), torch.linspace(0.05, 0.95, ROWS)
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def attention(model: nn.Module) -> torch.Tensor:
    bias = -(torch.arange(ROWS)[:, None] - torch.arange(ROWS)).abs().float()
    keys = model(rows(5))
    return ((keys @ keys.T + bias).softmax(-1) @ keys - rows(4)).pow(2).mean()


def waves(model: nn.Module) -> torch.Tensor:
    angle = model[0](rows(5))[:, :1] * torch.arange(1.0, ROWS + 1)
    return (model[2](angle.sin()) - rows(1)).pow(2).mean()


PAIRS: dict[str, tuple[int, Loss]] = {
    "one shape": (1, lambda model: huber(model(rows(5)) - rows(1))),
    "both squeezed": (1, lambda model: huber(model(rows(5)).squeeze(-1) - rows())),
    "as many outputs as samples": (ROWS, lambda model: huber(model(rows(5)) - rows(ROWS))),
    "a mean of each feature": (ROWS, lambda model: huber(model(rows(5)) - torch.randn(ROWS))),
    "a level of as many steps": (1, lambda model: huber(model(rows(5)) - rows(ROWS))),
    "a weight for each feature": (1, lambda model: (model(rows(5)) * rows(ROWS)).pow(2).mean()),
    "unsqueezed on purpose": (1, lambda model: (model(rows(5)).squeeze(-1)[:, None] - rows()[None]).abs().mean()),
    "centres": (1, lambda model: (-((model(rows(5)) - rows()) ** 2)).exp().sum(1).log().mean().neg()),
    "distances": (4, lambda model: torch.cdist(model(rows(5)), rows(4)).mean()),
    "energy": (1, energy),
    "kernel": (4, kernel),
    "hazards": (1, hazards),
    "ranks": (1, ranks),
    "a queue": (4, against_a_queue),
    "quantiles": (ROWS, quantiles),
    "attention": (4, attention),
    "waves": (1, waves),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_are_meant_stay_silent(name: str, tmp_path: Path) -> None:
    out, loss = PAIRS[name]
    result = judged(recorded(tmp_path, net(out), loss), criterion.Criterion)
    assert not result.violations, result


# -- models that cannot bend


def stack(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def deep(between: Callable[[], nn.Module] = nn.Identity, count: int = 3, bias: bool = True) -> nn.Sequential:
    layers = [nn.Linear(6, 12), between()]
    for _ in range(count - 2):
        layers += [nn.Linear(12, 12, bias=bias), between()]
    return stack(*layers, nn.Linear(12, 4))


def curved(model: nn.Module, *shape: int) -> torch.Tensor:
    x = torch.randn(*(shape or (24, 6)))
    made = model(x)
    return F.mse_loss(made, x.flatten(1)[:, :4].abs().view(-1, 4) if made.dim() == 2 else x[..., :4].abs())


class Again(nn.Module):
    """A linear system over time: the same matrix in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.give, self.move, self.read = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.give(x)
        for _ in range(3):
            state = self.move(state) + self.give(x)
        made: torch.Tensor = self.read(state)
        return made


class Spread(nn.Module):
    """A graph network without activations: neighbours are averaged, and only two matrices learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 4)
        self.register_buffer("near", torch.rand(24, 24).softmax(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.near @ (self.near @ (self.near @ self.first(x))))
        return made


class Own(nn.Module):
    def __init__(self, apply: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.apply_ = apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply_(x)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.give, self.mix, self.read = nn.Linear(6, 12), nn.Linear(12, 36), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.give(x)).chunk(3, -1)
        made: torch.Tensor = self.read(q @ k.transpose(-1, -2) @ v)
        return made


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.give, self.gate, self.read = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.give(x)
        read: torch.Tensor = self.read(made * self.gate(made))
        return read


def convolutions(between: Callable[[], nn.Module] = nn.Identity) -> nn.Sequential:
    return stack(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3, padding=1), between(), nn.Conv1d(4, 4, 3, padding=1, groups=2),
        between(), nn.Conv1d(4, 4, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    )  # fmt: skip


STRAIGHT: dict[str, Callable[[], nn.Module]] = {
    "three layers": deep,
    "six layers without bias": lambda: deep(count=6, bias=False),
    "dropout between them": lambda: deep(lambda: nn.Dropout(0.2)),
    "factors between them": lambda: deep(lambda: Own(lambda x: 0.5 * x + 1)),
    "convolutions": convolutions,
    "an activation at the end": lambda: stack(*deep(), nn.Sigmoid()),
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_layers_with_nothing_between_them_are_worth_knowing(name: str, tmp_path: Path) -> None:
    result = judged(recorded(tmp_path, STRAIGHT[name](), curved), linear.Linear)
    (found,) = result.violations
    assert (found.cause, found.severity) == ("underfitting", Severity.INFO)
    assert result.verdict is not Verdict.FAIL


def test_layers_over_sequences_are_told_by_name(tmp_path: Path) -> None:
    run = recorded(tmp_path, deep(count=4), lambda model: curved(model, 8, 5, 6))
    (found,) = judged(run, linear.Linear).violations
    assert "4 matrix products" in found.symptom and "0, 2, 4, 6 follow each other" in found.whys[-1].finding


BENT: dict[str, Callable[[], nn.Module]] = {
    "a linear probe": lambda: nn.Linear(6, 4),
    "a factorisation": lambda: deep(count=2),
    "relu": lambda: deep(nn.ReLU),
    "one activation of many layers": lambda: stack(nn.Linear(6, 12), nn.SiLU(), *deep(count=3)[2:], nn.Linear(4, 4)),
    "relu by a mask": lambda: deep(lambda: Own(lambda x: x * (x > 0))),
    "relu by choice": lambda: deep(lambda: Own(lambda x: torch.where(x > 0, x, 0.1 * x))),
    "squares": lambda: deep(lambda: Own(lambda x: x * x)),
    "normalised": lambda: deep(lambda: nn.LayerNorm(12)),
    "norms of batches": lambda: deep(lambda: nn.BatchNorm1d(12)),
    "weights of unit length": lambda: stack(*(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)) for _ in "abcd")),
    "max-pool": lambda: convolutions(lambda: nn.MaxPool1d(3, 1, 1)),
    "a system over time": Again,
    "neighbours": Spread,
    "attention by hand": Attends,
    "a product of two": Gated,
    "a recurrent kernel": lambda: stack(nn.Linear(6, 6), nn.LSTM(6, 6), Own(lambda x: x[0]), nn.Linear(6, 4)),
}


@pytest.mark.parametrize("name", BENT)
def test_models_that_bend_or_are_meant_to_be_linear_stay_silent(name: str, tmp_path: Path) -> None:
    model = BENT[name]()
    loss: Loss = lambda model: F.mse_loss(model(torch.randn(24, 6))[:, :4], torch.rand(24, 4))  # noqa: E731
    assert not judged(recorded(tmp_path, model, loss), linear.Linear).violations


@pytest.mark.parametrize("case", ["bent", "straight", "frozen"])
def test_a_loss_that_has_levelled_off_far_above_zero_is_a_warning(case: str, tmp_path: Path) -> None:
    model = deep()
    if case == "frozen":
        model.requires_grad_(False)
        model = stack(*model, nn.Tanh(), nn.Linear(4, 12), nn.Linear(12, 12), nn.Linear(12, 4))

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.randn(64, 6)
        return F.mse_loss(model(x), (x if case == "straight" else 2 * x.abs())[:, :4])

    (found,) = judged(recorded(tmp_path, model, loss, 400, 0.1), linear.Linear).violations
    assert found.severity is (Severity.WARNING if case == "bent" else Severity.INFO)
    assert {"plateau", "not-learning"} <= found.explains


# -- operations side by side


class RowByRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(torch.stack([(row * self.inner.weight.mean(0)).tanh().exp() for row in x]))
        return made


class OverTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.move, self.head = nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for at in range(x.shape[1]):
            state = self.move(torch.cat([x[:, at], state], -1)).tanh()
        made: torch.Tensor = self.head(state)
        return made


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, 16), nn.Linear(8, 2)
        self.experts = nn.ModuleList(stack(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        mixed = sum(shares[:, at : at + 1] * expert(x) for at, expert in enumerate(self.experts))
        made: torch.Tensor = self.head(mixed)
        return made


LOOPS = {"rows": (RowByRow, (128, 8)), "time": (OverTime, (4, 200, 8)), "experts": (Experts, (32, 8))}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_rows_is_a_storm_and_loops_over_time_or_experts_are_not(name: str, tmp_path: Path) -> None:
    build, shape = LOOPS[name]
    labels = torch.randint(2, shape[:1])
    run = recorded(tmp_path, build(), lambda model: F.cross_entropy(model(torch.randn(shape)), labels))
    causes = [found.cause for found in judged(run, pace.Budget).violations]
    assert causes.count("launch-storm") == (name == "rows")
    assert len(Story.of(run).events("breadth")) >= 2
