"""The settings of a run: defaults < pyproject.toml < environment < flags.

Enters: ``[tool.brickprof]`` of the nearest pyproject.toml, ``BRICKPROF_*`` variables, keyword
overrides. Leaves: one frozen ``Settings``, which a supervisor hands to its children as JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from brickprof.errors import ConfigurationError

LEVELS = ("light", "standard", "deep")
_PROMISED = {"light": 0.003, "standard": 0.01, "deep": 0.01}
"""What each level may cost, unless somebody says otherwise, as a share of the step time."""

RUN_VARIABLE = "BRICKPROF_RUN"
SETTINGS_VARIABLE = "BRICKPROF_SETTINGS"
"""What a supervisor sets for its children: the run's folder, and these settings as JSON."""

CONTRACTS_FOLDER = "brickprof-contracts"
"""Where a project keeps contracts of its own: beside its pyproject.toml."""
_ROOT_MARKS = ("pyproject.toml", ".git")
_YAML = (".yaml", ".yml")
_MOST_CONTRACTS = 2**20
_SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, slots=True)
class Settings:
    level: str = "standard"
    overhead: float | None = None
    """Share of the step time that capture may take, if somebody says so; see ``budget``."""
    max_bytes: int = 256 * 2**20
    """Size cap of the journal of one rank."""
    escalation_steps: int = 8
    """How many steps stay in deep capture after an anomaly."""
    deep_at: int | None = None
    """A step around which everything is captured, whatever the level: it, the one before and those that follow it."""
    sync_check: bool = False
    """Whether copies and streams are checked for missing syncs; ``deep`` does that too."""
    hang_seconds: float = 300.0
    card_seconds: float = 1.0
    """How often the supervisor looks at the cards; 0 means never."""
    out: str = "brickprof-runs"
    otlp: str = ""
    """OTLP endpoint that the supervisor exports to; empty means none."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Thresholds of contracts that are not the library's: ``{"C-CLIP-001.max": 2.0}``."""
    budgets: dict[str, float] = field(default_factory=dict)
    """What bricks may take on a device, in microseconds: ``{"blocks.*.attention": 500, "head backward": 900}``."""
    suppress: dict[str, str] = field(default_factory=dict)
    """Contracts whose violations are only noted, each with the reason why."""
    contracts: tuple[str, ...] = ()
    """Files of contracts of the user's own, or folders of them; ``load`` adds the project's ``brickprof-contracts``."""

    @property
    def budget(self) -> float:
        """Share of the step time that capture may take; cadence adapts to stay inside it."""
        return _PROMISED[self.level] if self.overhead is None else self.overhead

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"{SETTINGS_VARIABLE} is not JSON: {error}.") from None
        return checked(cls(), given, where=SETTINGS_VARIABLE)


def load(overrides: Mapping[str, Any] | None = None, *, start: Path | None = None) -> Settings:
    """The settings in force for a command started in ``start``."""
    here = start or _here()
    table, where, home = _pyproject_table(here)
    settings = _at(home, checked(Settings(), table, where=where))
    environment = {
        field.name: os.environ[f"BRICKPROF_{field.name.upper()}"]
        for field in fields(Settings)
        if f"BRICKPROF_{field.name.upper()}" in os.environ
    }
    settings = checked(settings, environment, where="the environment")
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    settings = _at(here, checked(settings, given, where="the command line"))
    return replace(settings, contracts=tuple(dict.fromkeys((*settings.contracts, *_found_contracts(here)))))


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigurationError(f"the working directory is gone: {error.strerror}.") from None


def repository(start: Path) -> Path:
    """The root of the project around ``start``: the nearest folder with a pyproject.toml or a .git, else itself."""
    marked = (folder for folder in (start, *start.parents) if any((folder / mark).exists() for mark in _ROOT_MARKS))
    return next(marked, start)


def contract_texts(settings: Settings) -> dict[str, str]:
    """The contracts of the user's own as they are written, by file: a run keeps them, to be judged on them later."""
    found: dict[str, str] = {}
    for place in map(Path, settings.contracts):
        found.update((str(file), _contract_text(file)) for file in _contract_files(place))
    if sum(map(len, found.values())) > _MOST_CONTRACTS:
        raise ConfigurationError(
            f"the contracts in {', '.join(settings.contracts)} are longer than {_MOST_CONTRACTS:,} characters.",
            "A run keeps a copy of them: name fewer files.",
        )
    return found


def terms_in_words(settings: Settings) -> dict[str, Any]:
    """What a run will be judged on, as its meta.json keeps it (``brickprof.contracts.terms.Terms.recorded``)."""
    return {
        "thresholds": settings.thresholds, "suppress": settings.suppress, "contracts": contract_texts(settings),
    }  # fmt: skip


def _contract_files(place: Path) -> list[Path]:
    """``place`` itself, or what lies in it; an editor's hidden files (``.#clip.yaml``) are not the user's contracts."""
    try:
        if not place.is_dir():
            return [place]
        return sorted(each for each in place.iterdir() if each.suffix in _YAML and not each.name.startswith("."))
    except OSError as error:
        raise ConfigurationError(f"the contracts in {place} cannot be read: {error.strerror or error}.") from None


def _contract_text(file: Path) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise ConfigurationError(f"the contract {file} cannot be read: this is no file.")
        with file.open(encoding="utf-8") as stream:
            return stream.read(_MOST_CONTRACTS + 1)
    except (OSError, ValueError) as error:  # of a name that no file can have, too
        reason = getattr(error, "strerror", None) or "this is not UTF-8 text"
        raise ConfigurationError(f"the contract {file} cannot be read: {reason}.") from None


