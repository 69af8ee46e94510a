"""The module that a numeric fault lies in: from real training loops to the brick of the finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brickprof
from brickprof.capture import models, places
from brickprof.contracts import registry
from brickprof.diagnosis import diagnose
from brickprof.diagnosis.model import Finding
from brickprof.rules.initialisation import Initialisation
from brickprof.rules.story import Story

BREAKS_AT = 20


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def recorded(tmp_path: Path, body: Callable[[], None]) -> brickprof.Run:
    """What is recorded of ``body()`` at the pace of a real run: in most steps nothing is hooked."""
    with brickprof.attach(None, out=tmp_path) as session:
        body()
    run = brickprof.load(session.folder)
    assert not [record for record in run.records() if getattr(record, "kind", "") == "probe_off"]
    return run


def origins(run: brickprof.Run) -> list[dict[str, Any]]:
    """What was told of broken losses, with names for numbers."""
    told = [record for record in run.records() if getattr(record, "kind", "") in ("brick", "origin")]
    names = {event.fields["id"]: event.fields["path"] for event in told if event.kind == "brick"}
    return [
        {"step": event.step}
        | {name: names[value] if name in ("brick", "given_by") else value for name, value in event.fields.items()}
        for event in told
        if event.kind == "origin"
    ]


def finding(run: brickprof.Run) -> Finding:
    return diagnose(run).findings[0]


class Pool(nn.Module):
    """The mean of the rows that count: no parameters, and a division by zero where none does."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.unsqueeze(-1).to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.mlp = Pool(), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.pool(x, mask))


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.tower, self.head = nn.Embedding(20, 8), Tower(), nn.Linear(8, 3)
        self.noisy = False

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.tower(self.items(ids), mask)
        return self.head((h * 1.5).tanh() if self.noisy else h)


