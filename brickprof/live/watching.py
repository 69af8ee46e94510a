"""``brickprof watch``: one run on a full screen, in lines, or in one frame.

Enters: a run's folder and a console. Leaves: nothing but what is on the screen; with the run's end, its report.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.diagnosis import stored
from brickprof.errors import BrickprofError
from brickprof.live.following import Follow
from brickprof.live.judging import JudgeProcess
from brickprof.live.keys import Keys
from brickprof.reports.live import line as lines
from brickprof.reports.live.screen import STYLES, Line, Screen
from brickprof.run import Run
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis import Diagnosis
    from brickprof.reports.live.scene import Scene

_EVERY = 0.25
_EVERY_LINE = 5.0
_HURRY = 5.0
"""Seconds at least between two looks of the rules that an alarm asks for."""
_LAST_WORDS = 180.0
"""Seconds that the rules have for their last look."""
_FIRST_WORDS = 30.0


class Watched:
    """A run with its rules: what is new of both is taken in together."""

    def __init__(self, folder: Path) -> None:
        self.follow = Follow(folder)
        self._judge: JudgeProcess | None = None
        self._alarms = 0
        self._hurried = 0.0
        self._over_since: float | None = None
        self._asked = False
        self.settled = False
        """The run is over, and its last diagnosis is here."""

    def tick(self, now: float) -> Scene:
        self.follow.poll(now)
        over = self.follow.signs.condition().over and self.follow.read > 0.999
        self._over_since = (self._over_since or now) if over else None
        if not self.settled or not over:
            self._judged(now, over)
        return self.follow.scene()

    def _judged(self, now: float, over: bool) -> None:
        found = self._stored() if over else None
        if found is not None:
            self.follow.diagnosis, self.follow.judged, self.settled = found, "", True
            self.close()
            return
        if self._judge is None:
            self._judge = JudgeProcess(self.follow.folder)
        found = self._judge.poll()
        if found is not None:
            self.follow.diagnosis, self.follow.judged = found, _judged_of(found)
        if self._judge.failed:
            self.follow.judged = clean(self._judge.failed, limit=200)
        if over:
            self._last_look(now)
        else:
            self.settled = self._asked = False
            self._hurry(now)

    def _stored(self) -> Diagnosis | None:
        """The diagnosis beside the run. There is none where the folder is gone."""
        try:
            return stored(Run.open(self.follow.folder))
        except (BrickprofError, OSError):
            return None

    def _last_look(self, now: float) -> None:
        assert self._judge is not None
        if not self._asked:
            self._asked = True
            self._judge.last_look()
        late = self._over_since is not None and now - self._over_since > _LAST_WORDS
        if late or not self._judge.running:
            found = self._judge.poll()
            self.follow.diagnosis = found or self.follow.diagnosis
            if late:
                self.follow.judged = f"the rules did not finish in {_LAST_WORDS:.0f} s"
            self.settled = True
            self.close()

    def _hurry(self, now: float) -> None:
        if self.follow.alarms > self._alarms and now - self._hurried >= _HURRY and self._judge is not None:
            self._alarms, self._hurried = self.follow.alarms, now
            self._judge.hurry()

    def close(self) -> None:
        if self._judge is not None:
            self._judge.close()
            self._judge = None


def _judged_of(found: Diagnosis) -> str:
    """How much the rules had seen: what was written then, which is less than what the pulse tells now."""
    steps = found.run.get("steps")
    return f"judged from {steps:,} step{'s' * (steps != 1)}" if isinstance(steps, int) else ""


# -- three ways to look


def once(folder: Path) -> Scene:
    """The scene now, with a diagnosis where one can be had soon."""
    watched = Watched(folder)
    try:
        until = time.monotonic() + _FIRST_WORDS
        scene = watched.tick(time.monotonic())
        while time.monotonic() < until and (scene.read < 1.0 or (scene.diagnosis is None and not watched.settled)):
            if watched.follow.judged and scene.diagnosis is None and scene.read == 1.0:
                break  # the rules said why not
            time.sleep(0.0 if scene.read < 1.0 else 0.05)
            scene = watched.tick(time.monotonic())
        return scene
    finally:
        watched.close()


def frame(scene: Scene, console: Console) -> None:
    """One frame, as it would stand on the screen."""
    screen = Screen(plain=ascii_only(console), keys=False)
    for line in screen.lines(scene, console.width, None):
        console.print(_text(line), soft_wrap=True, highlight=False)


def in_lines(folder: Path, console: Console, *, stay: bool, every: float = _EVERY_LINE) -> Scene:
    """A line every few seconds, and one for each new finding, until the run ends."""
    watched = Watched(folder)
    told: set[tuple[Any, ...]] = set()
    said, due = "", 0.0
    try:
        while True:
            now = time.monotonic()
            scene = watched.tick(now)
            for found in scene.diagnosis.findings if scene.diagnosis else ():
                key = found.contract, found.root_cause, found.first_step
                if key not in told:
                    told.add(key)
                    _say(console, lines.finding(found))
            done = watched.settled and not stay
            if now >= due or done:
                due = now + every
                if (text := lines.line(scene)) != said:
                    _say(console, text)
                said = text
            if done:
                return scene
            time.sleep(min(_EVERY, every))
    finally:
        watched.close()


def full_screen(folder: Path, console: Console, *, stay: bool) -> Scene:
    """The screen until q, or until the run has ended."""
    watched = Watched(folder)
    try:
        with Keys() as keys, _signals() as suspended, _Display(console) as display:
            return _screens(watched, display, keys, suspended, stay=stay)
    finally:
        watched.close()


def _screens(watched: Watched, display: _Display, keys: Keys, suspended: list[int], *, stay: bool) -> Scene:
    screen = display.screen
    while True:
        began = time.monotonic()
        if not screen.paused or screen.scene is None:
            screen.scene = watched.tick(began)
        display.show()
        if watched.settled and not stay and not screen.paused:
            return screen.scene
        if suspended:
            suspended.clear()
            display.suspend(keys)
        for key in keys.wait(max(_EVERY - (time.monotonic() - began), 0.02)):
            if key == "quit":
                return screen.scene
            if key == "pause":
                screen.paused = not screen.paused
            elif screen.scene.diagnosis is not None:
                last = len(screen.scene.diagnosis.findings) - 1
                screen.chosen = min(max(screen.chosen + (1 if key == "down" else -1), 0), max(last, 0))


class _Display:
    """The alternate screen of a terminal: only lines that have changed are written."""

    def __init__(self, console: Console) -> None:
        self.screen = Screen(plain=ascii_only(console))
        self._console = console
        self._shown: list[Line] = []
        self._size: tuple[int, int] = (0, 0)

    def __enter__(self) -> _Display:
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._console.set_alt_screen(False)
        self._console.show_cursor(True)

    def show(self) -> None:
        size = self._console.size
        if (size.width, size.height) != self._size:
            self._size, self._shown = (size.width, size.height), []
            self._console.clear()
        if self.screen.scene is None:
            return
        lines = self.screen.lines(self.screen.scene, *self._size)
        shown = self._shown or [[] for _ in lines]
        changed = [at for at, (new, old) in enumerate(zip(lines, shown, strict=False)) if new != old]
        if changed:
            self._console.file.write("".join(f"\x1b[{at + 1};1H{self._drawn(lines[at])}" for at in changed))
            self._console.file.flush()
        self._shown = lines

    def _drawn(self, line: Line) -> str:
        """What the console would write for it: four screens a second are too many to ask it each time."""
        codes = self._codes
        return "".join([f"{codes[style][0]}{text}{codes[style][1]}" for text, style in line])

    @cached_property
    def _codes(self) -> dict[str, tuple[str, str]]:
        """What a terminal is told before and behind a text in each style, in the colours that the console has."""
        found = {}
        for name, style in STYLES.items():
            with self._console.capture() as said:
                self._console.print(Text("x", style), end="")
            before, _, behind = said.get().partition("x")
            found[name] = before, behind
        return found

    def suspend(self, keys: Keys) -> None:
        """Ctrl-Z: the terminal is the shell's until we are called back."""
        self.__exit__()
        keys.__exit__()
        os.kill(os.getpid(), signal.SIGSTOP)
        keys.__enter__()
        self.__enter__()
        self._shown = []


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals that end us leave the terminal as it was; Ctrl-Z is noted in the list."""
    suspended: list[int] = []

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def suspend(number: int, _: object) -> None:
        suspended.append(number)

    wanted = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGTSTP: suspend}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield suspended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ascii_only(console: Console) -> bool:
    return not console.encoding.lower().replace("-", "").startswith("utf")


def _say(console: Console, text: str) -> None:
    encoding = console.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=console.file, flush=True)


def _text(line: Line) -> Text:
    return Text.assemble(*((text, STYLES[style]) for text, style in line)) if line else Text()


def on_terminal(console: Console) -> bool:
    """Whether a full screen can be drawn and somebody is there to look at it."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty()
