"""Rules of learning, data and the forward pass: what they accuse, what they let pass, and what they leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from making import NAN, Made

from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.causes import learning as learning_causes
from brickprof.diagnosis.causes import spikes as spike_causes
from brickprof.diagnosis.hypotheses import best
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules import (
    activations,
    criterion,
    data_order,
    evaluation,
    forward,
    inputs,
    learning,
    modes,
    sentinel,
    spikes,
)
from brickprof.rules.story import Story

GUESS = float(np.log(10))


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def training(
    losses: Iterable[float],
    *,
    classes: int | None = None,
    rates: Iterable[float] | None = None,
    ratio: float | None = None,
    norm: float | None = 1.0,
    site: str = "train.py:9",
) -> Made:
    made = Made()
    made.owned()
    values = [float(value) for value in losses]
    lrs = list(rates) if rates is not None else [1e-3] * len(values)
    for step, (value, lr) in enumerate(zip(values, lrs, strict=True)):
        made.event("loss", step, value=value, micro=0, site=site, grad_fn="NllLossBackward0X", training=True)
        if classes:
            call = {"name": "cross_entropy", "value": value, "reduction": "mean", "classes": classes}
            made.event("criterion", step, **call, rows=32, grad=True, site=site)
        if norm is not None:
            made.event("grad", step, point="step", tensors=3, l2=norm, nonfinite=[], scale=None)
        made.event("optimizer", step, optimizer=0, lr=[lr], count=step + 1)
        if ratio:
            made.sample("update", step, "head", ratio=ratio)
    return made


def judged(rule: Any, made: Made) -> ContractResult:
    judge = rule()
    result: ContractResult = judge.judge(told(made), registry.find(judge.contract))
    return result


def told(made: Made) -> Story:
    story = Story()
    for record in made.records:
        story.feed(record)
    return story


def only(result: ContractResult) -> Violation:
    assert len(result.violations) == 1
    return result.violations[0]


def quiet(result: ContractResult) -> bool:
    return all(violation.severity is Severity.INFO for violation in result.violations)


RULES = [
    *learning.RULES, spikes.RULE, criterion.RULE, sentinel.RULE, modes.RULE, data_order.RULE, inputs.RULE,
    activations.RULE, evaluation.RULE, *forward.RULES,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.contract)
def test_a_run_without_training_is_vacuous_and_one_step_proves_nothing(rule: Any) -> None:
    assert judged(rule, Made()).verdict is Verdict.VACUOUS
    assert judged(rule, training([1.0])).verdict is Verdict.NOT_EVALUATED


# -- not learning


def test_a_loss_at_the_level_of_guessing_while_weights_travel() -> None:
    found = only(
        judged(learning.Learning, training(GUESS + 0.03 * draw().standard_normal(120), classes=10, ratio=0.02))
    )
    assert (found.what, found.cause, found.first_step, found.detected_step) == ("not-learning", "", 0, 47)


@pytest.mark.parametrize(("early", "late", "seen"), [(0.0103, 0.002, 48), (0.002, 0.02, 119)])
def test_when_it_was_seen_goes_by_what_was_known_then(early: float, late: float, seen: int) -> None:
    """Updates that were large at first had taken the weights far enough long before the mean of all of them had."""
    made = training(draw().normal(GUESS, 0.02, 400), classes=10)
    for step in range(400):
        made.sample("update", step, "head", ratio=early if step < 60 else late)
    found = only(judged(learning.Learning, made))
    assert found.detected_step == seen
    live = [record for record in made.records if record.step <= seen]
    before = [record for record in live if record.step < seen]
    for records, accused in ((live, True), (before, False)):
        made.records = records
        assert bool(judged(learning.Learning, made).violations) is accused


@pytest.mark.parametrize("stuck", [True, False])
def test_of_two_trainings_in_one_run_the_second_is_judged_by_itself(stuck) -> None:
    made = training(1.38 * np.exp(-np.arange(100) / 20) + 0.3, classes=4, ratio=0.02)
    group = {"tensors": [3], "frozen": []}
    made.event("optimizer_created", 100, optimizer=1, cls="AdamW", groups=[group])
    noise = 0.03 * draw().standard_normal(120)
    for step, value in enumerate(GUESS * (1 if stuck else np.exp(-np.arange(120) / 40)) + noise, 100):
        made.event("loss", step, value=value, micro=0, site="train.py:40", grad_fn="NllLossBackward0X", training=True)
        call = {"name": "cross_entropy", "value": value, "reduction": "mean", "classes": 10}
        made.event("criterion", step, **call, rows=32, grad=True, site="train.py:40")
        made.event("optimizer", step, optimizer=1, lr=[1e-3], count=step - 99)
        made.sample("update", step, "head", ratio=0.02)
    result = judged(learning.Learning, made)
    assert result.verdict is (Verdict.FAIL if stuck else Verdict.PASS)
    if stuck:
        assert (only(result).first_step, only(result).detected_step) == (100, 147)


def falling() -> Made:
    return training(GUESS * np.exp(-np.arange(120) / 60) + 0.02 * draw().standard_normal(120), classes=10, ratio=0.02)


def slowly() -> Made:
    return training(GUESS - 0.0008 * np.arange(120) + 0.01 * draw().standard_normal(120), classes=10, ratio=0.02)


def warming() -> Made:
    return training(np.full(120, GUESS), classes=10, ratio=0.02, rates=np.arange(120) * 1e-6)


def resting() -> Made:
    return training(GUESS + 0.03 * draw().standard_normal(120), classes=10, ratio=1e-6)


def short() -> Made:
    return training(GUESS + 0.03 * draw().standard_normal(20), classes=10, ratio=0.1)


def flat_regression() -> Made:
    return training(1 + 0.05 * draw().standard_normal(500), ratio=0.02)


@pytest.mark.parametrize("made", [falling, slowly, warming, resting, short, flat_regression])
def test_flat_is_not_enough(made: Callable[[], Made]) -> None:
    assert not judged(learning.Learning, made()).violations


def test_a_loss_that_is_learnt_passes() -> None:
    assert judged(learning.Learning, falling()).verdict is Verdict.PASS


def test_adversaries_balance_at_the_level_of_guessing() -> None:
    made = Made()
    made.owned("embed", optimizer=0)
    made.owned("head", optimizer=1)
    for step in range(100):
        for micro, site in enumerate(("gan.py:30", "gan.py:38")):
            made.event("loss", step, value=0.693, micro=micro, site=site, grad_fn="NllLossBackward0")
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
        made.sample("update", step, "head", ratio=0.05)
    assert judged(learning.Learning, made).verdict is Verdict.NOT_EVALUATED
    assert not judged(learning.Trend, made).violations
    assert not judged(sentinel.Sentinels, made).violations


def test_labels_are_blamed_when_everything_else_works() -> None:
    made = training(GUESS + 0.03 * draw().standard_normal(120), classes=10, ratio=0.02)
    violation = only(judged(learning.Learning, made))
    case = Case(told(made), Timeline())
    cause = best(learning_causes.hypotheses(violation, case))
    assert cause is not None and cause.root_cause in ("labels-misaligned", "labels-random") and cause.confidence > 0.6
    wild = training(GUESS + 0.03 * draw().standard_normal(120), classes=10, ratio=0.5)
    violation = only(judged(learning.Learning, wild))
    cause = best(learning_causes.hypotheses(violation, Case(told(wild), Timeline())))
    assert cause is not None and cause.confidence < 0.5


def test_a_run_that_is_over_is_judged_as_one_that_goes_on() -> None:
    made = training(GUESS + 0.03 * draw().standard_normal(120), classes=10, ratio=0.02)
    whole = learning.Learning().judge(Story.of(made.run()), registry.find("C-LEARN-001"))
    assert whole == judged(learning.Learning, made)


# -- the trend


@pytest.mark.parametrize("after", [[], [5e4] * 20, [NAN] * 20])
def test_a_leap_is_seen_in_the_step_it_happens(after: list[float]) -> None:
    found = only(judged(learning.Trend, training([2.0, 1.9, 1.8, 700.0, *after])))
    assert (found.what, found.severity, found.detected_step) == ("diverged", Severity.ERROR, 3)


def test_a_leap_that_comes_back_is_none() -> None:
    curve = [2.0, 1.9, 1.8, 700.0, *np.linspace(1.7, 0.5, 40)]
    assert quiet(judged(learning.Trend, training(curve)))


def test_an_answer_that_always_stands_first_says_nothing_about_guessing() -> None:
    losses = [0.3, *np.linspace(3.0, 2.0, 199)]
    made = training(losses, classes=513, ratio=0.02)
    for event in made.records:
        if getattr(event, "kind", "") == "criterion":
            event.fields["target"] = {"distinct": 1, "entropy": 0.0}
    assert not judged(learning.Learning, made).violations
    assert quiet(judged(learning.Trend, made))


def test_a_loss_that_leaves_its_start_behind() -> None:
    found = only(judged(learning.Trend, training(2.3 * np.exp(np.arange(20) / 5))))
    assert (found.what, found.severity, found.first_step) == ("diverged", Severity.ERROR, 1)


def test_a_loss_that_loses_what_it_gained() -> None:
    noise = 0.05 * draw().standard_normal(230)
    curve = np.concatenate([np.linspace(2.3, 0.5, 100), np.linspace(0.5, 2, 30), np.full(100, 2.0)]) + noise
    found = only(judged(learning.Trend, training(curve)))
    assert found.what == "diverged" and 80 < found.first_step < 110


@pytest.mark.parametrize(
    "curve",
    [
        [1.0, 2.0, 3.0],
        draw().exponential(1, 3000),
        np.abs(1e-5 * (1 + draw().standard_normal(500))) * np.linspace(1, 50, 500),
        np.concatenate([np.linspace(2, 0.3, 150), [6.0, 4.0, 2.0], np.full(100, 0.3)]),
        draw().standard_normal(500).cumsum(),
        np.ones(200),
        np.concatenate([np.linspace(2, 0.5, 100), np.linspace(1.5, 0.6, 100)]),
    ],
    ids=["short", "heavy tail", "at its optimum", "spike", "signed", "constant", "curriculum"],
)
def test_what_does_not_diverge(curve: Any) -> None:
    assert quiet(judged(learning.Trend, training(curve)))


def test_a_plateau_is_worth_knowing_and_no_more() -> None:
    curve = 1 + 2 * np.exp(-np.arange(600) / 50) + 0.1 * draw().standard_normal(600)
    result = judged(learning.Trend, training(curve))
    assert (only(result).what, only(result).severity, result.verdict) == ("plateau", Severity.INFO, Verdict.PASS)


@pytest.mark.parametrize(("level", "stuck"), [(0.6931, True), (0.45, False)])
def test_yes_or_no_has_a_level_of_guessing_too(level: float, stuck: bool) -> None:
    made = training(level + 0.005 * draw().standard_normal(240), ratio=0.01)
    target = {"min": 0.0, "max": 1.0, "distinct": 2, "entropy": 0.6931, "looked": 64}
    for step in range(0, 240, 8):
        call = {"name": "bce_logits", "value": level, "reduction": "mean", "classes": None, "target": target}
        made.event("criterion", step, **call, rows=64, grad=True, site="train.py:9")
    result = judged(learning.Learning, made)
    assert result.verdict is (Verdict.FAIL if stuck else Verdict.PASS), result


# -- spikes


@pytest.mark.parametrize(
    ("odd", "severity"),
    [([4.8, 5.1, 4.9, 5.0], Severity.WARNING), ([5.0], Severity.INFO), ([5.0, 4.2, 3.4, 2.6, 1.9], Severity.INFO)],
    ids=["block", "one batch", "recovers by and by"],
)
def test_a_block_of_odd_data_is_told_from_a_recovery(odd: list[float], severity: Severity) -> None:
    calm = list(1.4 + 0.05 * draw().standard_normal(120))
    found = only(judged(spikes.Spikes, training([3.0, 2.5, 2.0, *calm, *odd, *calm[:80]])))
    assert found.severity is severity
    if severity is Severity.WARNING:
        assert found.details["block"] == 4


def test_a_jump_that_stays_is_told_with_its_step() -> None:
    curve = np.concatenate([np.linspace(2.3, 0.5, 100), 4 + 0.3 * draw().standard_normal(60)])
    found = only(judged(spikes.Spikes, training(curve)))
    assert (found.what, found.severity, found.first_step) == ("spike", Severity.WARNING, 100)
    assert found.details["recovered"] is False


def test_one_jump_that_recovers_is_no_warning() -> None:
    curve = np.concatenate([np.linspace(2.3, 0.5, 100), [9.0, 4.0], np.full(60, 0.5)]) + 0.02 * draw().standard_normal(
        162
    )
    result = judged(spikes.Spikes, training(curve))
    assert result.verdict is Verdict.PASS and only(result).details["recovered"] is True


@pytest.mark.parametrize(
    ("rates", "severity"),
    [([1e-3] * 99 + [3e-2] * 6, Severity.WARNING), ([3e-2] * 2 + [1e-3] * 97 + [3e-2] * 6, Severity.INFO)],
    ids=["never so high", "as high as once before"],
)
def test_a_jump_right_after_the_rate_leapt_is_told_at_once(rates, severity) -> None:
    made = training([*np.linspace(2.3, 0.5, 100), 4.0, 4.5, 5.0, 5.5, 6.0], rates=rates)
    found = only(judged(spikes.Spikes, made))
    assert (found.severity, found.detected_step) == (severity, 100)


@pytest.mark.parametrize("leaps", [True, False])
def test_a_small_loss_that_grows_many_times_after_the_rate_leapt(leaps) -> None:
    small = 0.001 + 2e-5 * draw().standard_normal(80)
    curve = [*np.linspace(0.8, 0.001, 100), *small, *np.linspace(0.005, 0.1, 8), *np.linspace(0.1, 0.001, 40)]
    rates = [2e-3] * 180 + [1.5e-2 if leaps else 2e-3] * 48
    found = judged(spikes.Spikes, training(curve, rates=rates))
    assert (found.verdict is Verdict.FAIL) is leaps
    if leaps:
        violation = only(found)
        assert 180 < violation.detected_step < 186 and violation.details["recovered"] is True
        case = Case(told(training(curve, rates=rates)), Timeline())
        assert best(spike_causes.hypotheses(violation, case)).root_cause == "loss-spike-optimizer"


def test_jumps_that_come_often_are_told_apart_from_heavy_tails() -> None:
    often = np.where(np.arange(300) % 40 == 39, 9.0, 1.0) + 0.05 * draw().standard_normal(300)
    assert only(judged(spikes.Spikes, training(often))).severity is Severity.WARNING
    for tail in (np.exp(draw().standard_normal(2000)), draw().exponential(1, 4000), np.zeros(100)):
        assert quiet(judged(spikes.Spikes, training(tail)))


def test_a_jump_far_beyond_an_untrained_model_and_a_new_stage_of_a_curriculum() -> None:
    broken = np.concatenate([np.linspace(2.3, 0.5, 100), [5e4], np.full(60, 0.5)]) + 0.02 * draw().standard_normal(161)
    assert only(judged(spikes.Spikes, training(broken))).severity is Severity.WARNING
    stages = np.concatenate([2 * np.exp(-np.arange(120) / 20), 2 * np.exp(-np.arange(120) / 25)])
    assert quiet(judged(spikes.Spikes, training(stages + 0.005 * np.abs(draw().standard_normal(240)))))


def jump(**more: Any) -> Made:
    curve = np.concatenate([np.full(60, 1.0), [9.0], np.full(40, 1.0)]) + 0.02 * draw().standard_normal(101)
    return training(curve, norm=None, **more)


def behind(made: Made) -> str:
    violation = only(judged(spikes.Spikes, made))
    found = best(spike_causes.hypotheses(violation, Case(told(made), Timeline())))
    assert found is not None
    return found.root_cause


def test_a_batch_unlike_the_others_came_with_the_jump() -> None:
    made = jump()
    for step in range(101):
        made.event("batch", step, loader=0, fingerprint=f"{step:x}", absmax=300.0 if step == 60 else 3.0, std=1.0)
    assert behind(made) == "loss-spike-data"


def test_the_rate_moved_before_the_jump() -> None:
    made = jump(rates=[0.1 if step == 59 else 1e-3 for step in range(101)])
    for step in range(101):
        made.event("batch", step, loader=0, fingerprint=f"{step:x}", absmax=3.0, std=1.0)
    assert behind(made) == "loss-spike-optimizer"


def test_of_jumps_beyond_anything_the_first_is_when_it_was_seen() -> None:
    """A larger one of the same kind later does not make it later."""
    rng = np.random.default_rng(3)
    losses = 1 + 0.05 * rng.standard_normal(300)
    losses[[40, 120, 250]] = 300.0, 500.0, 900.0
    found = only(judged(spikes.Spikes, training(losses)))
    assert (found.severity, found.first_step, found.detected_step) == (Severity.WARNING, 40, 40)
    assert "at step 250" in found.symptom and "3 such jumps" in found.symptom


# -- the loss function


def called(name: str, given: dict[str, Any] | None = None, target: dict[str, Any] | None = None, **more: Any) -> Made:
    made = training(np.linspace(2, 1, 10))
    for step in range(10):
        about = {"name": name, "value": 1.0, "reduction": "mean", "classes": 4, "rows": 8, "grad": True} | more
        made.event("criterion", step, **about, input=given, target=target, site="train.py:9")
    return made


DISTRIBUTION = {"min": 0.01, "max": 0.9, "nonnegative": True, "sums_to_one": True, "log_distribution": False}
SCORES = {"min": -3.0, "max": 3.0, "nonnegative": False, "sums_to_one": False, "log_distribution": False}
LOGARITHMS = {"min": -9.0, "max": -0.1, "nonnegative": False, "sums_to_one": False, "log_distribution": True}
SIGMOID = {"min": 0.2, "max": 0.8, "nonnegative": True, "sums_to_one": False, "log_distribution": False}


@pytest.mark.parametrize(
    ("name", "given", "target", "more", "cause"),
    [
        ("cross_entropy", DISTRIBUTION, None, {}, "double-softmax"),
        ("cross_entropy", SCORES, None, {"classes": 1}, "loss-input-mismatch"),
        ("nll", SCORES, None, {}, "loss-input-mismatch"),
        ("nll", DISTRIBUTION, None, {}, "loss-input-mismatch"),
        ("bce_logits", SIGMOID, None, {}, "loss-input-mismatch"),
        ("bce_logits", SCORES, {"min": -1.0, "max": 1.0}, {}, "loss-input-mismatch"),
        ("mse", SCORES, None, {"shapes": [[8, 1], [8]]}, "loss-input-mismatch"),
        ("cross_entropy", SCORES, {"min": 0, "max": 9}, {}, ""),
        ("cross_entropy", LOGARITHMS, None, {}, ""),
        ("nll", LOGARITHMS, None, {}, ""),
        ("bce_logits", SCORES, {"min": 0.0, "max": 1.0}, {}, ""),
        ("bce", SIGMOID, {"min": 0.0, "max": 1.0}, {}, ""),
        ("mse", SIGMOID, None, {"shapes": [[8, 1], [8, 1]]}, ""),
        ("mse", SCORES, None, {"shapes": [[8, 1], [1]]}, ""),
        ("bce_logits", SIGMOID, None, {"made_by": "Sigmoid"}, "loss-input-mismatch"),
        ("bce_logits", SIGMOID, None, {"made_by": None}, ""),
        ("cross_entropy", SIGMOID, None, {"made_by": "Sigmoid"}, "loss-input-mismatch"),
        ("cross_entropy", SIGMOID, None, {"made_by": None}, ""),
        ("ctc", DISTRIBUTION, None, {}, "loss-input-mismatch"),
        ("ctc", SCORES, None, {}, "loss-input-mismatch"),
        ("ctc", LOGARITHMS, None, {}, ""),
        ("ctc", LOGARITHMS | {"max": 0.0, "log_distribution": False}, None, {}, ""),
        ("multilabel_soft_margin", SIGMOID, {"min": 0.0, "max": 1.0}, {}, "loss-input-mismatch"),
        ("multilabel_soft_margin", SCORES, {"min": -1.0, "max": 1.0}, {}, "loss-input-mismatch"),
        ("margin_ranking", SCORES, {"min": 0.0, "max": 1.0, "distinct": 2}, {}, "loss-input-mismatch"),
        ("cosine", SCORES, {"min": -1.0, "max": 1.0, "distinct": 2}, {}, ""),
        ("soft_margin", SCORES, {"min": 0.0, "max": 1.0, "distinct": 9}, {}, ""),
        ("kl_div", LOGARITHMS, LOGARITHMS, {"options": {"log_target": False}}, "loss-input-mismatch"),
        ("kl_div", LOGARITHMS, LOGARITHMS, {"options": {"log_target": True}}, ""),
        ("kl_div", LOGARITHMS, DISTRIBUTION, {"options": {"log_target": True}}, "loss-input-mismatch"),
        ("kl_div", LOGARITHMS, DISTRIBUTION, {"options": {"log_target": False}}, ""),
        ("kl_div", LOGARITHMS, LOGARITHMS, {}, ""),
        ("poisson_nll", SIGMOID, None, {"options": {"log_input": True}, "made_by": "Softplus"}, "loss-input-mismatch"),
        ("poisson_nll", SIGMOID, None, {"options": {"log_input": True}, "made_by": None}, ""),
        ("poisson_nll", SIGMOID, None, {"options": {"log_input": False}, "made_by": "Exp"}, ""),
        ("poisson_nll", SCORES, None, {"options": {"log_input": False}}, "loss-input-mismatch"),
        ("poisson_nll", SCORES, None, {}, ""),
    ],
)
def test_what_a_loss_function_is_given(
    name: str, given: dict[str, Any], target: dict[str, Any] | None, more: dict[str, Any], cause: str
) -> None:
    result = judged(criterion.Criterion, called(name, given, target, **more))
    assert [violation.cause for violation in result.violations] == ([cause] if cause else [])
    assert result.verdict is (Verdict.FAIL if cause else Verdict.PASS)


SPREAD, ONE_NUMBER = {"min": 0.1, "max": 3.0, "std": 0.7}, {"min": 1.0, "max": 1.0, "std": 0.0}


@pytest.mark.parametrize(
    ("name", "requires", "more", "swapped"),
    [
        ("gaussian_nll", [True, True, False], {"variance": SPREAD}, True),
        ("gaussian_nll", [True, True, False], {"variance": ONE_NUMBER}, False),
        ("gaussian_nll", [True, False, True], {"variance": SPREAD}, False),
        ("gaussian_nll", [True, True, True], {"variance": SPREAD}, False),
        ("gaussian_nll", [True, False, False], {"variance": SPREAD}, False),
        ("bce", [False, True, None], {}, True),
        ("bce_logits", [False, True, None], {}, True),
        ("bce_logits", [True, True, None], {}, False),
        ("poisson_nll", [False, True, None], {}, True),
        ("cross_entropy", [False, True, None], {"target": SCORES}, True),
        ("cross_entropy", [False, True, None], {"target": DISTRIBUTION}, False),
        ("mse", [False, True, None], {}, False),
        ("kl_div", [False, True, None], {"input": LOGARITHMS}, False),
    ],
)
def test_arguments_in_each_others_place(name: str, requires: list[Any], more: dict[str, Any], swapped: bool) -> None:
    given, target = more.pop("input", SCORES), more.pop("target", {"min": 0.0, "max": 1.0})
    result = judged(criterion.Criterion, called(name, given, target, requires=requires, **more))
    assert [each.cause for each in result.violations] == (["argument-order-swapped"] if swapped else [])


# -- sentinels


def test_a_loss_without_a_graph() -> None:
    made = Made()
    for step in range(20):
        bare = step % 5 == 4
        made.event("loss", step, value=0.0 if bare else 1.0, micro=0, grad_fn="NoneType" if bare else "MeanBackward0")
    found = only(judged(sentinel.Sentinels, made))
    assert (found.cause, found.first_step) == ("sentinel-loss", 4)


def test_a_sudden_row_of_zeros_is_a_sentinel() -> None:
    made = training(np.concatenate([np.linspace(2.3, 1.5, 40), np.zeros(40)]), norm=None)
    found = only(judged(sentinel.Sentinels, made))
    assert (found.cause, found.first_step, found.severity) == ("sentinel-loss", 40, Severity.ERROR)


def test_zeros_among_losses_that_are_far_from_zero() -> None:
    values = 2 + 0.1 * draw().standard_normal(100)
    made = training(np.where(np.arange(100) % 10 == 3, 0.0, values), norm=None)
    for step in range(100):
        made.event("grad", step, point="step", l2=0.0 if step % 10 == 3 else 1.0, nonfinite=[], scale=None)
    assert only(judged(sentinel.Sentinels, made)).cause == "sentinel-loss"


@pytest.mark.parametrize(
    "values",
    [
        np.concatenate([np.linspace(1, 0, 80) ** 2, np.zeros(60)]),
        np.where(draw().random(300) < 0.7, 0.0, draw(1).random(300)),
        np.ones(100),
        np.concatenate([[1.0, 0.5], np.full(60, 0.25)]),
    ],
    ids=["a margin that is met", "hinge of one sample", "scaled by itself", "rests"],
)
def test_losses_that_repeat_and_are_healthy(values: Any) -> None:
    assert not judged(sentinel.Sentinels, training(values, norm=1.0)).violations


def test_the_same_batch_and_resting_weights_repeat_a_loss() -> None:
    made = training(np.concatenate([[4.0, 2.0], np.full(60, 0.25)]), norm=None)
    for step in range(62):
        made.event("grad", step, point="step", l2=1.0 if step < 2 else 0.0, nonfinite=[], scale=None)
        made.event("batch", step, loader=0, fingerprint="aa")
    assert not judged(sentinel.Sentinels, made).violations


# -- modes


def in_mode(*changes: tuple[int, bool], sensitive: int = 2) -> Made:
    made = training(np.linspace(2, 1, 30))
    for step, on in changes:
        made.event("mode", step, model="Net", training=on, mixed=0, sensitive=0 if on else sensitive)
    return made


def test_a_model_that_stays_in_eval_after_an_evaluation() -> None:
    found = only(judged(modes.Modes, in_mode((0, True), (10, False))))
    assert (found.cause, found.first_step, found.static) == ("model-left-in-eval", 10, False)
    assert only(judged(modes.Modes, in_mode((0, False)))).static


def test_modes_that_are_right_or_do_not_matter() -> None:
    assert judged(modes.Modes, in_mode((0, True))).verdict is Verdict.PASS
    assert not judged(modes.Modes, in_mode((0, False), sensitive=0)).violations
    made = in_mode((0, True))
    made.event("mode", 0, model="Teacher", training=False, mixed=0, sensitive=3)
    assert not judged(modes.Modes, made).violations


@pytest.mark.parametrize(
    ("told", "accused"),
    [
        ({"training": True, "sensitive": True, "mixed": 2, "forwards": 4, "loss": 1.0}, True),
        ({"training": True, "sensitive": True, "mixed": 2, "forwards": 4, "loss": None}, True),
        ({"training": True, "sensitive": True, "mixed": 2, "forwards": 1, "loss": None}, False),
        ({"training": True, "sensitive": True, "mixed": 2, "forwards": 1, "loss": 1.0, "frequent": True}, False),
        ({"training": True, "sensitive": False, "mixed": 0, "forwards": 4, "loss": 1.0}, False),
        ({"training": False, "sensitive": True, "mixed": 0, "forwards": 4, "loss": 1.0}, False),
    ],
)
def test_the_mode_of_an_evaluation(told: dict[str, Any], accused: bool) -> None:
    made = in_mode((0, True))
    for step in (10, 20):
        made.event("evaluation", step, model="Net", rows=64, **told)
    found = judged(modes.Modes, made).violations
    assert [violation.cause for violation in found] == (["model-left-in-train"] if accused else [])


@pytest.mark.parametrize(("begins", "accused"), [(30, True), (5, False)], ids=["afterwards", "meanwhile"])
def test_an_optimizer_of_a_later_stage_does_not_hide_the_mode(begins: int, accused: bool) -> None:
    made = in_mode((0, True))
    told = {"training": True, "sensitive": True, "mixed": 2, "forwards": 4, "loss": None}
    for step in (10, 20):
        made.event("evaluation", step, model="Net", rows=64, **told)
    for step in range(begins, 40):
        made.event("optimizer", step, optimizer=1, lr=[1e-3], count=step - begins + 1)
    found = judged(modes.Modes, made).violations
    assert [violation.cause for violation in found] == (["model-left-in-train"] if accused else [])


# -- batches


def drawn(prints: Iterable[str], batches_of: int, *, restarted: bool = False) -> Made:
    prints = list(prints)
    made = training(np.linspace(2, 1, len(prints)))
    made.event("loader", 0, loader=0, cls="DataLoader", shuffles=False, batches=batches_of, samples=800, train=True)
    for step, name in enumerate(prints):
        epoch, index = (step, 0) if restarted else divmod(step, batches_of)
        made.event("batch", step, loader=0, fingerprint=name, size=8, epoch=epoch, index=index, count=step + 1)
    return made


def test_the_first_batch_again_and_again() -> None:
    found = only(judged(data_order.DataOrder, drawn(["aa"] * 20, 50, restarted=True)))
    assert (found.cause, found.severity, found.detected_step) == ("data-repeats", Severity.ERROR, 7)


def test_full_batches_repeat_and_shuffled_ones_do_not() -> None:
    assert not judged(data_order.DataOrder, drawn(["aa"] * 20, 1)).violations
    assert judged(data_order.DataOrder, drawn([f"{n:x}" for n in range(40)], 10)).verdict is Verdict.PASS


def test_the_same_order_in_every_epoch_is_worth_knowing() -> None:
    result = judged(data_order.DataOrder, drawn([f"{n % 10:x}" for n in range(40)], 10))
    assert (only(result).cause, only(result).severity) == ("data-not-shuffled", Severity.INFO)


def targets(lows: Iterable[float], highs: Iterable[float], sites: tuple[str, ...] = ("train.py:9",)) -> Made:
    made = training(np.linspace(2, 1, 60))
    for step, (low, high) in enumerate(zip(lows, highs, strict=True)):
        for site in sites:
            about = {"name": "cross_entropy", "value": 1.0, "classes": 10, "rows": 32, "grad": True, "site": site}
            seen = {"min": low, "max": high, "distinct": 1 if low == high else 8, "looked": 32}
            made.event("criterion", step, **about, target=seen)
    return made


def test_batches_of_one_class_each() -> None:
    classes = [step // 6 for step in range(60)]
    found = only(judged(data_order.DataOrder, targets(classes, classes)))
    assert (found.cause, found.severity) == ("data-not-shuffled", Severity.WARNING)


def test_mixed_batches_rare_classes_and_adversaries_are_no_sorted_data() -> None:
    mixed = targets([0] * 60, [9] * 60)
    rare = targets([0] * 60, [1 if step % 3 == 0 else 0 for step in range(60)])
    answers = [step % 2 for step in range(60)]
    for made in (mixed, rare, targets(answers, answers, ("gan.py:3", "gan.py:9"))):
        assert not judged(data_order.DataOrder, made).violations


@pytest.mark.parametrize(
    ("shuffles", "samples", "accused"), [(True, 32, False), (False, 32, True), (None, 32, True), (None, 1, False)]
)
def test_a_loader_that_shuffles_and_a_batch_of_one_sequence_are_no_sorted_data(
    shuffles: bool | None, samples: int, accused: bool
) -> None:
    """Neighbouring tokens are near each other, in whatever order their sequences come."""
    starts = [step * 7 % 60 for step in range(60)]
    made = targets(starts, [start + 3 for start in starts])
    made.event("loader", 0, loader=0, train=True, shuffles=shuffles, batches=60)
    for step in range(60):
        made.event("batch", step, loader=0, fingerprint=f"{step:x}", samples=samples, size=samples, epoch=0, index=step)
    assert bool(judged(data_order.DataOrder, made).violations) is accused


@pytest.mark.parametrize("how", ["learnt", "a model's", "data"])
def test_targets_that_a_model_makes_say_nothing_of_the_order(how: str) -> None:
    """They move as it learns: narrow in each batch, and far apart over the run."""
    made = targets(np.arange(60) * 0.5, np.arange(60) * 0.5 + 1)
    for event in made.records:
        if getattr(event, "kind", "") == "criterion":
            event.fields["target"]["dtype"] = "float32"
            event.fields["requires"] = [True, how == "learnt", None]
    for step in range(60):
        made.event("evaluation", step, model="Target", frequent=how == "a model's", loss=None)
    assert bool(judged(data_order.DataOrder, made).violations) is (how == "data")


# -- inputs


def fed(mean: float, std: float, first: float = 2.3) -> Made:
    made = training(np.linspace(first, 1, 30), classes=10)
    for step in range(30):
        made.event("batch", step, loader=0, fingerprint=f"{step:x}", mean=mean, std=std, absmax=255.0, nan=0, inf=0)
    return made


def test_raw_pixels_with_a_first_loss_far_above_guessing() -> None:
    found = only(judged(inputs.Inputs, fed(120.0, 70.0, first=40.0)))
    assert (found.cause, found.severity, found.brick) == ("unnormalised-inputs", Severity.WARNING, "embed")


def test_a_scale_that_does_no_harm_is_worth_knowing_and_unit_scale_passes() -> None:
    assert only(judged(inputs.Inputs, fed(120.0, 70.0))).severity is Severity.INFO
    assert judged(inputs.Inputs, fed(0.1, 1.2)).verdict is Verdict.PASS


def test_a_batch_with_nan_in_the_step_in_which_the_loss_broke() -> None:
    made = training([*np.linspace(2, 1, 10), NAN, NAN])
    made.event("batch", 10, loader=0, fingerprint="a", nan=3, inf=0)
    found = only(judged(inputs.Inputs, made))
    assert (found.cause, found.severity, found.first_step) == ("data-nonfinite", Severity.ERROR, 10)
    harmless = training(np.linspace(2, 1, 12))
    harmless.event("batch", 10, loader=0, fingerprint="a", nan=3, inf=0)
    assert only(judged(inputs.Inputs, harmless)).severity is Severity.INFO


# -- activations


def units(dead: Iterable[float], saturated: float | None = None, activation: str = "ReLU") -> Made:
    made = training(np.linspace(2, 1, 60))
    for look, share in enumerate(dead):
        told = {"units": 64, "activation": activation, "saturated": saturated}
        made.event("units", 8 * look, brick=made.numbers["body"], dead=share, **told)
        made.event("units", 8 * look, brick=made.numbers["head"], dead=0.0, units=64, activation="ReLU")
    return made


def test_a_layer_that_died() -> None:
    found = only(judged(activations.Activations, units([0.1, 0.2, 1.0, 1.0, 1.0])))
    assert (found.cause, found.brick, found.first_step) == ("dead-activations", "body", 16)


def test_a_layer_at_its_bounds() -> None:
    found = only(judged(activations.Activations, units([0.0] * 4, 0.97, "Tanh")))
    assert found.cause == "saturated-activations"


@pytest.mark.parametrize(("shares", "accused"), [([0.99] * 4, True), ([0.1, 0.4, 0.95, 0.95, 0.97], False)])
def test_an_output_may_come_to_its_bounds_and_does_not_begin_there(shares, accused) -> None:
    made = training(np.linspace(2, 1, 60))
    for look, share in enumerate(shares):
        made.event("units", 8 * look, brick=made.numbers["body"], dead=0.0, units=64, activation="ReLU")
        made.event("units", 8 * look, brick=made.numbers["head"], saturated=share, units=64, activation="Tanh")
    found = judged(activations.Activations, made).violations
    assert [each.cause for each in found] == (["saturated-activations"] if accused else [])


def test_some_dead_units_are_usual_and_one_look_proves_nothing() -> None:
    assert judged(activations.Activations, units([0.5, 0.6, 0.55])).verdict is Verdict.PASS
    assert not judged(activations.Activations, units([0.0, 1.0])).violations
    assert not judged(activations.Activations, units([1.0, 0.2, 0.3, 0.2])).violations


# -- evaluation


def evaluated(train: Any, held: Any) -> Made:
    made = training(train)
    every = len(train) // len(held)
    for place, value in enumerate(held):
        made.event("evaluation", (place + 1) * every - 1, model="Net", training=False, loss=float(value), forwards=4)
    return made


def test_an_evaluation_that_turns_while_training_falls() -> None:
    train = 2 * np.exp(-np.arange(200) / 40)
    found = only(judged(evaluation.Generalisation, evaluated(train, [1.5, 1.2, 1.0, 1.1, 1.3, 1.6, 1.8, 2.0])))
    assert (found.cause, found.severity, found.first_step) == ("overfitting", Severity.WARNING, 74)


def test_evaluations_that_fall_or_are_noisy() -> None:
    train = 2 * np.exp(-np.arange(200) / 40) + 0.2
    for held in ([1.5, 1.2, 1.0, 0.9, 0.8, 0.7], [1.0, 0.9, 1.1, 0.95, 1.05, 0.92], [1.0, 0.9]):
        assert not judged(evaluation.Generalisation, evaluated(train, held)).violations


def test_an_evaluation_that_overruns_the_model() -> None:
    made = training(np.linspace(2, 1, 20))
    made.event("evaluation", 20, model="Net", training=False, loss=None, forwards=1)
    made.event("exception", 20, type="IndexError", message="index out of range in self", frames=[])
    found = only(judged(forward.EvaluationBuffers, made))
    assert (found.cause, found.first_step) == ("out-of-bounds", 20)
    trained = training(np.linspace(2, 1, 20))
    trained.event("exception", 19, type="IndexError", message="index out of range in self", frames=[])
    assert judged(forward.EvaluationBuffers, trained).verdict is Verdict.NOT_EVALUATED


def test_trainings_one_after_the_other_do_not_jump() -> None:
    fold = [2.0 * 0.9**step + 0.05 for step in range(60)]
    made = training(fold * 5)
    assert not quiet(judged(spikes.Spikes, made))
    for number, begun in ((1, 60), (2, 120), (3, 180), (4, 240)):
        made.event("optimizer_created", begun, optimizer=number, cls="Adam", groups=[])
        for step in range(begun, begun + 60):
            made.event("optimizer", step, optimizer=number, lr=[1e-3], count=step - begun + 1)
    assert quiet(judged(spikes.Spikes, made))


# -- batches without a loader


def remade(count: int, *, same: bool, places: int = 2, rows: int = 16) -> Made:
    made = training([1.0] * count)
    for step in range(count):
        name = "cafe" if same else f"{step:04x}"
        made.event("targets", step, fingerprint=name, input=name, rows=rows, at=step % places)
    return made


def test_a_batch_that_is_made_anew_and_always_the_same() -> None:
    found = only(judged(data_order.RULE, remade(40, same=True)))
    assert (found.cause, found.severity) == ("data-repeats", Severity.WARNING)


@pytest.mark.parametrize(
    ("count", "told"),
    [(40, {"same": False}), (40, {"same": True, "places": 1}), (40, {"same": True, "rows": 4000}), (9, {"same": True})],
    ids=["new ones", "a whole dataset in one place", "a whole dataset", "short"],
)
def test_batches_that_may_repeat(count: int, told: dict[str, Any]) -> None:
    assert quiet(judged(data_order.RULE, remade(count, **told)))


def test_one_sequence_has_nothing_to_mix() -> None:
    def sorted_targets(fed: int) -> Made:
        made = training([1.0] * 40)
        for step in range(40):
            target = {"min": 10.0 * (step % 8), "max": 10.0 * (step % 8) + 5, "distinct": 5, "looked": 32}
            call = {"name": "cross_entropy", "value": 1.0, "reduction": "mean", "classes": 90, "target": target}
            made.event("criterion", step, **call, rows=32, grad=True, site="train.py:9", fed=fed)
        return made

    assert not quiet(judged(data_order.RULE, sorted_targets(32)))
    assert quiet(judged(data_order.RULE, sorted_targets(1)))
