"""What real logs have shown to be wrong with a training, in series of our own making."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brickprof import logs
from brickprof.diagnosis import diagnose
from brickprof.logs.reading.gather import Gathering
from brickprof.logs.reading.model import block
from brickprof.logs.reading.to_run import to_run


def judged(*blocks):
    gathering = Gathering("made.csv", "csv")
    gathering.take(blocks)
    return diagnose(to_run([gathering.log()]))


def told(diagnosis):
    return [(one.root_cause, one.first_step) for one in diagnosis.findings if one.severity.value != "info"]


def epochs(count, **columns):
    return block(np.arange(1, count + 1), {"epoch": np.arange(1, count + 1), **columns})


NOISE = np.random.default_rng(0)


def test_a_loss_that_falls_and_loses_it_all_in_the_last_third():
    good = np.linspace(6.0, 2.2, 17) + NOISE.normal(0, 0.05, 17)
    found = judged(epochs(23, loss=np.concatenate([good, 4.2 + NOISE.normal(0, 0.04, 6)])))
    assert len(told(found)) == 1 and 14 <= told(found)[0][1] <= 18


def test_measures_that_stay_at_nothing():
    zeros = np.zeros(40)
    found = judged(
        epochs(40, **{"train/loss": 3 + NOISE.normal(0, 0.2, 40), "metrics/mAP50": zeros, "metrics/recall": zeros})
    )
    assert told(found) == [("plateau", 1)] and "stayed exactly 0" in found.findings[0].symptom


@pytest.mark.parametrize("late", [5, 39])
def test_measures_that_wake_up_late_are_no_fault(late):
    quality = np.where(np.arange(40) >= late, 0.2, 0.0)
    assert told(judged(epochs(40, **{"train/loss": np.linspace(5, 2, 40), "metrics/mAP50": quality}))) == []


def test_an_accuracy_of_one_half_with_the_loss_of_a_guess():
    half = 0.5 + NOISE.uniform(-0.03, 0.03, 33)
    found = judged(epochs(33, loss=1.5 + NOISE.normal(0, 0.3, 33), accuracy=half, val_accuracy=half[::-1]))
    assert told(found) == [("plateau", 1)]


def test_an_adversary_that_is_meant_to_guess_is_no_fault():
    half = 0.5 + NOISE.uniform(-0.03, 0.03, 33)
    assert told(judged(epochs(33, train_loss=np.linspace(2, 0.8, 33), val_domain_acc=half))) == []


def test_a_loss_without_a_floor():
    found = judged(epochs(40, loss=-3e4 * np.geomspace(1, 2000, 40)))
    assert told(found) == [("loss-input-mismatch", 1)]


@pytest.mark.parametrize(
    "values", [-np.linspace(100, 3000, 40), -np.geomspace(1, 900, 40), -2.0 - NOISE.normal(0, 0.1, 40)]
)
def test_likelihoods_below_zero_are_no_fault(values):
    assert told(judged(epochs(40, loss=values))) == []


def test_no_evaluation_as_good_as_the_first_one():
    later = 3.5 + NOISE.uniform(-0.3, 0.5, 19)
    found = judged(epochs(20, val_loss=np.concatenate([[2.5], later])))
    assert told(found) == [("undetermined", 2)]


def test_evaluations_that_rise_by_factors():
    assert told(judged(epochs(4, val_loss=[0.01, 0.026, 0.056, 0.108]))) == [("undetermined", 2)]


def test_evaluations_that_wander_are_no_fault():
    assert told(judged(epochs(12, val_loss=1.0 + NOISE.uniform(-0.1, 0.1, 12)))) == []


def test_an_evaluation_that_is_nan_now_and_then_is_of_the_first_time():
    values = np.full(20, 0.03)
    values[[8, 10, 16, 17, 18, 19]] = math.nan
    found = judged(epochs(20, train_loss=np.linspace(0.1, 0.02, 20), val_loss=values))
    assert told(found) == [("undetermined", 9)] and "6 of 20" in found.findings[0].symptom


def test_a_norm_that_was_calm_long_ago_does_not_blame_the_data():
    steps = np.arange(50, 501, 50)
    losses = np.where(steps >= 300, math.nan, 1.5 - steps / 500)
    norms = np.where(steps >= 300, math.nan, 7.0)
    found = judged(block(steps, {"step": steps, "loss": losses, "grad_norm": norms}))
    assert told(found) == [("undetermined", 300)]


def test_an_epoch_that_is_nan_from_the_first_is_not_before_any_update():
    found = judged(epochs(3, train_loss=[math.nan] * 3, val_loss=[math.nan] * 3))
    assert told(found) == [("undetermined", 1)] and "before any update" not in found.findings[0].symptom


ULTRALYTICS = """
      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
        1/3      10.1G      1.777      2.573      1.302         79        640: 100%|##########| 298/298 [08:35<00:00]
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|##########| 38/38
                   all       1189       4779       0.34     0.0303     0.0157    0.00773

      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
        2/3      10.4G      1.834       2.23      1.308         60        640:  50%|#####     | 149/298 [04:33<04:33]\r\
        2/3      10.4G      1.734       2.13      1.308         60        640: 100%|##########| 298/298 [08:33<00:00]
                   all       1189       4779      0.371     0.0477     0.0218     0.0118
