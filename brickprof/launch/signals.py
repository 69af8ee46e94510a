"""Signals of a supervisor: received one by one, never in the middle of something else.

Enters: what the user, the terminal or a scheduler sends. Leaves: for each signal, whether the script
must be told (a terminal's Ctrl-C has reached it already) and when patience ends.

The signals are blocked and fetched with ``sigtimedwait``: nothing is lost between two waits, and the
sender is known. The script is started with the mask that the supervisor found, so it never sees this.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_OWN = (signal.SIGCHLD, signal.SIGWINCH)

PATIENCE = 3.0
"""Seconds between the second request to stop and SIGKILL."""
LAUNCHER_PATIENCE = 25.0
"""torchrun follows its SIGTERM with a SIGKILL to us after 30 s; the script must not outlive that."""
_SAME_REQUEST = 1.0
_FROM_KERNEL = 0x80
_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    number: int
    from_terminal: bool = False
    sender: int = 0


class Inbox:
    """Blocks the signals of a supervisor while it is open."""

    def __init__(self) -> None:
        wanted = (*STOPPING, *PASSED_ON)
        # One that is ignored (nohup) was meant to be ignored; blocked, it would reach us all the same.
        heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        self.numbers: frozenset[int] = frozenset((*heard, *_OWN))
        self.mask_before: Iterable[int] = ()

    def __enter__(self) -> Inbox:
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, self.numbers)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.wait(0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)

    def wait(self, seconds: float) -> Arrival | None:
        """The next signal, or None when none came in time."""
        if not hasattr(signal, "sigtimedwait"):
            return self._poll(seconds)
        try:
            info = signal.sigtimedwait(self.numbers, max(0.0, seconds))
        except InterruptedError:
            return None
        if info is None:
            return None
        terminal = info.si_code == _FROM_KERNEL
        return Arrival(info.si_signo, terminal, 0 if terminal else info.si_pid)

    def _poll(self, seconds: float) -> Arrival | None:
        """For systems without sigtimedwait, where the sender stays unknown."""
        until = time.monotonic() + seconds
        while True:
            pending = signal.sigpending() & self.numbers
            if pending:
                number = signal.sigwait(pending)
                return Arrival(number, from_terminal=number == signal.SIGINT)
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(_POLL, left))


class Patience:
    """How often the script was asked to stop, and until when it may take its time."""

    def __init__(self, *, launched: bool = False) -> None:
        self.requests = 0
        self.deadline: float | None = None
        self._launched = launched
        self._last: tuple[int, int, float] | None = None

    def request(self, arrival: Arrival, now: float) -> bool:
        """Takes note of a request; False when it only repeats the one before.

        ``timeout`` and some schedulers signal a process and then its whole group: that is one request.
        """
        last, self._last = self._last, (arrival.number, arrival.sender, now)
        repeated = (
            last is not None
            and not arrival.from_terminal
            and last[:2] == self._last[:2]
            and now - last[2] < _SAME_REQUEST
        )
        if repeated:
            return False
        self.requests += 1
        if self.requests == 2:
            self.deadline = now + PATIENCE
        elif self.requests == 1 and self._launched and arrival.number == signal.SIGTERM:
            self.deadline = now + LAUNCHER_PATIENCE
        return True

    def ended(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline
