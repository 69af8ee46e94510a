"""Healthy runs as logs tell them: of many sizes, cadences, noises and kinds of loss. None of them may alarm."""

from __future__ import annotations

import numpy as np
import pytest
from logs_by_hand import (
    NAN,
    decay,
    fact,
    grave,
    judged,
    no_rule_failed,
    noise,
    powerlaw,
    rows,
    setting,
    steps,
    table,
)

HEALTHY = {}


def healthy(make):
    HEALTHY[make.__name__] = make
    return make


@healthy
def language_model_every_step():
    at = steps(800)
    return [rows(step=at, loss=powerlaw(at, 11.0, 3.0) + noise(1, 800, 0.04), lr=np.minimum(at / 700, 1) * 6e-4)]


@healthy
def language_model_every_hundred_steps():
    at = steps(300, 100, 100)
    return [rows(step=at, loss=powerlaw(at, 9.0, 2.2, 0.35) + noise(2, 300, 0.02))]


@healthy
def nine_lines_of_the_middle():
    at = steps(9, 1, 31_000)
    return [rows(step=at, loss=2.2 + noise(3, 9, 0.02), grad_norm=0.25 + np.abs(noise(4, 9, 0.02)))]


@healthy
def three_lines():
    return [rows(step=[10, 20, 30], loss=[2.1, 2.0, 2.05], grad_norm=[1.2, 0.9, 1.4])]


@healthy
def one_line():
    return [rows(step=[10], loss=[2.1])]


@healthy
def fine_tuning_that_starts_at_its_optimum():
    at = steps(400, 10, 10)
    return [
        rows(step=at, loss=1.25 - 0.0001 * np.arange(400) + noise(5, 400, 0.08), learning_rate=2e-5 * (1 - at / 4001))
    ]


@healthy
def rounded_to_four_digits_down_to_zero():
    loss = np.round(decay(300, 0.9, 0.0, 0.05) + np.abs(noise(6, 300, 0.0001)), 4)
    return [rows(step=steps(300, 25, 25), loss=loss)]


@healthy
def whole_epochs():
    at = steps(30)
    return [rows(epoch=at, loss=decay(30, 1.1, 0.05) + np.abs(noise(7, 30, 0.002)), val_loss=decay(30, 1.2, 0.3))]


@healthy
def noisy_small_batches():
    loss = np.random.default_rng(8).lognormal(0.0, 0.5, 2000) * decay(2000, 1.0, 0.2)
    return [rows(step=steps(2000), loss=loss)]


@healthy
def heavy_tails():
    loss = 0.5 + np.abs(np.random.default_rng(9).standard_t(3, 3000)) * 0.05
    return [rows(step=steps(3000), loss=loss * decay(3000, 2.0, 1.0))]


@healthy
def scores_of_z_that_are_nan_at_first():
    at = steps(50)
    z = np.r_[NAN, noise(10, 49, 1.0)]
    return [table({"step": at, "loss": powerlaw(at, 11.0, 3.0), "loss z": z, "norm z": z, "norm": 1 + 9 / at})]


@healthy
def back_off_of_the_scaler_at_the_start():
    facts = [fact("overflow", 1 + n, scale=2.0 ** (32 - n), to=2.0 ** (31 - n), step=n) for n in range(17)]
    after = rows(20, step=[20, 30, 40, 50, 60], loss=[10.87, 10.78, 10.67, 10.5, 10.3], skipped=[17] * 5)
    return [*facts, after]


@healthy
def a_scale_that_doubles_and_halves():
    at = steps(400, 10)
    scale = 2.0 ** (16 + (np.arange(400) % 50 > 40))
    skipped = (np.arange(400) % 50 == 41).astype(float)
    return [table({"iteration": at, "lm loss": powerlaw(at, 10, 2.5) + noise(11, 400, 0.03), "loss scale": scale,
                   "number of skipped iterations": skipped, "grad norm": 1.0 + noise(12, 400, 0.2)})]  # fmt: skip


@healthy
def norms_that_are_infinite_where_the_scaler_skips():
    norm = 1.0 + np.abs(noise(13, 200, 0.2))
    norm[[0, 1, 2, 60, 130]] = np.inf
    return [rows(step=steps(200, 10), loss=powerlaw(steps(200, 10), 8, 2) + noise(14, 200, 0.03), grad_norm=norm)]


