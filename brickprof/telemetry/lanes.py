"""The spans of a rank laid out as a timeline draws them: in lanes, nested, ordered by time.

Enters: a part of a run. Leaves: slices, a lane for each: the host, transfers, and for each stream of the device its
bricks and its kernels. In a lane a slice lies inside another or apart from it, never across: one that would goes
to a second lane of the same name. Rows are read some thousands at a time, however many there are.

What a device did lies where it did it, if the journal says when; a brick of which only the length is known has that
as an attribute of its slice on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from brickprof.bricks import Kind

if TYPE_CHECKING:
    from brickprof.records import Span
    from brickprof.run.parts import Part

HOST, TRANSFERS = "host", "transfers"
STARTED = "device_start_ns"
"""The attribute of a span that says when it began on the device."""
_ROWS = 4096
_MOST_LANES = 64


class Slice(NamedTuple):
    lane: str
    start: int
    end: int
    span: Span


class Nest:
    """Lanes of one name. Slices come in the order of their starts, of two that start together the longer one first."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []
        """The ends of what is open, by lane."""

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The lane that takes a slice, and where it ends there: later than what holds it only in the last lane."""
        for number, ends in enumerate(self._open):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return number, end
        if len(self._open) < _MOST_LANES:
            self._open.append([end])
            return len(self._open) - 1, end
        last = self._open[-1]
        last.append(last[-1])
        return len(self._open) - 1, last[-1]


class _Lanes:
    def __init__(self) -> None:
        self._nests: dict[str, Nest] = {}

    def slice(self, lane: str, start: int, end: int, span: Span) -> Slice:
        number, until = self._nests.setdefault(lane, Nest()).place(start, max(start, end))
        return Slice(f"{lane} ({number + 1})" if number else lane, start, until, span)


def on_host(part: Part, *, launches: bool = False) -> Iterator[Slice]:
    """What the host did, ordered by time; with ``launches`` also the moments at which it launched what a device did."""
    lanes = _Lanes()
    for span in _ordered(part, part.spans[0], None):
        if launches or not is_launch(span):
            yield lanes.slice(TRANSFERS if span.brick.kind is Kind.TRANSFER else HOST, span.start_ns, span.end_ns, span)


def on_device(part: Part) -> Iterator[Slice]:
    """What the device did, where it is known when, ordered by time."""
    import pyarrow.compute as pc

    lanes = _Lanes()
    table = part.spans[0]
    starts = _started(table)
    known = pc.and_(pc.is_valid(starts), pc.greater_equal(pc.fill_null(table["device_ns"], -1), 0))
    table, starts = table.filter(known), starts.filter(known)
    for span in _ordered(part, table, starts):
        start = started(span)
        if start is not None:
            yield lanes.slice(_of_device(span), start, start + (span.device_ns or 0), span)


def started(span: Span) -> int | None:
    """When ``span`` began on the device, where that is known."""
    start = span.attributes.get(STARTED)
    known = isinstance(start, int) and not isinstance(start, bool) and start > 0
    return start if known and span.device_ns is not None and span.device_ns >= 0 else None


def is_launch(span: Span) -> bool:
    """Whether the host only launched this, at one moment, and the device did it."""
    return span.start_ns == span.end_ns and started(span) is not None


def _of_device(span: Span) -> str:
    seen = "kernels" if span.brick.kind is Kind.KERNEL or span.attributes.get("source") == "profiler" else "bricks"
    return f"device · {seen} · stream {span.stream if span.stream is not None else '?'}"


def _started(table: Any) -> Any:
    """When each row began on the device; null where its attributes do not say."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = table["attributes"].cast(pa.string())
    found = pc.extract_regex(texts, rf'"{STARTED}": ?(?P<ns>[1-9]\d{{0,17}}|[1-8]\d{{18}})[,}}]')
    return pc.cast(pc.struct_field(found, "ns"), pa.int64())


def _ordered(part: Part, table: Any, starts: Any) -> Iterator[Span]:
    """The spans of ``table`` by their ``starts``, else by the host's; what holds another comes before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    begins = table["start_ns"] if starts is None else starts
    ends = table["end_ns"] if starts is None else pc.add(starts, pc.fill_null(table["device_ns"], 0))
    keys = pa.table({"start": begins, "end": pc.max_element_wise(begins, ends), "id": table["id"]})
    order = pc.sort_indices(keys, sort_keys=[("start", "ascending"), ("end", "descending"), ("id", "ascending")])
    for at in range(0, len(order), _ROWS):
        yield from part.as_spans(table.take(order.slice(at, _ROWS)))
