"""What a log cannot tell, and what would have.

Enters: a contract that no rule can judge from a log. Leaves: its result: NOT_EVALUATED, with the probe or the command
that records what decides it.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Verdict

_RECORDED_BY = {
    "activation": "what blocks put out is not in a log; `brickprof run` records it (probe blocks)",
    "artifact": "what a run left on disk is not in its log; `brickprof check artifacts` compares it",
    "attention": "what attention looks at is not in a log; `brickprof run` records it (probe wiring)",
    "backward": "what the backward does is not in a log; `brickprof run --level deep` records it (probe blocks)",
    "batch": "batches are not in a log; `brickprof run` records them (probe loader)",
    "block": "what happens inside the model is not in a log; `brickprof run` records it (probes blocks and gradients)",
    "card": "the device is not in a log; `brickprof run` looks at it every second",
    "checkpoint": "what was saved and restored is not in a log; `brickprof run` records it (probe held)",
    "collective": "collectives are not in a log; `brickprof run` records them (probe collectives)",
    "config": "what settings come to is not in a log; `brickprof run --config` or `check config` compares",
    "evaluation": "the log has no evaluation loss; `brickprof run` records each evaluation (probe evaluation)",
    "grad": "gradients as they were applied are not in a log; `brickprof run` records them (probe gradients)",
    "host_sync": "reads of the device are not in a log; `brickprof run` records them (probe syncs)",
    "kernel": "kernels are not in a log; `brickprof check operator` compares them, `brickprof run` times them",
    "loader": "the loader is not in a log; `brickprof run` records it (probe loader)",
    "loss": "how the loss was computed is not in a log; `brickprof run` records it (probes loss and criterion)",
    "memory": "the log says nothing about memory; `brickprof run` records it (probe memory)",
    "message": "messages between processes are not in a log; `brickprof run` records them (probe collectives)",
    "optimizer": "the optimizer's state is not in a log; `brickprof run` records it (probes optimizers and moments)",
    "process": "the log does not say how the process ended; `brickprof run` does",
    "retained": "what is kept alive is not in a log; `brickprof run` records it (probe retained)",
    "run": "one log says nothing about another run; `brickprof compare` does",
    "schedule": "the log has no learning rate; `brickprof run` records it (probe schedules)",
    "step": "what a step is made of is not in a log; `brickprof run` records it (probe timeline)",
    "transfer": "copies between host and device are not in a log; `brickprof run` records them (probe transfers)",
    "update": "how far the weights moved is not in a log; `brickprof run` records it (probe weights)",
    "weight": "weights are not in a log; `brickprof run` records them (probe weights)",
}


def reason(contract: Contract) -> str:
    told = (_RECORDED_BY.get(obligation.applies_to) for obligation in contract.obligations)
    return next((text for text in told if text), "a log does not hold what decides this; `brickprof run` records it")


def unread(contract: Contract) -> ContractResult:
    return ContractResult(contract.id, Verdict.NOT_EVALUATED, why=reason(contract))
