"""Kernel bricks in a run: what is recorded of launches, and what DIM-002 makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from making import Made

from brickprof.contracts.terms import Terms
from brickprof.rules.device import Launched
from brickprof.rules.story import Story
from brickprof.run import Run

SCRIPT = """
import torch
from brickprof.kernels.rmsnorm import RMSNorm
from brickprof.operators import launch

torch.manual_seed(0)
body, norm, head = torch.nn.Linear(8, 16), RMSNorm(16), torch.nn.Linear(16, 2)
model = torch.nn.Sequential(body, norm, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(4, 8)
    loss = torch.nn.functional.mse_loss(model(x), x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run_script(folder, environment):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "brickprof", "run", "-o", "runs", str(script)], cwd=folder, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(root), **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run.open(next((folder / "runs").iterdir()))


def events(run, kind):
    return list(run.events[run.events.kind == kind].fields)


def test_every_launch_is_a_brick(tmp_path):
    run = run_script(tmp_path, {"TRITON_INTERPRET": "1"})
    counted = events(run, "kernels")[-1]["kernels"]
    assert counted["rmsnorm.forward"][0] == counted["rmsnorm.backward"][0] == 6
    (first, *_) = events(run, "kernel")
    assert first["shapes"]["x"] == [4, 16] and first["dtypes"]["x"] == "float32" and first["bytes"] == 4 * 64 * 2
    spans = run.spans[run.spans.brick.astype(str).str.contains("rmsnorm.forward")]
    assert len(spans) >= 3


def test_torch_in_the_place_of_a_kernel_is_told(tmp_path):
    run = run_script(tmp_path, {"BRICKPROF_KERNELS": "torch"})
    (told,) = events(run, "fallback")
    assert told["operation"] == "rmsnorm" and "CUDA" in told["reason"]
    assert events(run, "kernels")[-1]["fallbacks"]["rmsnorm"] == 6


def judged(**fields):
    made = Made()
    made.healthy(5)
    made.event("kernels", 5, **fields)
    story = Story()
    for record in made.records:
        story.feed(record)
    return Launched().judge(story, Terms().contract(Launched.contract))


@pytest.mark.parametrize(
    ("kernels", "verdict"),
    [
        ({"gemm": [100, 3], "rope": [7, 1]}, "PASS"),
        ({"gemm": [100, 65]}, "FAIL"),
        ({"gemm": [100, 56]}, "PASS"),
        ({"gemm": [100, 0]}, "NOT_EVALUATED"),
        ({"gemm": [0, 0]}, "NOT_EVALUATED"),
        ({"gemm": "many"}, "NOT_EVALUATED"),
        ({}, "NOT_EVALUATED"),
    ],
)
def test_binaries_are_few_and_launches_are_some(kernels, verdict):
    assert judged(kernels=kernels, fallbacks={}).verdict.value == verdict
