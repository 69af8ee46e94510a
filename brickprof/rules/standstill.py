"""A training that stands still: where each process stood, and what it was waiting for.

Enters: the ``hang`` event of the launch, with the Python stacks of every rank. Leaves: a ``Stand`` for each rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from brickprof.records import Event
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')
_COLLECTIVE_FILES = ("distributed_c10d.py", "torch/distributed/", "torch/nn/parallel/distributed", "c10d")
_LOADER_FILES = ("utils/data/dataloader.py",)
_LOCKS = frozenset({"acquire", "wait", "join", "get", "put", "_wait_for_tstate_lock", "recv", "recv_bytes", "poll"})
_LOCK_FILES = ("threading.py", "queue.py", "multiprocessing/", "concurrent/futures", "selectors.py")
_LIBRARIES = (
    "site-packages", "dist-packages", "/lib/python", "<frozen", "importlib", "brickprof/capture/", "brickprof/probes/",
    "brickprof/journal/", "brickprof/launch/",
)  # fmt: skip
_IDLE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line} in {self.name}"


class Stand(NamedTuple):
    rank: int
    stalled: bool
    frames: tuple[Frame, ...]
    """Of the main thread, the innermost first."""
    busy: bool | None
    """Whether it used the processor while it stood still; None when nobody knows."""

    @property
    def frame(self) -> str:
        """The innermost line that is the script's own: neither Python's nor torch's."""
        own = next((frame for frame in self.frames if not foreign(frame.file)), None)
        chosen = own or (self.frames[0] if self.frames else None)
        return str(chosen) if chosen else ""


def stuck(story: Story) -> Event | None:
    """The hang that lasted: nothing was trained after it."""
    last = max(
        (event.time_ns for rank in story.ranks for kind in ("loss", "optimizer") for event in story.events(kind, rank)),
        default=0,
    )
    return next((event for event in story.events("hang", -1) if event.time_ns >= last), None)


def stand(hang: Event) -> list[Stand]:
    seconds = number(hang.fields.get("seconds")) or 0.0
    listed = hang.fields.get("ranks")
    return [_stand(item, seconds) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def crashed(event: Event) -> Stand | None:
    """Where a process stood when native code failed: a ``stacks`` event of the launch."""
    item = dict(event.fields)
    stacks = item.get("stacks")
    if not isinstance(stacks, list) or not stacks:
        return None
    current = [text for text in stacks if str(text).startswith("Current thread")]
    return _stand({**item, "stacks": current or stacks, "stalled": True}, 0.0)


def _stand(item: dict[str, Any], seconds: float) -> Stand:
    stacks = item.get("stacks")
    told = [str(text) for text in stacks if "File" in str(text)] if isinstance(stacks, list) else []
    main = told[-1] if told else ""  # the main thread is written last
    frames = tuple(Frame(found["file"], int(found["line"]), found["name"]) for found in _FRAME.finditer(main))
    cpu = number(item.get("cpu_seconds"))
    busy = cpu > _IDLE_SHARE * seconds if cpu is not None and seconds else None
    return Stand(whole(item.get("rank")), bool(item.get("stalled")), frames, busy)


def distributed(stood: Stand) -> bool:
    """Whether it waits in a collective."""
    return any(mark in frame.file for frame in stood.frames[:6] for mark in _COLLECTIVE_FILES)


def loading(stood: Stand) -> bool:
    """Whether it waits for a DataLoader's worker."""
    return any(mark in frame.file for frame in stood.frames[:8] for mark in _LOADER_FILES)


def locked(stood: Stand) -> bool:
    """Whether it waits for a lock, a queue or another thread."""
    return any(frame.name in _LOCKS and any(mark in frame.file for mark in _LOCK_FILES) for frame in stood.frames[:3])


def foreign(file: str) -> bool:
    """Whether a file is a library's and not the script's own."""
    return any(mark in file for mark in _LIBRARIES)
