"""What was found of operations, on a terminal or as JSON: verdict, four judgments a type, the first drift of a failure.

Enters: the plain document of an inquiry. Leaves: text that says everything without colour, as a table where it fits and
as lines where the terminal is narrow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.reports import terminal
from brickprof.reports.drifts import lines_of, number
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {"PASS": ("✓", "green"), "FAIL": ("✗", "red")}
_BLANK = ("○", "yellow")
_WORDS = {"VACUOUS": "vacuous", "NOT_EVALUATED": "not evaluated"}
_HEADS = ("operation", "type")
_NOTES = 12
Fields = Mapping[str, Any]


def to_json(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def render(document: Fields, console: Console, file: Path | None = None) -> None:
    """Prints ``document``; ``file`` is where it was written, for the command that replays a drift."""
    lines = [_head(document), *(Text(f"  · {clean(note)}", "dim") for note in document["notes"])]
    if document["operators"]:
        lines += [Text(), *_table(document["operators"], console.width if console.is_terminal else None)]
        lines += _failures(document, file)
        lines += _reasons(document["operators"])
    for chain in document["chains"]:
        lines += [Text(), *_chain(chain)]
    console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)


# -- the verdict


def _head(document: Fields) -> Text:
    mark, colour = _MARKS.get(document["verdict"], _BLANK)
    verdict = f"{mark} {document['verdict'].replace('_', ' ')}"
    head = Text.assemble((verdict, f"bold {colour}"), f"  {_summary(document)}")
    return head.append(
        f"    {clean(document['device'])}, {clean(document['device_name'])}, torch {document['torch']}", "dim"
    )


def _summary(document: Fields) -> str:
    told = []
    operators, chains = document["operators"], document["chains"]
    if operators:
        failed = [each["operator"] for each in operators if each["verdict"] == "FAIL"]
        passed = sum(each["verdict"] == "PASS" for each in operators)
        some = f"{passed} of {len(operators)} operation{'s' * (len(operators) != 1)} hold{'s' * (len(operators) == 1)}"
        told.append(f"{some}; failed: {', '.join(clean(name) for name in failed)}" if failed else some)
    for chain in chains:
        blame = f", blamed on {clean(chain['blame'])}" if chain["blame"] else ""
        told.append(f"chain {chain['dtype']}: {chain['verdict'].replace('_', ' ')}{blame}")
    return "; ".join(told)


# -- the table


def _table(operators: Sequence[Fields], width: int | None) -> list[Text]:
    judgments = list(dict.fromkeys(cell["judgment"] for each in operators for cell in each["cells"]))
    rows = [
        (each["operator"], dtype, [cell for cell in each["cells"] if cell["dtype"] == dtype])
        for each in operators
        for dtype in dict.fromkeys(cell["dtype"] for cell in each["cells"])
    ]
    cells = [[clean(name), dtype, *(_cell(cell).plain for cell in found)] for name, dtype, found in rows]
    widths = [max(len(line[at]) for line in [[*_HEADS, *judgments], *cells]) for at in range(2 + len(judgments))]
    if width is not None and 2 + sum(widths) + 2 * len(widths) > width:
        return _stacked(rows)
    lines = [
        Text(
            "  " + "  ".join(f"{name:{size}}" for name, size in zip([*_HEADS, *judgments], widths, strict=True)), "dim"
        )
    ]
    for name, dtype, found in rows:
        line = Text(f"  {clean(name):{widths[0]}}  {dtype:{widths[1]}}")
        for cell, size in zip(found, widths[2:], strict=True):
            shown = _cell(cell)
            line.append("  ").append_text(shown).append(" " * (size - len(shown)))
        line.rstrip()
        lines.append(line)
    return lines


def _stacked(rows: Sequence[tuple[str, str, Sequence[Fields]]]) -> list[Text]:
    lines = []
    for name, dtype, found in rows:
        lines.append(Text(f"  {clean(name)} {dtype}", "bold"))
        lines += [Text(f"  {cell['judgment']:20}").append_text(_cell(cell)) for cell in found]
    return lines


def _cell(cell: Fields) -> Text:
    mark, colour = _MARKS.get(cell["verdict"], _BLANK)
    return Text(f"{mark} {_said(cell)}", colour)


def _said(cell: Fields) -> str:
    if cell["verdict"] in _WORDS:
        return _WORDS[cell["verdict"]]
    if cell["judgment"].endswith("accuracy"):
        return "raised" if not cell["cases"] else f"{number(cell['max_error'])}, {_share(cell['share'])}"
    if cell["verdict"] == "PASS":
        return f"equal in {cell['cases']}"
    return f"{len(cell['drifts'])} of {cell['cases']} part" if cell["drifts"] else "fails"


def _share(value: Any) -> str:
    """How much of what is allowed the largest error uses up."""
    value = float(value)
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.0%} used" if value < 10 else f"{value:,.0f} times"


# -- what failed


def _failures(document: Fields, file: Path | None) -> Iterator[Text]:
    drifts = {drift["id"]: drift for drift in document["drifts"]}
    for judged in document["operators"]:
        failed = [cell for cell in judged["cells"] if cell["verdict"] == "FAIL"]
        if failed:
            yield Text()
            yield from _failure(judged, failed, drifts, file)


def _failure(
    judged: Fields, failed: Sequence[Fields], drifts: Mapping[str, Fields], file: Path | None
) -> Iterator[Text]:
    """The first drift of an operation. Invariance goes before accuracy, as in the blame."""
    first, *others = sorted(failed, key=lambda cell: cell["judgment"].endswith("accuracy"))
    title = f"  ✗ {clean(judged['operator'])} {first['dtype']}: {first['judgment']}"
    candidate = "" if judged["candidate"] == "own" else f"    candidate {clean(judged['candidate'])}"
    yield Text.assemble((title, "bold red"), f"    blame: {judged['blame']}{candidate}")
    if not first["drifts"]:
        yield Text(f"      {clean(first['why'])}")
        return
    identity = first["drifts"][0]
    yield from lines_of(drifts[identity])
    again = f"brickprof check operator --replay {identity} --from {file}" if file else drifts[identity]["command"]
    yield Text(f"      again  {clean(again, limit=1000)}")
    kinds = ", ".join(dict.fromkeys(drifts[each]["transform"] for each in first["drifts"][1:]))
    more = [f"{len(first['drifts']) - 1} more in {kinds}"] if kinds else []
    more += [f"{cell['dtype']} {cell['judgment']}" for cell in others]
    if more:
        yield Text(f"      also   {'; '.join(more)}", "dim")


def _reasons(operators: Sequence[Fields]) -> list[Text]:
    """Why something was not judged, each reason once."""
    told: dict[str, list[str]] = {}
    for judged in operators:
        for cell in judged["cells"]:
            if cell["verdict"] in _WORDS and cell["why"]:
                where = f"{clean(judged['operator'])} {cell['dtype']}"
                told.setdefault(cell["why"], []).append(where)
        for note in judged["notes"]:
            told.setdefault(note, []).append(clean(judged["operator"]))
    lines = [f"  ○ {_some(list(dict.fromkeys(where)))}: {clean(why)}" for why, where in told.items()]
    more = [f"  ○ and {len(lines) - _NOTES} more reasons, in the JSON"] if len(lines) > _NOTES else []
    return [Text(), *(Text(line, "dim") for line in [*lines[:_NOTES], *more])] if lines else []


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")


# -- the chain


def _chain(chain: Fields) -> Iterator[Text]:
    mark, colour = _MARKS.get(chain["verdict"], _BLANK)
    sizes = ", ".join(f"{name} {size}" for name, size in chain["sizes"].items())
    title = Text.assemble((f"  {mark} chain {chain['dtype']}", f"bold {colour}"), (f"    {sizes}", "dim"))
    if chain["blame"]:
        title.append(f"    blamed on {clean(chain['blame'])}", "bold")
    yield title
    if chain["why"]:
        yield Text(f"      {clean(chain['why'])}")
    for link in chain["links"]:
        mark, colour = _MARKS.get(link["verdict"], _BLANK)
        said = link["why"] or f"equal bits; error {number(link['max_error'])}"
        who = chain["candidates"].get(link["name"], "own")
        line = Text.assemble((f"      {mark} ", colour), f"{link['index']} {link['name']:10} {clean(who):6} ")
        yield line.append(clean(said), "" if link["why"] else "dim")
    for each in chain["aggregates"]:
        mark, colour = _MARKS.get(each["verdict"], _BLANK)
        against = f"against {each['against']}, {each['tokens']:,} tokens: "
        most = f"max |dlogp| {number(each['max_dlogp'])} (allowed {each['allowed']:g})"
        rest = f"approx_kl0 {number(each['approx_kl0'])}, clipped {float(each['clip_fraction']):.1%}"
        yield Text.assemble((f"      {mark} ", colour), f"{against}{most}, {rest}")


# -- the list


def render_list(operators: Sequence[Fields], console: Console) -> None:
    """Each operation as it is called, by keyword; its family, types and problems."""
    lines = []
    for each in operators:
        sizes = " · ".join(",".join(f"{name}={size}" for name, size in sizes.items()) for sizes in each["sizes"])
        call = f"{clean(each['operator'])}({', '.join(each['arguments'])})"
        torch = "" if each["torch"] else "  (torch has none of its own)"
        lines.append(f"{call:32} {each['family']:12} {','.join(each['dtypes']):15} {sizes}{torch}")
    console.print(terminal.fit(Text("\n".join(lines)), console.encoding), soft_wrap=True)
