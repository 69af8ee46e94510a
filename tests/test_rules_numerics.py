"""Gradients and numerics: clipping, depth, accumulation, scales, the start of a run, and which cause wins."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from making import INF, NAN, Made

from brickprof.contracts import registry
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Finding, diagnose
from brickprof.records import Sample
from brickprof.rules.accumulation import Accumulation
from brickprof.rules.clipping import Clip, EmbedGrad
from brickprof.rules.divergence import StepSize
from brickprof.rules.initialisation import Initialisation
from brickprof.rules.interleaved import BackParity, Interleaved
from brickprof.rules.norms import AppliedNorm
from brickprof.rules.precision import Precision
from brickprof.rules.residual import Residual
from brickprof.rules.scaling import LossScale
from brickprof.rules.story import Story

LAYERS = tuple(f"blocks.{number}" for number in range(24))
RULES = (Clip, EmbedGrad, AppliedNorm, Residual, Accumulation, LossScale, Initialisation, Precision, Interleaved,
         BackParity, StepSize)  # fmt: skip


def judge(rule: Any, made: Made) -> ContractResult:
    story = Story()
    for record in made.records:
        story.feed(record)
    result: ContractResult = rule().judge(story, Terms().contract(rule.contract))
    return result


def step(
    made: Made, at: int, *, before: float = 1.0, after: float | None = None, clip: Any = None, **told: Any
) -> None:
    """A step told in full: what backward left, what the update used, and torch's clipping if it has a bound."""
    used = before if after is None else after
    made.forward(at)
    made.event("loss", at, value=told.get("loss", 1.0), micro=0, site="t.py:1", grad_fn="NllLossBackward0", zeroed=1)
    if clip is not None:
        made.event("grad", at, point="clip", tensors=len(made.numbers), l2=before, at=1, nonfinite=[])
        made.event("clip", at, norm=before, max_norm=clip, norm_type=2.0, tensors=len(made.numbers), how="norm")
    else:
        made.event("grad", at, point="step", tensors=len(made.numbers), l2=used, at=1, nonfinite=[])
    made.event("applied", at, optimizer=0, coefficient=used / before, before=before, after=used, blocks=[])
    made.event("optimizer", at, optimizer=0, lr=[told.get("lr", 1e-3)], count=at + 1)


def declare(made: Made, **values: Any) -> str:
    return made.event("config", 0, rank=-1, source="train.yaml", values=values).id


def violation(result: ContractResult) -> Any:
    assert result.verdict is Verdict.FAIL, result
    (found,) = result.violations
    return found


@pytest.mark.parametrize("rule", RULES)
def test_nothing_observed_is_no_pass(rule):
    assert judge(rule, Made()).verdict in (Verdict.VACUOUS, Verdict.NOT_EVALUATED)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_contract(rule):
    assert registry.find(rule.contract).bindings.rules


@pytest.mark.parametrize("steps", [1, 2, 3, 30])
def test_a_plain_healthy_run_breaks_nothing(steps):
    made = Made(*LAYERS[:6])
    made.owned()
    for at in range(steps):
        step(made, at, before=1.0 + 0.1 * (at % 3))
        for block in LAYERS[:6]:
            made.sample("grad", at, block)
            made.sample("weight", at, block, mean=0.0)
    for rule in RULES:
        assert not judge(rule, made).violations, rule.contract


# -- clipping


def test_clipping_that_works_passes():
    made = Made()
    for at in range(10):
        step(made, at, before=5.0, after=1.0, clip=1.0)
    assert judge(Clip, made).verdict is Verdict.PASS
    assert judge(EmbedGrad, made).verdict is Verdict.PASS
    assert judge(AppliedNorm, made).verdict is Verdict.PASS


def test_no_clipping_and_no_bound_is_vacuous_even_when_gradients_are_large():
    made = Made()
    for at in range(10):
        step(made, at, before=500.0)
    assert judge(Clip, made).verdict is Verdict.VACUOUS


