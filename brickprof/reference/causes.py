"""The vocabulary of root causes: every id that a diagnosis or a specimen's truth may name.

Enters: nothing. Leaves: ``CAUSES``, each id with the symptom that usually leads to it. Pure data.
"""

from __future__ import annotations

CAUSES = {
    # gradients
    "grad-clip-not-applied": "huge gradients, NaN weights",
    "grad-clip-wrong": "slow learning, or a clip without effect",
    "exploding-gradients": "the gradient norm grows by a factor a layer or a step",
    "vanishing-gradients": "early blocks get next to nothing",
    "residual-path-broken": "early blocks get next to nothing",
    "missing-zero-grad": "gradients hold those of earlier steps",
    "accumulation-not-normalised": "gradients N times too large",
    "accumulation-discarded": "an update sees one micro-batch of many",
    "no-gradient-path": "a parameter with zero or no gradient",
    # learning rate
    "learning-rate-too-high": "loss above its start, oscillation",
    "learning-rate-too-low": "flat loss",
    "schedule-never-peaks": "flat loss",
    "schedule-not-stepped": "stalling loss",
    "schedule-horizon-wrong": "stalling loss, or a learning rate at its peak to the end",
    "warmup-missing": "early spike",
    # optimizer
    "optimizer-missing-parameters": "a parameter gets gradients and never moves",
    "optimizer-stale-parameters": "the optimizer owns tensors outside the model",
    "parameters-frozen": "nothing or little learns",
    "optimizer-hyperparameters-mismatch": "a declared value is not in force",
    "optimizer-state-uninitialised": "the first update is wrong",
    "weight-decay-too-strong": "weights shrink, loss stalls",
    # numbers
    "loss-scale-misused": "NaN or over-clipping under mixed precision",
    "fp16-overflow": "Inf in an activation or a gradient, then NaN",
    "bf16-precision-loss": "small updates or small differences are lost",
    "log-of-zero": "sudden NaN after good training",
    "division-by-zero": "sudden NaN after good training",
    "invalid-op": "sudden NaN after good training",
    "bad-initialisation": "huge or degenerate first losses and gradients",
    "dead-activations": "zero gradients in a layer",
    "saturated-activations": "zero gradients in a layer",
    # data and loss
    "unnormalised-inputs": "dead units, huge first-layer gradients",
    "double-softmax": "the loss floors above zero",
    "loss-input-mismatch": "the loss floors above zero, or means nothing",
    "labels-misaligned": "loss at chance while gradients flow",
    "labels-random": "loss at chance while gradients flow",
    "data-repeats": "memorising",
    "data-not-shuffled": "a saw in the loss",
    "data-order-lost-on-resume": "data seen twice after a resume",
    "data-nonfinite": "sudden NaN in one step",
    "loss-spike-data": "a spike and recovery",
    "loss-spike-optimizer": "a spike and recovery",
    # model
    "model-left-in-eval": "dropout or batch-norm off in training",
    "model-left-in-train": "dropout or batch-norm on in evaluation",
    "weight-tying-broken": "two storages where one is declared",
    "causal-leak": "training loss too good to be true",
    "overfitting": "train and evaluation part",
    "underfitting": "both curves stay high",
    "plateau": "no progress",
    # ranks
    "rank-divergence": "ranks differ",
    "gradient-not-reduced": "ranks differ, or step too far",
    "shard-overlap": "ranks read the same samples",
    "shard-imbalance": "ranks have unequal shares",
    "collective-mismatch": "hang or wrong data",
    "collective-orphaned": "wrong data without an error",
    "straggler": "slow steps",
    "deadlock": "a hang",
    # memory and device
    "memory-leak": "memory grows every step",
    "stream-race": "wrong numbers that differ between runs",
    "host-buffer-reuse": "wrong numbers that differ between runs",
    "missing-sync": "garbage on the host",
    "buffer-overflow": "a corrupted neighbour",
    "argument-order-swapped": "a corrupted neighbour, or wrong numbers",
    "out-of-bounds": "an illegal address or index",
    # speed
    "extra-transfers": "slow steps",
    "host-sync-in-loop": "slow steps",
    "launch-storm": "slow steps",
    "loader-bound": "slow steps",
    # silence
    "silent-fallback": "a path that is never taken",
    "sentinel-loss": "a loss of exactly 0.0, or constant",
    "config-unused": "a declared setting has no effect",
    "config-infeasible": "a declared plan that cannot be carried out",
    # checkpoints
    "checkpoint-incomplete": "a jump at resume",
    "resume-state-lost": "a jump at resume",
    "resume-step-leaked": "a fresh run that starts late or not at all",
    # the process
    "out-of-memory": "the process ends",
    "killed": "the process ends",
    "crashed-by-signal": "the process ends",
    "hung": "the process stands still",
    "hardware-error": "anything",
    "orphaned-process": "out of memory with a model that fitted before",
    "memory-fragmentation": "out of memory with room on the card",
    "kernel-race": "numbers that differ from run to run",
    "uninitialised-read": "garbage, other from run to run",
}
