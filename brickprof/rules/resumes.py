"""Resumes: a checkpoint that is loaded, what is restored from it, and the training that goes on.

Enters: a story. Leaves: a ``Resume`` for each loaded file that training went on from. Whether it was meant as a resume
(and not as weights to begin with) is certain where this very run had written the file, or the settings say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brickprof.records import Event
from brickprof.rules import declared
from brickprof.rules.declared import Optimizer
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

_STATEFUL = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adafactor",
    "Lion",
    "LBFGS",
)
_OVER = 0.05
"""Of its highest rate: where a schedule has run its course."""
_HOLDS_STATE = ("optim", "moment", "adam", "opt_state", "exp_avg")


@dataclass(slots=True)
class Resume:
    load: Event
    restored: dict[str, Event] = field(default_factory=dict)
    """The last event of each kind (model, optimizer, scheduler, scaler) until the next file."""
    certain: bool = False
    update: Event | None = None
    """The first update that was made afterwards."""
    moments: Event | None = None
    """The optimizer's memory in the first update afterwards that was looked at."""
    begins: int = 0
    """The first step afterwards."""

    @property
    def step(self) -> int:
        return whole(self.load.fields.get("step")) if self.load.fields.get("step") is not None else 0

    @property
    def holds_state(self) -> bool:
        """Whether the file holds the optimizer's memory, in torch's form or another."""
        keys = [str(key).lower() for key in self.load.fields.get("keys") or ()]
        return bool(self.load.fields.get("optimizer")) or any(word in key for key in keys for word in _HOLDS_STATE)

    @property
    def forgot(self) -> bool:
        """Whether the optimizer was seen to count from the beginning again."""
        count = number(self.moments.fields.get("count")) if self.moments is not None else None
        given = self.restored.get("optimizer")
        lost = given is not None and bool(given.fields.get("moments")) and given.fields.get("count") == 0
        since = self.moments.step - self.begins + 1 if self.moments is not None else 0
        return lost or (count is not None and count <= max(since, 1))


def resumes(story: Story, rank: int) -> list[Resume]:
    loads = [event for event in story.events("checkpoint", rank) if event.fields.get("op") == "load"]
    found = []
    for place, load in enumerate(loads):
        until = loads[place + 1].moment if place + 1 < len(loads) else None
        one = Resume(load, certain=_certain(story, rank, load), begins=_begins(story, rank, load))
        for event in _between(story.events("restored", rank), load.moment, until):
            one.restored[str(event.fields.get("what", ""))] = event
        one.update = next(iter(_between(story.events("optimizer", rank), load.moment, until)), None)
        one.moments = next(iter(_between(story.events("moments", rank), load.moment, until)), None)
        found.append(one)
    return found


def _begins(story: Story, rank: int, load: Event) -> int:
    """The step after the file was loaded: the one under way is over where its loss was seen."""
    losses = [event for event in story.events("loss", rank) if event.step == load.step]
    return load.step + 1 if any(event.time_ns < load.time_ns for event in losses) else load.step


def _between(events: list[Event], first: tuple[int, int], until: tuple[int, int] | None) -> list[Event]:
    return [event for event in events if event.moment > first and (until is None or event.moment < until)]


def _certain(story: Story, rank: int, load: Event) -> bool:
    saves = [event for event in story.events("checkpoint", rank) if event.fields.get("op") == "save"]
    begun = next((event.moment for event in story.events("optimizer", rank)), None)
    ours = any(
        begun is not None and begun < save.moment < load.moment
        and _one_file(save, load) and _one_model(story, rank, save, load)
        and save.fields.get("step") == load.fields.get("step")
        for save in saves
    )  # fmt: skip
    asked = [setting.value for setting in declared.settings(story).get("resume", [])]
    return ours or any(value not in (None, "", False, "false", "none", "null", "scratch") for value in asked)


def _one_model(story: Story, rank: int, save: Event, load: Event) -> bool:
    """Whether the model that the file goes into is as large as the one it was saved from: fine-tuning changes heads."""
    saved: dict[str, set[Any]] = {}
    for event in story.events("model", rank):
        if event.moment < save.moment:
            saved.setdefault(_first_name(event), set()).add(event.fields.get("parameters"))
    first = next((event.moment for event in story.events("optimizer", rank) if event.moment > load.moment), None)
    later = [e for e in story.events("model", rank) if e.moment > save.moment and (first is None or e.moment < first)]
    return all(
        event.fields.get("parameters") in saved[name] for event in later if (name := _first_name(event)) in saved
    )


def _first_name(event: Event) -> str:
    """What a model is called before a second one of its kind is told apart by a number."""
    return str(event.fields.get("model")).partition("#")[0]


def _one_file(save: Event, load: Event) -> bool:
    """Whether the file that was loaded is the one that was saved, which may have been renamed since."""
    if save.fields.get("file") == load.fields.get("file"):
        return True
    alike = ("bytes", "tensors", "keys")
    return bool(save.fields.get("bytes")) and all(save.fields.get(name) == load.fields.get(name) for name in alike)


def stateful(one: Optimizer) -> bool:
    """Whether the optimizer remembers anything between updates."""
    return one.cls in _STATEFUL or max(one.values("momentum"), default=0.0) > 0


def rate_before(story: Story, rank: int, load: Event) -> tuple[float, str] | None:
    """The learning rate of the update right before the file was loaded; None where that one was not written down."""
    events = [event for event in story.events("optimizer", rank) if event.moment < load.moment]
    return _rate(events[-1]) if events and events[-1].step >= load.step - 1 else None


def another_training(story: Story, rank: int, one: Resume) -> bool:
    """The file is one of this run, but its training was over: its rate had run its course, and another one follows."""
    old = next((e for e in reversed(story.events("optimizer", rank)) if e.moment < one.load.moment), None)
    if old is None or one.update is None:
        return False
    number_of = whole(old.fields.get("optimizer"))
    before, after = _rate_at(one.load, number_of) or _rate(old), rate_after(one)
    if before is None or after is None or number_of == whole(one.update.fields.get("optimizer")):
        return False
    peak = float(story.rates(rank, number_of).finite().values.max())
    return before[0] <= _OVER * peak and not 1 / 3 <= after[0] / max(before[0], 1e-30) <= 3


def _rate_at(load: Event, optimizer: int) -> tuple[float, str] | None:
    """The rate that ``optimizer`` stood at when the file was loaded."""
    listed = load.fields.get("rates")
    pairs = (
        [pair for pair in listed if isinstance(pair, (list, tuple)) and len(pair) == 2]
        if isinstance(listed, list)
        else []
    )
    found = next((number(rate) for at, rate in pairs if whole(at, -1) == optimizer), None)
    return None if found is None else (found, load.id)


def _rate(event: Event) -> tuple[float, str] | None:
    listed = event.fields.get("lr")
    rates = [rate for each in listed if (rate := number(each)) is not None] if isinstance(listed, list) else []
    return (max(rates), event.id) if rates else None


def rate_after(one: Resume) -> tuple[float, str] | None:
    return _rate(one.update) if one.update is not None else None
