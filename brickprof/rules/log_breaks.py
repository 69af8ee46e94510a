"""C-PROCESS-001, from a log: crashes in its middle, after which the training goes on.

Enters: exceptions and bad ends that the log tells of before its last loss, and the places where steps went back. Leaves
a note, however many there were: what broke first, at which step, where the run went on, and whether it got past the
place. It decides nothing: what a restart did to the loss is for C-RESUME-001, how the run ended for the last words.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.log_view import View, view
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-PROCESS-001"
_LONGEST = 160
_MOST_STEPS = 6
_ACTION = "Read the lines around it: what breaks once and is restarted may break again, and costs the steps in between."
_BREAKS = frozenset({"ended", "device", "collective", "exception"})
_QUIET = frozenset({"pending", "under-way", "complete"})


class _Break(NamedTuple):
    told: Event
    """The first of the lines that tell of it."""
    restart: Event | None
    """Where the steps went back behind it, before anything else broke."""


class LoggedBreaks:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        found = _breaks(seen) if seen is not None else []
        if seen is None or not found:
            return outcomes.unjudged(contract, "the log does not say how the process ended; `brickprof run` does")
        violation = _note(seen, found)
        return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, violation.symptom, "", "", (violation,))


def _breaks(seen: View) -> list[_Break]:
    """What broke and was survived, in the order of the log. Lines between the same two losses tell of one thing."""
    losses = sorted(event.time_ns for event in seen.story.events("loss", seen.rank))
    told = [event for event in seen.said(*sorted(_BREAKS)) if event.fields.get("what") not in _QUIET]
    restarts = sorted(seen.story.events("resumed", -1), key=lambda event: event.time_ns)
    found: list[_Break] = []
    until = -1
    for event in sorted(told, key=lambda event: event.time_ns):
        place = bisect_right(losses, event.time_ns)
        if place == len(losses) or event.time_ns <= until:
            continue
        after = losses[place]
        restart = next((one for one in restarts if event.time_ns < one.time_ns <= after), None)
        if restart is None and event.time_ns < losses[0]:
            continue  # before the first step: an attempt to start, and no training
        until = after
        found.append(_Break(event, restart))
    return found


def _note(seen: View, found: list[_Break]) -> Violation:
    first = next((one for one in found if one.restart is not None), found[0])
    symptom = f"{_says(first.told)} at {seen.at(first.told.step)}, {_went_on(seen, first)}"
    if len(found) > 1:
        steps = ", ".join(f"{one.told.step:,}" for one in found[:_MOST_STEPS])
        symptom += f"; {len(found)} such places in all ({seen.unit}s {steps}{', ...' * (len(found) > _MOST_STEPS)})"
    line = first.told.fields.get("line")
    said = f"Line {line:,} says: {_says(first.told)}." if isinstance(line, int) else f"{_says(first.told)}."
    proof = (first.told.id, *((first.restart.id,) if first.restart is not None else ()))
    return Violation(
        CONTRACT, "survived", Severity.INFO, symptom, first.told.step, first.told.step, "", "step", seen.rank, proof,
        {"logged": True, "question": "What broke, and did the run go on?"}, "exception", 0.9, frozenset(),
        (Because("What does the log say?", said, "", proof),), (), _ACTION,
    )  # fmt: skip


def _says(event: Event) -> str:
    fields = event.fields
    text = str(fields.get("text") or "")
    if fields.get("type"):
        message = str(fields.get("message") or "").strip()
        text = f"{fields['type']}: {message}" if message else str(fields["type"])
    told = " ".join(text.split()) or str(fields.get("how") or fields.get("what") or "something broke")
    return told if len(told) <= _LONGEST else told[: _LONGEST - 1].rsplit(" ", 1)[0] + " …"


def _went_on(seen: View, one: _Break) -> str:
    if one.restart is None:
        return "and the training went on"
    goes_on, stopped = one.restart.step, whole(one.restart.fields.get("stopped_at"))
    begun = "began anew" if goes_on <= 1 < stopped else f"went on from {seen.at(goes_on)}"
    later = [event.step for event in seen.story.events("loss", seen.rank) if event.time_ns >= one.restart.time_ns]
    if max(later, default=goes_on) > stopped:
        return f"and the run {begun}; it recovered: it got past {seen.at(stopped)}"
    return f"and the run {begun}; it has not got as far as {seen.at(stopped)} again"


RULE = LoggedBreaks
