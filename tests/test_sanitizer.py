"""compute-sanitizer: its text becomes events, those become findings with bricks; and without it one clear error."""

from __future__ import annotations

import os
import random
import signal
import stat
import sys
import time
from collections import Counter

import pytest
from launching import alive, end, events, finished, recorded, run, script, script_pid, start, until
from making import START, Made

from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.errors import UsageError
from brickprof.launch import processes
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
# The forms of NVIDIA's manual (2024 to 2026), and of cuda-memcheck where they differ.
WARP_LEVEL = """\
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at warp_sum(int *, int *)+0x90 in /home/me/warp.cu:44
=========     Read Thread (32,0,0) at warp_sum(int *, int *)+0x120 in /home/me/warp.cu:56
=========     Current Value : 35
=========
========= RACECHECK SUMMARY: 100 hazards displayed (0 errors, 4528 warnings)
"""
OLD_RACE = """\
========= CUDA-MEMCHECK
========= WARN:(Warp Level Programming) Potential WAR hazard detected at __shared__ 0x3 in block (0, 0, 0) :
=========     Read Thread (31, 0, 0) at 0x00000170 in ./race.cu:4:twist(int*, int*)
=========     Write Thread (0, 0, 0) at 0x000001a8 in ./race.cu:4:twist(int*, int*)
=========     Current Value : 0, Incoming Value : 0
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame:/lib64/libcuda.so.1 (cuLaunchKernel + 0x346) [0x297db6]
=========
========= WARN: Race reported between Read access at 0x00000170 in ./race.cu:4:twist(int*, int*)
=========     and Write access at 0x00000148 in ./race.cu:3:twist(int*, int*) [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)
"""
BOTH_GRADES = """\
========= Warning: Race reported between Write access at blend(float *, int)+0x550 in b.cu:100
=========     and Read access at blend(float *, int)+0x580 in b.cu:107 [65536 hazards]
=========
========= Error: Race reported between Write access at blend(float *, int)+0x550 in b.cu:100
=========     and Read access at blend(float *, int)+0x580 in b.cu:107 [65536 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
CLUSTER = """\
========= Potential invalid __shared__ read of size 4 bytes
=========     at remote(int *, int)+0x170 in cluster.cu:10
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x1000400 is located in a block that might not have entered yet
=========
========= Deadlock detected in Cuda::barrier wait called by threads starting at (0,0,0) in block (1,0,0), (active \
mask: 0xffffffff), barrier address: 0x0 at stuck+0x1190 in app.cu:98
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
COPIES = """\
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at shared_sum()+0x1a0 in sums.cu:7
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x0
=========
========= Host API memory access error at host access to 0x1303fd1400 of size 25600 bytes
=========     Uninitialized access at 0x1303fd4600 on access by cudaMemcpy source.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame: cuMemcpyDtoH_v2 [0x29200c] in libcuda.so.1
=========     Host Frame: at::native::copy_kernel_cuda [0xcafe] in libtorch_cuda.so
=========
========= Host API memory access error at host access to 0x1303fe1400 of size 512 bytes
=========     Uninitialized access at 0x1303fe1480 on access by cudaMemcpy source.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame: cuMemcpyDtoH_v2 [0x29200c] in libcuda.so.1
=========     Host Frame: at::native::copy_kernel_cuda [0xcafe] in libtorch_cuda.so
=========
========= ERROR SUMMARY: 3 errors
"""
FRAMES = """\
========= Barrier error detected. Invalid arguments
=========     at __cuda_sm70_warpsync+0x30
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame:__syncwarp(unsigned int)+0xf0 in /usr/local/cuda/include/sm_30_intrinsics.hpp:110
=========         Device Frame:half_a_warp(int *)+0x3c0 in /home/me/sync.cu:48
=========
========= Barrier error detected. Divergent thread(s) in block.
=========     at [clone rows(int *, int *)] outlined()+0x11f0 in test.cu:42
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: rows(int *, int *)+0xe40 in test.cu:60
=========
========= Barrier error detected. Divergent thread(s) in block
=========     at 0x000008f0 in /home/me/my code/sync.cu:20:glob(int*)
=========     by thread (63,0,0) in block (0,0,0)
=========     Device Frame:/home/me/my code/sync.cu:20:glob(int*) (glob(int*) : 0x8f0)
=========
========= Warpgroup MMA sequence error detected. Not all warps agree.
=========     at tile(float *)+0x90 in mma.cu:5
=========
========= ERROR SUMMARY: 4 errors
"""
MANY = """\
========= Invalid __global__ write of size 4 bytes
=========     at crooked(char *, int)+0x380 in memory.cu:61
=========     by thread (65,0,0) in block (0,0,0)
=========     Access to 0x7bd889c03041 is misaligned
=========     and is inside the nearest allocation at 0x7bd889c03000 of size 1,024 bytes
========= ERROR SUMMARY: 769 errors
========= ERROR SUMMARY: 669 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
CALLS = """\
========= COMPUTE-SANITIZER
========= Program hit invalid copy direction for memcpy (error 21) on CUDA API call to cudaMemcpy.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame: cudaMemcpy [0x4d41] in libcudart.so.12
=========
========= CUDA API Error: Copy is larger than memobj size, for destination operand
=========
========= Leaked 1,024 bytes at 0x7879c0800000
=========     Saved host backtrace up to driver entry point at allocation time
=========     Host Frame: cudaMalloc [0x56624] in memcheck_demo
=========
========= Leaked 16 bytes at 0x4012ffff6 on the device heap
=========
========= LEAK SUMMARY: 1040 bytes leaked in 2 allocations
========= ERROR SUMMARY: 4 errors
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
    assert fields["host"] == ["cuLaunchKernel [0x2dc0ab] in /usr/lib/libcuda.so.1", "_launch [0x1a2b]"]
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


