"""Optimizers, declared settings, schedules, checkpoints: what is asked for against what is in force."""

from __future__ import annotations

import math

import pytest
from making import Made

from brickprof.contracts import registry, spellings
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.rules.story import Story


def judged(made: Made, contract: str, module: str) -> ContractResult:
    from importlib import import_module

    rule = import_module(f"brickprof.rules.{module}").RULE()
    assert rule.contract == contract
    return rule.judge(Story.of(made.run()), registry.find(contract))


def only(result: ContractResult, cause: str, severity: Severity = Severity.ERROR):
    assert result.verdict is Verdict.FAIL, result
    (violation,) = result.violations
    assert (violation.cause, violation.severity) == (cause, severity)
    assert violation.evidence and violation.whys and violation.action
    return violation


class Training(Made):
    """A run with an optimizer whose rates, losses and settings the test chooses."""

    def declare(self, **values):
        self.event("config", 0, rank=-1, source="train.yaml", values=values)

    def optimizer(self, *, number: int = 0, cls: str = "AdamW", blocks: tuple[str, ...] = (), lr: float = 1e-3, **live):
        tensors = [self.numbers[block] for block in blocks or self.numbers]
        groups = [{"tensors": tensors, "frozen": [], "lr": lr}]
        self.event("optimizer_created", 0, optimizer=number, cls=cls, groups=groups)
        told = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, **live}
        self.event("hyperparameters", 0, optimizer=number, groups=[told])

    def train(self, rates, *, losses=None, scheduled=None, first: int = 0, optimizer: int = 0, micros: int = 1):
        for place, rate in enumerate(rates):
            step = first + place
            value = losses[place] if losses is not None else 2.0 / (1 + step)
            for micro in range(micros):
                self.event("loss", step, value=value, micro=micro)
            self.event("grad", step, point="step", tensors=3, l2=1.0, nonfinite=[], scale=None)
            told = {} if scheduled is None else {"scheduled": scheduled[place]}
            self.event("optimizer", step, optimizer=optimizer, lr=[rate], count=place + 1, **told)

    def end(self, steps: int, **fields):
        self.event("exit", steps - 1, steps=steps, updates=steps, **fields)

    def file(self, at: int, op: str, **fields):
        """A checkpoint that is saved or loaded; what it holds has a ``step`` of its own."""
        self.event("checkpoint", at, op=op).fields.update(fields)

    def look(self, step: int, **fields):
        told = {"owned": 3, "unowned": [], "moved": [], "idle": [], "outside": [], "frozen": [], "wished": []}
        self.event("ownership", step, **(told | fields))


# -- spellings


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("train.adam_beta2", "beta2"),
        ("--learning-rate", "lr"),
        ("perDeviceTrainBatchSize", "batch_size"),
        ("trainer.accumulate_grad_batches", "accumulation"),
        ("checkpoint.every", "save_every"),
        ("eval.every", "eval_every"),
        ("scheduler.T_max", "decay_steps"),
        ("optimizer.name", "optimizer"),
        ("model.norm.eps", None),
        ("model.bn.momentum", None),
        ("ema.decay", "ema_decay"),
        ("colour", None),
    ],
)
def test_a_setting_has_one_name_however_it_is_spelt(key, name):
    assert spellings.canonical(key) == name


def test_no_spelling_means_two_things():
    listed = [word for words in spellings.GROUPS.values() for word in words]
    assert len(listed) == len(set(listed))
    assert spellings.nearest("learing_rate") == "learning_rate"
    assert spellings.nearest("learning_rate") is None


def test_values_are_numbers_where_they_spell_one():
    found = spellings.settings({"a.lr": "3e-4", "b.betas": "(0.9, 0.95)"})
    assert found["lr"][0].value == 3e-4
    assert (found["beta1"][0].value, found["beta2"][0].value) == (0.9, 0.95)


# -- C-HYPERPARAMS-001


def test_a_second_optimizer_with_default_betas_is_named():
    made = Training()
    made.declare(lr=1e-3, beta2=0.95, weight_decay=0.1)
    made.optimizer(blocks=("body",), betas=[0.9, 0.95], weight_decay=0.1)
    made.optimizer(number=1, blocks=("embed", "head"))
    made.train([1e-3] * 5)
    found = only(judged(made, "C-HYPERPARAMS-001", "hyperparameters"), "optimizer-hyperparameters-mismatch")
    assert "beta2 0.999" in found.symptom and "weight decay 0.01" in found.symptom and "2 of 2" in found.symptom


@pytest.mark.parametrize(
    ("cls", "values", "wrong"),
    [
        ("SGD", {"momentum": 1e-5, "dampening": 0.9}, True),
        ("SGD", {"momentum": 0.9, "dampening": 0.0}, False),
        ("SGD", {"momentum": 0.9, "dampening": 0.9}, False),
        ("SGD", {"momentum": 0.0, "dampening": 0.0}, False),
        ("Adam", {"betas": [0.999, 0.9]}, True),
        ("Adam", {"betas": [0.5, 0.9]}, False),
        ("Adam", {"betas": [0.95, 0.95]}, False),
    ],
)
def test_values_in_each_others_place(cls, values, wrong):
    made = Training()
    made.optimizer(cls=cls, **values)
    made.train([1e-3] * 5)
    result = judged(made, "C-HYPERPARAMS-001", "hyperparameters")
    if wrong:
        only(result, "optimizer-hyperparameters-mismatch")
    else:
        assert not result.violations


