"""On a real terminal: the script's bytes arrive as they are, and our live line leaves no trace."""

import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import launching
import pexpect

from brickprof import pulse
from brickprof.launch import live

OUR_LINE = re.compile(rb"(?:\r\x1b\[K)?\x1b\[2m[^\x1b]*\x1b\[0m|\r\x1b\[K")
FIRST_LINE = re.compile(rb"brickprof \xc2\xb7 recording to [^\r]*\r\n")

COLOURFUL = r"""
import sys, time
out = sys.stdout
out.write("\x1b[31mred\x1b[0m plain\n")
for i in range(5):
    out.write(f"\r{i * 20:3d}% \x1b[32m{'#' * i}\x1b[0m")
    out.flush()
    time.sleep(0.3)
out.write("\n")
sys.stderr.write("tab\tbell\x07 \u00fcml\u00e4ut no newline")
sys.stderr.flush()
time.sleep(0.4)
out.write("\nlast line\n")
out.flush()
"""

BEATING = """
import os, pathlib, sys, time
from brickprof.pulse import Pulse
folder = pathlib.Path(os.environ["BRICKPROF_RUN"]) / "rank00000"
folder.mkdir()
beat = Pulse(folder)
def step(n):
    beat.step, beat.loss, beat.norm, beat.lr = n, 3.2144, 1.83, 3e-4
    beat.overhead, beat.step_ns = 0.004, 41_000_000
    beat.beat(time.time_ns())
"""


def spoken(shell):
    """All that a terminal saw, to the end."""
    shell.expect(pexpect.EOF)
    shell.close()
    return shell.before


def plain_bytes(tmp_path):
    env = launching.environment(TERM="xterm")
    return spoken(pexpect.spawn(sys.executable, ["t.py"], cwd=str(tmp_path), env=env, timeout=30, echo=False))


def test_colours_progress_bars_and_partial_lines_arrive_unchanged(tmp_path):
    launching.script(tmp_path, COLOURFUL)
    seen = spoken(launching.terminal(["t.py"], tmp_path))
    first, rest = FIRST_LINE.search(seen), FIRST_LINE.sub(b"", seen, count=1)
    assert first
    assert OUR_LINE.sub(b"", rest).startswith(plain_bytes(tmp_path))


def test_nothing_of_ours_stands_between_the_bytes_while_the_script_draws(tmp_path):
    text = BEATING + (
        "for n in range(1, 12):\n    step(n); print(f'\\r{n}/11 bar', end='', flush=True); time.sleep(0.1)\nprint()\n"
    )
    launching.script(tmp_path, text)
    seen = spoken(launching.terminal(["t.py"], tmp_path))
    bars = b"".join(b"\r%d/11 bar" % n for n in range(1, 12))
    assert bars in seen


def test_the_live_line(tmp_path):
    text = BEATING + "for n in (212,) * 12:\n    step(n); time.sleep(0.1)\nprint('over')\n"
    launching.script(tmp_path, text)
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect("step 212 · loss 3.214 · \\|g\\| 1.8 · lr 3.0e-04 · 41 ms · brickprof \\+0.4 %".encode())
    shell.expect_exact("\r\x1b[Kover\r\n")
    spoken(shell)


def test_the_live_line_stays_below_output_that_scrolls(tmp_path):
    text = BEATING + (
        "step(1); time.sleep(0.6)\nfor n in range(2, 30):\n    step(n); print('row', n, flush=True); time.sleep(0.03)\n"
    )
    launching.script(tmp_path, text)
    seen = spoken(launching.terminal(["t.py"], tmp_path))
    rows = [int(number) for number in re.findall(rb"row (\d+)\r\n", seen)]
    assert rows == list(range(2, 30))
    assert re.search(rb"row \d+\r\n\x1b\[2mstep [^\x1b]+\x1b\[0m\r\x1b\[Krow", seen)