@healthy
def norms_that_are_never_measured():
    at = steps(120, 10)
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(15, 120, 0.03), grad_norm=np.full(120, NAN))]


@healthy
def norms_capped_at_one():
    at = steps(300, 10)
    norm = np.minimum(1.0, 0.8 + np.abs(noise(16, 300, 0.3)))
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(17, 300, 0.03), grad_norm=norm)]


@healthy
def large_norms_before_clipping():
    at = steps(300, 10)
    norm = np.random.default_rng(18).lognormal(3.0, 0.8, 300)
    return [setting(max_grad_norm=1.0), rows(step=at, loss=powerlaw(at, 8, 2) + noise(19, 300, 0.03), grad_norm=norm)]


@healthy
def adversaries_in_balance():
    at = steps(500, 10)
    return [table({"step": at, "d_loss": 0.69 + noise(20, 500, 0.02), "g_loss": 0.71 + noise(21, 500, 0.05)})]


@healthy
def a_domain_loss_that_stays():
    at = steps(160, 50)
    return [table({"step": at, "train_loss": decay(160, 2.2, 0.86) + noise(22, 160, 0.05),
                   "domain_loss": 0.69 + noise(23, 160, 0.01), "train_task_loss": decay(160, 1, 0.2)})]  # fmt: skip


@healthy
def reinforcement_learning():
    at = steps(500)
    return [table({"step": at, "policy_loss": noise(24, 500, 0.02), "value_loss": 2 + np.abs(noise(25, 500, 1.0)),
                   "reward": np.linspace(0, 5, 500) + noise(26, 500, 1.0)})]  # fmt: skip


@healthy
def preference_tuning_with_rewards():
    at = steps(200, 10)
    return [table({"step": at, "loss": 0.69 + noise(27, 200, 0.03), "rewards/chosen": np.linspace(0, 1, 200),
                   "rewards/margins": np.linspace(0, 1, 200)})]  # fmt: skip


@healthy
def losses_below_zero():
    at = steps(500, 10)
    return [rows(step=at, loss=-decay(500, 0.1, 8.0) + noise(28, 500, 0.3))]


@healthy
def parts_that_are_added_up():
    at = steps(100)
    parts = {
        f"train/{part}_loss": decay(100, 1.5, 0.4) + noise(n, 100, 0.03) for n, part in enumerate(("box", "cls", "dfl"))
    }
    held = {
        f"val/{part}_loss": decay(100, 2.5, 1.4) + noise(9 + n, 100, 0.05)
        for n, part in enumerate(("box", "cls", "dfl"))
    }
    return [table({"epoch": at, **parts, **held, "metrics/mAP50(B)": decay(100, 0.0, 0.9)})]


@healthy
def evaluations_that_wobble():
    at = steps(400, 10)
    held = rows(500, step=steps(40, 100), eval_loss=2.2 + noise(29, 40, 0.05))
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(30, 400, 0.05)), held]


@healthy
def evaluations_that_rise_a_little_at_the_end():
    held = rows(500, step=[100, 200, 300, 400, 500], eval_loss=[1.2, 0.9, 0.85, 0.86, 0.87])
    return [rows(step=steps(50, 10), loss=decay(50, 1.5, 0.7) + noise(31, 50, 0.02)), held]


@healthy
def groups_of_other_data_that_get_worse():
    held = {f"eval_g{n}_loss": 1.0 + np.linspace(0, 2 + n, 30) for n in range(5)}
    return [rows(step=steps(30, 400), loss=decay(30, 1.1, 0.05)), table({"step": steps(30, 400), **held}, 100)]


@healthy
def cosine_with_warm_restarts():
    at = steps(1000, 10)
    rate = 1e-3 * 0.5 * (1 + np.cos(np.pi * (np.arange(1000) % 250) / 250))
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(32, 1000, 0.03), lr=rate)]


@healthy
def cut_off_in_warm_up():
    at = steps(300)
    return [setting(max_steps=20_000), rows(step=at, loss=powerlaw(at, 11, 3) + noise(33, 300, 0.05), lr=at * 1e-6),
            fact("ended", 302, how="time-limit", text="CANCELLED DUE TO TIME LIMIT")]  # fmt: skip


