"""What the script says of itself: the settings in its own configuration objects, and how its dropout is set.

Enters: the first updates. Leaves: a ``stated`` event with the plain values of dataclasses and namespaces that the loop
holds (at the top of the script, and from Python 3.13 on in the variables of its functions), and one with the dropout of
each model. Nothing is called, and nothing but plain values is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import brickprof
from brickprof.capture.plain import is_settings, own, settings
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

_NAMES = frozenset({"cfg", "conf", "config", "args", "opt", "opts", "options", "hp", "hps", "hparams", "settings"})
_FRAMES = 40
_WITHOUT_A_COPY = sys.version_info >= (3, 13)
_OURS = (str(Path(brickprof.__file__).parent / "capture"), str(Path(__file__).parent))
_OUTSIDE = ("site-packages", "/torch/", "lib/python", *_OURS)


class StatedProbe(Probe):
    name = "stated"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._done = False
        self._dropout: dict[str, list[float]] = {}

    def optimizer_begin(self, optimizer: Any) -> None:
        if self._done:
            return
        self._done = True
        found: dict[str, Any] = {}
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                break
            if not any(part in frame.f_code.co_filename for part in _OUTSIDE):
                _of_frame(frame, found)
            frame = frame.f_back
        if found:
            self.session.fact("stated", {"source": "script", "values": found}, always=True)

    def models_found(self) -> None:
        for model in self.session.models:
            root = model.root()
            if root is None or model.name in self._dropout:
                continue
            kept = [vars(module).get("p") for module in root.modules() if "Dropout" in type(module).__name__]
            rates = [float(p) for p in kept if isinstance(p, (int, float))]
            self._dropout[model.name] = rates
            if rates:
                fields = {"model": model.name, "modules": len(rates), "rates": sorted(set(rates))[:16]}
                self.session.fact("dropout", fields, always=True)


def _of_frame(frame: FrameType, found: dict[str, Any]) -> None:
    top = frame.f_code.co_name == "<module>"
    if not top and not _WITHOUT_A_COPY:
        return  # before Python 3.13 the frame would keep a copy of all its variables, tensors too, until it ends
    held = frame.f_locals
    for name, value in list(held.items()):
        if is_settings(value) or (name in _NAMES and type(value) is dict):
            found.update(settings(value))
    for name, value in list(own(held.get("self")).items()):
        if name in _NAMES and (is_settings(value) or type(value) is dict):
            found.update(settings(value))
    if top:
        loud = {name: value for name, value in list(held.items()) if name.isupper()}
        found.update(settings(loud))
