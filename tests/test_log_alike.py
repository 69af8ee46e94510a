"""Lines that are like lines before them are read as if they had been taken apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.logs.reading.alike import alike
from brickprof.logs.reading.tokens import Cutter, cut

NUMBERS = st.one_of(
    st.integers(0, 10**7).map(str),
    st.floats(0, 1e6).map(lambda value: f"{value:.4f}"),
    st.floats(1e-9, 1e9).map(lambda value: f"{value:.2e}"),
    st.sampled_from(["1,234", "12,34", "1.", ".5", "..5", "1e5", "1e", "nan", "inf", "-0.5", "+nan", "1.2.3", "0e.5"]),
)
TEXTS = st.sampled_from([
    "step ", "/", " | loss ", " loss=", "-", " +", "e", "e-", "T", ",", ".", "...", " bf16 ", "step_", "_", "layer.",
    " ", "\t", ": ", "nan", " of ", "é", "%", "(", "2024-01-0", "\r", " number of nan iterations ",
])  # fmt: skip
LINES = st.lists(st.tuples(TEXTS, NUMBERS), min_size=1, max_size=6)


def written(line: list[tuple[str, str]], behind: str = "") -> str:
    return "".join(text + number for text, number in line) + behind


def told(found) -> list[tuple]:
    """Of every line what it says: its skeleton and its numbers."""
    skeletons = dict(zip(found.counted.tolist(), found.skeleton_of.tolist(), strict=True))
    return [
        (found.text(line), found.skeletons[skeletons[line]] if line in skeletons else None, found.numbers(line))
        for line in range(len(found))
    ]


@given(st.lists(LINES, min_size=1, max_size=3), st.data(), st.sampled_from(["", " |", ".", " ms"]))
def test_what_is_known_changes_nothing(lines, data, behind):
    """The second chunk is made of the same texts with other numbers."""
    first = "".join(f"{written(line, behind)}\n" * 3 for line in lines)
    again = [[(text, data.draw(NUMBERS)) for text, _ in line] for line in lines for _ in range(2)]
    second = "".join(f"{written(line, behind)}\n" for line in again)
    cutter = Cutter()
    cutter.cut(first.encode())
    for chunk in (second, first + second, second + first):
        known, fresh = cutter.cut(chunk.encode(), 7), cut(chunk.encode(), 7)
        assert told(known) == told(fresh)
        assert known.holes.tolist() == fresh.holes.tolist() and known.lines.tolist() == fresh.lines.tolist()
        assert known.counted.tolist() == fresh.counted.tolist()


def test_lines_like_those_before_are_not_taken_apart(monkeypatch):
    from brickprof.logs.reading import tokens

    cutter = Cutter()
    line = "step {}/900 | loss {:.4f} | lr {:.2e} | bf16 | 12.5 ms\n"
    cutter.cut("".join(line.format(step, 9 / (1 + step), 3e-4) for step in range(50)).encode())
    monkeypatch.setattr(tokens, "_taken_apart", None)
    found = cutter.cut("".join(line.format(step, 9 / (1 + step), 1e-5) for step in range(50, 2000)).encode(), 51)
    assert len(found) == 1950 and set(found.holes.tolist()) == {5}
    assert found.values(np.arange(1950), 0)[0].tolist() == list(range(50, 2000))
    assert found.values(np.array([0, 1949]), 3)[0].tolist() == [1e-5, 1e-5]
    assert found.text(3) == b"step 53/900 | loss 0.1667 | lr 1.00e-05 | bf16 | 12.5 ms"


def test_a_line_of_another_kind_among_them():
    cutter = Cutter()
    many = b"".join(b"step %d loss 0.%d\n" % (step, step) for step in range(1, 200))
    cutter.cut(many)
    mixed = many[:600] + b"\nstep 7 loss nan\nepoch 3\nstep bf16\n" + many[600:]
    assert told(cutter.cut(mixed)) == told(cut(mixed))


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        (b"step 1,234\n", [(5, 10)]),  # whether a comma joins depends on the digits around it
        (b"step 1,23\n", [(5, 6), (7, 9)]),
        (b"loss nan\n", [(5, 8)]),
        (b"loss .5\n", [(5, 7)]),
        (b"no number\n", []),
        (b"x" * 4000 + b" 1\n", [(4001, 4002)]),
    ],
)
def test_where_it_takes_more_to_tell(line, numbers):
    assert alike(line, line, numbers) is None
