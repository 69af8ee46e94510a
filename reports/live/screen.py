"""The full screen of ``brickprof watch``.

Enters: a ``Scene``, a size, and which finding was chosen. Leaves: exactly so many lines of styled text. What does not
fit gives way in an order: pictures shrink to one row of bars, then the table of ranks, then the words behind a finding;
the header and the first finding stay. Pictures are made again only when their numbers have changed, and not at every
frame.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.reports.live import map as maps
from brickprof.reports.live.plot import bars, plot
from brickprof.reports.live.scene import ENDED, KILLED, RUNNING, SILENT, STARTING, Card, Heat, Rank, Scene, Series
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Finding

Line = list[tuple[str, str]]
"""Pieces of text, each with the name of its style."""

STYLES = {
    "": Style.null(), "dim": Style(dim=True), "bold": Style(bold=True), "accent": Style(color="cyan"),
    "good": Style(color="green"), "warn": Style(color="yellow", bold=True), "bad": Style(color="red", bold=True),
    "odd": Style(color="red", bold=True, reverse=True), "chosen": Style(bold=True, reverse=True),
    "low": Style(dim=True), "middle": Style(color="blue"), "high": Style(color="cyan"),
}  # fmt: skip
_CONDITIONS = {
    STARTING: ("…", "dim"), RUNNING: ("●", "good"), SILENT: ("◌", "warn"), ENDED: ("○", "bold"), KILLED: ("✗", "bad"),
}  # fmt: skip
_SEVERITIES = {Severity.ERROR: ("✗", "bad"), Severity.WARNING: ("!", "warn"), Severity.INFO: ("·", "dim")}
_VERDICTS = {Verdict.PASS: ("✓", "good"), Verdict.FAIL: ("✗", "bad")}
_PLAIN = str.maketrans({
    "●": "*", "○": "o", "◌": "?", "✓": "+", "✗": "x", "·": "-", "…": "...", "›": ">", "↑": "^", "↓": "v", "→": "->",
    "⏎": "\\n", "×": "x", "°": " ", "–": "-",
})  # fmt: skip
_WIDE = 100
_LABEL, _AXIS = 24, 9
_LEAST_PICTURE, _LEAST_BODY, _TWO_CURVES = 6, 8, 16
_MOST_RANKS, _MOST_CARDS, _MOST_NOTES = 8, 4, 2
_FOOT = "q quit · p pause · ↑↓ findings"


@dataclass(slots=True)
class Screen:
    """Draws scenes one after the other; keeps what it drew."""

    plain: bool = False
    """Only ASCII."""
    chosen: int = 0
    paused: bool = False
    keys: bool = True
    """Whether somebody is at the keyboard."""
    scene: Scene | None = None
    _kept: dict[str, tuple[Any, tuple[int, ...], list[Line]]] = field(default_factory=dict)

    def lines(self, scene: Scene, width: int, height: int | None) -> list[Line]:
        """``height`` lines of ``width`` columns; without a height, as many as it takes."""
        tall = height if height is not None else 40
        head = [_title(scene, width), numbers(scene, width)]
        foot = self._foot(scene, width)
        body = self._body(scene, width, max(tall - len(head) - len(foot), 1))
        if height is None:
            while body and not body[-1]:
                body.pop()
        else:
            body += [[] for _ in range(height - len(head) - len(foot) - len(body))]
        lines = (line if isinstance(line, _Fitted) else self._worded(line) for line in (*head, *body, *foot))
        whole = [_fitted(line, width) for line in lines]
        return whole if height is None else whole[:height]

    def _worded(self, line: Line) -> Line:
        if not self.plain:
            return line
        told = ((text.translate(_PLAIN), style) for text, style in line)
        return [(text.encode("ascii", "backslashreplace").decode("ascii"), style) for text, style in told]

    def _foot(self, scene: Scene, width: int) -> list[Line]:
        if not self.keys:
            return []
        left = "paused, p goes on · q quit" if self.paused else _FOOT
        return [_sides([(left, "bold" if self.paused else "dim")], [(clean(scene.judged, limit=80), "dim")], width)]

    # -- the parts, and how much room each has

    def _body(self, scene: Scene, width: int, height: int) -> list[Line]:
        if height < _LEAST_BODY:
            return [_bar_line(scene.loss, width, self.plain), *self._findings(scene, width, height - 1)][:height]
        below = [*_ranks(scene.ranks, scene.step, height // 4), *_cards(scene.cards), *_notes(scene.notes)]
        below = below[: height // 2]
        room = height - len(below)
        found = self._findings(scene, width, max(room // 3, 3))
        space = room - len(found)
        pictures = (
            self._pictures(scene, width, space)
            if space >= _LEAST_PICTURE
            else [_bar_line(series, width, self.plain) for series in (scene.loss, scene.seconds)][:space]
        )
        found = self._findings(scene, width, room - len(pictures))
        return [*pictures, *below, *found]

    def _pictures(self, scene: Scene, width: int, height: int) -> list[Line]:
        if width >= _WIDE:
            left, right = (width - 2) // 2, width - 2 - (width - 2) // 2
            one = [*self._curves(scene, left, height - 3), [], *self._times(scene.seconds, left)]
            two = self._heat(scene.heat, right, height)
            rows = max(len(one), len(two))
            both = zip(_padded(one, rows, left), _padded(two, rows, right), strict=True)
            lines: list[Line] = [_Fitted((*_fitted(a, left), ("  ", ""), *_fitted(b, right)), width) for a, b in both]
            return lines[:height]
        curve = max((height - 2) // 2, 3)
        rest = height - curve - 2
        lines = [*self._curve(scene.loss, width, curve), *self._times(scene.seconds, width)]
        return [*lines, *(self._heat(scene.heat, width, rest) if rest >= 3 else [])]

    def _curves(self, scene: Scene, width: int, height: int) -> list[Line]:
        """The loss, and below it the norm where there is room for two."""
        if height < _TWO_CURVES or not scene.norm:
            return self._curve(scene.loss, width, height)
        upper = (height - 1) * 3 // 5
        return [*self._curve(scene.loss, width, upper), [], *self._curve(scene.norm, width, height - 1 - upper)]

    def _curve(self, series: Series, width: int, height: int) -> list[Line]:
        return self._once(series.name, width, (series, height), lambda: _curve(series, width, height, self.plain))

    def _times(self, series: Series, width: int) -> list[Line]:
        return self._once("times", width, (series,), lambda: _times(series, width, self.plain))

    def _heat(self, heat: Heat, width: int, height: int) -> list[Line]:
        return self._once("heat", width, (heat, height), lambda: _heat(heat, width, height, self.plain))

    def _once(self, name: str, width: int, of: tuple[Any, ...], make: Callable[[], list[Line]]) -> list[Line]:
        """The lines that were made last time, while their numbers are the same; or new ones."""
        key = (*of[1:], width)
        known = self._kept.get(name)
        if known is None or known[0] is not of[0] or known[1] != key:
            self._kept[name] = known = (of[0], key, [_fitted(self._worded(line), width) for line in make()])
        return list(known[2])

    def _findings(self, scene: Scene, width: int, height: int) -> list[Line]:
        if scene.diagnosis is None:
            said = scene.judged or "the rules are at work"
            return [[("Findings  ", "bold"), (clean(said, limit=200), "dim")]][:height]
        found = scene.diagnosis.findings
        mark, style = _VERDICTS.get(scene.diagnosis.verdict, ("○", "dim"))
        over = scene.condition.over
        if scene.diagnosis.verdict is Verdict.VACUOUS and not over and not found:
            return [[("Findings  ", "bold"), ("nothing to judge yet", "dim")]][:height]
        verdict = f"{mark} {scene.diagnosis.verdict.value.replace('_', ' ')}" + ("" if over else " so far")
        head: Line = [("Findings  ", "bold"), (verdict, style)]
        if not found:
            return [[*head, ("  nothing wrong", "dim")]][:height]
        chosen = min(max(self.chosen, 0), len(found) - 1)
        details = _details(found[chosen], width)
        rows = height - 1
        listed = min(len(found), max(rows - min(len(details), max(rows // 2, 0)), 1))
        start = min(max(chosen - listed + 1, 0), max(len(found) - listed, 0))
        lines = [_finding(each, start + at == chosen, width) for at, each in enumerate(found[start : start + listed])]
        place = chosen - start
        lines[place + 1 : place + 1] = details[: rows - len(lines)]
        if len(found) > listed:
            head.append((f"  {chosen + 1} of {len(found)}", "dim"))
        return [head, *lines][:height]


# -- the header


def _title(scene: Scene, width: int) -> Line:
    mark, style = _CONDITIONS[scene.condition.word]
    said = scene.condition.text
    joined = " " if scene.condition.word == SILENT else ": "
    right = f"{mark} {scene.condition.word}{joined + said if said else ''}"
    return _sides([("brickprof ", "accent"), (scene.name, "bold")], [(right, style)], width)


def numbers(scene: Scene, width: int | None = None) -> Line:
    """Step, time, loss and so on; of those that do not fit, the last are left out."""
    first = scene.first
    parts = [f"step {scene.step:,}", duration(scene.elapsed)]
    if scene.read < 0.999:
        parts.append(f"reading {scene.read:.0%}")
    if first is not None and first.step > 0:
        parts.append(f"loss {first.loss:.4g}")
        parts += [f"|g| {first.norm:.2g}"] if not math.isnan(first.norm) else []
        parts += [f"lr {first.rate:.1e}"] if not math.isnan(first.rate) else []
        parts += [milliseconds(first.seconds)] if not math.isnan(first.seconds) else []
        parts += [f"brickprof +{100 * first.overhead:.1f} %"] if math.isfinite(first.overhead) else []
    while width is not None and len(parts) > 1 and len(" · ".join(parts)) > width:
        parts.pop()
    return [(" · ".join(parts), "")]


def duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def milliseconds(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


# -- pictures


def _curve(series: Series, width: int, height: int, plain: bool) -> list[Line]:
    head: Line = [(series.name, "bold")]
    if not series:
        return [[*head, ("  nothing yet", "dim")], *([] for _ in range(height - 1))]
    axis = min(_AXIS, width // 4)
    drawn = plot(series.points, max(width - axis - 1, 4), max(height - 2, 1), braille=not plain)
    last = series.points[-1]
    odd = any(point.odd for point in series.points)
    head.append((f"  {last.last:.4g}", "odd" if last.odd else ""))
    head.append(("  log scale" * drawn.log + "  N nan, I inf" * odd, "dim"))
    labels = {0: drawn.high, len(drawn.rows) - 1: drawn.low}
    lines = [head]
    for place, row in enumerate(drawn.rows):
        label = f"{labels[place]:.3g}" if place in labels and not math.isnan(labels[place]) else ""
        line: Line = [(f"{label:>{axis}} ", "dim")]
        lines.append([*line, *_marked(row, drawn.odd if place == 0 else (), "accent")])
    ends = f"{series.start:,}", f"{last.step:,}"
    between = max(width - axis - 1 - len(ends[0]) - len(ends[1]), 1)
    return [*lines, [(f"{' ' * (axis + 1)}{ends[0]}{' ' * between}{ends[1]}", "dim")]]


def _marked(row: str, odd: Sequence[int], style: str) -> Line:
    if not odd:
        return [(row, style)]
    places = frozenset(odd)
    named = ((mark, "odd" if at in places else style) for at, mark in enumerate(row))
    return [("".join(mark for mark, _ in group), name) for name, group in groupby(named, key=lambda each: each[1])]


def _times(series: Series, width: int, plain: bool) -> list[Line]:
    if not series:
        return [[("time of a step", "bold"), ("  nothing yet", "dim")], []]
    shown = series.points[-max(width - 1, 1) :]
    finite = [point for point in shown if point.low <= point.high]
    spread = (
        f"  {milliseconds(min(p.low for p in finite))} to {milliseconds(max(p.high for p in finite))}" if finite else ""
    )
    head: Line = [("time of a step", "bold"), (f"  {milliseconds(series.points[-1].last)}", ""), (spread, "dim")]
    return [head, [(bars(shown, width, plain=plain), "accent")]]


def _bar_line(series: Series, width: int, plain: bool) -> Line:
    if not series:
        return [(series.name, "bold"), ("  nothing yet", "dim")]
    value = f"{series.points[-1].last:.4g}"
    room = max(width - len(series.name) - len(value) - 4, 1)
    return [(f"{series.name} ", "bold"), (bars(series.points, room, plain=plain), "accent"), (f" {value}", "")]


def _heat(heat: Heat, width: int, height: int, plain: bool) -> list[Line]:
    rank = f", rank {heat.rank}" if heat.rank else ""
    head: Line = [(f"log10 |grad| by block{rank}", "bold")]
    if not heat:
        return [[*head, ("  no gradients were sampled yet", "dim")]]
    label = min(_LABEL, max(width // 3, 6), max(len(layer) for layer in heat.layers))
    drawn = maps.heat_map(heat, max(width - label - 1, 1), height - 2, plain=plain)
    marks = maps.PLAIN_LEVELS if plain else maps.LEVELS
    if drawn.low is not None and drawn.high is not None:
        head.append((f"  {drawn.low:.1f} {marks} {drawn.high:.1f}", "dim"))
    told = {"N": "N nan", "I": "I inf", "0": "0 zero"}
    legend = ", ".join(word for letter, word in told.items() if any(letter in row for row in drawn.rows))
    head.append((f"  {legend}" if legend else "", "dim"))
    lines = [head]
    for name, row in zip(drawn.labels, drawn.rows, strict=True):
        lines.append([(f"{_short(name, label):>{label}} ", "dim"), *_levels(row, marks)])
    used = max((len(row) for row in drawn.rows), default=0)
    last = f"{drawn.last:,}"
    ends = f"{f'{drawn.first:,}':<{max(used - len(last), 0)}}{last}" if drawn.first != drawn.last else last
    return [*lines, [(f"{' ' * (label + 1)}{ends}", "dim")]]


def _levels(row: str, marks: str) -> Line:
    return [("".join(group), tone or "") for tone, group in groupby(row, key=_tones(marks).get)]


@cache
def _tones(marks: str) -> dict[str, str]:
    return dict(zip(marks, ("low", "low", "middle", "high", "high"), strict=True)) | {"N": "odd", "I": "odd"}


def _short(name: str, width: int) -> str:
    """The end of a name says more than its beginning."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]


