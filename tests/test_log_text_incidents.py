"""What a log says in words: each kind of end, whatever stands before it in the line."""

from __future__ import annotations

import time
from typing import Any

import pytest

from brickprof.logs.reading.model import Fact
from brickprof.logs.reading.templates import Engine


def _facts(text: str, parts: int = 1) -> list[Fact]:
    """The facts, when the text comes in so many chunks of lines."""
    lines = text.encode().splitlines(keepends=True)
    engine, found, size = Engine(), [], -(-len(lines) // parts)
    for begin in range(0, len(lines), size):
        found += engine.take(b"".join(lines[begin : begin + size]), begin + 1)
    return [item for item in [*found, *engine.end()] if isinstance(item, Fact)]


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (
            "slurmstepd: error: *** JOB 1 ON g1 CANCELLED AT 2024-10-10T18:59:58 DUE TO TIME LIMIT ***",
            "ended", {"how": "time-limit"},
        ),
        (
            "slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2024-10-10T18:59:58 DUE TO PREEMPTION ***",
            "ended", {"how": "preempted"},
        ),
        ("slurmstepd: error: *** JOB 1 ON g1 CANCELLED AT 2024-10-10T18:59:58 ***", "ended", {"how": "cancelled"}),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.", "ended", {"how": "oom-killed"}),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 1.batch cgroup.", "ended", {"how": "oom-killed"}),
        ("srun: error: o0616: task 0: Out Of Memory", "ended", {"how": "oom-killed"}),
        ("[12.3] Out of memory: Killed process 77 (python) total-vm:1kB", "ended", {"how": "oom-killed"}),
        ("Killed", "ended", {"how": "signal", "signal": "SIGKILL"}),
        (
            "run.sh: line 3: 12345 Killed                  python train.py",
            "ended", {"how": "signal", "signal": "SIGKILL"},
        ),
        ("Segmentation fault (core dumped)", "ended", {"how": "segfault", "signal": "SIGSEGV"}),
        ("Aborted (core dumped)", "ended", {"how": "abort", "signal": "SIGABRT"}),
        ("  exitcode  : -9 (pid: 12)", "ended", {"how": "signal", "signal": "SIGKILL"}),
        (
            "failed (exitcode: -11) local_rank: 0 (pid: 3) of binary: python",
            "ended", {"how": "segfault", "signal": "SIGSEGV"},
        ),
        ("  traceback : Signal 6 (SIGABRT) received by PID 9", "ended", {"how": "abort", "signal": "SIGABRT"}),
        ("WARNING Received SIGTERM: 15, forwarding", "ended", {"how": "signal", "signal": "SIGTERM"}),
        ("NVRM: Xid (PCI:0000:c1:00): 79, pid=3, GPU has fallen off the bus.", "device", {"what": "xid", "xid": 79}),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "device", {"what": "illegal-address"}),
        ("RuntimeError: CUDA error: device-side assert triggered", "device", {"what": "assert"}),
        ("CUDA error: uncorrectable ECC error encountered", "device", {"what": "ecc"}),
        ("RuntimeError: Detected mismatch between collectives on ranks.", "collective", {"what": "mismatch"}),
        ("ncclRemoteError: A call failed possibly due to a network error", "collective", {"what": "abort"}),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "exception", {"type": "OutOfMemoryError"},
        ),
        ("RuntimeError: expected scalar type Half but found Float", "exception", {"type": "RuntimeError"}),
        ("OSError: [Errno 28] No space left on device", "exception", {"type": "OSError"}),
        ("KeyboardInterrupt", "ended", {"how": "cancelled", "signal": "SIGINT"}),
        ("Training completed. Do not forget to share your model.", "finished", {}),
        ("Finished training in 12 s", "finished", {}),
        (
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
            "overflow", {"to": 32768.0},
        ),
        (
            "saving checkpoint at iteration 1000 to /ckpt/run1",
            "checkpoint", {"op": "save", "step": 1000, "file": "/ckpt/run1"},
        ),
        ("Resuming from checkpoint out/checkpoint-500", "checkpoint", {"op": "load", "step": 500}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "[rank3]: ", "step 7/10 | loss 2."])
