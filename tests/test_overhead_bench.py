"""The benchmarks run and say what they promise to. Nothing is timed here: a busy machine proves nothing."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_overhead_compares_a_watched_run_with_two_plain_ones(tmp_path):
    file = tmp_path / "bench.json"
    printed = run("overhead.py", "--quick", "--levels", "standard", "--rounds", "2", "--json", str(file), cwd=tmp_path)
    (result,) = json.loads(file.read_text())["results"]
    assert result["case"] == "host-bound"
    assert result["rounds"] == 2
    assert [row["variant"] for row in result["ratios"]] == ["standard"]
    for row in (result["baselines"], *result["ratios"]):
        assert 0 < row["low"] <= row["median"] <= row["high"]
    recorded = result["recorded"]["standard"]
    assert "gradients" in recorded["costs"] and all(microseconds >= 0 for microseconds in recorded["costs"].values())
    assert 0 < recorded["measured"] <= recorded["judged"] <= recorded["steps"] and recorded["looked_out"] == 0
    assert "standard" in printed
    assert "gradients" in printed


@pytest.mark.slow
def test_two_plain_runs_alone_tell_how_quiet_the_machine_is(tmp_path):
    file = tmp_path / "bench.json"
    run("overhead.py", "--quick", "--levels", "", "--no-peers", "--rounds", "2", "--json", str(file), cwd=tmp_path)
    (result,) = json.loads(file.read_text())["results"]
    assert not result["ratios"] and not result["recorded"] and result["rounds"] == 2
    assert set(result["seconds"]) == {"plain", "plain, again"} and result["baselines"]["low"] > 0


@pytest.mark.parametrize(
    ("low", "high", "found", "told"),
    [(0.997, 1.002, 1.005, "✓"), (0.997, 1.002, 1.012, "✗"), (0.98, 1.005, 1.005, "~"), (0.999, 1.03, 1.02, "~"),
     (0.98, 1.03, 1.2, "✗"), (0.98, 1.03, 0.97, "✓"), (0.994, 1.0, 1.012, "✗")],
)  # fmt: skip
def test_no_promise_is_kept_or_broken_by_what_two_plain_runs_differ_by(monkeypatch, low, high, found, told):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = runpy.run_path(str(BENCHMARKS / "results.py"))
    ratios = [bench["Ratio"](name, at, at, at, at, at, at, at) for name, at in (("standard", found), ("deep", 20.0))]
    baselines = bench["Ratio"]("plain, again", 1.0, low, high, 1.0, 1.0, 1.0, 1.0)
    result = bench["Result"]("124m", 28.0, 70, 12, 1, baselines, ratios)
    assert bench["verdict"](result, found, 1.01) == told
    assert [line[:7] for line in bench["untold"]([result])] == (["~ 124m:"] if told == "~" else [])


def test_journal_reports_a_cost_for_every_kind_of_record(tmp_path):
    printed = run("journal.py", "--count", "200", "--repeats", "2", cwd=tmp_path)
    for call in ("event", "span", "sample"):
        assert call in printed


def test_the_training_under_the_bench_knows_nothing_of_brickprof():
    assert "import brickprof" not in (BENCHMARKS / "train_case.py").read_text()
    assert "from brickprof" not in (BENCHMARKS / "train_case.py").read_text()


def test_the_hooks_of_a_peer_read_every_block_in_both_directions_and_go():
    case = runpy.run_path(str(BENCHMARKS / "train_case.py"))
    training, largest = case["Training"](case["CASES"]["host-bound"]), {}
    with case["blocks_hooked"](training.model.blocks, largest):
        training.step()
    assert len(largest) == 2 * len(training.model.blocks) and all(value > 0 for value in largest.values())
    largest.clear()
    training.step()
    assert largest == {}
