"""What llm.c prints and what it keeps in main.log.

Enters: ``step 3/19560 | loss 11.0 (+nanz)| norm 5.1 (+1.2z)| lr 2.5e-6 | 3617.07 ms | 37.3% bf16 MFU | 144844 tok/s``,
where what is in parentheses says how unusual a value is and is no measurement, ``val loss 4.7``, and ``s:1 trl:11.0
lr:0.000001 norm:15.1``. Leaves: rows, and as settings the table that it begins with.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely, stated


def _sure(head: Head) -> float:
    printed = likely(
        head,
        r"^step\s+\d+/\d+ ?\| (?:train )?loss",
        r"^\| (?:train data pattern|micro batch size B|num_parameters)\s+\|",
        at_least=0.85,
    )
    return max(printed, likely(head, r"^s:\d+ trl:\S+ (?:lr|norm):", at_least=0.85))


READER = TextReader(
    "llm_c",
    "llm.c stdout and main.log",
    _sure,
    Form(
        alone=frozenset({"val loss", "tel", "eval"}),
        spoken=stated(r"^\| ([A-Za-z][\w ()]{0,40}?)\s*\| (?!Value\b)(\S[^|]{0,200}?)\s*\|$"),
    ),
    roles={"eval": "quality", "tel": "eval_loss", "trl": "loss"},
)
