"""The copies of a step, against what it may make of them.

Enters: ``transfers`` events. Leaves: what is wrong with them, one question a function: more than was
declared, more than one line should make, more than at first, gradients sent home in every micro-batch.

A budget is declared (a threshold of C-GPUTRAIN-002; for a part of the step see ``transfer_bricks``) or learned: the
median of the first steps that were looked at. More bytes than that are also what longer sequences make: they count
where steps take longer by the copies, not by what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Severity, Violation
from brickprof.records import Event
from brickprof.rules.names import whole
from brickprof.rules.story import Story

EXPLAINED = frozenset({"copies-in-micro-batches"})
WHOLE_DEVICE = "synchronize"
"""The kind of a wait until the device has nothing left to do."""
_LEARNED = 4
_LASTING = 3
_SHOWS = 0.05
"""Of the step: what copies have to take at least, where it is known."""
_WAITED = 4.0
"""Bytes a nanosecond of a slow copy from ordinary memory: what the host waits longer, it waits for what was queued
before."""
_FASTEST = 64.0
"""The same of the fastest bus, for copies that nobody timed."""
QUESTION = {"question": "What makes the steps slow?", "asked": "What makes the steps slow?"}
ACTION = "Keep on the device what is computed there, and move a batch in one copy."


@dataclass(frozen=True, slots=True)
class Line:
    """What one line of the script copied one way in one step."""

    site: str
    direction: str
    count: int
    bytes: int
    ns: int


@dataclass(frozen=True, slots=True)
class Look:
    """The copies of one step that was looked at."""

    event: Event
    count: int
    bytes: int
    backwards: int
    lines: tuple[Line, ...]

    @property
    def each(self) -> float:
        """Copies for each micro-batch."""
        return self.count / max(self.backwards, 1)

    @property
    def each_bytes(self) -> float:
        return self.bytes / max(self.backwards, 1)


def waits(event: Event) -> list[tuple[str, str, int, int]]:
    """Waits of a step that ask for no number: line, kind, how often, nanoseconds."""
    listed = event.fields.get("waits")
    rows = [row for row in listed if isinstance(row, list) and len(row) >= 4] if isinstance(listed, list) else []
    return [(str(site), str(kind), whole(count), whole(ns)) for site, kind, count, ns, *_ in rows]


def looks(story: Story, rank: int) -> list[Look]:
    return [_look(event) for event in story.events("transfers", rank)]


def _look(event: Event) -> Look:
    listed = event.fields.get("rows")
    rows = [row for row in listed if isinstance(row, list) and len(row) >= 4] if isinstance(listed, list) else []
    lines = tuple(
        Line(str(row[0]), str(row[1]), whole(row[2]), whole(row[3]), whole(row[6]) if len(row) > 6 else 0)
        for row in rows if row[1] in ("H2D", "D2H", "D2D")
    )  # fmt: skip
    count, size, backwards = (whole(event.fields.get(name)) for name in ("count", "bytes", "backwards"))
    return Look(event, count, size, backwards, lines)


def durations(story: Story, rank: int) -> dict[int, float]:
    """Nanoseconds of each step that was timed."""
    times = story.step_times(rank)
    return {int(step): 1e9 * seconds for step, seconds in zip(times.steps, times.values, strict=True) if seconds > 0}


def threshold(found: Iterable[list[Look]], contract: Contract) -> str:
    most, size = contract.threshold("transfers"), contract.threshold("bytes")
    declared = [told for told, asked in ((f"{most:g} transfers", most), (size_of(size), size)) if asked]
    if declared:
        return f"{' and '.join(declared)} a step"
    learned = [(_usual(each[:_LEARNED]), _usual_bytes(each[:_LEARNED])) for each in found]
    if not learned:
        return ""
    count, moved = (max(told) for told in zip(*learned, strict=True))
    return f"{count:g} transfers and {size_of(moved)} a step, as at first"


def observed(found: Iterable[list[Look]]) -> str:
    last = max((each[-_LASTING:] for each in found), key=_usual)
    return f"{_usual(last):g} transfers a step, {size_of(_usual_bytes(last))}"


def size_of(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _usual(found: list[Look]) -> float:
    return float(np.median([look.count for look in found]))


def _usual_bytes(found: list[Look]) -> float:
    return float(np.median([look.bytes for look in found]))


# -- more than was declared


def over_budget(found: list[Look], contract: Contract) -> Violation | None:
    most, size = contract.threshold("transfers"), contract.threshold("bytes")
    if len(found) < contract.threshold("looks"):
        return None
    usual, moved = _usual(found), _usual_bytes(found)
    if most and usual > most:
        return _over(found, f"{usual:g} transfers in a step, where {most:g} are declared", contract)
    if size and moved > size:
        return _over(found, f"{size_of(moved)} are moved in a step, where {size_of(size)} are declared", contract)
    return None


def _over(found: list[Look], symptom: str, contract: Contract) -> Violation:
    line = _busiest(found[-1])
    where = f"; most of them at {line.site}" if line is not None and line.site else ""
    return _violation(contract, found, f"{symptom}{where}", "extra-transfers", 0.9)


def _busiest(look: Look) -> Line | None:
    return max(look.lines, key=lambda line: (line.count, line.bytes), default=None)


# -- more than one line should make


def crowd(story: Story, rank: int, found: list[Look], contract: Contract) -> Violation | None:
    """A line that makes many copies in nearly every step, at a cost that shows."""
    if len(found) < contract.threshold("looks"):
        return None
    lasted = durations(story, rank)
    counts: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    for look in found:
        for site, lines in _by_site(look).items():
            counts.setdefault(site, []).append(sum(line.count for line in lines) / max(look.backwards, 1))
            if look.event.step in lasted:
                shares.setdefault(site, []).append(sum(line.ns for line in lines) / lasted[look.event.step])
    for site, seen in sorted(counts.items(), key=lambda item: -float(np.median(item[1]))):
        often = len(seen) >= max(contract.threshold("looks"), 0.8 * len(found))
        cost = float(np.median(shares[site])) if site in shares else None
        if often and np.median(seen) >= contract.threshold("many_transfers") and (cost is None or cost >= _SHOWS):
            return _many(site, float(np.median(seen)), cost, found, contract)
    return None


def _by_site(look: Look) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in look.lines:
        found.setdefault(line.site, []).append(line)
    return found


def _many(site: str, usual: float, cost: float | None, found: list[Look], contract: Contract) -> Violation:
    ways = sorted({line.direction for line in found[-1].lines if line.site == site})
    micro = " for each micro-batch" if max(look.backwards for look in found) > 1 else ""
    share = f", {cost:.0%} of the step" if cost is not None else ""
    symptom = f"{site or 'a thread'} makes {usual:,.0f} copies ({' and '.join(ways)}) in a step{micro}{share}"
    return _violation(contract, found, symptom, "extra-transfers", 0.85)


# -- more than at first


def grown(story: Story, rank: int, found: list[Look], contract: Contract) -> Violation | None:
    """Many more copies than at first, in all of the last steps that were looked at (an evaluation is over by then), at
    a cost that shows or that nobody took: an agent whose episodes get longer copies more as well."""
    if contract.threshold("transfers"):
        return None
    later = _later(story, rank, found, lambda look: look.each, contract.threshold("more_transfers"))
    cost = _share(later, durations(story, rank)) if later else 0.0
    if cost is not None and cost < _SHOWS:
        return None
    symptom = f"{_usual(later):g} transfers in a step since step {later[0].event.step:,}, "
    symptom += f"{_usual(found[:_LEARNED]):g} at first"
    return _since(later, symptom, "them", _busiest(later[0]), contract)


def swollen(story: Story, rank: int, found: list[Look], contract: Contract) -> Violation | None:
    """Far more bytes than at first, in all of the last steps that were looked at, which take longer by them."""
    if contract.threshold("bytes"):
        return None
    later = _later(story, rank, found, lambda look: look.each_bytes, contract.threshold("more_bytes"))
    cost = _longer_by_copies(later, found[:_LEARNED], durations(story, rank)) if later else 0.0
    if cost < contract.threshold("share"):
        return None
    symptom = f"{size_of(_usual_bytes(later))} are moved in a step since step {later[0].event.step:,}, "
    symptom += f"{size_of(_usual_bytes(found[:_LEARNED]))} at first, which takes {cost:.0%} of the step"
    return _since(later, symptom, "it", _swelled(found[_LEARNED - 1], later[0]), contract)


def _later(
    story: Story, rank: int, found: list[Look], size: Callable[[Look], float], more: float
) -> list[Look]:  # fmt: skip
    """The last steps that were looked at, where all of them have twice as much as the first had, and ``more``."""
    if len(found) < _LEARNED + _LASTING:
        return []
    learned = float(np.median([size(look) for look in found[:_LEARNED]]))
    since = len(found)
    while since > _LEARNED and size(found[since - 1]) > max(2 * learned, learned + more):
        since -= 1
    later = found[since:]
    return later if len(later) >= _LASTING and not _aside(story, rank, found[:_LEARNED], later) else []


def _aside(story: Story, rank: int, first: list[Look], later: list[Look]) -> bool:
    """Whether every later step holds an evaluation or a checkpoint, and no first one does: looks and these both come
    in powers of two."""
    steps = {event.step for kind in ("evaluation", "checkpoint") for event in story.events(kind, rank)}
    return all(look.event.step in steps for look in later) and not any(look.event.step in steps for look in first)


def _share(found: list[Look], lasted: dict[int, float]) -> float | None:
    """What copies take of a step; None where some were not timed, or no step was."""
    costs = [(look.event.step, _cost(look)) for look in found]
    known = [(step, ns) for step, ns in costs if ns is not None]
    shares = [ns / lasted[step] for step, ns in known if step in lasted]
    return float(np.median(shares)) if shares and len(known) == len(found) else None


def _cost(look: Look) -> int | None:
    """Nanoseconds of the copies of a step; None where somebody did not time one: of a line, of the script's brick."""
    ns, counted = (whole(look.event.fields.get(name)) for name in ("ns", "count"))
    listed = sum(line.count for line in look.lines)
    if look.count > (counted if ns else listed) or not all(line.ns for line in look.lines if line.count):
        return None
    return max(ns, sum(line.ns for line in look.lines))


