"""Whether torch and Triton have, after a session, every function and method that they had before it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import brickprof

_DESCRIPTORS = (staticmethod, classmethod, property)


def functions() -> dict[tuple[str, str], Any]:
    """Of all modules of torch and Triton, and of all their classes."""
    found: dict[tuple[str, str], Any] = {}
    with warnings.catch_warnings(action="ignore"):  # names that torch would rather not be asked for
        for name, module in list(sys.modules.items()):
            if _looked_at(name) and module is not None:
                for key, value in list(vars(module).items()):
                    found[name, key] = value
                    if isinstance(value, type) and _looked_at(value.__module__):
                        where = f"{value.__module__}.{value.__qualname__}"
                        found |= {(where, inner): each for inner, each in list(vars(value).items())}
        return {key: each for key, each in found.items() if callable(each) or isinstance(each, _DESCRIPTORS)}


def _looked_at(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "triton")


def train(device: str, steps: int = 6) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(steps * 4, 8), torch.arange(steps * 4) % 2)
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()


def left_as_found(out: Path, work: Callable[[], None], **how: Any) -> None:
    """Watches ``work`` three times: what it imports is there from the first on."""
    work()
    with brickprof.attach(None, out=out / "first", **how):
        work()
    before = functions()
    replaced: set[tuple[str, str]] = set()
    for name in ("second", "third"):
        with brickprof.attach(None, out=out / name, **how):
            work()
            during = functions()
            replaced |= {key for key, value in before.items() if during.get(key) is not value}
        after = functions()
        assert [key for key, value in before.items() if after.get(key) is not value] == []
    assert replaced, "a session stands in front of something"