def test_a_declared_bound_that_is_never_reached_passes():
    made = Made()
    declare(made, **{"optim.grad_clip": 1.0})
    for at in range(10):
        step(made, at, before=0.3)
    assert judge(Clip, made).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "key", ["grad_clip", "train.max_grad_norm", "gradient_clip_val", "clip-grad", "optim.clip_grad_norm"]
)
def test_a_declared_bound_that_nothing_enforces(key):
    made = Made()
    evidence = declare(made, **{key: "1.0"})
    for at in range(10):
        step(made, at, before=5.0)
    found = violation(judge(Clip, made))
    assert (found.cause, found.severity, found.first_step) == ("grad-clip-not-applied", Severity.ERROR, 0)
    assert evidence in found.evidence
    assert "clip_grad_norm_" in found.action


@pytest.mark.parametrize("key", ["clip_range", "ppo.clip_eps", "clip_value", "gradient_clip_algorithm", "clip_reward"])
def test_other_things_that_are_clipped_declare_no_bound_on_gradients(key):
    made = Made()
    declare(made, **{key: 0.2})
    for at in range(10):
        step(made, at, before=5.0)
    assert judge(Clip, made).verdict is Verdict.VACUOUS


def test_clipping_that_runs_after_the_update():
    made = Made()
    for at in range(10):
        step(made, at, before=5.0)
        made.event("clip", at, norm=5.0, max_norm=1.0, norm_type=2.0, tensors=3, how="norm")
    found = violation(judge(Clip, made))
    assert found.cause == "grad-clip-not-applied"
    assert "after the update" in found.symptom


@pytest.mark.parametrize("rest", [0, 200])
def test_clipping_before_the_backward_measures_nothing_and_bounds_nothing(rest):
    """Also where the run broke soon, and went on for long with gradients that are no numbers."""
    made = Made()
    for at in range(6):
        made.event("clip", at, norm=0.0, max_norm=1.0, norm_type=2.0, tensors=3, how="norm", late=at > 0)
        step(made, at, before=30.0 * 3**at, after=30.0 * 3**at)
    for at in range(6, 6 + rest):
        made.event("clip", at, norm=0.0, max_norm=1.0, norm_type=2.0, tensors=3, how="norm", late=True)
        if at % 10 == 0:
            made.broken("grad", at, "body", point="step", tensors=3, l2=None)
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    found = violation(judge(Clip, made))
    assert found.cause == "grad-clip-not-applied"
    assert "not there yet" in found.symptom


@pytest.mark.parametrize(("tensors", "before", "found"), [(0, 30.0, True), (0, 1.2, False), (3, 30.0, False)])
def test_clipping_that_is_given_nothing(tensors, before, found):
    """An iterator that is used up: clipping runs, and no gradient is in it."""
    made = Made()
    for at in range(10):
        if tensors:
            step(made, at, before=before, after=1.0, clip=1.0)
            continue
        made.event("clip", at, norm=0.0, max_norm=1.0, norm_type=2.0, tensors=0, how="norm", late=False)
        step(made, at, before=before)
    result = judge(Clip, made)
    assert [(each.cause, each.severity) for each in result.violations] == (
        [("grad-clip-not-applied", Severity.ERROR)] if found else []
    )
    if found:
        assert "no tensor at all" in result.violations[0].symptom


@pytest.mark.parametrize(("share", "explained"), [(0.02, True), (0.9, False)])
def test_units_that_stick_in_unbounded_updates_follow_from_them(share, explained):
    made = Made()
    for at in range(10):
        made.event("units", at, brick=2, activation="Sigmoid", units=64, rows=8, dead=None, saturated=share)
        made.event("clip", at, norm=0.0, max_norm=1.0, norm_type=2.0, tensors=0, how="norm", late=False)
        step(made, at, before=30.0)
    assert ("saturated-units" in violation(judge(Clip, made)).explains) is explained


def test_clipping_only_when_needed_is_healthy():
    made = Made()
    for at in range(20):
        large = at % 4 == 0
        step(made, at, before=5.0 if large else 0.5, after=1.0 if large else 0.5, clip=1.0 if large else None)
    assert judge(Clip, made).verdict is Verdict.PASS


def test_clipping_by_hand_is_healthy():
    made = Made()
    for at in range(20):
        step(made, at, before=2.0 + at, after=1.0)
    assert not judge(Clip, made).violations


def test_a_squared_norm_is_told_by_its_law():
    made = Made()
    for at in range(20):
        before = 2.0 + at
        step(made, at, before=before, after=before / before**2)
    found = violation(judge(Clip, made))
    assert found.cause == "grad-clip-wrong"
    assert "power of 2" in found.symptom


