"""C-TRAINSTABLE-001: what breaks it, where it began, and what does not break it."""

from __future__ import annotations

import pytest
from making import INF, NAN, Made

from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.records import Event
from brickprof.rules.stability import Stability


def judge(made: Made) -> ContractResult:
    rule = Stability()
    for record in made.records:
        rule.feed(record)
    return rule.finish(None)


def only(result: ContractResult):
    assert result.verdict is Verdict.FAIL, result
    (violation,) = result.violations
    return violation


def test_a_healthy_run_passes_with_evidence():
    made = Made()
    made.healthy(10)
    result = judge(made)
    assert result.verdict is Verdict.PASS
    assert "10 finite losses" in result.observed


def test_nothing_observed_is_vacuous():
    assert judge(Made()).verdict is Verdict.VACUOUS


def test_updates_without_losses_or_gradients_are_not_evaluated():
    made = Made()
    made.event("optimizer", 0, optimizer=0, lr=[1e-3], count=1)
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert result.why


def test_a_nan_loss_names_its_step():
    made = Made()
    made.healthy(5)
    made.step(5, loss=NAN)
    violation = only(judge(made))
    assert (violation.first_step, violation.brick, violation.severity) == (5, "loss", Severity.ERROR)
    assert violation.symptom == "loss is nan from step 5 on"


def test_one_event_is_one_violation_and_the_origin_is_the_first_in_causal_order():
    made = Made("embed", "body", "head")
    made.healthy(7)
    made.forward(7)
    made.event("loss", 7, value=1.0)
    made.broken("grad", 7, "embed", "body", point="step", nan=3)
    made.event("optimizer", 7, optimizer=0, lr=[1e-3], count=8)
    made.broken("weight", 7, "embed", "body", nan=3, when="after")
    for step in (8, 9):
        made.event("loss", step, value=NAN)
        made.broken("grad", step, "embed", "body", "head", point="step")
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    violation = only(judge(made))
    # Backward runs from the loss down: of the two that broke in step 7, body is the first.
    assert (violation.first_step, violation.brick) == (7, "body")
    assert violation.symptom == "loss is nan from step 8 on"


def test_late_written_records_do_not_change_the_origin():
    """Statistics from a device are written steps after what they speak of."""
    made = Made()
    made.healthy(4)
    made.step(4, loss=NAN)
    made.step(5, loss=NAN)
    made.activation(4, "body", nan=5)
    violation = only(judge(made))
    assert (violation.first_step, violation.brick) == (4, "body")


def test_the_first_block_in_forward_order_is_named():
    made = Made("embed", "body", "head")
    made.healthy(4)
    made.forward(4)
    made.activation(4, "head", nan=2, inputs_finite=False)
    made.activation(4, "body", nan=2)
    made.event("loss", 4, value=NAN)
    assert only(judge(made)).brick == "body"


def test_weights_found_broken_before_a_step_were_broken_by_the_step_before():
    made = Made()
    made.healthy(4)
    made.event("loss", 4, value=NAN)
    made.broken("weight", 4, "embed", nan=7, when="before")
    violation = only(judge(made))
    assert (violation.first_step, violation.brick) == (3, "embed")


def test_the_bracket_is_said_when_steps_between_were_not_looked_at():
    made = Made()
    made.healthy(20)
    made.sample("weight", 8, "embed")
    made.broken("weight", 16, "embed", when="after")
    violation = only(judge(made))
    assert violation.first_step == 16
    assert "between step 9 and 16" in violation.symptom


def test_one_nan_among_millions_is_enough():
    made = Made()
    made.healthy(3)
    made.event("weight", 2, nonfinite=[{"tensor": 1, "nan": 1, "inf": 0, "numel": 33_554_432}], when="after")
    assert "1 of 33,554,432 weights of embed.weight is nan" in only(judge(made)).symptom


@pytest.mark.parametrize("step", [0, 30])
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_that_the_scaler_skipped_is_healthy(step, fused):
    made = Made(dtype="float16")
    for at in range(40):
        made.forward(at)
        made.event("loss", at, value=1.0, scale=65536.0)
        if at == step:
            made.broken("grad", at, "embed", "body", "head", point="unscale", inf=64, nan=0, scale=65536.0)
            made.event("clip", at, norm=NAN, max_norm=1.0)
            if fused:  # a fused optimizer is called, and skips inside
                made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at)
            made.event("scaler", at, op="step", found_inf=1.0, skipped=True, scale=65536.0)
        else:
            made.event("grad", at, point="unscale", nonfinite=[], l2=1.0, scale=65536.0)
            made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at)
    result = judge(made)
    assert result.verdict is Verdict.PASS
    assert "1 step skipped" in result.why


def test_a_scaled_loss_that_overflows_and_is_skipped_is_healthy():
    made = Made()
    made.healthy(5)
    made.event("loss", 5, value=INF, scale=65536.0)
    made.event("scaler", 5, op="step", found_inf=1.0, skipped=True)
    made.healthy(5, first=6)
    assert judge(made).verdict is Verdict.PASS


def test_steps_that_are_skipped_for_ever_are_a_failure():
    made = Made(dtype="float16")
    made.healthy(5)
    for at in range(5, 60):
        made.event("loss", at, value=1.0, scale=2.0 ** (16 - at))
        made.broken("grad", at, "body", point="unscale", inf=1, scale=1.0)
        made.event("scaler", at, op="step", found_inf=1.0, skipped=True)
    violation = only(judge(made))
    assert (violation.first_step, violation.brick) == (5, "body")
    assert "all skipped" in violation.symptom


