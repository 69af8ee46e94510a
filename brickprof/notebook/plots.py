"""``run.plot``: the figures of a run.

Enters: a ``Run``, and its ``Diagnosis`` where its findings are to be marked. Leaves: plotly's figures, to be shown,
changed, or written with ``figure.write_html("loss.html")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.notebook import figures

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run


class Plots:
    """Each method returns a ``plotly.graph_objects.Figure``. Needs ``pip install 'brickprof[notebook]'``."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def loss(self, diagnosis: Diagnosis | None = None) -> Any:
        """The loss by step, evaluation too; NaN and Inf are marked, and the findings of ``diagnosis``."""
        return figures.loss(self._run, diagnosis)

    def curves(self, diagnosis: Diagnosis | None = None) -> Any:
        """Loss, gradient norm, learning rate, loss scale and seconds a step, one below the other."""
        return figures.course(self._run, diagnosis)

    def gradients(self, diagnosis: Diagnosis | None = None) -> Any:
        """log10 |grad| by layer and step; NaN, Inf and zero are marked."""
        return figures.gradients(self._run, diagnosis)

    def updates(self, diagnosis: Diagnosis | None = None) -> Any:
        """log10 of update / weight by layer and step: how far each step moved each layer; -3 is usual."""
        return figures.updates(self._run, diagnosis)

    def timeline(self, step: int | None = None, rank: int | None = None) -> Any:
        """The bricks of one timed step on the host and on the device; by default a step of middling length."""
        return figures.timeline(self._run, step, rank)

    def ranks(self, diagnosis: Diagnosis | None = None) -> Any:
        """The ranks beside each other: their losses, and how long their steps take."""
        return figures.ranks(self._run, diagnosis)

    def __repr__(self) -> str:
        return f"<plots of {self._run!r}: loss, curves, gradients, updates, timeline, ranks>"
