"""The dicts that a Hugging Face Trainer prints: ``{'loss': 2.5, 'grad_norm': 1.2, ..., 'epoch': 0.07}``.

Enters: a captured stdout, with or without the progress bar in it; numbers may be quoted. Leaves: rows; the step is that
of the bar, else there is only the row.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely, stated

_DICT = r"\{'(?:loss|eval_loss|eval_\w+|train_loss|grad_norm|learning_rate|epoch)': ?'?(?:[-+\d.]|nan|inf)"


def _sure(head: Head) -> float:
    return likely(head, _DICT)


READER = TextReader(
    "hf_stdout",
    "Hugging Face Trainer, its printed dicts",
    _sure,
    Form(generic=False, spoken=stated(r"^ {2}([A-Z][\w ().,&]{2,80}?) = ([\d,]{1,24})$")),
    roles={"train_loss": "other", "num_tokens": "tokens", "eval_runtime": "other", "mean_token_accuracy": "quality"},
)