# -- tables


def _ranks(ranks: Sequence[Rank], step: int, most: int) -> list[Line]:
    if len(ranks) < 2:
        return []
    shown = sorted(ranks, key=lambda rank: rank.number)
    most = max(min(most - 1, _MOST_RANKS), 2)
    left_out = len(shown) - most
    if left_out > 0:
        shown = sorted(sorted(shown, key=lambda rank: _trouble(rank, step))[:most], key=lambda rank: rank.number)
    head = f"{'rank':>4} {'step':>9} {'behind':>7} {'loss':>10} {'|g|':>9} {'step time':>9} {'quiet':>7}  doing"
    lines: list[Line] = [[(head, "dim")]]
    for rank in shown:
        broken = rank.step > 0 and not math.isfinite(rank.loss)
        took = milliseconds(rank.seconds) if not math.isnan(rank.seconds) else ""
        quiet = f"{rank.quiet:,.0f} s" if rank.quiet >= 2 and rank.state == "recording" else ""
        behind = f"{step - rank.step:,}" if rank.step < step and rank.state != "finished" else ""
        doing = rank.doing if rank.state == "recording" else rank.state
        lines.append([
            (f"{rank.number:>4} {rank.step:>9,} {behind:>7} ", ""), (f"{rank.loss:>10.4g}", "odd" if broken else ""),
            (f" {rank.norm:>9.2g} {took:>9} {quiet:>7}  ", ""), (doing, "dim"),
        ])  # fmt: skip
    if left_out > 0:
        lines[0].append((f"   and {left_out} more ranks, in no more trouble", "dim"))
    return lines


