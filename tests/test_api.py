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
