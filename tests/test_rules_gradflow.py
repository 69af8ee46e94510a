"""C-GRADFLOW-001: parameters that never get a gradient, and the healthy ways to have none for a while; and what first
updates do to the way of gradients through a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import Made

from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.rules import warmup_effect
from brickprof.rules.gradflow import GradFlow
from brickprof.rules.story import Story

BLOCKS = ("embed", "blocks.0", "blocks.1", "blocks.2", "head")


def judge(made: Made) -> ContractResult:
    rule = GradFlow()
    for record in made.records:
        rule.feed(record)
    return rule.finish(None)


def look(made: Made, step: int, *, zero: tuple[str, ...] = (), none: tuple[str, ...] = (), **step_fields) -> None:
    """A step in which all gradients were sampled; those in ``none`` have no gradient at all."""
    made.event("sampled", step, roles=["grad"], reason="cadence", tensors=len(made.numbers))
    for block in made.numbers:
        if block not in none:
            made.sample("grad", step, block, absmax=0.0 if block in zero else 0.5)
    made.step(step, **step_fields)


def watched(*blocks: str) -> Made:
    made = Made(*(blocks or BLOCKS))
    made.owned()
    return made


def test_gradients_everywhere_pass():
    made = watched()
    for step in range(5):
        look(made, step)
    result = judge(made)
    assert result.verdict is Verdict.PASS
    assert "5 parameters" in result.observed


def test_nothing_observed_is_vacuous():
    assert judge(watched()).verdict is Verdict.VACUOUS


def test_no_sampled_gradient_is_not_evaluated():
    made = watched()
    made.healthy(10)
    assert judge(made).verdict is Verdict.NOT_EVALUATED


@pytest.mark.parametrize("how", ["zero", "none"])
def test_a_parameter_without_a_gradient_fails_and_is_named(how):
    made = watched()
    for step in range(8):
        look(made, step, **{how: ("blocks.1",)})
    result = judge(made)
    assert result.verdict is Verdict.FAIL
    (violation,) = result.violations
    assert violation.brick == "blocks.1"
    assert violation.details["none"] is (how == "none")
    assert "blocks.1.weight" in violation.symptom


def test_the_block_nearest_the_loss_is_where_the_path_ends():
    made = watched()
    for step in range(8):
        look(made, step, none=("embed", "blocks.0", "blocks.1"))
    (violation,) = judge(made).violations
    assert violation.brick == "blocks.1"
    assert len(violation.details["tensors"]) == 3


def test_a_zero_initialised_branch_opens_after_the_first_updates():
    made = watched()
    for step in range(3):
        look(made, step, zero=("blocks.1",))
    look(made, 8)
    assert judge(made).verdict is Verdict.PASS


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_very_short_runs_give_the_benefit_of_the_doubt(steps):
    made = watched()
    for step in range(steps):
        look(made, step, zero=("blocks.1",))
    result = judge(made)
    assert result.verdict is Verdict.PASS
    assert "too few steps" in result.why


def test_warming_up_from_a_learning_rate_of_zero_is_no_update():
    made = watched()
    for step in range(6):
        look(made, step, zero=("blocks.1",), lr=0.0)
    assert judge(made).verdict is Verdict.PASS


def test_frozen_parameters_are_intended():
    made = watched("embed", "head")
    made.block("frozen", trainable=False)
    for step in range(10):
        look(made, step, none=("frozen",))
    assert judge(made).verdict is Verdict.PASS


def test_parameters_frozen_after_the_optimizer_was_built_are_intended():
    made = Made(*BLOCKS)
    made.owned(frozen=("blocks.0", "blocks.1"))
    for step in range(10):
        look(made, step, none=("blocks.0", "blocks.1"))
    assert judge(made).verdict is Verdict.PASS


def test_a_part_that_no_optimizer_owns_is_not_trained():
    made = Made(*BLOCKS)
    made.owned("head")
    for step in range(10):
        look(made, step, none=BLOCKS[:-1])
    assert judge(made).verdict is Verdict.PASS


def test_a_model_trained_by_hand_is_judged():
    made = Made(*BLOCKS)
    for step in range(10):
        made.event("sampled", step, roles=["grad"])
        made.forward(step)
        made.event("loss", step, value=1.0)
        for block in BLOCKS:
            if block != "blocks.2":
                made.sample("grad", step, block)
    result = judge(made)
    assert result.verdict is Verdict.FAIL
    assert result.violations[0].brick == "blocks.2"


def test_a_loss_of_exactly_zero_proves_nothing():
    made = watched()
    for step in range(12):
        look(made, step, zero=BLOCKS if step % 3 else (), loss=0.0 if step % 3 else 1.0)
    assert judge(made).verdict is Verdict.PASS
    made = watched()
    for step in range(12):
        look(made, step, zero=("head",), loss=0.0)
    assert judge(made).verdict is Verdict.PASS


def test_a_parameter_used_in_some_steps_only_is_healthy():
    made = watched()
    for step in range(12):
        look(made, step, none=() if step == 9 else ("blocks.2",))
    assert judge(made).verdict is Verdict.PASS


def test_parts_that_train_alternately_are_judged_in_their_own_steps():
    """One model, two optimizers; by bad luck only the steps of the first were sampled."""
    made = Made("generator", "discriminator")
    made.owned("generator", optimizer=0)
    made.owned("discriminator", optimizer=1)
    for step in range(20):
        optimizer = step % 2
        made.forward(step)
        made.event("loss", step, value=1.0)
        if optimizer == 0:
            made.event("sampled", step, roles=["grad"])
            made.sample("grad", step, "generator")
        made.event("optimizer", step, optimizer=optimizer, lr=[1e-3], count=step // 2 + 1)
    assert judge(made).verdict is Verdict.PASS


def test_a_block_that_a_random_depth_left_out_is_healthy():
    made = watched()
    for step in range(4, 12):
        made.event("sampled", step, roles=["grad"])
        made.forward(step, *(b for b in BLOCKS if b != "blocks.1" or step % 3 == 0))
        made.event("loss", step, value=1.0)
        for block in BLOCKS:
            if block != "blocks.1":
                made.sample("grad", step, block)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    assert judge(made).verdict is Verdict.PASS


def test_a_block_that_never_runs_is_unused_not_broken():
    made = watched("embed", "body", "head", "pooler")
    for step in range(20):
        made.event("sampled", step, roles=["grad"])
        made.forward(step, "embed", "body", "head")
        made.event("loss", step, value=1.0)
        for block in ("embed", "body", "head"):
            made.sample("grad", step, block)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    assert judge(made).verdict is Verdict.PASS


def test_without_block_times_more_looks_are_asked_for():
    def compiled(steps: int) -> ContractResult:
        made = watched()
        for step in range(steps):
            made.event("sampled", step, roles=["grad"])
            made.event("loss", step, value=1.0)
            for block in BLOCKS:
                if block != "head":
                    made.sample("grad", step, block)
            made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
        return judge(made)

    assert compiled(8).verdict is Verdict.PASS
    assert compiled(16).verdict is Verdict.FAIL


def test_shared_complex_and_empty_parameters_are_left_alone():
    made = watched("embed", "head")
    made.block("tied", alias_of="embed.weight")
    made.block("fourier", dtype="complex64")
    made.block("nothing", shape=[0])
    made.owned()
    for step in range(12):
        look(made, step, none=("tied", "fourier", "nothing"))
    assert judge(made).verdict is Verdict.PASS


def test_a_shard_without_a_gradient_is_healthy_when_another_rank_has_one():
    first, second = Made("embed", "head", rank=0), Made("embed", "head", rank=1)
    for made, zero in ((first, ()), (second, ("embed",))):
        made.owned()
        for step in range(10):
            look(made, step, zero=zero)
    first.records += second.records
    assert judge(first).verdict is Verdict.PASS


def test_two_models_are_two_violations():
    first, second = Made("a", "b", model="One"), Made("c", "d", model="Two", rank=1)
    for made, zero in ((first, "a"), (second, "c")):
        made.owned()
        for step in range(10):
            look(made, step, zero=(zero,))
    first.records += second.records
    assert {v.brick for v in judge(first).violations} == {"One.a", "Two.c"}


def test_a_skipped_start_is_no_update():
    made = watched()
    for step in range(6):
        look(made, step, zero=("blocks.1",), skipped=True)
    assert judge(made).verdict is Verdict.PASS


def test_asking_twice_gives_the_same_answer():
    rule = GradFlow()
    made = watched()
    for step in range(8):
        look(made, step, none=("blocks.1",))
    for record in made.records:
        rule.feed(record)
    assert rule.finish(None) == rule.finish(None)


# -- the first updates


def begun(reach, *, rates=None, steps=(0, 1, 2, 3), loss=1.0, cls="Adam", alive=1.0):
    """A stack of four layers: gradients of the first against those of the last, look by look."""
    made = Made(*(f"layers.{layer}.{part}" for layer in range(4) for part in ("attn", "mlp")))
    group = {"tensors": [1, 2], "betas": [0.9, 0.98]} if cls == "Adam" else {"tensors": [1, 2]}
    made.event("optimizer_created", 0, optimizer=0, cls=cls, groups=[group])
    for at in range(40):
        made.event("loss", at, value=2.0 if at < 3 else loss * 2.0, micro=0, grad_fn="NllLossBackward0")
        if at in steps:
            for name in made.numbers:
                part = int(name.split(".")[1]) / 3
                size = (reach[steps.index(at)] ** (1 - part)) * (alive if at else 1.0)
                made.sample("grad", at, name, l2=size)
        rate = rates(at) if rates is not None else 1e-3 * (1 - at / 50)
        made.event("optimizer", at, optimizer=0, lr=[rate], count=at + 1)
    story = Story()
    for record in made.records:
        story.feed(record)
    return warmup_effect.WarmupEffect().judge(story, Terms().contract("C-COSINE-001")).violations


LONG = (0, 1, 2, 3, 8, 16, 24, 32)


@pytest.mark.parametrize(
    ("reach", "more", "severity"),
    [
        ([1.0, 0.4, 0.2, 0.1], {}, Severity.INFO),
        ([1.0, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], {"steps": LONG}, Severity.WARNING),
        ([1.0, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], {"steps": LONG, "loss": 0.1}, None),
        ([1.0, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0], {"steps": (*LONG, 38)}, Severity.WARNING),
        ([1.0, 0.4, 0.2, 0.1, 0.1, 0.8, 0.9, 1.0], {"steps": LONG}, None),
        ([1.0, 0.9, 0.8, 0.7], {}, None),
        ([1e-3, 4e-4, 2e-4, 1e-4], {}, None),
        ([1.0, 0.4, 0.2, 0.1], {"rates": lambda at: 1e-3 * min(1, (at + 1) / 10)}, None),
        ([1.0, 0.4, 0.2, 0.1], {"rates": lambda at: 1e-3}, None),
        ([1.0, 0.4, 0.2, 0.1], {"cls": "SGD"}, None),
        ([1.0, 0.4, 0.2, 0.1], {"alive": 1e-3}, None),
    ],
    ids=["early", "lasting", "learnt all the same", "made good late", "made good", "in proportion",
         "from the start", "warm-up", "constant", "not adaptive", "all of them"],
)  # fmt: skip
def test_first_updates_after_which_gradients_do_not_reach_the_first_layers(reach, more, severity):
    found = begun(reach, **more)
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(each.cause == "warmup-missing" for each in found)


@pytest.mark.parametrize(("steps", "given"), [(20, True), (200, True), (200, False), (8400, True)])
def test_a_bias_that_cancels_is_healthy_however_often_it_was_looked_at(steps, given):
    """The last bias of a critic that compares two means: its gradient is there, and zero."""
    made = Made(*BLOCKS)
    number = len(made.numbers) + 1
    told = {"shape": [8], "dtype": "float32", "trainable": True}
    made.event("tensor", 0, id=number, name="head.bias", model=made.model, brick=made.numbers["head"], **told)
    group = {"tensors": [*made.numbers.values(), number], "frozen": []}
    made.event("optimizer_created", 0, optimizer=0, cls="Adam", groups=[group])
    for step in range(steps):
        if given:
            seen = made.sample("grad", step, "head", absmax=0.0, numel=8)
            made.records[-1] = replace(seen, tensor="head.bias")
        look(made, step)
    assert judge(made).verdict is (Verdict.PASS if given else Verdict.FAIL)
