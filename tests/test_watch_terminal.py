"""Watching a run: a real terminal beside a run that goes on."""

from __future__ import annotations

import re
import subprocess
import time

import launching
import pexpect
import pytest
from live_runs import JUDGED, Recorder, broken, new_run, tree

from brickprof import pulse
from brickprof.diagnosis import Diagnosis
from brickprof.live import watching


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(new_run(tmp_path / "brickprof-runs"))
    yield made
    made.close()


class Terminal:
    """What a terminal shows: moves of the cursor, text, the alternate screen."""

    SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b.|([\r\n])|([^\x1b\r\n]+)")

    def __init__(self, command, cwd, rows=30, columns=100, **environment):
        surroundings = launching.environment(TERM="xterm-256color", **environment)
        for name in ("COLUMNS", "LINES"):
            surroundings.pop(name, None)
        self.shell = pexpect.spawn(
            launching.COMMAND[0], [*launching.COMMAND[1:], *map(str, command)], cwd=str(cwd), env=surroundings,
            dimensions=(rows, columns), timeout=1, encoding="utf-8", echo=False,
        )  # fmt: skip
        self.alternate, self.raw, self._rest = False, "", ""
        self.sized(rows, columns)

    def sized(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = 0

    def resize(self, rows, columns):
        self.sized(rows, columns)
        self.shell.setwinsize(rows, columns)

    def pump(self, seconds=0.2) -> bool:
        """Takes what was written; False when nothing more will come."""
        try:
            text = self.shell.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += text
        text = self._rest + text
        cut = text.rfind("\x1b", max(len(text) - 12, 0))
        text, self._rest = (text[:cut], text[cut:]) if cut >= 0 else (text, "")
        for found in self.SEQUENCE.finditer(text):
            self._take(*found.groups())
        return True

    def _take(self, numbers, what, newline, words):
        if words:
            for letter in words:
                if self.y < self.rows and self.x < self.columns:
                    self.cells[self.y][self.x] = letter
                self.x += 1
        elif newline:
            self.x, self.y = (0, self.y) if newline == "\r" else (self.x, min(self.y + 1, self.rows - 1))
        elif what == "H":
            row, column = ([int(n or 1) for n in numbers.split(";")] + [1, 1])[:2] if numbers else (1, 1)
            self.x, self.y = column - 1, row - 1
        elif what == "J":
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif what in ("h", "l") and numbers == "?1049":
            self.alternate = what == "h"

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def until(self, pattern, seconds=20.0) -> re.Match:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if found := re.search(pattern, self.text, re.S):
                return found
            if not self.pump():
                break
        raise AssertionError(f"{pattern!r} did not appear in\n{self.text}")

    def end(self, seconds=20.0) -> int:
        limit = time.monotonic() + seconds
        while self.pump():
            assert time.monotonic() < limit, self.text
        self.shell.close()
        return self.shell.exitstatus if self.shell.signalstatus is None else -self.shell.signalstatus


def test_a_screen_beside_a_run_that_goes_on(tmp_path, recorder):
    recorder.tell("step 12")
    before = tree(recorder.folder)
    screen = Terminal(["watch", "--stay"], tmp_path)
    screen.until(r"● running.*step 11 · .*blocks\.0")
    assert screen.alternate and tree(recorder.folder) == before
    recorder.tell("step 3")
    screen.until(r"step 14 · ")
    screen.shell.send("p")
    screen.until(r"paused, p goes on")
    recorder.tell("step 5")
    screen.pump(0.8)
    assert "step 14 · " in screen.text
    screen.shell.send("p")
    screen.until(r"step 19 · ")
    screen.resize(12, 50)
    screen.until(r"step 19 · ")
    assert all(len(line) <= 50 for line in screen.text.splitlines())
    recorder.tell("nan 3")
    screen.resize(34, 110)
    screen.until(r"embed [^\n]*N.*✗ FAIL so far.*› ✗ F1 ", JUDGED)
    screen.shell.send("q")
    assert screen.end() == 0 and not screen.alternate
    assert recorder.process.poll() is None


def test_the_screen_closes_with_the_run_and_leaves_its_report(tmp_path, recorder):
    recorder.tell("step 5")
    screen = Terminal(["watch"], tmp_path)
    screen.until(r"● running")
    recorder.tell("nan 2")
    recorder.tell("end")
    assert screen.end(JUDGED) == 0
    after = screen.raw.rpartition("\x1b[?1049l")[2]
    assert "FAIL" in after and "Cause" in after


def test_a_signal_gives_the_terminal_back(tmp_path, recorder):
    recorder.tell("step 2")
    screen = Terminal(["watch"], tmp_path)
    screen.until(r"● running")
    screen.shell.kill(15)
    assert screen.end() == 143 and not screen.alternate and "\x1b[?25h" in screen.raw


def test_two_ranks_have_a_table_and_are_killed_one_after_the_other(tmp_path, recorder):
    other = Recorder(recorder.folder, rank=1)
    try:
        recorder.tell("step 9")
        other.tell("step 4")
        screen = Terminal(["watch", "--stay"], tmp_path)
        screen.until(r"rank +step +behind.*\n +0 +8 .*\n +1 +3 +5 ")
        other.tell("nan 6")
        screen.until(r"\n +1 +9 +nan")
        other.kill()
        screen.until(r"\n +1 +9 [^\n]* gone\n")
        assert "killed" not in screen.text
        recorder.kill()
        screen.until(r"✗ killed: its process is gone without a word \(pid \d+, \d+\)")
        screen.shell.send("q")
        assert screen.end() == 0
    finally:
        other.close()


def test_a_pipe_gets_lines_and_the_end(tmp_path, recorder):
    recorder.tell("step 5")
    watcher = subprocess.Popen(
        [*launching.COMMAND, "watch"], cwd=tmp_path, env=launching.environment(), stdout=subprocess.PIPE, text=True
    )
    first = watcher.stdout.readline()
    recorder.tell("nan 2")
    recorder.tell("end")
    rest = watcher.communicate(timeout=JUDGED)[0]
    assert re.match(r"running · step 4 · 0:\d\d · loss ", first)
    assert "\x1b" not in first + rest
    assert re.search(r"^error in step \d+: loss is nan", rest, re.M) and "ended (the recording was closed)" in rest
    assert watcher.returncode == 0


REAL = """
import torch, time
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100000):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
"""


def test_a_real_run_that_is_watched_and_then_killed(tmp_path):
    launching.script(tmp_path, REAL)
    job = launching.start(["t.py"], tmp_path)
    try:
        folder = launching.until(lambda: [*(tmp_path / "brickprof-runs").glob("t-*")], 20)[0]
        launching.until(lambda: (beat := pulse.read(folder / "rank00000")) is not None and beat.step > 5, 40)
        screen = Terminal(["watch", "--stay"], tmp_path, columns=90)
        found = screen.until(r"● running.*step (\d+) · .*loss  \d.*log10 \|grad\| by block.*\n0 [░▒▓█·]", 30)
        screen.until(rf"step (?!{found[1]} )\d+ · ")
        launching.end(launching.script_pid(tmp_path))
        screen.until(r"✗ killed: ended by SIGKILL", 20)
        screen.shell.send("q")
        assert screen.end() == 0
    finally:
        job.terminate()
        job.communicate(timeout=30)


def test_the_watcher_is_found_to_read_only(tmp_path, monkeypatch):
    """In a folder that nobody may write into."""
    monkeypatch.setattr(watching, "_FIRST_WORDS", JUDGED)
    folder = broken().run().save(tmp_path / "run")
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(folder)
    scene = watching.once(folder)
    assert isinstance(scene.diagnosis, Diagnosis) and tree(folder) == before
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
