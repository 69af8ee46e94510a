"""Foreign strings made safe to show: control characters become visible, length is bounded; and how a sentence begins.

Enters: any string from a script, a log or a journal. Leaves: one that cannot move a cursor, change a
colour, reorder what is read, or flood a screen.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

_NAME = re.compile(r"[./\\_=()\[\]<>\d]|[a-z][A-Z]")
"""What a word of a language does not have in it, and a path, a number or an identifier does."""


def clean(foreign: object, *, limit: int = 400, one_line: bool = True) -> str:
    """``foreign`` as text that is safe in a terminal: unsafe characters as visible escapes."""
    shown = str(foreign)
    if len(shown) > limit:
        shown = shown[: limit // 2] + " … " + shown[-(limit - limit // 2) :]
    shown = _UNSAFE.sub(_escape, shown)
    return shown.replace("\n", "⏎").replace("\t", " ") if one_line else shown


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def capital(text: str) -> str:
    """``text`` as a sentence begins: a capital first, unless the first word is a path or another name."""
    first = text.split(maxsplit=1)[0].rstrip(".,;:!?") if text.strip() else ""
    return text if _NAME.search(first) else text[:1].upper() + text[1:]


def file_name(foreign: str, *, limit: int = 40) -> str:
    """``foreign`` as one harmless path component."""
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", foreign).strip(".-")
    return kept[:limit] or "run"
