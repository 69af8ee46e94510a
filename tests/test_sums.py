"""The checksum of a run's files is the same whoever computes it."""

import importlib
import random
import sys
import zlib

import pytest

from brickprof.journal import sums


@pytest.fixture(params=["zlib-ng, where there is one", "zlib"])
def crc32(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "zlib_ng", None)  # as where it is not installed
        monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    yield importlib.reload(sums).crc32
    monkeypatch.undo()
    importlib.reload(sums)


@pytest.mark.parametrize("size", [0, 1, 7, 64, 4097, 1_000_003])
def test_it_is_the_plain_crc_of_any_bytes_also_in_pieces(crc32, size):
    data = random.Random(size).randbytes(size)
    cut = size // 3
    assert crc32(data) == crc32(memoryview(data)[cut:], crc32(data[:cut])) == zlib.crc32(data)


def test_without_zlib_ng_zlib_does_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    assert importlib.reload(sums).crc32 is zlib.crc32
    monkeypatch.undo()
    importlib.reload(sums)
