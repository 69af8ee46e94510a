"""Weights & Biases run files: history, configuration, exit, and files that are cut off, damaged or made to harm."""

from __future__ import annotations

import gzip
import json
import math
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.logs.reading import wire
from brickprof.logs.reading.frames import BLOCK
from brickprof.logs.reading.model import Head
from brickprof.logs.wandb_offline import READER

HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


# -- a small writer of the format


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def item(key, value) -> bytes:
    names = field(1, key) if isinstance(key, str) else b"".join(field(2, part) for part in key)
    return names + field(16, value if isinstance(value, bytes) else json.dumps(value))


def history(step: int, **values) -> bytes:
    items = b"".join(field(1, item(key, value)) for key, value in values.items())
    return field(1, step) + field(2, items + field(2, field(1, step)))


def framed(*records: bytes) -> bytes:
    out = HEADER
    for record in records:
        first = True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                room = BLOCK
            piece, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            first = False
            if not record:
                break
    return out


def written(folder, *records: bytes):
    path = folder / "run-abc.wandb"
    path.write_bytes(framed(*records))
    return path


def stated(log) -> dict:
    return {key: value for fact in log.facts if fact.kind == "setting" for key, value in fact.fields["values"].items()}


def test_history_is_series(tmp_path):
    rows = [history(step, _step=step, _timestamp=1.7e9 + step, loss=2.0 - step, opt={"lr": 0.5}) for step in range(5)]
    rows.append(history(5, _step=5, loss=math.nan, note="text", flag=True, image={"_type": "image-file", "size": 3}))
    log = logs.read(written(tmp_path, *rows))
    assert log.format == "wandb" and not log.damage and not log.attempts
    loss = log.series["loss"]
    assert loss.role == "loss" and loss.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert loss.values[:5].tolist() == [2.0, 1.0, 0.0, -1.0, -2.0] and math.isnan(loss.values[5])
    assert log.series["opt.lr"].role == "lr" and log.series["opt.lr"].count == 5
    assert set(log.series) == {"loss", "opt.lr"}


def test_numbers_in_all_their_encodings(tmp_path):
    items = [
        field(1, "half") + field(6, 0.5), field(1, "minus") + field(5, 5), field(1, "yes") + field(4, 1),
        field(1, "text") + field(7, "x"), field(1, "new") + field(8, "4.5"),
        item(("train", "loss"), 3.0), item("inf", b'"Infinity"'),
        item("broken", b"{"), item("long", 10**400), item("nothing", None),
    ]  # fmt: skip
    record = field(2, b"".join(field(1, one) for one in items) + field(2, field(1, 7)))
    log = logs.read(written(tmp_path, record))
    values = {name: series.values.tolist() for name, series in log.series.items()}
    assert values == {"half": [0.5], "minus": [-3.0], "new": [4.5], "train.loss": [3.0], "inf": [math.inf]}
    assert log.series["half"].steps.tolist() == [7]


def test_configuration_machine_output_and_exit(tmp_path):
    config = field(1, item("lr", 0.5)) + field(1, item("model", {"depth": 12})) + field(1, item("_wandb", {"v": 1}))
    run = field(1, "abc") + field(3, "project") + field(4, config) + field(14, 40) + field(18, 1)
    machine = b"".join(
        field(3, item(key, value))
        for key, value in {"proc.memory.rssMB": 2, "gpu.0.gpu": 93.5, "memory": 50, "gpu.0.memoryAllocated": 12}.items()
    )
    printed = (
        'Traceback (most recent call last):\n  File "t.py", line 3, in step\n    x()\nRuntimeError: CUDA: \x1b[1mboom\n'
    )
    log = logs.read(
        written(
            tmp_path,
            field(17, run),
            history(41, loss=1.0),
            field(7, machine),
            field(5, field(1, item("late", True))),
            field(13, field(1, 1) + field(3, printed[:40])),
            field(13, field(1, 1) + field(3, printed[40:])),
            field(18, field(1, 1) + field(2, 99)),
        )
    )
    assert stated(log) == {
        "lr": 0.5, "model.depth": 12, "wandb.id": "abc", "wandb.project": "project", "wandb.starting_step": 40,
        "wandb.resumed": True, "late": True,
    }  # fmt: skip
    assert log.series["system/rss"].values.tolist() == [2.0 * 2**20] and log.series["system/rss"].role == "memory"
    assert log.series["system/gpu.0.gpu"].steps.tolist() == [41]
    assert set(log.series) == {"loss", "system/rss", "system/gpu.0.gpu"}
    (thrown,) = [fact.fields for fact in log.facts if fact.kind == "exception"]
    assert thrown["type"] == "RuntimeError" and thrown["frames"] == ["t.py:3 in step"]
    assert thrown["message"] == "CUDA: \\x1b[1mboom"
    assert [fact.fields["code"] for fact in log.facts if fact.kind == "note"] == [1]


