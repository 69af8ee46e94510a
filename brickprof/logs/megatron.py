"""What Megatron-LM and Megatron-DeepSpeed print: cells between bars, named with or without a colon.

Enters: `` iteration 100/ 115311 | consumed samples: 200 | elapsed time per iteration (ms): 1205.2 | learning rate:
6.0E-05 | lm loss: 8.1E+00 | loss scale: 1.0 | grad norm: 1.2 | number of skipped iterations: 0 | ... |``; a step that
was skipped has no lm loss. Validations are lines of their own. Leaves: rows, and as settings the list of arguments.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely, stated


def _sure(head: Head) -> float:
    return likely(
        head,
        r"\biteration\s+\d+/\s*\d+ \|",
        r"\bvalidation loss at (?:iteration|the end of training)",
        r"(?:global|micro)[_ ]batch[_ ]size \.{4,}",
        at_least=0.85,
    )


READER = TextReader(
    "megatron",
    "Megatron-LM and Megatron-DeepSpeed",
    _sure,
    Form(spoken=stated(r"^(?:\S{1,40}:)?\s{0,4}([a-z][a-z0-9_]{1,60}) \.{3,} (\S.{0,200})$")),
    roles={"validation lm loss PPL": "quality", "lm loss PPL": "quality", "params norm": "other"},
)
