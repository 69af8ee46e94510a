"""Protobuf without its descriptions: the fields of a message, by their numbers.

Enters: the bytes of one message. Leaves: number and value of each field, in order: an int of a varint, bytes of
everything else. Nothing is believed about what is inside; a message that is none raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a message has a field of the unknown kind {kind}")
        if size > end - at:
            raise ValueError("a message is shorter than it says")
        yield number, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that stands at ``at``, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a message ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number in a message does not end")


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A varint as sint64."""
    return (value >> 1) ^ -(value & 1)


def double(value: bytes) -> float:
    return float(struct.unpack("<d", value)[0])


def text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
