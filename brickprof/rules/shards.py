"""Each rank its own share of the data: no sample twice, none left out, equal loads.

Enters: fingerprints and sizes of the batches of every rank, and what the loaders say of themselves. Leaves:
C-SHARD-001.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.replicas import replicas
from brickprof.rules.story import Story

_LEAST_EPOCH = 12
Key = tuple[int, int, int]
"""Loader, epoch, position in it (or the count over all epochs, with epoch -1)."""


class Shards:
    contract = "C-SHARD-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        found = replicas(story)
        if found == "one rank trained":
            return outcomes.vacuous(contract, str(found))
        if isinstance(found, str):
            return outcomes.unjudged(contract, found)  # ranks of one tensor-parallel group share their batch
        batches = {rank: _batches(story, rank) for rank in found.ranks}
        threshold = f"no batch on two ranks; loads within {contract.threshold('imbalance'):g}x"
        wrong = _overlap(batches, contract) or _imbalance(story, found.ranks, contract)
        if wrong is not None:
            return outcomes.broken(contract, [wrong], threshold)
        least = min(len(taken) for taken in batches.values())
        if least < contract.threshold("batches"):
            why = "too few batches with a fingerprint: data on a device, or not from a DataLoader, is not read"
            return outcomes.unjudged(contract, why)
        told = f"{wording.count(least, 'batch', 'batches')} a rank looked at, none on two ranks"
        return outcomes.held(contract, told, threshold)


def _batches(story: Story, rank: int) -> dict[Key, Event]:
    """The batches of a rank; where no loader handed them out, the targets that its losses saw."""
    handed = [event for event in story.events("batch", rank) if event.fields.get("train") is not False]
    found = {_key(event): event for event in handed if event.fields.get("fingerprint")}
    if found:
        return found
    return {(-1, -1, event.step): event for event in story.events("targets", rank) if _print(event)}


def _print(event: Event) -> str:
    """What tells a batch from others: its own fingerprint, or that of what the model was given."""
    return str(event.fields.get("fingerprint") or event.fields.get("input") or "")


def _key(event: Event) -> Key:
    fields = event.fields
    loader = whole(fields.get("loader"))
    if isinstance(fields.get("index"), int):
        return loader, whole(fields.get("epoch")), whole(fields.get("index"))
    return loader, -1, whole(fields.get("count"))


class _Shared(NamedTuple):
    """Batches that two ranks have in common."""

    ranks: tuple[int, int]
    pairs: list[tuple[Event, Event]]
    of: int


def _overlap(batches: dict[int, dict[Key, Event]], contract: Contract) -> Violation | None:
    found = [_common(first, other, batches) for first in batches for other in batches if first < other]
    seen = max(found, key=lambda shared: len(shared.pairs), default=None)
    if seen is None or len(seen.pairs) < max(contract.threshold("batches"), contract.threshold("overlap") * seen.of):
        return None
    if len({_print(mine) for mine, _ in seen.pairs}) < 2:
        return None
    first, other = seen.ranks
    mine, theirs = seen.pairs[0]
    share, known = len(seen.pairs) / seen.of, seen.pairs[int(contract.threshold("batches")) - 1][0].step
    symptom = f"ranks {first} and {other} train on the same batches: {len(seen.pairs):,} of {seen.of:,} ({share:.0%})"
    evidence = (mine.id, theirs.id)
    handed = mine.kind == "batch"  # equal targets alone may belong to different inputs
    severity = Severity.ERROR if handed else Severity.WARNING
    text = (
        f"The batch of step {mine.step:,} on rank {first} is that of step {theirs.step:,} on rank {other}: both have "
    )
    text += f"the fingerprint {_print(mine)}."
    return Violation(
        contract.id, "shard-overlap", severity, symptom, mine.step, known, "", "loader",
        evidence=evidence, cause="shard-overlap", certainty=0.95 if handed else 0.8, static=mine.step <= 1,
        explains=frozenset({"overfitting", "plateau"}), whys=(Because("How is it known?", text, "", evidence),),
        details={"question": "Which data does each rank see?", "asked": "Which data does each rank see?"},
        action="Give the DataLoader a DistributedSampler(dataset, world_size, rank), and call set_epoch(epoch).",
    )  # fmt: skip


def _common(first: int, other: int, batches: dict[int, dict[Key, Event]]) -> _Shared:
    mine, theirs = batches[first], batches[other]
    # A fingerprint that comes again and again on one rank (constant data) tells nothing.
    usual = _repeated(mine) | _repeated(theirs)
    both = [key for key in mine if key in theirs and _print(mine[key]) not in usual]
    pairs = [(mine[key], theirs[key]) for key in both if _print(mine[key]) == _print(theirs[key])]
    if not pairs:
        pairs = sorted(_elsewhere(mine, theirs, usual), key=lambda pair: pair[0].step)
        return _Shared((first, other), pairs, min(len(_by_epoch(mine)), len(_by_epoch(theirs))))
    return _Shared((first, other), pairs, len(both))


def _repeated(batches: dict[Key, Event]) -> set[str]:
    """Fingerprints that tell nothing: those a rank has twice in an epoch, and all where the data hardly varies."""
    seen = Counter((key[1], _print(event)) for key, event in batches.items())
    everything = {fingerprint for _, fingerprint in seen}
    if len(everything) < 2:
        return everything
    return {fingerprint for (epoch, fingerprint), times in seen.items() if times > 1 and epoch >= 0}


def _elsewhere(mine: dict[Key, Event], theirs: dict[Key, Event], usual: set[str]) -> list[tuple[Event, Event]]:
    """Batches of one epoch that two ranks have at different times; over epochs ranks may swap samples."""
    ours, others = _by_epoch(mine), _by_epoch(theirs)
    both = sorted(ours.keys() & others.keys() - {place for place in ours if place[2] in usual})
    return [(ours[place], others[place]) for place in both]


def _by_epoch(batches: dict[Key, Event]) -> dict[tuple[int, int, str], Event]:
    """Batches by loader, epoch and fingerprint; of epochs that nobody counted, the first, if it can be told."""
    told = {key: event for key, event in batches.items() if key[1] >= 0}
    if told:
        return {(key[0], key[1], _print(event)): event for key, event in told.items()}
    first: dict[str, Event] = {}
    rest: list[str] = []
    for event in batches.values():
        fingerprint = _print(event)
        if rest or fingerprint in first:
            rest.append(fingerprint)
        else:
            first[fingerprint] = event
    again = sum(fingerprint in first for fingerprint in rest)
    # An epoch ends where everything begins to come again; labels of few classes come again by chance.
    whole_epoch = len(first) >= _LEAST_EPOCH and len(rest) >= 4 and again >= 0.8 * len(rest)
    return {(-1, 0, fingerprint): event for fingerprint, event in first.items()} if whole_epoch else {}


def _imbalance(story: Story, ranks: tuple[int, ...], contract: Contract) -> Violation | None:
    """Loads that differ: the slowest rank holds the others, or they wait for it forever."""
    loads: dict[int, tuple[float, Event]] = {}
    for rank in ranks:
        for event in story.events("loader", rank):
            batches, size = number(event.fields.get("batches")), number(event.fields.get("batch_size"))
            if event.fields.get("train") is not False and batches is not None:
                loads.setdefault(rank, (batches * (size or 1), event))
    if len(loads) < len(ranks):
        return None
    most, least = max(loads.items(), key=lambda item: item[1][0]), min(loads.items(), key=lambda item: item[1][0])
    bound = contract.threshold("imbalance")
    if most[1][0] <= bound * least[1][0] or most[1][0] < contract.threshold("samples"):
        return None
    symptom = f"rank {most[0]} has {most[1][0]:,.0f} samples an epoch and rank {least[0]} has {least[1][0]:,.0f}"
    return Violation(
        contract.id, "shard-imbalance", Severity.WARNING, symptom, 0, most[1][1].step, "", "loader",
        evidence=(most[1][1].id, least[1][1].id), cause="shard-imbalance", certainty=0.85, static=True,
        explains=frozenset({"straggler", "slow", "hung"}),
        details={"question": "Do the ranks have equal loads?", "asked": "Do the ranks have equal loads?"},
        action="Split the data by samples and not by files, or drop the remainder: every rank needs as many steps.",
    )  # fmt: skip


RULE = Shards
