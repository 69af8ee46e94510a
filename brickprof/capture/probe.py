"""What a probe is: one signal of the training, in one file of ``probes/``.

Enters: the signals below, called by the session in the order in which training happens. Leaves: events,
spans and samples, written through ``self.session``.

A probe overrides the signals it wants and is found by itself; only overridden signals cost anything. It
may raise: the session counts that, writes it to the journal, and switches the probe off after a few times.
It must not synchronise a device, draw from a global generator, write into a tensor it was handed, or call
a collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from brickprof.capture.session import Session


class Probe:
    name = ""
    levels: tuple[str, ...] = ("light", "standard", "deep")
    ways: tuple[str, ...] = ("facts",)
    """The ways of looking (see ``cadence``) that this probe serves: it is called in steps that have one of them."""
    every_step: tuple[str, ...] = ()
    """Signals wanted in every step, whatever the cadence."""

    def __init__(self, session: Session) -> None:
        self.session = session

    # -- the run
    def models_found(self) -> None:
        """Models appeared or changed: ``session.models`` is up to date."""

    def step_begin(self, step: int) -> None: ...
    def step_end(self, step: int) -> None: ...
    def close(self) -> None: ...

    # -- data and forward
    def loader_started(self, loader: Any, iterator: Any) -> None:
        """A DataLoader begins to hand out its batches: an epoch."""

    def fetch_begin(self, loader: Any) -> None: ...
    def fetch_end(self, loader: Any, batch: Any, wait_ns: int) -> None: ...
    def compiling(self, module: Any) -> None:
        """``torch.compile`` is about to wrap ``module``."""

    def compiled_in_place(self, module: Any) -> None:
        """``module.compile()`` is over: what it calls is compiled, when it is called."""

    def graph_compiled(self, made: Any) -> None:
        """A graph is handed to a compiler: ``taps.compiled_graphs.Compiled``, whole as long as this signal lasts."""

    def evaluated(self, call: Any) -> None:
        """A loss function was called with gradients off: ``taps.losses.Call``."""

    # -- loss and backward
    def criterion(self, call: Any) -> None:
        """A loss function was called with gradients on, in a step that is looked at: ``taps.losses.Call``."""

    def loss_broken(self, loss: torch.Tensor) -> None:
        """A backward is about to start from a CPU loss that is not finite."""

    def alarmed(self) -> None:
        """The loss of this step is alarming, its backward is about to begin, and nobody had looked at the step."""

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None: ...
    def backward_end(self, losses: Sequence[torch.Tensor], ok: bool) -> None: ...

    def collective(self, issued: Any, phase: str) -> None:
        """A collective was asked for, or waited for, in a step that is looked at: ``taps.collectives.Issued``."""

    # -- gradients, between backward and step
    def scaling(self, scaler: Any, loss: Any) -> None: ...
    def unscale_begin(self, scaler: Any, optimizer: Any) -> None: ...
    def clip_begin(self, parameters: list[torch.Tensor], total: torch.Tensor | None) -> None:
        """Gradients are about to be clipped; ``total`` is the norm the user's own call computed."""

    def clip_end(self, fields: dict[str, Any], total: torch.Tensor | None) -> None: ...

    # -- optimizers
    def optimizer_built(self, optimizer: Any) -> None: ...
    def optimizer_begin(self, optimizer: Any) -> None: ...
    def optimizer_end(self, optimizer: Any) -> None: ...
    def rate_leapt(self, optimizer: Any) -> None:
        """The learning rate is a multiple of what it was in the update before, in a step that nobody looks at."""

    def scaler_step(self, scaler: Any, optimizer: Any) -> None: ...
    def scaler_update(self, scaler: Any) -> None: ...
    def zero_grad(self, owner: Any, to_none: bool) -> None:
        """Sent in steps that are looked at; ``desk.zeroed`` counts all of them."""

    def scheduled(self, scheduler: Any) -> None:
        """Sent in steps that are looked at; ``desk.scheduled`` counts all of them."""

    def plateau_judged(self, scheduler: Any, measure: Any) -> None:
        """A schedule that waits for progress was told how well things go."""


_OF_THE_RUN = {
    "models_found", "close", "compiled_in_place", "compiling", "graph_compiled", "optimizer_built", "loader_started",
    "evaluated", "plateau_judged",
}  # fmt: skip
ALWAYS = frozenset(_OF_THE_RUN | {"scaler_step", "loss_broken"})
"""Signals that are sent in every step: rare, or too important to miss."""

SIGNALS = tuple(name for name, value in vars(Probe).items() if callable(value) and not name.startswith("_"))