def test_hazards_of_one_warp_are_warnings_and_have_their_kernel():
    (hazard,), summary = read(WARP_LEVEL)
    assert (hazard.error, hazard.known["level"], hazard.known["hazard"]) == ("race", "warning", "RAW")
    assert (hazard.known["kernel"], hazard.known["file"]) == ("warp_sum(int *, int *)", "/home/me/warp.cu:44")
    assert [each["offset"] for each in hazard.known["others"]] == ["0x90", "0x120"] and summary.errors == 4528
    (hazard, race), summary = read(OLD_RACE)
    assert {each.known["level"] for each in (hazard, race)} == {"warning"} and summary.errors == 2
    assert {each.known["kernel"] for each in (hazard, race)} == {"twist(int*, int*)"}
    assert hazard.known["block"] == "(0, 0, 0)" and race.known["hazards"] == 4


def test_an_error_at_a_place_that_gave_a_warning_first_is_told_too():
    (warning, error), _ = read(BOTH_GRADES)
    assert warning.key != error.key and (warning.known["level"], error.known["level"]) == ("warning", "error")


def test_remote_blocks_and_deadlocks():
    (absent, stuck), _ = read(CLUSTER)
    assert (absent.error, absent.known["kernel"], absent.known["access"]) == ("absent", "remote(int *, int)", "read")
    assert (stuck.error, stuck.known["kernel"], stuck.known["file"]) == ("barrier", "stuck", "app.cu:98")
    assert stuck.known["block"] == "(1,0,0)"


def test_copies_of_memory_that_nobody_wrote_are_one_fault_wherever_it_lies():
    (shared, first, second), _ = read(COPIES)
    assert (shared.error, shared.known["space"]) == ("uninitialised", "__shared__")
    assert (first.error, first.known["by"], first.known["size"]) == ("unwritten-copy", "cudaMemcpy source", 25600)
    assert first.key == second.key and first.host[1].endswith("in libtorch_cuda.so")


