"""What nanoGPT prints: ``iter 10: loss 9.8973, time 460.33ms, mfu 48.08%`` and, at evaluations, ``step 0: train loss
10.9, val loss 10.9``.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely, stated


def _sure(head: Head) -> float:
    return likely(head, r"^\W*iter \d+: loss \S+, time ", r"^\W*step \d+: train loss \S+, val loss ", at_least=0.8)


READER = TextReader(
    "nanogpt",
    "nanoGPT stdout",
    _sure,
    Form(spoken=stated(r"^(?:Overriding: )?([a-z_]{2,40}) ?= ?([\w.+-]{1,60})$")),
)
