"""What an exception says about its cause.

Enters: an incident ``crashed`` with the exception's type and message. Leaves: hypotheses: causes of the catalogue where
the message proves one, and ``exception`` (a plain error of the script) always.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why


class _Sign(NamedTuple):
    cause: str
    weight: float
    type: str
    message: str
    action: str

    def seen(self, kind: str, message: str) -> bool:
        named = not self.type or bool(re.fullmatch(self.type, kind))
        return named and (not self.message or bool(re.search(self.message, message, re.IGNORECASE)))


_SIGNS = (
    _Sign("hardware-error", 8, "", r"\bxid\b|uncorrectable ecc|ecc error|fallen off the bus|hardware (error|failure)"
          r"|nvlink error|gpu is lost|cudaerrorhardware", "Take the device out of service, and run its diagnostics."),
    _Sign("collective-mismatch", 6, "", r"mismatch between collectives|preamble\.length|collective.*mismatch"
          r"|mismatched? (shapes|sizes|tensor).*(rank|collective)",
          "Every rank has to call the same collectives, with the same sizes, in the same order."),
    _Sign("deadlock", 5, "",
          r"(timed? ?out|timeout|watchdog).*(collective|nccl|gloo|process ?group|barrier|store|recv|send)"
          r"|(collective|nccl|gloo|process ?group|barrier|store|recv|send).*(timed? ?out|timeout)",
          "Find the rank that did not reach the collective: its log ends elsewhere."),
    _Sign("division-by-zero", 6, "ZeroDivisionError", "", "Ask for the case of an empty batch, or a count of zero."),
    _Sign("invalid-op", 5, "ValueError", r"math domain error", "Keep the argument inside the function's domain."),
    _Sign("fp16-overflow", 6, "RuntimeError", r"cannot be converted to type at::half without overflow",
          "Use bfloat16, or a mask value that float16 can hold (torch.finfo(x.dtype).min)."),
    _Sign("fp16-overflow", 6, "", r"current loss scale already at minimum|minimum loss scale reached"
          r"|loss scale .*(minimum|too small).*(exit|abort)",
          "Use bfloat16; or clip gradients, lower the learning rate, and keep norms and softmax in float32."),
    _Sign("no-gradient-path", 6, "RuntimeError", r"does not require grad and does not have a grad_fn",
          "Look for a detach, a torch.no_grad() or frozen parameters between the model and the loss."),
    _Sign("optimizer-missing-parameters", 5, "ValueError", r"optimizer got an empty parameter list",
          "Give the optimizer model.parameters(), made after the model and not from a used-up generator."),
    _Sign("checkpoint-incomplete", 5, "", r"missing key\(s\) in state_dict|pytorchstreamreader failed"
          r"|unexpected (eof|end of file)|ran out of input|loaded state dict (contains|has)|corrupt",
          "Save everything that is loaded, write to a temporary name, and rename it when it is whole."),
    _Sign("killed", 5, "RuntimeError", r"dataloader worker .* (killed by signal: killed|exited unexpectedly)",
          "A worker was killed, for memory most often: fewer workers, smaller batches, no big objects in the dataset."),
    _Sign("crashed-by-signal", 5, "RuntimeError", r"dataloader worker .* killed by signal: (seg|abort|bus)",
          "A worker's native code failed: try num_workers=0."),
)  # fmt: skip


def causes(violation: Violation) -> list[Hypothesis]:
    kind, message = str(violation.details.get("exception", "")), str(violation.details.get("message", ""))
    plain = Hypothesis("exception", action="Fix the exception; the traceback is in the script's own output.")
    plain.supports(violation.symptom, 2, *violation.evidence)
    found = [_named(sign, violation) for sign in _SIGNS if sign.seen(kind, message)]
    return [*found, plain]


def _named(sign: _Sign, violation: Violation) -> Hypothesis:
    cause = Hypothesis(sign.cause, action=sign.action)
    said = " ".join(str(violation.details.get("message", "")).split())[:200]
    cause.supports(f"the exception says so: {said}", sign.weight, *violation.evidence)
    finding = f"The exception says so: {violation.details.get('exception')}: {said}".rstrip(".: ") + "."
    cause.whys.append(Why("What does the exception say?", finding, violation.brick, violation.evidence))
    return cause
