"""What DeepSpeed's logger writes: ``step=10, skipped=10, lr=[0.0001], mom=[(0.9, 0.999)]``, timers, and a line for each
update that was left out because it overflowed. What the training script prints between them is read too, and is of the
step that was spoken of last.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely


def _sure(head: Head) -> float:
    return (
        likely(
            head,
            r"\[(?:deepspeed|deepscale)\] OVERFLOW!",
            r"step=\d+, skipped=\d+, lr=\[",
            r"\[INFO\] \[(?:logging|engine|config|timer|stage\w*|loss_scaler)\.py:\d+:",
            at_least=0.6,
        )
        * 0.85
    )


READER = TextReader("deepspeed", "DeepSpeed stdout", _sure, Form(rename={"mom": "momentum"}))
