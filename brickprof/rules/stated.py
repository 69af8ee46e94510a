"""What the script itself says it wants: less than a declaration, since a default may lie there unused.

Enters: a story. Leaves: the stated values, and violations where one of them has no effect and the run shows what that
led to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from brickprof.contracts.spellings import Setting
from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.rules.handling import Declared, is_bound, plain_number
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CLIP, CONFIG = "C-CLIP-001", "C-CONFIG-001"
_EXPLODED, _LOST = 100.0, 10.0
_UNTOUCHED = 0.99
_WORDS = re.compile(r"[^a-z0-9.]+")
_ACCUMULATION = re.compile(
    r"(^|[._])(n_|num_)?((grads?|gradients?)_?acc|(grads?_?|gradients?_?)?accum(ulat(e|ed|ion|ing))?)"
    r"(_?(grads?|gradients?))?(_?(steps?|iters?|iterations|batches|microbatches|micro_batches|every|factor|freq|count))?$"
)
_MOST_BACKWARDS = 4096
_DROPOUT = re.compile(r"(^|[._])(dropout|dropout_(rate|prob|p)|drop_(rate|prob)|p_drop(out)?)$", re.IGNORECASE)


def values(story: Story, rank: int) -> dict[str, tuple[Any, str]]:
    """By key: the value and the record that says so."""
    found: dict[str, tuple[Any, str]] = {}
    for event in story.events("stated", rank):
        listed = event.fields.get("values")
        for key, value in listed.items() if isinstance(listed, dict) else ():
            found[str(key)] = (value, event.id)
    return found


def bound(story: Story, rank: int) -> Declared | None:
    """A bound on the gradient norm that the script states, where there is one and not several that differ."""
    named = {key: (value, at) for key, (value, at) in values(story, rank).items() if is_bound(key)}
    known = [Declared(key, size, at, False) for key, (value, at) in named.items()
             if (size := plain_number(value)) is not None and 0 < size < 1e4]  # fmt: skip
    return known[0] if known and len({each.value for each in known}) == 1 else None


def never_clipped(story: Story, rank: int) -> Violation | None:
    """A bound is stated, nothing ever clipped, gradients left it far behind, and the loss was lost over it."""
    stated, norms, losses = bound(story, rank), story.norms(rank).finite(), story.losses(rank)
    if stated is None or story.events("clip", rank) or not len(norms) or len(losses) < 3:
        return None
    kept = [number(event.fields.get("coefficient")) for event in story.events("applied", rank)]
    if any(share is not None and share < _UNTOUCHED for share in kept):
        return None  # somebody makes gradients smaller, in code of his own
    peak, finite = int(np.argmax(norms.values)), losses.finite()
    lost = len(finite) < len(losses) or float(finite.values.max()) >= _LOST * float(finite.values[0]) > 0
    if float(norms.values[peak]) < _EXPLODED * stated.value or not lost:
        return None
    size, step = float(norms.values[peak]), int(norms.steps[peak])
    over = int(np.argmax(norms.values >= _EXPLODED * stated.value))
    symptom = (
        f"gradients of {size:.3g} in step {step:,} were not clipped; the script has {stated.key} = {stated.value:g}"
    )
    evidence = (stated.evidence, norms.evidence(over), norms.evidence(peak))
    return Violation(
        CLIP, "not-clipped", Severity.ERROR, symptom, int(norms.steps[over]), int(norms.steps[over]), "", "optimizer",
        rank, evidence,
        {"question": "Are gradients kept inside their bound?", "asked": "Why were they not clipped?"},
        cause="grad-clip-not-applied", certainty=0.85, static=True,
        explains=frozenset({"nonfinite", "exploding", "diverged", "spike", "dead-units", "saturated-units", "plateau"}),
        whys=(Because("Why was nothing clipped?", f"{stated.key} is {stated.value:g} in the script's settings, and "
                      "nothing called clip_grad_norm_ in this run: what should do it is not reached.", "", evidence),),
        action="Call clip_grad_norm_ between backward and the update, and see that it runs.",
    )  # fmt: skip


def accumulation(story: Story, rank: int) -> Setting | None:
    """How many backwards the script says make an update, where it says so, and always the same."""
    named = {key: (value, at) for key, (value, at) in values(story, rank).items()
             if _ACCUMULATION.search(_WORDS.sub("_", key.lower()))}  # fmt: skip
    known = [Setting("accumulation", value, key, source=at) for key, (value, at) in named.items()
             if type(value) is int and 1 < value <= _MOST_BACKWARDS]  # fmt: skip
    return known[0] if len(known) == len(named) and len({each.value for each in known}) == 1 else None


def no_dropout(story: Story, rank: int) -> Iterator[Violation]:
    """A rate of dropout is stated or declared, and every dropout of the trained model is off."""
    asked = [(key, size, at) for key, (value, at) in {**values(story, rank), **story.declared}.items()
             if _DROPOUT.search(key) and (size := number(value)) is not None and 0 < size < 1]  # fmt: skip
    events = story.events("dropout", rank)
    if len({size for _, size, _ in asked}) != 1 or len(events) != 1 or events[0].fields.get("rates") != [0.0]:
        return
    key, size, at = asked[0]
    count, evidence = whole(events[0].fields.get("modules")), (at, events[0].id)
    yield Violation(
        CONFIG, "config", Severity.WARNING, f"{key} is {size:g}, and all {count:,} dropout modules of the model have 0",
        0, 0, "", "block", rank, evidence,
        {"question": "Is what was set in force?", "asked": "Is the model regularised as it was meant to be?"},
        cause="config-unused", certainty=0.85, static=True, explains=frozenset({"overfitting"}),
        whys=(Because("Why is it off?", f"The model was built without {key} and took its default.", "", evidence),),
        action=f"Hand {key} to the model.",
    )  # fmt: skip
