"""A run written somewhere else: as a journal again, or as Parquet.

Enters: the parts of a run and a folder. Leaves: a run's folder that ``Run.open`` reads, or tables
partitioned by ``rank=`` that pandas, DuckDB, Dask, Ray and Spark read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from brickprof.errors import OutputError
from brickprof.journal import EVENTS, PROCESS, PROCESS_RANK, SAMPLES, SPANS, rank_folder, write_meta
from brickprof.journal.frames import MOST_ROWS, batch_frame, schema_frame
from brickprof.journal.lines import encode
from brickprof.records import Event, RunMeta
from brickprof.run.names import NAMED_LATER
from brickprof.run.parts import Part
from brickprof.run.tables import events_table, samples_table, spans_table


def save(parts: Iterable[Part], meta: RunMeta, folder: Path) -> None:
    """Writes a run's folder. Refuses one that is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty.", "Choose a folder that does not exist yet.")
    try:
        write_meta(folder, meta)
        for part in parts:
            _save_part(part, folder)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}.") from None


def to_parquet(parts: Iterable[Part], folder: Path, *, qualified: bool) -> None:
    """Writes ``spans``, ``samples`` and ``events`` below ``folder``, a file for each rank."""
    import pyarrow.parquet as pq

    try:
        for part in parts:
            tables = {
                "spans": spans_table(part, qualified=qualified),
                "samples": samples_table(part, qualified=qualified),
                "events": events_table(part),
            }
            for name, table in tables.items():
                if part.rank == PROCESS_RANK and name != "events":
                    continue
                target = folder / name / f"rank={part.rank}"
                target.mkdir(parents=True, exist_ok=True)
                pq.write_table(_portable(table), target / "part-0.parquet", compression="zstd")
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}.") from None


def _portable(table: Any) -> Any:
    """``table`` without the rank, which is in the path, and with lists that every Parquet writer takes."""
    import pyarrow as pa

    table = table.drop_columns(["rank"])
    for i, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            lists = pa.chunked_array(
                [_of_any_length(chunk) for chunk in table.column(i).chunks], pa.list_(field.type.value_type)
            )
            table = table.set_column(i, field.name, lists)
    return table


def _of_any_length(lists: Any) -> Any:
    import pyarrow as pa

    present = lists.is_valid().to_numpy(zero_copy_only=False)
    ends = (present.cumsum() * lists.type.list_size).astype("int32")
    offsets = pa.array([0, *ends.tolist()], pa.int32())
    return pa.ListArray.from_arrays(offsets, lists.flatten(), mask=lists.is_null())


def _save_part(part: Part, folder: Path) -> None:
    if part.rank == PROCESS_RANK:
        (folder / PROCESS).write_bytes(b"".join(_lines(part)))
        return
    home = rank_folder(folder, part.rank)
    home.mkdir(parents=True, exist_ok=True)
    (home / EVENTS).write_bytes(b"".join(_lines(part)))
    for name, file, (table, _) in (("spans", SPANS, part.spans), ("samples", SAMPLES, part.samples)):
        if table.num_rows:
            (home / file).write_bytes(b"".join(_frames(name, table)))


def _lines(part: Part) -> Iterator[bytes]:
    for event in (*part.events, *_naming(part)):
        yield encode(event.seq, event.time_ns, event.kind, event.step, event.fields)


def _naming(part: Part) -> Iterator[Event]:
    """Events for the bricks and tensors that no event of the run names."""
    named = {(event.kind, event.fields.get("id")) for event in part.events if event.kind in ("brick", "tensor")}
    seq = max((event.seq for event in part.events), default=-1)
    missing: list[tuple[str, dict[str, Any]]] = [
        ("brick", {"id": number, "brick_kind": brick.kind.value, "path": brick.path, "model": brick.model})
        for number, brick in part.names.bricks.items()
    ]
    missing += [
        ("tensor", {"id": number, "name": tensor.name, "model": tensor.model, "brick": tensor.brick})
        for number, tensor in part.names.tensors.items()
    ]
    for kind, fields in missing:
        if (kind, fields["id"]) not in named:
            seq += 1
            yield Event(kind, 0, {**fields, NAMED_LATER: True}, seq)


def _frames(name: str, table: Any) -> Iterator[bytes]:
    yield schema_frame(name)
    for seq, batch in enumerate(table.combine_chunks().to_batches(max_chunksize=MOST_ROWS), 1):
        yield batch_frame(name, list(zip(*(column.to_pylist() for column in batch.columns), strict=True)), seq).data
