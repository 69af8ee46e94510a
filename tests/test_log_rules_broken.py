"""Broken runs as logs tell them: each is found, with its first step and a cause that the log can show."""

from __future__ import annotations

import numpy as np
import pytest
from logs_by_hand import (
    NAN,
    decay,
    fact,
    grave,
    judged,
    log,
    no_rule_failed,
    noise,
    powerlaw,
    rows,
    setting,
    steps,
    table,
)

from brickprof.logs.reading.to_run import to_run

BROKEN = {}


def broken(first, *causes, severity="error"):
    """``first``: the first step that may be named, or the lowest and the highest."""

    def keep(make):
        BROKEN[make.__name__] = make, first if isinstance(first, tuple) else (first, first), causes, severity
        return make

    return keep


def cut(values, at, value=NAN):
    made = np.array(values, float)
    made[at:] = value
    return made


# -- not finite


@broken(110, "undetermined", "data-nonfinite", "fp16-overflow")
def nan_between_two_lines():
    at = steps(19, 10, 0)
    return [rows(step=at, loss=cut(powerlaw(at, 10.9, 3), 11))]


@broken(110, "fp16-overflow")
def nan_where_float16_is_stated():
    at = steps(19, 10, 0)
    return [setting(dtype="float16"), rows(2, step=at, loss=cut(powerlaw(at, 10.9, 3), 11))]


@broken(1, "bad-initialisation")
def nan_before_the_first_update():
    at = steps(100)
    held = rows(1, step=[0], **{"val_loss": [NAN]})
    return [held, rows(2, step=at, loss=np.full(100, NAN), norm=np.full(100, NAN), lr=at * 1e-6)]


@broken((0, 1), "bad-initialisation", "data-nonfinite")
def nan_in_every_line():
    return [rows(step=steps(40), loss=np.full(40, NAN))]


@broken(0, "fp16-overflow")
def zero_losses_beside_norms_that_are_nan():
    return [rows(loss=[281.9, 0.0, 0.0], grad_norm=[NAN, NAN, NAN], learning_rate=[1.98e-5, 1.97e-5, 1.95e-5])]


@broken(50, "fp16-overflow", "grad-clip-not-applied")
def norms_break_before_the_loss():
    at = steps(60)
    return [setting(fp16=True, max_grad_norm=0), rows(2, step=at, loss=cut(powerlaw(at, 8, 2), 52),
            grad_norm=cut(1 + np.abs(noise(1, 60, 0.1)), 49))]  # fmt: skip


@broken((58, 61), "exploding-gradients", "learning-rate-too-high")
def norms_grow_and_then_nan():
    at = steps(80)
    norm = np.where(at < 50, 1.0, 1.0 * 3.0 ** (at - 50).clip(0, 12)) + np.abs(noise(2, 80, 0.05))
    return [rows(step=at, loss=cut(powerlaw(at, 8, 2) + noise(3, 80, 0.02), 60), grad_norm=cut(norm, 60))]


@broken((200, 210), "learning-rate-too-high", "exploding-gradients")
def rises_and_then_infinite():
    at = steps(60, 10, 10)
    loss = np.where(at < 150, powerlaw(at, 8, 3), powerlaw(at, 8, 3) * 1.6 ** ((at - 150) / 10))
    return [rows(step=at, loss=cut(loss, 20, np.inf), lr=np.full(60, 0.1))]


@broken(31, "undetermined", "data-nonfinite", "fp16-overflow")
def nan_by_epochs():
    return [rows(epoch=steps(50), loss=cut(decay(50, 1.0, 0.2), 30))]


@broken(6, "undetermined", "data-nonfinite", "fp16-overflow")
def nan_in_a_part():
    at = steps(20)
    return [
        table({"epoch": at, "train/box_loss": cut(decay(20, 1, 0.3), 5), "train/cls_loss": cut(decay(20, 2, 0.3), 5)})
    ]


@broken((300, 300), "undetermined", severity="warning")
def nan_in_the_evaluations_only():
    held = rows(900, step=[100, 200, 300, 400], eval_loss=[1.0, 0.9, NAN, NAN])
    return [rows(step=steps(400), loss=decay(400, 2, 0.5) + noise(4, 400, 0.02)), held]


@broken(100, "undetermined", "data-nonfinite", "fp16-overflow", severity="warning")
def one_nan_that_passes():
    loss = powerlaw(steps(300), 8, 2) + noise(5, 300, 0.02)
    loss[99] = NAN
    return [rows(step=steps(300), loss=loss)]


