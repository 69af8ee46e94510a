"""Why a process ended, or stopped moving.

Enters: an incident of the process rule. Leaves: out-of-memory, killed, crashed-by-signal, hung, deadlock, or what the
exception itself says (see ``brickprof.diagnosis.exceptions``). Two ids are not faults of a training: ``exception``, a
plain error of the script, and ``exited``, its own exit code.
"""

from __future__ import annotations

from typing import Any

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis import exceptions
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import wording
from brickprof.rules.standstill import Stand, loading, locked

CONTRACT = "C-PROCESS-001"
_FULL = 0.85
_ACTIONS = {
    "out-of-memory": "Use a smaller batch or sequence, checkpoint activations; keep loss.item(), not loss.",
    "killed": "Ask who sent it: a scheduler's limit, the kernel's out-of-memory killer, or a person.",
    "crashed-by-signal": "Native code failed: run again with CUDA_LAUNCH_BLOCKING=1 and look at the stacks.",
    "hung": "Look at the stacks in the run's folder: they show where every thread stood.",
    "interrupted": "",
    "exited": "",
}  # fmt: skip


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.contract != CONTRACT or violation.mechanism:
        return []
    if violation.what == "crashed":
        return exceptions.causes(violation)
    if violation.what == "hung":
        return _standing(violation)
    if violation.what not in _ACTIONS:
        return []
    return [_told(violation), *_memory(violation)]


def _told(violation: Violation) -> Hypothesis:
    cause = Hypothesis(violation.what, action=_ACTIONS.get(violation.what, ""))
    cause.supports(violation.symptom, 1.5 if violation.what == "killed" else 5, *violation.evidence)
    if violation.what == "killed":
        cause.lacks("who sent the signal")
    if violation.what in ("killed", "crashed-by-signal"):
        cause.next_experiment = "Run again under the same memory limit and watch memory with `brickprof show`."
    growth = violation.details.get("memory")
    if violation.what == "out-of-memory" and growth:
        cause.whys.append(_used("How much did it use?", growth))
    return cause


def _memory(violation: Violation) -> list[Hypothesis]:
    """A SIGKILL that nobody owned up to, with the memory full: the kernel's work, probably."""
    if violation.what != "killed":
        return []
    cause = Hypothesis("out-of-memory", action=_ACTIONS["out-of-memory"])
    growth = violation.details.get("memory")
    if growth is None or growth["filled"] is None:
        cause.lacks("resident memory over the run, and its limit")
    elif growth["filled"] >= _FULL:
        cause.supports(f"{growth['text']}: it was full", 4, *growth["evidence"])
        cause.lacks("the kernel's log")
        cause.whys.append(_used("Why was it killed?", growth))
    else:
        cause.contradicts(f"{growth['text']}: there was room", 3, *growth["evidence"])
    return [cause]


def _used(question: str, growth: dict[str, Any]) -> Why:
    return Why(question, wording.sentence(growth["text"]), "", growth["evidence"])


# -- nothing moves


def _standing(violation: Violation) -> list[Hypothesis]:
    """Where the threads stood says what they waited for."""
    stands: list[Stand] = [stood for stood in violation.details.get("stands", ()) if stood.stalled]
    hung = Hypothesis("hung", action=_ACTIONS["hung"])
    hung.supports(violation.symptom, 3, *violation.evidence)
    waiting = Hypothesis("deadlock", action="Find who holds what it waits for; give the wait a timeout meanwhile.")
    for stood in stands[:1]:
        finding = f"The main thread of rank {stood.rank} stood at {stood.frame}" if stood.frame else "It stood still"
        _weigh(stood, finding, hung, waiting, violation.evidence)
    if not stands or not any(stood.frames for stood in stands):
        hung.lacks("stacks of its threads")
    return [hung, waiting]


def _empty_queue(stood: Stand) -> bool:
    """Whether it waits in ``Queue.get``: nothing is held, something is missing."""
    return any(frame.name == "get" and frame.file.endswith(("queue.py", "queues.py")) for frame in stood.frames[:4])


def _weigh(stood: Stand, finding: str, hung: Hypothesis, waiting: Hypothesis, evidence: tuple[str, ...]) -> None:
    question = "Where did it stand?"
    if stood.busy:
        hung.supports("it used the processor all the while", 3, *evidence)
        hung.whys.append(Why(question, f"{finding}, and used the processor all the while: a loop.", "", evidence))
        waiting.contradicts("it used the processor all the while: it waited for nobody", 3, *evidence)
    elif loading(stood):
        hung.supports("it waited for a DataLoader's worker", 2, *evidence)
        hung.whys.append(Why(question, f"{finding}: it waited for a batch from a worker.", "loader", evidence))
        hung.action = "Try num_workers=0: then the dataset's own error or wait shows itself."
    elif _empty_queue(stood):
        hung.supports("it waited for something to come out of a queue", 6, *evidence)
        hung.whys.append(Why(question, f"{finding}: it waited for a queue that nobody filled.", "", evidence))
        hung.action = "Look at who should fill the queue: it has ended, or waits itself. Give the wait a timeout."
    elif locked(stood):
        waiting.supports("it waited for a lock, a queue or another thread", 6, *evidence)
        waiting.whys.append(Why(question, f"{finding}: it waited for a lock that nobody gave back.", "", evidence))
    else:
        hung.whys.append(Why(question, f"{finding}.", "", evidence))
