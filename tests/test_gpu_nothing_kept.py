"""What a step made on a device is gone when the script lets it go, also where torch takes memory piece by piece, as it
does under compute-sanitizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SCRIPT = """
import gc, json, sys, time, weakref
import torch

class Mark:
    pass

gc.collect()
gc.disable()
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
host = torch.empty(4096, 512, pin_memory=True)
made = {name: [] for name in ("input", "output", "loss", "graph")}
for step in range(24):
    x = torch.randn(4096, 512, device="cuda")
    out = model(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    host.copy_(out.detach(), non_blocking=True)
    torch.cuda.current_stream().synchronize()
    host.sum()
    mark = loss.grad_fn.metadata["tests"] = Mark()
    for name, value in (("input", x), ("output", out), ("loss", loss), ("graph", mark)):
        made[name].append(weakref.ref(value))
    time.sleep(float(sys.argv[1]))
del mark, value
print(json.dumps({name: [at for at, each in enumerate(found[:-2]) if each()] for name, found in made.items()}))
"""


def alive(folder: Path, *flags: str, seconds: float, caching: bool, watched: bool = True) -> dict[str, list[int]]:
    (folder / "t.py").write_text(SCRIPT.replace("if each()]", "if each() is not None]"))
    root = str(Path(__file__).parents[1])
    watching = ["-m", "brickprof", "run", "--no-live", "-o", str(folder / "runs"), *flags] if watched else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    environment |= {} if caching else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        [sys.executable, *watching, str(folder / "t.py"), str(seconds)], capture_output=True, text=True, timeout=200,
        env=environment, cwd=folder, check=False,
    )  # fmt: skip
    found: dict[str, list[int]] = json.loads(next(line for line in done.stdout.splitlines() if line[:1] == "{"))
    return found


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
@pytest.mark.parametrize("flags", [[], ["--level", "deep"], ["--sync-check"]], ids=" ".join)
def test_nothing_of_a_step_is_kept_on_a_device(tmp_path, flags, seconds, caching):
    plain = alive(tmp_path, seconds=seconds, caching=caching, watched=False)
    assert alive(tmp_path, *flags, seconds=seconds, caching=caching) == plain
