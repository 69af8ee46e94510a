"""When lines were written, where they say so.

Enters: chunks of lines, as they are read. Leaves: lines and the seconds at which they were written, of as many lines as
are enough to see a pause: all of a small chunk; of a large one some, and all around a place where time went on. A line
says so near its beginning: a date and a time as loggers write them, or a time of day alone. The zone is not known: only
what lies between two lines counts. Of ``05/02`` the month comes first, unless the days of the file are nearer to each
other when it comes second.
"""

from __future__ import annotations

import calendar
import math
import re
from collections import deque
from typing import Any

import numpy as np

from brickprof.logs.reading.model import Floats, Whole

_LOOKED_AT = 72
_SMALL = 256 << 10
_SAMPLES = 128
_GIVEN_UP = 64
"""Lines without a time, and none with one: nobody writes it here."""
_PAUSE = 60.0
_MUCH = 3
_BEFORE = 33
_DAY = 86_400.0
_MOST = 200_000
_DATED = re.compile(
    rb"(?<!\d)(?:(?P<y>(?:19|20)\d\d)[-/.](?P<m>[01]\d)[-/.](?P<d>[0-3]\d)"
    rb"|(?P<m2>[0-3]\d)/(?P<d2>[0-3]\d)(?:/(?P<y2>20\d\d))?|[IWEF](?P<m3>[01]\d)(?P<d3>[0-3]\d))"
    rb"[ T_]{1,2}(?P<H>[0-2]\d):(?P<M>[0-5]\d):(?P<S>[0-6]\d)(?:[.,](?P<f>\d{1,9}))?"
)
_TIME_ONLY = re.compile(rb"\s*\[?(?P<H>[0-2]\d):(?P<M>[0-5]\d):(?P<S>[0-6]\d)(?:[.,](?P<f>\d{1,9}))?[\] ]")
_NO_YEAR = 2_001
"""Where none is told: one without a leap day, and before all that are."""

_At = tuple[float, float]


class Clock:
    """Takes the chunks of one source in order."""

    def __init__(self) -> None:
        self._lines: list[Whole] = []
        self._seconds: list[Floats] = []
        self._turned: list[Floats] = []
        """The same, with the day before the month where both may be meant."""
        self._kept = 0
        self._vain = 0
        self._took: deque[float] = deque(maxlen=_BEFORE)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look for: no line so far said when it was written, or enough did."""
        return (not self._kept and self._vain >= _GIVEN_UP) or self._kept >= _MOST

    def look(self, chunk: bytes, first_line: int) -> int:
        """How many lines end in ``chunk``; what they say of the time is kept."""
        if self.idle:
            return _ends(chunk)
        if len(chunk) <= _SMALL:
            return self._all(chunk, first_line)
        size, begin, line = -(-len(chunk) // _SAMPLES), 0, first_line
        while begin < len(chunk):
            end = chunk.find(b"\n", min(begin + size, len(chunk))) + 1 or len(chunk)
            part = chunk[begin:end]
            if self._went_on(part):
                line += self._all(part, line)
            else:
                self._keep([line], [_when(part[:_LOOKED_AT])])
                line += _ends(part)
            begin = end
        return line - first_line

    def _went_on(self, part: bytes) -> bool:
        """Whether much more time passes from its first to its last line than in the parts before."""
        last = part[part.rfind(b"\n", 0, len(part) - 1) + 1 :]
        begins, ends = _when(part[:_LOOKED_AT]), _when(last[:_LOOKED_AT])
        if begins is None or ends is None:
            return False
        apart = [abs(end - begin) for begin, end in zip(begins, ends, strict=True) if not math.isnan(end - begin)]
        took = min(apart, default=0.0)
        usual = sorted(self._took)[len(self._took) // 2] if self._took else 0.0
        self._took.append(took)
        return took > max(_PAUSE, _MUCH * usual)

    def _all(self, chunk: bytes, first_line: int) -> int:
        lines, seconds = [], []
        parts = chunk.split(b"\n")
        for place, text in enumerate(parts):
            if text:
                lines.append(first_line + place)
                seconds.append(_when(text[:_LOOKED_AT]))
        self._keep(lines, seconds)
        return len(parts) - 1

    def _keep(self, lines: list[int], seconds: list[_At | None]) -> None:
        told = [(line, at) for line, at in zip(lines, seconds, strict=True) if at is not None]
        self._vain += len(lines) - len(told)
        if told:
            self._kept += len(told)
            self._lines.append(np.array([line for line, _ in told], dtype=np.int64))
            self._seconds.append(np.array([at for _, (at, _) in told], dtype=np.float64))
            self._turned.append(np.array([at for _, (_, at) in told], dtype=np.float64))

    def times(self) -> tuple[Whole, Floats] | None:
        """Lines and seconds, in the order of the file; None where too few lines say when they were written."""
        if not self._kept:
            return None
        lines, seconds = (
            np.concatenate(self._lines),
            _nearer(np.concatenate(self._seconds), np.concatenate(self._turned)),
        )
        lines, seconds = lines[np.isfinite(seconds)], seconds[np.isfinite(seconds)]
        if not len(lines):
            return None
        if float(seconds.max()) < _DAY:  # times of a day: behind midnight it is the next one
            back = np.diff(seconds) < -_DAY / 2
            seconds = seconds + _DAY * np.concatenate([[0], np.cumsum(back)])
        return lines, seconds


def _ends(chunk: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")))


def _nearer(seconds: Floats, turned: Floats) -> Floats:
    """Of the two ways to read them the one that says more, or by which they are nearer to each other."""
    known, other = np.isfinite(seconds), np.isfinite(turned)
    if known.sum() != other.sum():
        return seconds if known.sum() > other.sum() else turned
    return turned if known.any() and np.ptp(turned[other]) < np.ptp(seconds[known]) else seconds


def _when(text: bytes) -> _At | None:
    """The seconds, and those that it says if the day comes before the month; nan of no date."""
    found = _DATED.search(text)
    if found is None:
        found = _TIME_ONLY.match(text)
        return (_of_day(found.groupdict()),) * 2 if found is not None else None
    said = found.groupdict()
    year, month, day = (
        said["y"] or said["y2"],
        said["m"] or said["m2"] or said["m3"],
        said["d"] or said["d2"] or said["d3"],
    )
    at = _seconds(said, year, month, day)
    turned = _seconds(said, year, day, month) if said["m2"] else at
    return None if math.isnan(at) and math.isnan(turned) else (at, turned)


def _seconds(said: dict[str, Any], year: bytes | None, month: bytes, day: bytes) -> float:
    date = int(year or _NO_YEAR), int(month), int(day)
    if not (1 <= date[1] <= 12 and 1 <= date[2] <= 31):
        return math.nan
    return calendar.timegm((*date, 0, 0, 0)) + _of_day(said)


def _of_day(said: dict[str, Any]) -> float:
    fraction = float(b"0." + said["f"]) if said["f"] else 0.0
    return int(said["H"]) * 3600.0 + int(said["M"]) * 60.0 + int(said["S"]) + fraction
