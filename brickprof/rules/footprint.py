"""C-MEM-001: the memory of parameters, gradients and moments is what their number says.

Enters: a story. Leaves: one result with the arithmetic, and a remark where a device holds many times what the model
accounts for.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.rules import declared, outcomes, wording
from brickprof.rules.names import number
from brickprof.rules.resumes import stateful
from brickprof.rules.story import Story

CONTRACT = "C-MEM-001"
_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
_TWO_MOMENTS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


class Footprint:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        weights, gradients, moments = sizes(story, rank)
        if not weights:
            return outcomes.unjudged(contract, "no parameter was introduced")
        need = weights + gradients + moments
        text = (
            f"weights {wording.size(weights)}, gradients {wording.size(gradients)}, moments {wording.size(moments)}: "
            f"{wording.size(need)}"
        )
        peak = _device_peak(story, rank)
        if peak is None:
            return outcomes.unjudged(contract, "no device memory was seen to compare with", text)
        held, evidence = peak
        if held > contract.threshold("most") * need and held - need > contract.threshold("floor_bytes"):
            return outcomes.broken(contract, [_large(rank, held, need, text, evidence)], wording.size(need))
        return outcomes.held(contract, f"{text}; {wording.size(held)} on the device", "at least what the model needs")


def sizes(story: Story, rank: int) -> tuple[float, float, float]:
    """Bytes of weights, of gradients, and of the moments of the optimizers that have them."""
    owned = {number for one in declared.optimizers(story, rank) for number in one.tensors}
    weights = gradients = 0.0
    for tensor in story.names.tensors(rank):
        size = tensor.numel * _BYTES.get(tensor.dtype, 4) * (not tensor.alias)
        weights += size
        gradients += size if story.names.trained(rank, tensor) and tensor.number in owned else 0.0
    moments = 0.0
    for one in declared.optimizers(story, rank):
        each = 2 if one.cls in _TWO_MOMENTS else 1 if stateful(one) else 0
        for reference in one.tensors:
            tensor = story.names.tensor(rank, reference)
            moments += each * tensor.numel * _BYTES.get(tensor.dtype, 4)
    return weights, gradients, moments


def _device_peak(story: Story, rank: int) -> tuple[float, str] | None:
    seen = [
        (held, event.id)
        for event in story.events("memory", rank)
        if (held := number(event.fields.get("device_allocated"))) is not None and held > 0
    ]
    return max(seen, default=None)


def _large(rank: int, held: float, need: float, text: str, evidence: str) -> Violation:
    return Violation(
        CONTRACT, "memory", Severity.INFO,
        f"the device holds {wording.size(held)}, {held / need:.3g} times what weights, gradients and moments need", 0,
        0, "", "step", rank, (evidence,), {"arithmetic": text}, static=True,
        action="Look at activations, caches and tensors that are kept from step to step.",
    )  # fmt: skip


RULE = Footprint