def _trouble(rank: Rank, step: int) -> tuple[bool, float, int, int]:
    """What is worst comes first: a broken loss, a long silence, being behind."""
    return (math.isfinite(rank.loss), -rank.quiet if rank.quiet >= 2 else 0.0, rank.step - step, rank.number)


def _cards(cards: Sequence[Card]) -> list[Line]:
    lines = [[("GPU ", "bold"), (card_line(card), "")] for card in cards[:_MOST_CARDS]]
    if len(cards) > _MOST_CARDS:
        lines[-1].append((f"   and {len(cards) - _MOST_CARDS} more", "dim"))
    return lines


def card_line(card: Card) -> str:
    parts = [card.name]
    if card.utilisation is not None:
        parts.append(f"in use {card.utilisation:.0%}")
    if card.memory_used and card.memory_total:
        parts.append(f"memory {card.memory_used / 1e9:.1f} of {card.memory_total / 1e9:.0f} GB")
    if card.power is not None:
        parts.append(f"{card.power:.0f}{f' of {card.power_limit:.0f}' if card.power_limit else ''} W")
    if card.temperature is not None:
        parts.append(f"{card.temperature:.0f} °C")
    if card.throttled:
        parts.append(f"slowed down: {', '.join(card.throttled)}")
    return " · ".join(parts)


