"""Numbers that the script fetches from the device, and data that goes back and forth.

Enters: ``syncs`` events (host reads of a step, and the lines that made them) and transfer spans. Leaves: C-GPUTRAIN-002
(few transfers a step) and C-GPUACCUM-001 (none inside micro-batches). A read on a CPU costs little; a loop that reads
one number for each parameter is a mistake on any machine, and will be a slow one on a device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from brickprof.bricks import Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_MOST_STEPS = 4096
_TORCH_FILES = frozenset(
    f"{name}.py" for name in (
        "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "lbfgs", "nadam", "optimizer", "radam", "rmsprop",
        "rprop", "sgd", "sparse_adam", "_adafactor", "_functional", "lr_scheduler", "clip_grad", "grad_scaler",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Loop:
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

    @property
    def per_parameter(self) -> bool:
        """A loop over parameters reads as many in every step; one over an environment's steps hardly ever does."""
        whole_times = self.tensors > 0 and abs(self.reads / self.tensors - round(self.reads / self.tensors)) < 0.02
        return self.constant and whole_times


class Transfers:
    contract = "C-GPUTRAIN-002"

    def __init__(self) -> None:
        self._spans: dict[int, Counter[int]] = {}
        self._first: dict[int, int] = {}

    def feed(self, record: Record) -> None:
        if isinstance(record, Span) and record.brick.kind is Kind.TRANSFER:
            steps = self._spans.setdefault(record.rank, Counter())
            self._first.setdefault(record.rank, record.id)
            if len(steps) < _MOST_STEPS or record.step in steps:
                steps[record.step] += 1

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = f"{contract.threshold('transfers'):g} transfers a step"
        for rank in story.ranks:
            loop = _loop(story, rank, contract)
            if loop is not None:
                return outcomes.broken(contract, [_reading(loop, contract)], threshold)
        crowd = self._crowd(contract)
        if crowd is not None:
            return outcomes.broken(contract, [crowd], threshold)
        if not any(_on_device(story, rank) for rank in story.ranks):
            why = "no device: nothing was transferred. A run on a GPU records transfers"
            return outcomes.unjudged(contract, why, _reads(story))
        if not self._spans:
            return outcomes.unjudged(contract, "transfers were not recorded; --level deep records them", _reads(story))
        return outcomes.held(contract, f"{max(map(self._usual, self._spans)):g} transfers a step", threshold)

    def _usual(self, rank: int) -> float:
        return float(np.median(list(self._spans[rank].values())))

    def _crowd(self, contract: Contract) -> Violation | None:
        for rank, steps in self._spans.items():
            usual = self._usual(rank)
            if len(steps) >= contract.threshold("looks") and usual >= contract.threshold("many_transfers"):
                first = min(steps)
                symptom = f"{usual:,.0f} transfers between host and device in every step"
                return Violation(
                    contract.id, "extra-transfers", Severity.WARNING, symptom, first, first, "", "transfer", rank,
                    (f"span:{self._first[rank]}@{rank}",), cause="extra-transfers", certainty=0.85, static=True,
                    details={"question": "What makes the steps slow?", "asked": "What makes the steps slow?"},
                    action="Keep on the device what is computed there, and move a batch in one copy.",
                )  # fmt: skip
        return None


class Accumulation:
    contract = "C-GPUACCUM-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        micros = [rank for rank in story.ranks if _micro_batches(story, rank) > 1]
        if not micros:
            return outcomes.vacuous(contract, "one backward a step: nothing is accumulated")
        if not any(_on_device(story, rank) for rank in micros):
            return outcomes.unjudged(contract, "no device: a run on a GPU with --level deep records copies to the host")
        return outcomes.unjudged(contract, "copies inside micro-batches were not recorded; --level deep records them")