def test_groups_without_decay_and_rates_of_parts_are_in_force():
    made = Training()
    made.declare(**{"optim.lr": "1e-3", "optim.weight_decay": 0.1, "d_lr": 4e-4, "beta_end": 0.02, "epsilon": 0.1})
    made.optimizer(weight_decay=0.1)
    made.optimizer(number=1, cls="AdamW", weight_decay=0.0, lr=4e-4)
    made.train([1e-3] * 3)
    made.train([4e-4] * 3, first=3, optimizer=1)
    assert judged(made, "C-HYPERPARAMS-001", "hyperparameters").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ([3e-4] * 8, Verdict.FAIL),
        ([1e-4 * place for place in range(1, 11)], Verdict.PASS),
        ([1e-5 * place for place in range(1, 9)], Verdict.PASS),
        ([4e-3] * 8, Verdict.FAIL),
    ],
)
def test_a_rate_is_judged_by_its_peak_and_a_schedule_on_its_way_is_let_alone(rates, verdict):
    made = Training()
    made.declare(lr=1e-3)
    made.optimizer(lr=rates[0])
    made.train(rates)
    assert judged(made, "C-HYPERPARAMS-001", "hyperparameters").verdict is verdict


def test_without_a_declaration_nothing_is_in_force_or_not():
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    assert judged(made, "C-HYPERPARAMS-001", "hyperparameters").verdict is Verdict.NOT_EVALUATED
    assert judged(Training(), "C-HYPERPARAMS-001", "hyperparameters").verdict is Verdict.VACUOUS


def test_two_optimizers_of_one_model_that_differ_are_worth_a_word_only():
    made = Training()
    made.optimizer(blocks=("body",), betas=[0.9, 0.95])
    made.optimizer(number=1, blocks=("head",))
    made.train([1e-3] * 3)
    made.train([1e-3] * 3, optimizer=1)
    result = judged(made, "C-HYPERPARAMS-001", "hyperparameters")
    assert result.verdict is not Verdict.FAIL
    assert [found.severity for found in result.violations] == [Severity.INFO]


# -- C-GRADFLOW-001: owners


def test_a_head_that_no_optimizer_owns_is_named():
    made = Training()
    made.optimizer(blocks=("embed", "body"))
    for step in range(3):
        made.look(step, unowned=[made.numbers["head"]])
    made.train([1e-3] * 3)
    found = only(judged(made, "C-GRADFLOW-001", "ownership"), "optimizer-missing-parameters")
    assert found.brick == "head"


def test_a_gradient_seen_once_or_written_by_hand_is_no_mistake():
    made = Training()
    made.optimizer(blocks=("embed", "body"))
    made.look(0, unowned=[3])
    made.look(1, unowned=[])
    made.look(2, unowned=[])
    made.train([1e-3] * 3)
    assert judged(made, "C-GRADFLOW-001", "ownership").verdict is Verdict.PASS
    by_hand = Training()
    by_hand.optimizer(blocks=("embed", "body"))
    for step in range(3):
        by_hand.look(step, unowned=[3], moved=[3] if step else [])
    by_hand.train([1e-3] * 3)
    assert judged(by_hand, "C-GRADFLOW-001", "ownership").verdict is Verdict.PASS


def test_the_trained_head_of_a_loaded_model_is_healthy():
    made = Training("embed", "body", "head")
    made.event("restored", 0, what="model", tensors=3, expected=3, missing=0)
    made.optimizer(blocks=("head",))
    for step in range(3):
        made.look(step, unowned=[1, 2])
    made.train([1e-3] * 3)
    result = judged(made, "C-GRADFLOW-001", "ownership")
    assert all(found.severity is Severity.INFO for found in result.violations)


def test_an_optimizer_of_an_earlier_model_is_named():
    made = Training()
    made.optimizer()
    for step in range(3):
        made.look(step, unowned=[1, 2, 3], idle=[1, 2, 3], outside=[1, 2, 3])
    made.train([1e-3] * 3)
    only(judged(made, "C-GRADFLOW-001", "ownership"), "optimizer-stale-parameters")


def test_an_attribute_on_a_module_frees_nothing():
    made = Training("encoder.0", "encoder.1", "head")
    made.optimizer()
    for step in range(3):
        made.look(step, frozen=[1, 2], wished=[["encoder", True]] if step else [])
    made.train([1e-3] * 30)
    found = only(judged(made, "C-GRADFLOW-001", "ownership"), "parameters-frozen")
    assert found.brick == "encoder"


def test_a_misspelt_attribute_of_a_parameter_frees_nothing():
    made = Training("encoder.0", "encoder.1", "head")
    made.optimizer()
    wished = [["encoder.0.weight", True, "require_grad"], ["encoder.1.weight", True, "require_grad"]]
    for step in range(3):
        made.look(step, frozen=[1, 2], wished=wished if step else [])
    made.train([1e-3] * 30)
    found = only(judged(made, "C-GRADFLOW-001", "ownership"), "parameters-frozen")
    assert "encoder.0.weight.require_grad = True" in found.whys[0].finding


@pytest.mark.parametrize(("noise", "restored", "verdict"), [
    ([1], False, Verdict.FAIL), ([], False, Verdict.PASS), ([1], True, Verdict.PASS),
])  # fmt: skip
def test_a_table_of_noise_that_was_frozen_by_default(noise, restored, verdict):
    made = Training("vectors", "body", "head")
    made.optimizer()
    if restored:
        made.event("restored", 0, what="model", tensors=3, expected=3, missing=0, names=[])
    for step in range(3):
        made.look(step, frozen=[1], noise=noise)
    made.train([1e-3] * 30)
    result = judged(made, "C-GRADFLOW-001", "ownership")
    assert result.verdict is verdict
    if verdict is Verdict.FAIL:
        assert only(result, "parameters-frozen", Severity.WARNING).brick == "vectors"


@pytest.mark.parametrize(("losses", "verdict"), [([2.3] * 40, Verdict.FAIL), (None, Verdict.PASS)])
def test_frozen_parameters_are_a_mistake_only_where_nothing_is_learnt(losses, verdict):
    made = Training("encoder", "body", "head")
    made.optimizer()
    for step in range(3):
        made.look(step, frozen=[1, 2])
    made.train([1e-3] * 40, losses=losses)
    assert judged(made, "C-GRADFLOW-001", "ownership").verdict is verdict


