"""Evaluation: forward passes with gradients off, between training steps.

Enters: calls of the models' roots and of loss functions while gradients are off. Leaves: one ``evaluation`` event per
pass (in which mode the model ran, whether that matters, the mean loss), and a ``criterion`` event with the mean of each
loss function, when the next training activity begins or the run ends.

A pass that happens in every step (a GAN's generator, a teacher, a target network) is part of the training: it says so
(``frequent``) and is written in steps whose facts are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules import batchnorm, dropout

from brickprof.capture.probe import Probe
from brickprof.capture.seats import around
from brickprof.capture.session import Session
from brickprof.capture.sites import caller
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.losses import Call
from brickprof.capture.tensors import on_host

_compiling = torch.compiler.is_compiling
SENSITIVE = (dropout._DropoutNd, batchnorm._BatchNorm)
_FREQUENT = 3


def sensitive(module: nn.Module) -> bool:
    """Whether its mode changes what ``module`` computes; dropout of nothing does not."""
    return isinstance(module, SENSITIVE) and getattr(module, "p", 1) != 0


class _Pass:
    """What one model did in one pass."""

    __slots__ = ("forwards", "mixed", "rows", "sensitive", "step", "training")

    def __init__(self, root: nn.Module, step: int) -> None:
        special = [module for module in root.modules() if sensitive(module)]
        self.training = root.training
        self.sensitive = bool(special)
        self.mixed = sum(1 for module in special if module.training)
        self.step = step
        self.forwards = self.rows = 0


class _Mean:
    """The mean of one loss function over a pass; on a device the sum stays there."""

    __slots__ = ("about", "calls", "rows", "total")

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.calls = self.rows = 0
        self.total: Any = 0.0

    def add(self, call: Call) -> None:
        value = call.result.detach()
        self.total = self.total + (value.item() if on_host(value) else value.float())
        self.calls += 1
        self.rows += call.input.shape[0] if call.input.dim() else 1


class EvaluationProbe(Probe):
    name = "evaluation"
    every_step = ("step_begin", "backward_begin")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._handles: list[Any] = []
        self._passes: dict[str, _Pass] = {}
        self._means: dict[str, _Mean] = {}
        self._last: dict[str, tuple[int, int]] = {}
        """By model: the step of the last pass, and how many passes came in a row of steps."""

    # -- which models

    def models_found(self) -> None:
        self._unhook()
        self._hook()

    def step_begin(self, step: int) -> None:
        if self.session.looking or not self.session.by_fetch:
            self._hook()
        elif not self._passes:
            self._unhook()

    def compiling(self, module: Any) -> None:
        self._unhook()

    def close(self) -> None:
        self._unhook()
        self._flush()

    def _hook(self) -> None:
        if self._handles:
            return
        for model in self.session.models:
            root = model.root()
            if root is not None:
                self._handles += around(root, _Watch(self, model.name).runs)

    def _unhook(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    # -- a pass

    def forward(self, name: str, root: nn.Module, args: Any) -> None:
        session = self.session
        session.settle()
        if session.in_backward or session.in_optimizer:
            return
        found = self._passes.get(name)
        if found is None:
            found = self._passes[name] = _Pass(root, session.step)
            session.expecting = True
        found.forwards += 1
        first = args[0] if args else None
        found.rows += first.shape[0] if isinstance(first, torch.Tensor) and first.dim() else 0

    def evaluated(self, call: Call) -> None:
        session = self.session
        if session.backward_depth or hands_off() or not _scalar(call):
            return
        if not self._handles:
            self._hook()  # in a step that nobody looks at: the rest of the pass is seen
        mean = self._means.get(call.name)
        if mean is None:
            about = {"name": call.name, "reduction": call.reduction, "site": caller(), "step": session.step}
            mean = self._means[call.name] = _Mean(about)
            session.expecting = True
        mean.add(call)

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        self.session.expecting = False
        if self._passes or self._means:
            self._flush()

    # -- writing

    def _flush(self) -> None:
        passes, self._passes = self._passes, {}
        means, self._means = self._means, {}
        session = self.session
        modes = {found.training for found in passes.values()}
        frequent = [self._is_frequent(name, found.step) for name, found in passes.items()]
        told = session.on.facts or not (frequent and all(frequent))
        for mean in means.values():
            about = mean.about | {"grad": False, "training": modes.pop() if len(modes) == 1 else None}
            self._read(mean, lambda value, m=mean, a=about: self._write_criterion(m, a, value, told))
        for (name, found), often in zip(passes.items(), frequent, strict=True):
            self._write_pass(name, found, often, means, told)

    def _read(self, mean: _Mean, done: Any) -> None:
        if isinstance(mean.total, float):
            done(mean.total / mean.calls)
        elif not hands_off():
            self.session.readback.read(mean.total.reshape(1), lambda host: done(float(host[0]) / mean.calls))

    def _write_criterion(self, mean: _Mean, about: dict[str, Any], value: float, told: bool) -> None:
        step = about["step"]
        fields = {key: field for key, field in about.items() if key != "step"}
        fields |= {"value": value, "rows": mean.rows, "calls": mean.calls}
        self.session.fact("criterion", fields, step=step, wanted=told)

    def _write_pass(self, name: str, found: _Pass, often: bool, means: dict[str, _Mean], told: bool) -> None:
        fields = {
            "model": name,
            "training": found.training,
            "sensitive": found.sensitive,
            "mixed": found.mixed,
            "forwards": found.forwards,
            "rows": found.rows,
            "frequent": often,
            "loss": None,
        }

        def write(value: float | None) -> None:
            loss = value if value is None or math.isfinite(value) else math.nan
            self.session.fact("evaluation", fields | {"loss": loss}, step=found.step, wanted=told)

        if means:
            self._read(next(iter(means.values())), write)
        else:
            write(None)

    def _is_frequent(self, name: str, step: int) -> bool:
        last, row = self._last.get(name, (-2, 0))
        row = row + 1 if step - last <= 1 else 0
        self._last[name] = (step, row)
        return row >= _FREQUENT


def _scalar(call: Call) -> bool:
    result = call.result
    return isinstance(result, torch.Tensor) and result.numel() == 1 and isinstance(call.input, torch.Tensor)


class _Watch:
    """The hook on one root."""

    __slots__ = ("_name", "_probe")

    def __init__(self, probe: EvaluationProbe, name: str) -> None:
        self._probe = probe
        self._name = name

    def runs(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() or _compiling():
            return
        try:
            self._probe.forward(self._name, module, args)
        except Exception as error:
            self._probe.session.failed("evaluation", error)
