"""Columns of Arrow and arrays of NumPy, straight out of their memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from brickprof.run import columns

KINDS = [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64(), pa.float32(), pa.float64()]
GIVEN = {"all": [1, 2, 3, 4], "some": [1, None, 3, None], "none": [None] * 4, "empty": []}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "cut"])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_numbers_are_what_arrow_itself_says(kind, given, cut, chunks):
    array = pa.array(given, kind)[cut:]
    held = pa.chunked_array([array] * chunks, kind) if chunks else array
    expected = held.to_numpy() if chunks else held.to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(columns.numbers(held), expected.astype(np.float64))
    there = ~np.array([value is None for value in held.to_pylist()], dtype=bool)
    np.testing.assert_array_equal(columns.present(held), there)
    np.testing.assert_array_equal(columns.values(held)[there], expected[there])
    assert columns.whole(held, missing=7).tolist() == [7 if one is None else one for one in held.to_pylist()]


def test_more_than_a_byte_of_missing_ones():
    held = pa.array([None if place % 3 else place for place in range(100)])[7:93]
    np.testing.assert_array_equal(columns.present(held), ~held.is_null().to_numpy(zero_copy_only=False))


def test_places_are_taken():
    words = pa.array(["zero", "one", "two"])
    assert words.take(columns.places(np.array([2, 0, 2], dtype=np.int32)[::2])).to_pylist() == ["two", "two"]
    assert words.take(columns.places(np.array([], dtype=np.int64))).to_pylist() == []
