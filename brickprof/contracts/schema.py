"""A contract as data, and the checks that make a YAML document one.

Enters: a parsed YAML mapping (see ``brickprof.contracts.registry`` for the file). Leaves: a frozen
``Contract``; anything unknown, of the wrong type or not finite is a ConfigurationError that names the
place.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from brickprof.errors import ConfigurationError

KINDS = (
    "invariant", "equivalence", "bound", "monotonicity", "idempotency", "linearity", "symmetry",
    "associativity", "conservation", "ordering", "completeness", "soundness",
)  # fmt: skip
_ID = re.compile(r"[A-Z][A-Z0-9-]*")
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    id: str
    version: str
    description: str
    references: Words = ()
    depends_on: Words = ()


@dataclass(frozen=True, slots=True)
class Equation:
    formula: str
    domain: str = ""
    codomain: str = ""
    invariants: Words = ()
    preconditions: Words = ()
    postconditions: Words = ()


@dataclass(frozen=True, slots=True)
class Obligation:
    id: str
    kind: str
    property: str
    formal: str = ""
    tolerance: float = 0.0
    applies_to: str = ""


@dataclass(frozen=True, slots=True)
class Falsification:
    """A test that must break when the obligation does not hold."""

    id: str
    rule: str
    prediction: str
    test: str
    if_fails: str


@dataclass(frozen=True, slots=True)
class Proof:
    obligation: str
    bound: str
    strategy: str


@dataclass(frozen=True, slots=True)
class AntiPattern:
    never: Words = ()
    always: Words = ()
    diagnostic: Words = ()


@dataclass(frozen=True, slots=True)
class Bindings:
    """What evaluates the contract: names of rules, kernels or functions."""

    rules: Words = ()
    kernels: Words = ()
    functions: Words = ()


@dataclass(frozen=True, slots=True)
class Contract:
    metadata: Metadata
    motivation: str
    obligations: tuple[Obligation, ...]
    equations: tuple[Equation, ...] = ()
    thresholds: tuple[tuple[str, float], ...] = ()
    falsification: tuple[Falsification, ...] = ()
    proofs: tuple[Proof, ...] = ()
    anti_pattern: AntiPattern = AntiPattern()
    bindings: Bindings = Bindings()

    @property
    def id(self) -> str:
        return self.metadata.id

    def threshold(self, name: str) -> float:
        """A threshold by name; the default of the library unless the user set another."""
        return dict(self.thresholds)[name]


class Place:
    """Where in which file a value stands, for messages."""

    def __init__(self, file: str, lines: dict[tuple[str | int, ...], int]) -> None:
        self.file = file
        self._lines = lines

    def error(self, path: tuple[str | int, ...], problem: str, hint: str = "") -> ConfigurationError:
        at = path
        while at and at not in self._lines:
            at = at[:-1]
        name = ".".join(str(part) for part in path) or "the document"
        return ConfigurationError(f"{self.file}:{self._lines.get(at, 1)}: {name} {problem}.", hint)


def contract(document: Any, place: Place) -> Contract:
    """``document`` as a Contract, every value checked."""
    built: Contract = _build(Contract, document, (), place)
    if not _ID.fullmatch(built.id):
        raise place.error(("metadata", "id"), f"is {built.id!r}", "An id looks like C-TRAINSTABLE-001.")
    if not built.obligations:
        raise place.error(("obligations",), "is empty", "A contract that demands nothing cannot be broken.")
    for index, obligation in enumerate(built.obligations):
        if obligation.kind not in KINDS:
            hint = f"Kinds: {', '.join(KINDS)}."
            raise place.error(("obligations", index, "kind"), f"is {obligation.kind!r}", hint)
    known = {obligation.id for obligation in built.obligations}
    for section, named in (
        ("falsification", [test.rule for test in built.falsification]),
        ("proofs", [proof.obligation for proof in built.proofs]),
    ):
        for index, name in enumerate(named):
            if name not in known:
                raise place.error((section, index), f"speaks of {name!r}, which is no obligation here")
    return built


def _build(cls: type[Any], value: Any, path: tuple[str | int, ...], place: Place) -> Any:
    if not isinstance(value, dict):
        raise place.error(path, f"should be a mapping, not {_kind(value)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in value:
        if key not in fields:
            raise place.error((*path, key), "is unknown", f"Known here: {', '.join(fields)}.")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise place.error((*path, name), "is missing")
    wanted = _hints(cls)
    return cls(**{key: _value(wanted[key], item, (*path, key), place) for key, item in value.items()})


_known_hints: dict[Any, dict[str, Any]] = {}


def _hints(cls: Any) -> dict[str, Any]:
    """Looked up once for each class: there are hundreds of values of a few."""
    if cls not in _known_hints:
        _known_hints[cls] = typing.get_type_hints(cls)
    return _known_hints[cls]


def _value(wanted: Any, value: Any, path: tuple[str | int, ...], place: Place) -> Any:
    if dataclasses.is_dataclass(wanted):
        return _build(typing.cast("type[Any]", wanted), value, path, place)
    if path == ("thresholds",):
        return _thresholds(value, path, place)
    if isinstance(wanted, types.GenericAlias):
        if not isinstance(value, list):
            raise place.error(path, f"should be a list, not {_kind(value)}")
        item = typing.get_args(wanted)[0]
        return tuple(_value(item, part, (*path, index), place) for index, part in enumerate(value))
    if wanted is float:
        return _number(value, path, place)
    if not isinstance(value, str) or not value.strip():
        raise place.error(path, f"should be text, not {_kind(value)}")
    return value.strip()


def _thresholds(value: Any, path: tuple[str | int, ...], place: Place) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise place.error(path, f"should be a mapping, not {_kind(value)}")
    return tuple((str(name), _number(number, (*path, name), place)) for name, number in value.items())


def _number(value: Any, path: tuple[str | int, ...], place: Place) -> float:
    # YAML 1.1 reads 1e-5 as text; a NaN threshold would never fire.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise place.error(path, f"should be a number, not {_kind(value)}")
    try:
        told = float(value)
    except ValueError:
        raise place.error(path, f"should be a number, not {value!r}") from None
    except OverflowError:
        told = math.inf
    if not math.isfinite(told):
        raise place.error(path, f"is {told}", "A threshold has to be finite, or it never fires.")
    return told


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "empty text", type(None): "nothing"}.get(type(value), repr(value))
