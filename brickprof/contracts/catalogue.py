"""The library as one file that is quick to read: ``catalogue.json``, made of the YAML files and checked against them.

Enters: the library's folder. Leaves: its contracts, if the catalogue was made of these very files; else None, and the
YAML is read. The YAML is what people write and what counts: who changes it and makes no new catalogue waits a tenth of
a second longer, and a test says so. ``python -m brickprof.contracts.catalogue`` makes a new one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from brickprof.contracts.schema import (
    AntiPattern,
    Bindings,
    Contract,
    Equation,
    Falsification,
    Metadata,
    Obligation,
    Proof,
)

FILE = Path(__file__).with_name("catalogue.json")
_LISTED: dict[str, type[Any]] = {
    "obligations": Obligation,
    "equations": Equation,
    "falsification": Falsification,
    "proofs": Proof,
}
_SINGLE: dict[str, type[Any]] = {"metadata": Metadata, "anti_pattern": AntiPattern, "bindings": Bindings}
Part = TypeVar("Part")


def read(folder: Path, file: Path = FILE) -> dict[str, Contract] | None:
    """The contracts of ``folder`` by id, in the order of their files; None where ``file`` was made of others."""
    try:
        told = json.loads(file.read_bytes())
        if told["of"] != digest(folder):
            return None
        return {one.id: one for one in map(_contract, told["contracts"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(folder: Path, contracts: dict[str, Contract], file: Path = FILE) -> None:
    told = {"of": digest(folder), "contracts": [asdict(contract) for contract in contracts.values()]}
    file.write_text(json.dumps(told, separators=(",", ":")) + "\n", encoding="ascii")


def digest(folder: Path) -> str:
    """Of the names and the contents of all YAML files."""
    found = sha256()
    for file in sorted(folder.glob("*.yaml")):
        content = file.read_bytes()
        found.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _contract(told: dict[str, Any]) -> Contract:
    """It was checked value by value when the catalogue was made."""
    parts: dict[str, Any] = {name: tuple(_part(kind, each) for each in told[name]) for name, kind in _LISTED.items()}
    parts |= {name: _part(kind, told[name]) for name, kind in _SINGLE.items()}
    thresholds = tuple((name, float(value)) for name, value in told["thresholds"])
    return Contract(motivation=told["motivation"], thresholds=thresholds, **parts)


def _part(kind: type[Part], told: dict[str, Any]) -> Part:
    return kind(**{name: tuple(value) if type(value) is list else value for name, value in told.items()})


if __name__ == "__main__":
    from brickprof.contracts.registry import LIBRARY, read_folder

    write(LIBRARY, read_folder(LIBRARY))
