"""What only a device, or a closer look, can tell.

Enters: the story of a run. Leaves: contracts of kernels, streams and dimensions, which a run on a CPU says nothing of:
NOT_EVALUATED, with what would record it; VACUOUS where the run has nothing of the kind.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.records import Event
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
    records = "the math mode of a product is in no run; `brickprof check operator` compares an operation's gradients"
    lacking = "a CPU has no tensor cores; `brickprof check operator` compares an operation's gradients with a reference"


class AnyDimension(OnDevice):
    contract = "DIM-001"
    records = "it compares a specialised kernel with a general one: `brickprof check operator`"
    lacking = "no kernel was launched; `brickprof check operator` compares a specialised kernel with a general one"


class Launched(OnDevice):
    """Only instrumented kernels are counted: those of brickprof.kernels, and whoever launches through its bricks."""

    contract = "DIM-002"
    records = "no instrumented kernel was launched, and zero launches are no pass"
    lacking = "zero launches are no pass; a run on a GPU with the kernels of brickprof.kernels counts them"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        last = {rank: events[-1] for rank in story.ranks if (events := story.events("kernels", rank))}
        counted = {rank: _counts(event.fields.get("kernels")) for rank, event in last.items()}
        if not any(counted.values()):
            return super().judge(story, contract)
        limit = int(contract.threshold("binaries"))
        many = [
            _violation(contract, last[rank], rank, name, binaries, limit)
            for rank, kernels in counted.items() for name, (_, binaries) in kernels.items() if binaries > limit
        ]  # fmt: skip
        if many:
            return outcomes.broken(contract, many, f"at most {limit} binaries a kernel")
        if not any(loads for kernels in counted.values() for _, loads in kernels.values()):
            return outcomes.unjudged(contract, "nothing was compiled: the kernels ran in Triton's interpreter")
        launches = sum(count for kernels in counted.values() for count, _ in kernels.values())
        binaries = max(loads for kernels in counted.values() for _, loads in kernels.values())
        kinds = len({name for kernels in counted.values() for name in kernels})
        told = f"{launches} launches of {kinds} kernels, at most {binaries} binaries each"
        return outcomes.held(contract, told, f"launches > 0, at most {limit} binaries a kernel")


def _counts(told: object) -> dict[str, tuple[int, int]]:
    """Launches and binaries by kernel, of those that were launched."""
    pairs = told.items() if isinstance(told, dict) else ()
    return {
        str(name): (pair[0], pair[1])
        for name, pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair) and pair[0] > 0
    }


def _violation(contract: Contract, event: Event, rank: int, name: str, binaries: int, limit: int) -> Violation:
    return Violation(
        contract.id, "recompiled", Severity.WARNING, f"kernel {name} was compiled and loaded {binaries} times",
        0, event.step, name, "kernel", rank, (event.id,),
        {
            "question": "Is each kernel compiled once for all shapes?", "asked": "How many binaries does it have?",
            "binaries": binaries, "limit": limit,
        },
        action="Pass sizes as arguments that are not specialised (do_not_specialize), and keep the tiles few.",
        experiment="Count `brickprof.operators.launch.counts()` over the shapes of one epoch.",
    )  # fmt: skip


class SyncsPerToken(OnDevice):
    contract = "C-Q4KSYNC-001"
    records = "it speaks of decoding token by token, and this run trains"
    lacking = "it speaks of decoding on a device, and this run trains"


RULES = (
    Select, Cublas, NoTensorCores, AnyDimension, Launched, SyncsPerToken,
)  # fmt: skip