def test_the_script_sees_a_terminal_of_the_right_size(tmp_path):
    text = (
        "import os, shutil, sys, time\n"
        "print([s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)], shutil.get_terminal_size())\n"
        "print(os.get_terminal_size(2).columns, flush=True)\n"
        "line = sys.stdin.readline()\n"
        "time.sleep(0.2)\n"
        "print('then', os.get_terminal_size(1).columns, line.strip(), flush=True)\n"
    )
    launching.script(tmp_path, text)
    shell = launching.terminal(["t.py"], tmp_path, columns=93)
    shell.expect_exact("[True, True, True] os.terminal_size(columns=93, lines=24)")
    shell.expect_exact("93")
    shell.setwinsize(30, 71)
    time.sleep(0.3)
    shell.sendline("typed")
    shell.expect_exact("then 71 typed")
    spoken(shell)


def test_a_resize_reaches_the_script_after_its_terminal_has_the_size(tmp_path):
    text = (
        "import os, signal, time\n"
        "sizes = []\n"
        "signal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size(1).columns))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 3\n"
        "while time.monotonic() < end and 71 not in sizes: time.sleep(0.05)\n"
        "print('last', sizes[-1])\n"
    )
    launching.script(tmp_path, text)
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect("ready")
    shell.setwinsize(30, 71)
    shell.expect("last 71")
    spoken(shell)


def test_a_redirected_stream_is_not_relayed(tmp_path):
    text = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty()); print('err', file=sys.stderr)"
    launching.script(tmp_path, text)
    command = " ".join([*launching.COMMAND, "run", "t.py"])
    for redirect, expected in (("> out.txt", "False True"), ("2> err.txt > out.txt", "False False")):
        env = launching.environment(TERM="xterm")
        spoken(pexpect.spawn("bash", ["-c", f"{command} {redirect}"], cwd=str(tmp_path), env=env, timeout=30))
        assert (tmp_path / "out.txt").read_text().strip() == expected


def test_no_live_passes_the_terminal_itself(tmp_path):
    launching.script(tmp_path, "import os; print(os.ttyname(1) == os.ttyname(0))")
    assert b"True" in spoken(launching.terminal(["--no-live", "t.py"], tmp_path))
    assert b"False" in spoken(launching.terminal(["t.py"], tmp_path))


def test_much_output_is_complete_and_in_order(tmp_path):
    text = "import sys\nfor i in range(30000): print(i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)\n"
    launching.script(tmp_path, text)
    shell = launching.terminal(["t.py"], tmp_path)
    seen = OUR_LINE.sub(b"", spoken(shell))
    numbers = [int(line) for line in re.findall(rb"^(\d+)\r$", seen, re.M)]
    assert numbers == list(range(30000))


def test_a_line_of_a_beat():
    nan = float("nan")
    beat = pulse.Beat(1, 0, 3, nan, nan, nan, nan, 0, 5, "recording", "idle", ())
    assert live.line(beat) == "step 3 · loss nan"
    beat = replace(beat, step=12345, loss=0.5, norm=float("inf"), lr=1e-3, overhead=0.0123, step_ns=12_300_000_000)
    assert live.line(beat) == "step 12,345 · loss 0.5 · |g| inf · lr 1.0e-03 · 12.3 s · brickprof +1.2 %"


def test_the_supervisor_is_nearly_free(tmp_path):
    """CPU of the supervisor over three idle seconds on a terminal with a live line."""
    launching.script(tmp_path, BEATING + "for n in range(1, 55):\n    step(n); time.sleep(0.1)\n")
    shell = launching.terminal(["t.py"], tmp_path)
    shell.expect(r"step \d")
    before = cpu_seconds(shell.pid)
    time.sleep(3)
    used = cpu_seconds(shell.pid) - before
    spoken(shell)
    assert used / 3 < 0.02


def cpu_seconds(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_help_is_ours_only_before_the_target(tmp_path):
    done = launching.run(["--help"], tmp_path)
    assert done.returncode == 0
    assert "--fail-on" in done.stdout
