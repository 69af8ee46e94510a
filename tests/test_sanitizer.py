"""compute-sanitizer: its text becomes events, those become findings with bricks; and without it one clear error."""

from __future__ import annotations

import random
import stat

import pytest
from launching import events, run, script
from making import START, Made

from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.errors import UsageError
from brickprof.launch import sanitizer as launch
from brickprof.launch.complaints import Reader
from brickprof.launch.target import Target
from brickprof.records import Span
from brickprof.rules import sanitizer
from brickprof.rules.story import Story

MEMCHECK = """\
========= COMPUTE-SANITIZER
step 1 loss 3.2
========= Invalid __global__ write of size 4 bytes
=========     at _scale_rows+0x2c0 in scale.py:14
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x7f2c4a000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2c4a000000 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame:cuLaunchKernel [0x2dc0ab]
=========                in /usr/lib/libcuda.so.1
=========     Host Frame:_launch [0x1a2b]
=========
========= Invalid __global__ write of size 4 bytes
=========     at _scale_rows+0x2c0 in scale.py:14
=========     by thread (4,0,0) in block (1,0,0)
=========     Address 0x7f2c4a000404 is out of bounds
=========
========= Invalid __shared__ read of size 8 bytes
=========     at void ns::gather<float, 4>(float const*, int)+0x70
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x3 is misaligned
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cuX.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame:cudaFree [0x4d41]
=========
step 2 loss 3.1
========= ERROR SUMMARY: 4 errors
"""
OLD = """\
========= Invalid __global__ read of size 4
=========     at 0x000000c0 in file.cu:12:gather(float*)
=========     by thread (1,0,0) in block (2,0,0)
=========     Address 0x5 is out of bounds
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum_kernel(int *, int *)+0x260 in sum.cu:40
=========     and Read access at sum_kernel(int *, int *)+0x320 in sum.cu:43 [992 hazards]
=========     and Write access at sum_kernel(int *, int *)+0x340 in sum.cu:44 [8 hazards]
=========
========= Warning: Race reported between Read access at other(int *)+0x10 in sum.cu:9
=========     and Write access at other(int *)+0x20 in sum.cu:10 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
HAZARD = """\
========= ERROR: Potential WAW hazard detected at __shared__ 0x8 in block (0,0,0) :
=========     Write Thread (1,0,0) at 0x00000088 in race.cu:13:wide(void)
=========     Write Thread (0,0,0) at 0x00000088 in race.cu:13:wide(void)
=========     Current Value : 0, Incoming Value : 2
=========
"""
INITCHECK = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at adamw_step+0x70 in adamw.py:31
=========     by thread (65,0,0) in block (0,0,0)
=========     Address 0x7fd1a2000104
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= Barrier error detected. Divergent thread(s) in warp
=========     at reduce(float *)+0x1a0 in reduce.cu:21
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


def read(text):
    reader = Reader()
    return [*reader.feed(text), *reader.finish()], reader.summary


def test_an_access_out_of_bounds_is_read_with_all_that_is_known():
    found, summary = read(MEMCHECK)
    assert [each.error for each in found] == ["invalid", "invalid", "misaligned", "api"] and summary.errors == 4
    fields = found[0].fields()
    assert (fields["access"], fields["space"], fields["size"]) == ("write", "__global__", 4)
    assert (fields["kernel"], fields["offset"], fields["file"]) == ("_scale_rows", "0x2c0", "scale.py:14")
    assert (fields["thread"], fields["block"], fields["state"]) == ("(3,0,0)", "(1,0,0)", "out of bounds")
    assert fields["near"].startswith("1 bytes after the nearest allocation")
    assert fields["host"] == ["cuLaunchKernel [0x2dc0ab]", "_launch [0x1a2b]"]
    assert found[0].key == found[1].key != found[2].key
    assert found[2].known["kernel"] == "void ns::gather<float, 4>(float const*, int)"


def test_the_older_form_is_read_too():
    (found,), _ = read(OLD)
    assert (found.known["kernel"], found.known["file"]) == ("gather(float*)", "file.cu:12")


def test_hazards_uninitialised_reads_and_barriers():
    (error, warning), summary = read(RACECHECK)
    assert summary.errors == 2 and (error.known["hazards"], len(error.known["others"])) == (1000, 2)
    assert error.known["kernel"] == "sum_kernel(int *, int *)" and warning.known["level"] == "warning"
    (hazard,), _ = read(HAZARD)
    assert (hazard.known["hazard"], hazard.known["kernel"], len(hazard.known["others"])) == ("WAW", "wide(void)", 2)
    (unwritten,), _ = read(INITCHECK)
    assert (unwritten.error, unwritten.known["kernel"]) == ("uninitialised", "adamw_step")
    (barrier,), _ = read(SYNCCHECK)
    assert (barrier.error, barrier.known["kernel"]) == ("barrier", "reduce(float *)")


def test_text_may_be_cut_anywhere():
    rng = random.Random(0)
    whole = [each.fields() for each in read(MEMCHECK + RACECHECK)[0]]
    for _ in range(50):
        text, reader, found = MEMCHECK + RACECHECK, Reader(), []
        while text:
            size = rng.randint(1, 200)
            found += [each.fields() for each in reader.feed(text[:size])]
            text = text[size:]
        found += [each.fields() for each in reader.finish()]
        assert found == whole


@pytest.mark.parametrize("cut", range(0, len(MEMCHECK), 41))
def test_a_text_that_ends_too_early_or_is_garbled_raises_nothing(cut):
    read(MEMCHECK[:cut])
    found, _ = read(
        MEMCHECK[cut:] + "========= \x00\x1b[2J\n========= Something new happened\n=========     somewhere\n"
    )
    assert found[-1].error == "other" and found[-1].text == "Something new happened"


# -- finding and starting it


def program(folder, text=MEMCHECK):
    """Something that behaves like compute-sanitizer: writes its log, runs the rest of the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").write_text(text)
    file = folder / "compute-sanitizer"
    file.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in\n"
        '  --log-file) log=$(echo "$2" | sed "s/%p/$$/"); shift 2;;\n'
        "  --tool|--target-processes) shift 2;;\n  *) break;; esac; done\n"
        f'"$@"; code=$?\ncat {folder}/text >> "$log"\nexit $code\n'
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_it_is_found_on_path_and_in_cuda_home(tmp_path):
    file = program(tmp_path / "bin")
    assert launch.found({"PATH": str(tmp_path / "bin")}) == str(file)
    assert launch.found({"PATH": "/nowhere", "CUDA_HOME": str(tmp_path)}) == str(file)


