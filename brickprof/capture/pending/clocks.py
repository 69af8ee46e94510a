"""Who knows that what is done: the host and every stream, by vector clocks.

Enters: launches on streams, events that are recorded and waited for, and whatever the host waits for. Leaves: whether
the host, or the next thing that a stream does, comes after a given launch for certain.

A launch gets a number that grows over all streams. What an agent knows is, for each stream, the last launch that is
done before anything the agent does next. An event holds what was known on its stream when it was recorded; recorded
anew it holds that. The host's knowledge counts for every stream: what is launched later starts later.

A default stream waits for blocking streams and they for it. Streams that torch makes are not of that kind: nothing is
implied between them and the default stream. Streams made elsewhere may be, and are taken to be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

Knowledge = dict[int, int]
HOST = -(1 << 62)
"""The host, where a stream may stand too."""
_WAITS = 16


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that was waited for, or asked and not waited for."""

    agent: int
    how: str
    """event | stream | device | not-done"""
    stream: int | None
    """The stream that was waited for, or the one that the event was recorded on."""
    knows: Knowledge
    after: int
    """The last launch at that time."""
    site: Any


@dataclass(frozen=True, slots=True)
class Mark:
    """What an event stands for."""

    stream: int
    knows: Knowledge


class Clocks:
    def __init__(self) -> None:
        self.launched = 0
        self.waited = 0
        self._last: Knowledge = {}
        self._knows: dict[int, Knowledge] = {HOST: {}}
        self._events: dict[int, Mark] = {}
        self._default: dict[int, int] = {}
        """By device: its default stream."""
        self._device: dict[int, int] = {}
        self._blocking: set[int] = set()
        self._waits: deque[Wait] = deque(maxlen=_WAITS)

    # -- streams

    def meet(self, stream: int, device: int = 0, *, default: bool = False, blocking: bool = False) -> None:
        """A stream is seen for the first time."""
        self._device[stream] = device
        self._knows.setdefault(stream, {})
        if default:
            self._default[device] = stream
        if blocking:
            self._blocking.add(stream)

    def met(self, stream: int) -> bool:
        return stream in self._device

    @property
    def streams(self) -> int:
        """How many streams something was launched on."""
        return len(self._last)

    def launch(self, stream: int) -> int:
        """Something is put on ``stream``; its number."""
        self._imply(stream)
        self.launched += 1
        self._last[stream] = self.launched
        return self.launched

    def _imply(self, stream: int) -> None:
        if not self._blocking:
            return
        device = self._device.get(stream, 0)
        default = self._default.get(device)
        if stream == default:
            for other in self._blocking:
                if self._device.get(other, 0) == device:
                    _learn(self._of(stream), self._all_of(other))
        elif stream in self._blocking and default is not None:
            _learn(self._of(stream), self._all_of(default))

    def known(self, agent: int, stream: int, number: int) -> bool:
        """Whether launch ``number`` on ``stream`` is done before anything that ``agent`` does next."""
        if agent == stream:
            return True
        return number <= max(self._knows[HOST].get(stream, 0), self._of(agent).get(stream, 0))

    # -- events

    def record(self, event: int, stream: int) -> None:
        self._imply(stream)
        self._events[event] = Mark(stream, self._all_of(stream))

    def forget(self, event: int) -> None:
        self._events.pop(event, None)

    def wait(self, stream: int, event: int, site: Any = None) -> None:
        """``stream`` waits for ``event``; for one that was never recorded nobody waits."""
        mark = self._events.get(event)
        if mark is not None:
            self._took(stream, "event", mark.stream, mark.knows, site)

    # -- what the host waits for

    def event_done(self, event: int, site: Any = None) -> None:
        """The host waited for ``event``, or was told that it is done."""
        mark = self._events.get(event)
        if mark is not None:
            self._took(HOST, "event", mark.stream, mark.knows, site)

    def event_not_done(self, event: int, site: Any = None) -> None:
        """The host asked, and was told that it is not done."""
        mark = self._events.get(event)
        if mark is not None:
            self._waits.append(Wait(HOST, "not-done", mark.stream, mark.knows, self.launched, site))

    def stream_done(self, stream: int, site: Any = None) -> None:
        self._took(HOST, "stream", stream, self._all_of(stream), site)

    def stream_not_done(self, stream: int, site: Any = None) -> None:
        self._waits.append(Wait(HOST, "not-done", stream, self._all_of(stream), self.launched, site))

    def device_done(self, device: int | None = None, site: Any = None) -> None:
        knows: Knowledge = {}
        for stream in self._last:
            if device is None or self._device.get(stream, device) == device:
                _learn(knows, self._all_of(stream))
        self._took(HOST, "device", None, knows, site)

    # -- why something is not known

    def instead(self, agent: int, stream: int, number: int) -> tuple[str, Any]:
        """What ``agent`` did, since launch ``number``, instead of waiting for it; and where.

        not-done, event-too-early, other-stream, or nothing.
        """
        for wait in reversed(self._waits):
            if wait.agent != agent or wait.after < number:
                continue
            covers = wait.knows.get(stream, 0) >= number
            if wait.how == "not-done" and covers:
                return "not-done", wait.site
            if wait.how == "event" and not covers and wait.stream == stream:
                return "event-too-early", wait.site
            if wait.how in ("event", "stream", "device") and not covers:
                return "other-stream", wait.site
        return "nothing", None

    # -- knowledge

    def _of(self, agent: int) -> Knowledge:
        return self._knows.setdefault(agent, {})

    def _all_of(self, stream: int) -> Knowledge:
        """What is done when everything that is on ``stream`` now is done."""
        knows = dict(self._knows[HOST])
        _learn(knows, self._of(stream))
        if stream in self._last:
            knows[stream] = self._last[stream]
        return knows

    def _took(self, agent: int, how: str, stream: int | None, knows: Knowledge, site: Any) -> None:
        self.waited += 1
        self._waits.append(Wait(agent, how, stream, knows, self.launched, site))
        _learn(self._of(agent), knows)


def _learn(into: Knowledge, more: Knowledge) -> None:
    for stream, number in more.items():
        if number > into.get(stream, 0):
            into[stream] = number