def test_clipping_block_by_block():
    made = Made("a", "b", "c", "d")
    made.owned()
    for at in range(6):
        made.forward(at)
        made.event("loss", at, value=1.0)
        for norm in (0.5, 3.0, 8.0, 2.0):
            made.event("clip", at, norm=norm, max_norm=1.0, norm_type=2.0, tensors=1, how="norm")
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    found = violation(judge(Clip, made))
    assert (found.cause, found.details["kind"]) == ("grad-clip-wrong", "per-block")


def test_the_two_halves_of_a_gan_may_be_clipped_apart():
    made = Made("generator", "critic")
    made.owned("generator", optimizer=0)
    made.owned("critic", optimizer=1)
    for at in range(6):
        for optimizer, norm in enumerate((3.0, 9.0)):
            made.event("clip", at, norm=norm, max_norm=1.0, norm_type=2.0, tensors=1, how="norm")
            made.event("optimizer", at, optimizer=optimizer, lr=[1e-3], count=at + 1)
    assert not judge(Clip, made).violations


def test_clipping_on_scaled_gradients():
    made = Made()
    for at in range(6):
        made.event("loss", at, value=1.0, scale=65536.0)
        made.event("grad", at, point="clip", l2=131072.0, scale=65536.0, nonfinite=[])
        made.event("clip", at, norm=131072.0, max_norm=1.0, norm_type=2.0, tensors=3, how="norm")
        made.event("scaler", at, op="step", scale=65536.0, found_inf=0, skipped=False)
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    found = violation(judge(Clip, made))
    assert (found.cause, found.details["kind"]) == ("grad-clip-wrong", "scaled")


def left_out(block: str) -> Made:
    """Clipping is given all blocks but one, whose gradient is large."""
    made = Made("embed", "body", "head")
    made.owned()
    for at in range(6):
        made.forward(at)
        made.event("loss", at, value=1.0)
        made.event("grad", at, point="clip", tensors=2, l2=2.0, at=2, nonfinite=[])
        made.event("clip", at, norm=2.0, max_norm=1.0, norm_type=2.0, tensors=2, how="norm")
        made.event("grad", at, point="step", tensors=1, l2=40.0, at=made.numbers[block], nonfinite=[])
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    return made


def test_an_embedding_that_clipping_leaves_out_is_named():
    made = left_out("embed")
    found = violation(judge(EmbedGrad, made))
    assert (found.cause, found.brick) == ("grad-clip-wrong", "embed")
    assert judge(Clip, made).verdict is Verdict.FAIL
    assert not judge(Clip, made).violations


def test_another_block_that_clipping_leaves_out_is_named():
    made = left_out("head")
    found = violation(judge(Clip, made))
    assert (found.cause, found.brick) == ("grad-clip-wrong", "head")


# -- norms and depth


def weighted(made: Made, steps: int, norm: Any) -> Made:
    for at in range(steps):
        step(made, at, before=norm(at))
        made.sample("weight", at, "body", l2=8.0)
    return made


def test_one_spike_that_recovers_is_no_runaway():
    made = weighted(Made(), 40, lambda at: 1e7 if at == 20 else 1.0)
    assert not judge(AppliedNorm, made).violations


def test_gradients_that_grow_and_stay_are_a_symptom():
    found = violation(judge(AppliedNorm, weighted(Made(), 40, lambda at: 1.0 if at < 25 else 1e6)))
    assert (found.what, found.cause, found.severity) == ("exploding", "", Severity.WARNING)
    assert found.first_step == 25


def test_large_units_of_the_loss_are_no_runaway():
    made = Made()
    for at in range(20):
        step(made, at, before=1e7, loss=1e6)
        made.sample("weight", at, "body", l2=8.0)
    assert not judge(AppliedNorm, made).violations


def deep(factor: float, *, towards_input: bool = False, suffix: str = "", looks: int = 6) -> Made:
    """Gradients that change by ``factor`` from layer to layer."""
    blocks = [f"{layer}{end}" for layer in LAYERS[:10] for end in ([".attn", ".mlp"] if suffix else [""])]
    made = Made(*blocks)
    made.owned()
    for at in range(looks):
        step(made, at)
        for block in blocks:
            layer = int(block.split(".")[1])
            power = 9 - layer if towards_input else layer
            made.sample("grad", at, block, l2=1e-12 * factor**power)
    return made