def _notes(notes: Iterable[str]) -> list[Line]:
    return [[("! ", "warn"), (note, "dim")] for note in list(notes)[-_MOST_NOTES:]]


# -- findings


def _finding(finding: Finding, chosen: bool, width: int) -> Line:
    mark, style = _SEVERITIES[finding.severity]
    where = f"step {finding.first_step:,}"
    text = clean(finding.symptom, limit=max(width, 40))
    lead = "›" if chosen else " "
    return [
        (f"{lead} ", "accent"), (f"{mark} ", style), (f"{clean(finding.id)} ", "dim"),
        (text, "bold" if chosen else ""), (f"  {where}", "dim"),
    ]  # fmt: skip


def _details(finding: Finding, width: int) -> list[Line]:
    """The cause, what to do, and why, as far as there is room."""
    told = [("Cause", f"{words(finding.root_cause)} ({100 * finding.confidence:.0f} %)")]
    told += [("Do", finding.action)] if finding.action else []
    told += [("Why" if not at else "", f"{why.question} {why.finding}") for at, why in enumerate(finding.whys)]
    lines: list[Line] = []
    for label, text in told:
        wrapped = textwrap.wrap(clean(text, limit=600), max(width - 14, 20)) or [""]
        lines += [[(f"       {label if not at else '':6} ", "dim"), (part, "")] for at, part in enumerate(wrapped)]
    return lines


