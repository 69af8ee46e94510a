"""C-GRADFLOW-001: every parameter that is being trained gets a gradient.

Enters: records, one at a time. Leaves: one result; the parameters of one model that never got a
gradient are one violation, which names the block nearest the loss: the path ends there, and what lies
below it follows.

A parameter is judged over all steps in which it was looked at, and only by steps that prove something:
three updates came before (a zero-initialised branch has opened), no loss of the step was exactly zero,
its optimizer stepped, and other parameters of its model had a gradient. A block that did not run in a
step proves nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brickprof.contracts import registry
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.records import Event, Record, Sample
from brickprof.rules import wording
from brickprof.rules.causality import Depth
from brickprof.rules.many import Many
from brickprof.rules.names import NAMING, Key, Names, Tensor, number, whole
from brickprof.rules.use import Use

if TYPE_CHECKING:
    from brickprof.run import Run

CONTRACT = "C-GRADFLOW-001"
_KEPT = 64
_MOST_STEPS = 8192
_TINY = 16
_GRADS = ("grad", "grad_local")
_WAITING = frozenset({"loss", "optimizer"})


@dataclass(slots=True)
class _Parameter:
    """A parameter that has not shown a gradient yet. ``steps`` maps a step to (rank, evidence id)."""

    steps: OrderedDict[int, tuple[int, str]] = field(default_factory=OrderedDict)
    none: int = 0
    seen: set[int] = field(default_factory=set)
    """All steps that have been told, also those that are no longer among ``steps``."""

    def without(self, step: int, rank: int, evidence: str, *, none: bool) -> None:
        if step in self.seen or len(self.seen) >= _MOST_STEPS:
            return
        self.seen.add(step)
        self.none += none
        if len(self.steps) >= _KEPT:
            # Keeps the oldest half and the newest half.
            self.steps.pop(next(key for place, key in enumerate(self.steps) if place == _KEPT // 2))
        self.steps[step] = (rank, evidence)


class GradFlow:
    """The rule. A parameter costs memory only until its first gradient."""

    contract = CONTRACT
    telling = True

    def __init__(self, contract: Contract | None = None) -> None:
        contract = contract or registry.find(CONTRACT)
        self._needed = int(contract.threshold("observations"))
        self._needed_unproved = int(contract.threshold("observations_without_proof_of_use"))
        self._needed_tiny = int(contract.threshold("observations_of_a_tiny_tensor"))
        self._updates_before = int(contract.threshold("updates_before"))
        self._names = Names()
        self._depth = Depth()
        self._use = Use()
        self._suspects: dict[Key, _Parameter] = {}
        self._flowing: dict[Key, str] = {}
        self._alive: dict[str, dict[int, None]] = {}
        self._zero_losses: set[tuple[int, int]] = set()
        self._updates: dict[int, list[int]] = {}
        self._stepped: dict[tuple[int, int], set[Any]] = {}
        self._first_step: dict[int, int] = {}
        self._trained = False
        self._looks: dict[int, OrderedDict[int, str]] = {}
        self._deep_from = self._deep_until = -1
        self._waiting: list[Event] = []

    def feed(self, record: Record) -> None:
        if isinstance(record, Event):
            if record.rank >= 0:
                if record.kind in NAMING:
                    self._names.feed(record)
                if record.kind in _WAITING:
                    self._catch_up()
                self._event(record)
        elif isinstance(record, Sample):
            self._sample(record)
        else:
            self._depth.feed(record)
            if record.step > self._deep_until or record.step <= self._deep_from:
                self._use.feed(record)  # deep capture times other blocks: the two do not mix

    def follow(self, many: Many) -> None:
        """What feeding them one by one comes to; losses and updates wait until a parameter lacks a gradient."""
        for record in many.others:
            self.feed(record)
        waiting = [*many.each("loss"), *many.each("optimizer")]
        self._trained = self._trained or bool(waiting)
        self._waiting += waiting

    def _catch_up(self) -> None:
        """Takes in the losses and updates that waited: beside other records their order does not matter."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._event(event)

    # -- taking in

    def _event(self, event: Event) -> None:
        if event.kind in ("loss", "optimizer", "grad"):
            self._trained = True
        if event.kind == "loss":
            self._first_step.setdefault(event.rank, event.step)
            if number(event.fields.get("value")) == 0.0 and len(self._zero_losses) < _MOST_STEPS:
                self._zero_losses.add((event.rank, event.step))
        elif event.kind == "optimizer":
            self._update(event)
        elif event.kind == "sampled" and "grad" in _list(event.fields.get("roles")):
            looks = self._looks.setdefault(event.rank, OrderedDict())
            if len(looks) < _MOST_STEPS:
                looks.setdefault(event.step, event.id)
        elif event.kind == "anomaly":
            self._deep_from, self._deep_until = event.step, whole(event.fields.get("until"), -1)

    def _update(self, event: Event) -> None:
        rates = event.fields.get("lr")
        moved = not isinstance(rates, list) or not rates or any((number(rate) or 0.0) > 0 for rate in rates)
        updates = self._updates.setdefault(event.rank, [])
        if event.fields.get("skipped") or not moved:
            return
        if event.step not in updates and len(updates) < self._updates_before:
            updates.append(event.step)
            if whole(event.fields.get("count")) > self._updates_before:  # some were not written
                updates += [event.step] * (self._updates_before - len(updates))
        if len(self._stepped) < _MOST_STEPS:
            self._stepped.setdefault((event.rank, event.step), set()).add(whole(event.fields.get("optimizer")))

    def _sample(self, sample: Sample) -> None:
        if sample.role not in _GRADS or sample.absmax is None:
            return
        self._trained = True
        key = self._names.tensor(sample.rank, sample.tensor).key
        if key[0] == "" and sample.brick.model:
            key = (sample.brick.model, sample.tensor)
        if sample.absmax == 0.0 and not sample.nan:
            self._lacks(key, sample.step, sample.rank, sample.id, none=sample.numel == 0)
        else:
            self._flows(key, sample)

    def _flows(self, key: Key, sample: Sample) -> None:
        if key not in self._flowing:
            self._suspects.pop(key, None)
            self._flowing[key] = sample.id
        alive = self._alive.setdefault(key[0], {})
        if len(alive) < _MOST_STEPS:
            alive[sample.step] = None

    def _lacks(self, key: Key, step: int, rank: int, evidence: str, *, none: bool) -> None:
        if key in self._flowing:
            return
        self._suspects.setdefault(key, _Parameter()).without(step, rank, evidence, none=none)

    # -- judging

    def finish(self, run: Run | None) -> ContractResult:
        threshold = "max|grad| > 0"
        if not self._trained:
            why = "no training was observed"
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, why)
        self._add_missing()
        broken: dict[str, list[tuple[Tensor, list[int]]]] = {}
        idle, open_ones = 0, 0
        for tensor, suspect in self._judged():
            proof = list(self._proof(tensor, suspect))
            if len(proof) >= self._enough(tensor):
                broken.setdefault(tensor.model, []).append((tensor, proof))
            elif self._use.idle(tensor.brick):
                idle += 1
            else:
                open_ones += 1
        if broken:
            violations = tuple(self._violation(model, found) for model, found in broken.items())
            observed = "; ".join(violation.symptom for violation in violations)
            return ContractResult(CONTRACT, Verdict.FAIL, observed, threshold, observed, violations)
        if not self._flowing:
            why = "no gradient of a parameter was looked at" if not self._suspects else _TOO_FEW
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, why)
        observed = f"{wording.count(len(self._flowing), 'parameter')} with a gradient"
        reasons = [
            f"{wording.count(count, 'parameter')} without one: {reason}"
            for count, reason in ((open_ones, _TOO_FEW), (idle, "their blocks did not run in every step"))
            if count
        ]
        why = "; ".join(reasons)
        return ContractResult(CONTRACT, Verdict.PASS, observed, threshold, why)

    def _add_missing(self) -> None:
        """In a step whose gradients were all sampled, a trainable parameter without a sample had none."""
        for rank, looks in self._looks.items():
            for tensor in self._names.tensors(rank):
                if tensor.key in self._flowing or not tensor.sampled or not self._names.trained(rank, tensor):
                    continue
                for step, evidence in looks.items():
                    if self._owner_stepped(rank, step, tensor.number):
                        self._lacks(tensor.key, step, rank, evidence, none=True)

    def _judged(self) -> Iterator[tuple[Tensor, _Parameter]]:
        """The suspects that somebody trains: owned by an optimizer, or of a model trained without any."""
        for key, suspect in self._suspects.items():
            rank = next(iter(suspect.steps.values()))[0]
            tensor = self._find(key, rank)
            if tensor is None or not self._names.trained(rank, tensor) or self._cancels(tensor, suspect):
                continue
            if not self._names.knows_owners(rank) or tensor.number in self._names.owned(rank):
                yield tensor, suspect

    def _cancels(self, tensor: Tensor, suspect: _Parameter) -> bool:
        """A bias whose gradient is zero while its layer's weight has one: the loss does not feel a shift there.

        So it is with the last bias of a critic that compares two means, or of logits under a softmax of differences.
        """
        return tensor.name.rpartition(".")[2] == "bias" and not suspect.none and self._beside_flowing(tensor)

    def _beside_flowing(self, tensor: Tensor) -> bool:
        """Whether another parameter of the same module has a gradient."""
        module = tensor.name.rpartition(".")[0]
        return bool(module) and any(
            model == tensor.model and name.rpartition(".")[0] == module for model, name in self._flowing
        )

    def _find(self, key: Key, rank: int) -> Tensor | None:
        for tensor in self._names.tensors(rank):
            if tensor.key == key:
                return tensor
        return None

    def _enough(self, tensor: Tensor) -> int:
        if not self._proved_in_use(tensor):
            return self._needed_unproved
        return self._needed_tiny if 0 < tensor.numel < _TINY else self._needed

    def _proved_in_use(self, tensor: Tensor) -> bool:
        if self._use.always_ran(tensor.brick):
            return True
        return self._beside_flowing(tensor)

    def _proof(self, tensor: Tensor, suspect: _Parameter) -> Iterator[int]:
        """The steps in which ``tensor`` should have had a gradient and had none."""
        if self._use.idle(tensor.brick):
            return
        self._catch_up()
        alive = self._alive.get(tensor.model, {})
        for step, (rank, _) in suspect.steps.items():
            if step not in alive or (rank, step) in self._zero_losses:
                continue
            if self._after_updates(rank, step) and self._owner_stepped(rank, step, tensor.number):
                yield step

    def _after_updates(self, rank: int, step: int) -> bool:
        updates = self._updates.get(rank)
        if updates is None:
            return step - self._first_step.get(rank, 0) >= self._updates_before
        return len(updates) >= self._updates_before and step > updates[-1]

    def _owner_stepped(self, rank: int, step: int, number_of: int) -> bool:
        self._catch_up()
        stepped = self._stepped.get((rank, step))
        owners = self._names.owners(rank, number_of)
        if stepped is None:
            return self._names.optimizers(rank) <= 1
        return not owners or not stepped.isdisjoint(owners)

    def _violation(self, model: str, found: list[tuple[Tensor, list[int]]]) -> Violation:
        tensors = [tensor for tensor, _ in found]
        last = max(tensors, key=self._nearness)
        suspect = self._suspects[last.key]
        proof = next(steps for tensor, steps in found if tensor is last)
        flowing = [key for key in self._flowing if key[0] == model]
        others = [each for key, each in self._suspects.items() if key[0] == model and key != last.key]
        rank = suspect.steps[proof[0]][0]
        observed_steps = sorted(suspect.steps)
        evidence = tuple(suspect.steps[step][1] for step in proof[:4])
        symptom = (
            f"no gradient reached {self._some(tensors)} "
            f"in {wording.count(len(observed_steps), 'observed step')} "
            f"({observed_steps[0]:,} to {observed_steps[-1]:,}), "
            f"while {wording.count(len(flowing), 'other parameter')} had one"
        )
        details = {
            "tensors": tuple(self._names.show_tensor(tensor) for tensor in tensors),
            "none": suspect.none > 0, "flowing": len(flowing), "steps": tuple(proof),
            "flow_evidence": tuple(self._flowing[key] for key in flowing[:2]), "tensor": last.name,
            "brick": last.brick, "given_zeros": self._given_zeros(last, suspect),
            "missing_too": sum(each.none > 0 for each in others), "zero_too": sum(not each.none for each in others),
        }  # fmt: skip
        return Violation(
            CONTRACT, "no-gradient", Severity.ERROR, symptom, min(observed_steps), proof[0],
            self._names.show(last.brick) or last.name, "block", rank, evidence, details,
        )  # fmt: skip

    def _given_zeros(self, tensor: Tensor, suspect: _Parameter) -> str:
        """The bias of the same layer, where that has a gradient and the weight one of exactly zero: one is what came
        back to the layer, summed, the other that times what the layer was given."""
        layer, _, name = tensor.name.rpartition(".")
        bias = f"{layer}.bias" if layer else "bias"
        return bias if name == "weight" and not suspect.none and (tensor.model, bias) in self._flowing else ""

    def _nearness(self, tensor: Tensor) -> tuple[int, int]:
        """Greater is nearer to the loss."""
        return self._depth.of(tensor.brick) or 0, tensor.number

    def _some(self, tensors: list[Tensor]) -> str:
        names = [self._names.show_tensor(tensor) for tensor in tensors[:3]]
        more = f" and {wording.count(len(tensors) - 3, 'more parameter')}" if len(tensors) > 3 else ""
        return ", ".join(names) + more


_TOO_FEW = "too few steps to judge by"


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


RULE = GradFlow
