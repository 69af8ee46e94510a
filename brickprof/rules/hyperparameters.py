"""C-HYPERPARAMS-001: what was declared for the optimizers is what is in force.

Enters: a story. Leaves: one violation that names every declared value which an optimizer does not run with. A value of
any group counts: biases without decay and slower backbones are ordinary. A rate that a schedule moves is judged by its
peak, and one that never gets there is the schedule's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from brickprof.contracts import spellings
from brickprof.contracts.schema import Contract
from brickprof.contracts.spellings import Setting
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes, ownership, positions
from brickprof.rules.declared import Optimizer
from brickprof.rules.names import number
from brickprof.rules.story import Story

CONTRACT = "C-HYPERPARAMS-001"
_WORDS = {
    "lr": "learning rate", "beta1": "beta1", "beta2": "beta2", "eps": "eps", "weight_decay": "weight decay",
    "momentum": "momentum", "optimizer": "optimizer",
}  # fmt: skip
_DEFAULTS = {
    "lr": (1e-3, 1e-2), "beta1": (0.9,), "beta2": (0.999,), "eps": (1e-8,), "weight_decay": (0.01, 0.0),
    "momentum": (0.0,),
}  # fmt: skip
_AS_BUILT: dict[str, dict[str, Any]] = {
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
}
"""What torch's constructors give where they are told nothing."""
_PLAUSIBLE = {"beta1": (0.0, 1.0), "beta2": (0.5, 1.0), "eps": (0.0, 1e-3), "momentum": (0.0, 1.0)}
"""Outside these a key of that name is about something else: a noise schedule's beta, a policy's epsilon."""
_KINDS = ("sgd", "adamw", "adam", "rmsprop", "adagrad", "adadelta", "nadam", "radam", "adafactor", "lbfgs", "lion")


@dataclass(frozen=True, slots=True)
class Mismatch:
    name: str
    asked: str
    live: float | str
    setting: Setting
    optimizer: Optimizer
    evidence: tuple[str, ...]

    @property
    def default(self) -> bool:
        """Whether the live value is the one that torch takes when nothing is said."""
        return any(_close(self.live, value) for value in _DEFAULTS.get(self.name, ()) if isinstance(self.live, float))

    def __str__(self) -> str:
        live = self.live if isinstance(self.live, str) else f"{self.live:g}"
        return f"{_WORDS[self.name]} {live} ({self.setting.key} says {self.asked})"


class Hyperparameters:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        live = declared.optimizers(story, rank)
        asked = {name: listed for name, listed in declared.settings(story).items() if name in _WORDS}
        tolerance = contract.threshold("tolerance")
        if not live:
            return outcomes.unjudged(contract, "no optimizer of torch was seen")
        if (found := [each for one in live if (each := positions.misplaced(one)) is not None]) != []:
            return outcomes.broken(contract, found, "each value in its place")
        if not asked:
            lasting = declared.lasting(story, rank)
            found = list(_unlike([one for one in live if one.number in lasting], story))
            if found:
                return outcomes.broken(contract, found, "equal or declared")
            return outcomes.unjudged(contract, "no configuration declares hyperparameters (give --config)")
        mismatches = [miss for one in live for miss in _mismatches(story, one, live, asked, tolerance)]
        if not mismatches:
            names = ", ".join(_WORDS[name] for name in asked)
            return outcomes.held(contract, f"in force as declared: {names}", "declared = live")
        return outcomes.broken(contract, [_violation(mismatches, len(live))], "declared = live")


def _mismatches(
    story: Story, one: Optimizer, live: list[Optimizer], asked: dict[str, list[Setting]], tolerance: float
) -> Iterator[Mismatch]:
    for name, listed in asked.items():
        if name == "optimizer":
            yield from _other_class(one, live, listed)
            continue
        wanted = [each for each in listed if _plausible(name, spellings.number(each.value))]
        if not wanted:
            continue
        allowed = declared.any_value(story, name)
        found = _rate(story, one, allowed, tolerance) if name == "lr" else _value(one, live, name, allowed, tolerance)
        if found is not None:
            value, evidence = found
            texts = " or ".join(dict.fromkeys(f"{spellings.number(each.value):g}" for each in wanted))
            yield Mismatch(name, texts, value, wanted[0], one, (*evidence, wanted[0].source))


def _plausible(name: str, value: float | None) -> bool:
    low, high = _PLAUSIBLE.get(name, (0.0, math.inf))
    return value is not None and low <= value <= high


