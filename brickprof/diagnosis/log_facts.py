"""What a log holds, in a few facts for the ``run`` part of diagnosis.json.

Enters: the story of a run that a log tells of. Leaves: ``log`` (format, lines, series, gaps, attempts, what could not
be read) and ``scaling`` (the fit L = a - b ln D, and what it forecasts for ten times as many steps); nothing for other
runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.rules import scaling_curve
from brickprof.rules.log_norms import capped, stated_bound
from brickprof.rules.log_view import View, view
from brickprof.rules.story import Story

_SHOWN = ("format", "path", "steps_by", "rows", "unread", "examples", "repeated", "damage", "first", "last", "total",
          "attempts", "cadence", "loss", "several", "series")  # fmt: skip


def log_facts(story: Story) -> dict[str, Any]:
    seen = view(story)
    if seen is None:
        return {}
    files = [{name: event.fields.get(name) for name in _SHOWN} for event in story.events("log", -1)]
    facts: dict[str, Any] = {"log": files[0] if len(files) == 1 else files}
    resumed = [event.fields for event in story.events("resumed", -1)]
    if resumed:
        facts["resumes"] = [
            {name: one.get(name) for name in ("stopped_at", "goes_on_at", "before", "after")} for one in resumed
        ]
    if (best := _best(seen)) is not None:
        facts["best"] = best
    if (scaling := _scaling(seen)) is not None:
        facts["scaling"] = scaling
    if (clip := _clip(seen)) is not None:
        facts["clipping"] = clip
    return facts


def _best(seen: View) -> dict[str, Any] | None:
    """The lowest loss, of evaluations where there are any."""
    held = {name: one.finite() for name, one in seen.evaluations.items() if len(one.finite())}
    tracks = held or ({str(seen.log.get("loss")): seen.finite} if len(seen.finite) else {})
    if not tracks:
        return None
    name, one = next(iter(tracks.items()))
    place = int(np.argmin(one.values))
    return {"name": name, "value": float(one.values[place]), "step": int(one.steps[place])}


def _scaling(seen: View) -> dict[str, Any] | None:
    if seen.level_says_nothing or not seen.by_steps:
        return None
    amounts, unit = seen.finite.steps.astype(float), "steps"
    for one in seen.measures("tokens").values():
        if len(one) == len(seen.finite) and bool(np.all(np.diff(one.values) > 0)):
            amounts, unit = one.values, "tokens"
    fit = scaling_curve.scaling_fit(amounts, seen.finite.values)
    if fit is None or not fit.falls:
        return None
    middle, low, high = fit.forecast(10 * fit.last)
    return {"unit": unit, **fit.to_dict(), "forecast": {"at": 10 * fit.last, "loss": middle, "low": low, "high": high}}


def _clip(seen: View) -> dict[str, Any] | None:
    """What clipping shows of itself."""
    norms, bound = seen.norms.finite(), stated_bound(seen)
    cap = capped(norms) if len(norms) else None
    if cap is None and bound is None:
        return None
    return {"capped_at": cap, "stated": bound[0] if bound is not None else None}
