"""The arithmetic of a training plan: what a configuration promises, worked out before a step is run.

Enters: declared settings (see ``spellings``). Leaves: a ``Plan``: steps in an epoch, steps that can be reached, the
highest learning rate that will be seen, tokens; None where the settings do not say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from brickprof.contracts.spellings import Setting, number


@dataclass(frozen=True, slots=True)
class Plan:
    samples: float | None = None
    batch: float | None = None
    accumulation: float = 1.0
    world: float = 1.0
    epochs: float | None = None
    max_steps: float | None = None
    warmup: float | None = None
    lr: float | None = None
    length: float | None = None
    parameters: float | None = None
    horizon: float | None = None
    min_lr: float = 0.0
    schedule: str = ""

    @property
    def steps_per_epoch(self) -> int | None:
        if self.samples is None or self.batch is None:
            return None
        return math.floor(self.samples / max(self.batch * self.accumulation * self.world, 1))

    @property
    def achievable(self) -> int | None:
        """Steps that the epochs hold."""
        if self.steps_per_epoch is None or self.epochs is None:
            return None
        return math.floor(self.epochs * self.steps_per_epoch)

    @property
    def planned(self) -> int | None:
        """Steps that will be made: as many as asked for, or as the data holds."""
        known = [steps for steps in (self.max_steps, self.achievable) if steps is not None]
        return int(min(known)) if known else None

    @property
    def epochs_needed(self) -> int | None:
        if self.max_steps is None or not self.steps_per_epoch:
            return None
        return math.ceil(self.max_steps / self.steps_per_epoch)

    @property
    def peak(self) -> float | None:
        """The highest learning rate that will be seen: a warm-up that does not end stays below its target."""
        if self.lr is None or self.warmup is None or self.planned is None:
            return None
        return self.lr * min(1.0, self.planned / self.warmup) if self.warmup > 0 else self.lr

    @property
    def tokens_per_step(self) -> float | None:
        if self.batch is None or self.length is None:
            return None
        return self.batch * self.accumulation * self.world * self.length

    @property
    def tokens(self) -> float | None:
        return None if self.tokens_per_step is None or self.planned is None else self.tokens_per_step * self.planned


def plan(settings: Mapping[str, list[Setting]]) -> Plan:
    """The plan behind declared settings; of a setting that stands twice, the first."""

    def value(name: str) -> float | None:
        return next((found for each in settings.get(name, []) if (found := number(each.value)) is not None), None)

    def text(name: str) -> str:
        return next((str(each.value).lower() for each in settings.get(name, []) if isinstance(each.value, str)), "")

    max_steps = value("max_steps")
    epochs = value("epochs")
    if max_steps is not None and max_steps <= 0:
        max_steps = None  # -1 is how several frameworks say "as many as the epochs hold"
    batch, accumulation, world = value("batch_size"), value("accumulation") or 1.0, value("world_size") or 1.0
    if batch is None and (whole := value("global_batch_size")) is not None:
        batch, accumulation, world = whole, 1.0, 1.0
    made = Plan(
        samples=value("samples"), batch=batch, accumulation=accumulation, world=world, epochs=epochs,
        max_steps=max_steps, lr=value("lr"), length=value("seq_len"), parameters=value("parameters"),
        horizon=value("decay_steps"), min_lr=value("min_lr") or 0.0, schedule=text("scheduler"),
    )  # fmt: skip
    return _with_warmup(made, value("warmup_steps"), value("warmup_ratio"), value("warmup_epochs"))


def _with_warmup(made: Plan, steps: float | None, ratio: float | None, epochs: float | None) -> Plan:
    from dataclasses import replace

    if steps:
        return replace(made, warmup=steps)
    if ratio and made.planned is not None:
        return replace(made, warmup=ratio * made.planned)
    if epochs and made.steps_per_epoch is not None:
        return replace(made, warmup=epochs * made.steps_per_epoch)
    return replace(made, warmup=steps if steps is not None else ratio)
