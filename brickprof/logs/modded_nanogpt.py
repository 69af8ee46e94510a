"""What modded-nanogpt writes: its own source, what the machine is, and then the log.

Enters: ``s:9502 trl:3.22`` of the first ones, ``step:1/5100 val_loss:10.8258 train_time:0ms step_avg:nanms`` of those
since. Leaves: rows, from below the last ruler on: what is above is a program.
"""

from __future__ import annotations

import re

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, share

_LINES = (
    r"^s:\d+ (?:trl|tel):\S+\s*$",
    r"^step:\d+/\d+ (?:(?:train|val)_loss:\S+ )?(?:loss_bpb:\S+ )?train_time:\S+",
)
_PROGRAM = re.compile(rb"(?m)^(?:import|from) \w+[\s\S]*?^import |^with open\(sys\.argv\[0\]\)")


def _sure(head: Head) -> float:
    found = share(head, *_LINES, most=4000)
    if _PROGRAM.match(head.start[:2000].lstrip()) and (
        found or b"sys.argv[0]" in head.start or b"print0(" in head.start or head.start.count(b"\nimport ") > 3
    ):
        return 0.85
    return 0.88 * found if found > 0.3 else 0.0


READER = TextReader(
    "modded_nanogpt",
    "modded-nanogpt",
    _sure,
    Form(begins=re.compile(rb"(?m)^={20,}\s*\n")),
    roles={"trl": "loss", "tel": "eval_loss", "step_avg": "step_seconds", "eval": "quality"},
)
