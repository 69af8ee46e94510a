"""What was compiled: the functions of the script that torch.compile has made something else of.

Enters: dynamo's own list of the code that it made, whenever it has had more to do. Leaves: a ``compile`` event for each
function of the script, with its line, and for each module that is handed over. Inside compiled code no line can be told
from another; this is what stands in for them.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

from brickprof.capture import sites
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import compiled_frames

_MOST = 64
_REST = "torch_dynamo_resume_in"
"""What is left of a function behind a break in its graph has a name that begins so."""


class CompiledProbe(Probe):
    name = "compiled"
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._frames = 0
        self._told: set[tuple[str, str]] = set()

    def compiling(self, module: Any) -> None:
        self._tell(type(module).__name__, "", {"model": type(module).__name__})

    def step_begin(self, step: int) -> None:
        frames = compiled_frames()
        if frames != self._frames:
            self._frames = frames
            self._look()

    def close(self) -> None:
        self._look()

    def _look(self) -> None:
        for code in made():
            if sites.users(code.co_filename) and not code.co_name.startswith(_REST):
                site = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
                self._tell(code.co_qualname, site, {"function": code.co_qualname[:200], "site": site[:200]})

    def _tell(self, name: str, site: str, fields: dict[str, str]) -> None:
        if (name, site) not in self._told and len(self._told) < _MOST:
            self._told.add((name, site))
            self.session.fact("compile", fields, always=True)


def made() -> list[CodeType]:
    """The code that dynamo made and that is still alive; it has the names and lines of what it was made of."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(frames, "output_codes", None), "seen", ())
    found = [reference() for reference in list(seen)]
    return [code for code in found if isinstance(code, CodeType)]
