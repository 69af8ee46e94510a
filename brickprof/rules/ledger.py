"""What became of the steps of a rank: losses, gradients, updates, as far as they were written.

Enters: per-step events, one at a time. Leaves: for each recent step whether its gradients were applied,
skipped or repaired, and counts over all steps. Old steps are forgotten unless somebody keeps them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import gt

from brickprof.records import Event
from brickprof.rules.names import Key, number
from brickprof.rules.sightings import USED

_RECENT_STEPS = 256
_ONLY_IN_TOLD_STEPS = frozenset({"batch", "zero_grad", "schedule"})


@dataclass(slots=True)
class Step:
    """What happened to the gradients and losses of one step."""

    told: bool = False
    """Whether the facts of this step were written at all: cadence leaves some steps out."""
    applied: bool = False
    skipped: bool = False
    used_finite: bool | None = None
    last_loss_finite: bool | None = None


@dataclass(slots=True)
class Ledger:
    steps: OrderedDict[int, Step] = field(default_factory=OrderedDict)
    optimizers: bool = False
    finite_losses: int = 0
    broken_losses: int = 0
    last_finite_loss: int = -1
    finite_weights: dict[Key, int] = field(default_factory=dict)
    last_finite_grad: int = -1
    skipped_in_a_row: int = 0
    last_skipped: int = -1
    last_loss: int = -1
    skipped: int = 0
    first_step: int | None = None

    def at(self, step: int) -> Step:
        known = self.steps.get(step)
        if known is None:
            known = self.steps[step] = Step()
            if len(self.steps) > _RECENT_STEPS:
                self.steps.popitem(last=False)
        return known


def enter(ledger: Ledger, event: Event) -> None:
    """Takes in one event of the ledger's rank."""
    handle = _HANDLERS.get(event.kind)
    if handle is not None:
        handle(ledger, ledger.at(event.step), event)
    else:
        ledger.at(event.step).told = True


def skimmed(ledger: Ledger, events: Sequence[Event]) -> Sequence[Event]:
    """Of finite losses and updates that were made, those that are still to be entered: up to the last of a step that is
    known, and of the last steps.

    The others are of steps that would be forgotten before the last of them is entered: they are counted here.
    """
    steps = [event.step for event in events]
    if any(map(gt, steps, steps[1:])):
        return events
    new = next((place for place in range(len(steps), 0, -1) if steps[place - 1] in ledger.steps), 0)
    kept = sorted(set(steps[new:]))[-_RECENT_STEPS:]
    if len(kept) < _RECENT_STEPS:
        return events
    cut = bisect_left(steps, kept[0])
    losses = [event.step for event in events[new:cut] if event.kind == "loss"]
    if losses:
        ledger.finite_losses += len(losses)
        ledger.last_loss = max(ledger.last_loss, losses[-1])
        ledger.last_finite_loss = max(ledger.last_finite_loss, losses[-1])
    if len(losses) < cut - new:
        ledger.optimizers, ledger.skipped_in_a_row = True, 0
    return [*events[:new], *events[cut:]]


def _on_loss(ledger: Ledger, step: Step, event: Event) -> None:
    value = number(event.fields.get("value"))
    if value is None:
        return
    step.last_loss_finite = math.isfinite(value)
    ledger.last_loss = max(ledger.last_loss, event.step)
    if step.last_loss_finite:
        step.told = True
        ledger.finite_losses += 1
        ledger.last_finite_loss = max(ledger.last_finite_loss, event.step)
    else:
        ledger.broken_losses += 1


def _on_grad(ledger: Ledger, step: Step, event: Event) -> None:
    broken = bool(event.fields.get("nonfinite"))
    if not broken:
        ledger.last_finite_grad = max(ledger.last_finite_grad, event.step)
    if event.fields.get("point") == USED:
        step.used_finite = not broken and step.used_finite is not False


def _on_optimizer(ledger: Ledger, step: Step, event: Event) -> None:
    ledger.optimizers = step.told = True
    if event.fields.get("skipped"):
        _skip(ledger, step, event.step)
    else:
        step.applied = True
        if not step.skipped:
            ledger.skipped_in_a_row = 0


def _on_scaler(ledger: Ledger, step: Step, event: Event) -> None:
    found = number(event.fields.get("found_inf"))
    if event.fields.get("skipped") or (found is not None and found > 0):
        _skip(ledger, step, event.step)


def _skip(ledger: Ledger, step: Step, number_of: int) -> None:
    if not step.skipped:
        step.skipped = True
        ledger.skipped += 1
        # Every skipped step is written, but not every other one: a gap ends the row.
        ledger.skipped_in_a_row = ledger.skipped_in_a_row + 1 if number_of == ledger.last_skipped + 1 else 1
        ledger.last_skipped = number_of


_HANDLERS: dict[str, Callable[[Ledger, Step, Event], None]] = {
    "loss": _on_loss,
    "grad": _on_grad,
    "optimizer": _on_optimizer,
    "scaler": _on_scaler,
}
KINDS = _ONLY_IN_TOLD_STEPS | set(_HANDLERS)
"""The kinds of events to enter."""
