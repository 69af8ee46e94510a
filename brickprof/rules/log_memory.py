"""C-MEMSTABLE-001, from a log: after warm-up, memory does not grow with the number of steps.

Enters: memory as a log tells it. Leaves: growth in a straight line to the end of the log. Peaks that only ever rise a
little (an allocator that has seen its longest batch) are no leak: the slope has to be there in every third of the run.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-MEMSTABLE-001"
_FEWEST = 12
_EXPLAINS = frozenset({"out-of-memory", "killed", "slow-down"})


class LoggedMemory:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        told = {name: one.per_step().finite() for name, one in seen.memory.items()} if seen is not None else {}
        judged = {name: one for name, one in told.items() if len(one) >= _FEWEST}
        if seen is None or not judged:
            return outcomes.unjudged(
                contract, "the log says too little about memory; `brickprof run` records it (probe memory)"
            )
        for name, one in judged.items():
            if (violation := _grows(seen, name, one, contract)) is not None:
                return outcomes.broken(contract, [violation])
        name, one = max(judged.items(), key=lambda item: len(item[1]))
        return outcomes.held(
            contract, f"{name} between {show(float(one.values.min()))} and {show(float(one.values.max()))}"
        )


def _grows(seen: View, name: str, found: Track, contract: Contract) -> Violation | None:
    later = found.where(np.arange(len(found)) >= len(found) // 4)
    x, y = later.steps.astype(float), later.values
    if float(np.ptp(x)) <= 0 or float(y[0]) <= 0:
        return None
    straight = float(np.corrcoef(x, y)[0, 1]) if float(np.ptp(y)) > 0 else 0.0
    grown = float(y[-1] - y[0]) / float(y[0])
    thirds = np.array_split(y, 3)
    every = all(float(part[-1]) > float(part[0]) + 0.15 * float(y[-1] - y[0]) for part in thirds)
    risen = len(np.unique(y)) >= _FEWEST // 2
    if straight < contract.threshold("linear") or grown < contract.threshold("grown") or not (every and risen):
        return None
    first, last = int(later.steps[0]), int(later.steps[-1])
    a_step = float(y[-1] - y[0]) / max(1, last - first)
    large = float(y[-1]) > 1e6
    size = wording.size if large else show
    symptom = (
        f"{name} grows by {size(a_step)} a {seen.unit}, from {size(float(y[0]))} to {size(float(y[-1]))}, to the end"
    )
    proof = later.evidences((0, len(later) // 2, len(later) - 1))
    text = "It grows in every third of the log alike: something of every step is kept."
    return Violation(
        CONTRACT, "memory-growth", Severity.WARNING, symptom, first, last, "", "step", seen.rank, proof,
        {"logged": True, "question": "Why does memory grow?"}, "memory-leak", 0.75, _EXPLAINS,
        (Because("Is it a warm-up?", text, "", proof),), (),
        "Keep loss.item() and not the loss; look for lists that grow in the loop.",
        "brickprof run SCRIPT: the probe `retained` counts losses that keep their graphs.",
    )  # fmt: skip


RULE = LoggedMemory
