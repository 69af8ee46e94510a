"""JSON as trainers write it: NaN and Infinity, numbers as strings, objects in objects, files that are cut off.

Enters: text that may be anything. Leaves: the numbers in an object under flat names (``train/loss``), and, of
a file that is one object or one array, its entries up to where it breaks. The only error is ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brickprof.logs.reading import names
from brickprof.logs.reading.numbers import number

_DEEPEST = 24
_MOST_NAMES = 2_000
_LONGEST_NAME = 200
LONGEST_LIST = 8
_LONGEST_WHOLE = 308
_BLANK = " \t\r\n"


def _whole(digits: str) -> int | None:
    """A number without a point; one that no number can hold is none."""
    return int(digits) if len(digits) <= _LONGEST_WHOLE else None


_DECODER = json.JSONDecoder(parse_int=_whole)


def parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("objects are nested too deep") from None


def numeric(name: str, value: Any) -> float | None:
    """The number in ``value``. True and false are numbers only where they count updates that were left out."""
    if isinstance(value, bool):
        return float(value) if names.role(name) in ("skipped", "nonfinite") else None
    if isinstance(value, float | int):
        return float(value)
    return number(value) if isinstance(value, str) and len(value) < 64 else None


def flat(value: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an object and of the objects in it, under names with ``/`` between. A list of numbers whose name
    says what they are holds one, or several that are numbered; any other list is no number."""
    found: dict[str, float] = {}
    _flatten(value, "", found, 0)
    return found


def _flatten(value: Mapping[str, Any], before: str, found: dict[str, float], depth: int) -> None:
    for key, held in value.items():
        if len(key) > _LONGEST_NAME or len(found) >= _MOST_NAMES:
            continue
        name = before + key
        kind = type(held)
        if kind is float or kind is int:
            if name:
                found[name] = float(held)
        elif kind is dict:
            if depth < _DEEPEST and not isinstance(held.get("_type"), str):  # so W&B marks pictures and histograms
                _flatten(held, f"{name}/", found, depth + 1)
        elif kind is list:
            found.update(_listed(name, held))
        elif held is not None and name and (one := numeric(name, held)) is not None:
            found[name] = one


def _listed(name: str, held: list[Any]) -> dict[str, float]:
    if not 0 < len(held) <= LONGEST_LIST or names.role(name) == "other":
        return {}
    if not all(type(one) is float or type(one) is int for one in held):
        return {}
    if len(held) == 1:
        return {name: float(held[0])}
    return {f"{name}/{place}": float(one) for place, one in enumerate(held)}


# -- a file that is one value


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file: under ``key`` of its object (empty of an array), at ``place`` of a list there."""

    key: str
    place: int | None
    value: Any
    line: int


class Broken(ValueError):
    """The text ends, or stops being JSON, in this line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"{why} in line {line}")
        self.line = line


class Walk:
    """The entries of a JSON text, one after another; raises Broken where it breaks, behind all that is whole."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1

    def __iter__(self) -> Iterator[Entry]:
        self._blank()
        first = self._peek()
        if first == "[":
            yield from self._list("")
        elif first == "{":
            yield from self._object()
        else:
            raise Broken(1, "there is no JSON object")

    def _object(self) -> Iterator[Entry]:
        self._at += 1
        while self._more("}"):
            key = self._value()
            self._blank()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._broken()
            self._at += 1
            self._blank()
            if self._peek() == "[":
                yield from self._list(key)
            else:
                line = self._here()
                yield Entry(key, None, self._value(), line)

    def _list(self, key: str) -> Iterator[Entry]:
        self._at += 1
        place = 0
        while self._more("]"):
            line = self._here()
            yield Entry(key, place, self._value(), line)
            place += 1

    def _more(self, closing: str) -> bool:
        """Whether another entry begins here."""
        self._blank()
        if self._peek() == ",":
            self._at += 1
            self._blank()
        if self._peek() == closing:
            self._at += 1
            return False
        return True

    def _value(self) -> Any:
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except RecursionError:
            raise Broken(self._here(), "objects are nested too deep") from None
        except ValueError:
            raise self._broken() from None
        if self._at >= len(self._text) and isinstance(value, float | int):
            raise self._broken()  # a number that ends with the text may have been longer
        return value

    def _blank(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _broken(self) -> Broken:
        whole = self._text.rstrip(_BLANK)
        cut_off = not whole.endswith(("}", "]")) or self._at >= len(whole)
        return Broken(self._here(), "the file is cut off" if cut_off else "the file stops being JSON")