def _longer_by_copies(later: list[Look], first: list[Look], lasted: dict[int, float]) -> float:
    """The share of a later step that its copies take more than at first, at least; 0 where steps are as much longer by
    other things: a longer sequence is also computed with, an evaluation too."""
    before, after = ([look for look in looks if look.event.step in lasted] for looks in (first, later))
    if not before or not after:
        return 0.0
    lasts = float(np.median([lasted[look.event.step] for look in after]))
    more = float(np.median([_takes(look) for look in after])) - max(_takes(look) for look in before)
    longer = lasts - min(lasted[look.event.step] for look in before)
    return more / lasts if 2 * more >= longer else 0.0


def _takes(look: Look) -> float:
    """Nanoseconds that the host waits for the copies of a step, less those for what was queued before them."""
    return sum(min(line.ns, line.bytes / _WAITED) if line.ns else line.bytes / _FASTEST for line in look.lines)


def _swelled(first: Look, later: Look) -> Line | None:
    """The line that moves most bytes more."""
    before: dict[tuple[str, str], int] = {}
    for line in first.lines:
        before[line.site, line.direction] = before.get((line.site, line.direction), 0) + line.bytes
    return max(later.lines, key=lambda line: line.bytes - before.get((line.site, line.direction), 0), default=None)


def _since(later: list[Look], symptom: str, what: str, line: Line | None, contract: Contract) -> Violation:
    where = f"; most of {what} at {line.site}" if line is not None and line.site else ""
    return replace(_violation(contract, later, symptom + where, "extra-transfers", 0.75), static=False)


