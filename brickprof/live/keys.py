"""The keyboard of a full screen.

Enters: a terminal. Leaves: the names of the keys that were pressed, while the terminal shows none of them; its old
settings come back whatever happens.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Any, Self

_NAMES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up", b"\x1b[Z": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\t": "down", b"q": "quit", b"Q": "quit", b"p": "pause", b"P": "pause", b" ": "pause",
}  # fmt: skip
_LONGEST = 3


class Keys:
    """Inside ``with``: single keys, unechoed. Without a terminal at ``descriptor`` there are none."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        import termios
        import tty

        with suppress(termios.error, OSError):
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        if self._before is not None:
            with suppress(termios.error, OSError):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            self._before = None

    def wait(self, seconds: float) -> list[str]:
        """The keys pressed within ``seconds``; returns with the first."""
        if self._before is None:
            time.sleep(seconds)
            return []
        if not select.select([self._descriptor], [], [], seconds)[0]:
            self._rest = b""
            return []
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            return ["quit"]
        found, self._rest = named(self._rest + data)
        return found


def named(data: bytes) -> tuple[list[str], bytes]:
    """The keys in ``data``, and the beginning of one that is not whole yet."""
    found = []
    while data:
        for length in range(_LONGEST, 0, -1):
            name = _NAMES.get(data[:length])
            if name is not None:
                found.append(name)
                data = data[length:]
                break
        else:
            if len(data) < _LONGEST and any(key.startswith(data) for key in _NAMES):
                return found, data
            data = data[1:]
    return found, b""
