"""The tables of a run, with names instead of numbers.

Enters: the parts of a run. Leaves: Arrow tables and DataFrames. Rows that come by the million (spans,
samples) are named column by column; only what is JSON anyway (events) is looked at row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from brickprof.journal import encode_fields, schema
from brickprof.records import PHASES, ROLES, Event
from brickprof.run.parts import Part, word_of

if TYPE_CHECKING:
    import pandas as pd

_WHOLE_OR_MISSING = frozenset(("nan", "inf", "checksum", "device_ns", "stream"))


def samples_table(part: Part, *, qualified: bool) -> Any:
    """The samples of one rank as an Arrow table: brick, tensor and role by name."""
    import pyarrow.compute as pc

    table, names = part.samples[0], part.names
    bricks = _named(table["brick"], lambda number: names.brick(number).name(qualified=qualified))
    tensors = _named(table["tensor"], lambda number: names.tensor(number).shown(qualified=qualified))
    return _table(
        part,
        table.num_rows,
        step=table["step"],
        micro=table["micro"],
        role=_named(table["role"], lambda number: word_of(ROLES, number)),
        brick=bricks,
        tensor=pc.if_else(pc.equal(table["tensor"], 0), bricks, tensors),
        model=_named(table["brick"], lambda number: names.brick(number).model),
        **{name: table[name] for name in schema("samples").names[6:]},
        time_ns=table["time_ns"],
        time=_timestamps(table["time_ns"]),
        brick_id=table["brick"],
        tensor_id=table["tensor"],
    )


def spans_table(part: Part, *, qualified: bool) -> Any:
    """The spans of one rank as an Arrow table: brick and phase by name."""
    import pyarrow.compute as pc

    table, names = part.spans[0], part.names
    return _table(
        part,
        table.num_rows,
        step=table["step"],
        micro=table["micro"],
        phase=_named(table["phase"], lambda number: word_of(PHASES, number)),
        brick=_named(table["brick"], lambda number: names.brick(number).name(qualified=qualified)),
        kind=_named(table["brick"], lambda number: names.brick(number).kind.value),
        model=_named(table["brick"], lambda number: names.brick(number).model),
        host_ns=pc.subtract(table["end_ns"], table["start_ns"]),
        device_ns=table["device_ns"],
        stream=table["stream"],
        id=table["id"],
        parent=table["parent"],
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        time=_timestamps(table["start_ns"]),
        attributes=table["attributes"],
        brick_id=table["brick"],
    )


def events_table(part: Part) -> Any:
    """The events of one rank as an Arrow table; what a kind has of its own is one column of JSON."""
    import pyarrow as pa

    events = part.events
    times = pa.array([event.time_ns for event in events], pa.int64())
    return pa.table(
        {
            "rank": pa.array([part.rank] * len(events), pa.int32()),
            "seq": pa.array([event.seq for event in events], pa.int64()),
            "step": pa.array([event.step for event in events], pa.int64()),
            "kind": pa.array([sound(event.kind) for event in events], pa.string()),
            "fields": pa.array([encode_fields(event.fields) for event in events], pa.string()),
            "time_ns": times,
            "time": _timestamps(times),
        }
    )


def frame(tables: Sequence[Any]) -> pd.DataFrame:
    """Arrow tables of equal columns as one DataFrame. A whole number that may be missing stays whole."""
    import pandas as pd
    import pyarrow as pa

    table = pa.concat_tables(tables)
    kept: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            kept[name] = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([column.combine_chunks()])))
        elif name in _WHOLE_OR_MISSING:
            kept[name] = _whole_or_missing(column)
        else:
            kept[name] = column.to_pandas()
    return pd.DataFrame(kept, copy=False)


def events_frame(parts: Iterable[Part]) -> pd.DataFrame:
    """All events, ordered by time; ``fields`` holds what a kind has of its own, as a dict."""
    import pandas as pd

    events = sorted((event for part in parts for event in part.events), key=lambda event: event.moment)
    columns: dict[str, list[Any]] = {
        "rank": [event.rank for event in events],
        "seq": [event.seq for event in events],
        "step": [event.step for event in events],
        "kind": [sound(event.kind) for event in events],
        "fields": [event.fields for event in events],
        "time_ns": [event.time_ns for event in events],
    }
    found = pd.DataFrame(columns)
    return found.astype(dict.fromkeys(("rank", "seq", "step", "time_ns"), "int64")).assign(
        time=pd.to_datetime(found["time_ns"].astype("int64"), unit="ns", utc=True)
    )


def loss_frame(parts: Iterable[Part]) -> pd.DataFrame:
    rows = [
        (
            event.step, _get(event, "micro", 0), _number(event.fields.get("value")),
            _number(event.fields.get("scale")), sound(_get(event, "site", "")), event.fields.get("training"),
            event.rank, event.time_ns,
        )
        for event in _of_kind(parts, "loss")
    ]  # fmt: skip
    return _from_rows(rows, ["step", "micro", "value", "scale", "site", "training", "rank", "time"])


def lr_frame(parts: Iterable[Part]) -> pd.DataFrame:
    rows = [
        (event.step, event.fields.get("optimizer", 0), group, _number(value), event.rank, event.time_ns)
        for event in _of_kind(parts, "optimizer")
        for group, value in enumerate(_listed(event.fields.get("lr")))
    ]
    return _from_rows(rows, ["step", "optimizer", "group", "value", "rank", "time"])


def bricks_frame(parts: Iterable[Part], *, qualified: bool) -> pd.DataFrame:
    rows = [
        (part.rank, number, sound(brick.name(qualified=qualified)), brick.kind.value, sound(brick.path),
         sound(brick.model))
        for part in parts
        for number, brick in part.names.bricks.items()
    ]  # fmt: skip
    return _from_rows(rows, ["rank", "id", "name", "kind", "path", "model"])


def tensors_frame(parts: Iterable[Part], *, qualified: bool) -> pd.DataFrame:
    extra = ["shape", "dtype", "device", "trainable", "alias_of"]
    rows = [
        (part.rank, number, sound(tensor.shown(qualified=qualified)), sound(tensor.model),
         sound(part.names.brick(tensor.brick).name(qualified=qualified)),
         *(_sound_value(tensor.fields.get(name)) for name in extra))
        for part in parts
        for number, tensor in part.names.tensors.items()
    ]  # fmt: skip
    return _from_rows(rows, ["rank", "id", "name", "model", "brick", *extra])


def ranks_frame(parts: Iterable[Part]) -> pd.DataFrame:
    rows = [_rank_row(part) for part in parts if part.rank >= 0]
    columns = ["rank", "pid", "host", "world_size", "node", "local_rank", "events", "steps", "began", "ended"]
    return _from_rows(rows, columns)


def sound(text: Any) -> str:
    """``text`` without half characters (lone surrogates), which no column of a table takes."""
    whole = str(text)
    if whole.isascii():
        return whole
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _table(part: Part, rows: int, **columns: Any) -> Any:
    import pyarrow as pa

    return pa.table({"rank": pa.repeat(pa.scalar(part.rank, pa.int32()), rows), **columns})


def _named(numbers: Any, name: Callable[[int], str]) -> Any:
    """A column of numbers as a column of names; each number is looked up once."""
    import pyarrow as pa

    encoded = numbers.combine_chunks().dictionary_encode()
    names = pa.array([sound(name(number)) for number in encoded.dictionary.to_pylist()], pa.large_string())
    return names.take(encoded.indices)


def _whole_or_missing(column: Any) -> Any:
    import pandas as pd

    values = column.fill_null(0).to_numpy()
    return pd.arrays.IntegerArray(values.astype("int64"), column.is_null().to_numpy())


def _timestamps(nanoseconds: Any) -> Any:
    import pyarrow as pa

    return nanoseconds.cast(pa.timestamp("ns", tz="UTC"))


def _from_rows(rows: list[tuple[Any, ...]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    found = pd.DataFrame(rows, columns=columns)
    for name in ("time", "began", "ended"):
        if name in columns:
            found[name] = pd.to_datetime(found[name].astype("int64"), unit="ns", utc=True)
    return found


def _rank_row(part: Part) -> tuple[Any, ...]:
    about = next((event.fields for event in part.events if event.kind == "run"), {})
    place = part.coordinates
    times = [event.time_ns for event in part.events] or [0]
    return (
        part.rank, about.get("pid"), sound(about.get("host", "")), about.get("world_size"), place.node,
        place.local_rank, len(part.events), steps_of(part.events), min(times), max(times),
    )  # fmt: skip


def steps_of(events: Iterable[Event]) -> int:
    """How many steps were seen: as capture counted them, or else from the first to the last."""
    seen = [event.step for event in events if event.kind in ("loss", "optimizer", "grad")]
    counted = [event.fields.get("steps") for event in events if event.kind == "exit"]
    whole = [count for count in counted if isinstance(count, int)]
    return max(whole) if whole else max(seen) - min(seen) + 1 if seen else 0


def _of_kind(parts: Iterable[Part], kind: str) -> list[Event]:
    found = [event for part in parts for event in part.events if event.kind == kind]
    return sorted(found, key=lambda event: event.moment)


def _get(event: Event, name: str, default: Any) -> Any:
    value = event.fields.get(name)
    return default if value is None else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _sound_value(value: Any) -> Any:
    return sound(value) if isinstance(value, str) else value
