"""Runs a script under watch and tells what became of it.

Enters: a ``Target``, the settings, a few wishes. Leaves: the script's own exit code (128 + n for signal
n), a recorded run, a summary.

While the script runs, this process sleeps in ``sigtimedwait`` and looks around once a second: memory,
pulses. It imports no torch and no pandas until the script is gone, and if it is killed itself, the
script goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof import pulse
from brickprof.contracts.terms import Terms
from brickprof.errors import UsageError
from brickprof.journal import ProcessLog, rank_folders
from brickprof.launch import child as children
from brickprof.launch import folder, live, memory, relay, sanitizer, stacks
from brickprof.launch.card import CardWatch
from brickprof.launch.child import Child
from brickprof.launch.conclusion import conclude, on_terminal
from brickprof.launch.exits import Exit, OomKills, classify, signal_name
from brickprof.launch.exporter import Sidecar
from brickprof.launch.folder import Place
from brickprof.launch.hang import Hang, HangWatch
from brickprof.launch.relay import Relay
from brickprof.launch.signals import PASSED_ON, STOPPING, Arrival, Inbox, Patience
from brickprof.launch.target import Target
from brickprof.settings import Settings
from brickprof.telemetry import configured_endpoint
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.contracts.documents import Document
    from brickprof.diagnosis import Finding
    from brickprof.launch.judging import Judge

_LOOK_EVERY = 1.0
_WAS_STOPPED = 3.0
"""A look that comes this much too late means that we were stopped ourselves (Ctrl-Z, a sleeping machine)."""


@dataclass(frozen=True, slots=True)
class Wishes:
    live: bool = True
    fail_on: str = "never"
    halt_on: str = "never"
    page: str = "failed"
    """When report.html is written: failed, always or never."""
    name: str = ""
    config: str = ""
    """A configuration file that declares what the script is to do."""
    sanitizer: str = ""
    """A tool of compute-sanitizer to run the script under."""


def run(target: Target, settings: Settings, wishes: Wishes | None = None) -> int:
    """Runs ``target`` and returns brickprof's exit code. Raises only before the script has started."""
    wishes = wishes or Wishes()
    if folder.inside_another(os.environ):
        os.execv(target.command[0], target.command)
    declared = _declared(wishes.config)
    Terms.of(settings)  # says so now, should one of them be misspelt
    sanitizing = sanitizer.found() if wishes.sanitizer else ""
    place = folder.claim(target, settings, name=wishes.name)
    if sanitizing:
        target = sanitizer.behind(target, wishes.sanitizer, sanitizing, place.path)
        sanitizer.prepare(wishes.sanitizer, os.environ)
    if place.speaks and on_terminal():
        print(f"brickprof · recording to {place.shown} ({settings.level})", file=sys.stderr, flush=True)
    watch = Watch(target, settings, place, live=wishes.live)
    if declared is not None:
        watch.log.event("config", 0, {"source": declared.file, "values": declared.values})
    if sanitizing:
        watch.complaints = sanitizer.Complaints(place.path, wishes.sanitizer, watch.log)
    watch.halt_on = wishes.halt_on if place.speaks else "never"
    ended = watch.until_the_end()
    code = conclude(
        place, ended, fail_on=wishes.fail_on, page=wishes.page, sync_check=settings.sync_check,
        sanitizer=wishes.sanitizer,
    )  # fmt: skip
    return code or int(watch.halted)


def _declared(file: str) -> Document | None:
    from brickprof.contracts import documents

    return documents.read(Path(file)) if file else None


