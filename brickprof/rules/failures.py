"""An exception as it was raised, also when another process raised it.

Enters: an ``exception`` event. Leaves: a ``Failure``: type, message and frames. What torch.multiprocessing and torchrun
report of a child holds the child's own traceback: that is what counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brickprof.records import Event
from brickprof.rules.standstill import Frame, foreign

_OF_A_CHILD = ("ProcessRaisedException", "ProcessExitedException", "ChildFailedError")
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>\S+)')
_SIGNAL = re.compile(r"terminated with signal (?P<name>SIG\w+)")
_OF_A_DEVICE = re.compile(r"(CUDA|HIP|XPU)( kernel)? errors?: ")
_COLLECTIVE = ("distributed_c10d.py", "torch/distributed/", "taps/collectives.py")


class Failure(NamedTuple):
    type: str
    message: str
    frames: tuple[Frame, ...]
    """The innermost last."""
    signal: str = ""
    """The signal that ended a child."""

    @property
    def where(self) -> str:
        """The innermost line of the script's own."""
        own = [frame for frame in self.frames if not foreign(frame.file)] or list(self.frames)
        return str(own[-1]) if own else ""

    @property
    def late(self) -> bool:
        """Whether a device reported it: it had happened earlier than at this line."""
        return bool(_OF_A_DEVICE.match(self.message))

    @property
    def in_collective(self) -> bool:
        return any(mark in frame.file for frame in self.frames[-8:] for mark in _COLLECTIVE)


def failure(event: Event) -> Failure:
    kind, message = str(event.fields.get("type", "")).rpartition(".")[2], _said(str(event.fields.get("message", "")))
    frames = event.fields.get("frames")
    told = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    own = tuple(
        Frame(str(frame.get("file", "")), int(frame.get("line") or 0), str(frame.get("function", ""))) for frame in told
    )
    if kind not in _OF_A_CHILD:
        return Failure(kind, message, own)
    inner = _of_child(message)
    signal = _SIGNAL.search(message)
    return inner or Failure(kind, message.strip(), own, signal["name"] if signal else "")


def _said(message: str) -> str:
    """Of an error of a device the first line: the others are the same advice under every one of them."""
    return message.strip().splitlines()[0] if _OF_A_DEVICE.match(message.lstrip()) else message


def _of_child(message: str) -> Failure | None:
    if "Traceback (most recent call last)" not in message:
        return None
    trace = message[message.rindex("Traceback (most recent call last)") :]
    frames = tuple(Frame(found["file"], int(found["line"]), found["name"]) for found in _FRAME.finditer(trace))
    last = [found for found in _LAST_LINE.finditer(trace) if not found[0].startswith((" ", "Traceback"))]
    if not last:
        return None
    said = trace[last[-1].start("message") :] if last[-1]["message"] else ""
    return Failure(last[-1]["type"].rpartition(".")[2], _said(said.strip()), frames)
