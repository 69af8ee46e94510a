"""What keeps a script's output flowing when its supervisor is killed.

On a terminal the supervisor relays the script's output through a pseudo terminal. Were it killed, the
script's next ``print`` would fail or block. So the script's process keeps three descriptors: a pipe that
breaks when the supervisor dies, the pseudo terminal's other end, and the real terminal.

Enters: ``BRICKPROF_LIFELINE`` ("pipe,master,terminal,streams"). Leaves: nothing, until the pipe breaks;
then output goes to the real terminal.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from types import FrameType

from brickprof.capture.boot import LIFELINE_VARIABLE

BROKEN_SIGNAL = int(getattr(signal, "SIGRTMAX", 4)) - 4


def hold() -> None:
    """Asks the kernel for a signal when the supervisor is gone. Costs nothing until then."""
    given = os.environ.pop(LIFELINE_VARIABLE, "")
    if not given:
        return
    pipe, master, terminal, *streams = (int(number) for number in given.split(","))
    for descriptor in (pipe, master, terminal):
        os.set_inheritable(descriptor, False)
    os.set_blocking(pipe, False)
    if signal.getsignal(BROKEN_SIGNAL) is not signal.SIG_DFL:
        return

    def broken(_number: int, _frame: FrameType | None) -> None:
        try:
            if os.read(pipe, 1):
                return
        except OSError:
            return
        with suppress(OSError):
            _take_over(pipe, master, terminal, streams)

    signal.signal(BROKEN_SIGNAL, broken)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, BROKEN_SIGNAL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _take_over(pipe: int, master: int, terminal: int, streams: list[int]) -> None:
    import threading

    os.close(pipe)
    os.set_blocking(master, False)
    _drain(master, terminal)
    for stream in streams:
        os.dup2(terminal, stream)
    os.set_blocking(master, True)
    # Processes below this one still write to the pseudo terminal.
    threading.Thread(target=_drain, args=(master, terminal), daemon=True, name="brickprof-output").start()


def _drain(master: int, terminal: int) -> None:
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:
            return
        if not data:
            return
        with suppress(OSError):
            while data:
                data = data[os.write(terminal, data) :]