def test_without_it_one_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_places", lambda given: iter(()))
    with pytest.raises(UsageError, match=r"not installed here.*CUDA toolkit"):
        launch.found({})


def test_the_target_runs_behind_it_and_its_words_stay_the_same(tmp_path):
    target = Target(("/usr/bin/python3", "t.py", "--tool", "x"), "t.py", "t", python=True)
    made = launch.behind(target, "racecheck", "/opt/compute-sanitizer", tmp_path)
    assert made.command[:3] == ("/opt/compute-sanitizer", "--tool", "racecheck")
    assert made.command[-4:] == target.command and made.script == "t.py"
    with pytest.raises(UsageError, match="memcheck, racecheck"):
        launch.behind(target, "memchek", "x", tmp_path)
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}
    launch.prepare("memcheck", environment)
    assert environment == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}  # the user's own choice
    launch.prepare("racecheck", other := {})
    assert other == {}


def test_a_run_behind_it_records_what_it_said(tmp_path):
    program(tmp_path / "bin")
    script(tmp_path, "import os, sys\nprint(os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'], sys.argv[1:])\nsys.exit(3)")
    done = run(
        ["--sanitizer", "memcheck", "t.py", "--lr", "1"], tmp_path, CUDA_HOME=str(tmp_path), PATH="/usr/bin:/bin"
    )
    assert done.returncode == 3 and done.stdout == "1 ['--lr', '1']\n", done.stderr
    told = [event.fields for event in events(tmp_path, "sanitizer")]
    assert [fields["what"] for fields in told] == ["start", "error", "error", "error", "summary"]
    assert told[1]["kernel"] == "_scale_rows" and told[-1]["errors"] == 4 and told[-1]["complaints"] == 4
    assert "_scale_rows" in done.stderr and "C-BUFSIZE-001" in done.stderr