def _value(
    one: Optimizer, live: list[Optimizer], name: str, allowed: set[float], tolerance: float
) -> tuple[float, tuple[str, ...]] | None:
    """The live value of ``one`` that nobody declared, or None."""
    values = _live(one, name)
    if not values or any(_close(value, want, tolerance) for value in values for want in allowed):
        return None
    elsewhere = any(_close(v, w, tolerance) for other in live for v in _live(other, name) for w in allowed)
    if elsewhere and name == "weight_decay" and not any(values):
        return None  # decay is switched off for some parameters on purpose
    return max(values), tuple(one.evidence[-1:])


def _live(one: Optimizer, name: str) -> list[float]:
    if name in ("beta1", "beta2"):
        return [pair[name == "beta2"] for pair in one.pairs()]
    return one.values(name)


def _rate(story: Story, one: Optimizer, allowed: set[float], tolerance: float) -> tuple[float, tuple[str, ...]] | None:
    """The learning rate of ``one`` where it is none of the declared ones and no schedule is on its way there."""
    events = [each for each in story.events("optimizer", one.rank) if each.fields.get("optimizer", 0) == one.number]
    rates = [rate for event in events for rate in _rates(event)]
    bases = [base for base in _bases(story, one) if base > 0]
    if not rates or _meets([*rates, *bases], allowed, story, tolerance):
        return None
    peak, low = max(rates), min(rates)
    if (low < peak * (1 - 1e-4) or bases) and peak < max(allowed, default=math.inf):
        return None
    return peak, (events[int(np.argmax([max(_rates(event), default=0.0) for event in events]))].id,)


def _meets(values: list[float], allowed: set[float], story: Story, tolerance: float) -> bool:
    """A rate may be scaled by the number of ranks."""
    seen, world = np.unique(values), len(story.ranks)
    wanted = {want * scale for want in allowed for scale in {1, world, math.sqrt(world)}}
    return any(bool(np.any(np.abs(seen - want) <= tolerance * max(want, 1e-30))) for want in wanted)


def _rates(event: Event) -> list[float]:
    listed = event.fields.get("lr")
    return [rate for each in listed if (rate := number(each)) is not None] if isinstance(listed, list) else []


def _bases(story: Story, one: Optimizer) -> Iterator[float]:
    """The rates that schedules of ``one`` start from."""
    for event in story.events("schedule", one.rank):
        settings = event.fields.get("settings")
        if event.fields.get("optimizer") == one.number and isinstance(settings, dict):
            for each in settings.get("base_lrs") or ():
                if (base := number(each)) is not None:
                    yield base
    yield from one.values("max_lr")


def _other_class(one: Optimizer, live: list[Optimizer], listed: list[Setting]) -> Iterator[Mismatch]:
    asked = [setting for setting in listed if _kind(setting.value) is not None]
    wanted = {_kind(setting.value) for setting in asked}
    if not asked or _kind(one.cls) is None or wanted & {_kind(other.cls) for other in live}:
        return
    names = " or ".join(str(setting.value) for setting in asked)
    yield Mismatch("optimizer", names, one.cls, asked[0], one, (*one.evidence[:1], asked[0].source))


def _kind(name: object) -> str | None:
    words = str(name).lower().replace("-", "_").rpartition(".")[2]
    return next((kind for kind in _KINDS if words.startswith(kind) or words.endswith(kind)), None)


def _close(value: float | str, want: float, tolerance: float = 1e-3) -> bool:
    return isinstance(value, float) and math.isclose(value, want, rel_tol=tolerance, abs_tol=1e-30)


def _violation(found: list[Mismatch], optimizers: int) -> Violation:
    one = found[0].optimizer
    which = f"{one.cls or 'the optimizer'}{f' {one.number + 1} of {optimizers}' if optimizers > 1 else ''}"
    listed = "; ".join(dict.fromkeys(str(miss) for miss in found))
    evidence = tuple(dict.fromkeys(identifier for miss in found for identifier in miss.evidence if identifier))
    defaults = [miss for miss in found if miss.default]
    why = (
        f"{_listed(defaults)} {'is' if len(defaults) == 1 else 'are'} what torch takes when nothing is said: the "
        "optimizer was made without the declared values"
        if defaults
        else "The values the optimizer was built with come from elsewhere than the configuration"
    )
    return Violation(
        CONTRACT, "hyperparameters", Severity.ERROR, f"{which} runs with {listed}", 0, 0, "", "optimizer", one.rank,
        evidence,
        {
            "question": "Does the optimizer run with what was declared?",
            "asked": "Which update was made of these gradients?",
            "mismatches": tuple(str(miss) for miss in found),
        },
        "optimizer-hyperparameters-mismatch", 0.95, _explains(found),
        (Because(f"Why does {which} not run with the declared values?", f"{why}.", "", evidence),),
        action=f"Pass {_listed(found)} from the configuration to the constructor of {one.cls or 'the optimizer'}.",
        static=True,
    )  # fmt: skip


