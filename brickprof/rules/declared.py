"""What was asked for, and how far the run came: what rules on settings compare.

Enters: a story. Leaves: declared settings by canonical name, each with the record that declares it; live optimizers
with their groups; how many updates were made, and whether the run ended by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from brickprof.contracts import spellings
from brickprof.contracts.spellings import Setting
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

_WORDS = re.compile(r"[a-z0-9]+")
_LOOSE = {
    "lr": ("lr", "learning_rate"), "weight_decay": ("wd", "weight_decay", "decay"), "eps": ("eps", "epsilon"),
    "beta1": ("beta1", "b1", "beta_1", "betas"), "beta2": ("beta2", "b2", "beta_2", "betas"), "momentum": ("momentum",),
}  # fmt: skip


@dataclass(slots=True)
class Optimizer:
    """One optimizer as it is, not as it was asked for."""

    number: int
    rank: int
    cls: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    tensors: set[int] = field(default_factory=set)

    def values(self, name: str) -> list[float]:
        """A hyperparameter of every group that has it."""
        found = [group.get(name) for group in self.groups]
        return [value for each in found if (value := number(each)) is not None]

    def pairs(self) -> list[tuple[float, float]]:
        return [pair for group in self.groups if (pair := spellings.pair(group.get("betas"))) is not None]


def optimizers(story: Story, rank: int) -> list[Optimizer]:
    """The optimizers that made updates on ``rank``, with everything that is known of their groups."""
    found: dict[int, Optimizer] = {}
    events = [*story.events("optimizer_created", rank), *story.events("hyperparameters", rank)]
    for event in sorted(events, key=lambda each: each.moment):
        at = whole(event.fields.get("optimizer"))
        made = found.setdefault(at, Optimizer(at, rank))
        made.cls = str(event.fields.get("cls") or made.cls)
        made.evidence.append(event.id)
        listed = event.fields.get("groups")
        groups = [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []
        for place, group in enumerate(groups):
            if place >= len(made.groups):
                made.groups.append({})
            made.groups[place].update(group)
            made.tensors.update(item for item in group.get("tensors") or () if isinstance(item, int))
    return list(found.values())


def settings(story: Story) -> dict[str, list[Setting]]:
    """Declared settings by canonical name."""
    found: dict[str, list[Setting]] = {}
    for key, (value, source) in story.declared.items():
        for name, listed in spellings.settings({key: value}, source).items():
            found.setdefault(name, []).extend(listed)
    return found


def only(declared: dict[str, list[Setting]], name: str) -> Setting | None:
    """The declared number called ``name``, where there is one and not several that differ."""
    listed = [setting for setting in declared.get(name, []) if spellings.number(setting.value) is not None]
    return listed[0] if listed and len({spellings.number(setting.value) for setting in listed}) == 1 else None


def amount(setting: Setting | None) -> float | None:
    return None if setting is None else spellings.number(setting.value)


def any_value(story: Story, name: str) -> set[float]:
    """Every number that is declared under a key which has to do with ``name``: ``d_lr`` is a learning rate too."""
    return {value for given in _alike(story, name) for value in _numbers(given, name)}


def _alike(story: Story, name: str) -> Iterator[Any]:
    words = _LOOSE.get(name, (name,))
    for key, (value, _) in story.declared.items():
        called = spellings.canonical(key)
        last = "_".join(_WORDS.findall(key.lower()))
        if called in (name, "betas") or (called is None and any(f"_{word}_" in f"_{last}_" for word in words)):
            yield value


def _numbers(value: Any, name: str) -> list[float]:
    pair = spellings.pair(value)
    if pair is not None:
        return [pair[1]] if name == "beta2" else [pair[0]] if name == "beta1" else list(pair)
    if isinstance(value, list):
        return [found for item in value if (found := spellings.number(item)) is not None]
    found = spellings.number(value)
    return [] if found is None else [found]


def updates(story: Story, rank: int = 0) -> dict[int, int]:
    """How many updates each optimizer made."""
    found: dict[int, int] = story.remembered("updates", rank, ("optimizer", "exit"), lambda: _updates(story, rank))
    return dict(found)


def _updates(story: Story, rank: int) -> dict[int, int]:
    numbers, counts = (story.wholes("optimizer", name, rank) for name in ("optimizer", "count"))
    found = {at: max(0, int(counts[numbers == at].max())) for at in dict.fromkeys(numbers.tolist())}
    if len(found) == 1:
        last = story.last("exit", rank)
        told = whole(last.fields.get("updates")) if last is not None else 0
        found = {at: max(count, told) for at, count in found.items()}
    return found


def lasting(story: Story, rank: int = 0) -> list[int]:
    """The optimizers that were in use until the end; others were replaced on the way."""
    found: list[int] = story.remembered("lasting", rank, ("optimizer",), lambda: _lasting(story, rank))
    return list(found)


def _lasting(story: Story, rank: int) -> list[int]:
    numbers, steps = story.wholes("optimizer", "optimizer", rank), story.steps_of("optimizer", rank)
    last = {at: int(steps[numbers == at][-1]) for at in dict.fromkeys(numbers.tolist())}
    end = max(last.values(), default=0)
    return [at for at, step in last.items() if step >= 0.9 * end]


def resumed_at(story: Story, rank: int = 0) -> int:
    """The step of the checkpoint that the run goes on from; 0 where it begins anew."""
    steps = [
        whole(event.fields.get("step"))
        for event in story.events("checkpoint", rank)
        if event.fields.get("op") == "load" and event.step == 0
    ]
    return max(steps, default=0)


def over(story: Story, rank: int = 0) -> bool:
    """Whether the run came to its end by itself: no exception, no signal, no interruption."""
    if not story.events("exit", rank) or story.events("exception", rank):
        return False
    ends = story.events("exited", -1)
    return all(whole(event.fields.get("code"), 0) == 0 and not event.fields.get("signal") for event in ends)


def end(story: Story, rank: int = 0) -> tuple[str, ...]:
    """The record that says how far the run came."""
    last = story.last("exit", rank) or story.last("optimizer", rank)
    return () if last is None else (last.id,)
