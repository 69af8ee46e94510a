"""C-PROCESS-001, from a log: the run comes to the end that its author chose.

Enters: what the log says in words: how the job ended, what a device or a collective reported. Leaves: the cause that
those words prove. A time limit, a preemption or a request to stop is no fault of the training: it is worth knowing, and
the rest of the log is judged as if it went on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.log_view import View, view
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-PROCESS-001"
_ENDINGS = frozenset({"crashed", "exited", "crashed-by-signal", "killed", "hung"})
_OWN_SIGNALS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_REQUESTS = frozenset({"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT"})
_NUMBERS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
            11: "SIGSEGV", 15: "SIGTERM"}  # fmt: skip
_OF_THE_PROGRAM = frozenset({13, 31, 43, 45, 68, 69})
"""Xids that a program's own access raises; others are the card's, its memory's or its bus's."""


class Ending(NamedTuple):
    what: str
    cause: str
    severity: Severity
    certainty: float
    says: str
    action: str


_MEMORY = "Use a smaller batch or sequence, checkpoint activations; keep loss.item(), not loss."
_NATIVE = "Native code failed: run again with CUDA_LAUNCH_BLOCKING=1 and look at the stacks."
_INDEX = "Run once with CUDA_LAUNCH_BLOCKING=1, and look for an index outside its table: labels, tokens, positions."
_CARD = "Take the device out of service, and run its diagnostics."
_GO_ON = "Go on from the last checkpoint; ask for more time, or save more often."
_WHO = "Ask who sent it: the kernel's out-of-memory killer, a scheduler, or a person."
_RANKS = "Find the rank that did not reach the collective: its log ends elsewhere."
_ERROR, _INFO = Severity.ERROR, Severity.INFO
_KINDS = {
    "oom-killed": Ending("out-of-memory", "out-of-memory", _ERROR, 0.9, "the job was killed for its memory", _MEMORY),
    "time-limit": Ending("interrupted", "killed", _INFO, 0.95, "the scheduler's time limit ended the job", _GO_ON),
    "preempted": Ending("interrupted", "killed", _INFO, 0.95, "the job was preempted", _GO_ON),
    "cancelled": Ending("interrupted", "killed", _INFO, 0.9, "the job was cancelled", ""),
    "timeout": Ending("hung", "hung", _ERROR, 0.6, "something was waited for until the time was up", _RANKS),
    "segfault": Ending("crashed-by-signal", "crashed-by-signal", _ERROR, 0.9,
                       "the process was ended by a segmentation fault", _NATIVE),
    "abort": Ending("crashed-by-signal", "crashed-by-signal", _ERROR, 0.7, "the process aborted", _NATIVE),
    "illegal-address": Ending("device-error", "out-of-bounds", _ERROR, 0.75,
                              "a kernel touched memory that is not its own", _INDEX),
    "assert": Ending("device-error", "out-of-bounds", _ERROR, 0.8, "an assertion failed on the device", _INDEX),
    "ecc": Ending("device-error", "hardware-error", _ERROR, 0.9,
                  "the memory of the card has an error that could not be corrected", _CARD),
    "lost": Ending("device-error", "hardware-error", _ERROR, 0.9, "the driver has lost the card", _CARD),
    "xid": Ending("device-error", "hardware-error", _ERROR, 0.85, "the driver reports an error of the card", _CARD),
    "mismatch": Ending("collective", "collective-mismatch", _ERROR, 0.9, "ranks called different collectives",
                       "Every rank has to call the same collectives, with the same sizes, in the same order."),
}  # fmt: skip
_WAITED = Ending(
    "collective", "deadlock", Severity.ERROR, 0.6, "a collective was waited for until the time was up", _RANKS
)
_ORDER = ("oom-killed", "xid", "ecc", "lost", "illegal-address", "assert", "mismatch", "segfault", "timeout", "signal",
          "abort", "time-limit", "preempted", "cancelled")  # fmt: skip
"""What of several things is the cause of the others."""


class LoggedEnd:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None:
            return outcomes.unjudged(contract, "no log")
        told = [event for event in seen.said("ended", "device", "collective") if _word(event) in _ORDER]
        if not told:
            return _quiet(seen, contract)
        last = _lasting(seen, told)
        if not last:
            return _quiet(seen, contract)
        event = min(last, key=lambda each: _ORDER.index(_word(each)))
        ending = _ending(event)
        violation = _violation(seen, event, ending)
        if ending.severity is Severity.INFO:
            verdict = Verdict.NOT_EVALUATED if not seen.came_to_its_end else Verdict.PASS
            return ContractResult(CONTRACT, verdict, violation.symptom, "", violation.symptom, (violation,))
        return outcomes.broken(contract, [violation])


def _quiet(seen: View, contract: Contract) -> ContractResult:
    if seen.came_to_its_end:
        return outcomes.held(contract, "the run did all that it was to do")
    return outcomes.unjudged(contract, "the log does not say how the process ended; `brickprof run` does")


def _word(event: Event) -> str:
    return str(event.fields.get("how") or event.fields.get("what") or "")


def _lasting(seen: View, told: list[Event]) -> list[Event]:
    """Those after which no training follows: an error that the run survived is not its end."""
    losses = seen.story.events("loss", seen.rank)
    after = max((event.time_ns for event in losses), default=-1)
    return [event for event in told if event.time_ns >= after] or ([told[-1]] if not losses else [])


def _signal(event: Event) -> str:
    told: Any = event.fields.get("signal")
    if isinstance(told, str) and told:
        return told.upper() if told.upper().startswith("SIG") else _NUMBERS.get(whole(told), told)
    return _NUMBERS.get(whole(told), "a signal")


def _ending(event: Event) -> Ending:
    word = _word(event)
    if word == "signal":
        name = _signal(event)
        if name in _REQUESTS:
            return Ending(
                "interrupted", "killed", Severity.INFO, 0.8, f"the process was asked to stop ({name})", _GO_ON
            )
        if name in _OWN_SIGNALS:
            says = f"the process was ended by {name}"
            return Ending("crashed-by-signal", "crashed-by-signal", Severity.ERROR, 0.85, says, _NATIVE)
        return Ending("killed", "killed", Severity.ERROR, 0.5, f"the process was ended by {name}", _WHO)
    if word == "xid" and whole(event.fields.get("xid")) in _OF_THE_PROGRAM:
        says = f"the driver reports Xid {whole(event.fields.get('xid'))}, which a program's own access raises"
        return Ending("device-error", "out-of-bounds", Severity.ERROR, 0.6, says, _INDEX)
    if word == "timeout" and event.fields.get("fact") == "collective":
        return _WAITED
    return _KINDS[word]


def _violation(seen: View, event: Event, ending: Ending) -> Violation:
    where = f" at {seen.at(event.step)}" if event.step or len(seen.loss) else ""
    goal = f" of {seen.total:,}" if seen.total and where else ""
    symptom = f"{ending.says}{where}{goal}"
    text = str(event.fields.get("text") or "").strip()
    line = event.fields.get("line")
    said = f"Line {line:,} says: {text[:200]}" if isinstance(line, int) and text else f"The log says so: {ending.says}."
    return Violation(
        CONTRACT, ending.what, ending.severity, symptom, event.step, event.step, "", "step", seen.rank, (event.id,),
        {"logged": True, "question": "Why did the run end?"}, ending.cause, ending.certainty, _ENDINGS,
        (Because("What does the log say?", said, "", (event.id,)),), (), ending.action,
    )  # fmt: skip


RULE = LoggedEnd
