"""Embedding tables that were frozen because nobody said otherwise, and samples that see every column."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import brickprof
from brickprof.capture import tensors
from brickprof.capture.taps import tables


def sines(rows: int, width: int) -> torch.Tensor:
    place, turn = torch.arange(rows).float()[:, None], torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
    return torch.cat([torch.sin(place * turn), torch.cos(place * turn)], 1)


def trained(rows: int, width: int) -> torch.Tensor:
    """Rows around a few topics, as words are."""
    made = torch.Generator().manual_seed(0)
    topics = torch.randn(5, width, generator=made)
    return topics[torch.arange(rows) % 5] + 0.5 * torch.randn(rows, width, generator=made)


@pytest.mark.parametrize(
    ("table", "noise"),
    [
        (torch.randn(300, 24, generator=torch.Generator().manual_seed(1)), True),
        (0.02 * torch.randn(5000, 200, generator=torch.Generator().manual_seed(2)), True),
        (torch.linalg.qr(torch.randn(400, 16, generator=torch.Generator().manual_seed(3)))[0], True),
        (sines(512, 32), False),
        (trained(600, 48), False),
        (torch.rand(300, 24, generator=torch.Generator().manual_seed(4)), False),
        (torch.zeros(100, 8), False),
        (torch.eye(64), False),
    ],
    ids=["normal", "small", "orthogonal", "sines", "trained", "uniform", "zeros", "one-hot"],
)
def test_noise_has_no_direction(table, noise):
    assert tables._noise(table) is noise


def test_only_what_was_frozen_by_default_is_kept(tmp_path):
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.silent = nn.Embedding.from_pretrained(rows)
            self.asked = nn.Embedding.from_pretrained(rows, freeze=True)
            self.bag = nn.EmbeddingBag.from_pretrained(rows, True)
            self.head = nn.Linear(8, 1)

        def forward(self, ids):
            return self.head(self.silent(ids) + self.asked(ids) + self.bag(ids[:, None])).sum()

    with brickprof.attach(None, out=tmp_path) as watching:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(4)).backward()
            optimizer.step()
    run = brickprof.load(watching.folder)
    names = run.tensors.set_index("id" if "id" in run.tensors else run.tensors.index.name)["name"]
    told = [fields["noise"] for fields in run.events[run.events.kind == "ownership"].fields]
    assert {names[number] for number in told[-1]} == {"silent.weight"}
    assert type(model.silent) is nn.Embedding and not model.silent.weight.requires_grad


def test_from_pretrained_is_a_class_method_again(tmp_path):
    with brickprof.attach(None, out=tmp_path):
        pass

    class Mine(nn.Embedding):
        pass

    assert type(Mine.from_pretrained(torch.ones(4, 2))) is Mine


@pytest.mark.parametrize("shape", [(96, 8), (64, 64), (7, 12, 4), (1000,), (3, 1)])
def test_a_sample_of_elements_sees_other_columns_than_the_first(shape):
    columns = torch.arange(shape[-1]).expand(shape).contiguous()
    seen = tensors.strided(columns, 32)
    assert len(seen) == min(32, columns.numel())
    if shape[-1] > 1:
        assert len(set(seen.tolist())) > 1