def test_a_mild_decay_over_depth_is_healthy():
    assert judge(Residual, deep(1.6)).verdict is Verdict.PASS


def test_gradients_that_die_out_are_vanishing():
    found = violation(judge(Residual, deep(4.0)))
    assert (found.cause, found.brick) == ("vanishing-gradients", "blocks.0")


def test_blocks_that_need_a_skip_and_pass_nothing_on():
    found = violation(judge(Residual, deep(4.0, suffix="both")))
    assert (found.cause, found.brick) == ("residual-path-broken", "blocks.0")
    assert "not-learning" in found.explains


def test_gradients_that_grow_towards_the_input():
    found = violation(judge(Residual, deep(9.0, towards_input=True)))
    assert (found.cause, found.brick) == ("exploding-gradients", "blocks.0")


def test_a_single_look_does_not_prove_a_decay():
    assert not judge(Residual, deep(4.0, looks=1)).violations


# -- accumulation


def test_gradients_of_earlier_steps():
    made = Made()
    made.owned()
    for at in range(12):
        step(made, at, before=1.0 + at)
        made.event("held", at, optimizer=0, tensors=3, held=3 if at else 0, zeroed=0, updates=1)
    found = violation(judge(Accumulation, made))
    assert (found.cause, found.first_step) == ("missing-zero-grad", 1)


def test_gradients_cleared_by_hand_are_healthy():
    made = Made()
    for at in range(12):
        step(made, at)
        made.event("held", at, optimizer=0, tensors=3, held=0, zeroed=0, updates=1)
    assert judge(Accumulation, made).verdict is Verdict.PASS


def accumulating(share: float, *, sites: bool = False, cleared: int = 0, reduction: str = "mean") -> Made:
    made = Made()
    made.owned()
    for at in range(6):
        for micro in range(4):
            given = 2.0 + 0.1 * micro
            made.event("criterion", at, name="cross_entropy", value=given, reduction=reduction, classes=9, grad=True)
            site = f"t.py:{10 + micro if sites else 10}"
            zeroed = 1 if micro == 0 else cleared
            made.event("loss", at, value=given * share, micro=micro, site=site, grad_fn="x", zeroed=zeroed)
        made.event("held", at, optimizer=0, tensors=3, held=0, zeroed=1, updates=1)
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    return made


def test_losses_that_are_not_divided():
    found = violation(judge(Accumulation, accumulating(1.0)))
    assert found.cause == "accumulation-not-normalised"
    assert "/ 4" in found.action


def test_losses_that_are_divided_pass():
    assert judge(Accumulation, accumulating(0.25)).verdict is Verdict.PASS


def test_several_losses_of_one_step_are_no_accumulation():
    assert not judge(Accumulation, accumulating(1.0, sites=True)).violations


def test_gradients_divided_before_the_update_pass():
    made = accumulating(1.0)
    for at in range(6):
        made.event("applied", at, optimizer=0, coefficient=0.25, before=4.0, after=1.0, blocks=[])
    assert not judge(Accumulation, made).violations


def test_micro_batches_that_are_thrown_away():
    found = violation(judge(Accumulation, accumulating(0.25, cleared=1)))
    assert found.cause == "accumulation-discarded"
    assert found.brick == ""


@pytest.mark.parametrize(("other", "brick"), [(1, "embed"), (4, "")])
def test_the_optimizer_that_throws_them_away_alone_says_where(other, brick):
    made = accumulating(0.25, cleared=1)
    for at in range(6):
        for number, cleared, within in ((0, 4, "embed"), (1, other, "body")):
            made.event("held", at, optimizer=number, tensors=2, held=0, updates=1, cleared=cleared, within=within)
    assert violation(judge(Accumulation, made)).brick == brick


# -- loss scales


def test_a_scaler_used_in_order_passes():
    made = Made()
    for at in range(6):
        made.event("loss", at, value=1.0, scale=65536.0)
        made.event("grad", at, point="unscale", l2=65536.0, scale=65536.0, nonfinite=[])
        made.event("scaler", at, op="step", scale=65536.0, found_inf=0, skipped=False)
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    assert judge(LossScale, made).verdict is Verdict.PASS


