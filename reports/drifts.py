"""One drift for people, and what became of it when it was measured again.

Enters: drifts as plain data. Leaves: lines: where it parts, by how much, the first mismatch as numbers and as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

Fields = Mapping[str, Any]


def lines_of(drift: Fields) -> Iterator[Text]:
    sizes = ", ".join(f"{name} {size}" for name, size in drift["sizes"].items())
    yield Text(f"      {drift['transform']}  {clean(drift['case'])}, {drift['direction']}    {sizes}    {drift['id']}")
    if drift["note"]:
        yield Text(f"      {clean(drift['note'])}")
    if drift["mismatches"]:
        how = "part" if drift["relation"] == "I" else f"are beyond {drift['atol']:g} + {drift['rtol']:g} |gold|"
        errors = f"largest error {number(drift['max_error'])}, mean {number(drift['mean_error'])}"
        yield Text(f"      {drift['mismatches']:,} of {drift['elements']:,} values {how}; {errors}")
    if drift["first"]:
        yield Text(f"      first  {_first(drift['first'])}")


def _first(first: Fields) -> str:
    was, now = float(first["expected"]), float(first["given"])
    bits = f"{was:.9g} ({first['expected_bits']}) became {now:.9g} ({first['given_bits']})"
    return f"row {first['row']:,}, element {first['element']:,}: {bits}"


def number(value: Any) -> str:
    value = float(value)
    return f"{value:.2g}" if math.isfinite(value) else str(value)


def replay(recorded: Fields, measured: Fields | None) -> dict[str, Any]:
    """What became of a recorded drift, as plain data."""
    same = measured is not None and all(
        measured[name] == recorded[name] for name in ("first", "mismatches", "max_error")
    )
    return {"schema": 1, "reproduced": measured is not None, "same": same, "recorded": recorded, "measured": measured}


def render_replay(document: Fields, console: Console) -> None:
    recorded, measured = document["recorded"], document["measured"]
    name = f"{clean(recorded['operator'])} {recorded['dtype']}, {recorded['id']}"
    if measured is None:
        lines = [Text(f"✓ GONE  {name} is not there any more", "bold green"), *lines_of(recorded)]
    else:
        how = "the same numbers" if document["same"] else "with other numbers"
        lines = [Text(f"✗ REPRODUCED  {name}, {how}", "bold red"), *lines_of(measured)]
    console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)
