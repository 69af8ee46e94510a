"""The optimizer's own memory: do its moments follow from the gradients it was given?

Enters: the first update of each optimizer, and the first that is seen after a resume. Leaves: a ``moments`` event: how
far the first moment is from ``b1 m + (1 - b1) g``, the second from ``b2 v + (1 - b2) g^2``, relative to these, on up
to 1,024 elements of each tensor; whether a state was there before the first update; how many of its elements are no
numbers although everything they were made of is, how far it is beyond gradients and weights, and how much of a fresh
first moment is no multiple of them: whatever an optimizer's own rule is, a moment is made of these.

The gradients are those at the beginning of the update or those at its end, whichever the moments follow from: a closure
or a hook of the script's own may make or change them in between, an optimizer may clear them. An update that a loss
scaler had left out is none, and the next one is looked at.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry
from brickprof.capture.glance import Array
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host

_FIRST = ("exp_avg", "m", "moment1", "momentum_buffer", "momentum", "velocity", "buf")
_SECOND = ("exp_avg_sq", "v", "square_avg", "moment2")
_DECOUPLED = ("AdamW", "Lion", "Adafactor")
_MOST_TENSORS = 1024
"""Of 300 tensors the look takes 80 ms of a CPU core and up to 30 MB, once."""
_SQUARES = 1e18
"""The square of what is larger is no float32."""
_ENOUGH = 32
_MOST_TRIES = 16
"""Updates that are waited for: those of which no gradient is there to be seen, and those that are left out."""


class _Rule(NamedTuple):
    """How one group's moments should move."""

    b1: float | None
    b2: float | None
    decays: tuple[float, ...]
    """What may be added of the weights: an optimizer of one's own may decay either way."""
    sign: float
    own: bool = False
    """Of an optimizer that is none of torch's."""


class _Watched(NamedTuple):
    entry: Entry
    parameter: torch.Tensor
    rule: _Rule
    length: int
    done: float | None


class _Before(NamedTuple):
    watched: list[_Watched]
    gradients: torch.Tensor
    """NaN where there is none, or none yet."""
    given: bool
    """Whether there is one at all."""
    weights: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


class MomentsProbe(Probe):
    name = "moments"
    ways = ("facts", "full", "guard")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._done: set[int] = set()
        self._tries: dict[int, int] = {}
        self._before: dict[int, _Before] = {}
        self._depth = 0
        """A step that calls its parent class's step is one update: the outermost counts."""

    def step_begin(self, step: int) -> None:
        self._depth = 0

    def optimizer_begin(self, optimizer: Any) -> None:
        self._depth += 1
        number = self.session.book.optimizer(optimizer)
        if number in self._done or hands_off():
            return
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        watched = self._watch(optimizer) if tries <= _MOST_TRIES else []
        if not watched:
            return
        gradients, scale = _gradients(watched), getattr(optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):  # a fused optimizer takes it out by itself
            gradients = gradients / scale.detach().to(gradients.device)
        weights = tensors.samples([tensors.local(each.parameter) for each in watched])
        self._before[number] = _Before(
            watched, gradients, _given(watched), weights,
            _states(optimizer, watched, _FIRST), _states(optimizer, watched, _SECOND),
        )  # fmt: skip

    def _watch(self, optimizer: Any) -> list[_Watched]:
        found: list[_Watched] = []
        for group in optimizer.param_groups:
            rule = _rule(optimizer, group)
            for parameter in group["params"] if rule is not None else ():
                if not parameter.requires_grad or len(found) >= _MOST_TENSORS:
                    continue
                values = tensors.local(parameter)
                if rule is not None and tensors.watchable(values):
                    length = min(tensors.SAMPLE, values.numel())
                    count = _done(optimizer.state.get(parameter, {}))
                    found.append(_Watched(self.session.book.entry(parameter), parameter, rule, length, count))
        home = next((each.parameter.device for each in found if not on_host(each.parameter)), None)
        return found if home is None else [each for each in found if each.parameter.device == home]

    def optimizer_end(self, optimizer: Any) -> None:
        session = self.session
        self._depth = max(self._depth - 1, 0)
        if self._depth:
            return
        number = session.book.optimizer(optimizer)
        before = self._before.pop(number, None)
        if before is None or hands_off() or not (before.given or _given(before.watched)):
            return
        self._done.add(number)
        may_be_left_out = getattr(optimizer, "found_inf", None) is not None
        after = (_states(optimizer, before.watched, _FIRST), _states(optimizer, before.watched, _SECOND))
        told = {"optimizer": number, "cls": type(optimizer).__name__, "count": _count(_any_state(optimizer))}
        told["dtype"] = _dtype(_any_state(optimizer))
        step, least = session.step, _least_normal(_any_state(optimizer))
        gradients = (before.gradients, _gradients(before.watched))
        table = torch.stack([*gradients, before.weights, before.first, before.second, *after])

        def arrived(host: torch.Tensor) -> None:
            values = host.numpy().astype(np.float64)
            if may_be_left_out and not _moved(values):
                self._done.discard(number)
                return
            rows = _compare(before.watched, values, least)
            session.fact("moments", told | {"tensors": rows}, step=step, always=True)

        session.readback.read(table, arrived)