def test_the_kernel_is_the_outermost_frame_of_the_device():
    found, _ = read(FRAMES)
    assert [each.error for each in found] == ["barrier"] * 4
    kernels = [each.known["kernel"] for each in found]
    assert kernels == ["half_a_warp(int *)", "rows(int *, int *)", "glob(int*)", "tile(float *)"]
    assert found[0].known["file"] == "/home/me/sync.cu:48" and found[0].known["inside"] == "__cuda_sm70_warpsync+0x30"
    assert (found[1].known["inside"], found[1].known["offset"]) == ("outlined()", "0x11f0")
    assert found[2].known["file"] == "/home/me/my code/sync.cu:20"


def test_what_was_not_printed_does_not_take_the_place_of_what_was_counted():
    (crooked,), summary = read(MANY)
    assert (summary.errors, summary.unprinted) == (769, 669)
    assert (crooked.error, crooked.known["state"]) == ("misaligned", "misaligned")


def test_calls_that_fail_and_leaks():
    found, summary = read(CALLS)
    assert [each.error for each in found] == ["api", "api", "leak", "leak"] and summary.errors == 4
    assert (found[0].known["name"], found[0].known["code"]) == ("invalid copy direction for memcpy", 21)
    assert (found[0].known["call"], found[2].known["size"]) == ("cudaMemcpy", 1024)


def test_lines_of_a_block_are_known_without_their_indentation():
    for text in (RACECHECK, INITCHECK, SYNCCHECK, HAZARD):
        flat = "\n".join("========= " + line[10:].lstrip() for line in text.splitlines())
        assert [each.fields() for each in read(flat)[0]] == [each.fields() for each in read(text)[0]]


def test_what_the_tool_doubts_of_itself_is_no_complaint():
    said = "Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect."
    found, summary = read(f"========= COMPUTE-SANITIZER\n========= {said}\n========= ERROR SUMMARY: 0 errors\n")
    assert (found, summary.doubts) == ([], [said])
    found, summary = read(
        "========= Error: Target application terminated before first instrumented API call\n"
        "========= Tracking kernels launched by child processes requires the --target-processes all option.\n"
    )
    assert not found and len(summary.doubts) == 1


def test_blocks_of_several_processes_follow_each_other_without_a_line_between():
    blocks = MEMCHECK.partition("=========\n========= Invalid __shared__")[0] + "\n" + INITCHECK
    assert [each.error for each in read(blocks)[0]] == ["invalid", "invalid", "uninitialised"]


def test_text_may_be_cut_anywhere():
    rng = random.Random(0)
    everything = MEMCHECK + RACECHECK + FRAMES + COPIES
    whole = [each.fields() for each in read(everything)[0]]
    for _ in range(50):
        text, reader, found = everything, Reader(), []
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