def _loop(story: Story, rank: int, contract: Contract) -> _Loop | None:
    looks = story.events("syncs", rank)
    if len(looks) < contract.threshold("looks"):
        return None
    tensors = sum(1 for tensor in story.names.tensors(rank) if tensor.model and story.names.trained(rank, tensor))
    on_device = _on_device(story, rank)
    found: dict[str, list[tuple[int, Event]]] = {}
    moves: dict[str, int] = {}
    for event in looks:
        waited = whole(event.fields["device"]) if on_device and "device" in event.fields else None
        for site, told, moved in _sites(event):
            moves[site] = moves.get(site, 0) + (2 * moved > told)
            # Next to a device, numbers that lie on the host anyway (an optimizer's count of steps) cost nothing.
            reads = told if waited is None else min(told, waited)
            if reads:
                found.setdefault(site, []).append((reads, event))
    loops = [
        _Loop(
            site, int(np.median([reads for reads, _ in seen])), tensors, tuple(event for _, event in seen), on_device,
            on_device and 2 * moves[site] > len(seen), _constant([reads for reads, _ in seen]),
        )
        for site, seen in found.items()
        if len(seen) >= max(contract.threshold("looks"), 0.8 * len(looks))
    ]  # fmt: skip
    guilty = [loop for loop in loops if _too_many(loop, contract)]
    return max(guilty, key=lambda loop: loop.reads, default=None)


def _constant(reads: list[int]) -> bool:
    return max(Counter(reads).values()) >= 0.8 * len(reads)


def _too_many(loop: _Loop, contract: Contract) -> bool:
    if loop.on_device and loop.reads >= contract.threshold("reads_on_device"):
        return True
    # An environment's steps are read one by one too: only a loop over the parameters is a mistake for certain.
    least = max(contract.threshold("reads"), float(loop.tensors))
    return loop.per_parameter and least <= loop.reads <= 8 * loop.tensors


def _sites(event: Event) -> list[tuple[str, int, int]]:
    listed = event.fields.get("sites")
    if not isinstance(listed, list):
        return []
    rows = [[*item, 0] for item in listed if isinstance(item, list) and len(item) >= 2]
    told = [(str(row[0]), whole(row[1]), whole(row[2])) for row in rows]
    return [row for row in told if row[0].rpartition(":")[0].rpartition("/")[2] not in _TORCH_FILES]


def _reading(loop: _Loop, contract: Contract) -> Violation:
    first = loop.events[0]
    what = f"one for each of {loop.tensors:,} parameters" if loop.per_parameter else "in every step"
    times = "" if not loop.per_parameter or loop.reads < 2 * loop.tensors else f", {loop.reads // loop.tensors} times"
    things = "copies {:,} tensors" if loop.moves else "reads {:,} numbers back"
    symptom = f"{loop.site} {things.format(loop.reads)} to the host in a step, {what}{times}"
    evidence = tuple(event.id for event in loop.events[:3])
    waits = "Each read waits until the device has finished everything before it"
    text = f"{waits}." if loop.on_device else f"{waits}; on this CPU it costs little, on a GPU it is the step."
    known = loop.events[min(len(loop.events), int(contract.threshold("looks"))) - 1].step
    cause = "extra-transfers" if loop.moves else "host-sync-in-loop"
    return Violation(
        contract.id, cause, Severity.WARNING, symptom, first.step, known, "",
        "transfer" if loop.moves else "host_sync", first.rank, evidence, cause=cause,
        certainty=0.9 if loop.on_device else 0.85, static=True,
        whys=(Because("Why is that slow?", text, "", evidence),),
        details={"question": "What does the host read in a step?", "asked": "What makes the steps slow?"},
        action="Keep on the device what is computed there, and move a batch in one copy." if loop.moves else
        "Compute on the device and read one number: torch.nn.utils.get_total_norm(gradients), or "
        "torch.stack(values).sum().item() once.",
    )  # fmt: skip


def _reads(story: Story) -> str:
    counts = [whole(event.fields.get("count")) for rank in story.ranks for event in story.events("syncs", rank)]
    return f"{wording.count(int(np.median(counts)), 'host read')} a step" if counts else ""


def _on_device(story: Story, rank: int) -> bool:
    devices = (str(event.fields.get("device", "")) for event in story.events("tensor", rank))
    return any(device.startswith(("cuda", "hip", "xpu", "mps")) for device in devices)


def _micro_batches(story: Story, rank: int) -> int:
    return max((whole(event.fields.get("micro")) + 1 for event in story.events("loss", rank)), default=0)


RULES = (Transfers, Accumulation)
