"""From records to a diagnosis: what broke, where it began, why, and what to do.

Enters: a ``Run``, or records as they come. Leaves: a ``Diagnosis``, made now (``diagnose``, ``Doctor``) or as it lies
beside its run (``stored``); ``diagnosed`` takes what is there and makes what is not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from brickprof.diagnosis.keeping import diagnosed, stored
from brickprof.diagnosis.model import Diagnosis, Finding, RuledOut, Why

if TYPE_CHECKING:
    from brickprof.diagnosis.doctor import Doctor, diagnose

__all__ = ["Diagnosis", "Doctor", "Finding", "RuledOut", "Why", "diagnose", "diagnosed", "stored"]


def __getattr__(name: str) -> Any:
    # Every rule comes with these two: who reads a diagnosis that is there waits for none of them.
    if name not in ("Doctor", "diagnose"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("brickprof.diagnosis.doctor"), name)
    globals()[name] = value
    return value
