"""Weights: how large, how much they move, which bits they are, and whether they are still finite.

Enters: the moments before and after an optimizer's step. Leaves: ``weight`` samples with a checksum of the
bits, ``update`` samples with the ratio of the update's size to the weight's (both from the 1K sample), and a
``weight`` event as soon as a non-finite weight is seen.

Weights are looked at in sampled steps, and at once when a loss, gradient or activation was not finite: a
parameter whose weights hold NaN is one whose gradient did, so that the origin is known even where the
gradient itself was not sampled.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry, owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.survey import Row, deliver, measure_all
from brickprof.capture.tensors import on_host
from brickprof.clock import now
from brickprof.records import ROLES

_WEIGHT, _UPDATE = ROLES.index("weight"), ROLES.index("update")
_MOST_NAMED = 32
_CHECKSUM_EVERY = 4  # on a device, where a checksum is a launch per tensor
_counter = time.perf_counter_ns
Watched = list[tuple[Entry, torch.Tensor]]


class WeightsProbe(Probe):
    name = "weights"
    ways = ("full",)
    every_step = ("backward_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._before: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._broken: set[int] = set()
        self._looked_at_escalation = -1
        self._samples = 0

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        """A loss that is not finite: were the weights broken before this step's own gradients?"""
        session = self.session
        if not session.cadence.deep_until > self._looked_at_escalation or hands_off():
            return
        self._looked_at_escalation = session.cadence.deep_until
        watched = self._watch(session.watched())
        if watched:
            self._check(watched, session.step, "before")

    def optimizer_begin(self, optimizer: Any) -> None:
        if not self.session.on.full or self.session.settings.level == "light" or hands_off():
            return
        watched = self._watch(owned(optimizer))
        if watched:
            values = [value for _, value in watched]
            self._before[id(optimizer)] = ([entry.number for entry, _ in watched], self._samples_of(values))

    def optimizer_end(self, optimizer: Any) -> None:
        before = self._before.pop(id(optimizer), None)
        session = self.session
        if hands_off() or not (session.on.full or session.on.deep):
            return
        watched = self._watch(owned(optimizer))
        if not watched:
            return
        if session.settings.level == "light":
            self._check(watched, session.step, "after")
            return
        self._sample(watched, before)

    def _watch(self, parameters: list[torch.Tensor]) -> Watched:
        book = self.session.book
        pairs = ((parameter, tensors.local(parameter)) for parameter in parameters)
        return [(book.entry(parameter), values) for parameter, values in pairs if tensors.watchable(values)]

    # -- finite or not

    def _check(self, watched: Watched, step: int, when: str) -> None:
        entries, values = [entry for entry, _ in watched], [value for _, value in watched]
        exact = values if on_host(values[0]) else None

        def arrived(host: torch.Tensor) -> None:
            self._report(entries, host.tolist(), exact, step, when)

        self.session.readback.read(tensors.guard_norms(values), arrived)

    def _report(
        self, entries: list[Entry], norms: list[float], exact: list[torch.Tensor] | None, step: int, when: str
    ) -> None:
        broken: list[dict[str, Any]] = []
        for i, norm in enumerate(norms):
            if math.isfinite(norm):
                self._broken.discard(entries[i].number)
                continue
            nan, inf, numel = None, None, None
            if exact is not None:
                nan, inf, _, _ = tensors.exact(exact[i])
                numel = exact[i].numel()
                if not nan and not inf:
                    continue
            if entries[i].number not in self._broken:
                broken.append({"tensor": entries[i].number, "nan": nan, "inf": inf, "numel": numel})
        self._tell(broken, len(entries), step, when)

    def _tell(self, broken: list[dict[str, Any]], of: int, step: int, when: str) -> None:
        if broken:
            self._broken.update(item["tensor"] for item in broken)
            fields = {"nonfinite": broken[:_MOST_NAMED], "broken": len(broken), "of": of, "when": when}
            self.session.fact("weight", fields, step=step, always=True)
            self.session.anomaly("weight", {"tensor": broken[0]["tensor"], "value": math.nan}, step=step)

    # -- sampled steps

    def _sample(self, watched: Watched, before: tuple[list[int], torch.Tensor] | None) -> None:
        session = self.session
        start = _counter()
        entries, values = [entry for entry, _ in watched], [value for _, value in watched]
        numbers, lengths = [entry.number for entry in entries], tensors.sample_lengths(values)
        measured = measure_all(session.fused, "weights", values)
        step, stamp, after = session.step, now(), measured.samples
        arrived: dict[str, Any] = {"bits": [None] * len(entries)}
        self._samples += 1
        if on_host(values[0]) or self._samples % _CHECKSUM_EVERY == 1:
            session.readback.read(tensors.checksums(values), lambda host: arrived.update(bits=host.tolist()))

        def rows_arrived(rows: list[Row]) -> None:
            for entry, row, bits in zip(entries, rows, arrived["bits"], strict=True):
                session.journal.sample(
                    (stamp, step, 0, entry.brick, entry.number, _WEIGHT, row.numel, row.nan, row.inf, row.absmax,
                     row.l2, row.mean, row.zero_fraction, None, bits, None, row.histogram)
                )  # fmt: skip
            self._report_rows(entries, rows, step)

        deliver([measured], session.readback, rows_arrived)
        if before is not None and before[0] == numbers and before[1].shape == after.shape:
            numels = [value.numel() for value in values]
            moved = torch.stack([after - before[1], after])

            def moved_arrived(host: torch.Tensor) -> None:
                # In numpy: torch would wake its threads for these few numbers, beside a training that needs them.
                moves = [tensors.laid_out(each, lengths).numpy() for each in host]
                self._write_updates(entries, numels, moves, lengths, stamp, step)

            session.readback.read(moved, moved_arrived)
        session.spend("full", _counter() - start)

    def _samples_of(self, values: list[torch.Tensor]) -> torch.Tensor:
        found = self.session.fused.samples("weights", values)
        return tensors.samples(values) if found is None else found

    def _report_rows(self, entries: list[Entry], rows: list[Row], step: int) -> None:
        found = [
            {"tensor": entry.number, "nan": row.nan, "inf": row.inf, "numel": row.numel}
            for entry, row in zip(entries, rows, strict=True)
            if not row.finite
        ]
        self._broken -= {entry.number for entry, row in zip(entries, rows, strict=True) if row.finite}
        self._tell([item for item in found if item["tensor"] not in self._broken], len(entries), step, "after")

    def _write_updates(
        self, entries: list[Entry], numels: list[int], rows: list[Any], lengths: list[int], stamp: int, step: int
    ) -> None:
        updates, sizes = tensors.segment_norms(rows[0], lengths), tensors.segment_norms(rows[1], lengths)
        befores = tensors.segment_norms(tensors.differences(rows[1], rows[0]), lengths)
        still = tensors.segment_means(rows[0] == 0, lengths)
        found = zip(entries, numels, updates, sizes, befores, still, strict=True)
        for entry, numel, rms, size, before, unmoved in found:
            ratio = rms / size if size else None
            self.session.journal.sample(
                (stamp, step, 0, entry.brick, entry.number, _UPDATE, numel, None, None, None,
                 rms * math.sqrt(numel), None, unmoved, ratio, None, before * math.sqrt(numel), None)
            )  # fmt: skip
