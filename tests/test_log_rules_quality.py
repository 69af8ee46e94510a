"""Logs without a loss: perplexities are losses, accuracies grow, fall or stay a guess, and what is missing is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from logs_by_hand import NAN, noise

from brickprof.analysis import analyse


def judged(folder, header: str, *columns):
    lines = [header] + [",".join(f"{value:.6g}" for value in row) for row in zip(*columns, strict=True)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (run,) = analyse([folder / "metrics.csv"]).runs
    return run


def grave(run) -> list[tuple[str, int]]:
    return [(one.contract, one.first_step) for one in run.diagnosis.findings if one.severity.value != "info"]


EPOCHS = np.arange(1, 41)
GROWS = 0.95 - 0.8 * np.exp(-EPOCHS / 8)


def test_an_accuracy_that_grows_is_learning(tmp_path):
    run = judged(tmp_path, "epoch,accuracy,val_accuracy", EPOCHS, GROWS, GROWS - 0.05)
    assert run.diagnosis.verdict == "PASS" and run.diagnosis.findings == () and run.steps == 40


@pytest.mark.parametrize("name", ["wer", "cer", "fid"])
def test_a_measure_that_falls_with_quality_is_learning(tmp_path, name):
    assert judged(tmp_path, f"epoch,val_{name}", EPOCHS, 90 - 70 * GROWS).diagnosis.verdict == "PASS"


def test_an_evaluation_loss_alone_is_enough(tmp_path):
    assert judged(tmp_path, "epoch,val_loss", EPOCHS, 2 - GROWS).diagnosis.verdict == "PASS"


def test_a_perplexity_is_a_loss(tmp_path):
    at = np.arange(1, 300)
    values = np.exp(2 + 4 * np.exp(-at / 40))
    run = judged(tmp_path, "step,ppl", at, values)
    assert run.diagnosis.verdict == "PASS" and run.best[1] == pytest.approx(math.log(values.min()), rel=1e-4)
    values[200:] = NAN
    assert grave(judged(tmp_path, "step,ppl", at, values)) == [("C-TRAINSTABLE-001", 201)]


def test_where_there_is_a_loss_a_perplexity_is_none(tmp_path):
    at = np.arange(1, 100)
    run = judged(tmp_path, "step,loss,ppl", at, 3 + 1 / at, np.exp(3 + 1 / at))
    assert [row["name"] for row in run.holds if row["role"] == "loss"] == ["loss"]


def test_a_number_below_one_is_no_perplexity(tmp_path):
    run = judged(tmp_path, "step,ppl", EPOCHS, 0.5 + 0.1 / EPOCHS)
    assert [row["name"] for row in run.holds if row["role"] == "loss"] == []


def test_an_accuracy_that_is_lost_for_good_is_told(tmp_path):
    lost = np.where(EPOCHS < 30, GROWS, 0.1)
    run = judged(tmp_path, "epoch,accuracy,val_accuracy", EPOCHS, lost, lost)
    assert grave(run) == [("C-LEARN-001", 30)]
    assert run.diagnosis.findings[0].root_cause == "undetermined"


def test_a_dip_that_passes_is_not(tmp_path):
    dip = np.where((EPOCHS > 20) & (EPOCHS < 23), 0.1, GROWS)
    assert grave(judged(tmp_path, "epoch,accuracy", EPOCHS, dip)) == []


def test_accuracies_of_a_guess_are_told(tmp_path):
    run = judged(tmp_path, "epoch,accuracy", EPOCHS, 0.1 + noise(1, 40, 0.001))
    assert grave(run) == [("C-LEARN-001", 1)] and "nothing is learnt" in run.diagnosis.findings[0].symptom


def test_a_high_and_flat_accuracy_decides_nothing_and_says_what_is_missing(tmp_path):
    run = judged(tmp_path, "epoch,accuracy", EPOCHS, 0.91 + noise(2, 40, 0.004))
    assert run.diagnosis.verdict == "VACUOUS" and run.diagnosis.findings == ()
    assert "no loss" in str(run.diagnosis) and "accuracy" in str(run.diagnosis)
