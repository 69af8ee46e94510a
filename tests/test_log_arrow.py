"""Columns between Arrow and NumPy, and logs that are read without pandas."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from brickprof.logs.reading import arrow

KINDS = [pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "given", [[1, 2, 3, 4], [1, None, 3, None], [None] * 4, []], ids=["all", "some", "none", "empty"]
)
@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "cut"])
def test_values_are_what_arrow_itself_says(kind, given, cut):
    held = pa.array(given, kind)[cut:]
    np.testing.assert_array_equal(arrow.values(held), held.to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(arrow.there(held), ~held.is_null().to_numpy(zero_copy_only=False))


@pytest.mark.parametrize("given", [pa.array([True, None, False]), pa.nulls(3), pa.array(["a", None])], ids=str)
def test_what_is_no_number_is_left_to_arrow(given):
    np.testing.assert_array_equal(arrow.values(given), given.to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(arrow.there(given), ~given.is_null().to_numpy(zero_copy_only=False))


def test_more_than_a_byte_of_missing_ones():
    held = pa.array([None if place % 3 else place for place in range(100)])[7:93]
    np.testing.assert_array_equal(arrow.there(held), ~held.is_null().to_numpy(zero_copy_only=False))


def test_places_and_spans():
    words = arrow.spans(b"zero one two three", np.array([0, 5, 9, 9]), np.array([4, 8, 12, 9]))
    assert words.to_pylist() == [b"zero", b"one", b"two", b""]
    assert words.take(arrow.places(np.array([2, 0], dtype=np.int32))).to_pylist() == [b"two", b"zero"]
    assert arrow.spans(b"", np.array([], int), np.array([], int)).to_pylist() == []


LOGS = {
    "text.log": "".join(f"step {n} | loss {3 - n / 200:.4f} | norm 1.0 [1.5, 2.5]\n" for n in range(200)),
    "lines.jsonl": "".join(f'{{"step": {n}, "loss": {3 - n / 200}}}\n' for n in range(200)),
    "table.csv": "step,loss,note\n" + "".join(f"{n},{3 - n / 200},{'' if n % 2 else 'x'}\n" for n in range(200)),
    "state.json": json.dumps({"log_history": [{"step": n, "loss": 3 - n / 99} for n in range(99)]}),
}


@pytest.mark.parametrize("name", LOGS)
def test_pandas_is_not_loaded_to_read_a_log(name, tmp_path):
    (tmp_path / name).write_text(LOGS[name])
    text = "import sys; from brickprof import logs; print(logs.read(sys.argv[1]).last_step, 'pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["98" if name == "state.json" else "199", "False"]
