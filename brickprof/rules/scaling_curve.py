"""A loss against the logarithm of what was trained on: L = a - b ln D, with its uncertainty.

Enters: losses over steps (or tokens). Leaves: the fit over the part of the run in which it holds, how sure it is, and
what it forecasts. Points are averaged in equal parts of ln D first, so that ten thousand late points do not outvote the
hundred early ones, and so that noise which lasts over several points does not make the fit look surer than it is.

A logarithm falls below any bound, and a loss that was never negative does not: up to where the line meets zero the fit
is usable, and behind it nothing is forecast but zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from brickprof.rules.story.tracks import Floats

_BINS = 24
_FEWEST = 6
_SETTLED = 0.1
"""The first part of a run, up to here, follows another law: the rate warms up, the easy part is learnt."""
_SURE = 1.96
_LARGEST = 700.0
"""What a float can be raised to."""


@dataclass(frozen=True, slots=True)
class ScalingFit:
    a: float
    b: float
    a_error: float
    b_error: float
    """Standard errors."""
    residual: float
    """The standard deviation of the averaged points around the line."""
    points: int
    first: float
    last: float
    """Of D, in the unit it was given in."""
    _covariance: float = 0.0
    _noise: float = 0.0
    floor: float = -math.inf
    """What the loss cannot fall below: 0 where it never did."""

    def loss_at(self, amount: float) -> float:
        return self.a - self.b * math.log(amount)

    def forecast(self, amount: float) -> tuple[float, float, float]:
        """The loss at ``amount``, and the bounds in which it lies with 95 % if the law goes on to hold. Nothing is
        below the floor; behind ``usable_until`` the law does not hold, whatever comes out."""
        x = math.log(amount)
        variance = self.a_error**2 + (x * self.b_error) ** 2 - 2 * x * self._covariance + self.residual**2
        width = _SURE * math.sqrt(max(variance, 0.0))
        middle = self.loss_at(amount)
        return max(middle, self.floor), max(middle - width, self.floor), max(middle + width, self.floor)

    @property
    def usable_until(self) -> float:
        """The amount at which the line meets the floor; infinite where it never does."""
        if self.b <= 0 or math.isinf(self.floor):
            return math.inf
        power = (self.a - self.floor) / self.b
        return math.exp(power) if power < _LARGEST else math.inf

    @property
    def falls(self) -> bool:
        """Whether it falls by more than its uncertainty."""
        return self.b > _SURE * self.b_error

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a, "b": self.b, "a_error": self.a_error, "b_error": self.b_error, "residual": self.residual,
            "points": self.points, "first": self.first, "last": self.last,
            "usable_until": self.usable_until if math.isfinite(self.usable_until) else None,
        }  # fmt: skip


def scaling_fit(amounts: Any, losses: Any, *, settled: float = _SETTLED) -> ScalingFit | None:
    """The fit over the settled part of the run; None where there are too few points to say anything."""
    amounts, losses = np.asarray(amounts, float), np.asarray(losses, float)
    usable = np.isfinite(losses) & np.isfinite(amounts) & (amounts > 0)
    amounts, losses = amounts[usable], losses[usable]
    if len(losses) < _FEWEST:
        return None
    late = amounts >= settled * float(amounts.max())
    if late.sum() >= _FEWEST:
        amounts, losses = amounts[late], losses[late]
    x, y = _averaged(np.log(amounts), losses)
    if len(x) < _FEWEST - 1 or float(np.ptp(x)) < 1e-6:
        return None
    centre = float(x.mean())
    around = x - centre
    spread = float(around @ around)
    tilt = float(around @ y) / spread
    rest = y - y.mean() - tilt * around
    residual = math.sqrt(float(rest @ rest) / max(1, len(x) - 2))
    b_error = residual / math.sqrt(spread)
    level_error = residual / math.sqrt(len(x))
    a = float(y.mean()) - tilt * centre
    a_error = math.sqrt(level_error**2 + (centre * b_error) ** 2)
    # cov(a, b) of L = a - b x with b = -tilt: both move together around the centre.
    return ScalingFit(a, -tilt, a_error, b_error, residual, len(x), float(amounts.min()), float(amounts.max()),
                      centre * b_error**2, residual, 0.0 if float(losses.min()) >= 0 else -math.inf)  # fmt: skip


def _averaged(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Means over equal parts of ``x``; the median of the losses in each, which one spike does not move."""
    if len(x) <= _BINS:
        return x, y
    edges = np.linspace(float(x.min()), float(x.max()), _BINS + 1)
    inside = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, _BINS - 1)
    kept = [place for place in range(_BINS) if bool((inside == place).any())]
    means = np.array([float(x[inside == place].mean()) for place in kept])
    middles = np.array([float(np.median(y[inside == place])) for place in kept])
    return means, middles
