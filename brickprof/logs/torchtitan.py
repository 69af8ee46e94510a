"""What torchtitan's logger writes, in colours or not: ``step:  1  loss: 12.2  grad_norm: 1.5  memory:  1.5GiB(2%)  tps:
1,234  tflops: 10.1  mfu: 3.2%``.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely


def _sure(head: Head) -> float:
    return likely(head, r"\bstep: +\d+ +loss: +\S+ .*\b(?:memory|tps|mfu|grad_norm):", at_least=0.85)


READER = TextReader("torchtitan", "torchtitan stdout", _sure, Form())
