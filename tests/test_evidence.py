"""The evidence that rules reason from: what an ordinary training loop leaves in the journal, in the words of
``brickprof.records``. All through ``brickprof.attach``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import brickprof


class Classifier(nn.Module):
    def __init__(self, *, normalised: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(12, 4)
        self.normalised = normalised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(x))
        return torch.softmax(logits, -1) if self.normalised else logits


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def data(rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=generator)
    return x, x[:, :4].argmax(1)


def found(run: brickprof.Run, kind: str) -> list[dict[str, Any]]:
    return [{"step": r.step, **r.fields} for r in run.records() if getattr(r, "kind", "") == kind]


def recorded(tmp_path: Path, body: Any, *, level: str = "standard") -> brickprof.Run:
    """What is recorded of ``body()``."""
    with brickprof.attach(None, out=tmp_path, level=level, overhead="100%") as session:
        body()
    run = brickprof.load(session.folder)
    assert not found(run, "probe_off")
    return run


def train(model: nn.Module, optimizer: Any, steps: int = 4, each: Any = None, criterion: Any = None) -> None:
    x, y = data()
    criterion = criterion or F.cross_entropy
    for step in range(steps):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        if each is not None:
            each(step)
        optimizer.step()


def test_the_criterion_says_what_it_was_given(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.CrossEntropyLoss())

    seen = found(recorded(tmp_path, body), "criterion")
    assert [each["step"] for each in seen] == [0, 1, 2, 3]
    first = seen[0]
    assert (first["name"], first["reduction"], first["classes"], first["rows"]) == ("cross_entropy", "mean", 4, 32)
    assert first["grad"] and first["training"] and first["value"] > 0
    assert first["site"].startswith("test_evidence.py:")
    assert not first["input"]["sums_to_one"] and not first["input"]["constant"] and first["input"]["finite"]
    assert first["target"]["distinct"] == 4 and first["target"]["ignored"] == 0


def test_a_distribution_where_logits_belong_is_seen(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier(normalised=True)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert found(recorded(tmp_path, body), "criterion")[0]["input"]["sums_to_one"]


def test_what_depends_on_the_parameters_and_what_made_it_are_seen(tmp_path: Path) -> None:
    def body() -> None:
        model, data = nn.Linear(4, 2), torch.rand(8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mean, raw = model(torch.randn(8, 4)).unbind(-1)
        spread = F.softplus(raw) + 1e-3
        loss = F.gaussian_nll_loss(mean, spread, data) + F.gaussian_nll_loss(mean, data, 1.0)
        loss = loss + F.poisson_nll_loss(spread, data) + F.kl_div(mean, data, None, None, "sum", True)
        frames = model(torch.randn(6, 3, 4)).softmax(-1)
        lengths = torch.full((3,), 6), torch.full((3,), 2)
        (loss + nn.CTCLoss()(frames, torch.ones(3, 2, dtype=torch.long), *lengths)).backward()
        optimizer.step()

    session = found(recorded(tmp_path, body), "criterion")
    swapped, fixed, counts, divergence, spoken = session
    assert swapped["requires"] == [True, True, False] and fixed["requires"] == [True, False, None]
    assert swapped["variance"]["std"] > 0 and "variance" not in fixed
    assert counts["options"] == {"log_input": True} and counts["made_by"] == "Softplus"
    assert divergence["options"] == {"log_target": True} and divergence["made_by"] is None
    assert (spoken["name"], spoken["rows"], spoken["made_by"]) == ("ctc", 3, "Softmax")
    assert spoken["input"]["sums_to_one"]


def test_rows_of_images_are_taken_along_the_classes(tmp_path: Path) -> None:
    def body() -> None:
        model = nn.Conv2d(3, 5, 3, padding=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        target = torch.full((2, 40, 40), -100)
        target[:, :20] = 1
        F.nll_loss(torch.log_softmax(model(torch.randn(2, 3, 40, 40)), 1), target).backward()
        optimizer.step()

    (seen,) = found(recorded(tmp_path, body), "criterion")
    assert seen["input"]["log_distribution"] and not seen["input"]["sums_to_one"]
    assert seen["target"]["ignored"] == pytest.approx(0.5, abs=0.05) and seen["target"]["distinct"] == 1


def test_an_evaluation_is_one_event_with_its_mode_and_mean_loss(tmp_path: Path) -> None:
    values = []

    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 2)
        model.eval()
        with torch.no_grad():
            x, y = data(64)
            for part in range(2):
                values.append(F.cross_entropy(model(x[part::2]), y[part::2]).item())
        model.train()
        train(model, optimizer, 2)
        with torch.no_grad():
            model(x)

    run = recorded(tmp_path, body)
    first, last = found(run, "evaluation")
    assert (first["model"], first["training"], first["sensitive"], first["forwards"]) == ("Classifier", False, True, 2)
    assert first["rows"] == 64 and first["loss"] == pytest.approx(sum(values) / 2)
    assert (last["training"], last["loss"], last["forwards"]) == (True, None, 1)
    off = [each for each in found(run, "criterion") if not each["grad"]]
    assert [each["value"] for each in off] == [pytest.approx(sum(values) / 2)] and not off[0]["training"]


def test_scripted_and_transformed_losses_are_left_alone(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.CrossEntropyLoss()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.loss(x, y) + nn.functional.mse_loss(x, x * 2)

    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _, y = data()
        train(model, optimizer, 2)
        given = torch.randn(8, 4)
        scripted = torch.jit.script(Both())
        assert torch.equal(scripted(given, y[:8]), Both()(given, y[:8]))
        torch.func.vmap(F.mse_loss)(given, given * 2)
        torch.func.grad(lambda a: F.mse_loss(a, given))(given * 2)
        compiled = torch.compile(Both(), backend="eager", fullgraph=True)
        assert torch.equal(compiled(given, y[:8]), Both()(given, y[:8]))

    recorded(tmp_path, body)


def test_gradients_left_from_an_earlier_step_are_seen(tmp_path: Path) -> None:
    def body(clear: bool) -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = data()
        for _ in range(4):
            if clear:
                optimizer.zero_grad(set_to_none=False)
            for _ in range(2):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()

    kept = found(recorded(tmp_path / "kept", lambda: body(False)), "held")
    assert [each["held"] for each in kept] == [0, 4, 4, 4] and {each["tensors"] for each in kept} == {4}
    assert {each["zeroed"] for each in kept} == {0}
    cleared = found(recorded(tmp_path / "cleared", lambda: body(True)), "held")
    assert [each["held"] for each in cleared] == [0] * 4 and {
        (each["zeroed"], each["cleared"]) for each in cleared
    } == {(1, 1)}


def test_gradients_of_the_other_player_are_not_held_over(tmp_path: Path) -> None:
    def body() -> None:
        one, other = nn.Linear(4, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(other.parameters(), lr=0.01)
        second = torch.optim.SGD(one.parameters(), lr=0.01)
        for _ in range(4):
            for optimizer in (first, second):
                optimizer.zero_grad(set_to_none=False)
                other(one(torch.ones(2, 4))).pow(2).mean().backward()
                optimizer.step()

    assert {each["held"] for each in found(recorded(tmp_path, body), "held")} == {0}


@pytest.mark.parametrize("how", ["torch", "hand", "none"])
def test_what_was_done_to_gradients_shows(how: str, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()

        def each(_step: int) -> None:
            if how == "torch":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            elif how == "hand":
                for parameter in model.head.parameters():
                    parameter.grad.mul_(0.5)

        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, each)

    run = recorded(tmp_path, body)
    seen = found(run, "applied")
    assert len(seen) == 3 and all(each["tensors"] == 4 for each in seen)
    if how == "torch":
        assert [each["after"] for each in seen] == pytest.approx([1e-3] * 3, rel=1e-3)
        assert not any(each["blocks"] for each in seen)
    elif how == "hand":
        names = {brick["id"]: brick["path"] for brick in found(run, "brick")}
        coefficients = {names[brick]: value for brick, value in seen[0]["blocks"]}
        assert coefficients == {"body.0": pytest.approx(1.0), "head": pytest.approx(0.5)}
    else:
        assert [each["coefficient"] for each in seen] == [1.0] * 3 and not any(each["blocks"] for each in seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, weight_decay=0.3),
        lambda p: torch.optim.Adam(p, weight_decay=0.3, betas=(0.8, 0.95)),
        torch.optim.RMSprop,
        torch.optim.NAdam,
    ],
)
def test_moments_follow_from_the_first_gradient(make: Any, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        train(model, make(model.parameters()))

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert seen["count"] == 1 and len(seen["tensors"]) == 4
    for each in seen["tensors"]:
        assert (each["m_error"] or 0) < 1e-4 and each["v_error"] < 1e-4 and not each["stale"] and each["v_min"] >= 0


def test_the_last_of_many_moments_is_looked_at_too(tmp_path: Path) -> None:
    class Careless(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            self.state[self.param_groups[0]["params"][-1]]["exp_avg"].mul_(10)
            return result

    def body() -> None:
        model = nn.Sequential(*(nn.LayerNorm(6) for _ in range(150)), Classifier())  # as many tensors as a GPT of 350M
        train(model, Careless(model.parameters()), steps=2)

    (seen,) = found(recorded(tmp_path, body), "moments")
    *others, last = seen["tensors"]
    assert len(others) == 303 and all(each["m_error"] < 1e-4 for each in others if each["m_error"] is not None)
    assert last["m_error"] > 1


def test_moments_that_do_not_follow_are_told(tmp_path: Path) -> None:
    class Careless(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            for state in self.state.values():
                state["exp_avg"].mul_(10)
            return result

    def body() -> None:
        model = Classifier()
        optimizer = Careless(model.parameters())
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.ones_like(parameter)
        train(model, optimizer)

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert all(each["m_error"] > 1 and each["stale"] and each["v_error"] < 1e-4 for each in seen["tensors"])


def test_gradients_that_are_made_or_changed_inside_an_update_are_those_its_moments_follow_from(tmp_path: Path) -> None:
    """A closure makes them (as Lightning's does), a hook of the script's own clips them, an optimizer clears them."""

    class Clearing(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            self.zero_grad()
            return result

    def closed() -> None:
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = data()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    def hooked() -> None:
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1e-3) and None)
        train(model, optimizer)

    def cleared() -> None:
        model = Classifier()
        train(model, Clearing(model.parameters()))

    for name, body in {"closed": closed, "hooked": hooked, "cleared": cleared}.items():
        run = recorded(tmp_path / name, body)
        (seen,) = found(run, "moments")
        assert seen["step"] == 0 and len(seen["tensors"]) == 4, name
        assert all(each["m_error"] < 1e-4 and each["v_error"] < 1e-4 for each in seen["tensors"]), name
        assert not (name == "hooked" and found(run, "applied"))


@pytest.mark.parametrize(("scale", "overflows"), [(128.0, 0), (65536.0, 0), (128.0, 2)], ids=str)
def test_a_fused_optimizer_takes_the_loss_scale_out_and_may_leave_an_update_out(
    scale: float, overflows: int, tmp_path: Path
) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        x, y = data()
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if step < overflows:
                model.head.bias.grad[0] = math.inf
            scaler.step(optimizer)
            scaler.update()

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert seen["step"] == overflows and len(seen["tensors"]) == 4
    assert all(each["m_error"] < 1e-3 and each["v_error"] < 1e-3 for each in seen["tensors"])


@pytest.mark.parametrize(("factor", "off"), [(0.0, 1.0), (1.9, 0.9)])
def test_a_second_moment_that_is_lost_or_too_large_is_off(factor: float, off: float, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_post_hook(
            lambda *_: [state["exp_avg_sq"].mul_(factor) for state in optimizer.state.values()] and None
        )
        train(model, optimizer)

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert all(each["v_error"] == pytest.approx(off, rel=1e-3) for each in seen["tensors"])


def test_what_is_too_small_for_a_moments_type_is_no_mistake(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, each=lambda _: [each.grad.mul_(1e-24) for each in model.parameters()])

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert all(each["m_error"] < 1e-4 and each["v_error"] is None for each in seen["tensors"])


def test_moments_in_integers_are_the_optimizers_own_affair(tmp_path: Path) -> None:
    class Quantised(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999)})
            for each in self.param_groups[0]["params"]:
                self.state[each]["exp_avg"] = torch.full_like(each, 128, dtype=torch.uint8)

        def step(self, closure: Any = None) -> None:
            pass

    def body() -> None:
        model = Classifier()
        train(model, Quantised(model.parameters()))

    (seen,) = found(recorded(tmp_path, body), "moments")
    assert not any(each["stale"] or each["m_error"] for each in seen["tensors"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_clip_judges_what_it_has_clipped_and_nothing_else(whole: bool, tmp_path: Path) -> None:
    """The norm of some gradients says nothing of the others."""

    def body() -> None:
        model = Classifier()
        clipped = list((model if whole else model.body).parameters())

        def spoil(step: int) -> None:
            if step == 301:  # none that is looked at in full
                model.head.bias.grad[1] = math.nan
            nn.utils.clip_grad_norm_(clipped, 1.0)

        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=303, each=spoil)

    with brickprof.attach(None, out=tmp_path, level="light", overhead="100%") as session:
        body()
    run = brickprof.load(session.folder)
    broken = [each for each in found(run, "grad") if each["broken"]]
    assert [(each["step"], each["broken"]) for each in broken][:1] == [(301, 1)]


@pytest.mark.parametrize(("fill", "strange"), [(0.0, False), (math.nan, True), (1e30, True), ("noise", True)], ids=str)
@pytest.mark.parametrize("name", ["exp_avg", "momentum_buffer"])
def test_moments_that_an_own_optimizer_did_not_clear_are_told(
    fill: Any, strange: bool, name: str, tmp_path: Path
) -> None:
    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                if not state:
                    state[name] = torch.randn_like(parameter) if fill == "noise" else torch.full_like(parameter, 0.0)
                    if fill != "noise":
                        state[name].view(-1)[::5] = fill
                state[name].mul_(0.9).add_(parameter.grad)
                parameter.sub_(state[name], alpha=1e-3)

    def body() -> None:
        model = Classifier()
        defaults = {"lr": 1e-3} | ({"betas": (0.9, 0.999)} if name == "exp_avg" else {})
        train(model, Own(model.parameters(), defaults))

    rows = found(recorded(tmp_path, body), "moments")[0]["tensors"]
    assert not any(row["stale"] for row in rows)
    odd = [row for row in rows if row["broken"] or (row["beyond"] or 0) > 1e6 or (row["unlike"] or 0) > 0.9]
    assert bool(odd) is strange


def test_loaders_and_their_batches(tmp_path: Path) -> None:
    def body() -> None:
        torch.manual_seed(1)
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = data()
        x[5, 2] = float("nan")
        train_loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        held_out = DataLoader(TensorDataset(*data(12)), batch_size=8)
        for _ in range(2):
            for inputs, labels in train_loader:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs.nan_to_num()), labels).backward()
                optimizer.step()
            with torch.no_grad():
                for inputs, _labels in held_out:
                    model(inputs)

    run = recorded(tmp_path, body)
    loaders = {each["loader"]: each for each in found(run, "loader")}
    training, other = loaders[0], loaders[1]
    assert (training["train"], training["sampler"], training["shuffles"]) == (True, "RandomSampler", True)
    assert (training["batches"], training["samples"], training["batch_size"]) == (4, 32, 8)
    assert (other["train"], other["shuffles"], other["batches"]) == (False, False, 2)
    batches = [each for each in found(run, "batch") if each["loader"] == 0]
    assert [(each["epoch"], each["index"]) for each in batches] == [(e, i) for e in (0, 1) for i in range(4)]
    assert sum(each["nan"] for each in batches) == 2 and len({each["fingerprint"] for each in batches}) == 8
    assert all(each["samples"] == 8 and each["std"] > 0 for each in batches)


def test_checkpoints_say_what_is_in_them_and_what_was_restored(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        train(model, optimizer)
        whole = {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict(),
            "step": 4, "rng_state": torch.get_rng_state(),
        }  # fmt: skip
        torch.save(whole, tmp_path / "whole.pt")
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        again = torch.load(tmp_path / "whole.pt")
        again["model"].pop("head.bias")
        again["model"]["other"] = torch.zeros(2)
        model.load_state_dict(again["model"], strict=False)
        optimizer.load_state_dict(again["optimizer"])
        schedule.load_state_dict(again["scheduler"])
        train(model, optimizer)

    run = recorded(tmp_path / "runs", body)
    whole, weights, loaded = found(run, "checkpoint")
    assert (whole["op"], whole["file"], whole["tensors"], whole["moments"], whole["step"]) == (
        "save", "whole.pt", 4, 8, 4,
    )  # fmt: skip
    assert whole["optimizer"] and whole["scheduler"] and whole["rng"] and not whole["scaler"] and whole["bytes"] > 0
    assert (weights["models"], weights["tensors"], weights["optimizer"]) == (1, 4, False)
    assert loaded["op"] == "load" and loaded["optimizer"]
    model, optimizer, scheduler = found(run, "restored")
    assert (model["what"], model["tensors"], model["expected"], model["strict"]) == ("model", 4, 4, False)
    assert (model["missing"], model["unexpected"], model["names"]) == (1, 1, ["head.bias", "other"])
    assert (optimizer["what"], optimizer["moments"], optimizer["count"], optimizer["lr"]) == ("optimizer", 8, 4, [1e-3])
    assert scheduler["what"] == "scheduler"


def _dead_log(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.relu(model(x))).mean()


def _empty_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = (y > 10).float()
    return (F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum()


def _no_targets(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), torch.full_like(y, -100))


def _no_rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x[:0]), y[:0])


def _weightless(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = model(x)
    return F.cross_entropy(out, y, weight=torch.zeros(out.shape[1]))


def _overflow(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(model(x) * 1e4).mean()


def _broken_data(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x.masked_fill(x > 1, float("nan"))), y)


def _broken_weight(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    return F.cross_entropy(model(x), y)


def _masked_row(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = model(x).masked_fill(torch.ones(len(x), 1, dtype=torch.bool), float("-inf"))
    return torch.softmax(scores, -1).mean()


@pytest.mark.parametrize(
    ("make", "kind", "op"),
    [
        (_dead_log, "log-of-zero", "LogBackward0"),
        (_empty_mean, "division-by-zero", "DivBackward0"),
        (_no_targets, "empty-mean", "NllLossBackward0"),
        (_no_rows, "empty-mean", "NllLossBackward0"),
        (_weightless, "empty-mean", "NllLossBackward0"),
        (_overflow, "overflow", "ExpBackward0"),
        (_broken_data, "input", "AddmmBackward0"),
        (_broken_weight, "weights", None),
        (_masked_row, "empty-softmax", "SoftmaxBackward0"),
    ],
)
def test_the_origin_of_a_loss_that_is_not_finite(make: Any, kind: str, op: str | None, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(3):
            make(model, *data()).backward()
            optimizer.step()

    seen = found(recorded(tmp_path, body), "origin")
    assert [each["step"] for each in seen] == [0]
    assert (seen[0]["kind"], op or seen[0]["op"]) == (kind, seen[0]["op"])
    assert seen[0]["inputs"]


def test_units_that_do_nothing_are_counted_however_they_are_written(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, 4)
            with torch.no_grad():
                self.first.bias[:5] = -100.0
                self.second.weight.mul_(1000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(F.relu(self.first(x))).tanh())

    def body() -> None:
        model = Net()
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), 2)

    run = recorded(tmp_path, body)
    names = {brick["id"]: brick["path"] for brick in found(run, "brick")}
    seen = {names[each["brick"]]: each for each in found(run, "units") if each["step"] == 0}
    first, second = seen["first"], seen["second"]
    assert (first["activation"], first["units"], first["dead"], first["saturated"]) == ("ReLU", 10, 0.5, None)
    assert second["activation"] == "Tanh" and second["dead"] is None and second["saturated"] > 0.8


@pytest.mark.parametrize("how", ["shared", "copied", "apart"])
def test_tied_weights(how: str, tmp_path: Path) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = {"tie_word_embeddings": how != "apart"}
            self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
            if how == "shared":
                self.head.weight = self.embed.weight
            elif how == "copied":
                self.head.weight.data.copy_(self.embed.weight.data)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    def body() -> None:
        model = Language()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.arange(9)
        F.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()

    seen = found(recorded(tmp_path, body), "tied")
    if how == "apart":
        assert not seen
        return
    (each,) = seen
    assert each["names"] == ["embed.weight", "head.weight"] and each["declared"] and each["equal"]
    assert each["same_storage"] is (how == "shared")


@pytest.mark.parametrize("mixed", [True, False])
def test_models_in_double_precision_switch_no_probe_off(tmp_path: Path, mixed: bool) -> None:
    def body() -> None:
        one, other = nn.Linear(4, 4).double(), nn.Linear(4, 1)
        model = nn.ModuleList([one, other if mixed else other.double()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            hidden = one(torch.ones(2, 4, dtype=torch.float64))
            other(hidden.to(other.weight.dtype)).square().mean().backward()
            optimizer.step()

    recorded(tmp_path, body)  # which looks for probes that were switched off


def test_gradients_that_are_missing_zero_or_nobodys_are_named(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.nobodys, self.still = (nn.Linear(4, 4, bias=False) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.nobodys(self.used(x)) + 0 * self.still(x)

    def body() -> None:
        model = Net()
        optimizer = torch.optim.SGD([model.used.weight, model.idle.weight, model.still.weight], lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    run = recorded(tmp_path, body)
    names = {each["id"]: each["name"] for each in found(run, "tensor")}
    first = found(run, "grad")[0]
    assert [names[number] for number in first["missing"]] == ["idle.weight"]
    assert [names[number] for number in first["zero"]] == ["still.weight"] and first["zeros"] == 1
    sampled = run.samples
    assert "nobodys.weight" in set(sampled.loc[sampled.role == "grad"].tensor)


@pytest.mark.parametrize("how", ["total", "list", "number"])
def test_graphs_of_earlier_losses_that_stay_alive_are_counted(how: str, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = data()
        total: Any = 0.0
        kept = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total = total + (loss if how == "total" else loss.item())
            kept.append(loss if how == "list" else loss.detach())

    seen = found(recorded(tmp_path, body), "retained")
    assert seen
    if how == "number":
        assert {each["graphs"] for each in seen} == {0}
    else:
        assert seen[-1]["graphs"] >= 4 and seen[-1]["since"] == 0


def test_host_reads_are_counted_by_line_and_ours_are_not(tmp_path: Path) -> None:
    before = set(torch.Tensor.__dict__)

    def body() -> None:
        model = Classifier()

        def each(_step: int) -> None:
            for parameter in model.parameters():
                parameter.grad.norm().item()
            if model.head.weight.sum() > 1e9:
                raise AssertionError

        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, each)

    seen = found(recorded(tmp_path, body), "syncs")
    assert [each["count"] for each in seen if each["step"] in (1, 2)] == [5, 5]
    (most, least) = seen[1]["sites"]
    assert most[0].startswith("test_evidence.py:") and (most[1], least[1]) == (4, 1)
    assert set(torch.Tensor.__dict__) == before


def test_collectives_and_handles_that_nobody_waited_for(tmp_path: Path) -> None:
    def body() -> None:
        dist = torch.distributed
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        try:
            model = Classifier()

            def each(_step: int) -> None:
                for parameter in model.head.parameters():
                    dist.all_reduce(parameter.grad)
                handle = dist.all_reduce(model.body[0].weight.grad, async_op=True)
                handle.wait()
                dist.all_reduce(torch.zeros(3), async_op=True)

            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, each)
        finally:
            dist.destroy_process_group()

    before = torch.distributed.all_reduce
    seen = found(recorded(tmp_path, body), "collective")
    phases = [each["phase"] for each in seen if each["step"] == 0]
    assert phases == ["done", "done", "open", "wait", "open", "orphaned"]
    assert [each["seq"] - seen[0]["seq"] for each in seen if each["phase"] in ("done", "open")] == list(range(8))
    assert (seen[0]["op"], seen[0]["numel"], seen[0]["ranks"], seen[0]["group"]) == ("all_reduce", 48, 1, "world")
    assert seen[0]["site"].startswith("test_evidence.py:") and seen[0]["ns"] > 0
    lost = [each for each in seen if each["phase"] == "orphaned"]
    assert [each["waited"] for each in lost] == [False, False] and {each["numel"] for each in lost} == {3}
    assert torch.distributed.all_reduce is before


@pytest.mark.parametrize("tap", ["losses", "collectives"])
def test_what_a_tap_makes_of_a_call_never_reaches_the_training(tap, monkeypatch):
    """Whatever goes wrong on our side, the call returns what it returned."""
    from brickprof.capture import hub
    from brickprof.capture.desk import desk
    from brickprof.capture.taps import collectives, losses

    def broken(*_args, **_kwargs):
        raise RuntimeError("ours")

    for name in ("emit", "tell"):
        monkeypatch.setattr(hub, name, broken)
    monkeypatch.setattr(desk, "listening", True)
    monkeypatch.setattr(hub, "sessions", [object()])
    if tap == "losses":
        watched = losses._tap(lambda input, target, reduction="mean": input + target, name="mse")
    else:
        watched = collectives._tap(lambda tensor, group=None: tensor + 2, "all_reduce")
    assert watched(torch.tensor(1.0), torch.tensor(2.0)) == 3


def test_a_model_that_does_not_run_has_no_mode(tmp_path: Path) -> None:
    def body() -> None:
        resting, model = Classifier(), Classifier()
        train(resting, torch.optim.SGD(resting.parameters(), lr=0.1), 3)
        resting.eval()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)

    run = recorded(tmp_path, body)
    assert all(each["training"] for each in found(run, "mode"))


def test_an_exception_names_the_module_it_came_out_of(tmp_path: Path) -> None:
    class Fragile(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 5:
                raise RuntimeError("five is too many")
            return x

    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), Fragile()), nn.Linear(6, 4))
    session = brickprof.attach(model, out=tmp_path)

    def body() -> None:
        with session:
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
            model(torch.randn(5, 6))

    with pytest.raises(RuntimeError):
        body()
    run = brickprof.load(session.folder)
    names = {brick["id"]: brick["path"] for brick in found(run, "brick")}
    (raised,) = found(run, "exception")
    assert names[raised["brick"]] == "1.1"


def test_what_the_model_was_given_is_seen_with_a_loss_written_by_hand(tmp_path: Path) -> None:
    def body() -> None:
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            (model(torch.randn(8, 6)) - 1).pow(2).mean().backward()
            optimizer.step()

    seen = found(recorded(tmp_path, body), "targets")
    assert len({each["input"] for each in seen}) == len(seen) == 4
    assert all(each["rows"] == 8 and each["fingerprint"] is None for each in seen)


def test_no_graph_is_held_after_its_backward_began(tmp_path: Path) -> None:
    from brickprof.capture import graph

    held = []

    def body() -> None:
        model = Classifier()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 4, each=lambda *_: held.append(len(graph._walked)))

    recorded(tmp_path, body)
    assert held == [0, 0, 0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_clipping_knows_whether_it_comes_too_late(late: bool, tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = data()
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if late:
                optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if not late:
                optimizer.step()

    seen = found(recorded(tmp_path, body), "clip")
    assert len(seen) == 4 and {each["late"] for each in seen} == {late}


def test_a_default_device_changes_nothing_that_is_recorded(tmp_path: Path) -> None:
    """It is a function mode: torch calls loss functions twice then, one inside the other."""

    def body() -> None:
        torch.manual_seed(0)
        model = Classifier()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=12)
        with torch.no_grad():
            F.cross_entropy(model(data()[0]), data()[1])

    plain = recorded(tmp_path / "plain", body)
    torch.set_default_device("cpu")
    try:
        under = recorded(tmp_path / "under", body)
    finally:
        torch.set_default_device(None)
    for kind in ("criterion", "loss", "targets", "optimizer", "evaluation"):
        assert len(found(under, kind)) == len(found(plain, kind)) > 0, kind


def test_what_torch_reads_for_itself_is_no_read_of_the_script(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        x, y = data()
        for _ in range(6):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            torch.distributions.Categorical(logits=model(x).detach())  # checks its arguments

    run = recorded(tmp_path, body)
    assert found(run, "syncs") and all(each["sites"] == [] for each in found(run, "syncs"))


class WrittenOut(nn.Module):
    """A cross-entropy by hand."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -torch.log_softmax(scores, -1)[torch.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("normalised", [True, False])
def test_a_log_softmax_of_a_softmax_is_seen_in_a_loss_that_is_written_out(tmp_path: Path, normalised: bool) -> None:
    def body() -> None:
        model = Classifier(normalised=normalised)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=6, criterion=WrittenOut())

    run = recorded(tmp_path, body)
    looks = found(run, "shapes")
    assert looks and all((each["squashed"] is not None) is normalised for each in looks)
    causes = [finding.root_cause for finding in brickprof.diagnose(run).findings]
    assert ("double-softmax" in causes) is normalised


