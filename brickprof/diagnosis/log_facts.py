"""What a log holds, in a few facts for the ``run`` part of diagnosis.json.

Enters: the story of a run that a log tells of. Leaves: ``log`` (format, lines, series, gaps, attempts, what could not
be read), ``steps``, and ``scaling`` (the fit L = a - b ln D, up to where it is usable, and what it forecasts for ten
times as many steps, or for as many as that); nothing for other runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.rules import scaling_curve
from brickprof.rules.log_norms import capped, stated_bound
from brickprof.rules.log_view import View, view
from brickprof.rules.story import Story

_NAMED = 4
_STATES = ("complete", "under-way", "pending")
_FURTHER = 10
"""Times as far as the log goes; less where the fitted line meets zero before."""
_SHOWN = ("format", "path", "steps_by", "rows", "unread", "examples", "repeated", "damage", "first", "last", "total",
          "attempts", "cadence", "loss", "several", "series")  # fmt: skip


def log_facts(story: Story) -> dict[str, Any]:
    seen = view(story)
    if seen is None:
        return {}
    files = [{name: event.fields.get(name) for name in _SHOWN} for event in story.events("log", -1)]
    facts: dict[str, Any] = {"log": files[0] if len(files) == 1 else files, "steps": _steps(story)}
    resumed = [event.fields for event in story.events("resumed", -1)]
    if resumed:
        facts["resumes"] = [
            {name: one.get(name) for name in ("stopped_at", "goes_on_at", "before", "after")} for one in resumed
        ]
    if untold := _untold(story, seen):
        facts["untold"] = untold
    if (best := _best(seen)) is not None:
        facts["best"] = best
    if (scaling := _scaling(seen)) is not None:
        facts["scaling"] = scaling
    if (clip := _clip(seen)) is not None:
        facts["clipping"] = clip
    return facts


def speaks_of_training(story: Story) -> bool:
    """Whether a log without a loss still tells of a training: evaluations, measures of quality."""
    seen = view(story)
    return seen is not None and bool(seen.evaluations or seen.measures("quality"))


def _untold(story: Story, seen: View) -> str:
    """Why numbers without a loss decide nothing; empty where there is a loss, or no number at all."""
    held = [one for event in story.events("log", -1) for one in event.fields.get("series") or ()]
    names = list(dict.fromkeys(str(one.get("name")) for one in held if one.get("role") not in ("epoch", "loss")))
    if story.trained:
        return ""
    if not names:
        return _collectives(seen)
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"the log has no loss, and what it has ({shown}) decides nothing; --pattern names a loss that was not found"


def _collectives(seen: View) -> str:
    """What dumps of a flight recorder say where nobody hangs."""
    told = [event.fields for event in seen.said("collective") if event.fields.get("what") in _STATES]
    if not told or len(told) != len(seen.said("collective")):
        return ""
    ranks = {fields.get("by") for fields in told}
    whose = f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"
    open_ones = [str(fields.get("text")) for fields in told if fields.get("what") != "complete"]
    if not open_ones:
        return f"every collective that {whose} recorded is complete: nothing hangs"
    if any(fields.get("what") == "pending" for fields in told):
        return next(str(fields.get("text")) for fields in told if fields.get("what") == "pending")
    return f"collectives of {whose} are under way, and their time was not up: nothing hangs ({open_ones[0]})"


def _steps(story: Story) -> int:
    """How many steps were taken: the last one that was told; one more where the log counts from 0 and tells each."""
    taken = [0]
    for event in story.events("log", -1):
        series = [one for one in event.fields.get("series") or () if one.get("last") is not None]
        first, last = (int(event.fields.get(name) or 0) for name in ("first", "last"))
        each = any(one["first"] == 0 and last + 1 <= int(one.get("count") or 0) for one in series)
        taken.append(last + (first == 0 and each) if series else 0)
    return max(taken)


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
    told: dict[str, Any] = {"unit": unit, **fit.to_dict(), "forecast": None}
    at = min(_FURTHER * fit.last, fit.usable_until)
    if at > fit.last:
        middle, low, high = fit.forecast(at)
        told["forecast"] = {"at": at, "loss": middle, "low": low, "high": high}
    return told


def _clip(seen: View) -> dict[str, Any] | None:
    """What clipping shows of itself."""
    norms, bound = seen.norms.finite(), stated_bound(seen)
    cap = capped(norms) if len(norms) else None
    if cap is None and bound is None:
        return None
    return {"capped_at": cap, "stated": bound[0] if bound is not None else None}