def test_parameters_that_are_freed_later_are_healthy():
    made = Training("encoder", "body", "head")
    made.optimizer()
    for step in range(4):
        made.look(step, frozen=[1, 2] if step < 3 else [])
    made.train([1e-3] * 40, losses=[2.3] * 40)
    assert judged(made, "C-GRADFLOW-001", "ownership").verdict is Verdict.PASS


# -- C-COSINE-001


def schedule(made: Training, cls: str = "LambdaLR", count: int = 1, step: int = 0, **settings):
    told = {"settings": settings} if settings else {}
    made.event("schedule", step, schedule=0, cls=cls, optimizer=0, lr=[0.0], count=count, **told)


def test_a_schedule_that_is_never_stepped_is_named():
    made = Training()
    schedule(made, base_lrs=[0.1])
    made.optimizer(lr=1e-3)
    made.train([1e-3] * 60, scheduled=[1] * 60)
    made.event("schedules", 59, schedules=1, scheduled=1)
    made.end(60)
    found = only(judged(made, "C-COSINE-001", "schedule"), "schedule-not-stepped")
    assert "0.01 of the 0.1" in found.symptom


def test_a_schedule_that_is_stepped_once_after_the_only_epoch_is_healthy():
    made = Training()
    schedule(made, "StepLR", base_lrs=[1e-3], step_size=1)
    made.optimizer()
    made.train([1e-3] * 60, scheduled=[1] * 60)
    made.event("schedules", 59, schedules=1, scheduled=2)
    made.end(60)
    assert judged(made, "C-COSINE-001", "schedule").verdict is Verdict.PASS


def test_a_warm_up_longer_than_the_run_never_peaks():
    made = Training()
    made.declare(learning_rate=3e-4, warmup_steps=2000)
    made.optimizer()
    made.train([3e-4 * (step + 1) / 2000 for step in range(43)])
    made.end(43)
    found = only(judged(made, "C-COSINE-001", "schedule"), "schedule-never-peaks")
    assert "6.45e-06" in found.symptom


def looped(made: Training, *loops: tuple[str, int | None, bool]):
    rows = [{"over": over, "rounds": rounds, "site": "t.py:9", "exhausts": whole} for over, rounds, whole in loops]
    made.event("loops", 0, optimizer=0, loops=rows)


def warming(updates: int, warmup: int = 4000, *, stepped: int = 1, peak: float = 5e-4, power: float = 1.0) -> Training:
    """A run that goes on, in the warm-up of a schedule that is stepped in every update."""
    made = Training()
    schedule(made, base_lrs=[5e-4], **{"lambda.WARMUP": warmup})
    made.optimizer(lr=5e-4)
    rates = [peak * min(1.0, (update + 1) / warmup) ** power for update in range(updates)]
    made.train(rates, scheduled=[1 + stepped * update for update in range(updates)])
    return made


def test_a_warm_up_that_the_loops_of_the_script_end_before_is_told_ahead():
    for updates in (10, 20, 60):
        made = warming(updates)
        looped(made, ("range(UPDATES)", 150, False))
        result = judged(made, "C-COSINE-001", "schedule")
        if updates < 20:
            assert not result.violations
        else:
            found = only(result, "schedule-never-peaks", Severity.WARNING)
            assert found.detected_step == 19 and "4,000" in found.symptom and "150" in found.symptom
            assert "range(UPDATES)" in found.whys[0].finding


def test_a_run_that_is_over_says_when_its_warm_up_was_known_to_be_too_long():
    made = warming(150)
    looped(made, ("range(UPDATES)", 150, False))
    made.event("schedules", 149, schedules=1, scheduled=151)
    made.end(150)
    assert only(judged(made, "C-COSINE-001", "schedule"), "schedule-never-peaks").detected_step == 19


@pytest.mark.parametrize(
    ("loops", "told"),
    [
        ([("range(EPOCHS)", 5, False), ("loader", None, True)], True),
        ([("range(EPOCHS)", 5, False), ("loader", None, False)], False),
        ([("while", None, False), ("range(30)", 30, False)], False),
        ([("range(2000)", 2000, False)], False),
        ([], False),
    ],
    ids=["epochs of a loader", "left by a break", "a loop without an end", "long enough", "no loop"],
)
def test_the_end_of_a_run_is_foreseen_only_where_every_loop_has_one(loops, told):
    made = warming(40)
    made.event("loader", 0, loader=0, train=True, batches=30, batch_size=8, samples=240)
    looped(made, *loops)
    assert bool(judged(made, "C-COSINE-001", "schedule").violations) is told


@pytest.mark.parametrize(
    "made",
    [
        warming(40, 200),
        warming(160),
        warming(40, power=2.0),
        warming(40, stepped=0),
        warming(40, peak=64 * 5e-4),
    ],
    ids=["soon over", "beyond the rounds", "no line", "not by update", "counts samples"],
)
def test_a_warm_up_that_may_end_in_time_is_let_alone(made):
    looped(made, ("range(150)", 150, False))
    assert not judged(made, "C-COSINE-001", "schedule").violations


def test_loops_that_change_say_nothing_of_the_end():
    made = warming(40)
    looped(made, ("range(10)", 10, False))
    looped(made, ("range(150)", 150, False))
    assert not judged(made, "C-COSINE-001", "schedule").violations


def test_a_rate_of_nothing_never_peaks():
    made = Training()
    made.declare(lr=1e-3, warmup_steps=200)
    made.optimizer()
    made.train([0.0] * 40)
    only(judged(made, "C-COSINE-001", "schedule"), "schedule-never-peaks")


@pytest.mark.parametrize(
    ("rates", "verdict"), [([1e-2] * 40, Verdict.FAIL), ([1e-4 * step for step in range(40)], None)]
)
def test_a_warm_up_that_is_declared_begins_low(rates, verdict):
    made = Training()
    made.declare(warmup_steps=20)
    made.optimizer()
    made.train(rates)
    result = judged(made, "C-COSINE-001", "schedule")
    if verdict is Verdict.FAIL:
        only(result, "warmup-missing")
    else:
        assert result.verdict is not Verdict.FAIL


