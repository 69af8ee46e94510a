"""Why a process ended.

Enters: an incident of the process rule. Leaves: out-of-memory, killed, crashed-by-signal, hung,
crashed, interrupted or exited, with memory growth as evidence where it was recorded.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import wording

_FULL = 0.85
_ACTIONS = {
    "out-of-memory": "Use a smaller batch or sequence, checkpoint activations; keep loss.item(), not loss.",
    "killed": "Ask who sent it: a scheduler's limit, the kernel's out-of-memory killer, or a person.",
    "crashed-by-signal": "Native code failed: run again with CUDA_LAUNCH_BLOCKING=1 and look at the stacks.",
    "hung": "Look at the stacks in the run's folder: they show where every thread stood.",
    "crashed": "Fix the exception above; the traceback is in the script's own output.",
}  # fmt: skip


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.contract or violation.what not in (*_ACTIONS, "interrupted", "exited"):
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
        finding = wording.sentence(growth["text"])
        cause.whys.append(Why("How much did it use?", finding, "", growth["evidence"]))
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
        finding = wording.sentence(growth["text"])
        cause.whys.append(Why("Why was it killed?", finding, "", growth["evidence"]))
    else:
        cause.contradicts(f"{growth['text']}: there was room", 3, *growth["evidence"])
    return [cause]
