"""How the process came to its end: killed, crashed, hung, or by its own decision.

Enters: the events of the launch (``process.jsonl``, rank -1) and the exception events of every rank.
Leaves: C-PROCESS-001, with at most one violation for each way in which a process ended that its author did
not choose.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brickprof import pulse
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.records import Event, Record
from brickprof.rules import wording
from brickprof.rules.failures import failure
from brickprof.rules.many import EVERY_STEP, Many
from brickprof.rules.names import NAMING, Names, number, whole
from brickprof.rules.standstill import stand

if TYPE_CHECKING:
    from brickprof.run import Run

_ASKED = frozenset({"interrupted", "terminated", "hung_up", "quit"})
_OWN_FAULTS = frozenset({"aborted", "segmentation_fault", "bus_error", "illegal_instruction", "arithmetic_error"})
_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed",
    "shared memory (shm)",
)  # fmt: skip
_PEER_LEFT = ("connection closed by peer", "connection reset by peer", "broken pipe", "remote process exited")
_REQUESTS = frozenset({"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"})
_OWN_SIGNALS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_KEPT = 64


class _Memory(NamedTuple):
    step: int
    bytes: float
    evidence: str


class Process:
    contract = "C-PROCESS-001"
    hears = (Event,)
    told_by = "any"

    def __init__(self) -> None:
        self._names = Names()
        self._exits: list[Event] = []
        self._exceptions: list[Event] = []
        self._hangs: list[Event] = []
        self._asked: Event | None = None
        self._last_ns = 0
        self._last_step = 0
        self._limit: float | None = None
        self._memory: list[_Memory] = []
        self._resident: list[_Memory] = []
        self._beat: tuple[int, pulse.Beat] | None = None

    def feed(self, record: Record) -> None:
        if not isinstance(record, Event):
            return
        kind = record.kind
        if kind in NAMING:
            self._names.feed(record)
        if record.rank >= 0:
            if record.step > self._last_step:
                self._last_step = record.step
            if kind in ("loss", "optimizer") and record.time_ns > self._last_ns:
                self._last_ns = record.time_ns
        if kind == "exception":
            _keep(self._exceptions, record)
        elif kind == "memory":
            self._remember(record, self._memory if record.rank >= 0 else self._resident)
        elif record.rank < 0:
            self._launch(record)

    def follow(self, many: Many) -> None:
        """What feeding them one by one comes to: of losses, clips and updates only how far they came counts."""
        for record in many.others:
            self.feed(record)
        for kind in EVERY_STEP:
            events = many.each(kind)
            self._last_step = max([self._last_step, *[event.step for event in events]])
            if kind != "clip":
                self._last_ns = max([self._last_ns, *[event.time_ns for event in events]])

    def _launch(self, event: Event) -> None:
        if event.kind == "start":
            limits = [number(event.fields.get(name)) for name in ("memory_limit", "memory_total")]
            self._limit = min((limit for limit in limits if limit), default=None)
        elif event.kind == "exited":
            _keep(self._exits, event)
        elif event.kind == "hang":
            _keep(self._hangs, event)
        elif event.kind == "signal" and str(event.fields.get("name")) in _REQUESTS:
            self._asked = event

    @staticmethod
    def _remember(event: Event, kept: list[_Memory]) -> None:
        resident = number(event.fields.get("tree")) or number(event.fields.get("rss"))
        if resident is None:
            return
        kept.append(_Memory(event.step, resident, event.id))
        if len(kept) > 4 * _KEPT:
            del kept[1:-_KEPT:2]

    def finish(self, run: Run | None) -> ContractResult:
        self._beat = _last_beat(run)
        violations = [*self._hung(), *self._ended()]
        errors = any(violation.severity is Severity.ERROR for violation in violations)
        ended = Verdict.PASS if self._exits else Verdict.NOT_EVALUATED
        verdict = Verdict.FAIL if errors else ended
        why = violations[0].symptom if violations else "" if self._exits else "how the process ended was not recorded"
        return ContractResult(self.contract, verdict, self._how() or why, "", why, tuple(violations))

    def _how(self) -> str:
        return str(self._exits[-1].fields.get("text") or "") if self._exits else ""

    # -- the ways to end

    def _ended(self) -> list[Violation]:
        died = [event for event in self._exits if event.fields.get("signal")]
        for event in died:
            violation = self._by_signal(event)
            if violation is not None:
                return [violation]
        raised = [found for event in self._exceptions if (found := self._by_exception(event)) is not None]
        if raised:
            # Ranks that fail together fail for one reason: the first to raise, and not those that lost their peer.
            return [min(raised, key=lambda violation: (violation.details["peer_left"], violation.details["time_ns"]))]
        if died:
            return [self._stopped(died[0])]
        return [self._exited(event) for event in self._exits if whole(event.fields.get("code")) != 0][:1]

    def _by_signal(self, event: Event) -> Violation | None:
        kind = str(event.fields.get("class", ""))
        name = str(event.fields.get("name") or f"signal {event.fields.get('signal')}")
        if kind in _ASKED or (kind == "killed" and event.fields.get("killed_by_us")):
            return None
        what = "crashed-by-signal" if kind in _OWN_FAULTS else "killed"
        symptom = f"the process was killed by {name}{self._at(event)}"
        if kind == "out_of_memory":
            what = "out-of-memory"
        return self._violation(event, what, Severity.ERROR, symptom, signal=name)

    def _by_exception(self, event: Event) -> Violation | None:
        raised = failure(event)
        short, message = raised.type, raised.message
        if short == "KeyboardInterrupt":
            return self._violation(
                event, "interrupted", Severity.INFO, f"interrupted{self._at(event)}", peer_left=False
            )  # fmt: skip
        if short == "SystemExit":
            return None  # the exit code speaks for it
        if raised.signal:
            symptom = f"a process of the script was killed by {raised.signal}{self._at(event)}"
            what = "crashed-by-signal" if raised.signal in _OWN_SIGNALS else "killed"
            return self._violation(event, what, Severity.ERROR, symptom, signal=raised.signal, peer_left=False)
        said = f"{short}: {message}" if message else short
        symptom = f"the script raised {said}{self._at(event)}"
        memory = short in ("OutOfMemoryError", "MemoryError") or any(sign in message.lower() for sign in _MEMORY)
        what = "out-of-memory" if memory else "crashed"
        left = any(sign in message.lower() for sign in _PEER_LEFT)
        return self._violation(
            event, what, Severity.ERROR, symptom, exception=short, message=message, peer_left=left
        )  # fmt: skip

    def _stopped(self, event: Event) -> Violation:
        symptom = f"stopped on request ({event.fields.get('name') or 'signal'}){self._at(event)}"
        return self._violation(event, "interrupted", Severity.INFO, symptom)

    def _exited(self, event: Event) -> Violation:
        code = whole(event.fields.get("code"))
        if code == 130 or self._asked is not None or whole(event.fields.get("asked_to_stop")):
            return self._stopped(event)
        text = str(event.fields.get("text") or f"the script exited {code}")
        return self._violation(event, "exited", Severity.WARNING, text, code=code)

    def _hung(self) -> list[Violation]:
        for event in self._hangs:
            if event.time_ns < self._last_ns:
                continue  # it went on afterwards: a long evaluation, a checkpoint, a download
            seconds = number(event.fields.get("seconds"))
            length = f" for {seconds:,.0f} s" if seconds else ""
            symptom = f"nothing moved{length}{self._at(event)}"
            return [self._violation(event, "hung", Severity.ERROR, symptom, stands=stand(event))]
        return []

    # -- words

    def _violation(self, event: Event, what: str, severity: Severity, symptom: str, **details: Any) -> Violation:
        step = self._step(event)
        details |= {"time_ns": event.time_ns, "memory": self._growth(event)}
        evidence = [event.id]
        if self._asked is not None and severity is Severity.INFO:
            evidence.append(self._asked.id)
        return Violation(
            self.contract, what, severity, symptom, step, step, self._open(event), "block", max(event.rank, 0),
            tuple(evidence), details,
        )  # fmt: skip

    def _at(self, event: Event) -> str:
        step, brick, phase = self._step(event), self._open(event), self._phase(event)
        place = " of ".join(part for part in (phase, brick) if part)
        if not (step or brick):
            return ""
        return f" in step {step:,}" + (f" ({place})" if place else "")

    def _step(self, event: Event) -> int:
        if event.rank >= 0 or event.step:
            return event.step
        return max(self._last_step, self._beat[1].step if self._beat else 0)

    def _phase(self, event: Event) -> str:
        if event.rank >= 0 or self._beat is None or event.kind == "hang":
            return ""
        return "" if self._beat[1].phase in ("idle", "step") else self._beat[1].phase

    def _open(self, event: Event) -> str:
        """The brick that was open: named by the event, or the innermost that the pulse still shows."""
        if event.kind == "hang":
            return str(event.fields.get("place") or "")
        if event.rank >= 0:
            return self._names.show(self._names.brick(event.rank, event.fields.get("brick")))
        if self._beat is None or not self._beat[1].open_bricks:
            return ""
        rank, beat = self._beat
        return self._names.show(self._names.brick(rank, beat.open_bricks[-1]))

    def _growth(self, end: Event) -> dict[str, Any] | None:
        """Resident memory over the run, where it was recorded often enough to speak of it."""
        memory = self._memory if len(self._memory) >= 4 else self._resident
        if len(memory) < 4:
            return None
        # The first quarter is imports and warm-up.
        first, last = memory[len(memory) // 4], memory[-1]
        peak = max(number(end.fields.get("peak_rss")) or 0.0, *(point.bytes for point in memory))
        text = f"resident memory went from {wording.size(first.bytes)} to {wording.size(last.bytes)}"
        if self._limit:
            text += f", of {wording.size(self._limit)}"
        return {
            "from": first.bytes,
            "to": last.bytes,
            "filled": peak / self._limit if self._limit else None,
            "evidence": (first.evidence, last.evidence),
            "text": text,
        }


def _keep(kept: list[Event], event: Event) -> None:
    if len(kept) < _KEPT:
        kept.append(event)


def _last_beat(run: Run | None) -> tuple[int, pulse.Beat] | None:
    """The pulse of a rank that did not finish: what was open when it was killed."""
    folder = getattr(run, "path", None)
    if folder is None:
        return None
    for path in sorted(Path(folder).glob("rank*")):
        beat = pulse.read(path)
        if beat is not None and beat.state == "recording" and path.name[4:].isdigit():
            return int(path.name[4:]), beat
    return None


RULE = Process