# -- lines


def _width(line: Line) -> int:
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in line)


class _Fitted(list[tuple[str, str]]):
    """A line that has its width already: a picture that stays for several frames is measured once."""

    def __init__(self, line: Iterable[tuple[str, str]], width: int) -> None:
        super().__init__(line)
        self.width = width


def _fitted(line: Line, width: int) -> Line:
    """``line`` in exactly ``width`` columns."""
    if isinstance(line, _Fitted) and line.width == width:
        return line
    room, kept = width, []
    for text, style in line:
        size = len(text) if text.isascii() else cell_len(text)
        if size > room:
            text = set_cell_size(text, room)
            size = room
        if text:
            kept.append((text, style))
        room -= size
        if room <= 0:
            break
    return _Fitted([*kept, (" " * room, "")] if room > 0 else kept, width)


def _padded(lines: list[Line], rows: int, width: int) -> list[Line]:
    return [*lines, *(_fitted([], width) for _ in range(rows - len(lines)))]


def _sides(left: Line, right: Line, width: int) -> Line:
    """``right`` at the right edge; when there is no room for both, ``left`` is cut."""
    right_width = min(_width(right), width)
    room = width - right_width - 1
    if room < 8:
        return [*right, (" ", ""), *left]
    return [*_fitted(left, room), (" ", ""), *right]
