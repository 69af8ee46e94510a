"""What somebody asked to be looked at, and what became of that.

Enters: the diagnosis of a run, its records, and what was asked for on the command line. Leaves: a line for each, where
no finding tells it: a run in which nothing else is wrong passes, also where the check that it was made for could not be
made, and whoever asked has to hear of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brickprof.contracts.verdicts import Verdict

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run


def answers(diagnosis: Diagnosis, run: Run, *, sync_check: bool, sanitizer: str) -> list[str]:
    """In sentences, for whoever asked for a ``sync_check`` or for a tool of the ``sanitizer``."""
    found = [_of_streams(diagnosis) if sync_check else "", _of_tool(run, sanitizer) if sanitizer else ""]
    return [each for each in found if each]


def _of_streams(diagnosis: Diagnosis) -> str:
    from brickprof.rules.stream_sync import NO_GPU, StreamSync

    judged = next((each for each in diagnosis.contracts if each.id == StreamSync.contract), None)
    if judged is None or judged.verdict is Verdict.FAIL:
        return ""
    if judged.why == NO_GPU:
        return "--sync-check had nothing to check: no CUDA device was used"
    if judged.verdict is Verdict.PASS:
        return f"--sync-check: {judged.observed}"
    result = "had nothing to check" if judged.verdict is Verdict.VACUOUS else "cannot tell"
    return f"--sync-check {result}: {judged.why}"


def _of_tool(run: Run, tool: str) -> str:
    from brickprof.records import Event
    from brickprof.rules import sanitizer

    records = [each for each in run.records() if isinstance(each, Event) and each.kind == "sanitizer"]
    told = sanitizer.in_a_line(records, tool)
    return f"--sanitizer {tool}{told}" if told else ""