def test_an_update_that_bypasses_the_scaler():
    made = Made()
    for at in range(3):
        made.event("loss", at, value=1.0, scale=65536.0)
        made.event("grad", at, point="step", l2=65536.0, scale=65536.0, nonfinite=[])
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    assert violation(judge(LossScale, made)).cause == "loss-scale-misused"


def by_hand(factor: float, coefficient: float = 1.0) -> Made:
    made = Made()
    for at in range(4):
        made.event("criterion", at, name="mse", value=0.5, reduction="mean", grad=True, dtype="float32")
        made.event("loss", at, value=0.5 * factor, micro=0, site="t.py:1", scale=None)
        made.event("applied", at, optimizer=0, coefficient=coefficient, before=1.0, after=coefficient, blocks=[])
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    return made


def test_a_scale_by_hand_that_nobody_takes_off():
    found = violation(judge(LossScale, by_hand(65536.0)))
    assert (found.cause, found.first_step) == ("loss-scale-misused", 0)
    assert "float32" in found.whys[0].finding


@pytest.mark.parametrize(("factor", "coefficient"), [(1.0, 1.0), (100.0, 1.0), (0.01, 1.0), (65536.0, 1 / 65536)])
def test_weights_on_a_loss_and_scales_taken_off_are_healthy(factor, coefficient):
    assert not judge(LossScale, by_hand(factor, coefficient)).violations


# -- the start, and precision


def started(**weights: Any) -> Made:
    made = Made("one", "two", "three")
    made.owned()
    for block in made.numbers:
        made.event("tensor", 0, id=made.numbers[block], name=f"{block}.weight", model="Net", shape=[32, 32],
                   dtype="float32", trainable=True, brick=made.numbers[block])  # fmt: skip
    for at in range(5):
        step(made, at)
        for block in made.numbers:
            told = {"numel": 1024, "l2": 32 * 0.1, "absmax": 0.35, "mean": 0.0, **weights}
            made.sample("weight", at, block, **told)
    return made


def test_random_weights_pass():
    assert judge(Initialisation, started()).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"l2": 0.0, "absmax": 0.0}, "zero"),
        ({"l2": 32 * 0.5, "absmax": 0.5, "mean": 0.5}, "the same number"),
        ({"absmax": 0.1 * math.sqrt(2)}, "wave"),
    ],
)
def test_weights_that_do_not_differ(weights, said):
    found = violation(judge(Initialisation, started(**weights)))
    assert found.cause == "bad-initialisation"
    assert said in found.symptom


def first_loss(value: float, size: float = 1.0, **fields: Any) -> Made:
    made = started(l2=32 * size, absmax=3.5 * size)
    given = {"std": 30.0, "absmax": 90.0}
    made.records.insert(
        4, made.event("criterion", 0, name="cross_entropy", value=value, reduction="mean", classes=64, grad=True,
                      input=given, **fields)
    )  # fmt: skip
    return made


@pytest.mark.parametrize(("size", "cause"), [(0.03, "exploding-gradients"), (3.0, "bad-initialisation")])
def test_outputs_that_grow_are_the_fault_of_the_weights_only_where_these_are_large(size, cause):
    """The first update was so large that what is seen of the weights after it says nothing about their start."""
    made = Made("one", "two", "three", "four", "five")
    made.owned()
    for block in made.numbers:
        made.event("tensor", 0, id=made.numbers[block], name=f"{block}.weight", model="Net", shape=[32, 32],
                   dtype="float32", trainable=True, brick=made.numbers[block])  # fmt: skip
    made.forward(0)
    for deep, block in enumerate(made.numbers):
        made.sample("activation", 0, block, numel=64, l2=8.0 * 10.0**deep, absmax=30.0)
        made.sample("weight", 0, block, numel=1024, l2=32 * 5e4, absmax=1e5, mean=0.0)
        made.sample("update", 0, block, numel=1024, l2=32 * 5e4, absmax=None, ratio=1.0, scale=32 * size)
    for at in range(5):
        step(made, at)
    result = Initialisation().judge(Story.of(made.run()), Terms().contract("C-INIT-001"))
    assert violation(result).cause == cause


def test_a_first_loss_far_above_guessing():
    assert violation(judge(Initialisation, first_loss(60.0))).cause == "bad-initialisation"