@healthy
def cut_off_in_the_middle_of_its_cosine():
    at = steps(500, 10)
    rate = 3e-4 * 0.5 * (1 + np.cos(np.pi * at / 20_000))
    return [setting(max_steps=20_000), rows(step=at, loss=powerlaw(at, 8, 2) + noise(34, 500, 0.03), lr=rate)]


@healthy
def a_constant_rate():
    at = steps(500, 10)
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(35, 500, 0.03), lr=np.full(500, 1e-4)), fact("finished", 501)]


@healthy
def a_cosine_that_ends_where_the_run_ends():
    at = steps(500, 10)
    rate = 3e-4 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * at / 5000)))
    return [setting(max_steps=5000), rows(step=at, loss=powerlaw(at, 8, 2) + noise(36, 500, 0.03), lr=rate)]


@healthy
def a_resume_without_a_trace():
    one, two = steps(200), steps(250, 1, 150)
    loss = lambda at, seed: powerlaw(at, 8, 2) + noise(seed, len(at), 0.03)  # noqa: E731
    return [rows(step=one, loss=loss(one, 37)), rows(201, step=two, loss=loss(two, 38))]


@healthy
def begun_anew_in_the_same_file():
    one, two = steps(50), steps(300)
    return [rows(step=one, loss=powerlaw(one, 8, 2)), rows(51, step=two, loss=powerlaw(two, 8, 2))]


@healthy
def slow_first_steps_and_evaluations():
    at = steps(300)
    took = np.full(300, 0.46) + np.abs(noise(39, 300, 0.01))
    took[0], took[100], took[200] = 33.0, 9.0, 9.0
    return [table({"iter": at, "loss": powerlaw(at, 11, 3), "time": took})]


