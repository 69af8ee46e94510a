"""The ``log.txt`` of build-nanogpt: a step, what is measured, its value: ``250 val 6.1``, ``250 train 6.3``."""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, share


def _sure(head: Head) -> float:
    found = share(head, r"^\d+ (?:train|val|hella) (?:[\d.]+|nan|inf)\s*$")
    return 0.95 * found if found > 0.5 else 0.0


READER = TextReader(
    "build_nanogpt",
    "build-nanogpt log.txt",
    _sure,
    Form(alone=frozenset({"hella"})),
    roles={"train": "loss", "val": "eval_loss", "hella": "quality"},
)