def test_a_first_loss_far_above_guessing_is_not_the_fault_of_weights_that_keep_a_signals_size():
    assert not judge(Initialisation, first_loss(60.0, size=0.1)).violations


def test_a_first_loss_near_guessing_passes():
    assert judge(Initialisation, first_loss(4.4)).verdict is Verdict.PASS


def test_large_inputs_and_loaded_weights_are_other_matters():
    made = first_loss(60.0)
    made.event("batch", 0, absmax=255.0, count=1)
    assert not judge(Initialisation, made).violations
    made = first_loss(60.0)
    made.event("restored", 0, what="model", tensors=3)
    assert judge(Initialisation, made).verdict is Verdict.NOT_EVALUATED


def narrow(dtype: str, moved: float, rate: float = 1e-5) -> Made:
    made = Made("one", "two", dtype=dtype)
    made.owned()
    for at in range(6):
        step(made, at, lr=rate)
        for block in made.numbers:
            made.sample("weight", at, block, l2=8 * 0.1)
            made.sample("grad", at, block, l2=1.0)
            made.sample("update", at, block, l2=8 * moved, ratio=moved / 0.1)
    return made


def test_updates_that_round_away():
    found = violation(judge(Precision, narrow("bfloat16", 0.0)))
    assert (found.cause, found.first_step) == ("bf16-precision-loss", 0)


def test_updates_that_round_away_have_a_place():
    made = Made("one", "two", "three", dtype="bfloat16")
    made.owned()
    for at in range(6):
        step(made, at, lr=1e-5)
        for block, moved in zip(made.numbers, (1e-3, 0.0, 0.0), strict=True):
            made.sample("weight", at, block, l2=8 * 0.1)
            made.sample("grad", at, block, l2=1.0)
            made.sample("update", at, block, l2=8 * moved, ratio=moved / 0.1)
    found = violation(judge(Precision, made))
    assert found.brick == "two" and "most of them are in two" in found.symptom


@pytest.mark.parametrize(
    ("still", "without", "rates", "verdict"),
    [
        ((0.3, 0.4, 0.7, 0.8, 0.8, 0.9), 0.0, (1e-3,) * 6, Verdict.FAIL),
        ((0.3, 0.4, 0.3, 0.5, 0.4, 0.3), 0.0, (1e-3,) * 6, Verdict.PASS),
        ((0.9,) * 6, 0.85, (1e-3,) * 6, Verdict.PASS),
        ((0.1, 0.1, 0.1, 0.7, 0.8, 0.9), 0.0, (1e-3, 1e-3, 1e-3, 2e-4, 1e-4, 5e-5), Verdict.PASS),
    ],
    ids=["more and more", "some", "sparse", "spent rate"],
)
def test_updates_that_leave_most_elements_as_they_were(still, without, rates, verdict):
    made = Made("one", "two", dtype="bfloat16")
    made.owned()
    for place, (share, rate) in enumerate(zip(still, rates, strict=True)):
        at = 20 * place
        step(made, at, lr=rate)
        for block in made.numbers:
            made.sample("weight", at, block, l2=8 * 0.1)
            made.sample("grad", at, block, l2=1.0, zero_fraction=without)
            made.sample("update", at, block, l2=8 * 1e-3, ratio=0.01, zero_fraction=share)
    assert judge(Precision, made).verdict is verdict


@pytest.mark.parametrize(("dtype", "moved", "rate", "verdict"), [
    ("float32", 0.0, 1e-5, Verdict.VACUOUS),
    ("bfloat16", 1e-5, 1e-5, Verdict.PASS),
    ("bfloat16", 3e-4, 1e-3, Verdict.PASS),
])  # fmt: skip
def test_updates_that_arrive(dtype, moved, rate, verdict):
    assert judge(Precision, narrow(dtype, moved, rate)).verdict is verdict


def jumping(losses: list[float], share: float, lr: float = 0.3) -> Made:
    """A run whose first updates change the weights by ``share`` of their size."""
    made = Made()
    made.owned()
    for at, loss in enumerate(losses):
        step(made, at, loss=loss, lr=lr)
        made.sample("weight", at, "body", l2=5.0)
        made.sample("update", at, "body", ratio=share, l2=5.0 * share)
    return made