def program(folder, text=MEMCHECK, *, first=""):
    """Something that behaves like compute-sanitizer: runs the rest of the command line and writes its log, ``first`` at
    once and ``text`` at the end. A signal ends it on the spot, as it does a tool that takes no precautions."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").write_text(text)
    (folder / "first").write_text(first)
    file = folder / "compute-sanitizer"
    file.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in\n"
        '  --log-file) log=$(echo "$2" | sed "s/%%/@@/g; s/%p/$$/; s/@@/%/g"); shift 2;;\n'
        "  --*) shift 2;;\n  *) break;; esac; done\n"
        f'cat {folder}/first >> "$log"\n"$@"; code=$?\ncat {folder}/text >> "$log"\nexit $code\n'
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
    assert "Note" not in done.stderr, "its findings say it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", ": every access was inside its buffer"),
        ("", " cannot tell: the sanitizer did not come to its end"),
        (
            "========= No attachable process found.\n========= ERROR SUMMARY: 0 errors\n",
            " cannot tell: the sanitizer says",
        ),
    ],
    ids=["nothing wrong", "no log", "nothing seen"],
)
def test_whoever_asked_for_it_hears_what_became_of_it(tmp_path, text, said):
    program(tmp_path / "bin", text)
    script(tmp_path, "print('ok')")
    done = run(["--sanitizer", "memcheck", "t.py"], tmp_path, CUDA_HOME=str(tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 0 and f"Note       --sanitizer memcheck{said}" in done.stderr, done.stderr


PLAIN = {"PATH": "/usr/bin:/bin"}
WAITS = """
import signal, sys, time
def stop(number, frame):
    time.sleep(0.3)
    print("cleaned", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    time.sleep(0.05)
print("done", flush=True)
"""


def begun(folder, *, seconds=60, **text):
    """A script behind the pretended tool, which has started."""
    program(folder / "bin", **text)
    script(folder, WAITS)
    process = start(["--sanitizer", "memcheck", "t.py", str(seconds)], folder, CUDA_HOME=str(folder), **PLAIN)
    assert process.stdout.readline() == "ready\n"
    return process


def told(folder):
    return [event.fields for event in events(folder, "sanitizer")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_script_and_not_the_tool_which_says_its_last_words(tmp_path, number):
    process = begun(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"cleaned {number.name}\n"), err
    found = told(tmp_path)
    assert found[-1]["errors"] == 4 and [fields["what"] for fields in found].count("error") == 3
    assert "_scale_rows" in err and "C-BUFSIZE-001" in err


def test_a_tool_that_dies_early_leaves_what_it_wrote_and_the_script_is_awaited(tmp_path):
    process = begun(tmp_path, seconds=3, first=MEMCHECK.partition("========= Program hit")[0])
    tool = script_pid(tmp_path)
    time.sleep(1.5)  # so that the supervisor has looked around
    end(tool)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (137, "done\n"), err
    found = told(tmp_path)
    assert [fields["what"] for fields in found] == ["start", "error", "error", "summary"]
    assert "errors" not in found[-1] and "_scale_rows" in err


def test_a_script_that_does_not_listen_is_killed_behind_the_tool_too(tmp_path):
    program(tmp_path / "bin")
    script(tmp_path, WAITS.replace("def stop(number, frame):", "def stop(number, frame):\n    return"))
    process = start(["--sanitizer", "memcheck", "t.py", "60"], tmp_path, CUDA_HOME=str(tmp_path), **PLAIN)
    assert process.stdout.readline() == "ready\n"
    below = until(lambda: processes.descendants(script_pid(tmp_path)))
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(1.2)
    process.communicate(timeout=60)
    assert process.returncode == 137 and not any(alive(pid) for pid in below)


def test_a_folder_with_a_percent_sign_in_its_name(tmp_path):
    folder = tmp_path / "at 100%p"
    folder.mkdir()
    program(tmp_path / "bin")
    script(folder, "pass")
    done = run(["--sanitizer", "memcheck", "t.py"], folder, CUDA_HOME=str(tmp_path), **PLAIN)
    assert done.returncode == 0 and told(folder)[-1]["errors"] == 4, done.stderr


@pytest.mark.slow
def test_every_rank_below_torchrun_has_a_tool_and_a_log_of_its_own(tmp_path):
    program(tmp_path / "bin", RACECHECK)
    script(tmp_path, "import os\nprint('rank', os.environ['RANK'])")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = finished(
        [*command, "-m", "brickprof", "run", "--sanitizer", "racecheck", "t.py"], tmp_path, timeout=120,
        CUDA_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = told(tmp_path)
    assert sorted(fields["rank"] for fields in found if fields["what"] == "start") == [0, 1]
    assert sorted(fields["rank"] for fields in found if "errors" in fields) == [0, 1]
    assert len(list(recorded(tmp_path).glob("sanitizer-*.log"))) == 2
    assert "sum_kernel" in done.stderr and "C-KERNELRACE-001" in done.stderr


@pytest.mark.slow
def test_torchrun_behind_the_tool_has_one_log_for_all_ranks(tmp_path):
    program(tmp_path / "bin", MEMCHECK.removesuffix("========= ERROR SUMMARY: 4 errors\n") + MEMCHECK)
    script(tmp_path, "import os\nprint('rank', os.environ['RANK'])")
    words = ["--sanitizer", "memcheck", "torchrun", "--standalone", "--nproc-per-node", "2", "t.py"]
    path = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    done = run(words, tmp_path, timeout=120, CUDA_HOME=str(tmp_path), PATH=path)
    assert done.returncode == 0 and done.stdout.count("rank") == 2, done.stderr
    found = told(tmp_path)
    assert [fields["what"] for fields in found] == ["start", "error", "error", "error", "summary"]
    assert found[-1]["complaints"] == 8


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
    by_error = Counter(each.error for each in found)
    made.event("sanitizer", 2, rank=-1, what="summary", tool=tool, by_error=by_error, doubts=summary.doubts, **ended)
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
        (WARP_LEVEL, "racecheck", sanitizer.Races, "kernel-race", "warp_sum", [Severity.WARNING]),
        (BOTH_GRADES, "racecheck", sanitizer.Races, "kernel-race", "blend", [Severity.WARNING, Severity.ERROR]),
        (CLUSTER, "racecheck", sanitizer.Races, "kernel-race", "remote", [Severity.ERROR] * 2),
        (FRAMES, "synccheck", sanitizer.Races, "kernel-race", "half_a_warp", [Severity.ERROR] * 4),
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
    doubted = "========= Error: No attachable process found. compute-sanitizer timed-out.\n"
    result = judge(sanitized(f"{doubted}========= ERROR SUMMARY: 0 errors\n", "memcheck"), sanitizer.Access)
    assert result.verdict is Verdict.NOT_EVALUATED and "No attachable process" in result.why
    plain = Made()
    plain.healthy(3)
    result = judge(plain, sanitizer.Access)
    assert result.verdict is Verdict.NOT_EVALUATED and "--sanitizer memcheck" in result.why


def test_one_rank_whose_tool_was_cut_off_is_no_pass():
    made = sanitized("========= ERROR SUMMARY: 0 errors\n", "memcheck")
    made.event("sanitizer", 0, rank=-1, what="start", tool="memcheck")
    made.event("sanitizer", 2, rank=-1, what="summary", tool="memcheck")
    assert judge(made, sanitizer.Access).verdict is Verdict.NOT_EVALUATED


def test_calls_that_fail_and_leaks_are_no_accesses_out_of_bounds():
    result = judge(sanitized(CALLS, "memcheck"), sanitizer.Access)
    assert result.verdict is Verdict.PASS and "4 failing calls or leaks" in result.observed
    unknown = "========= Malloc/Free error encountered : Double free\n=========     at 0x79d8\n=========\n"
    result = judge(sanitized(unknown + "========= ERROR SUMMARY: 1 error\n", "memcheck"), sanitizer.Access)
    assert result.verdict is Verdict.NOT_EVALUATED and "Double free" in result.why


def test_a_copy_of_memory_that_nobody_wrote_is_a_warning():
    first, second, third = judge(sanitized(COPIES, "initcheck"), sanitizer.Unwritten).violations
    assert first.severity is Severity.ERROR and {second.severity, third.severity} == {Severity.WARNING}
    assert second.symptom.startswith("device memory is copied") and "cudaMemcpy source" in second.whys[0].finding


def test_a_finding_has_the_rank_whose_tool_reported_it():
    made = sanitized("", "racecheck")
    (race, _), _ = read(RACECHECK)
    made.event("sanitizer", 1, rank=-1, what="error", tool="racecheck", **race.fields())
    made.records[-1].fields["rank"] = 3
    assert judge(made, sanitizer.Races).violations[0].rank == 3


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void at::native::(anonymous namespace)::fused<float, 4>(float*)", "fused"),
        ("void <unnamed>::softmax<(int)8>(const float *)", "softmax"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_plain_names_of_kernels(kernel, name):
    assert sanitizer.plain(kernel) == name
