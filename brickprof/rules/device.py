"""What only a device, or a closer look, can tell.

Enters: the story of a run. Leaves: contracts of kernels, streams and dimensions, which a run on a CPU says nothing of:
NOT_EVALUATED, with what would record it; VACUOUS where the run has nothing of the kind.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult
from brickprof.rules import outcomes
from brickprof.rules.story import Story

_DEVICES = ("cuda", "hip", "xpu")


class OnDevice:
    """A contract that speaks of what a GPU does."""

    contract = ""
    records = ""
    """What would record the evidence, on a device."""
    lacking = ""
    """What a run without a device lacks."""

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        if not has_device(story):
            return outcomes.unjudged(contract, f"no GPU: {self.lacking}")
        return outcomes.unjudged(contract, self.records)


def has_device(story: Story) -> bool:
    told = (event.fields.get("device") for rank in story.ranks for event in story.events("tensor", rank))
    return any(str(device).startswith(_DEVICES) for device in told)


class StreamSync(OnDevice):
    contract = "C-STREAMSYNC-001"
    records = "copies to the host and their streams were not recorded; --level deep records them"
    lacking = "a CPU has no streams; a run on a GPU with --level deep records copies and their streams"


class GemmArguments(OnDevice):
    contract = "C-GEMMARGS-001"
    records = "launch arguments were not recorded; `brickprof check operator` judges a kernel by itself"
    lacking = "no kernel was launched; `brickprof check operator` judges a kernel by itself"


class Select(OnDevice):
    contract = "C-SELP-001"
    records = "instructions of kernels are not in a run; `brickprof check operator` compares them with a reference"
    lacking = "no kernel was compiled; `brickprof check operator` compares one with a reference"


class Cublas(OnDevice):
    contract = "C-CUBLAS-001"
    records = "both paths of a product are compared by `brickprof check operator`, not by a run"
    lacking = "no matrix product ran on a device; `brickprof check operator` compares both paths"


class NoTensorCores(OnDevice):
    contract = "C-CUBLAS-NOTENCORE-001"
    records = "the math mode of a product is not recorded; --level deep records precision settings"
    lacking = "a CPU has no tensor cores; a run on a GPU with --level deep records the math mode"


class AnyDimension(OnDevice):
    contract = "DIM-001"
    records = "it compares a specialised kernel with a general one: `brickprof check operator`"
    lacking = "no kernel was launched; `brickprof check operator` compares a specialised kernel with a general one"


class Launched(OnDevice):
    contract = "DIM-002"
    records = "loads and launches of kernels were not counted; --level deep counts them"
    lacking = "zero launches are no pass; a run on a GPU with --level deep counts them"


class SyncsPerToken(OnDevice):
    contract = "C-Q4KSYNC-001"
    records = "it speaks of decoding token by token, and this run trains"
    lacking = "it speaks of decoding on a device, and this run trains"


RULES = (
    StreamSync, GemmArguments, Select, Cublas, NoTensorCores, AnyDimension, Launched, SyncsPerToken,
)  # fmt: skip
