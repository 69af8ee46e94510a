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
    "loss-spike-optimizer": "updates ran away before the loss did",
    "loss-spike-data": "a batch that is unlike the others",
    "bad-initialisation": "broken from the start: weights, kernels or what was loaded",
    "overfitting": "it learns the samples by heart",
    "resume-state-lost": "the resume lost a part of its state",
    "checkpoint-incomplete": "the checkpoint does not hold everything",
    "sentinel-loss": "a constant stands in for the loss",
    "out-of-memory": "out of memory",
    "killed": "killed from outside",
    "crashed-by-signal": "native code failed",
    "exception": "an exception of the script",
    "rank-divergence": "the ranks no longer hold the same model",
    "gradient-not-reduced": "gradients are not averaged over the ranks",
    "shard-overlap": "several ranks train on the same data",
    "shard-imbalance": "the ranks have unequal shares of the data",
    "collective-mismatch": "the ranks call different collectives",
    "collective-orphaned": "nobody waited for an asynchronous collective",
    "straggler": "one rank makes the others wait",
    "deadlock": "everybody waits, and nobody can go on",
    "loader-bound": "data comes too slowly",
    "host-sync-in-loop": "the host reads from the device in a loop",
    "extra-transfers": "too many copies between host and device",
    "launch-storm": "many small operations where one would do",
    "memory-leak": "something keeps every step in memory",
    "out-of-bounds": "an index lies outside its buffer",
    "buffer-overflow": "something does not fit where it is put",
    "hardware-error": "the hardware failed",
    "orphaned-process": "a process that nobody waits for holds the card's memory",
    "memory-fragmentation": "free memory lies in pieces that are too small",
    "kernel-race": "threads of a kernel do not keep their order",
    "uninitialised-read": "a kernel reads memory that nobody wrote",
    "hung": "it hangs",
    "interrupted": "stopped on request",
    "exited": "the script's own exit code",
    "undetermined": "not to be told from what was recorded",
}


def words(root_cause: str) -> str:
    """``root_cause`` as a phrase; an id that has none (a third party's) speaks for itself."""
    return _WORDS.get(root_cause, root_cause.replace("-", " "))
