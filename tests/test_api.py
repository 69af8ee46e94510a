"""The public face: what it holds, that it is lazy, and that reading a run takes one call."""

from __future__ import annotations

import subprocess
import sys

import pytest
from making import Made

import brickprof

PUBLIC = [
    "Diagnosis", "Run", "Session", "__version__", "analyze", "attach", "brick", "diagnose", "load", "scaling_fit",
]  # fmt: skip


def test_all_is_what_there_is():
    assert sorted(brickprof.__all__) == sorted(PUBLIC)
    assert dir(brickprof) == sorted(PUBLIC)
    for name in brickprof.__all__:
        assert getattr(brickprof, name) is not None


def test_what_is_not_public_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        brickprof.analyse  # noqa: B018


def test_importing_it_imports_nothing_heavy():
    program = (
        "import sys, brickprof; "
        "print(sorted({n.split('.')[0] for n in sys.modules} & "
        "{'torch', 'pandas', 'numpy', 'pyarrow', 'rich', 'typer', 'yaml', 'opentelemetry'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_reading_a_run_needs_no_torch(tmp_path):
    made = Made()
    made.healthy(5)
    folder = made.run().save(tmp_path / "run")
    program = (
        "import sys, brickprof; "
        f"run = brickprof.load({str(folder)!r}); print(len(run.loss), brickprof.diagnose(run).verdict); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["5", "PASS", "False"]


def test_diagnose_takes_a_path_or_a_run(tmp_path):
    made = Made()
    made.healthy(5)
    run = made.run()
    folder = run.save(tmp_path / "run")
    assert brickprof.diagnose(folder).verdict == brickprof.diagnose(run).verdict == "PASS"
    assert isinstance(brickprof.diagnose(str(folder)), brickprof.Diagnosis)


def test_a_training_that_cannot_be_watched_goes_on(tmp_path, monkeypatch):
    """Whatever is wrong inside is written down; nothing of it reaches the training, and nothing stays in torch."""
    torch = pytest.importorskip("torch")
    from brickprof.capture import claim, hub, patches

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claim, "claim", full)
    model = torch.nn.Linear(2, 1)
    before = patches.installed(), list(hub.sessions)
    with brickprof.attach(model, out=tmp_path) as session:
        model(torch.ones(3, 2)).sum().backward()
    assert (patches.installed(), list(hub.sessions)) == before
    (note,) = brickprof.load(session.folder).events.query("kind == 'note'")["fields"]
    assert "No space left on device" in note["text"]
    assert session.diagnose().verdict == "VACUOUS"


@pytest.mark.parametrize("signal", ["exception", "close"])
def test_a_session_that_fails_at_the_end_does_not_hide_the_trainings_own_error(tmp_path, monkeypatch, signal):
    torch = pytest.importorskip("torch")
    from brickprof.capture.session import Session

    ends = Session.close

    def fails(self, *_):
        ends(self)
        raise RuntimeError("ours")

    monkeypatch.setattr(Session, signal, fails)
    with pytest.raises(KeyError, match="mine"), brickprof.attach(torch.nn.Linear(2, 1), out=tmp_path):
        raise KeyError("mine")
