"""One long JSON text, piece by piece.

Enters: a stream of bytes. Leaves: the members of its object, or the elements of its array, one after the other, without
ever holding all of it. What cannot be read ends it with a ValueError that says where; of an array, an element that is
damaged is stepped over.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

_READ = 1 << 20
LONGEST = 16 << 20
"""Characters of one value."""
_MOST_DAMAGED = 100
_DECODER = json.JSONDecoder(strict=False)
_SPACE = " \t\r\n"


class JsonText:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text, self._at, self._before = "", 0, 0
        self._ended = False
        self.damaged = 0
        """Elements that were stepped over."""

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_READ):
                return ""

    def take(self, wanted: str) -> None:
        found = self.peek()
        if found != wanted:
            raise ValueError(f"{found!r} stands where {wanted!r} should, at character {self._place()}")
        self._at += 1

    def value(self) -> Any:
        """The value that stands here, whole."""
        if not self.peek():
            raise ValueError(f"the text is cut off, at character {self._place()}")
        wanted = _READ
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise ValueError(f"what begins at character {self._place()} is nested too deep") from None
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LONGEST or not self._more(wanted):
                    raise ValueError(f"{error.msg}, after character {self._place()}") from None
            else:
                if end < len(self._text) or not self._more(_READ):
                    self._at = end
                    return found
            wanted *= 2

    def end(self) -> None:
        """Nothing but space may follow."""
        if found := self.peek():
            raise ValueError(f"{found!r} stands behind the end, at character {self._place()}")

    def members(self) -> Iterator[str]:
        """The names in the object that begins here; whoever takes one reads its value before the next."""
        self.take("{")
        while self.peek() == '"':
            name = self.value()
            self.take(":")
            yield name
            if self.peek() != ",":
                break
            self._at += 1
        self.take("}")

    def elements(self) -> Iterator[Any]:
        """The elements of the array that begins here."""
        self.take("[")
        while self.peek() != "]":
            try:
                element = self.value()
            except ValueError:
                if not self._step_over():
                    raise
                continue
            yield element
            if self.peek() == ",":
                self._at += 1
            elif self.peek() != "]":
                self.take("]")
        self._at += 1

    def _step_over(self) -> bool:
        """Goes behind the next ``},``: an object may begin there."""
        found = self._text.find("},", self._at)
        self.damaged += 1
        if found < 0 or self.damaged > _MOST_DAMAGED:
            return False
        self._at = found + 2
        return True

    def _more(self, size: int) -> bool:
        if self._ended:
            return False
        read = self._stream.read(size)
        self._ended = not read
        self._before += self._at
        self._text, self._at = self._text[self._at :] + self._decode(bytes(read), final=not read), 0
        return True

    def _place(self) -> int:
        return self._before + self._at
