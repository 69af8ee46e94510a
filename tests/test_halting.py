"""A run that is broken is stopped when the user asked for that, and only then."""

from __future__ import annotations

import time

import launching
import pytest
import torch

from brickprof.contracts.terms import Terms
from brickprof.launch.judging import Judge

LOOP = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
step = 0
try:
    while step < STEPS:
        loss = (model(torch.randn(8, 4)) ** 2).mean()
        if step > 60:
            loss = loss * FACTOR
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.005)
except KeyboardInterrupt:
    torch.save({"step": step, "model": model.state_dict()}, "last.pt")
    print("saved", step, flush=True)
    raise
print("ended", step, flush=True)
"""


def loop(folder, *, steps, factor):
    launching.script(folder, LOOP.replace("STEPS", str(steps)).replace("FACTOR", factor))


def test_a_broken_run_is_stopped_between_two_steps_and_can_save(tmp_path):
    loop(tmp_path, steps=20_000, factor="float('nan')")
    done = launching.run(["--halt-on", "error", "t.py"], tmp_path, timeout=200)
    assert done.returncode == 130  # the script's own: it let the interrupt through
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    assert 60 < saved["step"] < 20_000
    assert "halting the script" in done.stderr
    (halt,) = launching.events(tmp_path, "halt")
    assert halt.fields["ranks"] == [0]


def test_a_script_that_swallows_the_interrupt_ends_with_1(tmp_path):
    text = (
        LOOP.replace("STEPS", "20000")
        .replace("FACTOR", "float('nan')")
        .replace("    raise\n", "    raise SystemExit(0)\n")
    )
    launching.script(tmp_path, text)
    done = launching.run(["--halt-on", "error", "t.py"], tmp_path, timeout=200)
    assert done.returncode == 1


@pytest.mark.parametrize(("flags", "factor"), [(["--halt-on", "error"], "1.0"), ([], "float('nan')")])
def test_no_other_run_is_stopped(tmp_path, flags, factor):
    loop(tmp_path, steps=300, factor=factor)
    done = launching.run([*flags, "t.py"], tmp_path, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended 300\n")


def test_a_judge_sees_while_the_run_goes_on_what_is_seen_afterwards(tmp_path):
    loop(tmp_path, steps=200, factor="float('nan')")
    assert launching.run(["t.py"], tmp_path).returncode == 0
    from brickprof.diagnosis import diagnose
    from brickprof.run import Run

    folder = launching.recorded(tmp_path)
    live = Judge(folder, Terms()).look(time.monotonic())
    after = diagnose(Run.open(folder))
    assert [(f.contract, f.root_cause, f.first_step) for f in live.findings] == [
        (f.contract, f.root_cause, f.first_step) for f in after.findings
    ]