def _rule(optimizer: Any, group: dict[str, Any]) -> _Rule | None:
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) == 2:
        b1, b2 = (_number(beta) for beta in betas)
    else:
        b1, b2 = None, _number(group.get("alpha"))
    own = not _is_torchs(optimizer)
    if b1 is None and b2 is None and not own:
        return None
    decay = _number(group.get("weight_decay")) or 0.0
    if type(optimizer).__name__ in _DECOUPLED or group.get("decoupled_weight_decay"):
        decay = 0.0
    decays = (0.0, decay) if own and decay else (decay,)
    return _Rule(b1, b2, decays, -1.0 if group.get("maximize") else 1.0, own)


def _is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.")


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and on_host(value) else None
    return float(value) if isinstance(value, (int, float)) else None


def _count(state: Any) -> float | None:
    return _number(state.get("step")) if isinstance(state, dict) else None


def _done(state: Any) -> float | None:
    """How many updates a state has seen. A counter on a device (``fused=True``) is there because there were some."""
    step = state.get("step") if isinstance(state, dict) else None
    return 1.0 if isinstance(step, torch.Tensor) and not on_host(step) else _count(state)


def _any_state(optimizer: Any) -> Any:
    return next((state for state in optimizer.state.values() if state), {})


def _dtype(state: Any) -> str | None:
    moment = next((state[key] for key in (*_FIRST, *_SECOND) if isinstance(state.get(key), torch.Tensor)), None)
    return None if moment is None else str(moment.dtype).removeprefix("torch.")


def _least_normal(state: Any) -> float:
    """What is smaller than this a moment may hold as zero."""
    kind = getattr(torch, _dtype(state) or "", torch.int8)
    return float(torch.finfo(kind).tiny) if kind.is_floating_point else 0.0


def _given(watched: list[_Watched]) -> bool:
    return any(each.parameter.grad is not None for each in watched)


def _gradients(watched: list[_Watched]) -> torch.Tensor:
    """Samples of the gradient of every tensor, NaN where there is none."""
    return _sampled(watched, [each.parameter.grad for each in watched])


def _states(optimizer: Any, watched: list[_Watched], names: tuple[str, ...]) -> torch.Tensor:
    """Samples of one moment of every tensor, NaN where there is none. Integers stand for values that only the
    optimizer knows."""
    values = []
    for each in watched:
        state = optimizer.state.get(each.parameter, {})
        value = next((state[name] for name in names if isinstance(state.get(name), torch.Tensor)), None)
        values.append(value if value is not None and value.is_floating_point() else None)
    return _sampled(watched, values)


def _sampled(watched: list[_Watched], values: list[torch.Tensor | None]) -> torch.Tensor:
    parts = []
    for each, value in zip(watched, values, strict=True):
        if value is not None and value.layout is torch.strided and value.shape == each.parameter.shape:
            parts.append(tensors.sample(tensors.local(value)).float().to(each.parameter.device))
        else:
            parts.append(torch.full((each.length,), math.nan, device=each.parameter.device))
    return torch.cat(parts)


def _moved(table: Array) -> bool:
    """Whether anything in the state is another than it was, or than nothing."""
    return bool((np.nan_to_num(table[3:5]) != np.nan_to_num(table[5:7])).any())


