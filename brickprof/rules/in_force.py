"""C-CONFIG-001: a setting that is declared has an effect.

Enters: a story. Leaves: a violation for each declared setting that the run shows to have none: a schedule and a rate
that never moves, an interval of saving and no file, an interval of evaluation that nobody keeps, a last step
that is passed.

Only what capture would have seen counts: files written by torch.save, passes without gradients, updates of torch's
optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brickprof.contracts.schema import Contract
from brickprof.contracts.spellings import Setting
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import accumulated, declared, outcomes, schedules, stated, wording
from brickprof.rules.story import Story

CONTRACT = "C-CONFIG-001"
_CONSTANT = ("constant", "none", "const", "no", "false", "null", "off")
Settings = dict[str, list[Setting]]


class InForce:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        asked = declared.settings(story)
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        unset = list(stated.no_dropout(story, rank))
        if unset:
            return outcomes.broken(contract, unset, "every setting has an effect")
        if not asked:
            return outcomes.unjudged(contract, "no configuration declares anything (give --config)")
        violations = [found for check in _CHECKS for found in check(story, rank, asked, contract)]
        if violations:
            return outcomes.broken(contract, violations, "every declared setting has an effect")
        judged = [name for name in _JUDGED if name in asked]
        if not judged:
            return outcomes.unjudged(contract, "none of the declared settings can be judged here")
        return outcomes.held(contract, f"in effect: {', '.join(judged)}", "every declared setting has an effect")


def _schedule(story: Story, rank: int, asked: Settings, contract: Contract) -> Iterator[Violation]:
    """A schedule is declared, no schedule exists, and the rate never moves."""
    wanted = [
        setting for setting in asked.get("scheduler", [])
        if isinstance(setting.value, str) and setting.value.lower() not in _CONSTANT
    ]  # fmt: skip
    updates = declared.updates(story, rank)
    if not wanted or schedules.schedules(story, rank) or not updates:
        return
    if max(updates.values()) < contract.threshold("updates_for_a_schedule"):
        return
    for at in updates:
        values = story.rates(rank, at).finite().values
        if not len(values) or values.max() > values.min() * (1 + 1e-6):
            return
    again = schedules.second_epoch(story, rank)
    if again is None and not declared.over(story, rank):
        return
    rate = float(story.rates(rank, next(iter(updates))).finite().values[0])
    yield _violation(
        story, rank, wanted[0], f"{_said(wanted[0])}, and the learning rate stayed {rate:.3g} in all "
        f"{max(updates.values()):,} updates", "no schedule was built and nobody changed the rate of a group",
        "Build the schedule and step it after each optimizer.step().", 0.9, Severity.ERROR,
        {"plateau", "not-learning", "slow-learning", "spike", "diverged"}, 0,
        int(contract.threshold("updates_for_a_schedule")),
    )  # fmt: skip


def _saving(story: Story, rank: int, asked: Settings, contract: Contract) -> Iterator[Violation]:
    setting = declared.only(asked, "save_every")
    every = declared.amount(setting)
    steps = story.steps(rank)
    files = [event.fields.get("op") for each in story.ranks for event in story.events("checkpoint", each)]
    if setting is None or not every or every < 1 or "save" in files or steps < every + 1 or _by_epochs(asked):
        return
    if _may_be_epochs(setting, every, asked):
        return
    yield _violation(
        story, rank, setting, f"{_said(setting)}, and no checkpoint was written in {steps:,} steps "
        f"({int(steps // every):,} were due)", "nothing called torch.save",
        "Save model, optimizer, scheduler and step every so many steps; a crash now loses everything.", 0.9,
        Severity.WARNING, {"killed", "crashed"}, int(every), int(every) + 1,
    )  # fmt: skip


def _by_epochs(asked: Settings) -> bool:
    """Whether intervals are counted in epochs by a strategy that stands beside them."""
    said = [*asked.get("save_strategy", []), *asked.get("eval_strategy", [])]
    return any(str(setting.value).lower() in ("epoch", "no") for setting in said)


def _may_be_epochs(setting: Setting, every: float, asked: Settings) -> bool:
    """Whether an interval that does not say its unit may be one of epochs, more of them than the run has."""
    epochs = declared.amount(declared.only(asked, "epochs"))
    unsaid = "step" not in setting.key.lower() and "max_steps" not in asked
    return unsaid and epochs is not None and epochs < every


def _evaluating(story: Story, rank: int, asked: Settings, contract: Contract) -> Iterator[Violation]:
    setting = declared.only(asked, "eval_every")
    every = declared.amount(setting)
    steps, passes = story.steps(rank), _evaluations(story, rank)
    if setting is None or not every or every < 2 or _by_epochs(asked):
        return
    many = passes >= contract.threshold("too_many_evaluations") * (steps / every + 1)
    if many and passes >= 8:
        yield _violation(
            story, rank, setting, f"{_said(setting)}, and {passes:,} evaluations ran in {steps:,} steps: one every "
            f"{steps / passes:.2g}", "the interval in force is another than the declared one: the key is not the one "
            "that is read, and a default rules", "Read the declared key, and refuse keys that nobody reads.", 0.9,
            Severity.WARNING, {"slow"}, 0, min(8, steps - 1),
        )  # fmt: skip
    elif not passes and steps >= 2 * every and not _may_be_epochs(setting, every, asked):
        yield _violation(
            story, rank, setting, f"{_said(setting)}, and no evaluation ran in {steps:,} steps",
            "no pass without gradients was seen between two updates", "Evaluate at the declared interval.", 0.75,
            Severity.WARNING, {"overfitting"}, int(every), int(2 * every),
        )  # fmt: skip


def _evaluations(story: Story, rank: int) -> int:
    return len({event.step for event in story.events("evaluation", rank)})


def _last_step(story: Story, rank: int, asked: Settings, contract: Contract) -> Iterator[Violation]:
    setting = declared.only(asked, "max_steps")
    last = declared.amount(setting)
    updates = declared.updates(story, rank)
    done = min(updates.values(), default=0)
    if setting is None or not last or last < 1 or done <= last * contract.threshold("steps_beyond") + 2:
        return
    if accumulated.short_of(story, rank) == round(done / last):
        return  # every backward is taken for a step: that is said of the accumulation
    yield _violation(
        story, rank, setting, f"{_said(setting)}, and {done:,} updates were made", "nothing ended the run at that step",
        "End the loop at the declared step.", 0.92, Severity.WARNING, {"overfitting", "schedule"}, int(last),
        int(last) + 2,
    )  # fmt: skip


def _said(setting: Setting) -> str:
    return f"the configuration says {setting.key}: {setting.value}"


def _violation(
    story: Story, rank: int, setting: Setting, symptom: str, why: str, action: str, certainty: float,
    severity: Severity, explains: set[str], first: int, detected: int,
) -> Violation:  # fmt: skip
    evidence = tuple(dict.fromkeys(each for each in (setting.source, *declared.end(story, rank)) if each))
    seen = max(first, min(detected, story.steps(rank) - 1))
    return Violation(
        CONTRACT, "config-unused", severity, symptom, first, seen, "", "step", rank, evidence,
        {"question": f"Is {setting.key} in force?", "asked": f"Is {setting.key} in force?", "key": setting.key},
        "config-unused", certainty, frozenset(explains),
        (Because(f"Why has {setting.key} no effect?", wording.sentence(why), "", evidence),), action=action,
        static=True,
    )  # fmt: skip


_Check = Callable[[Story, int, Settings, Contract], Iterator[Violation]]
_CHECKS: tuple[_Check, ...] = (_schedule, _saving, _evaluating, _last_step)
_JUDGED = ("scheduler", "save_every", "eval_every", "max_steps")
RULE = InForce