def test_a_nan_gradient_that_nothing_applied_is_no_failure_when_training_goes_on():
    made = Made()
    made.healthy(5)
    made.event("loss", 5, value=1.0)
    made.event("zero_grad", 5, optimizer=0)
    made.broken("grad", 5, "head", point="clip")
    made.healthy(5, first=6)
    assert judge(made).verdict is Verdict.PASS


def test_a_nan_gradient_that_nothing_applied_is_a_warning_at_most_when_it_is_the_last_thing():
    made = Made()
    made.healthy(5)
    made.event("loss", 5, value=1.0)
    made.broken("grad", 5, "head", point="clip")
    assert only(judge(made)).severity is Severity.WARNING


def test_a_gradient_that_was_repaired_before_the_step_is_healthy():
    made = Made()
    made.healthy(5)
    made.event("loss", 5, value=1.0)
    made.broken("grad", 5, "head", point="clip")
    made.event("clip", 5, norm=NAN, max_norm=1.0)
    made.event("optimizer", 5, optimizer=0, lr=[1e-3], count=6)
    made.sample("weight", 6, "head")
    made.healthy(5, first=6)
    assert judge(made).verdict is Verdict.PASS


def test_infinities_inside_a_block_are_no_failure_while_everything_downstream_is_finite():
    made = Made()
    for step in range(300):
        made.step(step)
        made.activation(step, "body", inf=32)
    assert judge(made).verdict is Verdict.PASS


def test_a_habit_of_a_block_is_not_the_origin_of_a_later_failure():
    made = Made("embed", "body", "head")
    for step in range(20):
        made.step(step)
        made.activation(step, "embed", inf=32)
    made.forward(20)
    made.activation(20, "embed", inf=32)
    made.activation(20, "head", nan=1)
    made.event("loss", 20, value=NAN)
    assert only(judge(made)).brick == "head"


def test_a_line_search_that_tried_a_bad_point_is_healthy():
    made = Made()
    made.healthy(3)
    made.event("loss", 3, value=INF, micro=0)
    made.event("loss", 3, value=1.0, micro=1)
    made.event("optimizer", 3, optimizer=0, lr=[1.0], count=4)
    made.healthy(3, first=4)
    assert judge(made).verdict is Verdict.PASS


def test_a_bad_micro_batch_is_the_origin_of_what_it_broke():
    made = Made()
    made.healthy(3)
    made.event("loss", 3, value=NAN, micro=1)
    made.event("loss", 3, value=1.0, micro=2)
    made.event("optimizer", 3, optimizer=0, lr=[1.0], count=4)
    made.event("loss", 4, value=NAN)
    violation = only(judge(made))
    assert (violation.first_step, violation.brick) == (3, "loss")


def test_a_nan_loss_that_was_not_applied_and_passed_is_a_warning():
    made = Made()
    made.healthy(3)
    made.event("loss", 3, value=NAN)
    made.event("zero_grad", 3, optimizer=0)
    made.healthy(3, first=4)
    violation = only(judge(made))
    assert violation.severity is Severity.WARNING
    assert violation.first_step == 3


def test_hand_written_updates_have_no_optimizer_and_are_still_judged():
    made = Made()
    for step in range(4):
        made.event("loss", step, value=1.0)
        made.event("grad", step, point="backward", nonfinite=[], l2=1.0)
    made.event("loss", 4, value=1.0)
    made.broken("grad", 4, "head", point="backward")
    made.event("loss", 5, value=NAN)
    violation = only(judge(made))
    assert (violation.first_step, violation.brick) == (4, "head")


def test_infinite_weights_by_design_are_healthy():
    made = Made()
    made.broken("weight", 0, "embed", nan=0, inf=8, when="after")
    made.healthy(10)
    assert judge(made).verdict is Verdict.PASS


def test_evaluation_outputs_are_not_training():
    made = Made()
    made.healthy(5)
    made.activation(5, "embed", nan=9, phase="eval")
    made.step(5, loss=NAN)
    assert only(judge(made)).brick == "loss"


def test_ranks_that_break_together_are_one_violation():
    first, second = Made(rank=0), Made(rank=1)
    for made in (first, second):
        made.healthy(3)
        made.step(3, loss=NAN)
    first.records += second.records
    assert only(judge(first)).first_step == 3


def test_memory_stays_bounded():
    rule = Stability()
    made = Made()
    for record in made.records:
        rule.feed(record)
    for step in range(20_000):
        rule.feed(Event("loss", step, {"value": 1.0}, step))
        rule.feed(Event("activation", step, {"brick": 2, "nan": 0, "inf": 3, "phase": "forward"}, step))
        rule.feed(Event("scaler", step, {"op": "step", "found_inf": float(step % 7 == 0)}, step))
    kept = len(rule._outputs) + len(rule._facts) + sum(map(len, rule._seen.values()))
    assert kept + sum(len(rank.steps) for rank in rule._ranks.values()) < 5000
    assert rule.finish(None).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"value": None},
        {"value": "nan"},
        {"value": {"a": 1}},
        {"value": True},
        {"nonfinite": 3},
        {"nonfinite": [7]},
    ],
)
@pytest.mark.parametrize(
    "kind", ["loss", "grad", "weight", "activation", "clip", "scaler", "optimizer", "tensor", "brick"]
)
def test_strange_records_do_no_harm(kind, fields):
    made = Made()
    made.healthy(2)
    made.event(kind, 1, **fields)
    assert judge(made).verdict is Verdict.PASS
