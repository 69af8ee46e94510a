"""What was done to gradients between backward and update: clipped, unscaled, multiplied, or nothing.

Enters: a story. Leaves: a ``Look`` for each step whose facts were written, and the bound that a configuration declares.
A step nobody looked at is no look: it proves nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from brickprof.records import Event
from brickprof.rules.names import number
from brickprof.rules.story import Story

_FLOAT_L2 = 2.0
_GRADIENT_CLIP = re.compile(
    r"(grad\w*clip|clip\w*grad|max_?grad(ient)?_?norm|grad(ient)?_?norm_?clip|^global_clip_?norm$)"
)
_PLAIN_CLIP = re.compile(r"^(clip|clip_?norm|clip_?max_?norm|max_?clip_?norm)$")
_BY_VALUE = re.compile(r"(clip_?value|value_?clip|clipvalue)")
_HOW = re.compile(r"(algorithm|mode|type|enabled?|strategy|warmup|filter)")


@dataclass(slots=True)
class Look:
    """One step of one rank. Norms are without the loss scale; None is not known."""

    step: int
    rank: int
    clips: list[Event] = field(default_factory=list)
    grads: list[Event] = field(default_factory=list)
    applieds: list[Event] = field(default_factory=list)
    update: Event | None = None
    """The first update of the step."""
    _reckoned: dict[str, float | None] = field(default_factory=dict, repr=False, compare=False)
    """Norms that somebody asked for: several rules do, of ten thousand looks."""
    _bounds: tuple[float | None, ...] | None = field(default=None, repr=False, compare=False)
    _too_late: bool | None = field(default=None, repr=False, compare=False)

    @property
    def bounds(self) -> tuple[float | None, ...]:
        """The bound of each clip; None of one that is not by the norm."""
        if self._bounds is None:
            self._bounds = tuple(map(bound_of, self.clips))
        return self._bounds

    @property
    def too_late(self) -> bool:
        """Whether every clip came after the update."""
        if self._too_late is None:
            self._too_late = all(late(clip, self.update) for clip in self.clips)
        return self._too_late

    @property
    def applied(self) -> Event | None:
        """What the update was given against what backward left; None where two optimizers say two things."""
        return self.applieds[0] if len(self.applieds) == 1 else None

    @property
    def broken(self) -> bool:
        """Whether gradients were no numbers any more: then no norm says anything."""
        return any(event.fields.get("nonfinite") for event in self.grads)

    @property
    def coefficient(self) -> float | None:
        """What the gradients were multiplied by between backward and update, the loss scale aside."""
        applied = self.applied
        found = number(applied.fields.get("coefficient")) if applied is not None else None
        return found if found is not None and math.isfinite(found) else None

    @property
    def before(self) -> float | None:
        """The norm as backward left it."""
        if "before" not in self._reckoned:
            self._reckoned["before"] = self._before()
        return self._reckoned["before"]

    def _before(self) -> float | None:
        used = self._used()
        if used is not None and self.coefficient:
            return used / self.coefficient
        told = [found for event in self.grads if (found := size(event)) is not None]
        told += [found for event in self.clips if (found := clip_norm(event)) is not None]
        return max(told, default=used)

    @property
    def after(self) -> float | None:
        """The norm as the optimizer used it: seen there, or reckoned from what it was multiplied by."""
        if "after" not in self._reckoned:
            self._reckoned["after"] = self._after()
        return self._reckoned["after"]

    def _after(self) -> float | None:
        used = self._used()
        if used is not None:
            return used
        if self.applieds and self.coefficient is not None and self.before is not None:
            return self.before * self.coefficient
        for clip in self.clips:
            if clip_norm(clip) != 0.0 and not late(clip, self.update):
                return None  # it took effect, and nobody measured what was left
        return self.before

    def _used(self) -> float | None:
        """The norm seen at the update, where nobody called torch's clipping: that look comes after all by hand."""
        if self.clips:
            return None
        return next((size(event) for event in self.grads if event.fields.get("point") == "step"), None)

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(event.id for event in (*self.applieds[:1], *self.clips[:2], *self.grads[:1]))


def size(event: Event) -> float | None:
    """The norm a ``grad`` event tells, without the loss scale."""
    value = number(event.fields.get("l2"))
    if value is None or not math.isfinite(value):
        value = number(event.fields.get("absmax"))  # a finite 1e35 overflows an L2 norm
    if value is None or not math.isfinite(value):
        return None
    scale = number(event.fields.get("scale"))
    if scale is not None and scale <= 0:
        return None  # scaled, and nobody knows by how much
    return value / scale if scale is not None else value