@healthy
def batches_that_grow():
    at = steps(400, 10)
    size = 256.0 * (1 + np.arange(400) // 100)
    return [table({"iteration": at, "lm loss": powerlaw(at, 10, 2), "global batch size": size,
                   "elapsed time per iteration (ms)": size * 10})]  # fmt: skip


@healthy
def memory_that_settles():
    at = steps(200, 10)
    used = 2e10 + 5e9 * (1 - np.exp(-np.arange(200) / 10.0))
    return [table({"step": at, "loss": powerlaw(at, 8, 2), "memory": used})]


@healthy
def one_small_spike_in_a_long_run():
    at = steps(3000)
    loss = powerlaw(at, 10, 2.5) + noise(40, 3000, 0.03)
    loss[2000:2004] = [7.5, 6.0, 4.0, 3.4]
    return [rows(step=at, loss=loss)]


@healthy
def a_loss_that_is_all_but_zero_and_restless():
    loss = np.random.default_rng(41).lognormal(-9, 1.0, 2000)
    loss[:200] += decay(200, 2.0, 0.0, 0.1)
    return [rows(step=steps(2000), loss=loss)]


@healthy
def a_trained_classifier_that_errs_now_and_then():
    random = np.random.default_rng(50)
    loss = decay(1500, 0.7, 0.01, 0.05) + np.abs(random.normal(0, 0.002, 1500))
    loss[random.integers(400, 1500, 12)] += random.uniform(0.1, 0.5, 12)
    return [rows(step=steps(1500, 10), loss=loss)]


@healthy
def the_last_batches_of_a_trained_classifier_are_hard():
    loss = decay(300, 0.7, 0.01, 0.05) + np.abs(noise(51, 300, 0.002))
    loss[-4:] += 0.08
    return [rows(step=steps(300, 10), loss=loss)]


@healthy
def preference_optimisation_with_a_loss_of_zero():
    at = steps(200, 5)
    loss = np.r_[np.zeros(20), np.abs(noise(52, 180, 0.001))]
    return [table({"step": at, "loss": loss, "reward": np.linspace(0, 1, 200),
                   "grad_norm": np.abs(noise(53, 200, 0.3)) + 0.1, "kl": np.linspace(0, 0.1, 200)})]  # fmt: skip


@healthy
def diffusion_that_is_all_noise():
    return [rows(step=steps(1000, 10), loss=np.abs(np.random.default_rng(54).lognormal(-2.5, 0.6, 1000)))]


@healthy
def lines_without_a_loss_that_were_skipped():
    at = steps(100)
    kept = (at % 25) != 0
    counts = np.where(kept, 0.0, 1.0)
    loss = powerlaw(at[kept], 9, 3)
    return [table({"iteration": at[kept], "lm loss": loss, "number of nan iterations": counts[kept]}),
            table({"iteration": at[~kept], "number of nan iterations": counts[~kept]}, 200)]  # fmt: skip


@healthy
def physics_losses_over_decades():
    loss = np.exp(np.linspace(2, -9, 1000)) * np.random.default_rng(42).lognormal(0, 0.3, 1000)
    return [rows(epoch=steps(1000), loss=loss)]


@healthy
def learning_that_pauses():
    at = steps(2000)
    loss = np.where(at < 1000, 2.3, 2.3 - 0.8 * (1 - np.exp(-(at - 1000) / 200.0))) + noise(43, 2000, 0.03)
    return [rows(step=at, loss=loss)]


@healthy
def curriculum_steps_up_once():
    at = steps(2000)
    loss = powerlaw(at, 8, 2) + noise(44, 2000, 0.03) + np.where(at > 1000, 0.06, 0.0)
    return [rows(step=at, loss=loss)]


@healthy
def continued_pretraining():
    at = steps(500, 10)
    return [
        fact("checkpoint", 1, op="load", file="base"),
        rows(2, step=at, loss=2.05 - 0.00005 * at + noise(45, 500, 0.04)),
    ]


@healthy
def an_error_that_was_survived():
    at = steps(300)
    return [rows(step=at, loss=powerlaw(at, 8, 2) + noise(46, 300, 0.03)),
            fact("exception", 100, type="ConnectionError", message="no tracker", frames=[])]  # fmt: skip


@healthy
def an_accuracy_that_rises_with_a_flat_loss():
    at = steps(200, 10)
    return [rows(step=at, loss=4.6 - 0.0002 * at * 0 + noise(47, 200, 0.02), accuracy=np.linspace(0.01, 0.4, 200))]


@healthy
def throughput_that_wobbles():
    at = steps(300)
    return [
        rows(step=at, loss=powerlaw(at, 8, 2), tokens_per_sec=1e5 * np.random.default_rng(48).lognormal(0, 0.2, 300))
    ]


@healthy
def a_learning_rate_told_for_each_group():
    at = steps(100)
    return [
        table(
            {
                "epoch": at,
                "loss": decay(100, 1.5, 0.3),
                "lr/pg0": decay(100, 0.01, 1e-4),
                "lr/pg1": decay(100, 0.01, 1e-4),
            }
        )
    ]


@healthy
def only_an_accuracy():
    return [rows(step=steps(50), accuracy=np.linspace(0.1, 0.9, 50))]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_has_no_finding_that_alarms(name):
    found = judged(*HEALTHY[name]())
    assert grave(found) == []
    assert found.verdict.value != "FAIL"
    assert no_rule_failed(found)


def test_there_are_forty_kinds():
    assert len(HEALTHY) >= 40


@pytest.mark.parametrize("seed", range(12))
def test_noise_of_any_kind_does_not_alarm(seed):
    """Losses of random shape, noise and cadence, all of which fall: false alarms are counted over whole runs."""
    random = np.random.default_rng(seed)
    for _ in range(12):
        count, every = int(random.integers(30, 1500)), int(random.choice([1, 1, 10, 50, 100]))
        at = steps(count, every)
        level = powerlaw(at, random.uniform(2, 12), random.uniform(0.3, 2.5), random.uniform(0.2, 0.6))
        kind = random.integers(3)
        size = random.uniform(0.005, 0.12)
        spread = (
            random.normal(0, 1, count)
            if kind == 0
            else random.standard_t(4, count)
            if kind == 1
            else random.gumbel(0, 0.8, count)
        )
        loss = np.maximum(level * (1 + size * spread), 1e-3)
        norm = random.lognormal(0, 0.5, count)
        found = judged(rows(step=at, loss=loss, grad_norm=norm, lr=np.full(count, 1e-4)))
        assert grave(found) == [], (seed, count, every, kind, size)
