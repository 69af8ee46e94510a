"""A run that a log tells of, as rules read it.

Enters: the story of such a run. Leaves: a ``View``: the loss that is minimised with all its points, finite or not, its
twins (the same loss by step and by epoch), gradient norms, rates, loss scales, evaluations and other measures, each as
a ``Track`` whose points name the line they stand in; how far the run was to go; which settings the log states.

What logged numbers are like: every so many steps, often means over them, in few digits. A rule that asks for every
step has nothing to ask here; one that counts points has to count enough of them.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from brickprof.logs.reading import names
from brickprof.records import Event
from brickprof.rules.curves import SIGMA
from brickprof.rules.story import Story, Track
from brickprof.rules.story.tracks import Floats, track

_KEPT: weakref.WeakKeyDictionary[Story, tuple[int, View]] = weakref.WeakKeyDictionary()
_READ = ("loss", "grad", "metric", "said", "log", "evaluation", "scaler", "optimizer", "memory", "config")
_OF_REWARDS = frozenset({"reward", "rewards", "policy", "advantage", "advantages", "entropy", "kl", "return", "returns",
                         "critic", "actor", "value", "ppo", "grpo"})  # fmt: skip
_ADVERSARIES = frozenset({"gen", "generator", "disc", "discriminator", "adv", "adversarial", "gan", "critic", "actor"})
_REWARDED = frozenset({"reward", "rewards", "rew", "return", "returns", "episode", "rollout"})
_POLICIES = frozenset({"policy", "actor", "critic", "entropy"})
_WITHOUT_MEANING = frozenset({"z", "zscore", "best", "lowest", "patience", "delta", "diff"})
_VARIANTS = frozenset({"step", "epoch", "interval", "batch", "iter"})
_TRUE = frozenset({"true", "yes", "on", "1"})
_NARROW = frozenset({"fp16", "float16", "half", "16", "16-mixed", "16-true", "torch.float16", "fp16_mixed", "amp", "o1",
                     "o2"})  # fmt: skip
_WIDE = frozenset({"bf16", "bfloat16", "bf16-mixed", "bf16-true", "torch.bfloat16", "fp32", "float32", "32", "32-true",
                   "torch.float32", "no", "tf32"})  # fmt: skip


@dataclass
class View:
    story: Story
    log: dict[str, Any]
    """The fields of the log event; of several files, the first's."""
    _metrics: dict[str, tuple[str, list[Event]]] = field(default_factory=dict, repr=False)
    _measures: dict[str, dict[str, Track]] = field(default_factory=dict, repr=False)

    # -- what is there

    @cached_property
    def rank(self) -> int:
        """The first rank; where not all of them broke, the one that broke first."""
        ranks = self.story.ranks or [0]
        broke = [(step, rank) for rank in ranks if (step := self._broke(rank)) is not None]
        return min(broke)[1] if broke else ranks[0]

    def _broke(self, rank: int) -> int | None:
        """The first step in which the loss of ``rank`` is not finite, for good."""
        losses = self.story.track("loss", "value", rank)
        whole = np.flatnonzero(np.isfinite(losses.values))
        begins = int(whole[-1]) + 1 if len(whole) else 0
        return int(losses.steps[begins]) if begins < len(losses) else None

    @property
    def unit(self) -> str:
        """What steps are counted in: step, epoch or row; ``iteration`` is a step."""
        by = str(self.log.get("steps_by") or "step")
        return "row" if by == "row" else "epoch" if names.role(by) == "epoch" else "step"

    @property
    def by_steps(self) -> bool:
        return self.unit == "step"

    @cached_property
    def loss(self) -> Track:
        """All points of the loss that is minimised."""
        return self.story.track("loss", "value", self.rank)

    @cached_property
    def finite(self) -> Track:
        return self.loss.per_step().finite()

    @cached_property
    def norms(self) -> Track:
        return self.story.track("grad", "l2", self.rank)

    @cached_property
    def rates(self) -> Track:
        return self.story.rates(self.rank)

    @cached_property
    def scales(self) -> Track:
        return self.story.track("scaler", "scale", self.rank)

    @cached_property
    def overflows(self) -> list[Event]:
        return [event for event in self.story.events("scaler", self.rank) if event.fields.get("found_inf")]

    @cached_property
    def evaluations(self) -> dict[str, Track]:
        """Losses of evaluations, by name."""
        found: dict[str, list[Event]] = {}
        for event in self.story.events("evaluation", self.rank):
            found.setdefault(str(event.fields.get("name", "")), []).append(event)
        told = {name: track(events, "loss", self.rank) for name, events in found.items()}
        return {name: one for name, one in told.items() if not frozenset(names.words(name)) & _WITHOUT_MEANING}

    def measures(self, role: str) -> dict[str, Track]:
        """Other series of one role, by name."""
        if role not in self._measures:
            told = {name: events for name, (found, events) in self._metrics.items() if found == role}
            self._measures[role] = {name: track(events, "value", self.rank) for name, events in told.items()}
        return self._measures[role]

    @cached_property
    def twins(self) -> dict[str, Track]:
        """The same loss, told by step and by epoch."""
        own = _without(self.log.get("loss") or "")
        return {name: one for name, one in self.measures("loss").items() if own and _without(name) == own}

    @cached_property
    def memory(self) -> dict[str, Track]:
        found: dict[str, list[Event]] = {}
        for event in self.story.events("memory", self.rank):
            found.setdefault(str(event.fields.get("name", "")), []).append(event)
        return {name: track(events, "reported", self.rank) for name, events in found.items()}

    def said(self, *facts: str) -> list[Event]:
        """What the log says in words, by the kind of fact."""
        return [event for event in self.story.events("said", -1) if event.fields.get("fact") in facts]

    # -- what it means

    @property
    def several(self) -> bool:
        """Losses that are parts of something, and no name says which is the whole."""
        return bool(self.log.get("several"))

    @cached_property
    def bounded_below(self) -> bool:
        return bool(len(self.finite)) and not bool(np.any(self.finite.values < 0))

    @cached_property
    def of_rewards(self) -> bool:
        """Whether it is reinforcement learning, or adversaries."""
        told = [frozenset(names.words(name)) for name in self._metrics]
        own = frozenset(names.words(str(self.log.get("loss") or "")))
        if own & (_OF_REWARDS | _ADVERSARIES) or any(_REWARDED & words for words in told):
            return True
        return any("loss" in words and words & _POLICIES for words in told)

    @cached_property
    def level_says_nothing(self) -> str:
        """Why the height of this loss says nothing about learning; empty where it does."""
        told = [frozenset(names.words(name)) for name in self._metrics]
        if self.of_rewards:
            return "a loss of reinforcement learning, or of adversaries: its level says nothing about learning"
        if self.several:
            return "several losses, and no name says which of them is the whole"
        if any(words & _ADVERSARIES and "loss" in words for words in told) and not self.bounded_below:
            return "losses of adversaries: their level says nothing about learning"
        if not self.bounded_below:
            return "losses below zero: their level says nothing about learning" if len(self.finite) else "no loss"
        return ""

    @property
    def total(self) -> int | None:
        """How many steps the run was to take."""
        told = self.log.get("total")
        return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else None

    @property
    def last(self) -> int:
        return int(self.log.get("last") or 0)

    @property
    def from_the_start(self) -> bool:
        """Whether the log begins where the training did, and no checkpoint was loaded before."""
        loads = [event for event in self.said("checkpoint") if event.fields.get("op") == "load"]
        first = int(self.log.get("first") or 0)
        return not loads and first <= max(1, 0.1 * self.last)

    @property
    def came_to_its_end(self) -> bool:
        """Whether the run did all it was to do."""
        if self.said("finished"):
            return True
        return self.total is not None and self.last >= 0.98 * self.total - 1

    @cached_property
    def settings(self) -> dict[str, tuple[Any, str]]:
        """What the log states, by the last word of its key."""
        return {"_".join(names.words(key.rpartition(".")[2])): told for key, told in self.story.declared.items()}

    @cached_property
    def narrow(self) -> tuple[bool | None, str, tuple[str, ...]]:
        """Whether it computes in float16 (None: not said), in words, and what shows it."""
        for key in ("fp16", "fp16_enabled", "half"):
            if key in self.settings and _true(self.settings[key][0]):
                return True, f"the log states {key}: {self.settings[key][0]}", (self.settings[key][1],)
        for key in ("dtype", "precision", "mixed_precision", "torch_dtype", "amp_dtype", "autocast_dtype"):
            if key in self.settings:
                word = str(self.settings[key][0]).lower()
                if word in _NARROW or word in _WIDE:
                    return word in _NARROW, f"the log states {key}: {word}", (self.settings[key][1],)
        if key := next((key for key in ("bf16", "bf16_enabled") if _true(self.settings.get(key, (None, ""))[0])), ""):
            return False, f"the log states {key}", (self.settings[key][1],)
        if self.overflows or _scaled(self.scales):
            proof = self.overflows[0].id if self.overflows else self.scales.evidence(0)
            return True, "a loss scale is at work, as float16 needs it", (proof,)
        if _unscaled(self.scales) and not any(np.any(one.values > 0) for one in self.measures("skipped").values()):
            told = "the loss scale is 1 throughout: nothing is scaled, and float16 would need it"
            return False, told, (self.scales.evidence(0),)
        return None, "the log does not say in which precision it computes", ()

    def within(self, step: int) -> str:
        """``step 16,190 (epoch 256)``, where the log tells the epoch of a step."""
        if self.by_steps:
            for one in self.measures("epoch").values():
                epoch = one.at(step)
                if epoch is not None and epoch == math.floor(epoch):
                    return f"{self.at(step)} (epoch {epoch:,.0f})"
        return self.at(step)

    def at(self, step: int) -> str:
        """``step 1,200``, or the epoch, or the row (from 1) where nothing else was told."""
        return f"{self.unit} {step + (self.unit == 'row'):,}"


