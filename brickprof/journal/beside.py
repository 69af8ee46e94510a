"""Pieces of a long file that two processes take, this one and one beside it (``errands``).

Enters: the number of pieces, and what takes one of them. Leaves: the pieces that the other process took; where it was
killed or met something odd, all are left to this one. Arrays lie in memory that both see, at the place that their bytes
have in the file; all else is JSON.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

from brickprof.journal.errands import Errand
from brickprof.journal.pieces import Column, Layout, Odd, Piece, Place, Stretch

_MOST = 2**10
"""Pieces that are handed out by a pipe: as many as fit into the smallest there is, one page."""
_WIDTH = 4
_POLITE = 10
"""This process comes to its samples last: whoever does what it waits for first goes before."""
_ALIGNED = 16


class Beside:
    """Hands out the numbers of pieces, to both processes, and collects what the other one took."""

    def __init__(self, pieces: int, size: int, take: Callable[[int], Piece]) -> None:
        if pieces > _MOST:
            raise OSError("too many pieces")
        self._memory, self._owner = mmap.mmap(-1, size), os.getpid()
        self._turns, hand_out = os.pipe()
        os.write(hand_out, b"".join(number.to_bytes(_WIDTH, "little") for number in range(pieces)))
        os.close(hand_out)
        try:
            self._errand = Errand(lambda: self._work(take))
        except OSError:
            os.close(self._turns)
            raise

    def turns(self) -> Iterator[int]:
        """The numbers of pieces that nobody has begun."""
        while number := os.read(self._turns, _WIDTH):
            yield int.from_bytes(number, "little")

    def taken(self) -> dict[int, Piece]:
        """What the other process took, by the number of the piece; it is over then."""
        lines = (self._errand.answer() or b"").split(b"\n")
        os.close(self._turns)
        return dict(self._read(json.loads(line)) for line in lines if line)

    # -- in the other process

    def _work(self, take: Callable[[int], Piece]) -> bytes:
        os.nice(_POLITE)
        wanted = (number for number in self.turns() if os.getppid() == self._owner)  # else nobody is left to ask
        return b"\n".join(self._written(number, take(number)) for number in wanted)

    def _written(self, number: int, piece: Piece) -> bytes:
        layouts = list({id(stretch.layout): stretch.layout for stretch in piece.stretches}.values())
        place = piece.first
        columns: dict[str, list[Any]] = {}
        for name, parts in piece.columns.items():
            columns[name] = []
            for rows, *arrays in parts:
                told = []
                for array in arrays:
                    where, place = self._put(array, place, piece.last)
                    told.append(where)
                columns[name].append([rows, *told])
        fields = {
            "number": number, "first": piece.first, "last": piece.last, "checksum": piece.checksum, "columns": columns,
            "layouts": [[layout.rows, layout.places] for layout in layouts],
            "stretches": [[*each[:3], next(at for at, one in enumerate(layouts) if one is each.layout)]
                          for each in piece.stretches],
        }  # fmt: skip
        return json.dumps(fields).encode()

    def _put(self, array: Any, place: int, end: int) -> tuple[list[Any] | None, int]:
        """Where an array lies now, and what is free behind it. Columns are parts of their frames: there is room."""
        if array is None:
            return None, place
        if array.strides == (0,):
            return [array.dtype.str, len(array), -1], place  # nothing but zeros
        start = -(-place // _ALIGNED) * _ALIGNED
        if start + array.nbytes > end:
            raise Odd
        self._memory[start : start + array.nbytes] = memoryview(array).cast("B")
        return [array.dtype.str, len(array), start], start + array.nbytes

    # -- in this one

    def _read(self, fields: dict[str, Any]) -> tuple[int, Piece]:
        layouts = [
            Layout(rows, {name: Place(*at) for name, at in places.items()}) for rows, places in fields["layouts"]
        ]
        columns = {
            name: [Column(rows, self._array(values), self._array(present)) for rows, values, present in parts]
            for name, parts in fields["columns"].items()
        }
        piece = Piece(fields["first"], columns)
        piece.last, piece.checksum = fields["last"], fields["checksum"]
        piece.stretches = [
            Stretch(start, length, number, layouts[layout]) for start, length, number, layout in fields["stretches"]
        ]
        return fields["number"], piece

    def _array(self, where: list[Any] | None) -> Any:
        import numpy as np

        if where is None:
            return None
        kind, rows, start = where
        if start < 0:
            return np.broadcast_to(np.dtype(kind).type(0), rows)
        return np.frombuffer(self._memory, kind, rows, start)