def test_wrong_tools_are_wrong_usage(tmp_path):
    script(tmp_path, "pass")
    done = run(["--sanitizer", "memchk", "t.py"], tmp_path)
    assert done.returncode == 2 and "memcheck, racecheck, initcheck, synccheck" in done.stderr
    assert not (tmp_path / "brickprof-runs").exists()


# -- findings


def sanitized(text, tool, *, kernel=""):
    made = Made("blocks.0", "blocks.1")
    made.healthy(3)
    if kernel:
        block, brick = Brick(Kind.BLOCK, "blocks.1", "Net"), Brick(Kind.KERNEL, kernel)
        made.records.append(Span(block, 1, START, START + 90, "forward", id=900))
        made.records.append(Span(brick, 1, START + 10, START + 20, "forward", id=901, parent=900))
    found, summary = read(text)
    made.event("sanitizer", 0, rank=-1, what="start", tool=tool)
    for each in found:
        made.event("sanitizer", 1, rank=-1, what="error", tool=tool, **each.fields())
    ended = {} if summary.errors is None else {"errors": summary.errors}
    made.event("sanitizer", 2, rank=-1, what="summary", tool=tool, **ended)
    return made


def judge(made, rule):
    judged, run = rule(), made.run()
    for record in run.records():
        judged.feed(record)
    return judged.judge(Story.of(run), Terms().contract(rule.contract))


def test_an_access_is_joined_to_its_kernel_brick_and_to_the_block_that_launched_it():
    made = sanitized(MEMCHECK, "memcheck", kernel="_scale_rows")
    first = judge(made, sanitizer.Access).violations[0]
    assert (first.cause, first.brick, first.granularity) == ("out-of-bounds", "_scale_rows", "kernel")
    assert "launched by blocks.1" in first.symptom and "thread (3,0,0)" in first.whys[0].finding
    finding = diagnose(made.run()).findings[0]
    assert (finding.contract, finding.root_cause, finding.brick) == ("C-BUFSIZE-001", "out-of-bounds", "_scale_rows")


def test_an_exception_that_follows_is_the_same_incident():
    made = sanitized(MEMCHECK.partition("========= Invalid __shared__")[0], "memcheck", kernel="_scale_rows")
    said = "CUDA error: unspecified launch failure; an illegal memory access was encountered"
    made.event("exception", 2, type="torch.AcceleratorError", message=said, frames=[])
    grave = [finding for finding in diagnose(made.run()).findings if finding.severity is Severity.ERROR]
    assert {finding.brick for finding in grave} == {"_scale_rows"}


def test_a_kernel_that_is_no_brick_goes_by_its_own_name():
    violations = judge(sanitized(MEMCHECK, "memcheck"), sanitizer.Access).violations
    assert violations[2].brick == "gather" and "misaligned" in violations[2].symptom


@pytest.mark.parametrize(
    ("text", "tool", "rule", "cause", "brick", "severities"),
    [
        (RACECHECK, "racecheck", sanitizer.Races, "kernel-race", "sum_kernel", [Severity.ERROR, Severity.WARNING]),
        (SYNCCHECK, "synccheck", sanitizer.Races, "kernel-race", "reduce", [Severity.ERROR]),
        (INITCHECK, "initcheck", sanitizer.Unwritten, "uninitialised-read", "adamw_step", [Severity.ERROR]),
    ],
)
def test_races_barriers_and_unwritten_memory(text, tool, rule, cause, brick, severities):
    result = judge(sanitized(text, tool), rule)
    assert result.verdict is Verdict.FAIL and [each.severity for each in result.violations] == severities
    assert (result.violations[0].cause, result.violations[0].brick) == (cause, brick)


def test_silence_is_a_pass_only_where_the_tool_ran_to_its_end():
    quiet = sanitized("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "memcheck")
    assert judge(quiet, sanitizer.Access).verdict is Verdict.PASS
    assert judge(quiet, sanitizer.Races).verdict is Verdict.NOT_EVALUATED
    cut_off = sanitized("========= COMPUTE-SANITIZER\n", "memcheck")
    assert judge(cut_off, sanitizer.Access).verdict is Verdict.NOT_EVALUATED
    plain = Made()
    plain.healthy(3)
    result = judge(plain, sanitizer.Access)
    assert result.verdict is Verdict.NOT_EVALUATED and "--sanitizer memcheck" in result.why
