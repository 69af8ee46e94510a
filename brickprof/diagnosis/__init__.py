"""From records to a diagnosis: what broke, where it began, why, and what to do.

Enters: a ``Run``, or records as they come. Leaves: a ``Diagnosis``.
"""

from __future__ import annotations

from brickprof.diagnosis.diagnose import Doctor, diagnose
from brickprof.diagnosis.model import Diagnosis, Finding, RuledOut, Why

__all__ = ["Diagnosis", "Doctor", "Finding", "RuledOut", "Why", "diagnose"]
