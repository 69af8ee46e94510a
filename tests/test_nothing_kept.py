"""What a step made is gone when the script lets it go, without a look of Python's collector: nothing of it is kept, and
nothing is tied to itself. On a device what is kept is memory that the training lacks."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import late
import pytest
import torch

import brickprof
from brickprof.capture import lookout
from tests.test_lookout import Counts


class Mark:
    pass


@pytest.fixture(autouse=True)
def _nobody_collects() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(steps: int, blocks: int, *, clip: bool) -> dict[str, list[int]]:
    """The steps whose input, output, loss or graph still exist at the end, but for the last two."""
    parts = [torch.nn.Linear(16, 16) for _ in range(blocks)]
    model = torch.nn.Sequential(*parts) if blocks > 1 else parts[0]
    optimizer = torch.optim.AdamW(model.parameters())
    host, made = torch.empty(4, 16), {name: [] for name in ("input", "output", "loss", "graph")}
    for _ in range(steps):
        x = torch.randn(4, 16)
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        host.copy_(out.detach(), non_blocking=True)
        host.sum().item()
        mark = loss.grad_fn.metadata["tests"] = Mark()
        for name, value in (("input", x), ("output", out), ("loss", loss), ("graph", mark)):
            made[name].append(weakref.ref(value))
        time.sleep(0.02)
    del mark, value
    return {name: [at for at, each in enumerate(found[:-2]) if each() is not None] for name, found in made.items()}


NOTHING = {name: [] for name in ("input", "output", "loss", "graph")}


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("level", ["light", "standard", "deep"])
@pytest.mark.parametrize("device", ["host", "late", "very late"])
def test_nothing_of_a_step_is_kept(tmp_path, monkeypatch, level, blocks, clip, device):
    if device != "host":
        late.pretend(monkeypatch, 0.001 if device == "late" else 0.015)
        monkeypatch.setattr(lookout, "on_device", lambda tensor: True)
        monkeypatch.setattr(lookout, "Counts", Counts)
    assert alive(4, blocks, clip=clip) == NOTHING
    with brickprof.attach(None, out=tmp_path, level=level):
        assert alive(24, blocks, clip=clip) == NOTHING
