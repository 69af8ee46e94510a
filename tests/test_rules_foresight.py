"""What a sequence model is asked for and what it sees: from real graphs to the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brickprof
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.rules import foresight
from brickprof.rules.story import Story
from brickprof.run import Run

VOCAB, WIDTH, PLACES = 24, 16, 12
Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def kernel(*, causal: bool) -> Mix:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def masked(mask: torch.Tensor) -> Mix:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_hand(mask: torch.Tensor) -> Mix:
    return lambda q, k, v: (q @ k.transpose(-1, -2) / 4 + mask).softmax(-1) @ v


FUTURE = torch.full((PLACES, PLACES), float("-inf")).triu(1)
SHIFTED = torch.full((PLACES, PLACES), float("-inf")).triu(2)


class Model(nn.Module):
    def __init__(self, mix: Mix, places: bool = True) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Parameter(torch.randn(PLACES, WIDTH) * places)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)
        self.mix = mix

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place[: ids.shape[1]]
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.head(x + self.mix(q, k, v).transpose(1, 2).flatten(2))


class Summary(nn.Module):
    """An encoder that sees everything and a decoder that is fed what it should say, one place late."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.source, self.target, self.head = (
            nn.Embedding(VOCAB, WIDTH), nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB),
        )  # fmt: skip

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.source(source), self.target(target), tgt_mask=FUTURE))


def judged(
    tmp_path: Path, loss: Callable[[], torch.Tensor], model: nn.Module, rule: type = foresight.Causal
) -> ContractResult:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=tmp_path):
        for _ in range(6):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    (folder,) = tmp_path.iterdir()
    return rule().judge(Story.of(Run.open(folder)), registry.find(rule.contract))


def lines(rows: int = 6) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, PLACES + 1))


def next_token(model: nn.Module) -> Callable[[], torch.Tensor]:
    def loss() -> torch.Tensor:
        line = lines()
        return F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())

    return loss


@pytest.mark.parametrize(
    ("mix", "leaks"),
    [
        (kernel(causal=True), False),
        (kernel(causal=False), True),
        (masked(FUTURE), False),
        (masked(FUTURE == 0), False),
        (masked(SHIFTED), True),
        (by_hand(FUTURE), False),
        (by_hand(SHIFTED), True),
        (by_hand(torch.zeros(PLACES, PLACES)), True),
    ],
)
def test_a_next_token_model_must_not_see_the_next_token(mix: Mix, leaks: bool, tmp_path: Path) -> None:
    model = Model(mix)
    result = judged(tmp_path, next_token(model), model)
    assert result.verdict is (Verdict.FAIL if leaks else Verdict.PASS), result
    if leaks:
        (found,) = result.violations
        assert found.cause == "causal-leak" and found.severity is Severity.ERROR and found.brick == "qkv"


@pytest.mark.parametrize(("shift", "wrong"), [(0, True), (-1, True), (2, True), (1, False)])
def test_targets_are_one_place_ahead(shift: int, wrong: bool, tmp_path: Path) -> None:
    model = Model(kernel(causal=True))

    def loss() -> torch.Tensor:
        line = torch.randint(VOCAB, (6, PLACES + 4))
        return F.cross_entropy(model(line[:, 2 : 2 + PLACES]).transpose(1, 2), line[:, 2 + shift : 2 + PLACES + shift])

    result = judged(tmp_path, loss, model)
    assert result.verdict is (Verdict.FAIL if wrong else Verdict.PASS), result
    if wrong:
        assert result.violations[0].cause == "labels-misaligned"


def test_a_shift_inside_the_model_with_padding_left_out_is_fine(tmp_path: Path) -> None:
    model = Model(kernel(causal=True))

    def loss() -> torch.Tensor:
        line = lines()[:, :-1]
        labels = line.clone()
        labels[:, -3:] = -100
        return F.cross_entropy(model(line)[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))

    assert judged(tmp_path, loss, model).verdict is Verdict.PASS


def test_an_autoencoder_may_see_everything(tmp_path: Path) -> None:
    model = Model(kernel(causal=False))

    def loss() -> torch.Tensor:
        line = lines()[:, :-1]
        return F.cross_entropy(model(line).flatten(0, 1), line.flatten())

    assert judged(tmp_path, loss, model).verdict is Verdict.NOT_EVALUATED


def test_a_masked_token_model_may_see_everything(tmp_path: Path) -> None:
    model = Model(kernel(causal=False))

    def loss() -> torch.Tensor:
        line = lines()[:, :-1]
        hidden = torch.rand(line.shape) < 0.3
        labels = line.masked_fill(~hidden, -100)
        return F.cross_entropy(model(line.masked_fill(hidden, 0)).flatten(0, 1), labels.flatten())

    assert judged(tmp_path, loss, model).verdict is Verdict.NOT_EVALUATED


def test_an_encoder_may_see_everything_while_the_decoder_does_not(tmp_path: Path) -> None:
    model = Summary()

    def loss() -> torch.Tensor:
        said = lines()
        return F.cross_entropy(model(said[:, 1:], said[:, :-1]).flatten(0, 1), said[:, 1:].flatten())

    assert judged(tmp_path, loss, model).verdict is Verdict.PASS


@pytest.mark.parametrize("places", [True, False])
def test_keys_tell_places_apart_or_that_is_worth_knowing(places: bool, tmp_path: Path) -> None:
    model = Model(kernel(causal=True), places)
    model.place.requires_grad_(places)
    result = judged(tmp_path, next_token(model), model, foresight.Places)
    assert [found.severity for found in result.violations] == ([] if places else [Severity.INFO])
    assert result.verdict is Verdict.PASS or not places


def test_no_tokens_is_no_verdict(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    loss = lambda: F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))  # noqa: E731
    assert judged(tmp_path, loss, model).verdict is Verdict.NOT_EVALUATED


@pytest.mark.parametrize("called", [True, False])
def test_a_rotation_that_is_built_and_never_called(called: bool, tmp_path: Path) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            angle = torch.outer(torch.arange(PLACES), 10.0 ** -torch.arange(0, 1, 2 / (WIDTH // 2)))
            self.register_buffer("cos", angle.cos().repeat(1, 2))
            self.register_buffer("sin", angle.sin().repeat(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            return x * self.cos + torch.cat([-b, a], -1) * self.sin

    rotary = Rotary()

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = (rotary(q), rotary(k)) if called else (q, k)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    model = Model(mix, places=False)
    model.place.requires_grad_(False)
    model.rotary = rotary
    result = judged(tmp_path, next_token(model), model, foresight.Places)
    if called:
        assert result.verdict is Verdict.PASS
        return
    (found,) = result.violations
    assert (found.severity, found.cause, found.brick) == (Severity.WARNING, "silent-fallback", "rotary")