def checked(base: Settings, given: Mapping[str, Any], *, where: str) -> Settings:
    """``base`` with ``given`` applied, every value validated."""
    known = {field.name for field in fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        key = name.replace("-", "_")
        if key not in known:
            raise ConfigurationError(
                f"{where} sets {name!r}, which is no setting.", f"Settings: {', '.join(sorted(known))}."
            )
        values[key] = _PARSERS[key](value, f"{key} in {where}")
    return replace(base, **values)


def share(value: Any, name: str) -> float | None:
    """ "1%", "0.01" or 0.01 as 0.01."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise ConfigurationError(f"{name} is {value!r}.", "Give a share such as 1% or 0.01, at most 100%.")
    return number


def size(value: Any, name: str) -> int:
    """ "256MB", "1GiB" or a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", str(value).lower())
    if not match:
        raise ConfigurationError(f"{name} is {value!r}.", "Give a size such as 256MB or 1GiB.")
    number = _number(match[1]) * _UNITS[match[2] or ""]
    if not 2**20 <= number < 2**63:
        raise ConfigurationError(f"{name} is {value!r}.", "A journal needs at least 1MiB.")
    return int(number)


def _level(value: Any, name: str) -> str:
    if value not in LEVELS:
        raise ConfigurationError(f"{name} is {value!r}.", f"Levels: {', '.join(LEVELS)}.")
    return str(value)


def _seconds(value: Any, name: str) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number >= 0):
        raise ConfigurationError(f"{name} is {value!r}.", "Give seconds, 0 to switch it off.")
    return number


def _count(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name} is {value!r}.", "Give a whole number, 0 or more.")
    return number


def _number(value: Any) -> float:
    """NaN for what is no number, or none that can be counted with."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _step(value: Any, name: str) -> int | None:
    return None if value is None else _count(value, name)


def _switch(value: Any, name: str) -> bool:
    told = _SWITCHES.get(str(value).strip().lower())
    if told is None:
        raise ConfigurationError(f"{name} is {value!r}.", "Give true or false.")
    return told


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} is {value!r}.", "Give text.")
    return value


def numbers(value: Any, name: str) -> dict[str, float]:
    """``{"C-CLIP-001.max": 2}``, the same as nested tables, or texts such as ``C-CLIP-001.max=2``."""
    found = {}
    for key, given in _pairs(value, name, "CONTRACT.NAME=NUMBER").items():
        found[key] = _number(given)
        if not math.isfinite(found[key]):
            raise ConfigurationError(f"{key} in {name} is {given!r}.", "A threshold is a finite number.")
    return found


def budgets(value: Any, name: str) -> dict[str, float]:
    """``{"blocks.*": 500}``, or texts such as ``blocks.*=500``: a positive number of microseconds each."""
    found = {}
    for key, given in _pairs(value, name, "BRICK=MICROSECONDS").items():
        found[key] = _number(given)
        if not (math.isfinite(found[key]) and found[key] > 0):
            raise ConfigurationError(f"{key} in {name} is {given!r}.", "A budget is a positive number of microseconds.")
    return found


def reasons(value: Any, name: str) -> dict[str, str]:
    """``{"C-BATCH-001": "a toy on purpose"}``, or texts such as ``C-BATCH-001=a toy on purpose``."""
    found = {}
    for key, given in _pairs(value, name, "CONTRACT=REASON").items():
        if not isinstance(given, str) or not given.strip():
            raise ConfigurationError(f"{key} in {name} has no reason.", "Say why: CONTRACT=REASON.")
        found[key] = given.strip()
    return found


def paths(value: Any, name: str) -> tuple[str, ...]:
    """``["contracts", "shared/clip.yaml"]``, or one text with the platform's separator of paths between them."""
    listed = value.split(os.pathsep) if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        raise ConfigurationError(f"{name} is {value!r}.", "Give a list of files or folders.")
    return tuple(each for each in listed if each.strip())


def _pairs(value: Any, name: str, shape: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if isinstance(value, Mapping):
        return {
            key: item
            for outer, inner in value.items()
            for key, item in (
                ((f"{outer}.{each}", part) for each, part in inner.items())
                if isinstance(inner, Mapping)
                else ((str(outer), inner),)
            )
        }
    found: dict[str, Any] = {}
    for text in value if isinstance(value, (list, tuple)) else [value]:
        key, separator, given = str(text).partition("=")
        if not separator or not key.strip():
            raise ConfigurationError(f"{name} holds {text!r}.", f"Write {shape}.")
        found[key.strip()] = given.strip()
    return found


_PARSERS = {
    "level": _level,
    "overhead": share,
    "max_bytes": size,
    "escalation_steps": _count,
    "deep_at": _step,
    "sync_check": _switch,
    "hang_seconds": _seconds,
    "card_seconds": _seconds,
    "out": _text,
    "otlp": _text,
    "thresholds": numbers,
    "budgets": budgets,
    "suppress": reasons,
    "contracts": paths,
}


def _at(folder: Path, settings: Settings) -> Settings:
    """The settings with paths that mean the same from everywhere."""
    places = (os.path.normpath(folder / os.path.expanduser(each)) for each in settings.contracts)
    return replace(settings, contracts=tuple(places))


def _found_contracts(start: Path) -> tuple[str, ...]:
    folder = repository(start) / CONTRACTS_FOLDER
    return (str(folder),) if folder.is_dir() else ()


def _pyproject_table(start: Path) -> tuple[dict[str, Any], str, Path]:
    import tomllib  # a report reads none

    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            with file.open("rb") as stream:
                document = tomllib.load(stream)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
            return {}, "", folder  # somebody else's file, somebody else's error
        tools = document.get("tool")
        table = tools.get("brickprof", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            raise ConfigurationError(f"[tool.brickprof] in {file} is not a table.")
        return table, f"[tool.brickprof] of {file}", folder
    return {}, "", start
