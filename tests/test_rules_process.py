"""How processes end: which ends are findings, and how severe."""

from __future__ import annotations

import pytest
from making import Made

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.rules.process import Process


def ended(code: int = 0, kind: str = "ok", signal: int | None = None, name: str = "", **fields) -> Made:
    made = Made()
    made.event("start", 0, rank=-1, pid=7, memory_limit=None, memory_total=8_000_000_000)
    made.healthy(5)
    text = f"the script exited {code}"
    told = {
        "code": code,
        "class": kind,
        "signal": signal,
        "name": name,
        "text": text,
        "seconds": 9.0,
        **fields,
    }
    made.event("exited", 0, rank=-1, **told)
    return made


def judge(made: Made):
    rule = Process()
    for record in made.records:
        rule.feed(record)
    return rule.finish(None)


def test_an_exit_with_zero_is_fine():
    result = judge(ended())
    assert (result.verdict, result.violations) == (Verdict.PASS, ())


@pytest.mark.parametrize(
    ("kind", "signal", "name", "what"),
    [
        ("killed", 9, "SIGKILL", "killed"),
        ("out_of_memory", 9, "SIGKILL", "out-of-memory"),
        ("aborted", 6, "SIGABRT", "crashed-by-signal"),
        ("segmentation_fault", 11, "SIGSEGV", "crashed-by-signal"),
        ("signalled", 34, "SIGRTMIN", "killed"),
    ],
)
def test_a_signal_that_nobody_asked_for_is_an_error(kind, signal, name, what):
    (violation,) = judge(ended(128 + signal, kind, signal, name)).violations
    assert (violation.what, violation.severity) == (what, Severity.ERROR)
    assert name in violation.symptom
    assert violation.first_step == 4


@pytest.mark.parametrize(
    ("kind", "signal", "name"),
    [("interrupted", 2, "SIGINT"), ("terminated", 15, "SIGTERM"), ("hung_up", 1, "SIGHUP")],
)
def test_a_stop_that_was_asked_for_is_information(kind, signal, name):
    (violation,) = judge(ended(128 + signal, kind, signal, name)).violations
    assert violation.severity is Severity.INFO


def test_a_kill_after_asking_twice_is_information():
    (violation,) = judge(ended(137, "killed", 9, "SIGKILL", killed_by_us=True)).violations
    assert violation.severity is Severity.INFO


def test_ctrl_c_is_information():
    made = ended(130, "failed")
    made.event("exception", 4, type="KeyboardInterrupt", message="")
    (violation,) = judge(made).violations
    assert violation.severity is Severity.INFO
    assert diagnose(made.run()).verdict is Verdict.PASS


def test_an_exception_is_an_error_and_names_type_message_and_brick():
    made = ended(1, "failed")
    made.event("exception", 4, type="ValueError", message="shapes", brick=2)
    (violation,) = judge(made).violations
    assert (violation.what, violation.severity, violation.brick) == ("crashed", Severity.ERROR, "body")
    assert violation.symptom == "the script raised ValueError: shapes in step 4 (body)"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("MemoryError", ""),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: ...",
        ),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: you ...",
        ),
    ],
)
def test_an_exception_about_memory_is_out_of_memory(kind, message):
    made = ended(1, "failed")
    made.event("exception", 4, type=kind, message=message)
    assert judge(made).violations[0].what == "out-of-memory"


def test_exit_codes_of_the_script_are_a_warning_at_most():
    made = ended(3, "failed")
    made.event("exception", 4, type="SystemExit", message="3", code=3)
    (violation,) = judge(made).violations
    assert (violation.what, violation.severity) == ("exited", Severity.WARNING)
    assert diagnose(made.run()).verdict is Verdict.PASS


def test_ranks_that_fail_together_are_one_finding():
    made = ended(1, "failed")
    made.event("exception", 4, type="RuntimeError", message="first")
    made.event("exception", 4, rank=1, type="RuntimeError", message="connection closed by peer")
    (violation,) = judge(made).violations
    assert "first" in violation.symptom


def test_a_hang_that_passed_is_no_finding():
    made = Made()
    made.event("hang", 3, rank=-1, seconds=300.0, place="body", ranks=[])
    made.healthy(5)
    assert judge(made).violations == ()


def test_a_hang_that_stayed_is_an_error_and_says_where():
    made = Made()
    made.healthy(5)
    made.event("hang", 4, rank=-1, seconds=300.0, place="body", ranks=[])
    (violation,) = judge(made).violations
    assert (violation.what, violation.brick) == ("hung", "body")
    assert "for 300 s in step 4 (body)" in violation.symptom


@pytest.mark.parametrize(("rss", "cause"), [(7.9e9, "out-of-memory"), (1.0e9, "killed")])
def test_a_sigkill_is_out_of_memory_only_when_memory_was_full(rss, cause):
    made = Made()
    made.event("start", 0, rank=-1, memory_limit=8_000_000_000, memory_total=64_000_000_000)
    made.healthy(5)
    for part in range(8):
        made.event("memory", 0, rank=-1, rss=rss * (part + 1) / 8)
    made.event("exited", 0, rank=-1, code=137, signal=9, name="SIGKILL", peak_rss=rss, **{"class": "killed"})
    (finding,) = diagnose(made.run()).findings
    assert finding.root_cause == cause


def test_an_exception_that_follows_a_nan_is_part_of_that_finding():
    made = Made()
    made.healthy(5)
    made.step(5, loss=float("nan"))
    made.event("exception", 5, type="RuntimeError", message="loss is nan")
    made.event("exited", 0, rank=-1, code=1, text="the script exited 1", **{"class": "failed"})
    (finding,) = diagnose(made.run()).findings
    assert finding.contract == "C-TRAINSTABLE-001"
    assert "then the script raised RuntimeError" in finding.symptom