def test_a_run_that_was_killed_says_nothing_of_its_schedule():
    made = Training()
    made.declare(learning_rate=3e-4, warmup_steps=2000)
    made.optimizer()
    made.train([3e-4 * (step + 1) / 2000 for step in range(43)])
    assert judged(made, "C-COSINE-001", "schedule").verdict is Verdict.NOT_EVALUATED


def cosine(steps: int, horizon: int) -> list[float]:
    return [1e-3 * (1 + math.cos(math.pi * step / horizon)) / 2 for step in range(steps)]


@pytest.mark.parametrize(
    ("steps", "horizon", "severity"),
    [
        (100, 100, None),
        (100, 110, None),
        (100, 800, Severity.ERROR),
        (100, 250, Severity.WARNING),
        (100, 10, Severity.ERROR),
    ],
)
def test_a_schedule_ends_where_the_run_ends(steps, horizon, severity):
    made = Training()
    schedule(made, "CosineAnnealingLR", base_lrs=[1e-3], T_max=horizon)
    made.optimizer()
    made.train(cosine(steps, horizon), scheduled=list(range(1, steps + 1)))
    made.event("schedules", steps - 1, schedules=1, scheduled=steps + 1)
    made.end(steps)
    result = judged(made, "C-COSINE-001", "schedule")
    if severity is None:
        assert result.verdict is Verdict.PASS, result
    else:
        only(result, "schedule-horizon-wrong", severity)


@pytest.mark.parametrize(("declared", "seen"), [(100, 19), (None, 99), (700, 99)])
@pytest.mark.parametrize("over", [True, False])
def test_a_schedule_that_outlasts_the_declared_run_is_seen_long_before_its_end(declared, seen, over):
    made = Training()
    if declared:
        made.declare(max_steps=declared)
    schedule(made, "CosineAnnealingLR", base_lrs=[1e-3], T_max=800)
    made.optimizer()
    made.train(cosine(100, 800), scheduled=list(range(1, 101)))
    if over:
        made.event("schedules", 99, schedules=1, scheduled=101)
        made.end(100)
    result = judged(made, "C-COSINE-001", "schedule")
    if over or seen == 19:
        severity = Severity.ERROR if over else Severity.WARNING
        assert only(result, "schedule-horizon-wrong", severity).detected_step == seen
    else:
        assert not result.violations


def test_rates_set_by_hand_tell_the_end_of_their_curve_early():
    made = Training()
    made.declare(max_steps=100)
    made.optimizer()
    made.train(cosine(60, 900))
    found = only(judged(made, "C-COSINE-001", "schedule"), "schedule-horizon-wrong", Severity.WARNING)
    assert found.detected_step < 40


def test_rates_set_by_hand_are_judged_by_their_shape():
    made = Training()
    made.optimizer()
    made.train(cosine(100, 500))
    made.end(100)
    only(judged(made, "C-COSINE-001", "schedule"), "schedule-horizon-wrong", Severity.WARNING)
    convex = Training()
    convex.optimizer()
    convex.train([1e-3 / math.sqrt(1 + step / 100) for step in range(100)])
    convex.end(100)
    assert judged(convex, "C-COSINE-001", "schedule").verdict is Verdict.PASS


