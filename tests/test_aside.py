"""Work aside is done before the program ends, and never keeps it for long."""

import subprocess
import sys
import threading

import pytest
import torch

import brickprof
from brickprof.capture import aside
from brickprof.capture.fused import Fused
from brickprof.capture.lookout import Counts

BEGINS = """
import sys, time
from brickprof.capture import aside

def work(seconds):
    time.sleep(seconds)
    print("done", flush=True)
"""


def ended(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "sys.exit(3)", "raise ValueError('its own')"])
def test_the_end_of_a_program_waits_for_it(ending):
    text = f"{BEGINS}\naside.run(work, 0.5, name='slow')\naside.run(work, 0.0, name='quick')\n{ending}"
    done = ended(text)
    assert done.stdout == "done\ndone\n"
    assert done.returncode == {"": 0, "sys.exit(0)": 0, "sys.exit(3)": 3}.get(ending, 1)


def test_what_never_ends_holds_nobody_up():
    text = f"{BEGINS}\naside.PATIENCE = 0.3\naside.run(work, 600, name='stuck')"
    done = ended(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_begun_while_the_interpreter_shuts_down():
    text = f"{BEGINS}\nimport atexit\natexit.register(lambda: aside.run(work, 0, name='late'))"
    done = ended(text)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_does_not_wait_for_the_threads_of_its_parent():
    text = f"""{BEGINS}
import os
aside.run(work, 1.0, name='slow')
if os.fork() == 0:
    sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
    done = ended(text)
    assert done.stdout == "child 7\ndone\n", done.stderr


def test_no_thread_is_no_work(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert aside.run(print, name="x") is False
    told = []
    assert Fused(lambda kind, fields: told.append((kind, fields["reason"])))._compiled(torch.float32, 0) is False
    assert told == [("fallback", "no thread to compile on")]
    counts = Counts()
    assert counts(torch.zeros(1), []) is None and counts.lost == "no thread to compile on"


def test_the_exception_is_told_before_anybody_waits(tmp_path):
    """Of a script that is killed while it waits for us, it is known why it ended."""
    (tmp_path / "t.py").write_text(BROKEN)
    command = [sys.executable, "-m", "brickprof", "run", "-o", str(tmp_path / "runs"), "--no-live", "t.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    (run,) = (tmp_path / "runs").iterdir()
    events = brickprof.load(run).events
    assert "its own" in str(events[events.kind == "exception"].fields.tolist())


BROKEN = """
import os, signal, threading, time, torch
from brickprof.capture import aside
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(5):
    net(torch.ones(2, 4)).mean().backward()
    optimizer.step()

def work():
    time.sleep(3)
    os.kill(os.getpid(), signal.SIGKILL)

aside.run(work, name="slow")
raise ValueError("its own")
"""
