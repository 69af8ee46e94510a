"""C-DATA-001: batches are new, and they are mixed.

Enters: the story: fingerprints of batches, what their loader says of itself, what targets a loss function saw. Leaves:
a loader that hands out the same batch again and again; batches that hold one class each (a sorted dataset that nobody
shuffles); an order that repeats from epoch to epoch, which alone is only worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story
from brickprof.rules.story.tracks import Floats

CONTRACT = "C-DATA-001"
_FOLLOWS = frozenset({"overfitting", "plateau", "spike", "not-learning", "diverged"})


class DataOrder:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        violations: list[Violation] = []
        looked = 0
        for rank in story.ranks:
            for loader, drawn in _loaders(story, rank):
                looked += len(drawn)
                violations += _repeats(story, rank, loader, drawn, contract)
                violations += _same_order(rank, loader, drawn, contract)
            violations += _redrawn(story, rank, contract)
            violations += _sorted(story, rank, contract)
        grave = [violation for violation in violations if violation.severity is not Severity.INFO]
        if violations:
            return outcomes.broken(contract, (grave or violations)[:1])
        if not looked:
            return outcomes.unjudged(contract, "no batch of a DataLoader was seen")
        return outcomes.held(contract, f"{wording.count(looked, 'batch', 'batches')}, new and mixed")


def _loaders(story: Story, rank: int) -> Iterator[tuple[Event | None, list[Event]]]:
    """The loaders that training draws from, with the batches that were looked at."""
    known = {whole(event.fields.get("loader")): event for event in story.events("loader", rank)}
    drawn: dict[int, list[Event]] = {}
    for event in story.events("batch", rank):
        if event.fields.get("fingerprint"):
            drawn.setdefault(whole(event.fields.get("loader")), []).append(event)
    for name, events in drawn.items():
        loader = known.get(name)
        if loader is None or loader.fields.get("train") is not False:
            yield loader, events


def _repeats(story: Story, rank: int, loader: Event | None, drawn: list[Event], contract: Contract) -> list[Violation]:
    least = int(contract.threshold("draws"))
    batches = whole(loader.fields.get("batches")) if loader is not None else 0
    steps = len({event.step for event in drawn})
    if len(drawn) < least or steps < least or batches == 1:
        return []
    if len({event.fields["fingerprint"] for event in drawn}) == 1:
        return [_one_batch(rank, loader, drawn, batches, least)]
    repeated = _repeated_in_an_epoch(drawn)
    if repeated is None or whole(drawn[0].fields.get("size")) < 8:
        return []
    share, epoch = repeated
    if share < contract.threshold("repeated") or len(epoch) < least:
        return []
    return [_few_batches(rank, share, epoch)]


def _redrawn(story: Story, rank: int, contract: Contract) -> list[Violation]:
    """Without a loader: every step makes its batch anew, and it is the same each time.

    A whole dataset that is used in every step lies in one place; what is drawn from one lies in another each time.
    """
    drawn = [event for event in story.events("targets", rank) if event.fields.get("input")]
    if story.events("batch", rank) or len(drawn) < contract.threshold("redrawn"):
        return []
    held = {(event.fields["fingerprint"], event.fields["input"]) for event in drawn}
    places = {event.fields.get("at") for event in drawn}
    if len(held) > 1 or len(places) < 2 or whole(drawn[0].fields.get("rows")) > contract.threshold("rows"):
        return []
    symptom = f"the same batch was made anew in all {len(drawn):,} steps that were looked at"
    finding = "Inputs and targets were the same each time, in tensors of their own: the draw gives the same samples."
    proof = (drawn[0].id, drawn[1].id, drawn[-1].id)
    return [
        Violation(
            CONTRACT, "same-data", Severity.WARNING, symptom, drawn[1].step, drawn[7].step, "data", "loader", rank,
            proof, {"question": "What does the model learn from?", "asked": "What data did it see?"}, "data-repeats",
            0.8, _FOLLOWS, (Because("Why is it the same?", finding, "data", proof),), (),
            "Look at how a batch is drawn: a generator that is seeded in every step draws the same indices each time.",
            static=True,
        )
    ]  # fmt: skip


def _one_batch(rank: int, loader: Event | None, drawn: list[Event], batches: int, least: int) -> Violation:
    restarts = {whole(event.fields.get("epoch"), -1) for event in drawn}
    restarted = len(restarts) >= len(drawn) - 1 and -1 not in restarts
    of = f" of {batches:,}" if batches > 1 else ""
    symptom = f"the loader handed out the same batch{of} in all {len(drawn):,} steps that were looked at"
    finding = "Every sample that the dataset gives is the same: its __getitem__ does not use the index."
    action = "Look at the dataset's __getitem__: it has to return the sample of its index."
    if restarted:
        finding = "The loader is started anew for every step, and each time only its first batch is used."
        action = "Iterate the loader once per epoch (for batch in loader), or keep one iterator across steps."
    proof = (drawn[0].id, drawn[1].id, drawn[-1].id, *([loader.id] if loader is not None else []))
    asked = {"question": "What does the model learn from?", "asked": "What data did it see?"}
    severity = Severity.ERROR if batches > 1 else Severity.WARNING
    return Violation(
        CONTRACT, "same-data", severity, symptom, drawn[1].step, drawn[min(least, len(drawn)) - 1].step, "data",
        "loader", rank, proof, asked, "data-repeats", 0.95 if batches > 1 else 0.8, _FOLLOWS,
        (Because("Why is it the same?", finding, "data", proof),), (), action, static=True,
    )  # fmt: skip


def _few_batches(rank: int, share: float, epoch: list[Event]) -> Violation:
    prints: dict[Any, list[Event]] = {}
    for event in epoch:
        prints.setdefault(event.fields["fingerprint"], []).append(event)
    most = max(prints.values(), key=len)
    symptom = f"{share * 100:.0f} % of the batches of one epoch repeat earlier ones of the same epoch"
    proof = tuple(event.id for event in most[:3])
    finding = f"{len(epoch):,} batches were looked at, and {len(prints):,} of them were different."
    return Violation(
        CONTRACT, "same-data", Severity.WARNING, symptom, most[1].step, most[1].step, "data", "loader", rank, proof,
        {"question": "What does the model learn from?", "asked": "What data did it see?"}, "data-repeats", 0.8,
        _FOLLOWS, (Because("How many different batches are there?", finding, "data", proof),), (),
        "Look at the sampler and the dataset: an epoch should show every sample once.", static=True,
    )  # fmt: skip


def _repeated_in_an_epoch(drawn: list[Event]) -> tuple[float, list[Event]] | None:
    epochs: dict[int, list[Event]] = {}
    for event in drawn:
        if event.fields.get("epoch") is not None:
            epochs.setdefault(whole(event.fields["epoch"]), []).append(event)
    if not epochs:
        return None
    longest = max(epochs.values(), key=len)
    different = len({event.fields["fingerprint"] for event in longest})
    return 1 - different / len(longest), longest


def _same_order(rank: int, loader: Event | None, drawn: list[Event], contract: Contract) -> list[Violation]:
    """Every place of the epoch had the same batch in every epoch."""
    places: dict[int, list[Event]] = {}
    for event in drawn:
        if event.fields.get("index") is not None and event.fields.get("epoch") is not None:
            places.setdefault(whole(event.fields["index"]), []).append(event)
    again = [events for events in places.values() if len({e.fields["epoch"] for e in events}) > 1]
    if len(again) < contract.threshold("places"):
        return []
    if any(len({event.fields["fingerprint"] for event in events}) > 1 for events in again):
        return []
    first = again[0]
    proof = (first[0].id, first[1].id, *([loader.id] if loader is not None else []))
    symptom = f"the same {len(again):,} batches come in the same order in every epoch"
    return [
        Violation(
            CONTRACT, "same-order", Severity.INFO, symptom, first[1].step, first[1].step, "data", "loader", rank,
            proof, {"question": "Is the data shuffled?"}, "data-not-shuffled", 0.6,
            action="Pass shuffle=True to the DataLoader, unless the order is meant.", static=True,
        )
    ]  # fmt: skip


def _sorted(story: Story, rank: int, contract: Contract) -> list[Violation]:
    """Each batch has one kind of target, and the kind changes along the run."""
    loaders = [loader for loader, _ in _loaders(story, rank)]
    if loaders and all(loader is not None and loader.fields.get("shuffles") is True for loader in loaders):
        return []  # a sample has many targets, near each other: the samples are mixed
    samples = {event.step: whole(event.fields.get("samples")) for _, drawn in _loaders(story, rank) for event in drawn}
    calls = [event for event in curves.training_calls(story, rank) if _one_of_its_step(event, samples)]
    if len({event.fields.get("site") for event in calls}) != 1 or _several_a_step(calls):
        return []
    if _by_a_model(story, rank, calls):
        return []
    targets = [(event, event.fields["target"]) for event in calls]
    if len(targets) < contract.threshold("looks"):
        return []
    lows = np.asarray([number(target.get("min")) or 0.0 for _, target in targets])
    highs = np.asarray([number(target.get("max")) or 0.0 for _, target in targets])
    if not _kinds_change(lows, highs, contract.threshold("narrow")):
        return []
    return [_unmixed(rank, [event for event, _ in targets], lows, highs)]


def _kinds_change(lows: Floats, highs: Floats, narrow: float) -> bool:
    """Most batches are narrow, and narrow ones lie far apart: rare classes and outliers do not look like this."""
    total = float(highs.max() - lows.min())
    slim = highs - lows <= narrow * total
    if total <= 0 or slim.mean() < 0.6:
        return False
    middles = (lows + highs)[slim] / 2
    far = np.abs(middles - np.median(middles)) >= 0.25 * total
    return int(far.sum()) >= 2


def _unmixed(rank: int, calls: list[Event], lows: Floats, highs: Floats) -> Violation:
    single = bool(np.median(highs - lows) == 0)
    held = "one class" if single else f"targets within {np.median(highs - lows):.4g} of each other"
    symptom = f"batches are not mixed: each holds {held}, while all targets go from {lows.min():g} to {highs.max():g}"
    changes = np.flatnonzero(np.diff(lows)) + 1
    other = calls[int(changes[0])]
    proof = (calls[0].id, other.id)
    finding = (
        f"Step {calls[0].step:,} had targets from {lows[0]:g} to {highs[0]:g}, step {other.step:,} from "
        f"{lows[changes[0]]:g} to {highs[changes[0]]:g}: the data is sorted and nobody shuffles it."
    )
    asked = {"question": "Is the data shuffled?", "asked": "Are the batches mixed?"}
    return Violation(
        CONTRACT, "unmixed-data", Severity.WARNING, symptom, calls[0].step, calls[min(7, len(calls) - 1)].step, "data",
        "loader", rank, proof, asked, "data-not-shuffled", 0.9, _FOLLOWS,
        (Because("What do the batches hold?", finding, "data", proof),), (),
        "Pass shuffle=True to the DataLoader (or permute the indices before every epoch).", static=True,
    )  # fmt: skip


def _one_of_its_step(event: Event, drawn: dict[int, int]) -> bool:
    target = event.fields.get("target")
    if not isinstance(target, dict) or target.get("min") is None or target.get("max") is None:
        return False
    if _learnt(event):
        return False
    samples = event.fields.get("fed") or drawn.get(event.step)  # one sequence has many targets, and nothing to mix
    few = isinstance(samples, int) and 0 < samples < 8
    return not few and whole(event.fields.get("rows")) >= 8 and whole(target.get("looked"), 8) >= 8


def _by_a_model(story: Story, rank: int, calls: list[Event]) -> bool:
    """Whether targets may come from a network that runs without gradients in every step, and move as it learns."""
    numbers = all("float" in str(event.fields["target"].get("dtype")) for event in calls)
    return numbers and any(event.fields.get("frequent") for event in story.events("evaluation", rank))


def _learnt(event: Event) -> bool:
    """Whether what stands in the place of the target depends on the parameters: then it says nothing of the data."""
    requires = event.fields.get("requires")
    return isinstance(requires, list) and len(requires) > 1 and requires[1] is True


def _several_a_step(calls: list[Event]) -> bool:
    return len({event.step for event in calls}) < 0.9 * len(calls)


RULE = DataOrder
