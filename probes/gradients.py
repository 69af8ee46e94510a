"""Gradients: finite or not, how large, and where, before anybody changes them.

Enters: the moments between backward and step. Leaves: ``grad`` events (one norm per tensor, so that a single
NaN among millions is seen and named) and, in sampled steps, a full ``grad`` sample per parameter.

The look is taken at the first of: unscaling, clipping, the optimizer's step. Clipping a NaN norm would
spread the NaN over every gradient, so the place is only known before it. A total norm that the user's own
clipping computed is a free look: it is finite only if every gradient is that was clipped. Where no optimizer exists,
and inside an L-BFGS closure, the look is taken when backward ends. Gradients of several devices are looked at on each.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry, owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.survey import Look, Row, Whose, row, sheet, sheet_of_norms, survey, whose
from brickprof.capture.tensors import on_host
from brickprof.capture.vigil import ROWS_EVERY, Names, Norms, Vigil
from brickprof.clock import now
from brickprof.records import ROLES

_GRAD = ROLES.index("grad")
_MOST_NAMED = 32
_HISTORY = 64
_JUMP = 50.0
_RECKON = 8
_MOST_LACKING = 512
_SHEET = 64
"""Tensors from which on a sheet is worth more than its rows."""
_counter = time.perf_counter_ns


class _Scale:
    """What a scaler multiplies with; on a device it is known later, and -1 until then."""

    __slots__ = ("value",)

    def __init__(self, value: float = -1.0) -> None:
        self.value = value

    def arrived(self, host: torch.Tensor) -> None:
        self.value = float(host)


class _Moment(NamedTuple):
    """When gradients were looked at, and what they were multiplied by."""

    point: str
    step: int
    micro: int
    scaled: _Scale | None
    missing: list[int]

    @property
    def scale(self) -> float | None:
        return None if self.scaled is None else self.scaled.value


class GradientsProbe(Probe):
    name = "gradients"
    ways = ("guard", "full")
    every_step = ("scaling", "unscale_begin")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._seen: set[int] = set()
        self._fresh = False
        self._clipped: set[int] = set()
        """Parameters whose gradients the norm of the user's own clipping has told to be finite."""
        self._lacking: dict[int, None] = {}
        """Steps in which something was applied that nobody had looked at, the last ones."""
        self._sampled = -1
        self._scale: _Scale | None = None
        self._history: deque[float] = deque(maxlen=_HISTORY)
        self._sizes = 0
        self._usual = math.inf
        self._missing: list[int] = []
        self._unscaled = -1
        self._vigil = Vigil(session, self._kept, self._normal, self._normed, self._broken, self._as_usual)
        session.vigil, session.wants = self._watch, self._vigil.wants
        session.idle, session.gradients_passed = self._vigil.idle, self._vigil.passed
        session.tables_every, session.tables_in_passing = self._vigil.every, self._vigil.in_passing
        session.tables_cost = self._vigil.cost

    def step_begin(self, step: int) -> None:
        self._seen.clear()
        self._clipped.clear()

    # -- the moments

    def scaling(self, scaler: Any, loss: Any) -> None:
        scale, on = scaler._scale, self.session.on
        self._scale = _Scale()
        if scale is not None and (on_host(scale) or on.guard or on.full) and not hands_off():
            self.session.readback.read(scale, self._scale.arrived)

    def backward_end(self, losses: Sequence[torch.Tensor], ok: bool) -> None:
        self._fresh = True
        self._seen.clear()
        self._clipped.clear()
        session = self.session
        if ok and (session.in_optimizer or not session.book.optimizers()):
            self._look(session.watched(), "backward")

    def unscale_begin(self, scaler: Any, optimizer: Any) -> None:
        self._unscaled = self.session.step
        self._look(owned(optimizer), "unscale")
        self._scale = None

    def clip_begin(self, parameters: list[torch.Tensor], total: torch.Tensor | None) -> None:
        on = self.session.on
        free = total is not None and not on.full and on_host(total)
        if free and total is not None and not hands_off():
            norm = float(tensors.local(total))
            if math.isfinite(norm):  # the clip event says it: no second event
                self._clipped.update(map(id, parameters))
                self._alarm(norm, [], self.session.step)
                return
            self._look(parameters, "clip", needed=True)
            return
        self._look(parameters, "clip")

    def optimizer_begin(self, optimizer: Any) -> None:
        if not self._fresh:
            return
        given = [*owned(optimizer), *self._unowned()]
        if self._clipped:
            given = [each for each in given if id(each) not in self._clipped and each.grad is not None]
            if not given:
                self.session.judged.add([self.session.step])
                return
        self._look(given, "step")

    def _unowned(self) -> list[torch.Tensor]:
        """Trainable parameters that have a gradient and no optimizer, in sampled steps."""
        session = self.session
        if not session.on.full:
            return []
        owners = {id(parameter) for optimizer in session.book.optimizers() for parameter in owned(optimizer)}
        return [p for p in session.watched() if p.grad is not None and id(p) not in owners]

    # -- steps that are not looked at for their gradients

    def _watch(self, of: Any, *, clipping: bool = False, norms: Norms | None = None) -> None:
        """Gradients on a device are about to be clipped, or applied by an optimizer. What a scaler has unscaled is
        judged when it is applied: the step that an overflow would have made is not made."""
        if not clipping:
            if getattr(of, "found_inf", None) is not None:
                return  # a fused optimizer unscales by itself, and leaves out what has overflowed
            if self._vigil.wants(of):
                self._take(owned(of), None)
            if not self._vigil.covers(of):
                self._lack(self.session.step)
        elif self._unscaled != self.session.step:
            self._take(of, norms)

    def _take(self, parameters: Sequence[torch.Tensor], norms: Norms | None) -> None:
        """A look on each device that they lie on; those of the host wait for a step that is looked at."""
        places = {(each.is_cuda, each.get_device()) for each in parameters}
        if len(places) == 1:
            self._vigil.take(parameters, norms)
            return
        for place in sorted(places):
            self._vigil.take([each for each in parameters if (each.is_cuda, each.get_device()) == place])

    def _lack(self, step: int) -> None:
        self._lacking[step] = None
        if len(self._lacking) > _MOST_LACKING:
            del self._lacking[next(iter(self._lacking))]

    def _normal(self, steps: list[int], sizes: list[float]) -> None:
        """The norms of all gradients of some steps are finite, of all that were looked at."""
        self.session.pulse.norm = sizes[-1]
        self.session.judged.add([step for step in steps if step not in self._lacking] if self._lacking else steps)
        for step, size in zip(steps, sizes, strict=True):
            self._alarm(size, [], step)

    def _as_usual(self, sizes: list[float]) -> bool:
        return math.isfinite(sum(sizes)) and max(sizes) <= _JUMP * self._usual

    def _normed(self, step: int, names: Names, norms: Any) -> None:
        """The norms of a step's gradients have arrived: rows of them, unless some are not finite, which is told."""
        if step % (ROWS_EVERY * self.session.cadence.floor) == 0 and math.isfinite(norms.sum()):
            of = self._whose(names)
            if of is not None and len(of.entries) == len(norms):
                self.session.journal.sheet(
                    sheet_of_norms(norms, of, Look(now(), step, self._vigil.micro_of(step), _GRAD, None))
                )

    def _whose(self, names: Names) -> Whose | None:
        """Whose the rows of a table are; None where the model is gone."""
        if names.found is None and (parameters := names.parameters()):
            names.found = whose([self.session.book.entry(each) for each in parameters])
        found: Whose | None = names.found
        return found

    def _broken(self, step: int, names: Names, norms: list[float], *, clipped: bool = True) -> None:
        """The norm of all gradients of a step was not finite, and these are the norms of each, before a clip or, not
        ``clipped``, before the update."""
        of = self._whose(names)
        if of is None or len(of.entries) != len(norms):
            self.session.readback.dropped += 1  # the model is gone, and nobody had asked for its names
            return
        numbers = [entry.number for entry in of.entries]
        broken = [
            {"tensor": number, "nan": 0 if math.isinf(norm) else None, "inf": None}
            for number, norm in zip(numbers, norms, strict=True)
            if not math.isfinite(norm)
        ]
        at = max(range(len(norms)), key=lambda i: norms[i] if math.isfinite(norms[i]) else -1.0)
        l2 = (
            None if broken else math.sqrt(sum(norm * norm for norm in norms))
        )  # none of them too large, but all of them
        zero = [number for number, norm in zip(numbers, norms, strict=True) if norm == 0]
        moment = _Moment("clip" if clipped else "step", step, self._vigil.micro_of(step), None, [])
        self._record(moment, len(norms), l2, None, numbers[at], broken, zero, learn=True, largest=norms[at])

    def _kept(self, step: int, names: Names, table: Any) -> None:
        """The statistics of a step's gradients have arrived; see ``survey.row`` for their columns."""
        sizes = table[:, 3]
        broken = table[:, :2].any()
        self.session.measured.add([step])
        if not broken:
            self._normal([step], [math.sqrt(sizes @ sizes)])
            if step % (ROWS_EVERY * self.session.cadence.floor):
                return
        moment, of = _Moment("step", step, self._vigil.micro_of(step), None, []), self._whose(names)
        if of is None:
            return
        self._write_table(moment, of, table, at_once=broken)
        if broken:
            self._record_rows(moment, of.entries, [row(each) for each in table.tolist()])

    # -- the look

    def _look(self, parameters: Iterable[torch.Tensor], point: str, *, needed: bool = False) -> None:
        on = self.session.on
        if not (on.guard or on.full or needed) or hands_off():
            return
        watched = self._unseen(parameters)
        if not watched:
            return
        start = _counter()
        full = on.full and not (point == "backward" and self._sampled == self.session.step)
        if full:
            self._sampled = self.session.step
        for part in _by_device(watched):
            (self._full if full else self._guard)(part, point)
        self.session.spend("full" if full else "guard", _counter() - start)

    def _unseen(self, parameters: Iterable[torch.Tensor]) -> list[tuple[Entry, torch.Tensor]]:
        seen, entry, watched = self._seen, self.session.book.entry, []
        self._missing = []
        for parameter in parameters:
            grad = parameter.grad
            if grad is None or id(parameter) in seen:
                if grad is None and parameter.requires_grad and len(self._missing) < _MOST_NAMED:
                    self._missing.append(entry(parameter).number)
                continue
            seen.add(id(parameter))
            if type(grad) is not torch.Tensor or grad.layout is not torch.strided or grad.requires_grad:
                grad = tensors.local(grad)
            if grad.numel() and grad.is_floating_point():
                watched.append((entry(parameter), grad))
        return watched

    def _moment(self, point: str) -> _Moment:
        return _Moment(point, self.session.step, self.session.steps.backwards - 1, self._scale, self._missing)

    def _guard(self, watched: list[tuple[Entry, torch.Tensor]], point: str) -> None:
        entries, values = [entry for entry, _ in watched], [value for _, value in watched]
        moment, readback = self._moment(point), self.session.readback
        if on_host(values[0]):
            readback.read(tensors.guard_norms(values), lambda host: self._judge(moment, entries, host.tolist(), values))
            return
        table = self.session.fused.table("guard", values)
        if table is not None:
            order = table.in_order
            readback.read(table.values, lambda host: self._judge_rows(moment, entries, order(host.numpy())))
            return
        norms = torch.stack([tensors.guard_norms(values).float(), tensors.l2_norms(values).float()])
        readback.read(norms, lambda host: self._judge_late(moment, entries, *host.tolist()))

    def _judge_rows(self, moment: _Moment, entries: list[Entry], table: Any) -> None:
        """The gradients of a device, as our kernel has counted and summed them."""
        rows = [row(of) for of in table.tolist()]
        if moment.step % (ROWS_EVERY * self.session.cadence.floor) == 0:
            self._write_table(moment, whose(entries), table)
        self._record_rows(moment, entries, rows)
        if moment.scale is None and all(each.finite for each in rows):
            self._alarm(math.sqrt(sum(each.l2**2 for each in rows)), [], moment.step)

    def _judge_late(self, moment: _Moment, entries: list[Entry], largest: list[float], norms: list[float]) -> None:
        """The gradients of a device: their largest elements say whether they are finite, their norms how large."""
        broken = [
            {"tensor": entry.number, "nan": None, "inf": None}
            for entry, size in zip(entries, largest, strict=True)
            if not math.isfinite(size)
        ]
        at = max(range(len(largest)), key=lambda i: largest[i] if math.isfinite(largest[i]) else -1.0)
        whole = math.sqrt(sum(norm * norm for norm in norms)) if not broken else math.inf
        zero = [entry.number for entry, size in zip(entries, largest, strict=True) if size == 0]
        l2 = whole if math.isfinite(whole) else None
        self._record(moment, len(norms), l2, largest[at], entries[at].number, broken, zero, learn=True)

    def _judge(self, moment: _Moment, entries: list[Entry], norms: list[float], exact: list[torch.Tensor]) -> None:
        broken: list[dict[str, Any]] = []
        for i in (i for i, norm in enumerate(norms) if not math.isfinite(norm)):
            nan, inf, _, size = tensors.exact(exact[i])
            if nan or inf:
                broken.append({"tensor": entries[i].number, "nan": nan, "inf": inf, "numel": exact[i].numel()})
            else:
                norms[i] = size  # finite after all: its square did not fit into float32
        at = max(range(len(norms)), key=lambda i: norms[i] if math.isfinite(norms[i]) else -1.0)
        l2 = math.sqrt(sum(norm * norm for norm in norms)) if not broken else None
        zero = [entry.number for entry, norm in zip(entries, norms, strict=True) if norm == 0]
        self._record(moment, len(norms), l2, None, entries[at].number, broken, zero, learn=True)

    def _record(
        self,
        moment: _Moment,
        count: int,
        l2: float | None,
        absmax: float | None,
        at: int,
        broken: list[dict[str, Any]],
        zero: list[int],
        *,
        learn: bool,
        largest: float | None = None,
    ) -> None:
        session = self.session
        session.judged.add([moment.step])
        fields: dict[str, Any] = {
            "point": moment.point,
            "tensors": count,
            "l2": l2,
            "absmax": absmax,
            "at": at,
            "nonfinite": broken[:_MOST_NAMED],
            "broken": len(broken),
            "scale": moment.scale,
            "micro": moment.micro,
            "zero": zero[:_MOST_NAMED],
            "zeros": len(zero),
            "missing": moment.missing,
        }
        if broken and largest is not None and math.isfinite(largest):
            fields["largest"] = largest
        session.fact("grad", fields, step=moment.step, always=bool(broken), wanted=True)
        size, scale = l2 if l2 is not None else absmax, moment.scale
        if size is not None:
            session.pulse.norm = size if not scale or scale < 0 else size / scale
        if scale is None:  # an overflow under a loss scale is the scaler's business, until it is not
            self._alarm(size if learn else None, broken, moment.step)

    def _alarm(self, size: float | None, broken: list[dict[str, Any]], step: int) -> None:
        if broken:
            self.session.anomaly("gradient", {"tensor": broken[0]["tensor"], "value": math.nan}, step=step)
            return
        if size is None or size == 0:
            return
        if size > _JUMP * self._usual:
            self.session.anomaly("gradient", {"value": size, "usual": self._usual}, step=step)
        self._history.append(size)
        self._sizes += 1
        if self._sizes >= 20 and self._sizes % _RECKON == 0:
            self._usual = median(self._history)

    # -- sampled steps

    def _full(self, watched: list[tuple[Entry, torch.Tensor]], point: str) -> None:
        session = self.session
        entries, values = [entry for entry, _ in watched], [value for _, value in watched]
        moment, stamp = self._moment(point), now()
        step, micro = moment.step, moment.micro
        reason = "escalation" if step <= session.cadence.deep_until else "first" if step < 3 else "cadence"
        told = {"level": session.settings.level, "reason": reason, "tensors": len(entries), "roles": ["grad"]}
        session.fact("sampled", told, always=True)

        def arrived(rows: list[Row]) -> None:
            self._write(step, entries, rows, stamp=stamp, micro=micro, scale=moment.scale)
            self._record_rows(moment, entries, rows)

        survey(session.fused, "gradients", values, session.readback, arrived)

    def _write(
        self, step: int, entries: list[Entry], rows: list[Row], *, stamp: int, micro: int, scale: float | None
    ) -> None:
        for entry, of in zip(entries, rows, strict=True):
            self.session.journal.sample(
                (stamp, step, micro, entry.brick, entry.number, _GRAD, of.numel, of.nan, of.inf, of.absmax,
                 of.l2, of.mean, of.zero_fraction, None, None, scale, of.histogram or None)
            )  # fmt: skip

    def _write_table(self, moment: _Moment, of: Whose, table: Any, *, at_once: bool = False) -> None:
        step, micro, scale = moment.step, moment.micro, moment.scale
        if len(of.entries) >= _SHEET:
            written = sheet(table, of, Look(now(), step, micro, _GRAD, scale))
            self.session.journal.sheet(written, at_once=at_once)
        else:
            rows = [row(each) for each in table.tolist()]
            self._write(step, of.entries, rows, stamp=now(), micro=micro, scale=scale)

    def _record_rows(self, moment: _Moment, entries: list[Entry], rows: list[Row]) -> None:
        self.session.measured.add([moment.step])
        broken = [
            {"tensor": entry.number, "nan": of.nan, "inf": of.inf, "numel": of.numel}
            for entry, of in zip(entries, rows, strict=True)
            if not of.finite
        ]
        largest = max(range(len(rows)), key=lambda i: rows[i].absmax if rows[i].finite else -1.0)
        l2 = None if broken else math.sqrt(sum(of.l2**2 for of in rows))
        zero = [entry.number for entry, of in zip(entries, rows, strict=True) if of.l2 == 0]
        absmax, at = rows[largest].absmax, entries[largest].number
        # What is alarming is learnt from the guard alone: sampled steps have reasons of their own.
        self._record(moment, len(rows), l2, absmax, at, broken, zero, learn=False)


def _by_device(watched: list[tuple[Entry, torch.Tensor]]) -> Iterable[list[tuple[Entry, torch.Tensor]]]:
    """What lies on the host first, then each device's."""
    places = {value.get_device() for _, value in watched}
    if len(places) == 1:
        return [watched]
    return [[each for each in watched if each[1].get_device() == place] for place in sorted(places)]
