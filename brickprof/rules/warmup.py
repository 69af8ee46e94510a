"""Whether a warm-up that is declared takes place.

Enters: the rates of one optimizer. Leaves: a violation where the first updates are made with the full rate although a
warm-up is declared.
"""

from __future__ import annotations

import math

from brickprof.contracts.spellings import Setting, number
from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.rules import declared
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-COSINE-001"
_FOLLOW = frozenset({
    "spike", "diverged", "exploding", "nonfinite", "plateau", "not-learning", "slow-learning", "high-rate",
})  # fmt: skip
_FEWEST = 4


def missing(story: Story, rank: int, at: int) -> Violation | None:
    setting = _asked(story)
    if setting is None:
        return None
    events = [event for event in story.events("optimizer", rank) if whole(event.fields.get("optimizer")) == at]
    found = story.rates(rank, at).finite()
    if not len(found) or whole(events[0].fields.get("count")) != 1:
        return None
    first, peak = float(found.values[0]), float(found.values.max())
    asked = declared.only(declared.settings(story), "lr")
    told = asked is not None and first >= 0.9 * (number(asked.value) or math.inf)
    needed = 1 if told else _FEWEST  # where the full rate is declared too, the first update says it all
    if len(found) < needed:
        return None
    constant = peak <= float(found.values.min()) * (1 + 1e-6)
    if first < 0.9 * peak or peak <= 0 or (constant and "scheduler" in declared.settings(story)):
        return None
    if declared.resumed_at(story, rank):
        return None
    evidence = tuple(each for each in (setting.source, found.evidence(0), found.evidence(len(found) - 1)) if each)
    symptom = f"the configuration says {setting.key}: {setting.value}, and the first update is made with {first:.3g}"
    return Violation(
        CONTRACT, "schedule", Severity.ERROR, f"{symptom}, the highest rate of the run", 0,
        int(found.steps[needed - 1]), "", "optimizer", rank, evidence,
        {"question": "Does the warm-up take place?", "asked": "How large was the rate in the first updates?"},
        "warmup-missing", 0.92, _FOLLOW,
        (Because("Why is the first rate the full one?", "Nothing lowered the rate before the first update: no warm-up "
                 "was built, or it is not in force.", "", evidence),),
        action=f"Raise the rate from near zero to its peak over the first {setting.value} updates.", static=True,
    )  # fmt: skip


def _asked(story: Story) -> Setting | None:
    settings = declared.settings(story)
    for name, least in (("warmup_steps", 2.0), ("warmup_ratio", 1e-9), ("warmup_epochs", 1e-9)):
        setting = declared.only(settings, name)
        if setting is not None and (number(setting.value) or 0.0) >= least:
            return setting
    return None