def test_a_rate_that_is_spent_early_is_named():
    made = Training()
    schedule(made, "StepLR", base_lrs=[1e-2], step_size=10, gamma=0.1)
    made.optimizer()
    losses = [2.0 - 0.02 * min(step, 30) for step in range(120)]
    made.train([1e-2 * 0.1 ** (step // 10) for step in range(120)], losses=losses, scheduled=list(range(1, 121)))
    made.end(120)
    only(judged(made, "C-COSINE-001", "schedule"), "schedule-horizon-wrong")


def test_a_schedule_that_is_stepped_for_every_micro_batch_is_named():
    made = Training()
    schedule(made, base_lrs=[1e-3])
    made.optimizer()
    made.train([1e-3 * 0.99**step for step in range(40)], scheduled=[4 * step + 1 for step in range(40)])
    schedule(made, count=161, step=39)
    found = only(judged(made, "C-COSINE-001", "schedule"), "schedule-horizon-wrong", Severity.WARNING)
    assert "4 times an update" in found.symptom


def test_restarts_and_constant_rates_are_healthy():
    made = Training()
    schedule(made, "CosineAnnealingWarmRestarts", base_lrs=[1e-3], T_0=30)
    made.optimizer()
    made.train([cosine(100, 30)[step % 30] for step in range(100)], scheduled=list(range(1, 101)))
    made.end(100)
    assert judged(made, "C-COSINE-001", "schedule").verdict is Verdict.PASS
    plain = Training()
    plain.optimizer()
    plain.train([1e-3] * 50)
    assert judged(plain, "C-COSINE-001", "schedule").verdict is Verdict.VACUOUS


# -- C-TRAINCFG-001


def test_the_arithmetic_of_a_run_that_ends_too_soon_is_shown():
    made = Training()
    made.declare(epochs=1, batch_size=4, gradient_accumulation_steps=128, max_steps=5000, num_sequences=22079)
    made.optimizer()
    made.train([1e-3] * 43)
    made.end(43)
    found = only(judged(made, "C-TRAINCFG-001", "feasibility"), "config-infeasible")
    assert "floor(22,079 / 4 / 128) = 43" in found.whys[-1].finding and "117 epochs" in found.action


@pytest.mark.parametrize("declared", [{"max_steps": 40}, {"max_steps": 5000, "patience": 3}, {"epochs": 1}])
def test_a_run_of_its_declared_length_is_healthy(declared):
    made = Training()
    made.declare(**declared)
    made.optimizer()
    made.train([1e-3] * 40)
    made.end(40)
    assert judged(made, "C-TRAINCFG-001", "feasibility").verdict is not Verdict.FAIL


def moved(made: Training, ratio: float, weights: list[float]):
    for look, size in enumerate(weights):
        for block in made.numbers:
            made.sample("update", look * 10, block, ratio=ratio, l2=ratio * size)
            made.sample("weight", look * 10, block, l2=size)
            made.sample("grad", look * 10, block, l2=1e-3)


@pytest.mark.parametrize(
    ("rate", "ratio", "start", "cls", "verdict"),
    [
        (1e-5, 3e-5, 1.3, "AdamW", Verdict.FAIL),
        (1e-3, 3e-5, 1.3, "AdamW", Verdict.PASS),
        (1e-5, 3e-3, 1.3, "AdamW", Verdict.PASS),
        (1e-5, 3e-5, 0.5, "AdamW", Verdict.PASS),
        (1e-5, 3e-5, 1.3, "SGD", Verdict.PASS),
    ],
    ids=["crawls", "ordinary rate", "moves", "knew something", "plain descent"],
)
def test_a_new_model_that_hardly_leaves_its_start(rate, ratio, start, cls, verdict):
    made = Training()
    made.optimizer(cls=cls, lr=rate)
    made.train([rate] * 200, losses=[start * (1 - 0.0015 * step) for step in range(200)])
    for step in range(0, 200, 20):
        call = {"name": "mse", "value": 1.0, "reduction": "mean", "rows": 8, "grad": True, "site": "t.py:1"}
        made.event("criterion", step, **call, target={"std": 1.0, "min": -3.0, "max": 3.0})
        made.sample("update", step, next(iter(made.numbers)), ratio=ratio, l2=ratio)
    made.end(200)
    result = judged(made, "C-TRAINCFG-001", "rates")
    assert result.verdict is verdict
    if verdict is Verdict.FAIL:
        only(result, "learning-rate-too-low", Severity.WARNING)


@pytest.mark.parametrize(
    ("ratio", "losses", "verdict"),
    [(1e-7, [2.3] * 60, Verdict.FAIL), (1e-7, None, Verdict.PASS), (1e-3, [2.3] * 60, Verdict.PASS)],
)
def test_updates_that_move_nothing_are_named_where_the_loss_stands(ratio, losses, verdict):
    made = Training()
    made.optimizer()
    made.train([1e-7] * 60, losses=losses)
    moved(made, ratio, [8.0] * 6)
    result = judged(made, "C-TRAINCFG-001", "rates")
    assert result.verdict is verdict
    if verdict is Verdict.FAIL:
        only(result, "learning-rate-too-low")


def test_decay_that_rules_the_updates_is_named():
    made = Training()
    made.optimizer(weight_decay=30.0, decoupled_weight_decay=True)
    made.train([1e-3] * 60, losses=[2.3] * 60)
    moved(made, 0.035, [8.0 * 0.8**look for look in range(6)])
    only(judged(made, "C-HYPERPARAMS-001", "decay"), "weight-decay-too-strong")
    usual = Training()
    usual.optimizer(weight_decay=0.1, decoupled_weight_decay=True)
    usual.train([1e-3] * 60, losses=[2.3] * 60)
    moved(usual, 0.035, [8.0 * 0.8**look for look in range(6)])
    assert judged(usual, "C-HYPERPARAMS-001", "decay").verdict is not Verdict.FAIL


# -- C-CONFIG-001, C-GA-001, C-BATCH-001, C-AUTOEVAL-001


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        ({"save_interval": 20}, "save_interval"),
        ({"scheduler": "cosine"}, "scheduler"),
        ({"max_steps": 30}, "max_steps"),
        ({"eval_steps": 20}, "eval_steps"),
    ],
)
def test_a_declared_setting_without_effect_is_named(declared, key):
    made = Training()
    made.declare(**declared)
    made.optimizer()
    made.train([1e-3] * 60)
    made.end(60)
    result = judged(made, "C-CONFIG-001", "in_force")
    assert result.verdict is Verdict.FAIL
    assert [found.cause for found in result.violations] == ["config-unused"]
    assert key in result.violations[0].symptom


def test_settings_in_force_are_a_pass():
    made = Training()
    made.declare(save_interval=20, scheduler="cosine", max_steps=60, eval_every=20)
    made.optimizer()
    made.train(cosine(60, 60))
    for step in (19, 39, 59):
        made.file(step, "save", optimizer=True, moments=6, step_=step)
        made.event("evaluation", step, model="Net", training=False, loss=1.0)
    made.end(60)
    assert judged(made, "C-CONFIG-001", "in_force").verdict is Verdict.PASS


def test_an_interval_of_epochs_is_not_taken_for_steps():
    made = Training()
    made.declare(epochs=3, save_every=10, scheduler="constant")
    made.optimizer()
    made.train([1e-3] * 60)
    made.end(60)
    assert judged(made, "C-CONFIG-001", "in_force").verdict is Verdict.PASS


def test_evaluating_after_every_step_is_not_what_was_declared():
    made = Training()
    made.declare(eval_interval=50)
    made.optimizer()
    made.train([1e-3] * 60)
    for step in range(60):
        made.event("evaluation", step, model="Net", training=False, loss=1.0)
    only(judged(made, "C-CONFIG-001", "in_force"), "config-unused", Severity.WARNING)


@pytest.mark.parametrize(("micros", "verdict"), [(1, Verdict.FAIL), (4, Verdict.PASS), (8, Verdict.PASS)])
def test_accumulation_is_counted(micros, verdict):
    made = Training()
    made.declare(grad_accum=4)
    made.optimizer()
    made.train([1e-3] * 12, micros=micros)
    assert judged(made, "C-GA-001", "accumulated").verdict is verdict


@pytest.mark.parametrize(("size", "verdict"), [(8, Verdict.FAIL), (32, Verdict.PASS), (16, Verdict.PASS)])
def test_the_loader_hands_out_the_declared_batch(size, verdict):
    made = Training()
    made.declare(batch_size=32, accum=2)
    made.optimizer()
    made.event("loader", 0, loader=0, train=True, batch_size=size, batches=10, samples=320)
    made.event("loader", 0, loader=1, train=False, batch_size=500, batches=1, samples=320)
    made.train([1e-3] * 5)
    assert judged(made, "C-BATCH-001", "batches").verdict is verdict


@pytest.mark.parametrize(("after", "verdict"), [(10, Verdict.FAIL), (3, Verdict.PASS)])
def test_patience_is_kept(after, verdict):
    made = Training()
    made.declare(patience=3)
    made.optimizer()
    made.train([1e-3] * 20)
    for place in range(5 + after):
        made.event("evaluation", place, loss=1.0 - place * 0.1 if place < 5 else 2.0)
    assert judged(made, "C-AUTOEVAL-001", "patience").verdict is verdict


# -- C-GPUINIT-001, C-TIEDOPT-001, C-MEM-001


def moments(made: Training, cls: str = "AdamW", **row):
    told = {"m_error": 1e-7, "v_error": 1e-7, "v_min": 0.0, "stale": False, **row}
    made.event("moments", 0, optimizer=0, cls=cls, count=1.0, tensors=[{"tensor": n, **told} for n in (1, 2, 3)])


def test_moments_that_held_something_are_named():
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    moments(made, stale=True)
    only(judged(made, "C-GPUINIT-001", "initial_state"), "optimizer-state-uninitialised")


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"broken": 3}, True),
        ({"broken": 0, "beyond": 1e9}, True),
        ({"broken": 0, "beyond": 5.0, "unlike": 0.97, "grown": 400.0}, True),
        ({"broken": 0, "beyond": 5.0, "unlike": 0.97, "grown": 0.1}, False),
        ({"broken": 0, "beyond": 5.0, "unlike": 0.3, "grown": 400.0}, False),
        ({"m_error": 999.0, "v_error": 1e8}, False),
    ],
    ids=["no numbers", "beyond", "unlike", "centred gradients", "signs", "a rule of its own"],
)
def test_moments_that_no_rule_makes_are_named_in_any_optimizer(row, found):
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    moments(made, cls="OurAdam", **row)
    result = judged(made, "C-GPUINIT-001", "initial_state")
    grave = [each for each in result.violations if each.severity is not Severity.INFO]
    assert [each.cause for each in grave] == (["optimizer-state-uninitialised"] if found else [])


