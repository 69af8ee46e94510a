"""What one rank wrote, as events and two Arrow tables, wherever it came from.

Enters: a rank's folder, or records made by hand. Leaves: the same three things in both cases, read when
first asked for, and the records themselves ordered by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.bricks import Brick, Coordinates
from brickprof.journal import (
    EVENTS,
    PROCESS,
    PROCESS_RANK,
    SAMPLES,
    SPANS,
    Damage,
    decode_fields,
    encode_fields,
    read_slate,
    read_table,
    schema,
)
from brickprof.journal.frames import empty
from brickprof.journal.lines import FARTHEST
from brickprof.journal.pages import Page
from brickprof.journal.sweep import Sweep
from brickprof.records import PHASES, ROLES, Event, Record, Sample, Span
from brickprof.run.names import NAMED_LATER, Names

if TYPE_CHECKING:
    from brickprof.run.sampled import Samples

_ROWS = 4096
_MOST_SPANS = 200_000
_LONG = 2**23
"""Bytes of samples from which on they are read by the column, on all cores."""
_ALWAYS = ("role", "step", "tensor", "brick", "nan", "inf", "l2")
"""Columns of samples that every judgement asks for."""
_NAMING = ("brick", "tensor", "model")


class Part:
    """One rank of a run; rank -1 is the launch itself."""

    def __init__(
        self,
        rank: int,
        events: Callable[[], tuple[list[Event], Damage]],
        table: Callable[[str], tuple[Any, Damage]],
        sampled: Path | None = None,
        ahead: Callable[[], bool] | None = None,
    ) -> None:
        self.rank = rank
        self._load_events = events
        self._load_table = table
        self._sampled = sampled
        """The file of the samples, where they lie in one."""
        self._ahead = ahead
        """What begins to read the events."""

    @cached_property
    def written(self) -> tuple[list[Event], Damage]:
        """Every event of the file, those too that only give names, and what was lost of it."""
        return self._load_events()

    @cached_property
    def events(self) -> list[Event]:
        kept = [event for event in self.written[0] if NAMED_LATER not in event.fields]
        if not any(event.kind == "losses" for event in kept):
            return kept
        return [event for each in kept for event in unpacked(each)]

    @cached_property
    def names(self) -> Names:
        return Names.of(self.written[0])

    @cached_property
    def spans(self) -> tuple[Any, Damage]:
        return self._load_table("spans")

    @cached_property
    def samples(self) -> tuple[Any, Damage]:
        return self._load_table("samples")

    @cached_property
    def _sweep(self) -> Sweep | None:
        """The samples on their way; None where they are few, or the whole table is there already."""
        if self._sampled is None or "samples" in self.__dict__:
            return None
        try:
            if self._sampled.stat().st_size < _LONG:
                return None
            return Sweep(self._sampled, "samples", _ALWAYS)
        except OSError:
            return None

    def read_ahead(self) -> int:
        """Begins to read what is long beside whatever else is done: how many files."""
        begun = self._ahead is not None and "written" not in self.__dict__ and self._ahead()
        return begun + (self._sweep is not None)

    @property
    def on_its_way(self) -> bool:
        """Whether samples are being read, and nobody has asked for them so far."""
        return self.__dict__.get("_sweep") is not None and "sampled" not in self.__dict__

    def checksums(self) -> dict[str, tuple[int, int]]:
        """Size and CRC-32 of files that were read for other reasons, by their path in the run."""
        sweep = self.__dict__.get("_sweep")
        if self._sampled is None or sweep is None or not sweep.whole:
            return {}
        return {f"{self._sampled.parent.name}/{self._sampled.name}": (sweep.size, sweep.checksum)}

    @cached_property
    def sampled(self) -> Samples:
        """The samples by the column: quicker to come by than their table."""
        from brickprof.run.sampled import Given, Samples

        if self._sweep is not None and self._sweep.whole:
            return Samples(self._sweep)
        return Samples(Given(*self.samples))

    @property
    def damage(self) -> list[Damage]:
        lost = (self.written[1], self.spans[1], self.sampled.damage)
        return [found for found in lost if found]

    @cached_property
    def coordinates(self) -> Coordinates:
        for event in self.events:
            if event.kind == "run":
                try:
                    return Coordinates.from_dict(event.fields.get("coordinates"))
                except (TypeError, ValueError):
                    break
        return Coordinates()

    def records(self, *, qualified: bool, thinned: bool = False, telling: bool = False) -> Iterator[Record]:
        """Everything, ordered by time; a span stands where it starts."""
        events = sorted(self.events, key=attrgetter("time_ns"))
        timed = self.spans[0]
        table = self._few(telling=telling) if thinned else _by_time(self.samples[0])
        if thinned and not timed.num_rows:
            few: list[Record] = [*events, *self.as_samples(table, qualified=qualified)]
            return iter(sorted(few, key=attrgetter("time_ns")))
        streams: list[Iterable[Record]] = [events]
        if table.num_rows:
            streams.append(self.as_samples(table, qualified=qualified))
        if timed.num_rows:
            timed = timed.slice(0, _MOST_SPANS) if thinned else timed
            streams.append(self.as_spans(timed.sort_by("start_ns")))
        return merge(*streams, key=time_of) if len(streams) > 1 else iter(events)

    def _few(self, *, telling: bool) -> Any:
        """The samples that are worth a record, ordered by time."""
        from brickprof.run import columns, thinning
        from brickprof.run.sampled import Given, Samples

        table = _by_time(self.sampled.table(thinning.thinned(self.sampled)))
        if not telling or not table.num_rows:
            return table
        named = sorted(event.time_ns for event in self.events if event.kind in _NAMING)
        return columns.rows(table, thinning.telling(Samples(Given(table, Damage(""))), self.names, named))

    def as_samples(self, table: Any, *, qualified: bool) -> Iterator[Sample]:
        """The rows of a table with the columns of samples, as records."""
        names, rank = self.names, self.rank
        known: dict[tuple[int, int], tuple[Brick, str]] = {}
        for (
            time_ns, step, micro, brick_number, tensor_number, role, numel, nan, inf, absmax, l2, mean,
            zero_fraction, ratio, checksum, scale, histogram,
        ) in _rows(table):  # fmt: skip
            place = (brick_number, tensor_number)
            if place not in known:
                brick = names.brick(brick_number)
                named = names.tensor(tensor_number).shown(qualified=qualified) or brick.name(qualified=qualified)
                known[place] = brick, named
            brick, tensor = known[place]
            bins = None if histogram is None else tuple(histogram)
            yield Sample(
                brick, tensor, word_of(ROLES, role), step, numel, nan, inf, absmax, l2, mean, zero_fraction,
                ratio, checksum, bins, scale, micro, time_ns, rank,
            )  # fmt: skip

    def as_spans(self, table: Any) -> Iterator[Span]:
        """The rows of a table with the columns of spans, as records."""
        for (
            identity, parent, brick, phase, step, micro, start_ns, end_ns, device_ns, stream, attributes,
        ) in _rows(table):  # fmt: skip
            place = replace(self.coordinates, microbatch=max(micro, 0)) if micro else self.coordinates
            yield Span(
                self.names.brick(brick), step, start_ns, end_ns, word_of(PHASES, phase), identity, parent,
                device_ns, stream, place, _attributes(attributes), self.rank,
            )  # fmt: skip


def unpacked(event: Event) -> Iterable[Event]:
    """The ``loss`` events that one ``losses`` event stands for; any other event as it is."""
    if event.kind != "losses":
        return (event,)
    columns = [event.fields.get(name) for name in ("steps", "micros", "values", "times")]
    if not all(isinstance(column, list) for column in columns):
        return (event,)
    return [
        Event("loss", step, {"value": value, "micro": micro}, event.seq, time_ns, event.rank)
        for step, micro, value, time_ns in zip(*columns, strict=False)
        if type(step) is type(time_ns) is int and abs(step) < FARTHEST and 0 <= time_ns < FARTHEST
    ]


def of_folder(rank: int, folder: Path) -> Part:
    """The part that lies in a folder, read when it is asked for."""
    file = PROCESS if rank == PROCESS_RANK else EVENTS
    tables = {"spans": SPANS, "samples": SAMPLES}
    page = Page(folder / file, rank)
    return Part(
        rank,
        lambda: _events(folder, page, rank),
        lambda name: read_table(folder / tables[name], schema(name)),
        folder / SAMPLES,
        page.begin,
    )


def _events(folder: Path, page: Page, rank: int) -> tuple[list[Event], Damage]:
    """What the file says, and the losses that a killed writer had not yet put into it."""
    events, damage = page.read()
    kept, torn = read_slate(folder) if rank != PROCESS_RANK else ([], Damage(""))
    if kept:
        told = {(loss.step, loss.fields.get("micro"), loss.time_ns) for event in events for loss in unpacked(event)}
        seq = max((event.seq for event in events), default=-1) + 1
        events += [
            Event("loss", step, {"value": value, "micro": micro}, seq, time_ns, rank)
            for step, micro, value, time_ns in kept
            if (step, micro, time_ns) not in told  # killed between the write and the wipe
        ]
    if torn:
        lost = None if damage.records_lost is None else damage.records_lost + (torn.records_lost or 0)
        damage = Damage(damage.where, damage.bytes_lost + torn.bytes_lost, lost, damage.why or torn.why)
    return events, damage


class GivenPart(Part):
    """The part of records that somebody has in hand: they come back as they are."""

    def __init__(self, rank: int, records: list[Record]) -> None:
        events = [record for record in records if isinstance(record, Event)]
        super().__init__(rank, lambda: (events, Damage("records")), self._table)
        self._given = records
        self._several = len({record.brick.model for record in records if not isinstance(record, Event)}) > 1

    def records(self, *, qualified: bool, thinned: bool = False, telling: bool = False) -> Iterator[Record]:
        return iter(sorted(self._given, key=time_of))

    @cached_property
    def names(self) -> Names:
        names = Names.of(self.written[0])
        for record in self._given:
            if not isinstance(record, Event):
                names.brick_number(record.brick)
            if isinstance(record, Sample):
                names.tensor_number(self._bare(record), record.brick)
        return names

    def _bare(self, sample: Sample) -> str:
        return sample.tensor.removeprefix(f"{sample.brick.model}.") if self._several else sample.tensor

    def _table(self, name: str) -> tuple[Any, Damage]:
        if name == "spans":
            rows = [self._span_row(record) for record in self._given if isinstance(record, Span)]
        else:
            rows = [self._sample_row(record) for record in self._given if isinstance(record, Sample)]
        return as_table(name, rows), Damage("records")

    def _span_row(self, span: Span) -> tuple[Any, ...]:
        return (
            span.id, span.parent, self.names.brick_number(span.brick), PHASES.index(span.phase), span.step,
            span.coordinates.microbatch, span.start_ns, span.end_ns, span.device_ns, span.stream,
            encode_fields(span.attributes) if span.attributes else None,
        )  # fmt: skip

    def _sample_row(self, sample: Sample) -> tuple[Any, ...]:
        brick = self.names.brick_number(sample.brick)
        tensor = self.names.tensor_number(self._bare(sample), sample.brick)
        return (
            sample.time_ns, sample.step, sample.micro, brick, tensor, ROLES.index(sample.role), sample.numel,
            sample.nan, sample.inf, sample.absmax, sample.l2, sample.mean, sample.zero_fraction, sample.ratio,
            sample.checksum, sample.scale, sample.histogram,
        )  # fmt: skip


def of_records(records: Iterable[Record]) -> dict[int, Part]:
    """The parts of records made by hand, by rank."""
    by_rank: dict[int, list[Record]] = {}
    for record in records:
        by_rank.setdefault(record.rank, []).append(record)
    return {rank: GivenPart(rank, found) for rank, found in sorted(by_rank.items())}


def time_of(record: Record) -> int:
    return record.start_ns if isinstance(record, Span) else record.time_ns


def _by_time(table: Any) -> Any:
    from brickprof.run.columns import places, whole

    if not table.num_rows:
        return table
    import numpy as np

    times = whole(table["time_ns"])
    return table if bool(np.all(times[1:] >= times[:-1])) else table.take(places(np.argsort(times, kind="stable")))


def as_table(name: str, rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    columns = schema(name)
    if not rows:
        return empty(columns)
    arrays = [pa.array(values, type=field.type) for values, field in zip(zip(*rows, strict=True), columns, strict=True)]
    return pa.table(arrays, schema=columns)


def _rows(table: Any) -> Iterator[tuple[Any, ...]]:
    for start in range(0, table.num_rows, _ROWS):
        part = table.slice(start, _ROWS).combine_chunks()
        yield from zip(*map(_values, part.columns), strict=True)


def _values(column: Any) -> list[Any]:
    """What ``column.to_pylist()`` gives, by way of numpy, which takes a tenth of the time."""
    import pyarrow as pa

    from brickprof.run.columns import numbers, present, whole

    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_fixed_size_list(column.type):
        return _lists(column)
    if not pa.types.is_primitive(column.type):
        found: list[Any] = column.to_pylist()
        return found
    values: list[Any] = (numbers if pa.types.is_floating(column.type) else whole)(column).tolist()
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, present(column).tolist(), strict=True)]


def _lists(column: Any) -> list[Any]:
    from brickprof.run.columns import present, whole

    array = column.combine_chunks()
    flat = whole(array.flatten())  # without those that are missing
    lists = iter(flat.reshape(-1, array.type.list_size).tolist())
    return [next(lists) if there else None for there in present(array).tolist()]


def word_of(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)


def _attributes(text: str | None) -> dict[str, Any]:
    found = decode_fields(text) if text else {}
    return found if isinstance(found, dict) else {}
