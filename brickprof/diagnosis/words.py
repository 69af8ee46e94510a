"""Root causes in words, for people; the ids are for programs."""

from __future__ import annotations

_WORDS = {
    "data-nonfinite": "the data itself holds values that are not finite",
    "fp16-overflow": "a value outgrew float16",
    "exploding-gradients": "gradients grew without bound",
    "grad-clip-not-applied": "gradients jumped, and nothing clipped them",
    "learning-rate-too-high": "the learning rate is too high",
    "log-of-zero": "the loss took a logarithm of zero, or overflowed",
    "division-by-zero": "something was divided by zero",
    "invalid-op": "an operation with no finite result (0/0, log or sqrt outside its domain)",
    "loss-scale-misused": "the loss scale is misused",
    "no-gradient-path": "no gradient reaches these parameters",
    "dead-activations": "every unit of the block puts out zero",
    "out-of-memory": "out of memory",
    "killed": "killed from outside",
    "crashed-by-signal": "native code failed",
    "crashed": "an exception of the script",
    "hung": "it hangs",
    "interrupted": "stopped on request",
    "exited": "the script's own exit code",
    "undetermined": "not to be told from what was recorded",
}


def words(root_cause: str) -> str:
    """``root_cause`` as a phrase; an id that has none (a third party's) speaks for itself."""
    return _WORDS.get(root_cause, root_cause.replace("-", " "))