# -- gradients that go home in every micro-batch


def homeward(found: list[Look], contract: Contract) -> Violation | None:
    guilty = [(look, row) for look in found for row in _home(look, contract)]
    if len({id(look) for look, _ in guilty}) < min(2, len(found)):
        return None
    _, (site, micros, copies, size) = guilty[0]
    symptom = f"{site} copies {copies:,} tensors ({size_of(size)}) to the host in {micros} micro-batches of a step"
    made = _violation(contract, [look for look, _ in guilty], symptom, "copies-in-micro-batches", 0.85)
    return replace(
        made, explains=frozenset(), action="Add gradients up where they are: leave them in .grad until the update."
    )


def _home(look: Look, contract: Contract) -> list[tuple[str, int, int, int]]:
    listed = look.event.fields.get("home")
    rows = [row for row in listed if isinstance(row, list) and len(row) == 4] if isinstance(listed, list) else []
    told = [(str(row[0]), whole(row[1]), whole(row[2]), whole(row[3])) for row in rows]
    return [
        row for row in told
        if row[1] >= 2 and 2 * row[1] >= look.backwards
        and (row[3] / row[1] >= contract.threshold("bytes") or row[2] / row[1] >= contract.threshold("copies"))
    ]  # fmt: skip


def _violation(contract: Contract, found: list[Look], symptom: str, what: str, certainty: float) -> Violation:
    first, known = found[0].event, found[min(len(found), _LASTING) - 1].event
    return Violation(
        contract.id, what, Severity.WARNING, symptom, first.step, known.step, "", "transfer", first.rank,
        tuple(look.event.id for look in found[:3]), cause="extra-transfers", certainty=certainty, static=True,
        explains=EXPLAINED - {what}, details=dict(QUESTION), action=ACTION,
    )  # fmt: skip
