"""C-GRADFLOW-001, its second half: a gradient that is computed is used, by an optimizer that owns the parameter.

Enters: a story. Leaves: a violation for parameters that get gradients and that no optimizer owns, one for optimizers
that own what no model holds any more, and one for parameters that are owned and frozen by mistake.

Training a part on purpose is healthy: a frozen backbone, two optimizers, a loaded model of which the head is trained.
What speaks for a mistake: the part nearest the loss is left out, most of the model is owned and a little is not, the
weights were never loaded from anywhere, the model's own tensors and the owned ones have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import freezing, outcomes, wording
from brickprof.rules.names import Tensor
from brickprof.rules.story import Story

CONTRACT = "C-GRADFLOW-001"
_FOLLOW = frozenset({"not-learning", "plateau", "no-gradient", "slow-learning", "underfitting", "not-cleared"})


@dataclass(slots=True)
class Looks:
    """What was seen of ownership on one rank, over all looks."""

    rank: int
    events: list[Event]
    """Those in which something was left out, where anything was."""
    unowned: list[Tensor] = field(default_factory=list)
    """With a gradient, without an owner, and never written to: in several looks, and in the last one."""
    idle: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    always: bool = True
    """Whether it was so from the first look on."""

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(event.id for event in (self.events[0], self.events[-1]))

    @property
    def first(self) -> int:
        return self.events[0].step

    @property
    def second(self) -> int:
        return self.events[min(1, len(self.events) - 1)].step


class Ownership:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        events = story.events("ownership", rank)
        if not events:
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, why="who owns which gradient was not looked at")
        needed = int(contract.threshold("observations"))
        looks = gathered(story, rank, events, needed)
        violations = list(_judged(story, looks)) + list(freezing.judged(story, rank, needed))
        if violations:
            return outcomes.broken(contract, violations, "every gradient has an owner")
        if len({event.step for event in events}) < needed:
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, why="too few steps to judge ownership by")
        return outcomes.held(contract, "every gradient has an owner", "every gradient has an owner")


def gathered(story: Story, rank: int, events: list[Event], needed: int) -> Looks:
    looks = Looks(rank, events)
    last = events[-1]
    times: dict[int, int] = {}
    moved: set[int] = set()
    for event in events:
        moved.update(_numbers(event, "moved"))
        for each in dict.fromkeys(_numbers(event, "unowned")):
            times[each] = times.get(each, 0) + 1
    stay = [each for each in dict.fromkeys(_numbers(last, "unowned")) if each not in moved]
    for each in stay:
        tensor = story.names.tensor(rank, each)
        if times[each] >= (needed if tensor.model else needed + 1):
            looks.unowned.append(tensor)
    left_out = {tensor.number for tensor in looks.unowned}
    looks.events = [event for event in events if left_out.intersection(_numbers(event, "unowned"))] or events
    looks.always = looks.events[0] is events[0]
    looks.idle = set(_numbers(last, "idle"))
    looks.outside = set(_numbers(last, "outside"))
    return looks


def _judged(story: Story, looks: Looks) -> Iterator[Violation]:
    stale = _stale(story, looks)
    if stale:
        yield _stale_violation(story, looks, stale)
        return
    owned = story.names.owned(looks.rank)
    by_model: dict[str, list[Tensor]] = {}
    partly = {tensor.model for tensor in story.names.tensors(looks.rank) if tensor.number in owned}
    for tensor in looks.unowned:
        if tensor.number not in owned:
            # Whole models that nobody owns are one mistake: layers in a list, an encoder that was forgotten.
            by_model.setdefault(tensor.model if tensor.model in partly else "", []).append(tensor)
    for tensors in by_model.values():
        yield _missing_violation(story, looks, tensors[0].model, tensors)


def _stale(story: Story, looks: Looks) -> list[Tensor]:
    """Unowned tensors for which the optimizer holds another tensor of the same name or size that gets no gradient."""
    dead = looks.idle & looks.outside
    if not dead and looks.idle >= story.names.owned(looks.rank):
        dead = looks.idle  # a model that is alive and never runs
    held = [story.names.tensor(looks.rank, each) for each in dead]
    names, sizes = {tensor.name for tensor in held}, {tensor.numel for tensor in held if tensor.numel}
    return [tensor for tensor in looks.unowned if tensor.name in names or tensor.numel in sizes]


def _stale_violation(story: Story, looks: Looks, stale: list[Tensor]) -> Violation:
    whole = len(looks.idle) == len(story.names.owned(looks.rank))
    where = place(story, stale)
    owned = wording.count(len(looks.idle), "owned parameter")
    symptom = (
        f"the optimizer updates {owned} that no gradient reaches, while {some(story, stale)} "
        f"{'gets' if len(stale) == 1 else 'get'} gradients and no update"
    )
    finding = (
        f"{_names(story, stale)} had a gradient in every look since step {looks.first:,} and no optimizer owns "
        f"{'it' if len(stale) == 1 else 'them'}; the tensors of the same names or sizes that it does own belong to "
        f"{'a model that is not the one that runs' if whole else 'modules that are no longer in the model'}."
    )
    return Violation(
        CONTRACT, "unused-gradient", Severity.ERROR, symptom, looks.first, looks.second, where, "optimizer", looks.rank,
        looks.evidence, {"question": f"Why does {where or 'the model'} not learn?",
                         "asked": "What becomes of its gradients?", "tensors": tuple(t.name for t in stale)},
        "optimizer-stale-parameters", 0.95, _FOLLOW,
        (Because("Why do its gradients change nothing?", finding, where, looks.evidence),),
        action="Build the optimizer after the last change to the model (replaced layers, copies, loaded modules), or "
        "give it the new parameters with add_param_group.",
        static=looks.always,
    )  # fmt: skip


def _missing_violation(story: Story, looks: Looks, model: str, tensors: list[Tensor]) -> Violation:
    severity, certainty, remark = _weight(story, looks, model, tensors)
    where = place(story, tensors)
    symptom = (
        f"{some(story, tensors)} {'gets' if len(tensors) == 1 else 'get'} gradients and no optimizer owns "
        f"{'it' if len(tensors) == 1 else 'them'}"
    )
    finding = (
        f"In {wording.count(len(looks.events), 'look')} from step {looks.first:,} to {looks.events[-1].step:,} "
        f"{_names(story, tensors)} had a gradient, belonged to no optimizer and was never written to{remark}."
    )
    return Violation(
        CONTRACT, "unused-gradient", severity, symptom, looks.first, looks.second, where, "optimizer", looks.rank,
        looks.evidence, {"question": f"Why does {where or 'the model'} not learn?",
                         "asked": "What becomes of the gradients?", "tensors": tuple(t.name for t in tensors)},
        "optimizer-missing-parameters", certainty, _FOLLOW,
        (Because("Why do these gradients change nothing?", finding, where, looks.evidence),),
        action=f"Give {_names(story, tensors)} to an optimizer (layers belong into a ModuleList, so that "
        "model.parameters() finds them), or freeze it with requires_grad_(False) if it is meant to stay.",
        static=looks.always,
    )  # fmt: skip


def _weight(story: Story, looks: Looks, model: str, tensors: list[Tensor]) -> tuple[Severity, float, str]:
    """How grave it is that ``tensors`` are left out, how certain that it is a mistake, and why."""
    owned = story.names.owned(looks.rank)
    kin = [t for t in story.names.tensors(looks.rank) if t.model == model and t.number in owned]
    loaded = freezing.loaded(story, looks.rank)
    if not kin:
        resting = any(
            event.fields.get("model") == model and event.fields.get("training") is False
            for event in story.events("mode", looks.rank)
        )
        if loaded or resting:
            return Severity.INFO, 0.4, ""
        return Severity.WARNING, 0.85, ", though its weights were loaded from nowhere"
    order = freezing.order(story)
    below = max(map(order, tensors)) < min(map(order, kin))
    if not below:
        return Severity.ERROR, 0.93, ", while parts nearer the input are trained"
    if len(kin) >= len(tensors):
        return Severity.ERROR, 0.9, ", while most of the model is trained"
    return (
        (Severity.INFO, 0.4, "") if loaded else (Severity.WARNING, 0.75, ", and its weights were loaded from nowhere")
    )


def place(story: Story, tensors: list[Tensor]) -> str:
    """The block that holds all of ``tensors`` and nothing else that is trained; where there is none, the first's."""
    paths = [tensor.name.split(".")[:-1] for tensor in tensors]
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    if shared and _others_inside(story, tensors, ".".join(shared)):
        shared = paths[0]
    if shared:
        model = tensors[0].model
        qualified = len(story.names.models - {""}) > 1 and model
        return f"{model}.{'.'.join(shared)}" if qualified else ".".join(shared)
    return story.names.show(tensors[0].brick)


def _others_inside(story: Story, tensors: list[Tensor], path: str) -> bool:
    mine, model = {tensor.number for tensor in tensors}, tensors[0].model
    rank = story.ranks[0] if story.ranks else 0
    return any(
        each.model == model and each.number not in mine and each.name.startswith(f"{path}.")
        for each in story.names.tensors(rank)
        if story.names.trained(rank, each)
    )


def some(story: Story, tensors: Iterable[Tensor]) -> str:
    listed = list(tensors)
    return f"{wording.count(len(listed), 'parameter')} ({_names(story, listed)})"


def _names(story: Story, tensors: list[Tensor]) -> str:
    names = [story.names.show_tensor(tensor) for tensor in tensors[:3]]
    return ", ".join(names) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _numbers(event: Event, name: str) -> list[int]:
    listed: Any = event.fields.get(name)
    return [each for each in listed if isinstance(each, int)] if isinstance(listed, list) else []


RULE = Ownership
