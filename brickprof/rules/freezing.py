"""Parameters that an optimizer owns and that want no gradient: on purpose, or by mistake.

Enters: a story. Leaves: violations. A trained head over a frozen backbone is healthy. A mistake shows itself: an
attribute ``requires_grad`` on a module (which frees nothing), a group of its own for frozen parameters, a table of
random rows that was frozen by default, the part nearest the loss frozen while parts before it are trained, or a loss
that stands still over weights that were never loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, progress, wording
from brickprof.rules.names import Tensor
from brickprof.rules.story import Story

CONTRACT = "C-GRADFLOW-001"
_FOLLOW = frozenset({"not-learning", "plateau", "no-gradient", "slow-learning", "underfitting", "no-grad-loss"})
_ENOUGH_UPDATES = 20


def judged(story: Story, rank: int, needed: int) -> Iterator[Violation]:
    events = story.events("ownership", rank)
    looks = [set(_numbers(event)) for event in events]
    always = set.intersection(*looks) if len(looks) >= needed else set()
    if not always:
        return
    frozen = [story.names.tensor(rank, each) for each in sorted(always)]
    reason = _reason(story, rank, frozen, events)
    if reason is not None:
        yield _violation(story, rank, frozen, events, *reason)


def loaded(story: Story, rank: int) -> bool:
    """Whether weights came from a file: then what is left alone may be good as it is."""
    if any(event.fields.get("what", "model") == "model" for event in story.events("restored", rank)):
        return True
    return any(event.fields.get("op") == "load" for event in story.events("checkpoint", rank))


def order(story: Story) -> Callable[[Tensor], tuple[int, int]]:
    """The order of parameters from the input to the loss."""
    return lambda tensor: (story.depth.of(tensor.brick) or 0, tensor.number)


def _reason(
    story: Story, rank: int, frozen: list[Tensor], events: list[Event]
) -> tuple[Severity, float, str, list[Tensor]] | None:
    """What shows that it is a mistake, and of which parameters."""
    wished = {path: name for path, want, name in _wished(events[-1]) if want}
    inside = [(t, path) for t in frozen for path in wished if not path or f"{t.name}.".startswith(f"{path}.")]
    if inside:
        path = inside[0][1]
        what = "a parameter" if path == inside[0][0].name else "a module"
        said = f"`{path or 'model'}.{wished[path]} = True` sets an attribute of {what} and frees no parameter"
        return Severity.ERROR, 0.95, said, list(dict.fromkeys(t for t, _ in inside))
    if max(declared.updates(story, rank).values(), default=0) < _ENOUGH_UPDATES:
        return None
    noise = set(_numbers(events[-1], "noise"))
    tables = [tensor for tensor in frozen if tensor.number in noise]
    if tables and not loaded(story, rank):
        said = (
            "Embedding.from_pretrained freezes its table unless told otherwise, it was told nothing, and the rows "
            "are random numbers that no training made"
        )
        return Severity.WARNING, 0.82, said, tables
    owned = [t for t in story.names.tensors(rank) if t.number in story.names.owned(rank) and not t.alias]
    numbers = {tensor.number for tensor in frozen}
    trained = [tensor for tensor in owned if tensor.number not in numbers]
    flat = progress.stands(story.losses(rank))
    group = _frozen_group(story, rank, numbers)
    if group is not None and trained:
        return (
            Severity.WARNING,
            0.75,
            f"a parameter group with a learning rate of its own ({group:g}) is frozen",
            frozen,
        )
    return _by_effect(story, rank, frozen, trained, flat=flat)


def _by_effect(
    story: Story, rank: int, frozen: list[Tensor], trained: list[Tensor], *, flat: bool
) -> tuple[Severity, float, str, list[Tensor]] | None:
    if loaded(story, rank) or not flat:
        return None
    key, size = order(story), sum(tensor.numel for tensor in frozen)
    whole = size + sum(tensor.numel for tensor in trained)
    if trained and max(map(key, frozen)) > max(map(key, trained)):
        said = "the part nearest the loss is frozen while parts before it are trained, and the loss stands still"
        return Severity.ERROR, 0.85, said, frozen
    if size * 2 >= whole > 0:
        said = f"{size / whole:.0%} of the optimizer's weights are frozen as they began, and the loss stands still"
        return Severity.ERROR, 0.85, said, frozen
    return None


def _frozen_group(story: Story, rank: int, frozen: set[int]) -> float | None:
    """The learning rate of a group that is frozen altogether, where other groups have other rates."""
    for one in declared.optimizers(story, rank):
        rates = {group.get("lr") for group in one.groups}
        for group in one.groups:
            tensors = [each for each in group.get("tensors") or () if isinstance(each, int)]
            rate = group.get("lr")
            if len(rates) > 1 and tensors and frozen.issuperset(tensors) and isinstance(rate, float):
                return rate
    return None


def _violation(
    story: Story, rank: int, frozen: list[Tensor], events: list[Event], severity: Severity, certainty: float, why: str,
    tensors: list[Tensor],
) -> Violation:  # fmt: skip
    from brickprof.rules.ownership import place, some

    where = place(story, tensors)
    evidence = (events[0].id, events[-1].id)
    symptom = f"{some(story, tensors)} {'is' if len(tensors) == 1 else 'are'} owned by an optimizer and frozen"
    finding = f"{wording.sentence(why)} They were so in all of {wording.count(len(events), 'look')}."
    return Violation(
        CONTRACT, "frozen", severity, symptom, events[0].step, events[min(1, len(events) - 1)].step, where, "block",
        rank, evidence, {"question": f"Why does {where or 'the model'} not learn?",
                         "asked": "Which parameters can move at all?", "tensors": tuple(t.name for t in tensors)},
        "parameters-frozen", certainty, _FOLLOW,
        (Because(f"Why does {where or 'it'} not move?", finding, where, evidence),),
        action=f"Call {where or 'model'}.requires_grad_(True) (with the underscore: it reaches the parameters), before "
        "the optimizer is built or at the epoch in which it should begin to learn.",
        static=True,
    )  # fmt: skip


def _wished(event: Event) -> Iterator[tuple[str, bool, str]]:
    listed: Any = event.fields.get("wished")
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, list) and len(item) in (2, 3):
            yield str(item[0]), bool(item[1]), str(item[2]) if len(item) == 3 else "requires_grad"


def _numbers(event: Event, name: str = "frozen") -> list[int]:
    listed: Any = event.fields.get(name)
    return [each for each in listed if isinstance(each, int)] if isinstance(listed, list) else []