@broken((120, 121), "undetermined", "data-nonfinite", "fp16-overflow", "exploding-gradients")
def negative_losses_break_too():
    loss = -decay(200, 0.1, 8.0)
    return [rows(step=steps(200), loss=cut(loss, 120))]


@broken((101, 101), "undetermined", "fp16-overflow")
def no_loss_is_logged_any_more():
    one, two = steps(100), steps(20, 1, 101)
    return [table({"iteration": one, "lm loss": powerlaw(one, 9, 3), "number of nan iterations": np.zeros(100)}),
            table({"iteration": two, "number of nan iterations": np.ones(20)}, 101)]  # fmt: skip


# -- spikes


@broken(31_215, "loss-spike-optimizer")
def an_excerpt_whose_norm_rises_before_the_loss():
    at = [12_695, *range(31_214, 31_223), 31_250, 31_251, 45_000]
    loss = [2.46, 2.20, 2.22, 2.60, 2.24, 2.35, 5.10, 3.49, 3.21, 2.80, 2.22, 2.24, 2.11]
    norm = [0.17, 0.24, 0.95, 2.39, 15.9, 145.1, 960.4, 353.2, 379.3, 650.2, 0.27, 0.21, 0.14]
    return [table({"iteration": at, "lm loss": loss, "grad norm": norm, "learning rate": np.full(13, 5.28e-5)})]


@broken((103, 104), "loss-spike-optimizer", "loss-spike-data")
def six_lines_of_a_spike():
    loss, norm = [2.31, 2.30, 2.32, 2.31, 6.9, 7.4, 7.2, 7.3], [0.31, 0.29, 0.33, 42.0, 500.0, 800.0, 650.0, 700.0]
    return [rows(step=steps(8, 1, 100), loss=loss, grad_norm=norm)]


@broken(256, "loss-spike-data", "loss-spike-optimizer", severity="warning")
def two_tall_spikes_that_come_back():
    loss = 0.05 + 0.02 * decay(1000, 1.0, 0.0) + noise(6, 1000, 0.0005)
    loss[0], loss[255:257], loss[485:487] = 14.0, [22.7, 0.07], [5.2, 0.14]
    return [rows(epoch=steps(1000), train_loss=loss)]


@broken(1501, "loss-spike-data", "loss-spike-optimizer")
def a_spike_that_stays():
    loss = powerlaw(steps(2000), 8, 2) + noise(7, 2000, 0.03)
    loss[1500:] += 25.0
    return [rows(step=steps(2000), loss=loss)]


@broken((201, 1000), "loss-spike-data", "loss-spike-optimizer", severity="warning")
def spikes_again_and_again():
    loss = powerlaw(steps(1000), 8, 2) + noise(8, 1000, 0.02)
    loss[200::150] = 9.5
    return [rows(step=steps(1000), loss=loss)]


# -- divergence


@broken((1, 600), "learning-rate-too-high", "exploding-gradients")
def ends_far_above_its_start():
    at = steps(200, 10)
    return [rows(step=at, loss=2.5 * np.exp(np.linspace(0, 4, 200)) * (1 + noise(9, 200, 0.02)))]


@broken((800, 2400), "learning-rate-too-high", "exploding-gradients")
def loses_what_it_had_learnt():
    at = steps(400, 10)
    loss = np.where(at < 1500, powerlaw(at, 10, 3), 8.0) + noise(10, 400, 0.1)
    loss[140:160] = np.linspace(4.5, 8.0, 20)
    return [rows(step=at, loss=loss)]


@broken((1000, 2600), "learning-rate-too-high", "exploding-gradients", severity="warning")
def creeps_up_by_a_tenth():
    at = steps(500, 10)
    loss = powerlaw(at, 8, 2.4, 0.6) + noise(11, 500, 0.02) + np.where(at > 2000, 0.8 * (at - 2000) / 3000, 0.0)
    return [rows(step=at, loss=loss, lr=np.full(500, 1e-3))]


# -- not learning


@broken((1, 100), "plateau", severity="warning")
def stays_where_nothing_is_known():
    at = steps(220, 50, 49)
    return [rows(step=at, train_loss=7.64 - 0.01 * np.log(at) + noise(12, 220, 0.06))]


@broken((1, 10), "plateau")
def stays_at_the_guess_among_stated_classes():
    at = steps(300, 10)
    return [setting(vocab_size=50_257), rows(2, step=at, loss=10.8 + noise(13, 300, 0.03))]


