"""One specimen judged: what was found in it, held against what is true of it.

Enters: a ``Specimen`` and the ``Outcome`` of running it under brickprof, its diagnosis.json included.
Leaves: a ``Mark``: detected or not, what was right, and what was found instead. Nothing is run here.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brickprof.reference.zoo import Specimen

JUDGED, CRASHED, TIMED_OUT, LOST, SKIPPED = "judged", "crashed", "timed out", "lost", "skipped"
ALARMS = ("error", "warning")
_RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
_TOLD = ("contract", "root_cause", "confidence", "brick", "severity", "first_step", "detected_step", "symptom")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back from one ``brickprof run``."""

    diagnosis: dict[str, Any] | None = None
    seconds: float = 0.0
    folder: Path | None = None
    timed_out: bool = False
    code: int | None = None
    """Of brickprof itself."""
    skipped: str = ""
    """Why it was not run here."""
    said: str = ""
    """The last lines that it printed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The verdict on one specimen. ``detected`` on a healthy one is a false alarm."""

    id: str
    title: str
    family: str
    kind: str
    healthy: bool
    state: str
    why: str = ""
    row: int | None = None
    detected: bool = False
    contract: bool = False
    brick: bool = False
    root_cause: bool = False
    latency: int | None = None
    """Steps from the first one with an effect to the one in which it was seen."""
    seconds: float = 0.0
    verdict: str = ""
    expected: dict[str, Any] | None = None
    found: dict[str, Any] | None = None
    """The finding on top."""
    others: tuple[dict[str, Any], ...] = ()
    """The other errors and warnings, in their order."""
    folder: str = ""

    @property
    def counts(self) -> bool:
        return self.state != SKIPPED

    @property
    def broken(self) -> bool:
        return self.state in (CRASHED, TIMED_OUT, LOST)

    @property
    def placed(self) -> bool:
        return self.contract and self.brick

    @property
    def right(self) -> bool:
        """A fault explained in every respect; a control left in peace."""
        if self.healthy:
            return self.state == JUDGED and not self.detected
        return self.placed and self.root_cause

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"others": list(self.others), "right": self.right}


def judge(specimen: Specimen, outcome: Outcome) -> Mark:
    """Only what a run itself came to counts: a crash of its own or a run out of time is never right."""
    state, why = _state(specimen, outcome)
    alarms = _alarms(outcome.diagnosis)
    top = alarms[0] if alarms else None
    seen = state == JUDGED and top is not None
    return Mark(
        specimen.id, specimen.title, specimen.family, specimen.kind, specimen.healthy, state, why, specimen.row,
        detected=seen or (specimen.healthy and top is not None),
        contract=seen and (not specimen.contracts or _among(top, "contract", specimen.contracts)),
        brick=seen and right_place(_text(top, "brick"), specimen.bricks),
        root_cause=seen and _among(top, "root_cause", specimen.root_causes),
        latency=_latency(specimen, top) if seen else None,
        seconds=round(outcome.seconds, 2),
        verdict=str((outcome.diagnosis or {}).get("verdict", "")),
        expected=None if specimen.healthy else _expected(specimen),
        found=_told(top) if top else None,
        others=tuple(_told(finding) for finding in alarms[1:]),
        folder=str(outcome.folder or ""),
    )  # fmt: skip


def right_place(found: str, bricks: tuple[str, ...]) -> bool:
    """Whether ``found`` is one of ``bricks`` or lies inside one. Without bricks, the fault has no place to name.

    A run with several models puts the model's name in front.
    """
    names = (found, found.partition(".")[2])
    inside = any(brick and f"{name}.".startswith(f"{brick}.") for name in names for brick in bricks)
    return not bricks or found in bricks or inside


def _state(specimen: Specimen, outcome: Outcome) -> tuple[str, str]:
    if outcome.skipped:
        return SKIPPED, outcome.skipped
    if outcome.timed_out:
        return TIMED_OUT, f"not done after {outcome.seconds:.0f} s"
    if outcome.diagnosis is None:
        return LOST, f"no diagnosis, exit code {outcome.code}: {_last_line(outcome.said)}"
    ended = outcome.diagnosis.get("run", {}).get("exit", {})
    if ended.get("code", 0) and not specimen.may_crash:
        return CRASHED, f"{ended.get('text') or 'it failed'}: {_last_line(outcome.said)}"
    return JUDGED, ""


def _alarms(diagnosis: dict[str, Any] | None) -> list[dict[str, Any]]:
    findings = (diagnosis or {}).get("findings", ())
    return [finding for finding in findings if finding.get("severity") in ALARMS]


def _among(finding: dict[str, Any] | None, field: str, wanted: tuple[str, ...]) -> bool:
    return _text(finding, field) in wanted


def _text(finding: dict[str, Any] | None, field: str) -> str:
    return str((finding or {}).get(field) or "")


def _latency(specimen: Specimen, finding: dict[str, Any] | None) -> int | None:
    detected = (finding or {}).get("detected_step")
    if specimen.first_step is None or not isinstance(detected, int):
        return None
    return detected - specimen.first_step


def _expected(specimen: Specimen) -> dict[str, Any]:
    return {
        "contracts": list(specimen.contracts), "root_causes": list(specimen.root_causes),
        "bricks": list(specimen.bricks), "first_step": specimen.first_step,
    }  # fmt: skip


def _told(finding: dict[str, Any]) -> dict[str, Any]:
    return {name: finding.get(name) for name in _TOLD}


def _last_line(said: str) -> str:
    """What a run ended with: the exception where there is one, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or ["nothing was printed"])[-1][:200]
