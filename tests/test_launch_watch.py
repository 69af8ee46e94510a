"""What the supervisor sees: memory growing, the kernel killing for it, a training that stands still."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import launching
import pytest
from test_launch_terminal import BEATING

from brickprof.launch import memory, processes
from brickprof.launch.hang import HangWatch
from brickprof.pulse import Pulse

GROUPS = Path("/sys/fs/cgroup")

GREEDY = """
import time
held = []
while True:
    held.append(bytearray(8 * 2**20))
    held[-1][::4096] = b"x" * len(held[-1][::4096])
    time.sleep(0.1)
"""


@pytest.fixture
def small_group():
    """A control group with 120 MB, or a skipped test where none can be made."""
    version1 = (GROUPS / "memory").is_dir()
    folder = (GROUPS / "memory" if version1 else GROUPS) / f"brickprof-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version1 else "memory.max")).write_text(str(120 * 2**20))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no memory control group can be made here: {error}")
    swap = folder / ("memory.memsw.limit_in_bytes" if version1 else "memory.swap.max")
    try:
        swap.write_text(str(120 * 2**20) if version1 else "0")
    except OSError:
        pass
    yield folder
    launching.until(lambda: not (folder / "cgroup.procs").read_text().split())
    folder.rmdir()


def test_a_real_out_of_memory_kill(tmp_path, small_group):
    launching.script(tmp_path, GREEDY)
    command = " ".join([*launching.COMMAND, "run", "t.py"])
    done = launching.finished(["bash", "-c", f"echo $$ > {small_group}/cgroup.procs; {command}"], tmp_path)
    assert done.returncode == 137, done.stderr
    ended = launching.exited(tmp_path)
    assert (ended["class"], ended["signal"]) == ("out_of_memory", signal.SIGKILL)
    assert ended["oom_kills_group"] >= 1
    assert ended["memory_limit"] == 120 * 2**20
    curve = [event.fields["rss"] for event in launching.events(tmp_path, "memory")]
    assert curve == sorted(curve)
    assert curve[-1] > 30 * 2**20


def test_a_plain_kill_is_not_called_out_of_memory(tmp_path):
    launching.script(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    process = launching.start(["t.py"], tmp_path)
    process.stdout.readline()
    os.kill(launching.script_pid(tmp_path), signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 137
    assert launching.exited(tmp_path)["class"] == "killed"


def test_the_memory_of_the_whole_tree_is_on_record(tmp_path):
    text = (
        "import subprocess, sys\n"
        "hold = 'import time; x = b\"x\" * (40 * 2**20); time.sleep(2.5)'\n"
        "subprocess.run([sys.executable, '-c', hold])\n"
    )
    launching.script(tmp_path, text)
    launching.run(["t.py"], tmp_path)
    points = [event.fields for event in launching.events(tmp_path, "memory")]
    assert any(point["processes"] == 2 and point["tree"] > point["rss"] + 40 * 2**20 for point in points)


def test_a_long_run_writes_ever_fewer_points():
    class Lines:
        def __init__(self):
            self.seconds = []

        def event(self, kind, step, fields):
            self.seconds.append(fields["seconds"])

    lines = Lines()
    watch = memory.MemoryWatch(os.getpid(), lines, 0.0)
    watch._next_tree = float("inf")
    for second in range(20_000):
        watch.tick(float(second))
    assert lines.seconds[:100] == [float(second) for second in range(100)]
    assert len(lines.seconds) < 3_500
    last = len(lines.seconds) - 1
    watch.flush()
    assert lines.seconds[last:] == [float(second) for second in range(int(lines.seconds[last]), 20_000)]


STANDING = (
    BEATING
    + """
from brickprof.bricks import Brick, Kind
from brickprof.journal import Journal
journal = Journal(folder)
brick = journal.brick(Brick(Kind.BLOCK, "blocks.7"))
def stuck_here(seconds):
    beat.enter(brick, 2)
    time.sleep(seconds)
    beat.leave(0)
for n in range(1, 4):
    step(n)
stuck_here(2.6)
step(4)
stuck_here(2.4)
step(5)
journal.close()
print("over", flush=True)
"""
)


def test_a_training_that_stands_still_is_looked_at_once_a_stall(tmp_path):
    launching.script(tmp_path, STANDING)
    done = launching.run(["--hang", "1", "t.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "over\n")
    hangs = launching.events(tmp_path, "hang")
    assert [event.step for event in hangs] == [3, 4]
    (rank,) = hangs[0].fields["ranks"]
    assert rank["open_bricks"] == ["blocks.7"]
    assert rank["phase"] == "backward"
    assert "stuck_here" in "".join(rank["stacks"])
    assert done.stderr.count("nothing has moved for") == 2
    assert re.search(r"step 3 \(blocks.7, t.py:\d+ in stuck_here\)", done.stderr)
    assert (launching.recorded(tmp_path) / "rank00000" / "stacks.txt").exists()


@pytest.mark.parametrize("how", ["off", "no training", "stopped by hand"])
def test_no_alarm(tmp_path, how):
    code = {
        "off": BEATING + "step(1); step(2); time.sleep(2.2)\n",
        "no training": "import time; time.sleep(2.2)",
        "stopped by hand": BEATING + "step(1); step(2)\nprint('ready', flush=True)\nos.kill(os.getpid(), 19)\n",
    }
    launching.script(tmp_path, code[how])
    process = launching.start(["--hang", "0" if how == "off" else "1", "t.py"], tmp_path)
    if how == "stopped by hand":
        process.stdout.readline()
        time.sleep(2.5)
        os.kill(launching.script_pid(tmp_path), signal.SIGCONT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert launching.events(tmp_path, "hang") == []


def test_a_stranger_is_never_signalled(tmp_path):
    """A pulse may name a process that is long gone, its number now somebody else's."""
    folder = tmp_path / "rank00000"
    folder.mkdir()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        beat = Pulse(folder)
        beat._pid = stranger.pid
        beat.beat(1)
        watch = HangWatch(tmp_path, 1.0)
        assert watch.tick(0.0) is None
        assert watch.tick(100.0) is None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_process_table():
    below = subprocess.Popen(["sleep", "30"])
    try:
        assert below.pid in processes.descendants(os.getpid())
        assert processes.stat(below.pid).parent == os.getpid()
        assert processes.resident(os.getpid()) > 2**20
        assert processes.handles(os.getpid(), signal.SIGINT)
        assert not processes.handles(below.pid, signal.SIGUSR1)
        assert processes.environment(below.pid).get("PATH") == os.environ["PATH"]
        assert processes.stat(2**22 + 5) is None
    finally:
        below.kill()
        below.wait()