def test_an_optimizer_that_is_built_late_is_looked_at(tmp_path: Path) -> None:
    def body() -> None:
        model = Classifier()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=100)
        train(model, torch.optim.SGD(model.head.parameters(), lr=0.1), steps=30)

    run = recorded(tmp_path, body, level="deep")  # else how often is a matter of how busy the machine is
    late = [each for each in found(run, "ownership") if each["step"] >= 100]
    assert len(late) >= 4 and all(each["owned"] == 2 and len(each["unowned"]) == 2 for each in late)


class Averaged(nn.Module):
    """The mean over what was picked, which may be nothing; attention takes places out by minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
        away = torch.zeros(x.shape[:2], dtype=torch.bool)
        away[:, -1] = True
        seen, _ = self.attention(x, x, x, key_padding_mask=away, need_weights=False)
        each = self.out(seen).square().mean(-1) * picked
        return (each.sum(1) / picked.sum(1)).mean()


def test_a_count_of_zero_is_found_behind_a_mask_of_infinities(tmp_path: Path) -> None:
    def body() -> None:
        torch.manual_seed(0)
        model = Averaged()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(6):
            picked = torch.ones(4, 5, dtype=torch.long)
            if step == 4:
                picked[1] = 0
            optimizer.zero_grad()
            model(torch.randn(4, 5, 8), picked).backward()
            optimizer.step()

    told = found(recorded(tmp_path, body), "origin")
    assert (told[0]["step"], told[0]["kind"]) == (4, "division-by-zero")
