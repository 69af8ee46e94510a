"""What a column is, from its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.logs.reading import names
from brickprof.logs.reading.model import ROLES

KNOWN = {
    "step": ["step", "iteration", "global_step", "iter", "train/global_step", "trainer/global_step", "num_updates"],
    "epoch": ["epoch", "train/epoch"],
    "loss": [
        "loss",
        "train_loss",
        "train/loss",
        "lm loss",
        "training loss",
        "trl",
        "loss_step",
        "train/box_loss",
        "closs",
    ],
    "eval_loss": ["val_loss", "eval_loss", "eval/loss", "validation loss", "valid_nll_loss", "val", "tel"],
    "lr": ["lr", "learning_rate", "learning rate", "lr-AdamW/pg1", "lr/pg0"],
    "grad_norm": ["grad_norm", "grad norm", "norm", "gnorm", "train/grad_norm", "gradient_norm"],
    "scale": ["loss scale", "loss_scale", "grad_scale", "scale"],
    "skipped": ["number of skipped iterations", "skipped"],
    "nonfinite": ["number of nan iterations"],
    "step_seconds": ["step_time", "elapsed time per iteration (ms)", "dt", "step_avg_ms"],
    "throughput": ["tokens_per_sec", "tok/s", "tps", "wps", "mfu", "train_samples_per_second", "TFLOPs"],
    "memory": ["memory", "gpu_mem", "memory/max_reserved(GiB)"],
    "quality": ["eval_wer", "accuracy", "metrics/mAP50(B)", "eval_accuracy", "hella"],
    "time": ["timestamp", "wall_time"],
    "other": ["lambda_adv", "momentum", "weight"],
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, known in KNOWN.items() for name in known])
def test_role(role, name):
    assert names.role(name) == role


@given(st.text(max_size=60))
def test_any_name_has_a_role(name):
    assert names.role(name) in ROLES


@pytest.mark.parametrize(
    ("found", "main"),
    [
        (["train_loss", "train_domain_loss", "train_target_task_loss"], "train_loss"),
        (["aux_loss", "lm loss"], "lm loss"),
        (["loss_a", "loss_b"], None),
        ([], None),
    ],
)
def test_the_loss_that_is_minimised(found, main):
    assert names.main_loss(found) == main


@pytest.mark.parametrize(
    ("kind", "is_one"), [("eval", True), ("validation/epoch", True), ("train", False), ("", False)]
)
def test_rows_of_an_evaluation(kind, is_one):
    assert names.evaluates(kind) is is_one


def test_less_is_better_of_errors_and_losses():
    assert names.falls("eval_wer") and names.falls("val_loss") and not names.falls("accuracy")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Эпоха", "epoch"), ("L-BFGS Итерация", "other"), ("Итерация", "step"), ("Epoche", "epoch"),
        ("Verlust", "loss"), ("val Verlust", "eval_loss"), ("损失", "loss"), ("에포크", "epoch"), ("Время", "other"),
        ("lr=0.1 bs=8 - train/loss", "loss"), ("loss (lr=0.1)", "loss"), ("lr-sweep-3 - eval/loss", "eval_loss"),
        ("Time cost", "other"), ("cost", "loss"),
    ],
)  # fmt: skip
def test_other_languages_settings_and_what_time_costs(name, role):
    assert names.role(name) == role
