"""Numbers that the script fetches from the device, and data that goes back and forth.

Enters: ``syncs`` events (host reads of a step, and the lines that made them), ``transfers`` events (its copies) and
transfer spans. Leaves: C-GPUTRAIN-002 (few transfers a step, no reads in a loop) and C-GPUACCUM-001 (no gradients to
the host inside micro-batches). A read on a CPU costs little; a loop that reads one number for each parameter is a
mistake on any machine, and will be a slow one on a device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation, together
from brickprof.records import Event, Record, Span
from brickprof.rules import outcomes, traffic, wording
from brickprof.rules.compiled_copies import Unplaced, functions, held_to
from brickprof.rules.longest_waits import LongestWaits
from brickprof.rules.names import whole
from brickprof.rules.story import Story
from brickprof.rules.traffic import Look
from brickprof.rules.transfer_bricks import Bricks

_TORCH_FILES = frozenset(
    f"{name}.py" for name in (
        "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "lbfgs", "nadam", "optimizer", "radam", "rmsprop",
        "rprop", "sgd", "sparse_adam", "_adafactor", "_functional", "lr_scheduler", "clip_grad", "grad_scaler",
    )
)  # fmt: skip


_OF_PARAMETERS = re.compile(r"param|grad|weight|state|modules|children|layers", re.IGNORECASE)


class _Loop(NamedTuple):
    """A line that reads many numbers in every step."""

    site: str
    reads: int
    tensors: int
    events: tuple[Event, ...]
    on_device: bool
    moves: bool
    """Whether it fetches whole tensors, not numbers."""

    constant: bool
    """Whether it reads as many in each step."""

    share: float | None = None
    """Of the step, spent waiting for all but the longest of them; None where that is not known."""

    timed: bool = False
    """Whether somebody took the time, if not of the longest."""

    waits: bool = False
    """Whether it waits for the device, and asks for no number."""

    @property
    def per_parameter(self) -> bool:
        """A loop over parameters reads as many in every step, and says so. A line in a loop over other things (steps of
        an environment, rows of a batch) may come to the same number; where the source is not known, only exactly
        one read for each parameter counts."""
        if not self.constant or not self.tensors:
            return False
        around = _around(self.events, self.site)
        if around is None:
            return self.reads == self.tensors
        times = self.reads / self.tensors
        return abs(times - round(times)) < 0.02 and _over_parameters(around)

    @property
    def of_turns(self) -> bool:
        """The steps of an environment, say: not as many in each step, in a loop that is known to be over no parameters.
        What is read decides what comes next, so that there is no one read in place of them."""
        around = None if self.waits or self.constant else _around(self.events, self.site)
        return around is not None and not _over_parameters(around)


class _Seen(NamedTuple):
    """What one line read, or waited for, in one step that was looked at."""

    event: Event
    site: str
    reads: int
    moves: bool
    """Whether most were whole tensors."""

    ns: int | None
    longest: int | None
    waits: bool = False


class Transfers:
    contract = "C-GPUTRAIN-002"
    hears = (Span,)

    def __init__(self) -> None:
        self._bricks = Bricks()
        self._longest = LongestWaits()
        self._unplaced = Unplaced()

    def feed(self, record: Record) -> None:
        self._bricks.feed(record)
        self._longest.feed(record)
        self._unplaced.feed(record)

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        looks = {rank: self._bricks.added(found) for rank in story.ranks if (found := traffic.looks(story, rank))}
        threshold = traffic.threshold(looks.values(), contract)
        loops = {rank: _loop(story, rank, self._longest, contract) for rank in story.ranks}
        for rank, loop in loops.items():
            wrong = self._wrong(story, rank, loop, looks.get(rank, []), contract)
            if wrong is not None:
                return outcomes.broken(contract, [wrong], threshold)
        judged = self._without_fault(story, looks, threshold, contract)
        noted = next((loop for loop in loops.values() if loop is not None), None)
        return judged if noted is None else together(judged, outcomes.broken(contract, [_reading(noted, contract)]))

    def _without_fault(
        self, story: Story, looks: dict[int, list[Look]], threshold: str, contract: Contract
    ) -> ContractResult:  # fmt: skip
        if not looks and not _on_device(story):
            why = "no device: nothing was transferred. A run on a GPU records transfers"
            return outcomes.unjudged(contract, why, _reads(story))
        if not looks:
            return self._without_looks(story, contract)
        if not any(look.count for found in looks.values() for look in found):
            return outcomes.vacuous(contract, "nothing was transferred in the steps that were looked at")
        return outcomes.held(contract, traffic.observed(looks.values()), threshold)

    def _wrong(
        self, story: Story, rank: int, loop: _Loop | None, looks: list[Look], contract: Contract
    ) -> Violation | None:
        if loop is not None and not loop.of_turns:
            return _reading(loop, contract)
        return (
            self._bricks.over_declared(rank, contract)
            or traffic.over_budget(looks, contract)
            or traffic.crowd(story, rank, looks, contract)
            or traffic.grown(story, rank, looks, contract)
            or traffic.swollen(story, rank, looks, contract)
            or (None if looks else self._bricks.crowd(rank, contract))
        )

    def _without_looks(self, story: Story, contract: Contract) -> ContractResult:
        usual = self._bricks.usual()
        if usual:
            return outcomes.held(contract, f"{usual:g} transfers a step, by the script's own bricks")
        if any(story.events("compile", rank) for rank in story.ranks):
            what = f" ({named})" if (named := functions(story)) else ""
            why = f"something was compiled{what}: copies of such a run are seen by the profiler's windows only, "
            why += "without lines"
            seen, where = self._bricks.windowed(), self._unplaced.blocks(story)
            windows, declared = self._bricks.in_windows(story), contract.threshold("transfers")
            if declared and (judged := held_to(declared, windows, where, story, contract)):
                return judged
            return outcomes.unjudged(contract, why, f"{seen}, {where}" if seen and where else seen)
        why = "no step was looked at in full; --level standard or deep records transfers"
        return outcomes.unjudged(contract, why, _reads(story))


class Accumulation:
    contract = "C-GPUACCUM-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        micros = [rank for rank in story.ranks if _micro_batches(story, rank) > 1]
        if not micros:
            return outcomes.vacuous(contract, "one backward a step: nothing is accumulated")
        looks = [look for rank in micros for look in traffic.looks(story, rank) if look.backwards > 1]
        if not looks and not _on_device(story):
            return outcomes.unjudged(contract, "no device: a run on a GPU records copies to the host")
        if not looks:
            return outcomes.unjudged(contract, "no step of several micro-batches was looked at in full")
        wrong = traffic.homeward(looks, contract)
        if wrong is not None:
            return outcomes.broken(contract, [wrong], "0 gradients to the host inside micro-batches")
        return outcomes.held(contract, f"nothing went to the host in {len(looks)} steps of several micro-batches")


def _around(events: tuple[Event, ...], site: str) -> list[str] | None:
    """What the loops around ``site`` run over, as they are written; None where nobody could read it."""
    for event in events:
        told = event.fields.get("around")
        found = told.get(site) if isinstance(told, dict) else None
        if isinstance(found, list) and found:
            return [str(each) for each in found]
    return None


def _over_parameters(around: list[str]) -> bool:
    return any(_OF_PARAMETERS.search(over) for over in around)


def _loop(story: Story, rank: int, longest: LongestWaits, contract: Contract) -> _Loop | None:
    """The line that reads most; before one that is only worth knowing, any that is a mistake."""
    looks = story.events("syncs", rank)
    if len(looks) < contract.threshold("looks"):
        return None
    tensors = sum(1 for tensor in story.names.tensors(rank) if tensor.model and story.names.trained(rank, tensor))
    on_device = _on_device(story)
    found: dict[tuple[str, bool], list[_Seen]] = {}
    for event in looks:
        for seen in [*_reads_of(event, on_device), *_waits_of(event)]:
            found.setdefault((seen.site, seen.waits), []).append(seen)
    lasted = traffic.durations(story, rank)
    loops = [
        _of_line(each, tensors, on_device, _shares(each, rank, lasted, longest))
        for each in found.values()
        if len(each) >= max(contract.threshold("looks"), 0.8 * len(looks))
    ]
    guilty = [loop for loop in loops if _too_many(loop, contract)]
    return max(guilty, key=lambda loop: (not loop.of_turns, loop.reads), default=None)


def _of_line(seen: list[_Seen], tensors: int, on_device: bool, shares: list[float | None]) -> _Loop:
    counts = [each.reads for each in seen]
    known = [share for share in shares if share is not None]
    return _Loop(
        seen[0].site, int(np.median(counts)), tensors, tuple(each.event for each in seen), on_device,
        on_device and 2 * sum(each.moves for each in seen) > len(seen), _constant(counts),
        float(np.median(known)) if known else None, bool(shares), seen[0].waits,
    )  # fmt: skip


def _reads_of(event: Event, on_device: bool) -> Iterator[_Seen]:
    waited = whole(event.fields["device"]) if on_device and "device" in event.fields else None
    for site, told, moved, of_device, ns, longest in _sites(event):
        # Next to a device, numbers that lie on the host anyway (an optimizer's count of steps) cost nothing.
        reads = told if waited is None else min(told, waited if of_device is None else of_device)
        if reads:
            yield _Seen(event, site, reads, 2 * moved > told, ns, longest)


def _waits_of(event: Event) -> Iterator[_Seen]:
    listed = event.fields.get("waits")
    longest = {
        (str(row[0]), str(row[1])): whole(row[4])
        for row in (listed if isinstance(listed, list) else ())
        if isinstance(row, list) and len(row) > 4
    }
    for site, kind, count, ns in traffic.waits(event):
        if kind == traffic.WHOLE_DEVICE:
            yield _Seen(event, site, count, False, ns, longest.get((site, kind)), waits=True)


def _shares(seen: list[_Seen], rank: int, lasted: dict[int, float], spans: LongestWaits) -> list[float | None]:
    """What all but the longest take of each step whose times were taken; None where the longest is not known."""
    shares: list[float | None] = []
    for each in seen:
        step, ns, longest = each.event.step, each.ns, each.longest
        if ns is not None and step in lasted:
            cost = spans.beside(rank, step, each.site, ns) if longest is None else max(0, ns - longest)
            shares.append(None if cost is None else cost / lasted[step])
    return shares


def _constant(reads: list[int]) -> bool:
    return max(Counter(reads).values()) >= 0.8 * len(reads)


def _too_many(loop: _Loop, contract: Contract) -> bool:
    if loop.on_device and _dear(loop, contract):
        return True
    # An environment's steps are read one by one too: only a loop over the parameters is a mistake for certain.
    least = max(contract.threshold("reads"), float(loop.tensors))
    return loop.per_parameter and least <= loop.reads <= 8 * loop.tensors


def _dear(loop: _Loop, contract: Contract) -> bool:
    """Very many reads, at half the share of the step that fewer have to take; or at a cost that nobody took. Where only
    the longest is not known, it may have taken all of the time."""
    share, very_many = contract.threshold("share"), loop.reads >= contract.threshold("reads_on_device")
    if loop.share is None:
        return very_many and not loop.timed
    return loop.reads >= contract.threshold("costly_reads") and loop.share >= (share / 2 if very_many else share)


_Row = tuple[str, int, int, int | None, int | None, int | None]


def _sites(event: Event) -> list[_Row]:
    """Line, reads, those of whole tensors, those of a device, nanoseconds, those of the longest; the last three where
    they were counted."""
    listed = event.fields.get("sites")
    if not isinstance(listed, list):
        return []
    told = [_site(item) for item in listed if isinstance(item, list) and len(item) >= 2]
    return [row for row in told if row[0].rpartition(":")[0].rpartition("/")[2] not in _TORCH_FILES]


def _site(item: list[object]) -> _Row:
    reads, moved, *counted = [whole(each) for each in (*item[1:6], *[0] * (3 - len(item)))]
    of_device, ns, longest = (*counted, None, None, None)[:3]
    return str(item[0]), reads, moved, of_device, ns, longest


def _reading(loop: _Loop, contract: Contract) -> Violation:
    first = loop.events[0]
    what = f"one for each of {loop.tensors:,} parameters" if loop.per_parameter else "in every step"
    what = "not as many in each" if loop.of_turns else what
    times = "" if not loop.per_parameter or loop.reads < 2 * loop.tensors else f", {loop.reads // loop.tensors} times"
    things = "copies {:,} tensors to the host" if loop.moves else "reads {:,} numbers back to the host"
    things = "waits {:,} times for the device" if loop.waits else things
    symptom = f"{loop.site} {things.format(loop.reads)} in a step, {what}{times}"
    evidence = tuple(event.id for event in loop.events[:3])
    severity, explains = (Severity.INFO, frozenset[str]()) if loop.of_turns else (Severity.WARNING, traffic.EXPLAINED)
    waits = f"Each {'of them' if loop.waits else 'read'} waits until the device has finished everything before it"
    cost = "" if loop.share is None or not loop.on_device else f"; here all but one take {loop.share:.0%} of the step"
    text = f"{waits}{cost}." if loop.on_device else f"{waits}; on this CPU it costs little, on a GPU it is the step."
    known = loop.events[min(len(loop.events), int(contract.threshold("looks"))) - 1].step
    cause = "extra-transfers" if loop.moves else "host-sync-in-loop"
    return Violation(
        contract.id, cause, severity, symptom, first.step, known, "",
        "transfer" if loop.moves else "host_sync", first.rank, evidence, cause=cause,
        certainty=0.9 if loop.on_device else 0.85, static=True, explains=explains,
        whys=(Because("Why is that slow?", text, "", evidence),),
        details={"question": "What does the host read in a step?", "asked": "What makes the steps slow?"},
        action=_action(loop),
    )  # fmt: skip


def _action(loop: _Loop) -> str:
    if loop.waits:
        return (
            "Take synchronize() out of the loop: a stream does its work in order, and whoever reads a number waits for "
            "it. To take times, wait once, at the end."
        )
    if loop.of_turns:
        return (
            "Keep on the host what an environment needs there (its state, a small policy), or step several "
            "environments at once and read for all of them in one."
        )
    if loop.moves:
        return "Keep on the device what is computed there, and move a batch in one copy."
    return (
        "Compute on the device and read one number: torch.nn.utils.get_total_norm(gradients), or "
        "torch.stack(values).sum().item() once."
    )


def _reads(story: Story) -> str:
    counts = [whole(event.fields.get("count")) for rank in story.ranks for event in story.events("syncs", rank)]
    return f"{wording.count(int(np.median(counts)), 'host read')} a step" if counts else ""


def _on_device(story: Story) -> bool:
    devices = (str(event.fields.get("device", "")) for rank in story.ranks for event in story.events("tensor", rank))
    return any(device.startswith(("cuda", "hip", "xpu", "mps")) for device in devices)


def _micro_batches(story: Story, rank: int) -> int:
    passes = story.wholes("loss", "micro", rank)
    return int(passes.max()) + 1 if len(passes) else 0


RULES = (Transfers, Accumulation)