def test_a_run_that_ended_well_says_so(tmp_path):
    log = logs.read(written(tmp_path, history(1, loss=1.0), field(18, field(2, 5))))
    assert [fact.kind for fact in log.facts] == ["finished"]


def test_records_longer_than_a_block(tmp_path):
    rows = [history(step, loss=float(step), filler="x" * (30_000 + step)) for step in range(40)]
    rows.append(history(40, loss=40.0, table={str(number): number for number in range(3_000)}))
    path = written(tmp_path, *rows)
    assert path.stat().st_size > 40 * 30_000
    log = logs.read(path)
    assert log.series["loss"].values.tolist() == [float(step) for step in range(41)] and not log.damage


def test_packed_and_resumed(tmp_path):
    rows = [history(step, loss=1.0) for step in (*range(50), *range(30, 60))]
    path = tmp_path / "run.wandb.gz"
    path.write_bytes(gzip.compress(framed(*rows)))
    log = logs.read(path)
    assert log.series["loss"].count == 80
    assert [(one.stopped_at, one.goes_on_at) for one in log.attempts] == [(49, 30)]


def test_cut_off_anywhere_it_gives_what_came_before(tmp_path):
    path = written(tmp_path, *(history(step, loss=float(step)) for step in range(4)))
    whole = path.read_bytes()
    size = (len(whole) - 7) // 4
    for cut in range(7, len(whole)):
        path.write_bytes(whole[:cut])
        log = logs.read(path, READER)
        count = len(log.series["loss"]) if "loss" in log.series else 0
        assert count == (cut - 7) // size
        assert bool(log.damage) == ((cut - 7) % size >= 7), "less than a header cannot be told from the end"


def test_damage_costs_its_block_and_zeros_nothing(tmp_path):
    rows = [history(step, loss=float(step), filler="x" * 900) for step in range(120)]
    path = written(tmp_path, *rows)
    whole = bytearray(path.read_bytes())
    whole[40_000] ^= 0xFF
    path.write_bytes(bytes(whole))
    log = logs.read(path, READER)
    steps = log.series["loss"].steps.tolist()
    lost = sorted(set(range(120)) - set(steps))
    assert len(log.damage) == 1 and "damaged" in log.damage[0]
    assert lost == list(range(lost[0], lost[-1] + 1)), "only what lies in that block"
    assert 0 < len(lost) < BLOCK // 900 + 2 and steps[-1] == 119
    padded = framed(rows[0])
    path.write_bytes(padded + bytes(BLOCK - len(padded)) + framed(*rows[1:3])[7:])
    assert logs.read(path, READER).series["loss"].steps.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "record",
    [
        b"\xff" * 12, field(2, b"\x0a\xff\xff\xff\xff\x0f"), field(2, field(1, b"\x0f")), field(7, b"\x07"), b"\x0b",
        field(2, field(1, item("deep", b"[" * 100_000))), field(2, field(1, item("\x1b[2J", 1.0))),
        field(17, field(3, b"\xff\xfe\x1b]0;")), field(13, field(3, "\x1b" * 5000)),
        history(2**62, loss=1.0), field(2, field(1, item("_step", b'"NaN"'))),
    ],
)  # fmt: skip
def test_records_that_are_not_as_they_should_be(tmp_path, record):
    log = logs.read(written(tmp_path, history(1, loss=1.0), record, history(2, loss=2.0)), READER)
    assert log.series["loss"].values[0] == 1.0 and log.series["loss"].values[-1] == 2.0
    assert all(name.isprintable() for name in log.series)
    assert all(str(fact.fields).isprintable() for fact in log.facts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=6), st.binary(max_size=60))
def test_arbitrary_records_and_bytes_are_read_or_called_damaged(tmp_path_factory, records, rest):
    path = tmp_path_factory.mktemp("any") / "run.wandb"
    path.write_bytes(framed(history(1, loss=1.0), *records) + rest)
    log = logs.read(path, READER)
    assert log.series["loss"].values[0] == 1.0


@given(st.binary(max_size=100))
def test_messages_end_or_raise(data):
    try:
        found = list(wire.fields(data))
    except ValueError:
        return
    assert sum(len(value) if isinstance(value, bytes) else 1 for _, value in found) <= len(data)


def test_varints_signs_and_bounds():
    assert wire.varint(varint(300), 0) == (300, 2)
    assert wire.signed(wire.varint(varint(-5), 0)[0]) == -5
    assert [wire.zigzag(value) for value in range(5)] == [0, -1, 1, -2, 2]
    with pytest.raises(ValueError, match="does not end"):
        wire.varint(b"\xff" * 20, 0)


def test_other_files_are_not_taken_for_it():
    assert READER.sniff(Head("run.wandb", b"step 1 loss 2")) == 0.0
    assert READER.sniff(Head("any", HEADER)) == 1.0
