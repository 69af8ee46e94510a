"""``%%brickprof`` in a real shell and in a real kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ratcheting import contract

from brickprof.capture.cell import Cell
from brickprof.contracts.terms import Terms
from brickprof.run import Run
from brickprof.settings import Settings

EXAMPLE = Path(__file__).parents[1] / "examples" / "notebook.ipynb"

SETUP = """
import random, sys, numpy, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def train(steps):
    for _ in range(steps):
        x = torch.randn(16, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return "trained"
def states():
    return [torch.get_rng_state().tolist()[:16], random.getstate()[1][:4], numpy.random.get_state()[1][:4].tolist()]
def left():
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    from brickprof.capture import hub, patches
    return [sum(hooks), patches.installed(), len(hub.sessions), hub._factory is None, patches._first_call is None]
"""

SESSION = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
out, report = sys.argv[1], {}
shown = []
import IPython.display as public
shell.run_line_magic("load_ext", "brickprof")
from brickprof.notebook import magic
magic._show = lambda what: shown.append(what)
shell.run_cell(open(sys.argv[2]).read())

def cell(words, body):
    done = shell.run_cell(f"%%brickprof --out {out} {words}\\n{body}")
    error = done.error_in_exec or done.error_before_exec
    return None if error is None else [type(error).__name__, str(error)]

space = shell.user_ns
before = space["states"]()
report["first"] = cell("--as first --name tiny", "train(12)\\nlocal = 1")
after = space["states"]()
report["left"] = space["left"]()
report["local"] = space["local"]
first = space["first"]
report["run"] = [first.steps, str(first.path), first is space["_brickprof_run"], first.meta.source]
report["kinds"] = sorted(first.events["kind"].unique())
report["models"] = [e["cls"] for e in first.events[first.events["kind"] == "optimizer_created"]["fields"]]
report["verdicts"] = [shown[-1].verdict.value]
report["saved"] = (first.path / "diagnosis.json").is_file()

space["torch"].set_rng_state(space["torch"].get_rng_state())
wild = "for group in optimizer.param_groups: group['lr'] = 1e9"
report["second"] = cell("", f"{wild}\\ntrain(6)\\nraise KeyError('mine')")
report["verdicts"].append(shown[-1].verdict.value)
report["exceptions"] = [e["type"] for e in space["_brickprof_run"].events.query("kind == 'exception'")["fields"]]
report["left again"] = space["left"]()
report["others"] = "first" in space and space["first"] is first and space["_brickprof_run"] is not first

report["untrained"] = cell("", "1 + 1")
report["verdicts"].append(shown[-1].verdict.value)
report["interrupted"] = cell("", "raise KeyboardInterrupt")
report["displayed"] = len(shown)
report["wrong"] = [cell("--as for", "boom"), cell("--level loud", "boom"), cell("--out /proc/nowhere", "boom"),
                   cell("'", "boom"), cell("", "1 +"), cell("--nothing", "boom")]
report["displayed still"] = len(shown)
report["left at last"] = space["left"]()

space["torch"].manual_seed(5)
space["train"](4)
plain = space["states"]()
space["torch"].manual_seed(5)
cell("--level deep", "train(4)")
report["same"] = plain == space["states"]()

from brickprof.diagnosis import saving
kept, saving.write = saving.write, lambda *_: 1 / 0
report["not judged"] = cell("", "raise KeyError('mine')")
saving.write = kept

import brickprof
from brickprof.capture import patches
with brickprof.attach(space["model"], space["optimizer"], out=out) as outer:
    cell("--as inner", "train(5)")
    report["nested"] = [space["inner"].steps, patches.installed()]
report["nested"] += [brickprof.load(outer.folder).steps, space["left"]()]

shell.run_line_magic("unload_ext", "brickprof")
report["unloaded"] = "brickprof" in shell.magics_manager.magics["cell"]
print("\\n" + json.dumps(report))
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("magic")
    (folder / "session.py").write_text(SESSION)
    (folder / "setup.py").write_text(SETUP)
    done = subprocess.run(
        [sys.executable, "session.py", str(folder / "runs"), "setup.py"],
        capture_output=True, text=True, timeout=240, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stdout": done.stdout}


def test_a_cell_is_recorded_with_models_of_earlier_cells(session):
    assert session["first"] is None and session["local"] == 1
    steps, path, kept, source = session["run"]
    assert steps == 12 and kept and source == "notebook"
    assert Path(path).name.startswith("tiny-") and session["saved"]
    assert {"model", "loss", "optimizer", "grad", "exit"} <= set(session["kinds"])
    assert session["models"] == ["SGD"]
    assert session["verdicts"][0] == "PASS"


def test_the_cells_own_exception_comes_through_after_the_diagnosis(session):
    assert session["second"] == ["KeyError", "'mine'"]
    assert session["exceptions"] == ["KeyError"] and session["verdicts"][1] == "FAIL"
    assert session["others"]


def test_a_diagnosis_that_fails_does_not_hide_the_cells_own_error(session):
    assert session["not judged"] == ["KeyError", "'mine'"]
    assert "brickprof: division by zero Recorded in" in session["stdout"]


@pytest.mark.parametrize("when", ["left", "left again", "left at last"])
def test_nothing_is_left_in_torch(session, when):
    assert session[when] == [0, False, 0, True, True]


def test_a_cell_that_does_not_train_says_so(session):
    assert session["untrained"] is None and session["verdicts"][2] == "VACUOUS"


def test_an_interrupt_is_an_interrupt(session):
    assert session["interrupted"][0] == "KeyboardInterrupt" and session["displayed"] == 4


def test_wrong_words_run_nothing(session):
    kinds = [error[0] for error in session["wrong"]]
    assert kinds == ["UsageError", "UsageError", "UsageError", "UsageError", "SyntaxError", "UsageError"]
    assert session["displayed still"] == session["displayed"]


def test_random_numbers_are_the_cells_own(session):
    assert session["same"] is True


def test_a_cell_inside_an_attachment_takes_nothing_from_it(session):
    assert session["nested"] == [5, True, 5, [0, False, 0, True, True]]


def test_it_can_be_unloaded(session):
    assert session["unloaded"] is False


def test_a_cell_is_judged_on_the_terms_of_the_project(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(contract("max(loss) <= most", most=1))
    chosen = Settings(
        out=str(tmp_path / "runs"), thresholds={"C-OWN-X.most": 2.0}, suppress={"C-BATCH-001": "a toy"},
        contracts=(str(file),),
    )  # fmt: skip
    kept = Terms.recorded(Run.open(Cell(chosen, "cell").run).meta.extra)
    assert kept == Terms.of(chosen)


FORKS = """
import multiprocessing, os, sys
from brickprof.capture.cell import Cell
from brickprof.settings import Settings

chosen, before = Settings(out=sys.argv[1]), list(sys.meta_path)
with Cell(chosen, "nothing"):
    assert sys.meta_path != before
assert sys.meta_path == before and "torch" not in sys.modules

def rank(number):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(number), "2"
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()

def ranks(count):
    children = [multiprocessing.get_context("fork").Process(target=rank, args=(number,)) for number in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0

with Cell(chosen, "forks") as cell:
    import torch
    import torch._dynamo  # any optimizer does: once here, not once in every fork
    torch.set_num_threads(1)
    ranks(2)
assert sys.meta_path == before
seen = sorted(os.listdir(cell.run))
ranks(1)  # the cell is over: nobody records this one
assert sorted(os.listdir(cell.run)) == seen

import brickprof
run = brickprof.load(cell.run)
print(run.steps, len(run.ranks))
"""


def test_a_cell_finds_torch_late_and_forked_ranks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "2"]


@pytest.mark.slow
def test_the_example_notebook_runs_in_a_kernel(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.data for output in outputs if "data" in output]
    cards_shown = [data["text/html"] for data in shown if "brickprof-out" in data.get("text/html", "")]
    assert any("✓ PASS" in card for card in cards_shown) and any("✗ FAIL" in card for card in cards_shown)
    assert sum("application/vnd.plotly.v1+json" in data for data in shown) >= 3
    assert len(list((tmp_path / "brickprof-runs").iterdir())) == 2