def _compare(watched: list[_Watched], table: Array, least: float) -> list[dict[str, Any]]:
    rows, start = [], 0
    for each in watched:
        part = table[:, start : start + each.length]
        start += each.length
        gradients = [g for g in part[:2] if not np.isnan(g).all()]
        if gradients:
            rows.append({"tensor": each.entry.number, **_errors(each, gradients, least, *part[2:])})
    return rows


def _errors(
    each: _Watched, gradients: list[Array], least: float, w: Array, m0: Array, v0: Array, m: Array, v: Array
) -> dict[str, Any]:
    rule, fresh = each.rule, not each.done
    with np.errstate(all="ignore"):
        given = [rule.sign * g + decay * w for g in gradients for decay in rule.decays]
        m_error = _least([_error(m, rule.b1, m0, each, least) for each in given])
        v_error = _least([_error(v, rule.b2, v0, each * each, least) for each in given])
    held = bool(np.nan_to_num(m0).any() or np.nan_to_num(v0).any())
    stale = fresh and held and not (rule.b1 is None and rule.b2 is None)
    v_min = float(v.min()) if np.isfinite(v).all() else None
    told = {"m_error": m_error, "v_error": v_error, "v_min": v_min, "stale": stale}
    if not (rule.own and fresh and not held):
        return told
    made = [_made_up(g, w, m, v) for g in gradients if g.any()] or [_made_up(gradients[0], w, m, v)]
    return told | min(made, key=lambda made: (made["unlike"] or 0.0, made["beyond"] or 0.0))


def _made_up(g: Array, w: Array, m: Array, v: Array) -> dict[str, Any]:
    """Of moments that began in this update: elements that are no numbers, and what gradient and weight do not make."""
    sound = bool((np.abs(g) < _SQUARES).all() and (np.abs(w) < _SQUARES).all())
    held = [x for x in (m, v) if not np.isnan(x).all()]  # all NaN: there is no such moment, or nothing of it is left
    broken = sum(int((~np.isfinite(x)).sum()) for x in held)
    if not sound:
        return {"broken": 0, "beyond": None, "unlike": None, "grown": None}
    size = float(np.linalg.norm(g))
    grown = float(np.linalg.norm(m)) / size if size and np.isfinite(m).all() else None
    return {"broken": broken, "beyond": _beyond(m, v, g, w), "unlike": _unlike(m, g, w), "grown": grown}


def _beyond(m: Array, v: Array, g: Array, w: Array) -> float | None:
    """How many times the largest of gradient and weights the largest moment is, that of squares by its root."""
    given = float(np.abs(g).max() + np.abs(w).max())
    sizes = [float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in (m, v)]
    return max(sizes[0], math.sqrt(sizes[1])) / given if given else None


def _unlike(m: Array, g: Array, w: Array) -> float | None:
    """The share of ``m`` that is no multiple of ``g``, its signs, ``w`` or one."""
    if m.size < _ENOUGH or not np.isfinite(m).all() or not m.any() or not g.any():
        return None
    with np.errstate(all="ignore"):
        columns = [x / size for x in (g, np.sign(g), w, np.ones_like(g)) if (size := float(np.abs(x).max())) > 0]
        given, made = np.stack(columns, axis=1), m / float(np.abs(m).max())
        rest = made - given @ np.linalg.lstsq(given, made, rcond=None)[0]
        share = float((rest @ rest) / (made @ made))
    return share if math.isfinite(share) else None


def _least(errors: list[float | None]) -> float | None:
    return min((error for error in errors if error is not None), default=None)


def _error(found: Array, beta: float | None, before: Array, given: Array, least: float) -> float | None:
    """How far ``found`` is from what follows from ``before`` and ``given``, relative to that. What is smaller than
    ``least`` both ways counts as the same."""
    if beta is None or not np.isfinite(found).any():
        return None
    expected = beta * np.nan_to_num(before) + (1 - beta) * given
    tiny = (np.abs(expected) < least) & (np.abs(found) < least)
    found, expected = np.where(tiny, 0.0, found), np.where(tiny, 0.0, expected)
    size = float(np.linalg.norm(expected))
    error = float(np.linalg.norm(found - expected))
    return error / size if size and math.isfinite(error) else None
