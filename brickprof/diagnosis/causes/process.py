"""Why a process ended.

Enters: an incident of the process rule. Leaves: out-of-memory, killed, crashed-by-signal, hung,
crashed, interrupted or exited, with memory growth as evidence where it was recorded.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.timeline import Timeline

_GROWN = 1.3
_ACTIONS = {
    "out-of-memory": "Use a smaller batch or sequence, checkpoint activations; keep loss.item(), not loss.",
    "killed": "Ask who sent it: a scheduler's limit, the kernel's out-of-memory killer, or a person.",
    "crashed-by-signal": "Native code failed: run again with CUDA_LAUNCH_BLOCKING=1 and look at the stacks.",
    "hung": "Look at the stacks in the run's folder: they show where every thread stood.",
    "crashed": "Fix the exception above; the traceback is in the script's own output.",
}  # fmt: skip


def hypotheses(violation: Violation, timeline: Timeline) -> list[Hypothesis]:
    if violation.contract or violation.what not in (*_ACTIONS, "interrupted", "exited"):
        return []
    return [_told(violation), *_memory(violation)]


def _told(violation: Violation) -> Hypothesis:
    cause = Hypothesis(violation.what, action=_ACTIONS.get(violation.what, ""))
    cause.supports(violation.symptom, 1.5 if violation.what == "killed" else 5, *violation.evidence)
    if violation.what == "killed":
        cause.lacks("who sent the signal")
    if violation.what in ("killed", "crashed-by-signal"):
        cause.next_experiment = (
            "Run again under the same memory limit and watch memory with `brickprof show`."
        )
    growth = violation.details.get("memory")
    if violation.what == "out-of-memory" and growth:
        text = _growth(growth)
        cause.whys.append(Why("Was it always that large?", text, "", growth["evidence"]))
    return cause


def _memory(violation: Violation) -> list[Hypothesis]:
    """A SIGKILL that nobody owned up to, after memory had grown: the kernel's work, probably."""
    if violation.what != "killed":
        return []
    cause = Hypothesis("out-of-memory", action=_ACTIONS["out-of-memory"])
    growth = violation.details.get("memory")
    if growth is None:
        cause.lacks("resident memory over the run")
    elif growth["to"] > _GROWN * growth["from"]:
        cause.supports(growth["text"], 2, *growth["evidence"])
        cause.lacks("the kernel's log")
        cause.whys.append(Why("Why was it killed?", _growth(growth), "", growth["evidence"]))
    else:
        cause.contradicts(f"{growth['text']}: it did not grow", 2, *growth["evidence"])
    return [cause]


def _growth(growth: dict[str, object]) -> str:
    text, since = str(growth["text"]), growth["since"]
    return f"{text[:1].upper()}{text[1:]} since step {since}."
