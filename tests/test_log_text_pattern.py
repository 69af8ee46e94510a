"""``--pattern``: a reader that the user describes."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from brickprof import logs
from brickprof.errors import UsageError
from brickprof.logs.reading.templates import from_pattern


def _log(folder: Path, text: str) -> Path:
    path = folder / "odd.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "pattern",
    [r"(?P<step>\d+).*loss=(?P<loss>\S+)", "at {step} :: loss={loss}", r"at\s+(?P<step>\d+) :: loss=(?P<loss>[^ ;]+)"],
)
def test_both_forms_read_the_same(tmp_path: Path, pattern: str) -> None:
    path = _log(tmp_path, "begin\nat 1 :: loss=2.5\nat  2 :: loss=nan\nat 3 :: loss=1,234.5\nat 4 :: loss=none\nend\n")
    log = logs.read(path, from_pattern(pattern))
    assert log.format == "pattern"
    assert log.series["loss"].steps.tolist() == [1, 2, 3]
    assert str(log.series["loss"].values.tolist()) == "[2.5, nan, 1234.5]"
    assert log.series["loss"].lines.tolist() == [2, 3, 4]
    assert log.unread == 3


def test_names_with_spaces_and_units(tmp_path: Path) -> None:
    path = _log(tmp_path, "it 1 L 2.5 t 20ms\nit 2 L 2.0 t 30ms\n")
    log = logs.read(path, from_pattern("it {step} L {train loss} t {step time}"))
    assert log.series["train loss"].values.tolist() == [2.5, 2.0]
    assert log.series["step time"].values.tolist() == pytest.approx([0.02, 0.03])


def test_what_is_said_in_words_is_found_as_well(tmp_path: Path) -> None:
    path = _log(tmp_path, "x 1 y 2.5\nslurmstepd: error: *** JOB 1 ON g CANCELLED AT 1 DUE TO TIME LIMIT ***\nx 2 y")
    log = logs.read(path, from_pattern("x {step} y {loss}"))
    assert [fact.fields["how"] for fact in log.facts] == ["time-limit"]
    assert len(log.series["loss"]) == 1


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("x" * 5000, "too long"),
        (r"(?P<step>\d+", "not a regular expression"),
        (r"(?P<loss>[)", "not a regular expression"),
        ("step loss", "names no number"),
        (r"(?P<loss>(a+)+b)", "for ever"),
        (r"(?P<loss>(\d*)*x)", "for ever"),
        (r"(?P<step>\d+)(?:.*)* (?P<loss>\S+)", "for ever"),
        (r"(?P<loss>(a|a)+)+", "for ever"),
        (r"(?P<loss>\d+)" + ".*x" * 12, "for ever"),
        (r"(?P<loss>\d+) \1", "for ever"),
    ],
)
def test_a_pattern_that_cannot_be_used_says_why(pattern: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_pattern(pattern)
    assert said in str(caught.value)
    assert caught.value.hint


def test_it_can_be_sent_to_another_process() -> None:
    reader = pickle.loads(pickle.dumps(from_pattern("step {step} loss {loss}")))
    assert reader.names == {"g0": "step", "g1": "loss"}


def test_a_long_line_takes_no_time(tmp_path: Path) -> None:
    path = _log(tmp_path, "a 1 " * 500_000 + "\n")
    begin = time.perf_counter()
    logs.read(path, from_pattern(r"(?P<step>\d+).*loss=(?P<loss>\S+)"))
    assert time.perf_counter() - begin < 10
