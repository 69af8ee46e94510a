"""A reader made of what the user says a line looks like.

Enters: a pattern, either a regular expression with named groups (``step (?P<step>\\d+).*loss=(?P<loss>\\S+)``) or plain
text with names in braces (``step {step} loss {loss}``; ``{}`` is anything that is not to be read). Leaves: a reader
that gives a row for each line where it fits. A pattern that could take for ever on a line is refused, and so is one
with a brace too many; one that fits no line of a log says at which line it failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.errors import UnreadableInput, UsageError
from brickprof.logs.reading import incidents, names, tokens
from brickprof.logs.reading.model import Block, Head, Item, Skipped
from brickprof.logs.reading.numbers import NUMBER, number
from brickprof.logs.reading.source import Source
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.logs.reading.gather import Log

_BRACES = re.compile(r"\{([A-Za-z_][\w./ -]*|)\}")
_LONGEST = 1_000
_LONGEST_LINE = 4_096
_HINT = "Name what is to be read: 'step {step} loss {loss}', or '(?P<step>\\d+).*loss=(?P<loss>\\S+)'."


def from_pattern(text: str) -> PatternReader:
    if not text.strip() or len(text) > _LONGEST:
        raise UsageError("the pattern is empty." if not text.strip() else "the pattern is too long.", _HINT)
    called: dict[str, str] = {}
    pattern = text if "(?P<" in text else _of_braces(text, called)
    try:
        compiled = re.compile(pattern.encode())
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the pattern {clean(text)!r} is not a regular expression: {clean(error)}.", _HINT) from None
    if not compiled.groupindex:
        raise UsageError(f"the pattern {clean(text)!r} names no number.", _HINT)
    if _may_take_for_ever(pattern):
        raise UsageError(
            f"the pattern {clean(text)!r} repeats what repeats already, and could take for ever on one line.",
            "Write (\\d+) for (\\d+)+, and [^x]* for (.*)*; at most three of .* in a row.",
        )
    told = {group: called.get(group, group) for group in compiled.groupindex}
    if all(names.role(name) == "step" for name in told.values()):
        raise UsageError(f"the pattern {clean(text)!r} names nothing but the step.", _HINT)
    return PatternReader(compiled, told)


def _of_braces(text: str, called: dict[str, str]) -> str:
    """Plain text with names in braces, as a regular expression; spaces are as many as there are."""
    _check_braces(text)
    parts, place = [], 0
    for found in _BRACES.finditer(text):
        parts.append(_literal(text[place : found.start()]))
        place = found.end()
        if not found[1]:
            parts.append(".*?")
            continue
        group = f"g{len(called)}"
        called[group] = " ".join(found[1].split())
        parts.append(f"(?P<{group}>{NUMBER.decode()}(?:%|[A-Za-zµ]{{1,3}}\\b)?)")
    parts.append(_literal(text[place:]))
    return "".join(parts)


def _check_braces(text: str) -> None:
    """Braces that are the line's own come in pairs; one alone is a slip."""
    left = _BRACES.sub(lambda found: " " * len(found[0]), text)
    missing = "}" if left.count("{") > left.count("}") else "{" if left.count("}") > left.count("{") else ""
    if missing:
        place = left.rfind("{") if missing == "}" else left.find("}")
        raise UsageError(f"the pattern {clean(text)!r} lacks a {missing!r}: see {clean(text[place:][:20])!r}.", _HINT)


def _literal(text: str) -> str:
    words = re.split(r"\s+", text)
    return r"\s*".join(re.escape(word) for word in words)


def _may_take_for_ever(pattern: str) -> bool:
    """Whether something that repeats repeats in itself, or very much is left open."""
    from re import _parser  # type: ignore[attr-defined]

    return _nested(_parser.parse(pattern), False) or len(re.findall(r"(?<!\\)\.[*+]", pattern)) > 8


def _nested(parsed: Any, repeats: bool) -> bool:
    for operation, argument in parsed:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = argument
            many = int(most) > 1 and int(most) != int(least)
            if many and repeats and int(most) > 8:
                return True
            if _nested(inner, repeats or int(most) > 8):
                return True
        elif name in ("GROUPREF", "GROUPREF_EXISTS") or _inside(argument, repeats):
            return True
    return False


def _inside(argument: Any, repeats: bool) -> bool:
    """The same for what an operation holds: a group, an alternative, a look ahead."""
    if hasattr(argument, "data"):
        return _nested(argument, repeats)
    if isinstance(argument, (tuple, list)):
        return any(_inside(part, repeats) for part in argument)
    return False


class PatternReader:
    """Every line where the pattern fits is a row."""

    by_lines = True
    name = "pattern"
    title = "lines that fit --pattern"

    def __init__(self, pattern: re.Pattern[bytes], names: dict[str, str]) -> None:
        self.pattern, self.names = pattern, names
        self.roles: dict[str, str] = {}

    def sniff(self, head: Head) -> float:
        return 0.0

    def read(self, source: Source) -> Iterator[Item]:
        watch = incidents.Watch()
        line = source.first_line
        for chunk in source.chunks():
            found = tokens.cut(chunk, line)
            yield from self._chunk(found, watch)
            line += int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == ord("\n")))
        yield from watch.end()

    def checked(self, log: Log) -> None:
        """Says so where no line of ``log`` was read."""
        if log.rows:
            return
        shown = clean(log.path)
        if not log.examples:
            raise UnreadableInput(f"{shown} holds no line that --pattern could fit.", _HINT)
        line, text = log.examples[0]
        failed = clean(text, limit=120)
        raise UnreadableInput(f"--pattern fits no line of {shown}; the first one, line {line}, is {failed!r}.", _HINT)

    def _chunk(self, found: tokens.Cut, watch: incidents.Watch) -> Iterator[Item]:
        rows: dict[tuple[str, ...], tuple[list[int], list[list[float]]]] = {}
        left: list[int] = []
        for line in range(len(found)):
            values = self._row(found.text(line)[:_LONGEST_LINE]) if found.whole or line < len(found) - 1 else {}
            if not values:
                left.append(line)
                continue
            lines, columns = rows.setdefault(tuple(values), ([], []))
            lines.append(int(found.lines[line]))
            columns.append(list(values.values()))
        for held, (lines, columns) in rows.items():
            table = np.array(columns, dtype=np.float64)
            yield Block(np.array(lines), {name: table[:, place] for place, name in enumerate(held)})
        rest = np.array(left, dtype=np.int64)
        yield from watch.take(found, rest)
        shown = [(int(found.lines[line]), found.text(line)) for line in left if found.text(line).strip()]
        if shown:
            told = tuple((line, clean(text.decode("utf-8", "replace"), limit=200)) for line, text in shown[:5])
            yield Skipped(len(shown), told)

    def _row(self, text: bytes) -> dict[str, float]:
        found = self.pattern.search(text)
        if found is None:
            return {}
        said = {self.names[group]: word for group, word in found.groupdict().items() if word is not None}
        read = {name: number(word.decode("utf-8", "replace").rstrip(",;|)]}")) for name, word in said.items()}
        return {} if None in read.values() else {name: value for name, value in read.items() if value is not None}
