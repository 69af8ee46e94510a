"""Any other text that numbers stand in by name: ``key: value``, ``key=value``, logfmt, words and numbers.

Enters: a log that no other reader knows. Leaves: what the engine makes of it; and of a text without a row at least what
it says in words.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Block, Fact, Head
from brickprof.logs.reading.templates import Engine, Form, TextReader

_LOOKED_AT = 32 << 10
_NO_LOGS = (
    ".md", ".rst", ".py", ".ipynb", ".html", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".sh", ".c", ".cu", ".cpp", ".h",
)  # fmt: skip
"""Prose, programs and settings: numbers stand in them by name too."""


def _sure(head: Head) -> float:
    if head.name.endswith(_NO_LOGS):
        return 0.0
    start = head.start[:_LOOKED_AT]
    control = sum(start.count(byte) for byte in (b"\x01", b"\x02", b"\x03", b"\xff", b"\xfe", b"\x7f"))
    if control > len(start) // 100:
        return 0.0
    items = Engine(Form()).take(start[: start.rfind(b"\n") + 1] or start)
    rows = sum(len(item.lines) for item in items if isinstance(item, Block))
    if rows:
        return 0.25 if rows > 1 else 0.15
    return 0.1 if any(isinstance(item, Fact) for item in items) else 0.06


READER = TextReader("text", "text with named numbers", _sure, Form())
