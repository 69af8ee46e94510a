"""``--pattern``: a reader that the user describes."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from brickprof import logs
from brickprof.cli.app import main
from brickprof.errors import UnreadableInput, UsageError
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
        ("step {} loss", "names no number"),
        ("step {step loss {loss}", "lacks a '}'"),
        ("step {step} loss loss}", "lacks a '{'"),
        ("at {step}", "nothing but the step"),
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
    with pytest.raises(UnreadableInput):
        logs.read(path, from_pattern(r"(?P<step>\d+).*loss=(?P<loss>\S+)"))
    assert time.perf_counter() - begin < 10


def test_braces_of_the_line_itself_come_in_pairs(tmp_path: Path) -> None:
    path = _log(tmp_path, "{'loss': 2.5, 'it': 1}\n{'loss': 2.0, 'it': 2}\n")
    log = logs.read(path, from_pattern("{'loss': {loss}, 'it': {step}}"))
    assert log.series["loss"].steps.tolist() == [1, 2] and log.series["loss"].values.tolist() == [2.5, 2.0]


def test_empty_braces_are_anything(tmp_path: Path) -> None:
    path = _log(tmp_path, "it 1 of 90, L=2.5 g=1\nit 2 of many, L=2.0 g=2\n")
    log = logs.read(path, from_pattern("it {step} of {}, L={loss} g={grad_norm}"))
    assert log.series["loss"].values.tolist() == [2.5, 2.0] and log.series["grad_norm"].steps.tolist() == [1, 2]


def test_a_pattern_that_fits_nowhere_shows_the_line_it_failed_on(tmp_path: Path) -> None:
    path = _log(tmp_path, "\nstep 1 loss 2.5\nstep 2 loss 2.4\n")
    with pytest.raises(UnreadableInput) as caught:
        logs.read(path, from_pattern("it {step} L={loss}"))
    assert "line 2" in caught.value.message and "step 1 loss 2.5" in caught.value.message
    assert "{step}" in caught.value.hint


def test_a_pattern_that_fits_nowhere_and_an_empty_one_are_wrong_usage(tmp_path: Path, capsys) -> None:
    path = str(_log(tmp_path, "step 1 loss 2.5\n"))
    for pattern in ("it {step} L={loss}", "", "  ", "step {step loss {loss}"):
        assert main(["analyze", path, "--pattern", pattern]) == 2
        assert "{loss}" in capsys.readouterr().err