class Watch:
    """One script, from its start to its end."""

    def __init__(self, target: Target, settings: Settings, place: Place, *, live: bool) -> None:
        self.target = target
        self.settings = settings
        self.terms = Terms.of(settings)
        self.place = place
        self.log = ProcessLog(place.path)
        self.relay: Relay | None = None
        if live and place.speaks and relay.possible():
            with suppress(OSError):
                self.relay = Relay(self._live_line)
        self.patience = Patience(launched=place.shared)
        self.killed = False
        self.halt_on = "never"
        self.halted = False
        self.complaints: sanitizer.Complaints | None = None
        self._judge: Judge | None = None
        self._sidecar: Sidecar | None = None
        self._endpoint = settings.otlp or configured_endpoint()

    def until_the_end(self) -> Exit:
        kills = memory.oom_kills()
        began = time.monotonic()
        with Inbox() as inbox:
            child = self._started(inbox)
            if self.relay:
                self.relay.start()
            self._log_start(child)
            watch = memory.MemoryWatch(child.pid, self.log, began)
            cards = CardWatch(child.pid, self.place.path, self.settings.card_seconds if self.place.speaks else 0)
            cards.start()
            try:
                self._look_after(child, inbox, watch)
            except Exception as error:  # ours; the script is not to suffer for it
                self._say(f"stopped watching ({clean(f'{type(error).__name__}: {error}')}); the script goes on")
                child.wait()
            cards.finish()
            if self.relay:
                self.relay.finish()
            return self._log_end(child, watch, memory.oom_kills() - kills, time.monotonic() - began)

    def _started(self, inbox: Inbox) -> Child:
        try:
            return children.start(self.target, self.place, self.settings, inbox.mask_before, self.relay)
        except UsageError:
            folder.abandon(self.place)
            raise

    def _look_after(self, child: Child, inbox: Inbox, watch: memory.MemoryWatch) -> None:
        if self._endpoint and self.place.speaks:
            self._sidecar = Sidecar(self.place.path, self._endpoint)
        hangs = HangWatch(self.place.path, self.settings.hang_seconds if self.place.speaks else 0)
        last = now = time.monotonic()
        while not child.reap():
            arrival = inbox.wait(self._rest(last, now))
            now = time.monotonic()
            if arrival is not None:
                self._answer(arrival, child, now)
            if self.patience.ended(now) and not self.killed:
                self.killed = True
                child.kill()
            if now - last < _LOOK_EVERY:
                continue
            if now - last > _LOOK_EVERY + _WAS_STOPPED:
                hangs.forgive(now)
            last = now
            step = live.step(self.place.path)
            watch.tick(now, step)
            if self.complaints:
                self.complaints.tick(step)
            if self.halt_on != "never" and not self.halted:
                self._judge_so_far(now)
            if hang := hangs.tick(now):
                self._report(hang)
            if self.relay:
                self._resize(child)

    def _judge_so_far(self, now: float) -> None:
        """Stops a run that is broken: at its next step, as if by Ctrl-C, so that it can clean up."""
        if self._judge is None:
            from brickprof.launch.judging import Judge

            self._judge = Judge(self.place.path, self.terms)
        try:
            diagnosis = self._judge.look(now)
        except Exception as error:  # ours; the script is not to suffer for it
            self.halt_on = "never"
            self._say(f"stopped judging ({clean(f'{type(error).__name__}: {error}')}); the script goes on")
            return
        severe = ("error",) if self.halt_on == "error" else ("error", "warning")
        found = next((f for f in diagnosis.findings if f.severity in severe), None) if diagnosis else None
        if found is not None:
            self._halt(found)

    def _halt(self, found: Finding) -> None:
        asked = [rank for rank, path in rank_folders(self.place.path).items() if pulse.ask_to_halt(path)]
        self.halted = bool(asked)
        if asked:
            self.log.event("halt", found.detected_step, {"root_cause": found.root_cause, "ranks": asked})
            self._say(f"halting the script at its next step: {clean(found.symptom)} ({clean(found.root_cause)})")

    def _rest(self, last: float, now: float) -> float:
        until = last + _LOOK_EVERY
        if self.patience.deadline is not None and not self.killed:
            until = min(until, self.patience.deadline)
        return max(0.0, until - now) + 0.001

    def _answer(self, arrival: Arrival, child: Child, now: float) -> None:
        if arrival.number == signal.SIGWINCH:
            self._resize(child)
        elif arrival.number in PASSED_ON:
            child.send(arrival.number)
            self._log_signal(arrival, forwarded=True)
        elif arrival.number in STOPPING:
            self._stop(arrival, child, now)

    def _stop(self, arrival: Arrival, child: Child, now: float) -> None:
        new = self.patience.request(arrival, now)
        # The terminal sent its signal to the whole group, the script included.
        forward = new and not (arrival.from_terminal and child.in_our_group())
        if forward:
            child.send(arrival.number)
        self._log_signal(arrival, forwarded=forward)
        if self.relay and new and arrival.number == signal.SIGINT:
            again = "killing the script in 3 s" if self.patience.requests > 1 else "Ctrl-C again to kill it"
            self._say(f"interrupted; the script may clean up ({again})")

    def _resize(self, child: Child) -> None:
        # The kernel told the script of the new size before its own terminal had it: tell it again.
        if self.relay and self.relay.resize():
            child.send(signal.SIGWINCH)

    def _report(self, hang: Hang) -> None:
        fields = {
            "seconds": round(hang.seconds, 1), "place": hang.place, "frame": hang.frame, "ranks": hang.ranks
        }  # fmt: skip
        self.log.event("hang", hang.step, fields)
        where = ", ".join(clean(part) for part in (hang.place, hang.frame) if part)
        self._say(
            f"nothing has moved for {hang.seconds:.0f} s: step {hang.step:,}{where and f' ({where})'}. "
            f"The stacks are in {self.place.shown}; the script goes on."
        )

    def _live_line(self) -> str:
        return live.of_run(self.place.path)

    def _say(self, text: str) -> None:
        if not self.place.speaks:
            return
        if self.relay:
            self.relay.say(f"brickprof: {text}")
        else:
            with suppress(OSError, ValueError):
                print(f"brickprof: {text}", file=sys.stderr, flush=True)

    def _log_start(self, child: Child) -> None:
        fields = {
            "pid": child.pid,
            "supervisor": os.getpid(),
            "command": list(self.target.command),
            "cwd": os.getcwd(),
            "script": self.target.script,
            "level": self.settings.level,
            "memory_limit": memory.memory_limit(),
            "memory_total": memory.total(),
            "rank": os.environ.get("RANK"),
            "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT"),
        }
        self.log.event("start", 0, fields)

    def _log_signal(self, arrival: Arrival, *, forwarded: bool) -> None:
        fields = {
            "signal": arrival.number,
            "name": signal_name(arrival.number),
            "from_terminal": arrival.from_terminal,
            "sender": arrival.sender,
            "forwarded": forwarded,
        }
        self.log.event("signal", 0, fields)

    def _log_end(self, child: Child, watch: memory.MemoryWatch, kills: OomKills, seconds: float) -> Exit:
        ended = classify(child.status or 0, kills, ours=self.killed)
        if ended.signal:
            watch.flush()
        stacks.collect(self.place.path, self.log)
        if self.complaints:
            self.complaints.finish(live.step(self.place.path))
        fields = {
            **ended.fields(),
            "pid": child.pid,
            "seconds": round(seconds, 3),
            "peak_rss": max(child.peak_rss, watch.peak),
            "memory_limit": watch.limit,
            "oom_kills_group": kills.group,
            "oom_kills_machine": kills.machine,
            "asked_to_stop": self.patience.requests,
            "killed_by_us": self.killed,
            "rank": os.environ.get("RANK"),
        }
        self.log.event("exited", 0, fields)
        self.relay = None
        if self.log.stopped:
            self._say(f"the record is not complete: {clean(self.log.stopped)}")
        if self._sidecar and (problem := self._sidecar.finish()):
            self.log.event("note", 0, {"text": f"OTLP export: {problem}"})
            self._say(f"OTLP export to {clean(self._endpoint)}: {clean(problem)}")
        return ended
