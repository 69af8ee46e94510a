"""A pickle that holds plain data, without unpickling it.

Enters: bytes. Leaves: dicts, lists, tuples, text, bytes, numbers, True, False and None, put together here from the
pickle's own opcodes. Nothing is imported and nothing is called: a pickle that names a class or a function is refused.
Of one that is cut off, what was there before is put together as far as it goes.
"""

from __future__ import annotations

import pickletools
from typing import Any

from brickprof.errors import UnreadableInput

_VALUES = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8",
})  # fmt: skip
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUT = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GET = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def load(data: bytes, shown: str) -> tuple[Any, str]:
    """What the pickle holds, and what is wrong with it, if anything. ``shown``: what an error calls the file."""
    machine = _Machine(shown)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
    except UnreadableInput:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        return machine.rescue(), f"the pickle is damaged or cut off ({error})"
    return machine.stack[-1] if machine.stack else None, ""


class _Machine:
    def __init__(self, shown: str) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._shown = shown

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _FIXED:
            stack.append(_FIXED[name])
        elif name in _PUT:
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _GET:
            stack.append(self._memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(stack) < count or any(item is _MARK for item in stack[-count:]):
                raise ValueError("a tuple has too few elements")
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            stack.append(_MARK)
        else:
            self._build(name)

    def _build(self, name: str) -> None:
        stack = self.stack
        if name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "LIST":
            stack.append(self._since_mark())
        elif name == "DICT":
            stack.append(_pairs(self._since_mark()))
        elif name == "APPEND":
            item = stack.pop()
            self._top(list).append(item)
        elif name == "APPENDS":
            items = self._since_mark()
            self._top(list).extend(items)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._top(dict)[key] = value
        elif name == "SETITEMS":
            items = self._since_mark()
            self._top(dict).update(_pairs(items))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise UnreadableInput(
                f"{self._shown} is a pickle that does more than hold data ({name}): it was not opened.",
                "A flight-recorder dump holds only plain values; do not unpickle this file either.",
            )

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise ValueError(f"there is no {kind.__name__} to add to")
        return self.stack[-1]

    def _since_mark(self) -> list[Any]:
        items: list[Any] = []
        while self.stack:
            item = self.stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)
        raise ValueError("there is no mark")

    def rescue(self) -> Any:
        """The outermost value, with everything in it that was begun."""
        while self.stack:
            if _MARK not in self.stack:
                return self.stack[0]
            items = self._since_mark()
            try:
                if self.stack and isinstance(self.stack[-1], list):
                    self.stack[-1].extend(items)
                elif self.stack and isinstance(self.stack[-1], dict):
                    self.stack[-1].update(_pairs(items[: len(items) // 2 * 2]))
            except TypeError:
                continue
        return None


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