@broken((1, 10), "plateau", severity="warning")
def stays_at_the_guess_among_ten():
    at = steps(300, 10)
    return [rows(step=at, loss=np.log(10) + noise(14, 300, 0.01))]


@broken((1, 10), "learning-rate-too-low", severity="warning")
def learns_nothing_at_a_tiny_rate():
    at = steps(300, 10)
    return [
        rows(step=at, loss=9.5 + noise(15, 300, 0.03), lr=np.full(300, 1e-9), grad_norm=1 + np.abs(noise(1, 300, 0.1)))
    ]


@broken((1, 10), "no-gradient-path", severity="warning")
def learns_nothing_without_gradients():
    at = steps(300, 10)
    return [rows(step=at, loss=9.5 + noise(16, 300, 0.03), lr=np.full(300, 1e-3), grad_norm=np.full(300, 1e-12))]


@broken((1, 10), "learning-rate-too-low")
def the_rate_is_zero_throughout():
    at = steps(300, 10)
    return [rows(step=at, loss=9.5 + noise(17, 300, 0.03), lr=np.zeros(300))]


# -- overfitting


@broken(1000, "overfitting", severity="warning")
def the_evaluation_turns():
    at = steps(200, 25, 25)
    held = table({"step": [1000, 2000, 3000, 4000, 5000], "eval_loss": [0.307, 0.356, 0.421, 0.452, 0.468],
                  "eval_wer": [34.6, 33.1, 32.6, 32.0, 32.1]}, 500)  # fmt: skip
    return [rows(step=at, loss=decay(200, 0.9, 0.0002, 0.08)), held]


@broken((1500, 2500), "overfitting", severity="warning")
def the_evaluation_turns_slowly():
    at = steps(250, 20, 20)
    held_at = steps(25, 200, 200)
    held = rows(500, step=held_at, val_loss=1.47 + 0.25 * ((held_at - 2000) / 3000) ** 2 + noise(18, 25, 0.003))
    return [rows(step=at, loss=decay(250, 3.0, 0.6, 0.3) + noise(19, 250, 0.02)), held]


@broken((10, 14), "overfitting", severity="warning")
def the_evaluation_turns_by_epochs():
    at = steps(60)
    held = np.where(at < 12, 2 - at / 12.0, 1 + (at - 12) / 20.0)
    return [rows(epoch=at, loss=decay(60, 2, 0.05), val_loss=held + noise(20, 60, 0.01))]


# -- the scale, the sentinel


@broken((20, 60), "fp16-overflow")
def the_scale_collapses():
    at = steps(60)
    scale = np.where(at < 25, 65536.0, 65536.0 / 2.0 ** (at - 25).clip(0, 20))
    return [table({"iteration": at, "lm loss": powerlaw(at, 10, 8), "loss scale": scale,
                   "number of skipped iterations": (at >= 25).astype(float)})]  # fmt: skip


@broken((90, 110), "fp16-overflow")
def most_updates_are_skipped():
    at = steps(200)
    counted = np.where(at < 100, 0.0, at - 100.0)
    return [rows(step=at, loss=9 + noise(21, 200, 0.02), skipped=counted)]


@broken((401, 401), "sentinel-loss")
def zero_from_one_line_to_the_next():
    loss = powerlaw(steps(500), 8, 2) + noise(22, 500, 0.02)
    return [rows(step=steps(500), loss=cut(loss, 400, 0.0))]


@broken((301, 301), "sentinel-loss")
def one_value_in_all_its_digits():
    loss = powerlaw(steps(400), 8, 2) + noise(23, 400, 0.02)
    return [rows(step=steps(400), loss=cut(loss, 300, 2.718281828))]


# -- the rate


@broken((1, 10), "schedule-never-peaks", severity="warning")
def a_warm_up_longer_than_the_run():
    at = steps(200, 10)
    return [setting(max_steps=2000), rows(2, step=at, loss=powerlaw(at, 10, 4), lr=at * 1e-8), fact("finished", 300)]


@broken((1, 2100), "schedule-horizon-wrong", severity="warning")
def a_cosine_for_a_longer_run():
    at = steps(500, 10)
    rate = 3e-4 * 0.5 * (1 + np.cos(np.pi * at / 13_000))
    return [setting(max_steps=5000), rows(2, step=at, loss=powerlaw(at, 8, 2), lr=rate), fact("finished", 600)]


