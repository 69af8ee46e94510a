"""Losses on the slate: stored one by one or many at once, they are the same losses, also after a kill."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof.journal import Journal
from brickprof.journal.slate import ROOM, Slate, read_slate

MS = 1_000_000
COLUMNS = ("steps", "micros", "values", "times")


def made(count, apart=20 * MS):
    return [(64 + i, 0, 0.5 * i, 10**18 + apart * i) for i in range(count)]


def told(folder):
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    found = [[line[column] for column in COLUMNS] for line in lines if line["kind"] == "losses"]
    return [loss for columns in found for loss in zip(*columns, strict=True)]


@given(parts=st.lists(st.integers(0, 3 * ROOM), max_size=6), apart=st.sampled_from([1000, MS, 20 * MS, 900 * MS]))
@settings(max_examples=30, deadline=None)
def test_many_at_once_are_each_of_them(tmp_path_factory, parts, apart):
    folder, losses = tmp_path_factory.mktemp("slate"), made(sum(parts), apart)
    journal, at = Journal(folder), 0
    for part in parts:
        journal.losses(losses[at : at + part])
        at += part
    journal.close()
    assert told(folder) == losses and journal.dropped["events"] == 0


@pytest.mark.parametrize("count", [1, 7, ROOM])
def test_a_kill_does_not_reach_them(tmp_path, count):
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        folder.mkdir()
    slate, other, losses = Slate(one), Slate(many), made(count)
    for loss in losses:
        slate.keep(*loss)
    other.keep_all(losses[:3])
    other.keep_all(losses[3:])
    assert other.room == slate.room == ROOM - count
    assert (one / "slate.bin").read_bytes() == (many / "slate.bin").read_bytes()
    assert read_slate(many)[0] == losses


def test_none_waits_for_longer_than_it_may(tmp_path):
    journal = Journal(tmp_path)
    journal.losses(made(10))  # 180 ms
    assert told(tmp_path) == []
    journal.losses([(80, 0, 1.0, 10**18 + 500 * MS)])
    assert len(told(tmp_path)) == 11
    journal.close()
