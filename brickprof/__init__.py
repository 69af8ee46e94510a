"""brickprof runs a training, records what happened, and says where and why it broke.

The whole public API:

    with brickprof.attach(model, optimizer, out="runs") as session: ...     record one's own loop
    brickprof.brick("tokenise")                                             name one's own code
    brickprof.load("runs/train-...").loss                                   a recorded run as DataFrames
    print(brickprof.diagnose("runs/train-..."))                             what became of it
    print(brickprof.analyze("train.log"))                                   the same of a log of any other tool
    brickprof.scaling_fit(tokens, losses).forecast(1e12)                    where a loss is heading, and how surely

In a notebook a run and a diagnosis show themselves with pictures, ``run.plot.loss()`` and its like are figures, and
``%load_ext brickprof`` gives ``%%brickprof``, which records the training in a cell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brickprof.api import Session, analyze, attach, diagnose, load
    from brickprof.capture.attach import brick
    from brickprof.diagnosis import Diagnosis
    from brickprof.rules.scaling_curve import scaling_fit
    from brickprof.run import Run

__version__ = "0.1.0"
__all__ = [
    "Diagnosis", "Run", "Session", "__version__", "analyze", "attach", "brick", "diagnose", "load", "scaling_fit",
]  # fmt: skip

_HOMES = {
    "analyze": "brickprof.api",
    "attach": "brickprof.api",
    "brick": "brickprof.capture.attach",
    "Session": "brickprof.api",
    "diagnose": "brickprof.api",
    "load": "brickprof.api",
    "Diagnosis": "brickprof.diagnosis",
    "Run": "brickprof.run",
    "scaling_fit": "brickprof.rules.scaling_curve",
}


def __getattr__(name: str) -> Any:
    # Everything is loaded when it is first asked for: `import brickprof` costs a script nothing.
    if name not in _HOMES:
        raise AttributeError(f"module 'brickprof' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def load_ipython_extension(ipython: Any) -> None:
    """What ``%load_ext brickprof`` calls."""
    from brickprof.notebook.magic import register

    register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    from brickprof.notebook.magic import unregister

    unregister(ipython)


def __dir__() -> list[str]:
    return sorted(__all__)
