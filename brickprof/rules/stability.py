"""C-TRAINSTABLE-001: loss, weights and the gradients that are applied stay finite.

Enters: records, one at a time, in about the order of writing. Leaves: one result; a broken run gives one
violation that names the first brick and step in causal order and carries all that follows from it.

What is healthy although something in it is not finite: a step that the loss scaler skipped; a gradient
that was repaired or never applied; a line search that tried a bad point; infinities in a block's output
(attention masks) while everything downstream stays finite.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from brickprof.bricks import Brick
from brickprof.contracts import registry
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.records import Event, Record, Sample, Span
from brickprof.rules import ledger, sightings, wording
from brickprof.rules.causality import Anomaly, Depth, Stage, key
from brickprof.rules.ledger import Ledger, Step
from brickprof.rules.many import Many
from brickprof.rules.names import NAMING, Key, Names, number

if TYPE_CHECKING:
    from brickprof.run import Run

CONTRACT = "C-TRAINSTABLE-001"
_KEPT = 512
_SETTLED_AFTER = 64
_CONCERNED = ledger.KINDS | sightings.KINDS
_PLAIN = {"loss": "value", "clip": "norm", "optimizer": "skipped"}
"""What most events of a run are, and the field that says whether there is something to one."""


class Stability:
    """The rule. Memory is bounded: recent steps, the first sightings of each stage, and counts."""

    contract = CONTRACT
    telling = True

    def __init__(self, contract: Contract | None = None) -> None:
        self._names = Names()
        self._depth = Depth()
        self._ranks: dict[int, Ledger] = {}
        self._seen: dict[Stage, list[Anomaly]] = {stage: [] for stage in Stage}
        self._outputs: deque[Anomaly] = deque()
        self._facts: dict[tuple[int, int], Step] = {}
        self._habits: dict[tuple[int, Brick | None, Stage], set[str]] = {}
        self._counts: dict[Stage, int] = {}
        self._waiting: list[Event] = []
        self._newest = 0
        self._samples = 0
        self._limit = (contract or registry.find(CONTRACT)).threshold("skipped_in_a_row")

    def feed(self, record: Record) -> None:
        if isinstance(record, Event):
            if record.kind in NAMING:
                self._names.feed(record)
            if self._waiting and record.kind in _CONCERNED:
                self._catch_up()
            self._event(record)
        elif isinstance(record, Sample):
            if self._waiting and (record.nan or record.inf):
                self._catch_up()
            self._sample(record)
        elif isinstance(record, Span):
            self._depth.feed(record)

    def follow(self, many: Many) -> None:
        """What feeding them one by one comes to; plain losses and updates wait until something else is told."""
        plain, isfinite = _PLAIN, math.isfinite
        for record in many.records:
            if type(record) is Event and record.kind in plain and record.rank >= 0:
                kind = record.kind
                value = record.fields.get(plain[kind])
                # A clip of a finite norm concerns nothing; a finite loss and an update that was made the ledger alone.
                if not value if kind == "optimizer" else type(value) is float and isfinite(value):
                    if kind != "clip":
                        if record.rank not in self._ranks:
                            self._ranks[record.rank] = Ledger()
                        self._waiting.append(record)
                    continue
            self.feed(record)

    def _catch_up(self) -> None:
        """Enters what waited."""
        waiting, self._waiting = self._waiting, []
        for rank in {event.rank for event in waiting}:
            events = [event for event in waiting if event.rank == rank]
            self._rank(rank, min([event.step for event in events]))
            for event in ledger.skimmed(self._ranks[rank], events):
                ledger.enter(self._rank(rank, event.step), event)

    # -- taking in

    def _event(self, event: Event) -> None:
        if event.rank < 0:
            return
        if event.kind in ledger.KINDS:
            ledger.enter(self._rank(event.rank, event.step), event)
        for anomaly in sightings.in_event(event, self._names):
            self._note(anomaly)

    def _sample(self, sample: Sample) -> None:
        rank = self._rank(sample.rank, sample.step)
        if sample.nan or sample.inf:
            for anomaly in sightings.in_sample(sample, self._names):
                self._note(anomaly)
        elif sample.nan == 0:
            self._samples += 1
            if sample.role == "weight":
                tensor = self._names.tensor(sample.rank, sample.tensor)
                rank.finite_weights[sample.brick.model, tensor.name] = sample.step
            elif sample.role in ("grad", "grad_local"):
                rank.last_finite_grad = max(rank.last_finite_grad, sample.step)

    def _rank(self, rank: int, step: int) -> Ledger:
        known = self._ranks.get(rank)
        if known is None:
            known = self._ranks[rank] = Ledger()
        if known.first_step is None or step < known.first_step:
            known.first_step = step
        if step > self._newest:
            self._newest = step
        return known

    def _note(self, anomaly: Anomaly) -> None:
        self._counts[anomaly.stage] = self._counts.get(anomaly.stage, 0) + 1
        # Keeps the facts of this step although later steps push it out of the recent ones.
        if len(self._facts) < 4 * _KEPT:
            facts = self._rank(anomaly.rank, anomaly.step).at(anomaly.step)
            self._facts[anomaly.rank, anomaly.step] = facts
        if anomaly.stage in (Stage.DATA, Stage.FORWARD):
            self._outputs.append(anomaly)
            onset = self._outputs[0].step == anomaly.step or bool(self._seen[Stage.LOSS])
            if len(self._outputs) > _KEPT and onset:
                self._outputs.pop()  # of very many, the first ones say where it began
            elif len(self._outputs) > _KEPT:
                self._settle(self._outputs.popleft())
            return
        seen = self._seen[anomaly.stage]
        if len(seen) < _KEPT:
            seen.append(anomaly)

    def _settle(self, output: Anomaly) -> None:
        """An output that is old, and after which training went on, is a habit of its block."""
        if self._newest - output.step < _SETTLED_AFTER and self._seen[Stage.LOSS]:
            return
        self._habit(output)
        self._facts.pop((output.rank, output.step), None)

    def _habit(self, output: Anomaly) -> None:
        self._habits.setdefault((output.rank, output.brick, output.stage), set()).update(output.kinds)

    # -- judging

    def finish(self, run: Run | None) -> ContractResult:
        self._catch_up()
        hard = [anomaly for stage in Stage for anomaly in self._seen[stage] if self._breaks(anomaly)]
        hard.sort(key=lambda anomaly: key(anomaly, self._depth))
        violation = self._violation(hard) if hard else self._lesser()
        losses = sum(rank.finite_losses for rank in self._ranks.values())
        if violation is None:
            return self._clean(losses)
        broken = violation.severity is not Severity.INFO
        verdict = Verdict.FAIL if broken else self._clean(losses).verdict
        return ContractResult(CONTRACT, verdict, violation.symptom, "all finite", violation.symptom, (violation,))

    def _clean(self, losses: int) -> ContractResult:
        grads = any(rank.last_finite_grad >= 0 for rank in self._ranks.values())
        skipped = sum(rank.skipped for rank in self._ranks.values())
        if losses or grads or self._samples:
            seen = wording.count(losses, "finite loss", "finite losses") if losses else "no loss, finite gradients"
            observed = f"{seen}, nothing non-finite applied"
            why = f"{wording.count(skipped, 'step')} skipped by the loss scaler" if skipped else ""
            return ContractResult(CONTRACT, Verdict.PASS, observed, "all finite", why)
        if any(rank.optimizers for rank in self._ranks.values()):
            why = "updates were seen, but no loss and no gradient was captured"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", "all finite", why)
        return ContractResult(CONTRACT, Verdict.VACUOUS, "", "all finite", "no training was observed")

    def _fact(self, anomaly: Anomaly) -> Step:
        return self._facts.get((anomaly.rank, anomaly.step)) or self._rank(anomaly.rank, anomaly.step).at(anomaly.step)

    def _breaks(self, anomaly: Anomaly) -> bool:
        """Whether ``anomaly`` alone is damage."""
        step, rank = self._fact(anomaly), self._ranks[anomaly.rank]
        if anomaly.stage is Stage.LOSS:
            return not self._loss_is_harmless(anomaly, step, rank)
        if anomaly.stage is Stage.WEIGHTS:
            return self._weight_is_damage(anomaly, rank)
        if step.skipped or not step.applied or self._left_no_trace(anomaly, rank):
            return False
        if anomaly.stage is Stage.OPTIMIZER:
            return True
        if anomaly.stage is Stage.BACKWARD:
            return step.used_finite is not True
        return anomaly.stage is Stage.CLIP and bool(anomaly.nan) and step.used_finite is not True

    @staticmethod
    def _left_no_trace(grad: Anomaly, rank: Ledger) -> bool:
        """Its weights were seen to be finite after that step, and training went on: repaired, or not used."""
        if grad.tensor:
            after = rank.finite_weights.get(_key(grad), -1)
        else:
            after = max(rank.finite_weights.values(), default=-1)
        return after >= grad.step and rank.last_finite_loss > grad.step

    @staticmethod
    def _loss_is_harmless(loss: Anomaly, step: Step, rank: Ledger) -> bool:
        if step.last_loss_finite:
            return True  # a line search, or one micro-batch: what it did, if anything, shows elsewhere
        went_on = rank.last_finite_loss > loss.step
        scaled = (number(loss.details.get("scale")) or 1.0) != 1.0
        if step.skipped and scaled and not loss.nan and went_on:
            return True  # the scaled loss overflowed, and the scaler did its work
        return not step.applied and went_on

    @staticmethod
    def _weight_is_damage(weight: Anomaly, rank: Ledger) -> bool:
        if weight.details.get("trainable") is False:
            return False
        by_design = not weight.nan and rank.first_step is not None and weight.step <= rank.first_step
        return not (by_design and rank.last_finite_loss > weight.step)

    def _violation(self, hard: list[Anomaly]) -> Violation:
        first = hard[0]
        origin = self._origin(first)
        losses = [anomaly for anomaly in hard if anomaly.stage is Stage.LOSS]
        recovered = bool(losses) and self._ranks[losses[0].rank].last_finite_loss > losses[0].step
        shown = losses[0] if losses else first
        symptom = wording.symptom(shown, self._broken_losses(), recovered, self._names)
        bracket = self._bracket(origin)
        if bracket:
            symptom += f" ({bracket})"
        chain = self._chain(origin, hard)
        return Violation(
            CONTRACT, "nonfinite", Severity.ERROR, symptom, max(origin.step, 0), max(first.step, 0),
            self._where(origin), "block", origin.rank, tuple(dict.fromkeys(a.evidence for a in chain)),
            {"origin": origin, "chain": chain, "bracket": bracket, "recovered": recovered, "shown": shown},
        )  # fmt: skip

    def _broken_losses(self) -> int:
        return max((rank.broken_losses for rank in self._ranks.values()), default=0)

    def _where(self, origin: Anomaly) -> str:
        if origin.stage is Stage.LOSS:
            return "loss"
        if origin.stage is Stage.DATA and origin.brick is None:
            return "data"
        return self._names.show(origin.brick) or origin.tensor

    def _origin(self, first: Anomaly) -> Anomaly:
        """The causally first sighting that can have led to ``first``."""
        limit = key(first, self._depth)
        for output in self._outputs:
            if output.step < first.step - 1:
                self._habit(output)
        candidates = [first]
        for stage in (Stage.LOSS, Stage.BACKWARD, Stage.CLIP, Stage.OPTIMIZER):
            candidates += [soft for soft in self._seen[stage] if self._led_to(soft, first)]
        candidates += [soft for soft in self._outputs if self._led_to(soft, first) and self._is_new(soft)]
        return min((a for a in candidates if key(a, self._depth) <= limit), key=lambda a: key(a, self._depth))

    def _led_to(self, soft: Anomaly, first: Anomaly) -> bool:
        if not first.step - 1 <= soft.step <= first.step:
            return False
        step = self._fact(soft)
        if soft.step == first.step:
            return not step.skipped or first.stage is Stage.LOSS
        repaired = soft.stage in (Stage.BACKWARD, Stage.CLIP) and step.used_finite is True
        applied = step.applied or not step.told or not self._ranks[soft.rank].optimizers
        return applied and not step.skipped and not repaired

    def _is_new(self, output: Anomaly) -> bool:
        return not output.kinds <= self._habits.get((output.rank, output.brick, output.stage), set())

    def _chain(self, origin: Anomaly, hard: list[Anomaly]) -> list[Anomaly]:
        """The origin, then the first sighting of each later stage: what followed, without its repetitions."""
        chain, stages = [origin], {(origin.step, origin.stage)}
        for anomaly in sorted((*hard, *self._outputs), key=lambda a: key(a, self._depth)):
            known = (anomaly.step, anomaly.stage) in stages
            if not known and key(anomaly, self._depth) > key(origin, self._depth) and len(chain) < 8:
                stages.add((anomaly.step, anomaly.stage))
                chain.append(anomaly)
        return chain

    def _bracket(self, origin: Anomaly) -> str:
        rank = self._ranks[origin.rank]
        if origin.stage is Stage.WEIGHTS:
            good = rank.finite_weights.get(_key(origin), -1)
        elif origin.stage in (Stage.BACKWARD, Stage.OPTIMIZER, Stage.CLIP):
            good = rank.last_finite_grad
        else:
            return ""
        if not 0 <= good < origin.step - 1:
            return ""
        return f"between step {good + 1:,} and {origin.step:,}: the steps between were not looked at"

    def _lesser(self) -> Violation | None:
        """What is worth a word although it did no damage."""
        for number_of, rank in self._ranks.items():
            if rank.skipped_in_a_row >= self._limit and rank.last_skipped >= rank.last_loss - 1:
                return self._never_steps(number_of, rank)
        for anomaly in self._seen[Stage.LOSS]:
            step, rank = self._fact(anomaly), self._ranks[anomaly.rank]
            if anomaly.nan and not step.applied and not step.last_loss_finite:
                return self._passing(anomaly, rank)
        grads = [*self._seen[Stage.BACKWARD], *self._seen[Stage.OPTIMIZER]]
        for anomaly in sorted(grads, key=lambda a: key(a, self._depth)):
            step, rank = self._fact(anomaly), self._ranks[anomaly.rank]
            if rank.optimizers and not (step.skipped or step.applied) and rank.last_finite_loss <= anomaly.step:
                return self._passing(anomaly, rank)
        return None

    def _passing(self, anomaly: Anomaly, rank: Ledger) -> Violation:
        symptom = wording.symptom(anomaly, 1, True, self._names) + "; nothing of it was applied"
        return Violation(
            CONTRACT, "nonfinite", Severity.WARNING, symptom, anomaly.step, anomaly.step,
            self._where(anomaly), "block", anomaly.rank, (anomaly.evidence,),
            {"origin": anomaly, "chain": [anomaly], "bracket": "", "recovered": True, "shown": anomaly},
        )  # fmt: skip

    def _never_steps(self, number_of: int, rank: Ledger) -> Violation:
        grads = [a for a in (*self._seen[Stage.BACKWARD], *self._seen[Stage.OPTIMIZER]) if a.rank == number_of]
        origin = min(grads, key=lambda a: key(a, self._depth), default=None) or Anomaly(
            Stage.UNSCALE, rank.last_skipped - rank.skipped_in_a_row + 1, rank=number_of
        )
        symptom = f"the last {rank.skipped_in_a_row:,} steps were all skipped by the loss scaler"
        details: dict[str, Any] = {
            "origin": origin, "chain": [origin], "bracket": "", "recovered": False, "shown": origin,
            "skipped_in_a_row": rank.skipped_in_a_row,
        }  # fmt: skip
        first = rank.last_skipped - rank.skipped_in_a_row + 1
        evidence = (origin.evidence,) if origin.evidence else ()
        return Violation(
            CONTRACT, "nonfinite", Severity.ERROR, symptom, first, first, self._where(origin), "block",
            number_of, evidence, details,
        )  # fmt: skip


def _key(anomaly: Anomaly) -> Key:
    return anomaly.brick.model if anomaly.brick else "", anomaly.tensor


RULE = Stability