def batch(empty: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = not empty
    return torch.randint(20, (6, 5)), mask, torch.randint(3, (6,))


def training(
    model: nn.Module, loss: Callable[[int], torch.Tensor], steps: int = BREAKS_AT + 4, lr: float = 0.01
) -> Callable[[], None]:
    def body() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for step in range(steps):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()

    return body


def recommend(model: Recommender, each: Callable[[int], None] | None = None) -> Callable[[int], torch.Tensor]:
    def loss(step: int) -> torch.Tensor:
        if each is not None:
            each(step)
        ids, mask, label = batch(step == BREAKS_AT)
        return F.cross_entropy(model(ids, mask), label)

    return loss


def test_an_operation_in_a_module_without_parameters(tmp_path: Path) -> None:
    model = Recommender()
    run = recorded(tmp_path, training(model, recommend(model)))
    first = origins(run)[0]
    assert (first["step"], first["kind"], first["brick"]) == (BREAKS_AT, "division-by-zero", "tower.pool")
    found = finding(run)
    assert (found.root_cause, found.brick, found.first_step) == ("division-by-zero", "tower.pool", BREAKS_AT)
    assert "tower.pool" in found.whys[-1].finding and found.whys[-1].brick == "tower.pool"


def test_a_step_that_begins_with_the_call_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of step 0, in which the model is hooked before it is called."""
    learn, watch = places.Places.learn, places.Places.watch
    monkeypatch.setattr(places.Places, "learn", lambda self, loss: self._session.step and learn(self, loss))
    monkeypatch.setattr(places.Places, "watch", lambda self: self._session.step and watch(self))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x * self.first.weight[0]).relu() / over)

    model = Own()

    def loss(step: int) -> torch.Tensor:
        return model(torch.randn(16, 8), torch.tensor(float(step != 6))).square().mean()

    first = origins(recorded(tmp_path, training(model, loss, 8)))[0]
    assert (first["kind"], first["brick"]) == ("division-by-zero", "") and "given_by" not in first


def test_a_break_in_the_very_first_step(tmp_path: Path) -> None:
    model = Recommender()
    run = recorded(tmp_path, training(model, lambda step: F.cross_entropy(model(*batch(True)[:2]), batch()[2]), 6))
    assert (origins(run)[0]["step"], origins(run)[0]["brick"], finding(run).brick) == (0, "tower.pool", "tower.pool")


def test_a_loss_written_by_hand_stays_the_loss(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def loss(step: int) -> torch.Tensor:
        share = torch.sigmoid(model(torch.randn(16, 8)))
        return -torch.log(share * (0.0 if step == BREAKS_AT else 1.0)).mean()

    run = recorded(tmp_path, training(model, loss))
    assert (origins(run)[0]["kind"], origins(run)[0].get("brick")) == ("log-of-zero", None)
    assert (finding(run).root_cause, finding(run).brick) == ("log-of-zero", "loss")


def test_an_operation_in_a_models_own_code_is_the_part_that_it_worked_on(tmp_path: Path) -> None:
    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean = nn.Linear(8, 16), nn.Linear(16, 4)
            self.variance, self.decoder = nn.Sequential(nn.Linear(16, 4), nn.ReLU()), nn.Linear(4, 8)

        def forward(self, x: torch.Tensor, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.body(x).tanh()
            mean, variance = self.mean(h), self.variance(h + shift)
            return self.decoder(mean), (mean**2 - torch.log(variance)).mean()

    model = Variational()
    with torch.no_grad():
        model.variance[0].weight.fill_(0.1)
        model.variance[0].bias.fill_(5.0)

    def loss(step: int) -> torch.Tensor:
        output, penalty = model(torch.randn(16, 8), -100.0 if step == BREAKS_AT else 0.0)
        return output.square().mean() + 0.01 * penalty

    run = recorded(tmp_path, training(model, loss, lr=1e-3))
    first = origins(run)[0]
    assert (first["kind"], first["brick"], first["given_by"]) == ("log-of-zero", "", "variance.1")
    assert (finding(run).root_cause, finding(run).brick) == ("log-of-zero", "variance.1")


def test_an_overflow_is_where_the_value_was_made_and_not_where_it_was_used(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1).view(-1, 1, 16).squeeze(1)

    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phi, self.pool = nn.Sequential(nn.Linear(3, 16), nn.ReLU()), Sum()
            self.norm, self.rho = nn.LayerNorm(16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rho(self.norm(self.pool(self.phi(x))))

    model = Sets().half()

    def loss(step: int) -> torch.Tensor:
        points = 20 + 4 * torch.randn(4, 9000 if step == BREAKS_AT else 50, 3)
        return F.cross_entropy(model(points.half()).float(), torch.randint(2, (4,)))

    run = recorded(tmp_path, training(model, loss))
    first = origins(run)[0]
    assert (first["op"], first["kind"], first["brick"]) == ("SumBackward1", "overflow", "pool")
    assert (finding(run).root_cause, finding(run).brick) == ("fp16-overflow", "pool")


def test_where_the_graph_is_another_nothing_is_said(tmp_path: Path) -> None:
    model = Recommender()

    def changed(step: int) -> None:
        model.noisy = step == BREAKS_AT

    run = recorded(tmp_path, training(model, recommend(model, changed)))
    assert origins(run)[0]["kind"] == "division-by-zero" and "brick" not in origins(run)[0]
    assert finding(run).root_cause == "division-by-zero"


def test_of_two_losses_in_a_step_each_has_its_places(tmp_path: Path) -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x: torch.Tensor, eps: float) -> torch.Tensor:
            return self.second(self.scaled(F.relu(self.first(x)), eps))

        def scaled(self, h: torch.Tensor, eps: float) -> torch.Tensor:
            return h / (h.detach().std() * 0 + eps)

    class Maker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.critic = Critic()

        def forward(self, x: torch.Tensor, eps: float = 1.0) -> torch.Tensor:
            return self.critic(x, eps)

    critic, maker = Rooted(), Maker()

    def body() -> None:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (critic, maker)]
        for step in range(BREAKS_AT + 4):
            optimizers[0].zero_grad()
            critic(maker(torch.randn(8, 4)).detach()).mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            (-critic(maker(torch.randn(8, 4)), 0.0 if step == BREAKS_AT else 1.0)).mean().backward()
            optimizers[1].step()

    assert origins(recorded(tmp_path, body))[0]["brick"] == "critic"


def test_an_error_that_came_out_of_a_forward_leaves_no_wrong_places(tmp_path: Path) -> None:
    model = Recommender()

    def loss(step: int) -> torch.Tensor:
        ids, mask, label = batch()
        if step < 2:
            with pytest.raises(RuntimeError):
                model(ids, mask[:, :3])
        share = model(ids, mask).softmax(-1)
        return -torch.log(share * (0.0 if step == 6 else 1.0))[range(6), label].mean()

    run = recorded(tmp_path, training(model, loss, 8))
    assert origins(run)[0]["kind"] == "log-of-zero" and "brick" not in origins(run)[0]


def _hooks(model: nn.Module) -> int:
    return sum(
        getattr(hook, "__module__", "") == places.__name__
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )


def test_hooks_are_gone_after_their_step_and_no_number_changes(tmp_path: Path) -> None:
    def weights(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = Recommender()
        seen: list[int] = []
        body = training(model, recommend(model, lambda _: seen.append(_hooks(model))), 8)
        if not watched:
            body()
        else:
            recorded(tmp_path, body)
            modules = sum(1 for _ in model.modules())
            # Without a loader a step ends where the next one begins: in the first call of a model.
            assert seen[:3] == [2 * modules] * 3 and not any(seen[3:]) and not _hooks(model)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(True), weights(False))


def test_without_numbers_in_autograd_nothing_is_hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_next_number", None)
    model = Recommender()
    seen: list[int] = []
    run = recorded(tmp_path, training(model, recommend(model, lambda _: seen.append(_hooks(model)))))
    assert not any(seen) and "brick" not in origins(run)[0] and finding(run).root_cause == "division-by-zero"


def test_nothing_inside_a_compiled_module_is_hooked() -> None:
    model = Recommender()
    compiled = torch.compile(model, backend="eager")
    assert [path for path, _ in places._modules(models.describe(compiled, set()))] == [""]
    model = Recommender()
    model.tower.mlp.compile(backend="eager")
    paths = [path for path, _ in places._modules(models.describe(model, set()))]
    assert sorted(paths) == ["", "head", "items", "tower", "tower.mlp", "tower.pool"]


def test_a_healthy_run_tells_of_no_origin(tmp_path: Path) -> None:
    model = Recommender()
    assert not origins(recorded(tmp_path, training(model, recommend(model), BREAKS_AT)))


# -- gradients that explode


def test_the_weight_that_the_loss_hangs_on_is_named(tmp_path: Path) -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.recurrent = nn.Linear(2, 32), nn.Linear(32, 32, bias=False)
            nn.init.eye_(self.recurrent.weight)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inputs(x) + self.recurrent(h))

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = Cell(), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.new_zeros(len(x), 32)
            for place in range(x.shape[1]):
                h = self.cell(x[:, place], h)
            return self.out(h).squeeze(-1)

    model = Reader()

    def loss(_step: int) -> torch.Tensor:
        x = torch.rand(16, 80, 2)
        return F.mse_loss(model(x), x.prod(-1).sum(1) / 3)

    found = finding(recorded(tmp_path, training(model, loss, 12, lr=0.01)))
    assert (found.root_cause, found.brick.partition(".")[0]) == ("exploding-gradients", "cell"), found


# -- where a start is bad


class Language(nn.Module):
    def __init__(self, tied: bool, head: float) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(32, 48), nn.Linear(48, 48), nn.Linear(48, 32, bias=False)
        self.norm = nn.LayerNorm(48)
        nn.init.normal_(self.head.weight, std=head)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids) + self.mix(self.embed(ids))))


@pytest.mark.parametrize(("tied", "head", "brick"), [(True, 0.0, "embed"), (False, 0.9, "head"), (False, 0.02, None)])
def test_a_high_first_loss_names_the_weights_that_made_it(
    tied: bool, head: float, brick: str | None, tmp_path: Path
) -> None:
    model = Language(tied, head)
    ids, targets = torch.randint(32, (16, 12)), torch.randint(32, (16 * 12,))
    body = training(model, lambda _: F.cross_entropy(model(ids).flatten(0, 1), targets), 4)
    story = Story.of(recorded(tmp_path, body))
    result = Initialisation().judge(story, registry.find(Initialisation.contract))
    assert [found.brick for found in result.violations] == ([] if brick is None else [brick]), result


@pytest.mark.parametrize("turned", [False, True])
def test_what_squashed_the_input_of_the_loss_is_named(turned: bool, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.top = nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 4), nn.Softmax(-1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.top(self.body(x).relu())
            return made.unsqueeze(1).squeeze(1) if turned else made

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with brickprof.attach(model, optimizer, out=tmp_path) as session:
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 6)), torch.randint(4, (16,))).backward()
            optimizer.step()
    (finding,) = [each for each in brickprof.diagnose(session.folder).findings if each.root_cause == "double-softmax"]
    assert finding.brick == "top.1"
