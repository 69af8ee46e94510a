"""Records in frames, as TensorFlow and LevelDB write them to a file.

Enters: a stream of bytes, and a list for what is damaged, in words. Leaves: every record that is whole, with the place
it begins at. A record whose check does not fit is left out; where the length itself is not to be trusted, reading goes
on at the next frame that checks out, or at the next block.

    TensorFlow   length (8 bytes), check of the length, data, check of the data; checks are masked CRC-32C
    LevelDB      blocks of 32 KiB; check (CRC-32 of kind and data, as Weights & Biases writes it), length, kind, data; a
                 record that does not fit into a block goes on in the next
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 64 << 20
"""Bytes of a record; what is longer holds no numbers of a training."""
BLOCK = 32 << 10
_CHECKED = 64 << 10
"""Longer data is not checked: it is an image or a graph, and the check is slow here."""
_READ = 1 << 20
_HEAD = 12
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_SAID = 20


def tensorflow(stream: Any, damage: list[str]) -> Iterator[tuple[int, bytes]]:
    window = _Window(stream)
    while head := window.show(_HEAD):
        at = window.at
        if len(head) < _HEAD:
            say(damage, f"the last record is cut off, at byte {at}")
            return
        length, check = struct.unpack("<QI", head)
        if _check_of_length(head[:8]) != check:
            if not window.find_frame():
                say(damage, f"nothing that can be read follows byte {at}")
                return
            say(damage, f"bytes {at} to {window.at} are damaged")
            continue
        if length > MOST:
            say(damage, f"the record at byte {at} says that it has {length >> 20} MiB: it was left out")
            window.drop(_HEAD + length + 4)
            continue
        whole = window.show(_HEAD + length + 4)
        window.drop(len(whole))
        if len(whole) < _HEAD + length + 4:
            say(damage, f"the last record is cut off, at byte {at}")
            return
        data = whole[_HEAD:-4]
        if length <= _CHECKED and masked_crc32c(data) != int.from_bytes(whole[-4:], "little"):
            say(damage, f"the record at byte {at} is damaged")
            continue
        yield at, data


def leveldb(stream: Any, damage: list[str], *, header: int) -> Iterator[tuple[int, bytes]]:
    """``header``: how many bytes stand before the first record of the file."""
    parts: list[bytes] = []
    begun, start = 0, 0
    while block := _read(stream, BLOCK):
        at = 0 if start else header
        while at + 7 <= len(block):
            check, length, kind = struct.unpack_from("<IHB", block, at)
            if not kind and not length:
                break  # the rest of the block is padding
            data = block[at + 7 : at + 7 + length]
            if len(data) < length and len(block) < BLOCK:
                say(damage, f"the last record is cut off, at byte {start + at}")
                return
            if not _FULL <= kind <= _LAST or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
                say(damage, f"the block at byte {start} is damaged, from its byte {at} on")
                parts = []
                break
            if kind in (_FULL, _FIRST):
                if parts:
                    say(damage, f"the record at byte {begun} has no end")
                parts, begun = [data], start + at
            elif parts:
                parts.append(data)
            at += 7 + length
            if kind in (_FULL, _LAST) and parts:
                yield begun, b"".join(parts)
                parts = []
            elif len(parts) * BLOCK > MOST:
                say(damage, f"the record at byte {begun} is longer than {MOST >> 20} MiB: it was left out")
                parts = []
        start += len(block)
    if parts:
        say(damage, f"the record at byte {begun} has no end")


def masked_crc32c(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(maxsize=4096)
def _check_of_length(size: bytes) -> int:
    return masked_crc32c(size)  # most records are of a few lengths


def crc32c(data: bytes) -> int:
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


class _Window:
    """A part of the stream that moves on."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._data, self._begin = stream, b"", 0
        self._done = 0
        """Bytes of the stream before ``_data``."""

    @property
    def at(self) -> int:
        return self._done + self._begin

    def show(self, size: int) -> bytes:
        """The next ``size`` bytes, or as many as there are."""
        if len(self._data) - self._begin < size:
            rest = self._data[self._begin :]
            self._done += self._begin
            self._data, self._begin = rest + _read(self._stream, max(_READ, size - len(rest))), 0
        return self._data[self._begin : self._begin + size]

    def drop(self, size: int) -> None:
        if size <= len(self._data) - self._begin:
            self._begin += size
            return
        while size > 0:
            gone = len(self.show(min(size, _READ)))
            if not gone:
                return
            self._begin += gone
            size -= gone

    def find_frame(self) -> bool:
        """Moves on to the next place where a length and its check fit; False where there is none."""
        self.drop(1)
        while len(self.show(_READ)) >= _HEAD:
            found = _frames_in(np.frombuffer(self.show(_READ), dtype=np.uint8))
            if len(found):
                self.drop(int(found[0]))
                return True
            self.drop(len(self.show(_READ)) - _HEAD + 1)
        return False


def _frames_in(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Every place in ``data`` at which eight bytes are followed by their own check."""
    table = np.asarray(_table(), dtype=np.uint32)
    count = len(data) - _HEAD + 1
    crc = np.full(count, 0xFFFFFFFF, dtype=np.uint32)
    for byte in range(8):
        crc = table[(crc ^ data[byte : byte + count]) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    check = np.zeros(count, dtype=np.uint32)
    for byte in range(4):
        check |= data[8 + byte : 8 + byte + count].astype(np.uint32) << np.uint32(8 * byte)
    return np.flatnonzero(masked == check)


def _read(stream: Any, size: int) -> bytes:
    parts = []
    while size > 0 and (read := stream.read(size)):
        parts.append(bytes(read))
        size -= len(read)
    return b"".join(parts)


def say(damage: list[str], text: str) -> None:
    if len(damage) < _MOST_SAID:
        damage.append(text)
