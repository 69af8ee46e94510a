"""Numbers as people write them.

Enters: a word of a log. Leaves: its value, or None where it is none: nan, NaN, -inf, Infinity, 1e35, 3.2E+35, 1,234,
1_000, 12.3k, 45%, 2.1ms, 1.5GB, '0.25'. A per cent is a fraction, a time is in seconds, a size in bytes. A version, a
date, an address, ``+nanz`` are not numbers.
"""

from __future__ import annotations

import re

PLAIN = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
"""A number with nothing behind it, for patterns."""
NUMBER = (
    rb"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|(?i:nan|inf(?:inity)?))"
)
"""A number, for patterns: thousands may be set off with commas, and it may be no finite one."""
_WORD = re.compile(
    r"([+-]?)(?:((?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?|(nan|inf(?:inity)?))\s*([^\W\d]\w*(?:/s)?|%)?",
    re.IGNORECASE,
)
UNITS: dict[str, float] = {
    "": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12,
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "min": 60.0,
    "mins": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
"""What a number is multiplied with, by the word right behind it."""


def number(word: str) -> float | None:
    """The value of ``word``, all of it."""
    found = _WORD.fullmatch(word.strip().strip("'\""))
    if found is None:
        return None
    sign, digits, power, special, unit = found.groups()
    factor = 1.0 if unit is None else UNITS.get(unit) or UNITS.get(unit.lower())
    if factor is None or (special and unit):
        return None
    value = float(special or digits.replace(",", "").replace("_", "") + (power or ""))
    return (-value if sign == "-" else value) * factor