@pytest.mark.parametrize("row", [{"m_error": 1.0}, {"v_error": 1.0}, {"v_error": 0.9}], ids=str)
def test_moments_that_lost_what_they_were_given_are_named(row):
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    moments(made, **row)
    only(judged(made, "C-GPUINIT-001", "initial_state"), "optimizer-state-uninitialised")


def test_moments_that_could_not_be_compared_are_no_pass():
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    moments(made, m_error=None, v_error=None, v_min=None)
    assert judged(made, "C-GPUINIT-001", "initial_state").verdict is Verdict.NOT_EVALUATED


def test_moments_of_torch_and_of_strange_optimizers_are_no_mistake():
    made = Training()
    made.optimizer()
    made.train([1e-3] * 3)
    moments(made)
    assert judged(made, "C-GPUINIT-001", "initial_state").verdict is Verdict.PASS
    moments(made, cls="Lion", m_error=0.9)
    assert judged(made, "C-GPUINIT-001", "initial_state").verdict is not Verdict.FAIL
    silent = Training()
    silent.train([1e-3] * 3)
    assert judged(silent, "C-GPUINIT-001", "initial_state").verdict is Verdict.NOT_EVALUATED


def tied(made: Training, **fields):
    told = {"declared": True, "same_storage": False, "same_parameter": False, "equal": True, **fields}
    made.event("tied", 0, model="Net", tensors=[1, 3], names=["embed.weight", "head.weight"], **told)


def test_a_copy_is_not_a_tied_weight():
    made = Training()
    made.optimizer()
    tied(made)
    made.train([1e-3] * 3)
    made.sample("weight", 1, "embed", checksum=1)
    made.sample("weight", 1, "head", checksum=2)
    found = only(judged(made, "C-TIEDOPT-001", "tying"), "weight-tying-broken")
    assert found.brick == "head" and "differ after step 1" in found.symptom


def test_a_shared_parameter_is_tied():
    made = Training()
    made.optimizer()
    tied(made, same_storage=True, same_parameter=True)
    made.train([1e-3] * 3)
    assert judged(made, "C-TIEDOPT-001", "tying").verdict is Verdict.PASS
    assert judged(Training(), "C-TIEDOPT-001", "tying").verdict is Verdict.VACUOUS


def test_the_bytes_of_a_model_are_exact():
    from brickprof.rules.footprint import sizes

    made = Training()
    made.block("tied", alias_of="embed.weight")
    made.optimizer(blocks=("embed", "body", "head"))
    made.train([1e-3] * 3)
    assert sizes(Story.of(made.run()), 0) == (3 * 64 * 4, 3 * 64 * 4, 3 * 64 * 8)
    assert judged(made, "C-MEM-001", "footprint").verdict is Verdict.NOT_EVALUATED


@pytest.mark.parametrize(("declared", "updates"), [({"lr": 1e-2}, 1), ({}, 4)])
def test_a_missing_warm_up_is_told_as_soon_as_it_can_be(declared, updates):
    for made_so_far in (updates - 1, updates):
        made = Training()
        made.declare(warmup_steps=20, **declared)
        made.optimizer()
        made.train([1e-2] * made_so_far)
        found = judged(made, "C-COSINE-001", "schedule").violations
        assert [each.detected_step for each in found] == ([updates - 1] if made_so_far == updates else [])