def _explains(found: list[Mismatch]) -> frozenset[str]:
    whats = {"plateau", "not-learning", "slow-learning", "spike", "overfitting"}
    if any(miss.name in ("lr", "beta2", "beta1", "eps", "optimizer") for miss in found):
        whats |= {"diverged", "nonfinite", "exploding", "small-updates"}
    return frozenset(whats)


def _listed(found: Iterable[Mismatch]) -> str:
    names = list(dict.fromkeys(_WORDS[miss.name] for miss in found))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _unlike(live: list[Optimizer], story: Story) -> Iterator[Violation]:
    """Two optimizers of one class over one model that differ in what people rarely mean to differ."""
    for place, one in enumerate(live):
        for other in live[:place]:
            if one.cls != other.cls or not _models(one, story) & _models(other, story):
                continue
            if one.pairs()[:1] != other.pairs()[:1] or one.values("eps")[:1] != other.values("eps")[:1]:
                forgotten = _left_at_defaults(one, other, story) or _left_at_defaults(other, one, story)
                if forgotten is not None:
                    yield forgotten
                    continue
                text = (
                    f"two {one.cls} of one model differ: betas {_betas(other)} and {_betas(one)}, "
                    f"eps {other.values('eps')[:1]} and {one.values('eps')[:1]}"
                )
                yield Violation(
                    CONTRACT, "hyperparameters", Severity.INFO, text, 0, 0, "", "optimizer", one.rank,
                    (*other.evidence[-1:], *one.evidence[-1:]), {}, "optimizer-hyperparameters-mismatch", 0.4,
                    action="Build both from the same configuration, if they are meant to be alike.", static=True,
                )  # fmt: skip


def _left_at_defaults(one: Optimizer, other: Optimizer, story: Story) -> Violation | None:
    """An optimizer with nothing but the library's defaults beside one whose rate, betas and decay were all chosen."""
    known = _AS_BUILT.get(one.cls)
    if known is None or not one.groups or not other.groups or len(one.groups) > 1:
        return None
    mine, theirs = _settings(one), _settings(other)
    if mine != known or any(theirs[name] == known[name] for name in ("lr", "betas", "weight_decay")):
        return None
    tensors = [story.names.tensor(one.rank, each) for each in sorted(one.tensors)]
    where, proof = ownership.place(story, tensors), (*one.evidence[-1:], *other.evidence[-1:])
    symptom = f"the {one.cls} of {where or 'a part of the model'} runs with the library's defaults in everything"
    finding = (
        f"Its lr is {known['lr']:g}, its betas {_betas(one)} and its weight decay {known['weight_decay']:g}; that of "
        "the rest was given other values for all three: this one was built without the configuration."
    )
    return Violation(
        CONTRACT, "hyperparameters", Severity.WARNING, symptom, 0, 0, where, "optimizer", one.rank, proof,
        {"question": "Do both optimizers run with what was chosen?", "asked": "What do the optimizers run with?"},
        "optimizer-hyperparameters-mismatch", 0.7, frozenset({"plateau", "not-learning", "slow-learning"}),
        (Because("How do the two differ?", finding, where, proof),),
        action="Build both optimizers from the same configuration.", static=True,
    )  # fmt: skip


def _settings(one: Optimizer) -> dict[str, Any]:
    group = one.groups[0]
    return {name: spellings.pair(group.get(name)) if name == "betas" else number(group.get(name))
            for name in ("lr", "betas", "eps", "weight_decay")}  # fmt: skip


def _betas(one: Optimizer) -> str:
    pairs = one.pairs()
    return f"({pairs[0][0]:g}, {pairs[0][1]:g})" if pairs else "none"


def _models(one: Optimizer, story: Story) -> set[str]:
    return {story.names.tensor(one.rank, each).model for each in one.tensors}


RULE = Hyperparameters