"""


def test_what_ultralytics_prints(tmp_path):
    file = tmp_path / "out.txt"
    file.write_text(ULTRALYTICS)
    log = logs.read(file)
    assert log.format == "ultralytics_text"
    boxes, quality = log.series["train/box_loss"], log.series["metrics/mAP50"]
    assert (boxes.steps.tolist(), boxes.values.tolist()) == ([1, 2], [1.777, 1.734])
    assert quality.values.tolist() == [0.0157, 0.0218] and log.series["GPU_mem"].values[0] == 10.1e9


def test_full_bars_without_an_epoch_count_as_rows(tmp_path):
    file = tmp_path / "out.txt"
    rows = [
        f"15/15 [==============================] - 115s 7s/step - loss: {3 - n / 10:.4f} - accuracy: 0.5"
        for n in range(6)
    ]
    file.write_text("\n".join(rows) + "\n")
    assert logs.read(file).series["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_nan_for_no_evaluation_in_this_row_is_no_fault():
    value = np.where(np.arange(300) % 50 == 0, np.linspace(3, 1, 300), math.nan)
    assert told(judged(epochs(300, loss=np.linspace(3, 1, 300), val_loss=value))) == []


def test_rows_of_training_and_of_evaluation_that_leave_each_other_out_are_no_fault():
    evaluates = np.arange(300) % 50 == 49
    falling = np.linspace(3, 1, 300)
    columns = {"train_loss": np.where(evaluates, math.nan, falling), "val_loss": np.where(evaluates, falling, math.nan)}
    assert told(judged(epochs(300, **columns))) == []


def test_nan_to_the_end_is_no_gap():
    value = np.where(np.arange(300) % 50 == 0, 1.0, math.nan)
    value[150:] = math.nan
    found = judged(epochs(300, loss=np.linspace(3, 1, 300), val_loss=value))
    assert len(told(found)) == 1


def test_a_rate_in_too_few_digits_is_no_fault():
    steps = np.arange(0, 3000, 10)
    falling = 10.8 * np.exp(-steps / 2000) + NOISE.normal(0, 0.05, len(steps))
    assert told(judged(block(steps, {"step": steps, "loss": falling, "lr": np.zeros(len(steps))}))) == []


def test_a_value_loss_that_grows_with_the_reward_is_no_fault():
    steps = np.arange(1, 101) * 2048
    columns = {
        "rollout/ep_rew_mean": np.linspace(20, 240, 100), "train/loss": np.linspace(9, 36, 100),
        "train/value_loss": np.linspace(18, 72, 100), "train/entropy_loss": np.linspace(-1.4, -0.7, 100),
    }  # fmt: skip
    assert told(judged(block(steps, {"time/total_timesteps": steps, **columns}))) == []


def test_the_first_batches_alone_do_not_say_that_nothing_is_learnt():
    """Rows that nothing counts may be batches: forty of them at the level of a guess are only a beginning."""
    noise = np.random.default_rng(3)
    few, many = (math.log(65) + noise.normal(0, 0.02, count) for count in (40, 400))
    assert told(judged(block(np.arange(1, 41), {"loss": few}))) == []
    assert [cause for cause, _ in told(judged(block(np.arange(1, 401), {"loss": many})))] == ["plateau"]


def test_two_models_one_after_another_are_two_attempts(tmp_path):
    lines = []
    for start in (0.08, 26.0):
        lines += [f"Эпоха: {epoch:4} | Train Loss: {start / (1 + epoch):.6f}" for epoch in range(1, 2001, 100)]
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n", "utf-8")
    log = logs.read(tmp_path / "log.txt")
    assert log.steps_by == "epoch" and len(log.attempts) == 1
    assert told(diagnose(to_run([log]))) == []


def megatron(rows):
    """Lines as Megatron writes them: a loss that is nan is left out."""
    lines = []
    for step, (loss, norm, skipped) in enumerate(rows, 100):
        told = f" lm loss: {loss:.6E} |" if loss is not None else ""
        lines.append(
            f" iteration {step:8d}/    9000 | elapsed time per iteration (ms): 9.0 | learning rate: 1.000E-05 |{told} "
            f"loss scale: 1.0 | grad norm: {norm} | number of skipped iterations: {skipped:3d} | "
            "number of nan iterations:   0 |\n"
        )
    return "".join(lines)


@pytest.mark.parametrize("since", [2, 5])
def test_norms_that_are_nan_where_losses_stop_being_told(tmp_path, since):
    rows = [(2 - place / 50, 0.7, 0) for place in range(6)] + [(None, "nan", 0)] * since
    (tmp_path / "train.log").write_text(megatron(rows))
    found = diagnose(to_run([logs.read(tmp_path / "train.log")]))
    (finding,) = found.findings
    assert finding.severity.value == "error" and finding.first_step == 106 and finding.root_cause != "fp16-overflow"
    assert finding.symptom == "the gradient norm is nan from step 106 on, and no loss is logged behind step 105"
    said = str(finding.to_dict())
    assert "while the loss is" not in said and "loss of that step is finite" not in said


def test_steps_that_the_scaler_skips_have_no_loss_and_are_no_fault(tmp_path):
    rows = [(2 - place / 50, 0.7, 0) for place in range(6)] + [(None, "inf", 1)] * 2
    (tmp_path / "train.log").write_text(megatron(rows))
    assert told(diagnose(to_run([logs.read(tmp_path / "train.log")]))) == []


def test_a_norm_that_is_nan_once_before_the_next_loss_is_due_is_no_fault():
    steps = np.arange(1, 31)
    losses = block(steps[9::10], {"step": steps[9::10], "loss": np.array([2.0, 1.8, 1.7])})
    norms = block(100 + np.arange(32), {"step": np.arange(1, 33), "grad_norm": np.r_[np.ones(30), math.nan, math.nan]})
    assert told(judged(losses, norms)) == []


def test_few_points_that_fall_and_then_rise_with_every_one():
    losses = np.array([15.5, 13.0, 3.8, 2.4, 1.4, 5.8, 7.1, 10.0])
    found = judged(block(np.arange(8), {"step": 55 * np.arange(8), "loss": losses}))
    assert [step for _, step in told(found)] == [220] and "rose again to 10" in found.findings[0].symptom


@pytest.mark.parametrize(
    "losses",
    [
        [15.5, 13.0, 3.8, 2.4, 1.4, 1.6, 1.7, 1.9],
        [4.0, 2.0, 3.0, 1.0, 2.5, 1.5, 3.0, 2.8],
        [2.0, 1.9, 1.8, 1.78, 1.75, 1.85, 1.9, 1.95],
    ],
    ids=["a little", "noise", "little was gained"],
)
def test_few_points_that_rise_a_little_or_are_noise_are_no_fault(losses):
    assert told(judged(block(np.arange(8), {"step": 55 * np.arange(8), "loss": np.array(losses)}))) == []


def test_an_accuracy_of_training_that_grows_excuses_no_evaluation_that_gets_worse():
    turned = np.r_[np.linspace(1.30, 1.05, 20), np.linspace(1.07, 1.25, 8)]
    columns = {"TrainLoss": np.linspace(1.9, 0.5, 28), "ValLoss": turned, "TrainAcc": np.linspace(50, 82, 28)}
    assert told(judged(epochs(28, **columns, ValAcc=np.r_[np.linspace(60, 67, 20), np.linspace(67, 64, 8)]))) == [
        ("overfitting", 20)
    ]
    assert told(judged(epochs(28, **columns, ValAcc=np.linspace(60, 75, 28)))) == []
