"""The story of a run: everything that was recorded, in columns that rules can reason over.

Enters: records as they come (a run that goes on), or a whole ``Run``. Leaves: the same answers in both cases:

    story.ranks                      [0, 1, ...]            story.steps(rank)         how far it came
    story.events("clip", rank)       the events of a kind   story.last(kind), story.first(kind)
    story.track("optimizer", "lr")   a number over steps    story.losses(rank)        one loss a step
    story.grid("grad", rank)         step x tensor matrices story.norms(rank)         global gradient norm over steps
    story.names                      tensors, bricks, who owns what
    story.depth                      which block comes first in the forward
    story.use                        which blocks ran in which steps
    story.declared                   what a configuration file or the command line asked for

No rule keeps records of its own, so that a hundred rules cost one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import ROLES, Event, Record, Sample, Span
from brickprof.rules.causality import Depth
from brickprof.rules.names import LIMIT, NAMING, Names, number, whole
from brickprof.rules.story.grids import Columns, Grid
from brickprof.rules.story.tracks import EMPTY, Track, track
from brickprof.rules.use import Use

if TYPE_CHECKING:
    from brickprof.run import Run

__all__ = ["EMPTY", "Grid", "NotYet", "Story", "Track"]

_MOST_SPANS = 200_000
_WIDE = 2**62
_TRAINING = ("loss", "optimizer", "grad")
_PLAIN = frozenset({
    "cls", "dtype", "fingerprint", "group", "loader", "model", "name", "op", "optimizer", "reduction", "seq", "site",
    "step", "what",
})  # fmt: skip
"""Fields that hold one word or number, in whatever kind of event."""


class NotYet(BaseException):
    """What was asked for is still being read. No mistake that anybody should catch: the rule is asked again later."""


class Story:
    def __init__(self) -> None:
        self.names = Names()
        self.partial = False
        """Whether samples and spans are still on their way: who asks for them is told ``NotYet``."""
        self.refused = False
        """Whether somebody was told so."""
        self._depth = Depth()
        self._use = Use()
        self._run: Run | None = None
        self._events: dict[tuple[str, int], list[Event]] = {}
        self._columns: dict[tuple[str, int], Columns] = {}
        self._tracks: dict[tuple[Any, ...], tuple[int, Track]] = {}
        self._remembered: dict[tuple[str, int], tuple[tuple[int, ...], Any]] = {}
        self._step_ns: dict[int, list[tuple[int, int]]] = {}
        self._flops: dict[int, dict[int, int]] = {}
        self._steps: dict[int, int] = {}
        self._spans = 0
        self._deep = (-1, -1)

    @classmethod
    def of(cls, run: Run) -> Story:
        """The story of a run that is over."""
        from brickprof.rules.story import loading

        story = cls()
        loading.load_rest(story, loading.load_events(story, run))
        return story

    # -- taking in

    def feed(self, record: Record) -> None:
        if isinstance(record, Event):
            self._event(record)
        elif isinstance(record, Sample):
            self.columns(record.role, record.rank).add(record)
        else:
            self._span(record)

    def _event(self, event: Event) -> None:
        event = _sound(event)
        told = self._events.setdefault((event.kind, event.rank), [])
        told.append(event)
        if len(told) > 1 and event.moment < told[-2].moment:  # a live run: a device told it late
            told.sort(key=lambda each: each.moment)
        self.names.feed(event)
        if event.rank >= 0 and event.kind in _TRAINING:
            self._steps[event.rank] = max(self._steps.get(event.rank, 0), event.step + 1)
        if event.kind == "anomaly":
            until = event.fields.get("until")
            self._deep = (event.step, until if isinstance(until, int) else -1)

    def take(self, rank: int, events: Iterable[Event]) -> None:
        """Every event of one rank, in the order in which they happened: what feeding them one by one comes to."""
        told: dict[str, list[Event]] = {}
        for event in events:
            kind = event.kind
            if kind in NAMING:
                self.names.feed(_sound(event))
            if kind in told:
                told[kind].append(event)
            else:
                told[kind] = [event]
        told = {kind: _all_sound(found) for kind, found in told.items()}
        self._events.update({(kind, rank): found for kind, found in told.items()})
        trained = [max([event.step for event in told[kind]]) + 1 for kind in _TRAINING if kind in told]
        if rank >= 0 and trained:
            self._steps[rank] = max(0, *trained)
        for event in told.get("anomaly", ())[-1:]:
            until = event.fields.get("until")
            self._deep = (event.step, until if isinstance(until, int) else -1)

    def _span(self, span: Span) -> None:
        if span.phase == "step":
            self._step_ns.setdefault(span.rank, []).append((span.step, span.host_ns))
        if (flops := span.attributes.get("flops")) and isinstance(flops, int):
            steps = self._flops.setdefault(span.rank, {})
            steps[span.step] = steps.get(span.step, 0) + flops
        self._spans += 1
        if self._spans > _MOST_SPANS:
            return
        self._depth.feed(span)
        if not self._deep[0] < span.step <= self._deep[1]:
            self._use.feed(span)  # deep capture times other blocks: the two do not mix

    def columns(self, role: str, rank: int) -> Columns:
        self._have_all()
        key = (role, rank)
        if key not in self._columns:
            self._columns[key] = Columns(role, rank)
        return self._columns[key]

    # -- asking

    def _have_all(self) -> None:
        if self.partial:
            self.refused = True
            raise NotYet

    @property
    def depth(self) -> Depth:
        self._have_all()
        return self._depth

    @property
    def use(self) -> Use:
        self._have_all()
        return self._use

    @property
    def run(self) -> Run | None:
        """The run itself, where it is over and lies in a folder."""
        self._have_all()
        return self._run

    @property
    def ranks(self) -> list[int]:
        """The ranks that trained."""
        return sorted(self._steps)

    @property
    def trained(self) -> bool:
        return bool(self._steps)

    @property
    def logged(self) -> bool:
        """Whether a log tells it: losses every so many steps, in a few digits, and nothing from inside the model."""
        return bool(self.events("log", -1))

    def steps(self, rank: int = 0) -> int:
        """How many steps this rank was seen to take."""
        counted = [event.fields.get("steps") for event in self.events("exit", rank)]
        whole = [count for count in counted if isinstance(count, int)]
        return max([*whole, self._steps.get(rank, 0)])

    def events(self, kind: str, rank: int = 0) -> list[Event]:
        """The events of one kind on one rank, in the order they happened. Rank -1 is the launch."""
        return self._events.get((kind, rank), [])

    def first(self, kind: str, rank: int = 0) -> Event | None:
        found = self.events(kind, rank)
        return found[0] if found else None

    def last(self, kind: str, rank: int = 0) -> Event | None:
        found = self.events(kind, rank)
        return found[-1] if found else None

    def track(self, kind: str, value: str, rank: int = 0, **equal: Any) -> Track:
        """The field ``value`` of the events ``kind`` over steps; ``equal`` selects events by their other fields.

        A list (the rates of several groups) counts with its largest number.
        """
        events = self.events(kind, rank)
        key = (kind, value, rank, tuple(sorted(equal.items())))
        known = self._tracks.get(key)
        if known is None or known[0] != len(events):
            chosen = events
            for name, want in equal.items():
                chosen = [event for event in chosen if event.fields.get(name) == want]
            known = self._tracks[key] = (
                len(events),
                track(chosen, lambda event: _largest(event.fields.get(value)), rank),
            )
        return known[1]

    def tells(self, kind: str, name: str, rank: int = 0) -> bool:
        """Whether any event of a kind says something in a field: most rules ask for what most runs never write."""
        events = self.events(kind, rank)
        found = self.remembered(
            f"{name} of {kind}", rank, (kind,), lambda: any(event.fields.get(name) is not None for event in events)
        )
        return bool(found)

    def wholes(self, kind: str, name: str, rank: int = 0) -> Any:
        """A field of the events of a kind as an array of whole numbers; 0 where there is none (see ``names.whole``)."""
        events = self.events(kind, rank)
        return self.remembered(f"whole {name} of {kind}", rank, (kind,), lambda: _wholes(events, name))

    def steps_of(self, kind: str, rank: int = 0) -> Any:
        """The steps of the events of a kind, as an array."""
        events = self.events(kind, rank)
        return self.remembered(f"steps of {kind}", rank, (kind,), lambda: _array([event.step for event in events]))

    def remembered(self, what: str, rank: int, kinds: tuple[str, ...], made: Callable[[], Any]) -> Any:
        """What ``made`` gives, which several rules ask for: made again when there are more events of these kinds."""
        state = tuple(len(self.events(kind, rank)) for kind in kinds)
        known = self._remembered.get((what, rank))
        if known is None or known[0] != state:
            known = self._remembered[what, rank] = (state, made())
        return known[1]

    def losses(self, rank: int = 0) -> Track:
        """One loss a step: the mean over its micro-batches."""
        return self.track("loss", "value", rank).per_step()

    def norms(self, rank: int = 0) -> Track:
        """The global gradient norm as backward left it: before clipping, without a loss scale."""
        events = [*self.events("grad", rank), *self.events("clip", rank)]
        key = ("|grad|", rank)
        known = self._tracks.get(key)
        if known is None or known[0] != len(events):
            found = track(sorted(events, key=attrgetter("step", "time_ns", "seq")), _norm, rank)
            known = self._tracks[key] = len(events), _largest_of_step(found)
        return known[1]

    def rates(self, rank: int = 0, optimizer: int = 0) -> Track:
        """The learning rate over steps; of several groups the largest."""
        return self.track("optimizer", "lr", rank, optimizer=optimizer)

    def grid(self, role: str, rank: int = 0) -> Grid:
        """The samples of one role (grad, grad_local, weight, update, activation, input) as matrices."""
        if role not in ROLES:
            raise KeyError(role)
        return self.columns(role, rank).grid()

    def step_times(self, rank: int = 0) -> Track:
        """Seconds of each step that was timed."""
        self._have_all()
        rows = sorted(self._step_ns.get(rank, []))
        if not rows:
            return EMPTY
        steps, times = zip(*rows, strict=True)
        return Track(np.asarray(steps, np.int64), np.asarray(times) / 1e9, np.zeros(len(rows), np.int64), rank)

    def flops(self, rank: int = 0) -> dict[int, int]:
        """Operations of the kernels that say how many they make, by step; only of steps whose kernels were timed."""
        self._have_all()
        return self._flops.get(rank, {})

    def hyperparameters(self, rank: int = 0) -> dict[int, list[dict[str, Any]]]:
        """The live groups of each optimizer, as they last were: lr, betas, eps, weight_decay, ... ."""
        found: dict[int, list[dict[str, Any]]] = {}
        for event in _in_order([*self.events("optimizer_created", rank), *self.events("hyperparameters", rank)]):
            groups = event.fields.get("groups")
            if isinstance(groups, list):
                known = [group for group in groups if isinstance(group, dict)]
                found[_whole(event.fields.get("optimizer"))] = known
        return found

    @property
    def declared(self) -> dict[str, tuple[Any, str]]:
        """Declared settings by dotted key: the value, and the record that says so."""
        found: dict[str, tuple[Any, str]] = {}
        for rank in (-1, *self.ranks):
            for event in self.events("config", rank):
                values = event.fields.get("values")
                if isinstance(values, dict):
                    found.update({str(key): (value, event.id) for key, value in values.items()})
        return found


def _sound(event: Event) -> Event:
    """The event without what cannot be: rules compare and count these fields, and a damaged file may hold anything."""
    strange = [name for name in _PLAIN & event.fields.keys() if isinstance(event.fields[name], list | dict)]
    if not strange:
        return event
    return replace(event, fields={name: value for name, value in event.fields.items() if name not in strange})


def _all_sound(events: list[Event]) -> list[Event]:
    """Events of one kind, each ``_sound``: most often one look at their columns says that they all are."""
    for name in _PLAIN & named(events):
        if any(issubclass(kind, list | dict) for kind in {type(event.fields.get(name)) for event in events}):
            return list(map(_sound, events))
    return events


def named(events: Iterable[Event]) -> set[str]:
    """The names of all fields of some events: of one kind there are few sets of them."""
    return {name for names in {tuple(event.fields) for event in events} for name in names}


def _norm(event: Event) -> float | None:
    fields = event.fields
    if event.kind == "clip":
        return number(fields.get("norm")) if fields.get("how", "norm") == "norm" else None
    value = number(fields.get("l2"))
    if value is None or not math.isfinite(value):
        value = number(fields.get("absmax"))  # a finite 1e35 overflows an L2 norm
    scale = number(fields.get("scale")) or 1.0
    return None if value is None else value / scale if scale > 0 else None


def _largest_of_step(found: Track) -> Track:
    if len(found) < 2:
        return found
    order = np.lexsort((-found.values, found.steps))
    steps, first = np.unique(found.steps[order], return_index=True)
    kept = order[first]
    return Track(steps, found.values[kept], found.seqs[kept], found.rank)


def _largest(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) == 1 and type(value[0]) is float:
        return value[0]
    known = [found for found in map(number, value) if found is not None]
    return max(known) if known else None


def _in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.moment)


def _wholes(events: Sequence[Event], name: str) -> Any:
    values: list[Any] = [event.fields.get(name) for event in events]
    if set(map(type, values)) != {int} or max(map(abs, values)) >= LIMIT:
        values = list(map(whole, values))
    return _array(values)


def _array(wholes: list[int]) -> Any:
    """As 64 bits wide as they are, with room to count on; a damaged file may hold any number."""
    wide = max(map(abs, wholes), default=0) >= _WIDE
    return np.asarray(wholes, object if wide else np.int64)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