def test_each_kind(line: str, kind: str, fields: dict[str, Any], before: str) -> None:
    log = "step 5/10 | loss 2.5\nstep 6/10 | loss 2.4\n"
    facts = _facts(f"{log}{before}{line}\n")
    if before.startswith("step") and line.startswith(("Killed", "Aborted", "Segmentation")):
        assert facts == []  # what a shell says stands on a line of its own
        return
    assert [fact.kind for fact in facts] == [kind]
    assert fields.items() <= facts[0].fields.items()
    assert facts[0].line == 3
    assert facts[0].rank == (3 if "rank3" in before else None)


@pytest.mark.parametrize(
    "line",
    [
        "Killed by a dragon in chapter 3 of the sample",
        "step 5 loss 2.5 sigma 3",
        "We use gradient checkpointing",
        "Loading checkpoint shards: 100%|##| 4/4 [00:05<00:00,  1.3s/it]",
        "using NCCL_DEBUG=INFO",
        "torch.cuda.OutOfMemoryErrors so far: none",
        "training has not finished",
    ],
)
def test_what_only_sounds_like_one(line: str) -> None:
    assert _facts(line + "\n") == []


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 10, in <module>
    main()
    ^^^^^^
  File "/home/u/model.py", line 77, in forward
    return a @ b
           ~~^~~
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_a_traceback_over_chunks(parts: int) -> None:
    (fact,) = _facts("step 1 loss 2.5\n" + TRACEBACK, parts)
    assert fact.fields == {
        "type": "OutOfMemoryError",
        "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "frames": ["/home/u/train.py:10 in <module>", "/home/u/model.py:77 in forward"],
    }
    assert fact.line == 2


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "{}: "])
def test_tracebacks_of_several_ranks_at_a_time(prefix: str) -> None:
    lines = TRACEBACK.splitlines()
    text = "".join(prefix.format(rank) + line + "\n" for line in lines for rank in (2, 0, 1))
    facts = _facts(text)
    assert sorted((fact.rank or 0, len(fact.fields["frames"])) for fact in facts) == [(0, 2), (1, 2), (2, 2)]
    assert {fact.fields["type"] for fact in facts} == {"OutOfMemoryError"}


def test_an_exception_says_more_than_its_type() -> None:
    text = TRACEBACK.replace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "{}")
    facts = _facts(text.format("RuntimeError: CUDA error: an illegal memory access was encountered"))
    assert [(fact.kind, fact.fields.get("what") or fact.fields["type"]) for fact in facts] == [
        ("exception", "RuntimeError"), ("device", "illegal-address"),
    ]  # fmt: skip
    facts = _facts(text.format("KeyboardInterrupt"))
    assert [fact.kind for fact in facts] == ["exception", "ended"]


def test_a_log_that_ends_within_a_traceback() -> None:
    (fact,) = _facts("\n".join(TRACEBACK.splitlines()[:3]) + "\n")
    assert fact.kind == "exception"
    assert fact.fields["type"] == ""
    assert fact.fields["frames"] == ["/home/u/train.py:10 in <module>"]


def test_a_watchdog_says_which_collective_it_was() -> None:
    (fact,) = _facts(
        "[rank4]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, Timeout(ms)=600000) ran for 600060 milliseconds\n"
    )
    assert (fact.kind, fact.rank) == ("collective", 4)
    assert {"what": "timeout", "op": "ALLREDUCE", "seq": 1580, "after_ms": 600060}.items() <= fact.fields.items()


def test_no_escape_sequence_is_in_a_fact() -> None:
    facts = _facts("RuntimeError: \x1b]0;title\x07bad \x9b31m \u202e thing\nslurmstepd: error: oom_kill \x00\x08 x\n")
    shown = str([fact.fields for fact in facts])
    assert len(facts) == 2
    assert not any(byte in shown for byte in "\x1b\x9b\u202e\x00\x08")


def test_a_storm_of_the_same_is_bounded_and_cheap() -> None:
    text = "".join(f"[rank{n % 8}]: RuntimeError: boom {n}\n" for n in range(20_000))
    begin = time.perf_counter()
    facts = _facts(text)
    assert 0 < len(facts) <= 1000
    assert time.perf_counter() - begin < 20
