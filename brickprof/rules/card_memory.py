"""Memory of a card that torch does not know of, and memory that it holds in pieces.

Enters: the card's memory as the driver sees it (``card`` events), what torch has allocated and reserved (``memory``
events), the numbers in an out-of-memory exception. Leaves: growth outside torch's allocator, for C-MEMSTABLE-001;
fragmentation, for C-MEM-001: far more reserved than was ever in use at once, while memory runs out or goes on growing.
"""

from __future__ import annotations

import re

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import cards, outcomes, wording
from brickprof.rules.growth_of_memory import Growth, growth
from brickprof.rules.names import number
from brickprof.rules.sanitizer import SANITIZED, sanitized
from brickprof.rules.story import Story, Track

_QUESTION = "Where does the memory of the card go?"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_TRIED, _CAPACITY = re.compile(f"Tried to allocate {_SIZE}"), re.compile(f"total capacity of {_SIZE}")
_UNUSED = re.compile(f"{_SIZE} is reserved by PyTorch but unallocated")
_TOGETHER = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets blocks of other sizes share memory; keep shapes few."


class OutsideTorch:
    contract = "C-MEMSTABLE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found = cards.sampled(story, contract)
        if isinstance(found, ContractResult):
            return found
        if sanitized(story):
            return outcomes.unjudged(contract, SANITIZED)
        looks = int(contract.threshold("looks"))
        untold = [_untold(card) for card in found if _track(story, card) is None]
        for card in found:
            track = _track(story, card)
            grown = growth(track, looks) if track is not None else None
            if grown is not None and _goes_on(grown, contract) and not _explained(story, grown, contract):
                return outcomes.broken(contract, [_outside(card, grown, contract)], "no growth that goes on")
        if untold:
            return outcomes.unjudged(contract, untold[0])
        return outcomes.aside(contract, "the card's memory did not grow beyond what torch reserves")


def _track(story: Story, card: cards.Card) -> Track | None:
    """What the run's own processes hold, where the driver tells; else all that is in use, where others would have been
    seen on the card and were not."""
    ours = story.track("card", "memory_ours", -1, what="sample", device=card.device)
    if len(ours):
        return ours
    if card.others.get("process") or card.known_by != "listed":
        return None
    return story.track("card", "memory_used", -1, what="sample", device=card.device)


def _untold(card: cards.Card) -> str:
    if card.others.get("process"):
        return "others use the card, and what the run itself holds of it is not told"
    return "whose memory of the card it is, is not told here (a container?)"


def _goes_on(found: Growth, contract: Contract) -> bool:
    floor = max(contract.threshold("bytes"), contract.threshold("grown") * float(found.track.values[0]))
    return found.steady and found.slope > 0 and found.gained >= floor


def _explained(story: Story, grown: Growth, contract: Contract) -> bool:
    """Whether torch's own allocator gained at least half as much; where it was not looked at, it may have."""
    ours = [growth(story.track("memory", "device_reserved", rank)) for rank in story.ranks]
    known = [each for each in ours if each is not None]
    return not known or sum(max(0.0, each.gained) for each in known) >= 0.5 * grown.gained


def _outside(card: cards.Card, grown: Growth, contract: Contract) -> Violation:
    track = grown.track
    sizes = f"{wording.size(float(track.values[0]))} to {wording.size(float(track.values[-1]))}"
    symptom = f"memory of {card.name} grew from {sizes}, {wording.size(grown.slope)} a step, outside torch's allocator"
    proof = (track.evidence(0), track.evidence(len(track) - 1))
    text = "What torch reserves did not grow with it: a library, a graph or a context of its own keeps it."
    return Violation(
        contract.id, "memory-growth", Severity.WARNING, symptom, grown.began, int(track.steps[-1]), "", "step", 0,
        proof, cause="memory-leak", certainty=0.7, explains=frozenset({"out-of-memory", "killed"}),
        whys=(Because(_QUESTION, text, "", proof),), details={"question": _QUESTION, "asked": _QUESTION},
        action="Look for what allocates by itself: CUDA graphs, NCCL groups, cupy, an extension's own cudaMalloc.",
    )  # fmt: skip


class Fragmented:
    contract = "C-MEM-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        threshold = "what is reserved is in use"
        for rank in story.ranks:
            found = self._ran_out(story, rank, contract) or self._grows(story, rank, contract)
            if found is not None:
                return outcomes.broken(contract, [found], threshold)
        return outcomes.aside(contract, "no memory of a device ran out or grew in pieces")

    def _ran_out(self, story: Story, rank: int, contract: Contract) -> Violation | None:
        """An allocation that failed although torch held more than it asked for."""
        for event in story.events("exception", rank):
            message = str(event.fields.get("message", ""))
            tried, unused, capacity = (_bytes(pattern, message) for pattern in (_TRIED, _UNUSED, _CAPACITY))
            if tried is None or unused is None or unused < tried:
                continue
            if capacity is not None and unused < contract.threshold("unused_share") * capacity:
                continue
            symptom = (
                f"{wording.size(tried)} could not be allocated while {wording.size(unused)} lay reserved and unused"
            )
            return _pieces(contract, Severity.ERROR, symptom, event.step, event.step, rank, (event.id,), 0.85)
        return None

    def _grows(self, story: Story, rank: int, contract: Contract) -> Violation | None:
        """Reserved memory that goes on growing, far above the most that was in use at once."""
        reserved = growth(story.track("memory", "device_reserved", rank))
        last = next((event for event in reversed(story.events("memory", rank)) if _held(event)), None)
        if reserved is None or last is None or not reserved.steady or reserved.slope <= 0:
            return None
        held, used = _held(last) or 0.0, _in_use(last) or 0.0
        allocated = growth(story.track("memory", "device_allocated", rank))
        leaks = allocated is not None and allocated.gained >= 0.5 * reserved.gained
        gap = held - used
        if (
            leaks
            or gap < contract.threshold("unused_bytes")
            or held < contract.threshold("unused_factor") * max(used, 1.0)
        ):
            return None
        symptom = f"torch holds {wording.size(held)} of the card, at most {wording.size(used)} was in use, and it grows"
        track = reserved.track
        proof = (track.evidence(0), track.evidence(int(np.argmax(track.values))))
        return _pieces(contract, Severity.WARNING, symptom, reserved.began, last.step, rank, proof, 0.75)


def _held(event: Event) -> float | None:
    return number(event.fields.get("device_reserved"))


def _in_use(event: Event) -> float | None:
    """The most that was in use at once; at the end of a step activations are gone, and little is."""
    peak = number(event.fields.get("device_peak"))
    return peak if peak is not None else number(event.fields.get("device_allocated"))


def _bytes(pattern: re.Pattern[str], message: str) -> float | None:
    found = pattern.search(message)
    return float(found[1]) * _UNITS[found[2]] if found else None


def _pieces(
    contract: Contract, severity: Severity, symptom: str, first: int, known: int, rank: int, proof: tuple[str, ...],
    certainty: float,
) -> Violation:  # fmt: skip
    text = "Memory that torch has freed inside lies in pieces of other sizes: none of them is large enough."
    return Violation(
        contract.id, "fragmentation", severity, symptom, first, known, "", "step", rank, proof,
        cause="memory-fragmentation", certainty=certainty, explains=frozenset({"out-of-memory", "memory-growth"}),
        whys=(Because(_QUESTION, text, "", proof),), details={"question": _QUESTION, "asked": _QUESTION},
        action=_TOGETHER, experiment="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True brickprof run SCRIPT",
    )  # fmt: skip


RULES = (OutsideTorch, Fragmented)
