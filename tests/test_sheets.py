"""Samples of one look, written as a sheet: the same as row by row."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.capture.survey import Look, row, sheet, sheet_of_norms, whose
from brickprof.journal import SAMPLES, Journal, Sheet, read_table, schema, sheets, writer
from brickprof.journal.columns import numpy_type
from brickprof.journal.frames import MOST_ROWS
from brickprof.records import ROLES

GRAD = ROLES.index("grad")
COUNTS, SIZES = st.sampled_from([0.0, 0.0, 0.0, 1.0, 7.0]), st.floats(0, 1e38)
ROWS = st.lists(st.tuples(COUNTS, COUNTS, SIZES, SIZES, st.floats(-1e30, 1e30), st.floats(0, 1), SIZES, st.just(64.0)),
                min_size=1, max_size=20)  # fmt: skip


def entries(count):
    tensor = SimpleNamespace(numel=lambda: 64)
    return [SimpleNamespace(brick=3 + place % 2, number=1 + place, tensor=lambda: tensor) for place in range(count)]


def by_rows(journal, table, look):
    for entry, of in zip(entries(len(table)), map(row, table.tolist()), strict=True):
        journal.sample(
            (look.time_ns, look.step, look.micro, entry.brick, entry.number, look.role, of.numel, of.nan, of.inf,
             of.absmax, of.l2, of.mean, of.zero_fraction, None, None, look.scale, None)
        )  # fmt: skip


def written(folder, *looks, as_rows=False):
    journal = Journal(folder)
    for table, look in looks:
        if as_rows:
            by_rows(journal, table, look)
        else:
            journal.sheet(sheet(table, whose(entries(len(table))), look))
    journal.close()
    assert not any(journal.dropped.values())
    table, damage = read_table(folder / SAMPLES, schema("samples"))
    assert not damage
    return table


FIRST = """
import sys
from pathlib import Path
import numpy as np
from brickprof.journal import Journal, Sheet, sheets
journal = Journal(Path(sys.argv[1]))
journal.warm()
assert sheets._kinds.cache_info().currsize == 1  # a sheet was made
before = set(sys.modules)
nobody = np.zeros(3, np.int32)
journal.sheet(Sheet(1, 5, 0, 1, None, nobody, nobody, np.ones((3, 8))))
journal.sheet(Sheet(1, 6, 0, 1, 2.0, nobody, nobody, np.ones((3, 8)), norms_only=True))
journal.flush()
print(sorted(set(sys.modules) - before), "pandas" in sys.modules, journal.dropped["samples"])
"""


def test_the_first_sheet_of_a_run_loads_nothing(tmp_path):
    command = [sys.executable, "-c", FIRST, tmp_path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[] False 0", "")


@pytest.mark.parametrize("name", ["spans", "samples"])
def test_every_column_of_numbers_has_the_type_that_arrow_gives_it(name):
    for field in schema(name):
        number = pa.types.is_primitive(field.type)
        assert numpy_type(field.type) == (np.dtype(field.type.to_pandas_dtype()).name if number else None), field


def test_arrow_is_not_asked_for_the_types_of_columns():
    """Before version 26 it loads pandas to tell."""
    sources = [file.read_text() for file in Path(sheets.__file__).parent.glob("*.py")]
    assert len(sources) > 10 and not any("to_pandas" in source for source in sources)


@given(rows=ROWS, scale=st.sampled_from([None, 1024.0]))
def test_a_sheet_is_its_rows(tmp_path_factory, rows, scale):
    folder, table = tmp_path_factory.mktemp("sheets"), np.array(rows)
    looks = [(table, Look(5, 8, 1, GRAD, scale)), (table[::-1].copy(), Look(6, 12, 0, GRAD, scale))]
    one, other = written(folder / "a", *looks), written(folder / "b", *looks, as_rows=True)
    assert one.schema == other.schema
    for name in one.column_names:
        for a, b in zip(one[name].to_pylist(), other[name].to_pylist(), strict=True):
            assert a == b or (a is not None and math.isnan(a) and math.isnan(b)), name


def test_the_table_may_be_written_over(tmp_path):
    table, journal = np.ones((3, 8)), Journal(tmp_path)
    journal.sheet(sheet(table, whose(entries(3)), Look(1, 2, 0, GRAD, None)))
    table[:] = 9
    journal.close()
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0]["mean"].to_pylist() == [1.0] * 3


def test_norms_alone_say_nothing_of_the_rest(tmp_path):
    journal, of = Journal(tmp_path), whose(entries(3))
    journal.sheet(sheet(np.array([[0.0, 0, 1, 1, 1, 0, 9, 64]] * 3), of, Look(1, 4, 0, GRAD, None)))
    journal.sheet(sheet_of_norms(np.array([1.5, 0.0, 2.5], np.float32), of, Look(2, 8, 0, GRAD, None)))
    journal.close()
    found = read_table(tmp_path / SAMPLES, schema("samples"))[0].to_pylist()
    assert [row["absmax"] for row in found] == [1.0] * 3 + [None] * 3 == [row["mean"] for row in found]
    late = found[3:]
    assert [row["l2"] for row in late] == [1.5, 0.0, 2.5] and [row["numel"] for row in late] == [64] * 3
    assert all((row["nan"], row["inf"], row["zero_fraction"], row["step"]) == (0, 0, None, 8) for row in late)


def test_sheets_wait_for_others_and_broken_ones_do_not(tmp_path):
    journal, of = Journal(tmp_path, flush_seconds=0.01), whose(entries(3))
    journal._sheets_wait = 3600.0
    file = tmp_path / SAMPLES

    def steps():
        return sorted(set(read_table(file, schema("samples"))[0]["step"].to_pylist())) if file.exists() else []

    for step in range(5):
        journal.sheet(sheet(np.ones((3, 8)), of, Look(1, step, 0, GRAD, None)))
    time.sleep(0.4)
    assert steps() == []
    journal.sheet(sheet(np.ones((3, 8)), of, Look(1, 5, 0, GRAD, None)), at_once=True)
    until = time.monotonic() + 10
    while len(steps()) < 6 and time.monotonic() < until:
        time.sleep(0.02)
    assert steps() == list(range(6)) and len(list(journal._samples.frames())) == 1
    journal.sheet(sheet(np.ones((3, 8)), of, Look(1, 6, 0, GRAD, None)))
    journal.close()
    assert steps() == list(range(7)) and journal.written_ns > 0


def test_a_thread_that_is_billed_by_ticks_has_not_worked_for_longer_than_it_took(tmp_path, monkeypatch):
    """As on some virtual machines, where whoever works for a moment is billed ten milliseconds."""
    ticks = iter(range(0, 10**15, 10_000_000))
    monkeypatch.setattr(writer.time, "thread_time_ns", lambda: next(ticks))
    began = time.perf_counter_ns()
    journal = Journal(tmp_path, flush_seconds=0.001)
    until = time.monotonic() + 10
    while journal._used_ns < 200_000_000 and time.monotonic() < until:
        time.sleep(0.01)
    journal.close()
    assert 0 < journal.written_ns <= time.perf_counter_ns() - began
    assert journal.written_ns < journal._used_ns / 2


def test_many_tensors_are_several_frames(tmp_path):
    table = np.zeros((2 * MOST_ROWS + 5, 8))
    assert written(tmp_path, (table, Look(1, 2, 0, GRAD, None)))["tensor"].to_pylist() == [*range(1, len(table) + 1)]


def test_rows_and_sheets_in_any_order(tmp_path):
    journal, table = Journal(tmp_path), np.zeros((4, 8))
    for step in range(12):
        look = Look(step, step, 0, GRAD, None)
        if step % 3:
            by_rows(journal, table, look)
        else:
            journal.sheet(sheet(table, whose(entries(4)), look))
    journal.close()
    found = read_table(tmp_path / SAMPLES, schema("samples"))[0]
    assert sorted(found["step"].to_pylist()) == sorted([*range(12)] * 4)


@pytest.mark.parametrize("bad", ["text", None, 10**30])
def test_one_that_no_column_takes_is_counted(tmp_path, bad):
    journal = Journal(tmp_path)
    good = sheet(np.zeros((4, 8)), whose(entries(4)), Look(1, 2, 0, GRAD, None))
    journal.sheet(Sheet(1, bad, 0, GRAD, None, good.bricks, good.tensors, good.table))
    journal.sheet(good)
    journal.close()
    assert journal.dropped["samples"] == 4
    assert read_table(tmp_path / SAMPLES, schema("samples"))[0].num_rows == 4
