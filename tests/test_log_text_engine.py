"""The engine of text logs: what is a number, what it is called, which step a row is of, and what is no row."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.logs.reading import names
from brickprof.logs.reading.model import Block, Fact, Item, Skipped
from brickprof.logs.reading.source import Part, Source
from brickprof.logs.reading.templates import Engine
from brickprof.logs.reading.tokens import cut

Row = tuple[int, tuple[tuple[str, float], ...]]


def _rows(items: Sequence[Item]) -> list[Row]:
    """Every row: its line, and its numbers by name."""
    rows = []
    for item in items:
        if isinstance(item, Block):
            for place, line in enumerate(item.lines.tolist()):
                rows.append((line, tuple(sorted((name, float(column[place])) for name, column in item.values.items()))))
    return sorted(rows, key=lambda row: row[0])


def _of(text: str | bytes, again: int = 3) -> dict[str, float]:
    """What one line holds, when it is seen a few times."""
    data = text if isinstance(text, bytes) else text.encode()
    rows = _rows(Engine().take((data + b"\n") * again))
    assert len(rows) in (0, again), rows
    return dict(rows[0][1]) if rows else {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("loss=0.1 step=5", {"loss": 0.1, "step": 5}),
        ("lm loss: 2.46 | grad norm: 0.174 |", {"lm loss": 2.46, "grad norm": 0.174}),
        ("{'loss': '2.5', 'epoch': '0.07'}", {"loss": 2.5, "epoch": 0.07}),
        ("step 3/19560 | loss 11.0 (+nanz)", {"step": 3, "total_steps": 19560, "loss": 11.0}),
        ("step 3 loss -inf", {"step": 3, "loss": -np.inf}),
        ("step 1,234 loss 3.2E+35", {"step": 1234, "loss": 3.2e35}),
        ("step 10 loss 2.0 dt 2.1ms", {"step": 10, "loss": 2.0, "dt": 2.1e-3}),
        ("step 10 loss 2.0 mfu 45%", {"step": 10, "loss": 2.0, "mfu": 0.45}),
        ("step 10 loss 2.0 tps 12.3k", {"step": 10, "loss": 2.0, "tps": 12300.0}),
        ("step 10 | loss 2.0 | 27.3 tok/s", {"step": 10, "loss": 2.0, "tok/s": 27.3}),
        ("step_10: loss=2.0", {"step": 10, "loss": 2.0}),
        ("100: loss 2.0", {"step": 100, "loss": 2.0}),
        ("Epoch [1/10], Step [100/600], Loss: 0.25", {"Epoch": 1, "Step": 100, "total_steps": 600, "Loss": 0.25}),
        ("[Epoch 3/9] [Batch 10/500] [D loss: 0.5]", {"Epoch": 3, "step": 10, "total_steps": 500, "D loss": 0.5}),
        ("iteration 9/99 | global_step: 7 | loss: 2.0 | eta: 1:02:03", {"global_step": 7, "iteration": 9,
         "total_steps": 99, "loss": 2.0}),
        ("I0501 10:00:00.123456 140 train.py:123] step = 5, loss = 2.0", {"step": 5, "loss": 2.0}),
        ("INFO 2024-05-01 10:00:00 x_train.py:123 step:5 loss:2.0 mem: 23M", {"step": 5, "loss": 2.0, "mem": 23e6}),
        ("[eval] step 5 loss 2.0", {"step": 5, "validation loss": 2.0}),
        ("2024-01-01 00:00:00,123 - INFO - __main__ - step 5 - loss: 2.0", {"step": 5, "loss": 2.0}),
        ("INFO:root:step 5: loss=2.0", {"step": 5, "loss": 2.0}),
        ("[2024-01-01 00:00:00] [INFO] [engine.py:12:f] step=5 loss=2.0", {"step": 5, "loss": 2.0}),
        ("Jan 02 10:00:00 node1 step 5 loss 2.0", {"step": 5, "loss": 2.0}),
        ("\x1b[31mstep 5\x1b[0m loss \x1b[1m2.0\x1b[0m", {"step": 5, "loss": 2.0}),
        ("step 5 loss 2.0 top5 0.5 layer.3.norm 7", {"step": 5, "loss": 2.0, "top5": 0.5, "layer.3.norm": 7}),
        ("step 5 loss 2.0 step 6 loss 3.0", {}),
        ("lr=0.001", {}),
        ("model v2.1.0 at 127.0.0.1:29500", {}),
    ],
)  # fmt: skip
def test_what_a_line_holds(line: str, found: dict[str, float]) -> None:
    read = _of(line)
    read = {name: value for name, value in read.items() if name in found or names.role(name) != "other"}
    assert read == pytest.approx(found)


def test_a_z_score_that_is_nan_is_not_a_loss_that_is() -> None:
    read = _of("step 1/10 | loss 11.0 (+nanz)| norm 15.1 (+nanz)| lr 8e-07")
    assert np.isfinite(list(read.values())).all()


@pytest.mark.parametrize("word", ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "NAN"])
def test_what_is_not_finite_is_read_as_that(word: str) -> None:
    value = _of(f"step 1 loss {word}")["loss"]
    assert not np.isfinite(value)
    assert np.isnan(value) == ("nan" in word.lower())


def test_ranks_are_told_apart_and_one_that_speaks_alone_speaks_for_all() -> None:
    interleaved = b"".join(
        b"[rank%d]: step %d loss %d.5\n" % (rank, step, rank) for step in range(4) for rank in (1, 0, 2)
    )
    blocks = [item for item in Engine().take(interleaved) if isinstance(item, Block)]
    assert {block.rank: block.values["loss"].tolist() for block in blocks} == {0: [0.5] * 4, 1: [1.5] * 4, 2: [2.5] * 4}
    alone = [item for item in Engine().take(b"[default7]:step 1 loss 2.5\n" * 3) if isinstance(item, Block)]
    assert [block.rank for block in alone] == [None]


def test_labels_of_srun_are_ranks_where_the_line_has_a_step() -> None:
    text = b"".join(b"%d: step %d loss 1.5\n" % (rank, step) for step in range(3) for rank in (0, 1))
    blocks = [item for item in Engine().take(text) if isinstance(item, Block)]
    assert sorted((block.rank, block.values["step"].tolist()) for block in blocks if block.rank is not None) == [
        (0, [0, 1, 2]),
        (1, [0, 1, 2]),
    ]


def test_lines_that_differ_in_spaces_and_in_what_surrounds_a_number_are_one_table_in_order() -> None:
    text = b"".join(
        b"step %5d | loss %8.3f (%sz)\n" % (step, 9.5, b"+nan" if step % 2 else b"1.0") for step in range(20)
    )
    blocks = [item for item in Engine().take(text) if isinstance(item, Block)]
    assert len(blocks) == 1
    assert blocks[0].values["step"].tolist() == list(range(20))
    assert blocks[0].lines.tolist() == list(range(1, 21))


def test_a_row_without_a_step_is_of_the_last_one_spoken_of() -> None:
    text = b"validation loss: 9.0\nstep 1 lr 0.1 loss 5.0\nstep 2 lr 0.1 loss 4.0\nvalidation loss: 3.0\n"
    engine = Engine()
    rows = _rows(engine.take(text)) + _rows(engine.take(b"validation loss: 2.0\n", 5))
    told = [(dict(row)["step"], dict(row)["validation loss"]) for _, row in rows if "validation loss" in dict(row)]
    assert told == [(0, 9.0), (2, 3.0), (2, 2.0)]


def test_steps_that_begin_anew_with_each_epoch_are_counted_on() -> None:
    text = b"".join(
        b"Epoch: [%d][%3d/40]\tTime 0.1 (0.2)\tLoss 2.5 (2.6)\n" % (epoch, step)
        for epoch in range(3)
        for step in range(0, 40, 10)
    )
    (block,) = [item for item in Engine().take(text) if isinstance(item, Block)]
    assert block.values["step"].tolist() == list(range(0, 120, 10))


def test_steps_that_go_back_stay_as_they_are() -> None:
    text = b"".join(b"step %d loss 2.5\n" % step for step in [1, 2, 3, 4, 2, 3, 4, 5])
    (block,) = [item for item in Engine().take(text) if isinstance(item, Block)]
    assert block.values["step"].tolist() == [1, 2, 3, 4, 2, 3, 4, 5]


def test_the_counter_of_a_bar_is_the_step_where_nothing_else_is() -> None:
    text = "".join(f"\r{n * 10}%|{'█' * n}| {n}/10 [00:0{n}<00:01,  2.00it/s, loss=2.{n}]" for n in range(1, 9)) + "\n"
    (block,) = [item for item in Engine().take(text.encode()) if isinstance(item, Block)]
    assert block.values["step"].tolist() == list(range(1, 9))
    assert block.values["loss"].tolist() == pytest.approx([2 + n / 10 for n in range(1, 9)])
    assert set(block.lines.tolist()) == {1}


def test_few_short_lines_among_long_ones_were_cut_off() -> None:
    whole = "".join(f"step {step} | loss 2.5 | norm 1.25 | lr 0.001\n" for step in range(20))
    rows = _rows(Engine().take((whole + "step 20 | loss 2.\nstep 21 | loss 2.5 | norm 1.25 | lr 0.001\n").encode()))
    assert [dict(row)["step"] for _, row in rows] == [*range(20), 21]


def test_what_is_no_row_is_counted_and_shown() -> None:
    items = Engine().take(b"hello\nstep 1 loss 2.0\n\x1b[2Jworld\n\n")
    (skipped,) = [item for item in items if isinstance(item, Skipped)]
    assert skipped.count == 2
    assert skipped.examples == ((1, "hello"), (3, "world"))


LOG = (
    b"starting\n"
    b"step 1/20 | loss 11.0253 | norm 5.1 (+1.2z)| lr 2.5e-06 | 144844 tok/s\n"
    b"step 2/20 | loss 10.125 | norm 5.2 (+1.2z)| lr 3.5e-06 | 144845 tok/s\n"
    b"val loss: 10.5\n"
    b"{'loss': 2.5, 'epoch': 0.25}\n"
    b"{'loss': 1.5, 'epoch': 0.50}\n"
    b"step 3/20 | loss nan | norm nan (+1.2z)| lr 4.5e-06 | 144846 tok/s\n"
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 3, in <module>\n'
    b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
)


@pytest.mark.parametrize("end", range(len(LOG) + 1))
def test_a_log_cut_off_anywhere_gives_only_rows_that_are_whole(end: int) -> None:
    key = dict(_rows(Engine().take(LOG)))
    engine = Engine()
    rows = _rows([*engine.take(LOG[:end]), *engine.end()]) if end else []
    lines = LOG[:end].count(b"\n")
    for line, row in rows:
        assert str(row) == str(key[line])  # nan is nan here
        assert line <= lines + 1
    if LOG[:end].endswith(b"\n"):
        sure = [line for line in key if line <= lines and b"step" in LOG.splitlines()[line - 1]]
        assert {line for line, _ in rows} >= set(sure)


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    engine = Engine()
    for item in [*engine.take(data), *engine.end()]:
        assert isinstance(item, (Block, Fact, Skipped))


_PIECES = st.sampled_from(
    [
        b"step ", b"loss", b"=", b": ", b"1.5", b"nan", b"-inf", b"1,234", b"e-05", b"\n", b"\r", b"\x1b[31m", b" | ",
        b"|##  | 5/10 [00:01<00:02, 1it/s]", b"[rank3]:", b"Epoch 1/3", b"\xff", b"\0", b"_", b"{'", b"': '", b".",
        b"Traceback (most recent call last):\n", b"  File \"a.py\", line 3, in f\n", b"9" * 400, b"/", b"%",
        b"OVERFLOW! Attempted loss scale: 4, reducing to 2",
    ]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=60))
@settings(max_examples=300, deadline=None)
def test_pieces_of_logs_in_any_order_are_read_without_an_exception(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    engine = Engine()
    for item in [*engine.take(data), *engine.take(data, 7), *engine.end()]:
        if isinstance(item, Block):
            assert all(len(column) == len(item.lines) for column in item.values.values())


@given(st.lists(st.floats(allow_nan=False, width=64), min_size=2, max_size=30))
@settings(max_examples=100, deadline=None)
def test_numbers_come_back_as_they_were_written(values: list[float]) -> None:
    text = "".join(f"step {step} loss {value!r}\n" for step, value in enumerate(values))
    rows = _rows(Engine().take(text.encode()))
    assert [dict(row)["loss"] for _, row in rows] == values


def test_where_the_numbers_of_a_line_are() -> None:
    line = b"bf16 -1.5e-3 2024-01-02T03:04:05 1,234,567 0.12,345 x2 +nanz -inf info, number of nan iterations: 3 a_1"
    found = cut(line + b" 1_000\n")
    assert found.numbers(0) == [
        b"-1.5e-3", b"2024", b"01", b"02", b"03", b"04", b"05", b"1,234,567", b"0.12", b"345", b"-inf", b"3",
    ]  # fmt: skip


def test_parts_of_a_file_come_to_the_same_as_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [f"step {n} loss {9 - n / 1000:.4f}\n" + ("val loss: 3.5\n" if n % 50 == 49 else "") for n in range(4000)]
    path.write_text("".join(lines))
    source = Source(path)
    reader = logs.readers()["text"]
    whole = _rows(list(reader.read(Source(path))))
    parts, before = [], 0
    for part in source.parts(3):
        piece = Source(path, part)
        parts += [(line + before, row) for line, row in _rows(list(reader.read(piece)))]
        before += path.read_bytes()[part.start : part.end].count(b"\n")
    assert sorted(parts) == sorted(whole)
    assert isinstance(source.parts(3)[0], Part)


def test_a_pipe_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Stdin:
        buffer = io.BytesIO(b"step 1 loss 2.0\nstep 2 loss 1.0\n")

    monkeypatch.setattr(sys, "stdin", _Stdin())
    log = logs.read("-")
    assert log.series["loss"].values.tolist() == [2.0, 1.0]