def clip_norm(event: Event) -> float | None:
    """The norm that clipping measured, where it is the plain one of whole gradients."""
    fields = event.fields
    kind = number(fields.get("norm_type"))
    if fields.get("how", "norm") != "norm" or fields.get("local") or kind not in (None, _FLOAT_L2):
        return None
    found = number(fields.get("norm"))
    return found if found is not None and math.isfinite(found) else None


def bound_of(event: Event) -> float | None:
    """The bound of a clip by norm; None for other kinds of clipping."""
    fields = event.fields
    found = number(fields.get("max_norm"))
    if found is None or not 0 < found < math.inf or fields.get("how", "norm") != "norm" or fields.get("local"):
        return None
    return found if number(fields.get("norm_type")) in (None, _FLOAT_L2) else None


def late(clip: Event, update: Event | None) -> bool:
    """Whether clipping came after the update of its step."""
    told = clip.fields.get("late")
    if isinstance(told, bool):
        return told
    if update is None or update.step != clip.step or clip.time_ns < update.time_ns:
        return False
    return clip.moment > update.moment


_KINDS = ("clip", "grad", "applied")
_kept: WeakKeyDictionary[Story, tuple[tuple[int, ...], list[Look]]] = WeakKeyDictionary()


def looks(story: Story, rank: int) -> list[Look]:
    """Every step that made an update and whose facts were written, in order. Several rules ask: it is made once."""
    state = (rank, *(len(story.events(kind, rank)) for kind in ("optimizer", *_KINDS)))
    known = _kept.get(story)
    if known is None or known[0] != state:
        known = _kept[story] = (state, _made(story, rank))
    return known[1]


def _made(story: Story, rank: int) -> list[Look]:
    told = reversed(story.events("optimizer", rank))
    updates = {event.step: event for event in told if not event.fields.get("skipped")}
    clips, grads, applieds = (_by_step(story.events(kind, rank)) for kind in _KINDS)
    found = []
    for step in sorted(updates):
        update, clip = updates[step], clips.get(step, [])
        if len(clip) == 1 and step not in grads and step not in applieds:
            found.append(_plain(step, rank, clip, update))
        else:
            found.append(Look(step, rank, clip, grads.get(step, []), applieds.get(step, []), update))
    return found


def _by_step(events: Sequence[Event]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for event in events:
        if event.step in found:
            found[event.step].append(event)
        else:
            found[event.step] = [event]
    return found


def _plain(step: int, rank: int, clips: list[Event], update: Event) -> Look:
    """A look with one clip and nothing else, as most of ten thousand are: what is asked of it is reckoned at once."""
    fields = clips[0].fields
    norm, bound = fields.get("norm"), fields.get("max_norm")
    if not (type(norm) is type(bound) is float and 0 < bound < math.inf and math.isfinite(norm)):
        return Look(step, rank, clips, [], [], update)
    if fields.get("how", "norm") != "norm" or fields.get("local") or fields.get("norm_type") not in (None, _FLOAT_L2):
        return Look(step, rank, clips, [], [], update)
    behind = late(clips[0], update)
    after = norm if behind or norm == 0.0 else None
    return Look(step, rank, clips, [], [], update, {"before": norm, "after": after}, (bound,), behind)


class Declared(NamedTuple):
    key: str
    value: float
    evidence: str
    plain: bool = False
    """A bare ``clip``: probably gradients, but it might be something else that is clipped."""


def declared_bound(story: Story) -> Declared | None:
    """The bound on the gradient norm that a configuration file or the command line asks for."""
    found: list[Declared] = []
    for key, (value, evidence) in story.declared.items():
        name = _last_word(key)
        sure, plain = bool(_GRADIENT_CLIP.search(name)), bool(_PLAIN_CLIP.match(name))
        if not (sure or plain) or _BY_VALUE.search(name) or _HOW.search(name):
            continue
        bound = plain_number(value)
        if bound is not None and 0 < bound < 1e4:
            found.append(Declared(key, bound, evidence, plain and not sure))
    return min(found, key=lambda each: each.plain, default=None)


def _last_word(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.lower().rpartition(".")[2]).strip("_")


def is_bound(key: str) -> bool:
    """Whether ``key`` surely speaks of a bound on the gradient norm."""
    name = _last_word(key)
    return bool(_GRADIENT_CLIP.search(name)) and not _BY_VALUE.search(name) and not _HOW.search(name)


def plain_number(value: Any) -> float | None:
    """A declared value as a number: command lines and YAML 1.1 hand over text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    found = number(value)
    return found if found is not None and math.isfinite(found) else None
