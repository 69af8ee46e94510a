"""The user's own contracts: files of a project, checked like the library's, and with formulas that can be evaluated.

Enters: the YAML of each file, by its name (``brickprof.settings.contract_texts``; a run keeps the same). Leaves:
``Contract`` by id. A file that cannot be kept to is a ConfigurationError that names the line: an obligation that nobody
checks would look like one that holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brickprof.contracts import formulas, registry
from brickprof.contracts.formulas import Formula
from brickprof.contracts.schema import Contract, Place, contract
from brickprof.errors import ConfigurationError


def read(texts: Mapping[str, str]) -> dict[str, Contract]:
    """The contracts in ``texts``, by id."""
    found: dict[str, Contract] = {}
    for file, text in texts.items():
        one = parse(text, file)
        if one.id in found or one.id in registry.library():
            already = "another file" if one.id in found else "brickprof's own library"
            raise ConfigurationError(
                f"{file} defines {one.id}, which {already} defines already.", "Give it another id."
            )
        found[one.id] = one
    return found


def recorded(texts: Any) -> dict[str, Contract]:
    """What a run was started with; what this version cannot read of it is left out."""
    found: dict[str, Contract] = {}
    for file, text in texts.items() if isinstance(texts, dict) else ():
        try:
            found |= read({str(file): str(text)})
        except ConfigurationError:
            continue
    return found


def parse(text: str, file: str) -> Contract:
    content = text.encode("utf-8", "surrogatepass")  # what is no text is no YAML either, which says so below
    if len(content) > registry.MAX_BYTES:
        raise ConfigurationError(f"{file} has {len(content):,} bytes; a contract has at most {registry.MAX_BYTES:,}.")
    document, lines = registry.parse(content, file)
    place = Place(file, lines)
    built = contract(document, place)
    if not built.bindings.rules:  # a rule of a plugin reads its contract itself
        for index, obligation in enumerate(built.obligations):
            told = formulas.parse(obligation.formal, dict(built.thresholds))
            if isinstance(told, str):
                raise place.error(("obligations", index, "formal"), told)
            if told.contract == built.id:
                raise place.error(("obligations", index, "formal"), "says that it holds if it holds")
    return built


def formula(one: Contract, index: int) -> Formula:
    """The formula of an obligation of a contract that was read here."""
    told = formulas.parse(one.obligations[index].formal, dict(one.thresholds))
    if isinstance(told, str):
        raise ConfigurationError(f"{one.id}: {one.obligations[index].formal!r} {told}.")
    return told
