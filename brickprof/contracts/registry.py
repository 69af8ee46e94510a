"""The contracts brickprof knows: the library's YAML files and third parties' folders.

Enters: ``library/*.yaml``. Leaves: ``Contract`` by id. YAML is read defensively: a size cap, no
aliases, no duplicate keys, no tags; every complaint names the file and the line.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from brickprof.contracts import catalogue
from brickprof.contracts.schema import Contract, Place, contract
from brickprof.errors import ConfigurationError

LIBRARY = Path(__file__).with_name("library")
MAX_BYTES = 256 * 1024
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@functools.cache
def library() -> dict[str, Contract]:
    """Every contract that ships with brickprof, by id."""
    known = catalogue.read(LIBRARY)
    return read_folder(LIBRARY) if known is None else known


def read_folder(folder: Path) -> dict[str, Contract]:
    contracts: dict[str, Contract] = {}
    origin: dict[str, Path] = {}
    for file in sorted(folder.glob("*.yaml")):
        one = read(file)
        if one.id in contracts:
            raise ConfigurationError(f"{file} defines {one.id}, which {origin[one.id].name} defines already.")
        contracts[one.id], origin[one.id] = one, file
    return contracts


def find(identifier: str) -> Contract:
    try:
        return library()[identifier]
    except KeyError:
        known = ", ".join(sorted(library()))
        raise ConfigurationError(f"There is no contract {identifier!r}.", f"Known: {known}.") from None


def read(file: Path) -> Contract:
    """The contract in ``file``."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}.") from None
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{file} has {len(content):,} bytes; a contract has at most {MAX_BYTES:,}.")
    document, lines = parse(content, str(file))
    return contract(document, Place(str(file), lines))


def parse(content: bytes, file: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The YAML document and the line of every value in it."""
    import yaml

    # libyaml reads the whole library in a tenth of the time, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(content, Loader=loader) if b"*" in content else ():
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise ConfigurationError(f"{file}:{line}: aliases are not read here.")
        lines: dict[tuple[str | int, ...], int] = {}
        return _plain(yaml.compose(content, Loader=loader), (), lines, file), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigurationError(f"{file}:{mark.line + 1 if mark else 1}: {problem}.") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{file}:1: this is not YAML text ({type(error).__name__}).") from None


def _plain(node: Any, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], file: str) -> Any:
    import yaml

    if node is None:
        return None
    line = node.start_mark.line + 1
    lines[path] = line
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise ConfigurationError(f"{file}:{line}: the tag {node.tag} is not read here.")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, index), lines, file) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigurationError(f"{file}:{at}: a key has to be a word.")
            if key_node.value in mapping:
                raise ConfigurationError(f"{file}:{at}: the key {key_node.value!r} stands here twice.")
            mapping[key_node.value] = _plain(value_node, (*path, key_node.value), lines, file)
            lines[(*path, key_node.value)] = at
        return mapping
    try:
        return _scalar(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        raise ConfigurationError(f"{file}:{line}: {node.value!r} is not a plain value.") from None


def _scalar(node: Any) -> Any:
    if node.tag == "tag:yaml.org,2002:str":
        return node.value  # most of them: no loader is made for each
    import yaml

    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()
