"""The evidence that rules reason from: what an ordinary training loop leaves in the journal, in the words of
``brickprof.records``. All through ``brickprof.attach``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
