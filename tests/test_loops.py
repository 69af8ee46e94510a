"""The loops around an update, as a script writes them: what is read of them, and that nothing is run."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import launching
import pytest

from brickprof.capture import loops
from brickprof.run import Run

EPOCHS, STEPS = 3, 40
cfg = SimpleNamespace(steps=7)
table = {"steps": 9}


class Config:
    STEPS = 11


def here() -> list[tuple[str, int | None]]:
    return [(each.over, each.rounds) for each in loops.of_frame(sys._getframe(1))]


def tqdm(items):
    return items


def test_rounds_that_are_plain_to_see():
    inside = 5
    for _ in range(EPOCHS):
        for _ in tqdm(range(2, STEPS * EPOCHS, 2)):
            assert here() == [("range(EPOCHS)", 3), ("tqdm(range(2, STEPS * EPOCHS, 2))", 59)]
    for _ in range(cfg.steps):
        assert here() == [("range(cfg.steps)", 7)]
    for _ in range(table["steps"]):
        assert here()[0][1] == 9
    for _ in range(Config.STEPS):
        assert here()[0][1] == 11
    for _, _ in enumerate((1, 2)):
        assert here()[0][1] == 2
    for _ in range(inside):
        assert here() == [("range(inside)", 5)]
    assert here() == []


def test_rounds_that_are_not(monkeypatch):
    monkeypatch.setattr(loops, "_WITHOUT_A_COPY", False)
    turns, twice = [], 2
    twice += 1

    def given(count):
        for _ in range(count):
            found = here()
        return found

    assert given(3) == [("range(count)", None)]
    for _ in range(twice):
        turns = here()
    assert turns == [("range(twice)", None)]
    while True:
        assert here() == [("while", None)]
        break
    (found,) = [here() for _ in range(1)]
    assert found[-1] == ("range(1)", None)  # written, and not counted
    for _ in iter([1]):
        assert here()[0][1] is None


def test_a_loop_that_is_left_does_not_use_up_what_it_runs_over():
    data = [1, 2]
    for _ in data:
        whole = loops.of_frame(sys._getframe())[0].exhausts
    for _ in data:
        left = loops.of_frame(sys._getframe())[0].exhausts
        if left:
            break
    assert (whole, left) == (True, False)


def test_nothing_is_known_of_code_without_a_source():
    space = {"loops": loops, "sys": sys}
    exec("def f():\n    for _ in range(2):\n        return loops.of_frame(sys._getframe())", space)
    assert [each.rounds for each in space["f"]()] == [None]


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
EPOCHS = 2

def epoch(model, optimizer, loader):
    for x, in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=4)
    for number in range(EPOCHS):
        epoch(model, optimizer, loader)

main()
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the variables of functions are read there")
def test_the_loops_of_a_script_are_recorded_once(tmp_path):
    launching.script(tmp_path, SCRIPT)
    done = launching.run(["t.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.open(launching.recorded(tmp_path))
    (told,) = run.events[run.events.kind == "loops"].fields
    assert [(row["over"], row["rounds"], row["exhausts"]) for row in told["loops"]] == [
        ("range(EPOCHS)", 2, False),
        ("loader", None, True),
    ]