def test_updates_of_the_size_of_the_weights():
    found = violation(judge(StepSize, jumping([3.0, 4.0, 8.0, *[2.8] * 20], 0.7, lr=0.03)))
    assert (found.cause, found.first_step, found.detected_step) == ("learning-rate-too-high", 0, 2)
    assert "0.03" in found.action


@pytest.mark.parametrize(("rate", "seen"), [(0.3, 1), (0.003, 2)])
def test_a_rate_out_of_all_use_is_known_by_its_first_update(rate, seen):
    made = jumping([3.0, 4.0, 8.0, *[2.8] * 20], 0.7, lr=rate)
    assert violation(judge(StepSize, made)).detected_step == seen


@pytest.mark.parametrize("later", [[], [2e3, 2e8]], ids=["at once", "told afterwards"])
def test_a_leap_after_the_first_large_update_needs_no_third_loss(later):
    found = violation(judge(StepSize, jumping([0.6, 24.0, *later], 0.31)))
    assert (found.cause, found.detected_step) == ("learning-rate-too-high", 1)


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([3.0, 4.0, 8.0, *[0.4] * 20], 0.7),
        ([3.0, 2.5, 2.0, *[1.9] * 20], 1.0),
        ([3.0, 4.0, 8.0, *[2.8] * 20], 0.01),
        ([3.0, 8.0], 0.7),
    ],
    ids=["recovers", "weights that start at zero", "small updates", "two steps"],
)
def test_large_updates_that_do_no_harm(losses, share):
    assert not judge(StepSize, jumping(losses, share, lr=0.03)).violations


def test_an_update_after_the_loss_had_risen_did_not_raise_it():
    made = jumping([3.0, 8.5, 7e27, 7e27, 7e27], 0.01)
    made.records = [
        replace(record, ratio=1.0, l2=5.0)
        if isinstance(record, Sample) and record.role == "update" and record.step >= 2 else record
        for record in made.records
    ]  # fmt: skip
    assert not judge(StepSize, made).violations


def test_a_loss_that_large_updates_had_raised_only_comes_back():
    falling = [1.9, 3.0, *[3.0 - 0.03 * at for at in range(40)], *[1.5] * 60]
    assert violation(judge(StepSize, jumping(falling, 0.2))).cause == "learning-rate-too-high"


def test_updates_that_undo_each_other():
    wandering = [2.2, 2.0, 2.3, *[2.0 + 0.2 * (at % 2) for at in range(60)], *[1.6] * 20]
    found = violation(judge(StepSize, jumping(wandering, 0.09)))
    assert (found.cause, found.severity, found.detected_step) == ("learning-rate-too-high", Severity.WARNING, 16)


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([2.2 * 0.97**at for at in range(90)], 0.09),
        ([2.2] * 90, 0.01),
        ([-0.5 + 0.1 * (at % 3) for at in range(90)], 0.09),
        ([2.2] * 20, 0.09),
    ],
    ids=["learns", "small updates", "no loss to compare", "short"],
)
def test_restless_updates_need_harm(losses, share):
    assert not judge(StepSize, jumping(losses, share)).violations


def test_a_golden_is_needed_for_parity():
    made = Made()
    made.healthy(5)
    assert judge(BackParity, made).verdict is Verdict.NOT_EVALUATED


# -- which cause wins


def finding(made: Made) -> Finding:
    run = made.run()
    diagnosis = diagnose(run)
    grave = [each for each in diagnosis.findings if each.severity is not Severity.INFO]
    (found,) = grave
    for part in (*found.whys, *found.ruled_out):
        for identity in part.evidence:
            assert run.find(identity), identity
    return found