def view(story: Story) -> View | None:
    """The view of a run that a log tells of; None of any other."""
    logs = story.events("log", -1)
    if not logs:
        return None
    size = sum(len(story.events(kind, rank)) for kind in _READ for rank in (-1, *story.ranks))
    kept = _KEPT.get(story)
    if kept is None or kept[0] != size:
        kept = _KEPT[story] = size, _made(story, logs)
    return kept[1]


def _made(story: Story, logs: list[Event]) -> View:
    fields = dict(logs[0].fields)
    fields["last"] = max(int(event.fields.get("last") or 0) for event in logs)
    fields["first"] = min(int(event.fields.get("first") or 0) for event in logs)
    fields["loss"] = next((name for event in logs if (name := event.fields.get("loss"))), "")
    totals = [event.fields.get("total") for event in logs if event.fields.get("total")]
    fields["total"] = totals[0] if totals else None
    found = View(story, fields)
    for event in story.events("metric", found.rank):
        name, role = str(event.fields.get("name", "")), str(event.fields.get("role", "other"))
        found._metrics.setdefault(name, (role, []))[1].append(event)
    return found


def _without(name: Any) -> tuple[str, ...]:
    return tuple(word for word in names.words(str(name)) if word not in _VARIANTS)


def _true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in _TRUE) or value == 1


def _unscaled(scales: Track) -> bool:
    return bool(len(scales)) and bool(np.all(scales.values == 1.0))


def _scaled(scales: Track) -> bool:
    return bool(len(scales)) and bool(np.any(scales.values[np.isfinite(scales.values)] > 1.0))


# -- numbers that several rules ask for


def spread(values: Floats) -> float:
    return float(SIGMA * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def digits(values: Floats) -> float:
    """The smallest difference that the printed digits can show."""
    known = np.unique(values[np.isfinite(values)])
    apart = np.diff(known)
    return float(apart[apart > 0].min()) if len(apart) and bool((apart > 0).any()) else 0.0


def show(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def bad(found: Track) -> Any:
    return ~np.isfinite(found.values)


def kind_of(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
