"""A diagnosis as plain data: what diagnosis.json holds, and nothing else.

Enters: findings and contract results. Leaves: ``to_dict()``, the stable document others parse, and back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brickprof import plugins
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.errors import UnreadableInput

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, ConsoleOptions, RenderableType

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Why:
    question: str
    finding: str
    brick: str = ""
    evidence: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "question": self.question, "finding": self.finding, "brick": self.brick,
            "evidence": list(self.evidence),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Why:
        return cls(fields["question"], fields["finding"], fields.get("brick", ""), _ids(fields))


@dataclass(frozen=True, slots=True)
class RuledOut:
    root_cause: str
    because: str
    evidence: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"root_cause": self.root_cause, "because": self.because, "evidence": list(self.evidence)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> RuledOut:
        return cls(fields["root_cause"], fields["because"], _ids(fields))


@dataclass(frozen=True, slots=True)
class Finding:
    """One incident: what happened, where it began, why, and what to do."""

    id: str
    contract: str
    verdict: Verdict
    severity: Severity
    root_cause: str
    confidence: float
    brick: str
    granularity: str
    scope: str
    nature: str
    first_step: int
    detected_step: int
    coordinates: dict[str, int]
    symptom: str
    whys: tuple[Why, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    action: str = ""
    next_experiment: str = ""
    follows: tuple[str, ...] = ()
    """What else was seen that follows from this."""
    obligation: str = ""
    """What would have caught it, had it been promised; empty where the contract itself says it best."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id, "contract": self.contract, "verdict": self.verdict.value,
            "severity": self.severity.value, "root_cause": self.root_cause, "confidence": self.confidence,
            "brick": self.brick, "granularity": self.granularity, "scope": self.scope, "nature": self.nature,
            "first_step": self.first_step, "detected_step": self.detected_step,
            "coordinates": dict(self.coordinates), "symptom": self.symptom,
            "whys": [why.to_dict() for why in self.whys],
            "ruled_out": [out.to_dict() for out in self.ruled_out],
            "action": self.action, "next_experiment": self.next_experiment, "follows": list(self.follows),
            "obligation": self.obligation,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Finding:
        plain = {name: fields[name] for name in cls.__slots__ if name in fields}
        return cls(
            **plain
            | {
                "verdict": Verdict(fields["verdict"]),
                "severity": Severity(fields["severity"]),
                "whys": tuple(Why.from_dict(why) for why in fields.get("whys", ())),
                "ruled_out": tuple(RuledOut.from_dict(out) for out in fields.get("ruled_out", ())),
                "follows": tuple(str(what) for what in fields.get("follows", ())),
            }
        )

    def _repr_html_(self) -> str:
        return _shown("cards", "finding", self)

    def _repr_markdown_(self) -> str:
        return _shown("words", "markdown_of_finding", self)

    def __repr__(self) -> str:
        return _shown("words", "line_of_finding", self)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one run, its findings (the one to fix first on top) and what became of each contract.

    Printed, it is the report; in a notebook it shows itself with pictures; ``to_dict()`` is diagnosis.json.
    """

    verdict: Verdict
    run: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    contracts: tuple[ContractResult, ...] = ()
    schema: int = SCHEMA

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that broke the training; the others are warnings and notes."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as diagnosis.json holds it: strict JSON, no NaN."""
        return {
            "schema": self.schema,
            "verdict": self.verdict.value,
            "run": _strict(self.run),
            "findings": [finding.to_dict() for finding in self.findings],
            "contracts": [contract.to_dict() for contract in self.contracts],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Diagnosis:
        """What ``to_dict()`` gave, as it was."""
        try:
            if fields["schema"] != SCHEMA:
                raise UnreadableInput(
                    f"This diagnosis has schema {fields['schema']!r}; {SCHEMA} is known here.",
                    "A newer brickprof reads it.",
                )
            return cls(
                Verdict(fields["verdict"]),
                dict(fields["run"]),
                tuple(Finding.from_dict(finding) for finding in fields["findings"]),
                tuple(ContractResult.from_dict(contract) for contract in fields["contracts"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableInput(f"This is not a diagnosis: {type(error).__name__}: {error}.") from None

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"

    @classmethod
    def read(cls, file: Path) -> Diagnosis:
        """The diagnosis in a ``diagnosis.json``."""
        try:
            fields = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"{file} cannot be read: {error}.") from None
        return cls.from_dict(fields)

    # How it looks is the reports' business, which stand to the right of this module: asked for by name.
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield plugins.load("brickprof.reports", "terminal").renderable(self, options)

    def _repr_html_(self) -> str:
        return _shown("cards", "diagnosis", self)

    def _repr_markdown_(self) -> str:
        return _shown("words", "markdown_of_diagnosis", self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython on a terminal: the report, or a line where it stands inside something else."""
        printer.text(str(self) if len(printer.stack) <= 1 else repr(self))

    def __str__(self) -> str:
        text: str = plugins.load("brickprof.reports", "terminal").text(self)
        return text

    def __repr__(self) -> str:
        return _shown("words", "line_of_diagnosis", self)


def _shown(module: str, how: str, what: Any) -> str:
    told: str = getattr(plugins.load("brickprof.notebook", module), how)(what)
    return told


def _ids(fields: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(identifier) for identifier in fields.get("evidence", ()))


def _strict(value: Any) -> Any:
    """``value`` as strict JSON has it: no NaN, no infinity, no tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
