"""The script's output on its way to a terminal, with one live line of ours beneath it.

Enters: what the script writes, through a pseudo terminal of the same size that leaves every byte as it
is. Leaves: the same bytes in the same order on the real terminal; between them, and only where a line
has just ended, the live line, which is erased before the next byte of the script's.

A thread does the writing, so that a terminal that is slow or stopped (Ctrl-S) holds up the script, as it
always would, and never the supervisor.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import stat
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from brickprof.text import clean

_REFRESH = 0.25
_BACK_OFF = 2.0
_JOIN = 5.0
_ERASE = b"\r\x1b[K"
# Everything but colours (m) and erasing the line (K) moves the cursor or changes the screen: whoever writes
# that draws for himself, and a line of ours would be in his way.
_DRAWS = re.compile(rb"\x1b\[[0-9;?]*[A-JL-ln-z@`]|\x1b[78DMEc]")


def possible() -> bool:
    """Whether there is a terminal on stderr that a live line fits on."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        if not os.isatty(2) or os.get_terminal_size(2).columns < 20:
            return False
        # What reads a pipe (tee, less) most likely writes to this terminal too, where we cannot see it.
        return not stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False


class Relay:
    def __init__(self, line: Callable[[], str]) -> None:
        """``line`` gives the live line; "" for none."""
        self.terminal = os.dup(2)
        self.master, self.slave = pty.openpty()
        self.streams = [stream for stream in (1, 2) if _same_terminal(stream, 2)]
        self._line = line
        self._messages: deque[str] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._drawn = False
        self._shown = False  # also while the script is in the middle of a line
        self._at_start = True
        self._hold_until = 0.0
        self._text = b""
        self._text_at = 0.0
        self._size = b""
        _pass_bytes_unchanged(self.slave, like=self.terminal)
        self.resize()
        self._thread = threading.Thread(target=self._loop, name="brickprof-relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def resize(self) -> bool:
        """Gives the script's terminal the size of the real one; True when it changed."""
        try:
            size = fcntl.ioctl(self.terminal, termios.TIOCGWINSZ, bytes(8))
            if size == self._size:
                return False
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)
        except OSError:
            return False
        self._size = size
        return True

    def say(self, text: str) -> None:
        """One line of ours among the script's output."""
        self._messages.append(text)
        self._wake()

    def finish(self) -> None:
        """Passes on what is left, takes the live line away and stops."""
        self._stopping = True
        self._wake()
        self._thread.join(_JOIN)
        for descriptor in (self.master, self.slave, self.terminal, self._wake_read, self._wake_write):
            with suppress(OSError):
                os.close(descriptor)

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"w")

    def _loop(self) -> None:
        poller = select.poll()
        poller.register(self.master, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while not self._stopping:
            ready = {descriptor for descriptor, _ in poller.poll(_REFRESH * 1000)}
            if self._wake_read in ready:
                os.read(self._wake_read, 64)
            if self.master in ready:
                self._pass(os.read(self.master, 65536))
            self._write_messages()
            if not ready:
                self._refresh()
        self._drain()

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self.master, select.POLLIN)
        while poller.poll(0):
            self._pass(os.read(self.master, 65536))
        self._write_messages()
        self._write(self._erased())

    def _pass(self, data: bytes) -> None:
        out = self._erased() + data
        self._at_start = data.endswith(b"\n")
        if _DRAWS.search(data):
            self._hold_until = time.monotonic() + _BACK_OFF
            self._shown = False
        if self._shown and self._may_draw():
            out += self._drawing()
        self._write(out)

    def _refresh(self) -> None:
        if self._may_draw():
            line = self._drawing()
            if line:
                self._write(_ERASE + line)
        else:
            self._shown = False
            self._write(self._erased())

    def _write_messages(self) -> None:
        while self._messages:
            text = self._messages.popleft()
            start = self._erased() if self._at_start else b"\r\n"
            self._write(start + text.encode("utf-8", "replace") + b"\n")
            self._at_start = True

    def _may_draw(self) -> bool:
        return self._at_start and time.monotonic() >= self._hold_until and self._in_foreground()

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.terminal) == os.getpgrp()
        except OSError:
            return False

    def _drawing(self) -> bytes:
        now = time.monotonic()
        if now - self._text_at >= _REFRESH * 0.9:
            self._text = self._fresh_text()
            self._text_at = now
        self._drawn = self._shown = bool(self._text)
        return b"\x1b[2m" + self._text + b"\x1b[0m" if self._text else b""

    def _fresh_text(self) -> bytes:
        columns = int.from_bytes(self._size[2:4], sys.byteorder) or 80
        try:
            return clean(self._line())[: columns - 1].encode("utf-8", "replace")
        except Exception:  # a line of ours less; were this thread to end, the script's output would stop
            return b""

    def _erased(self) -> bytes:
        was, self._drawn = self._drawn, False
        return _ERASE if was else b""

    def _write(self, data: bytes) -> None:
        # A terminal that is gone takes nothing any more; the script is not to blame and goes on.
        with suppress(OSError):
            while data:
                data = data[os.write(self.terminal, data) :]


def _same_terminal(one: int, other: int) -> bool:
    try:
        return os.isatty(one) and os.isatty(other) and os.fstat(one).st_rdev == os.fstat(other).st_rdev
    except OSError:
        return False


def _pass_bytes_unchanged(slave: int, *, like: int) -> None:
    """The settings of the real terminal, without its output processing: that one is applied once, there."""
    attributes = termios.tcgetattr(like)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
