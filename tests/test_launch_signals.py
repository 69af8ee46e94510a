"""Signals: each reaches the script once, nobody is killed too early, nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import launching
import pexpect
import pytest

from brickprof.launch.signals import LAUNCHER_PATIENCE, PATIENCE, Arrival, Patience

CLEANUP = """
import time
try:
    print("ready", flush=True)  # inside: the signal may come before the next line is reached
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep({seconds})
    print("cleaned", flush=True)
    raise SystemExit(7)
"""
COUNTING = """
import signal, sys, time
seen = []
for name in {names}:
    signal.signal(getattr(signal, name), lambda n, f: seen.append(signal.Signals(n).name))
print("ready", flush=True)
until = time.monotonic() + 60
while time.monotonic() < until:
    time.sleep(0.05)
    if seen:
        time.sleep({linger})
        break
print("seen", *seen, flush=True)
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready", below.pid, flush=True)
time.sleep(60)
"""


def begun(process):
    line = process.stdout.readline()
    assert line.startswith("ready"), line + process.stderr.read()
    return line.split()


def test_kill_int_is_forwarded_once_and_cleanup_is_awaited(tmp_path):
    launching.script(tmp_path, CLEANUP.format(seconds=1))
    process = launching.start(["t.py"], tmp_path)
    begun(process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, "cleaned\n")
    (event,) = launching.events(tmp_path, "signal")
    assert (event.fields["name"], event.fields["forwarded"]) == ("SIGINT", True)
    assert launching.exited(tmp_path)["asked_to_stop"] == 1


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_others_are_forwarded_too(tmp_path, name):
    launching.script(tmp_path, COUNTING.format(names=[name], linger=0.3))
    process = launching.start(["t.py"], tmp_path)
    begun(process)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, f"seen {name}\n")


def test_sigterm_without_a_handler_ends_with_143(tmp_path):
    launching.script(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    process = launching.start(["t.py"], tmp_path)
    begun(process)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert launching.exited(tmp_path)["class"] == "terminated"


def test_timeout_counts_as_one_request(tmp_path):
    """``timeout`` signals its child and then the whole group: that is no second request."""
    launching.script(tmp_path, COUNTING.format(names=["SIGTERM"], linger=4.2))
    command = ["timeout", "5", *launching.COMMAND, "run", "t.py"]
    done = launching.finished(command, tmp_path)
    assert "seen SIGTERM" in done.stdout
    ended = launching.exited(tmp_path)
    assert (ended["asked_to_stop"], ended["killed_by_us"], ended["code"]) == (1, False, 0)


def test_twice_kills_the_whole_tree_after_three_seconds(tmp_path):
    launching.script(tmp_path, STUBBORN)
    process = launching.start(["t.py"], tmp_path)
    below = int(begun(process)[1])
    pid = launching.script_pid(tmp_path)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.2)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 137
    assert time.monotonic() - began >= PATIENCE - 0.1
    assert not launching.alive(pid)
    assert not launching.alive(below)
    ended = launching.exited(tmp_path)
    assert (ended["class"], ended["killed_by_us"]) == ("interrupted", True)


def test_ctrl_c_reaches_the_script_once(tmp_path):
    launching.script(tmp_path, COUNTING.format(names=["SIGINT"], linger=0.5))
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect("ready")
    shell.sendintr()
    shell.expect("seen SIGINT\r\n")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0
    (event,) = launching.events(tmp_path, "signal")
    assert (event.fields["from_terminal"], event.fields["forwarded"]) == (True, False)


def test_ctrl_c_ends_with_130_and_a_summary(tmp_path):
    launching.script(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect("ready")
    shell.sendintr()
    shell.expect("KeyboardInterrupt")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 130
    assert launching.exited(tmp_path)["class"] == "interrupted"


def test_ctrl_c_twice_kills(tmp_path):
    launching.script(tmp_path, STUBBORN)
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect(r"ready (\d+)")
    below = int(shell.match[1])
    shell.sendintr()
    time.sleep(0.3)
    began = time.monotonic()
    shell.sendintr()
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 137
    assert time.monotonic() - began >= PATIENCE - 0.1
    assert not launching.alive(below)


@pytest.mark.parametrize("live", [True, False])
def test_ctrl_z_and_fg(tmp_path, live):
    launching.script(tmp_path, "import sys\nprint('ready', flush=True)\nprint('got', sys.stdin.readline())\n")
    shell = pexpect.spawn(
        "bash", ["--norc", "-i"], cwd=str(tmp_path), timeout=20, echo=False,
        env=launching.environment(PS1="PROMPT ", TERM="xterm"), dimensions=(24, 200),
    )  # fmt: skip
    shell.expect("PROMPT")
    shell.sendline(" ".join([*launching.COMMAND, "run", *([] if live else ["--no-live"]), "t.py"]))
    shell.expect("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    pid = launching.script_pid(tmp_path)
    launching.until(lambda: launching.state(pid) == "T")
    shell.sendline("fg")
    time.sleep(0.5)
    shell.sendline("hello")
    shell.expect("got hello")
    shell.sendline("echo code $?")
    shell.expect("code 0")
    shell.sendline("exit")
    shell.close()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_killed_supervisor_does_not_take_the_script_along(tmp_path, on_terminal):
    text = (
        "import sys, time\n"
        "for i in range(40):\n    print('line', i, 'x' * 2000, flush=True); time.sleep(0.05)\n"
        "open('finished', 'w').write('yes')\n"
    )
    launching.script(tmp_path, text)
    if on_terminal:
        # A shell leads the session, as usual: the end of a session's leader would hang up its terminal.
        command = " ".join([*launching.COMMAND, "run", "t.py"])
        shell = pexpect.spawn(
            "bash", ["-c", f"{command}; sleep 6"], cwd=str(tmp_path), timeout=20, echo=False,
            env=launching.environment(TERM="xterm"), dimensions=(24, 100),
        )  # fmt: skip
        shell.expect("line 3 ")
        (event,) = launching.events(tmp_path, "start")
        pid = event.fields["pid"]
        os.kill(event.fields["supervisor"], signal.SIGKILL)
        for number in range(4, 40):
            shell.expect_exact(f"line {number} " + "x" * 2000 + "\r\n")
    else:
        with (tmp_path / "log").open("w") as log:
            command = [*launching.COMMAND, "run", "t.py"]
            process = subprocess.Popen(command, cwd=tmp_path, env=launching.environment(), stdout=log, stderr=log)
            pid = launching.script_pid(tmp_path)
            time.sleep(0.3)
            process.kill()
            process.wait()
    launching.until((tmp_path / "finished").exists)
    launching.until(lambda: not launching.alive(pid))


def test_a_background_job_that_ignores_interrupts_keeps_ignoring(tmp_path):
    launching.script(tmp_path, "from signal import *; print(getsignal(SIGINT), getsignal(SIGHUP))")
    command = f"trap '' INT HUP; {' '.join(launching.COMMAND)} run t.py"
    done = launching.finished(["bash", "-c", command], tmp_path)
    assert done.stdout == "1 1\n"


def test_the_script_gets_the_mask_and_handlers_it_would_have_had(tmp_path):
    text = (
        "import signal\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        "print([n for n in range(1, 32) if n not in (9, 19) and signal.getsignal(n) not in (0, None)])\n"
    )
    launching.script(tmp_path, text)
    plain = launching.finished([sys.executable, "t.py"], tmp_path)
    assert launching.run(["t.py"], tmp_path).stdout == plain.stdout


def test_patience():
    patience = Patience()
    assert patience.request(Arrival(signal.SIGINT, from_terminal=True), 0.0)
    assert patience.deadline is None
    assert patience.request(Arrival(signal.SIGINT, from_terminal=True), 0.2)
    assert not patience.ended(0.2 + PATIENCE - 0.01)
    assert patience.ended(0.2 + PATIENCE)

    patience = Patience()
    assert patience.request(Arrival(signal.SIGTERM, sender=5), 0.0)
    assert not patience.request(Arrival(signal.SIGTERM, sender=5), 0.5)
    assert patience.request(Arrival(signal.SIGTERM, sender=6), 0.6)

    patience = Patience(launched=True)
    patience.request(Arrival(signal.SIGTERM, sender=5), 0.0)
    assert patience.ended(LAUNCHER_PATIENCE)


INBOX = """
import os, signal
from brickprof.launch.signals import Arrival, Inbox
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
with Inbox() as inbox:
    os.kill(os.getpid(), signal.SIGTERM)
    assert inbox.wait(1) == Arrival(signal.SIGTERM, sender=os.getpid())
    assert inbox.wait(0) is None
    assert inbox._poll(0) is None
    os.kill(os.getpid(), signal.SIGUSR1)
    assert inbox._poll(1) == Arrival(signal.SIGUSR1)
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
print("kept")
"""


def test_inbox_knows_the_sender_and_gives_the_mask_back():
    # In a process of its own: a test runner's other threads would take the signals.
    ran = subprocess.run([sys.executable, "-c", INBOX], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "kept\n"), ran.stderr