def seed() -> Made:
    """24 layers, a clip that is declared and never called, an optimizer made by its default constructor."""
    made = Made("embed", *LAYERS, "head")
    values = {"grad_clip": 1.0, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "lr": 1e-3}
    made.event("config", 0, rank=-1, source="train.yaml", values=values)
    made.owned()
    live = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    made.event("hyperparameters", 0, optimizer=0, groups=[live])
    for at, peak in enumerate((3.28e30, 3.28e35)):
        made.forward(at)
        made.event("loss", at, value=10.4, micro=0, site="train.py:80", grad_fn="NllLossBackward0", zeroed=1)
        made.event("sampled", at, roles=["grad"], reason="first")
        for layer, block in enumerate(LAYERS):
            made.sample("grad", at, block, absmax=peak / 25.0**layer, l2=peak / 25.0**layer)
        made.event("grad", at, point="step", tensors=26, l2=peak, absmax=peak, at=made.numbers["embed"], nonfinite=[])
        made.event("applied", at, optimizer=0, coefficient=1.0, before=peak, after=peak, blocks=[])
        made.event("optimizer", at, optimizer=0, lr=[1e-3], count=at + 1)
    made.broken("weight", 1, "embed", nan=1298, when="after")
    made.event("loss", 2, value=NAN, micro=0, site="train.py:80", grad_fn="NllLossBackward0")
    return made


def test_the_seed_case_reads_like_its_source():
    found = finding(seed())
    assert (found.contract, found.root_cause, found.brick) == ("C-CLIP-001", "grad-clip-not-applied", "embed")
    assert (found.severity, found.first_step) == (Severity.ERROR, 0)
    assert found.confidence > 0.9
    assert len(found.whys) == 5
    assert all(why.evidence for why in found.whys)
    told = [why.finding for why in found.whys]
    assert found.whys[0].question == "Why is the loss nan in step 2?"
    assert "1,298" in told[0]
    assert "3.28e+35" in told[1] and "grad_clip" in told[1]
    assert "25x per layer over 24 layers" in told[2]
    assert "0.999" in told[3] and "0.95" in told[3]
    assert "clip" in told[4].lower()
    assert "clip_grad_norm_" in found.action


def test_the_same_run_without_a_declared_clip_is_exploding():
    made = seed()
    made.records = [r for r in made.records if getattr(r, "kind", "") not in ("config", "hyperparameters")]
    assert finding(made).root_cause == "exploding-gradients"


def test_ordinary_gradients_and_huge_updates_are_the_rate():
    made = Made()
    for at in range(3):
        step(made, at, before=3.0 * 10**at, loss=1.0 * 30**at, lr=50.0)
        made.sample("weight", at, "body", l2=5.0)
        made.sample("update", at, "body", ratio=4.0, l2=20.0)
    made.event("loss", 3, value=NAN)
    assert finding(made).root_cause == "learning-rate-too-high"


def test_gradients_out_of_proportion_before_any_update_are_the_model():
    made = Made()
    for at, norm in enumerate((2.8e4, 2.7e8)):
        step(made, at, before=norm, loss=0.5 * 1e4**at, lr=1e-3)
        made.sample("weight", at, "body", l2=6.0)
        made.sample("update", at, "body", ratio=1.0 * 100**at, l2=6.0)
    made.event("loss", 2, value=NAN)
    assert finding(made).root_cause == "exploding-gradients"


def test_a_declared_warm_up_that_never_was():
    made = Made()
    declare(made, warmup_steps=40)
    for at in range(3):
        step(made, at, before=3.0, lr=0.02)
        made.sample("update", at, "body", ratio=0.2, l2=1.0)
    made.event("loss", 3, value=NAN)
    assert finding(made).root_cause == "warmup-missing"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("log-of-zero", "log-of-zero"),
        ("division-by-zero", "division-by-zero"),
        ("empty-mean", "division-by-zero"),
        ("root-of-negative", "invalid-op"),
    ],
)
def test_the_operation_that_broke_is_believed(kind, cause):
    made = Made()
    made.healthy(10)
    inputs = [{"name": "self", "min": 0.0, "max": 1.0, "zeros": 1, "nan": 0, "inf": 0}]
    told = made.event("origin", 10, op="LogBackward0", inputs=inputs, depth=3)
    told.fields["kind"] = kind
    made.event("loss", 10, value=INF, grad_fn="MeanBackward0")
    found = finding(made)
    assert found.root_cause == cause
    assert told.id in found.whys[-1].evidence
    assert found.confidence > 0.8


def test_a_batch_whose_values_are_not_finite():
    made = Made()
    made.healthy(10)
    told = made.event("batch", 10, nan=12, inf=0, count=11)
    made.event("loss", 10, value=NAN, grad_fn="MeanBackward0")
    found = finding(made)
    assert found.root_cause == "data-nonfinite"
    assert any(told.id in why.evidence for why in found.whys)
