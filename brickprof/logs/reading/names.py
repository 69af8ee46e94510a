"""What a column of a log is, from its name.

Enters: names as trainers write them: ``train/loss``, ``lm loss``, ``trl``, ``lr-AdamW/pg1``, ``eval_wer``. Leaves: a
role of ``model.ROLES`` for each; and, of several losses of one training, the one that is minimised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

_SPLIT = re.compile(r"[^a-z0-9]+|(?<=[a-z])(?=\d)")
_STATED = re.compile(r"[A-Za-z][\w.-]*=[^\s,;()\[\]/]+")
"""A setting in a name: ``lr=0.1 - train/loss`` is a loss."""
_FOREIGN = {
    "эпоха": "epoch", "эпохи": "epoch", "итерация": "iteration", "шаг": "step", "потери": "loss", "эпох": "epoch",
    "epoche": "epoch", "epoca": "epoch", "época": "epoch", "époque": "epoch", "épocas": "epochs", "schritt": "step",
    "verlust": "loss", "perte": "loss", "pérdida": "loss", "损失": "loss", "損失": "loss", "步数": "step",
    "迭代": "iteration", "轮次": "epoch", "エポック": "epoch", "에포크": "epoch", "에폭": "epoch", "손실": "loss",
}  # fmt: skip
_OTHER_LETTERS = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev", "tel", "holdout"})
_STEP = frozenset({"step", "steps", "iter", "iters", "iteration", "iterations", "it", "s", "update", "updates"})
_PER = frozenset({
    "per", "sec", "second", "seconds", "time", "ms", "took", "dt", "duration", "speed", "elapsed", "rate", "size",
})  # fmt: skip
_LOSS = frozenset({"loss", "losses", "trl", "nll", "ce", "xent", "tel", "objective", "cost", "closs"})
_NORM = frozenset({"gnorm", "gradnorm"})
_OF_GRADIENTS = frozenset({"grad", "grads", "gradient", "gradients", "total"})
_WORK = frozenset({
    "tokens", "token", "tok", "samples", "sample", "examples", "steps", "step", "it", "iter", "images", "img", "words",
})  # fmt: skip
_THROUGHPUT = frozenset({"tps", "wps", "ups", "fps", "throughput", "tflops", "tflop", "flops", "mfu"})
_MEMORY = frozenset({"memory", "mem", "vram", "ram", "rss", "reserved", "allocated"})
_QUALITY = frozenset({
    "acc", "accuracy", "acc1", "acc5", "top1", "top5", "f1", "map", "precision", "recall", "wer", "cer", "bleu",
    "rouge", "auc", "auroc", "iou", "miou", "psnr", "ssim", "fid", "bpb", "ppl", "perplexity", "hella", "hellaswag",
    "mmlu", "exact", "match", "em", "mcc", "r2", "mae", "rmse", "reward", "core", "metric",
})  # fmt: skip
_COUNTED = _STEP | {"global", "train", "trainer", "training", "current", "opt", "optimizer", "num", "number", "of", "n"}
"""Words that a name which counts steps is made of."""
_FALLING = frozenset({"wer", "cer", "fid", "ppl", "perplexity", "bpb", "mae", "rmse"})
_SKIPPED = frozenset({"skipped", "skip", "skips", "skipping", "overflow", "overflows"})
_PLAIN_LOSSES = (
    ("loss",), ("train", "loss"), ("lm", "loss"), ("training", "loss"), ("total", "loss"), ("loss", "train"),
    ("train", "total", "loss"), ("loss", "total"), ("trl",), ("train",), ("tr", "loss"), ("train", "loss", "step"),
    ("loss", "metrics", "global", "avg", "loss"), ("train", "lm", "loss"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def words(name: str) -> tuple[str, ...]:
    if "=" in name:
        name = _STATED.sub(" ", name)
    lowered = _CAMEL.sub(" ", name).lower()
    lowered = _OTHER_LETTERS.sub(lambda found: _FOREIGN.get(found[0], found[0]), lowered)
    return tuple(part for part in _SPLIT.split(lowered) if part)


@lru_cache(maxsize=4096)
def evaluates(kind: str) -> bool:
    """Whether rows of this kind are those of an evaluation."""
    return bool(_EVALUATION & frozenset(words(kind)))


@lru_cache(maxsize=4096)
def role(name: str) -> str:
    """The role of a column; ``other`` where its name says nothing."""
    run, _, metric = name.rpartition(" - ")
    if run and role(metric) != "other":  # a chart of several runs puts theirs before it
        return role(metric)
    parts = words(name)
    known = frozenset(parts)
    evaluation = bool(known & _EVALUATION)
    if not parts:
        return "other"
    if known & _NORM or (
        "norm" in known and (known & {"grad", "grads", "gradient", "gradients", "total"} or parts == ("norm",))
    ):
        return "grad_norm"
    if "lr" in known or ("learning" in known and "rate" in known):
        return "lr"
    if known & _SKIPPED:
        return "skipped"
    if "nan" in known and known & {"iterations", "iteration", "steps", "count", "number"}:
        return "nonfinite"
    if "scale" in known and (known & {"loss", "grad", "scaler"} or parts == ("scale",)):
        return "scale"
    if known & _THROUGHPUT or _rate_of_work(known):
        return "other" if evaluation else "throughput"
    if _takes_time(known) and parts != ("time", "batch"):  # so Composer counts batches
        return "step_seconds"
    if known & {"ppl", "perplexity"}:  # of a loss, and no loss
        return "quality"
    if known & _LOSS and not ("cost" in known and "time" in known):
        return "eval_loss" if evaluation else "loss"
    if parts[-1] in {"epoch", "epochs"} and not known & _PER:
        return "epoch"
    if known & {"total", "max", "target"} and known & _STEP:
        return "total_steps"
    if known & _STEP and known <= _COUNTED:
        return "step"
    if known & {"timestamp", "walltime"} or parts in (("wall", "time"), ("time", "stamp")):
        return "time"
    if known & {"tokens", "token"} and not known & _PER:
        return "tokens"
    if known & _QUALITY or {f"{one}{other}" for one, other in pairwise(parts)} & _QUALITY:
        return "quality"
    if known & _MEMORY:
        return "memory"
    if parts == ("train",):
        return "loss"
    if parts in (("val",), ("valid",), ("validation",), ("eval",)):
        return "eval_loss"
    return "other"


def _rate_of_work(known: frozenset[str]) -> bool:
    return (
        bool(known & _WORK) and bool(known & {"sec", "second", "s", "throughput"}) and not known & {"time", "elapsed"}
    )


def _takes_time(known: frozenset[str]) -> bool:
    timed = known & {"time", "ms", "dt", "took", "elapsed", "duration", "seconds"}
    one = known & {"step", "iter", "iteration", "batch", "it", "per"}
    return bool(timed) and (bool(one) or known <= {"time", "ms", "dt", "s", "took"})


def falls(name: str) -> bool:
    """Whether less of this measure is better."""
    return bool(frozenset(words(name)) & (_FALLING | _LOSS))


def main_loss(names: Iterable[str]) -> str | None:
    """Of the names of training losses, the one that the optimizer minimises; None where there is no telling."""
    found = list(names)
    ranked = [name for plain in _PLAIN_LOSSES for name in found if words(name) == plain]
    if ranked:
        return ranked[0]
    by_step = [name for name in found if words(name)[-1:] == ("step",)]
    whole = [name for name in by_step or found if frozenset(words(name)) & {"train", "training", "total", "lm"}]
    for candidates in (whole, by_step, found):
        if len(candidates) == 1:
            return candidates[0]
        plain = [name for name in candidates if len(words(name)) <= 3 and "loss" in words(name)]
        trained = [name for name in plain if words(name)[:2] == ("train", "loss")]
        if len(trained) == 1:
            return trained[0]
    return None
