"""What nanochat prints: ``step 00010/09000 (0.11%) | loss: 5.12 | lrm: 1.00 | dt: 1234.56ms | tok/sec: 423,123 | ...``
and ``Step 00250 | Validation bpb: 1.23``. Bits per byte are its validation loss.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely


def _sure(head: Head) -> float:
    return likely(
        head,
        r"^\W*[Ss]tep \d{4,}(?:/\d+)?(?: \([\d.]+%\))? \|.*(?:\blrm\b|Validation bpb|[Tt]raining loss)",
        at_least=0.8,
    )


READER = TextReader(
    "nanochat",
    "nanochat",
    _sure,
    Form(alone=frozenset({"Validation bpb", "CORE metric"})),
    roles={"Validation bpb": "eval_loss", "Validation loss": "eval_loss", "CORE metric": "quality", "lrm": "other"},
)