@broken((1, 2100), "schedule-horizon-wrong", severity="warning")
def a_cosine_for_a_shorter_run():
    at = steps(500, 10)
    rate = 3e-4 * 0.5 * (1 + np.cos(np.pi * np.minimum(at / 2000, 1)))
    return [setting(max_steps=5000), rows(2, step=at, loss=powerlaw(at, 8, 2), lr=rate)]


# -- pace and memory


@broken((190, 215), "undetermined", severity="warning")
def half_as_fast_from_one_step_on():
    at = steps(300)
    took = np.where(at < 200, 0.4, 1.1) + np.abs(noise(24, 300, 0.02))
    return [table({"iter": at, "loss": powerlaw(at, 11, 3), "time": took})]


@broken((1, 600), "memory-leak", severity="warning")
def memory_grows_to_the_end():
    at = steps(200, 10)
    return [table({"step": at, "loss": powerlaw(at, 8, 2), "memory": 2e10 + 8e6 * at})]


# -- resumes


@broken(150, "resume-state-lost", severity="warning")
def a_resume_that_forgot():
    one, two = steps(200), steps(250, 1, 150)
    after = powerlaw(two, 8, 2) + 1.2 * np.exp(-(two - 150) / 60.0) + noise(26, 250, 0.03)
    return [rows(step=one, loss=powerlaw(one, 8, 2) + noise(25, 200, 0.03)), rows(201, step=two, loss=after)]


@broken(1500, "checkpoint-incomplete")
def a_resume_that_begins_untrained():
    one, two = steps(200, 10), steps(250, 10, 1500)
    after = powerlaw(two - 1500, 8, 2) + noise(28, 250, 0.03)
    return [rows(step=one, loss=powerlaw(one, 8, 2) + noise(27, 200, 0.03)), rows(201, step=two, loss=after)]


# -- the end


def ending(*facts):
    at = steps(100)
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(29, 100, 0.03)), *facts]


@broken(100, "out-of-memory")
def cuda_out_of_memory():
    said = "CUDA out of memory. Tried to allocate 2.00 GiB"
    return ending(fact("exception", 101, type="torch.OutOfMemoryError", message=said, frames=["train.py:10 in step"]))


@broken(100, "out-of-memory")
def killed_for_its_memory():
    return ending(fact("ended", 101, how="oom-killed", text="Out of memory: Killed process 123 (python)"))


@broken(100, "deadlock")
def a_collective_that_timed_out():
    return ending(fact("collective", 101, what="timeout", text="Watchdog caught collective operation timeout"))


@broken(100, "hardware-error")
def an_error_of_the_card():
    return ending(
        fact("device", 101, what="xid", xid=79, text="NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus")
    )


@broken(100, "out-of-bounds")
def an_illegal_address():
    said = "CUDA error: an illegal memory access was encountered"
    return ending(fact("exception", 101, type="RuntimeError", message=said, frames=[]),
                  fact("device", 101, what="illegal-address", text=said))  # fmt: skip


@broken(100, "crashed-by-signal")
def a_segmentation_fault():
    return ending(fact("ended", 101, how="segfault", text="Segmentation fault (core dumped)"))


@broken(100, "fp16-overflow")
def the_scaler_gives_up():
    said = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    return ending(fact("exception", 101, type="Exception", message=said, frames=[]))


@broken(100, "exception")
def a_plain_error():
    return ending(fact("exception", 101, type="KeyError", message="'labels'", frames=["train.py:10 in step"]))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_log_is_found(name):
    make, (low, high), causes, severity = BROKEN[name]
    items = make()
    found = judged(*items)
    assert no_rule_failed(found)
    told = grave(found)
    assert told, [finding.symptom for finding in found.findings]
    assert len(told) == 1, [(finding.severity.value, finding.root_cause, finding.symptom) for finding in found.findings]
    worst, cause, first = told[0]
    assert worst == severity
    assert cause in causes
    assert low <= first <= high
    assert found.verdict.value == "FAIL"


@pytest.mark.parametrize("name", BROKEN)
def test_its_whys_name_lines_that_are_there(name):
    items = BROKEN[name][0]()
    made = to_run([log(*items)])
    for finding in judged(*items).findings:
        assert finding.whys
        named = [identity for why in finding.whys for identity in why.evidence]
        assert named
        for identity in named:
            found = made.find(identity)
            assert found
            assert all("line" in event.fields for event in found)


def test_there_are_forty_kinds():
    assert len(BROKEN) >= 40
