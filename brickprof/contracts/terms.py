"""The terms on which a run is judged: contracts of the library and of the user's own, with the thresholds in force.

Enters: settings such as ``{"C-CLIP-001.max": 2}`` and ``{"C-BATCH-001": "a toy on purpose"}``, and the files of the
user's contracts. Leaves: the contract in force by id. A name that no contract has is a ConfigurationError: a threshold
that is misspelt would never be in force.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from brickprof.contracts import own as owned
from brickprof.contracts import registry
from brickprof.contracts.schema import Contract
from brickprof.errors import ConfigurationError
from brickprof.settings import Settings, contract_texts


@dataclass(frozen=True)
class Terms:
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """``CONTRACT.threshold`` to its number."""
    suppressed: Mapping[str, str] = field(default_factory=dict)
    """Contract id to the user's reason."""
    own: Mapping[str, Contract] = field(default_factory=dict)
    """The user's own contracts, by id."""

    def __post_init__(self) -> None:
        for name in self.thresholds:
            identifier, _, threshold = name.rpartition(".")
            known = dict(self._known(identifier or name).thresholds)
            if threshold not in known:
                raise ConfigurationError(
                    f"{identifier or name} has no threshold {threshold!r}.", _nearest(threshold, list(known))
                )
        for identifier in self.suppressed:
            self._known(identifier)

    @classmethod
    def of(cls, settings: Settings) -> Terms:
        """The terms that settings ask for; the files of the user's contracts are read now."""
        return cls(settings.thresholds, settings.suppress, owned.read(contract_texts(settings)))

    @classmethod
    def recorded(cls, extra: Mapping[str, Any]) -> Terms:
        """The terms that a run was started with; what this version does not know of them is left out."""
        thresholds, suppressed = extra.get("thresholds"), extra.get("suppress")
        own = owned.recorded(extra.get("contracts"))
        known = {**registry.library(), **own}
        names = {f"{identifier}.{name}" for identifier, contract in known.items() for name, _ in contract.thresholds}
        return cls(
            {k: float(v) for k, v in thresholds.items() if k in names and _finite(v)}
            if isinstance(thresholds, dict)
            else {},
            {k: str(v) for k, v in suppressed.items() if k in known} if isinstance(suppressed, dict) else {},
            own,
        )

    def contract(self, identifier: str) -> Contract:
        """The contract with the thresholds in force."""
        found = self.own.get(identifier) or registry.find(identifier)
        ours = {
            name.rpartition(".")[2]: value
            for name, value in self.thresholds.items()
            if name.rpartition(".")[0] == identifier
        }
        if not ours:
            return found
        return replace(found, thresholds=tuple((name, ours.get(name, value)) for name, value in found.thresholds))

    def _known(self, identifier: str) -> Contract:
        known = {**registry.library(), **self.own}
        if identifier not in known:
            raise ConfigurationError(f"There is no contract {identifier!r}.", _nearest(identifier, sorted(known)))
        return known[identifier]


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _nearest(wanted: str, known: list[str]) -> str:
    close = get_close_matches(wanted, known, n=1, cutoff=0.4)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known) or 'none'}."