def test_a_rate_that_can_only_fall_was_gone_for_the_steps_that_nobody_looked_at_too():
    made = Training()
    made.optimizer()
    settings = {"step_size": 10, "gamma": 0.1}
    made.event("schedule", 0, schedule=0, cls="StepLR", optimizer=0, lr=[1e-2], settings=settings)
    made.train([1e-2 * 0.1 ** (step // 10) for step in range(65)])
    made.end(200)
    assert [each.cause for each in judged(made, "C-COSINE-001", "schedule").violations] == ["schedule-horizon-wrong"]


# -- schedules that wait for progress


def waiting(measures: list[float], mode: str, losses: list[float]):
    made = Training()
    made.optimizer()
    rate = 1e-3
    for epoch, (measure, loss) in enumerate(zip(measures, losses, strict=True)):
        made.train([rate] * 10, first=10 * epoch, losses=[loss] * 10)
        rate = rate / 10 if epoch in (3, 6) else rate
        told = {"measure": measure, "mode": mode, "bad": 0}
        made.event("schedule", 10 * epoch + 9, schedule=0, cls="ReduceLROnPlateau", optimizer=0, lr=[rate], **told)
    made.end(10 * len(measures))
    return made


FALLING = [1.0, 0.8, 0.65, 0.55, 0.5, 0.47, 0.45, 0.44, 0.44, 0.43]
ACCURACY = [0.6, 0.7, 0.75, 0.78, 0.8, 0.81, 0.82, 0.82, 0.83, 0.83]


def test_an_accuracy_that_is_to_be_low():
    result = judged(waiting(ACCURACY, "min", FALLING), "C-COSINE-001", "schedule")
    found = only(result, "schedule-horizon-wrong")
    assert "mode='max'" in found.action and found.first_step == 39


def test_a_loss_that_is_to_be_high():
    result = judged(waiting(FALLING, "max", FALLING), "C-COSINE-001", "schedule")
    assert "mode='min'" in only(result, "schedule-horizon-wrong").action


@pytest.mark.parametrize(
    ("measures", "mode"),
    [
        (ACCURACY, "max"),
        (ACCURACY[::-1], "max"),
        ([1.1 * loss for loss in FALLING], "min"),
        ([1.1, 0.9, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4], "min"),
    ],
    ids=["accuracy, to be high", "accuracy that falls", "held-out loss", "held-out loss that rises again"],
)
def test_schedules_that_are_told_what_they_take_it_for(measures, mode):
    result = judged(waiting(measures, mode, FALLING), "C-COSINE-001", "schedule")
    assert not [each for each in result.violations if each.cause == "schedule-horizon-wrong"]


# -- resumes


def resumed(*, holds: bool = True, restored: bool = True, count: float = 60.0, rate: float = 1e-3, missing: int = 0):
    made = Training()
    made.optimizer()
    made.train([1e-3] * 30)
    keys = ["model", "optimizer", "step"] if holds else ["model", "step"]
    about = {"file": "last.pt", "optimizer": holds, "moments": 6 if holds else 0, "step": 30, "keys": keys}
    made.file(29, "save", **about)
    made.file(29, "load", **about)
    made.event("restored", 29, what="model", tensors=3, expected=3, missing=missing, names=["head.weight"][:missing])
    if restored:
        made.event("restored", 29, what="optimizer", moments=6, count=30.0, tensors=3, expected=3)
    made.optimizer(number=1, lr=rate)
    made.event("moments", 30, optimizer=1, cls="AdamW", count=count, tensors=[])
    made.train([rate] * 30, first=30, optimizer=1)
    made.end(60)
    return made


def test_an_exact_resume_is_a_pass():
    made = resumed()
    assert judged(made, "C-RESUME-001", "resume").verdict is Verdict.PASS
    assert judged(made, "C-GPUOPT-001", "complete").verdict is Verdict.PASS


def test_moments_that_were_not_put_back_are_named():
    found = only(judged(resumed(restored=False, count=1.0), "C-RESUME-001", "resume"), "resume-state-lost")
    assert found.first_step == 30


def test_a_file_without_moments_is_incomplete():
    made = resumed(holds=False, restored=False, count=1.0)
    assert judged(made, "C-RESUME-001", "resume").verdict is not Verdict.FAIL
    only(judged(made, "C-GPUOPT-001", "complete"), "checkpoint-incomplete")


def test_a_weight_that_is_not_in_the_file_is_named():
    found = only(judged(resumed(missing=1), "C-GPUOPT-001", "complete"), "checkpoint-incomplete")
    assert "head.weight" in found.symptom


def test_weights_to_begin_with_are_no_resume():
    made = Training()
    made.file(0, "load", file="base.pt", optimizer=True, moments=6, step=9000, keys=["model", "step"])
    made.event("restored", 0, what="model", tensors=3, expected=3, missing=1)
    made.optimizer()
    made.train([1e-3] * 30)
    made.end(30)
    for contract, module in (("C-RESUME-001", "resume"), ("C-GPUOPT-001", "complete"), ("C-FRESH-TRAIN-001", "fresh")):
        assert judged(made, contract, module).verdict is not Verdict.FAIL


def test_a_step_that_came_with_the_weights_ends_the_run_before_it_begins():
    made = Training()
    made.file(0, "load", file="base.pt", optimizer=False, step=14500, keys=["model", "step"])
    made.event("restored", 0, what="model", tensors=3, expected=3, missing=0)
    made.event("unused", 0, optimizers=1)
    made.event("exit", 0, steps=0, updates=0)
    found = only(judged(made, "C-FRESH-TRAIN-001", "fresh"), "resume-step-leaked")
    assert "14,500" in found.symptom


@pytest.mark.parametrize(
    ("second", "accused"),
    [
        ({"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}, True),
        ({"lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}, False),
    ],
    ids=["all defaults", "a rate of its own"],
)
def test_a_second_optimizer_that_was_left_at_the_defaults(second, accused):
    made = Training()
    made.optimizer(number=0, blocks=("body", "head"), lr=4e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)
    made.optimizer(number=1, blocks=("embed",), **second)
    made.train([4e-3] * 40)
    made.train([second["lr"]] * 40, optimizer=1)
    result = judged(made, "C-HYPERPARAMS-001", "hyperparameters")
    warned = [each for each in result.violations if each.severity is Severity.WARNING]
    assert bool(warned) is accused
    if accused:
        assert warned[0].cause == "optimizer-hyperparameters-mismatch" and warned[0].brick == "embed"


def tuned(rates: list[float], parameters: int):
    """Weights of a training of 30 steps go into a new model, which is trained with ``rates``."""
    made = Training()
    made.event("model", 0, model="Net", parameters=100)
    made.optimizer()
    made.train([1e-3] * 30)
    about = {"optimizer": False, "moments": 0, "step": 30, "keys": ["model", "step"], "bytes": 400, "tensors": 3}
    made.file(29, "save", file="base.tmp", **about)
    made.file(29, "load", file="base.pt", **about)
    made.event("restored", 29, what="model", tensors=2, expected=3, missing=1, names=["head.weight"])
    made.event("model", 29, model="Net", parameters=parameters)
    made.event("optimizer_created", 30, optimizer=1, cls="AdamW", built_lr=2e-3, groups=[{"tensors": [1, 2, 3]}])
    made.train(rates, first=30, optimizer=1)
    made.end(30 + len(rates))
    return made


def adapted(*, over: bool, rates: list[float]):
    """A file of this very run, with the optimizer's state, goes into a model of the same size."""
    made = Training()
    made.event("model", 0, model="Net", parameters=100)
    made.optimizer()
    made.train([1e-3 * (1 - at / 30) for at in range(30)] if over else [1e-3] * 30)
    about = {"optimizer": True, "moments": 6, "step": 30, "keys": ["model", "opt", "step"], "bytes": 400, "tensors": 3}
    made.file(29, "save", file="base.pt", **about)
    made.file(29, "load", file="base.pt", rates=[[0, 3e-5 if over else 1e-3], [1, 2e-3]], **about)
    made.event("restored", 29, what="model", tensors=3, expected=3, missing=0, names=[])
    made.event("optimizer_created", 30, optimizer=1, cls="AdamW", built_lr=2e-3, groups=[{"tensors": [1, 2, 3]}])
    made.train(rates, first=30, optimizer=1)
    made.event("moments", 30, optimizer=1, cls="AdamW", count=1.0, tensors=[])
    made.end(30 + len(rates))
    return made


def test_a_training_that_was_over_is_not_resumed_by_another():
    tail = [3e-4 * (1 - at / 20) for at in range(20)]
    made = adapted(over=True, rates=tail)
    only(judged(made, "C-FRESH-TRAIN-001", "fresh"), "resume-step-leaked")
    assert not judged(made, "C-RESUME-001", "resume").violations
    made = adapted(over=False, rates=[1e-3] * 20)
    only(judged(made, "C-RESUME-001", "resume"), "resume-state-lost")
    assert judged(made, "C-FRESH-TRAIN-001", "fresh").verdict is Verdict.PASS


def test_a_rate_at_its_floor_from_the_beginning_is_a_tail_too():
    only(judged(tuned([1e-6] * 20, 120), "C-FRESH-TRAIN-001", "fresh"), "resume-step-leaked")


def test_a_schedule_that_begins_at_its_tail_took_the_step_along():
    tail = [3e-4 * (1 - at / 20) for at in range(20)]
    found = only(judged(tuned(tail, 120), "C-FRESH-TRAIN-001", "fresh"), "resume-step-leaked")
    assert "began at 0.0003" in found.symptom


@pytest.mark.parametrize(
    "rates", [[2e-3] * 20, [1e-4 * (at + 1) for at in range(20)], [2e-3 * (1 - at / 21) for at in range(20)]],
    ids=["constant", "warm-up", "from its top"],
)  # fmt: skip
def test_schedules_that_begin_as_schedules_do(rates):
    assert judged(tuned(rates, 120), "C-FRESH-TRAIN-001", "fresh").verdict is Verdict.PASS


def test_a_model_of_another_size_is_not_resumed_but_tuned():
    assert judged(tuned([2e-3] * 20, 120), "C-GPUOPT-001", "complete").verdict is not Verdict.FAIL
    only(judged(tuned([2e-3] * 20, 100), "C-GPUOPT-001", "complete"), "checkpoint-incomplete")


@pytest.mark.parametrize(("position", "verdict"), [(30, Verdict.FAIL), (40, Verdict.PASS)])
def test_data_that_begin_again_in_the_middle_of_an_epoch_are_named(position, verdict):
    made = Training()
    made.optimizer()
    made.event("loader", 0, loader=0, train=True, batch_size=8, batches=40, samples=320)
    for index in range(position):
        made.event("batch", index, loader=0, index=index, epoch=0, fingerprint=f"{index:08x}")
    made.train([1e-3] * position)
    about = {"file": "last.pt", "optimizer": True, "moments": 6, "step": position, "keys": ["model", "optimizer"]}
    made.file(position - 1, "save", **about)
    made.file(position - 1, "load", **about)
    for index in range(10):
        made.event("batch", position + index, loader=0, index=index, epoch=1, fingerprint=f"{index:08x}")
    made.train([1e-3] * 10, first=position, optimizer=1)
    result = judged(made, "C-DATARESUME-001", "data_resume")
    assert result.verdict is verdict
    if verdict is Verdict.FAIL:
        only(result, "data-order-lost-on-resume")


def test_what_a_later_optimizer_leaves_out_is_told_from_then_on_and_with_its_place():
    made = Training("body.0.down", "body.0.up", "body.1.down", "body.1.up")
    made.optimizer(blocks=("body.0.down", "body.1.down"))
    for step in range(3):
        made.look(step)
    for step in range(150, 153):
        made.look(step, unowned=[2, 4])
    made.train([1e-3] * 200)
    found = [
        each for each in judged(made, "C-GRADFLOW-001", "ownership").violations
        if each.cause == "optimizer-missing-parameters"
    ]  # fmt: skip
    assert [(each.first_step, each.detected_step, each.brick) for each in found] == [(150, 151, "body.0.up")]
