"""The cards as the supervisor sees them: what is asked, what is written, and what happens where nothing answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvml import GIB, Card, FakeNvml
from launching import events, exited, run, script

from brickprof.cli import doctor
from brickprof.journal import read_events
from brickprof.launch import neighbours, nvml, processes, sanitizer
from brickprof.launch.card import Cards, CardWatch
from brickprof.launch.neighbours import Neighbours, without_parent

HERE = Path(__file__).parent


def watched(tmp_path, *cards, environment=None, looks=3, pid=None):
    seen = Cards(FakeNvml(*cards), environment or {}, pid or os.getpid(), tmp_path)
    for second in range(looks):
        seen.look(float(second + 1), second * 10)
    return seen


def told(tmp_path, what=None):
    file = tmp_path / "process.jsonl"
    found = read_events(file)[0] if file.exists() else []
    return [event for event in found if event.kind == "card" and what in (None, event.fields["what"])]


def ours(memory=GIB):
    return {os.getpid(): memory}


def test_a_card_that_the_run_uses_is_described_once_and_measured(tmp_path):
    watched(tmp_path, Card(processes=ours()))
    (about,) = told(tmp_path, "device")
    assert about.fields["name"] == "NVIDIA H200" and about.fields["known_by"] == "listed"
    assert about.fields["sm_clock_max"] == 1980 and about.fields["driver"] == "570.86.15"
    samples = told(tmp_path, "sample")
    assert [event.step for event in samples] == [0, 10, 20]
    fields = samples[0].fields
    assert (fields["utilisation"], fields["power"], fields["power_limit"]) == (0.9, 500.0, 700.0)
    assert (fields["memory_used"], fields["memory_ours"], fields["memory_total"]) == (40 * GIB, GIB, 140 * GIB)
    assert (fields["temperature"], fields["sm_clock"], fields["throttled"]) == (60.0, 1980.0, {})


@pytest.mark.parametrize(
    ("listed", "held"), [({os.getpid(): GIB, os.getppid(): 7 * GIB}, GIB), ({os.getpid(): None}, None)]
)
def test_what_the_run_holds_is_told_apart_from_what_others_do(tmp_path, listed, held):
    watched(tmp_path, Card(processes=listed))
    assert {event.fields.get("memory_ours") for event in told(tmp_path, "sample")} == {held}


def test_a_card_that_the_run_does_not_use_leaves_nothing(tmp_path):
    watched(tmp_path, Card(processes={}), Card(uuid="GPU-bbbb", processes=ours()))
    assert {event.fields["device"] for event in told(tmp_path)} == {1}


def test_without_a_list_of_processes_memory_that_grows_tells(tmp_path):
    card = Card(unsupported={"GetComputeRunningProcesses"}, used=GIB)
    seen = watched(tmp_path, card, looks=1)
    assert not told(tmp_path)
    card.used = 3 * GIB
    seen.look(2.0, 1)
    assert told(tmp_path, "device")[0].fields["known_by"] == "grown"


@pytest.mark.parametrize(
    ("visible", "used"),
    [("0", [0]), ("1,0", [1, 0]), ("GPU-bb", [1]), ("", []), ("-1", []), ("1,7,0", [1]), (None, [0, 1])],
)
def test_devices_are_those_that_the_script_can_see(visible, used):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = nvml.devices(FakeNvml(Card(uuid="GPU-aaaa"), Card(uuid="GPU-bbbb")), environment)
    assert [device.index for device in found] == used


def test_a_slice_has_its_own_memory_and_the_clocks_of_its_card(tmp_path):
    part = Card(uuid="MIG-1", used=2 * GIB, total=10 * GIB, processes=ours(), unsupported={"GetUtilizationRates"})
    watched(tmp_path, Card(slices=[part]), environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}, looks=1)
    fields = told(tmp_path, "sample")[0].fields
    assert fields["memory_total"] == 10 * GIB and "utilisation" not in fields and fields["power"] == 500.0
    assert told(tmp_path, "device")[0].fields["mig"] is True


def test_what_is_not_supported_is_left_out_and_asked_once(tmp_path):
    library = FakeNvml(Card(processes=ours(), unsupported={"GetPowerUsage", "GetTotalEccErrors", "Events"}))
    seen = Cards(library, {}, os.getpid(), tmp_path)
    for second in range(12):
        seen.look(float(second), second)
    assert library.asked.count("GetPowerUsage") == 1 and library.asked.count("Events") == 1
    assert "power" not in told(tmp_path, "sample")[0].fields
    assert "power" not in told(tmp_path, "device")[0].fields["reads"]


def test_a_card_that_answers_nothing_breaks_nothing(tmp_path):
    seen = watched(tmp_path, Card(unsupported={"all"}))
    seen.end(9.0, 3)
    assert not told(tmp_path)


def test_bits_are_words():
    assert nvml.words(0x4 | 0x40) == ("power_cap", "hw_thermal")
    assert nvml.words(0x4000) == ("0x4000",) and nvml.words(0) == ()


def test_throttling_that_sets_in_and_ends_is_told_at_once_and_counted(tmp_path):
    card = Card(processes=ours())
    seen = watched(tmp_path, card, looks=2)
    card.throttle = 0x20 | 0x1
    seen.look(3.0, 3)
    card.throttle = 0x1  # idle alone is nothing to tell
    seen.look(4.0, 4)
    changes = [(event.fields["was"], event.fields["throttle"]) for event in told(tmp_path, "throttle")]
    assert changes == [([], ["thermal"]), (["thermal"], [])]
    assert told(tmp_path, "sample")[2].fields["throttled"] == {"thermal": 1, "idle": 1}


def test_a_week_is_a_few_thousand_lines_and_no_look_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("brickprof.launch.neighbours.own", lambda pid, run: frozenset({pid}))  # thousands of looks
    card = Card(processes=ours())
    seen = Cards(FakeNvml(card), {}, os.getpid(), tmp_path, interval=20.0)
    looks = 7 * 24 * 3600 // 200
    for place in range(looks):
        card.throttle = 0x4 * (place % 2)  # flickers for a week
        card.utilisation = 40 + 40 * (place % 2)
        seen.look(1.0 + place * 200.0, place)
    seen.end(looks * 200.0, looks)
    samples = told(tmp_path, "sample")
    assert sum(event.fields["looks"] for event in samples) == looks
    assert len(samples) < 2500 and len(told(tmp_path, "throttle")) <= 32
    assert abs(samples[-2].fields["utilisation"] - 0.6) < 0.25


def test_errors_are_told_with_their_numbers(tmp_path):
    card = Card(processes=ours(), ecc=[3, 1])
    seen = watched(tmp_path, card, looks=1)
    assert not told(tmp_path, "ecc")  # from before the run
    card.xids, card.ecc = [31, 45], [3, 2]
    seen.look(9.0, 90)
    assert [event.fields["xid"] for event in told(tmp_path, "xid")] == [31, 45]
    (rise,) = told(tmp_path, "ecc")
    assert (rise.fields["corrected"], rise.fields["uncorrected"]) == (0, 1)
    card.lost = True
    seen.look(20.0, 99)
    assert told(tmp_path, "lost")


def test_an_error_at_the_very_end_is_told_though_nobody_saw_who_used_the_card(tmp_path):
    card = Card()
    seen = watched(tmp_path, card, looks=1)
    card.xids = [79]
    seen.end(2.0, 0)
    assert [event.fields["what"] for event in told(tmp_path)] == ["device", "xid"]


# -- others on the card


@pytest.fixture
def stranger():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_stranger_is_believed_only_where_the_list_speaks_of_our_pids(stranger):
    mine = frozenset({os.getpid()})
    assert Neighbours().changes({stranger: GIB}, mine, 0.0) == []
    seen = Neighbours()
    (change,) = seen.changes({os.getpid(): GIB, stranger: GIB}, mine, 0.0)
    assert (change["pid"], change["memory"], change["before"]) == (stranger, GIB, True)
    assert "orphan" not in change
    (decided,) = seen.changes({os.getpid(): GIB, stranger: GIB}, mine, 20.0)
    assert decided["orphan"] is False  # idle, but somebody waits for it
    (left,) = seen.changes({os.getpid(): GIB}, mine, 25.0)
    assert left["left"] is True


def test_an_orphan_has_no_parent_and_does_nothing(stranger, monkeypatch):
    monkeypatch.setattr("brickprof.launch.neighbours.without_parent", lambda parent: True)
    seen, mine = Neighbours(), frozenset({os.getpid()})
    seen.changes({os.getpid(): GIB, stranger: GIB}, mine, 0.0)
    (decided,) = seen.changes({os.getpid(): GIB, stranger: GIB}, mine, 20.0)
    assert decided["orphan"] is True
    assert without_parent(1) and not without_parent(os.getpid())


class Left:
    """A process 4242 whose parent is gone, and its control group where it has one."""

    def __init__(self, files):
        self.files, self.cpu, self.seen = files, 100.0, Neighbours()

    def at(self, second, *, works=0.0):
        """What is told of it when it is looked at again, having computed for so many seconds since the last look."""
        self.cpu += works
        told = self.seen.changes({os.getpid(): GIB, 4242: 20 * GIB}, frozenset({os.getpid()}), float(second))
        return [change.get("orphan") for change in told]

    def group(self, text):
        (self.files / "4242-cgroup").write_text(text)


@pytest.fixture
def left(tmp_path, monkeypatch):
    made = Left(tmp_path)
    monkeypatch.setattr(processes, "stat", lambda pid: processes.Stat("S", 1, 1, made.cpu, 77))
    monkeypatch.setattr(neighbours, "Path", lambda path: tmp_path / path.removeprefix("/proc/").replace("/", "-"))
    return made


def test_an_orphan_is_known_early_enough_for_a_run_that_ends_after_15_seconds(left):
    assert [left.at(second, works=0.01 * (second % 4 == 0)) for second in range(15)].index([True]) <= 11


def test_an_orphan_that_works_again_is_none_and_never_was(left):
    assert left.at(0) == [None] and left.at(5) == [] and left.at(10) == [True]
    assert left.at(15) == [] and left.at(20, works=2.0) == [False]
    assert [left.at(second, works=5.0 * (second == 600)) for second in range(25, 3600, 5)] == [[]] * 715


def test_whoever_has_worked_is_an_orphan_only_after_a_minute_without_work(left):
    assert left.at(0) == [None] and left.at(5, works=1.0) == [False]
    assert [left.at(second) for second in range(10, 65, 5)] == [[]] * 11
    assert [left.at(65), left.at(70)] == [[True], []]


@pytest.mark.parametrize(
    ("group", "orphan"),
    [
        ("0::/system.slice/ollama.service\n", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/ollama.service\n", False),
        ("9:memory:/system.slice/ollama.service\n1:name=systemd:/system.slice/ollama.service\n0::/\n", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope\n", True),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", True),
        ("0::/\n", True),
        (None, True),
    ],
)
def test_a_service_of_the_system_waits_to_be_asked_and_is_no_orphan(left, group, orphan):
    if group is not None:
        left.group(group)
    assert left.at(0) == [None] and left.at(10) == [orphan]
    assert [left.at(second) for second in range(20, 200, 20)] == [[]] * 9


# -- the thread, and the command


def test_without_nvml_the_watch_ends_by_itself(tmp_path, monkeypatch):
    def absent():
        raise nvml.NoCards("no driver")

    monkeypatch.setattr(nvml, "library", absent)
    watch = CardWatch(os.getpid(), tmp_path, 0.01)
    watch.start()
    watch.finish()
    assert not told(tmp_path)
    CardWatch(os.getpid(), tmp_path, 0).finish()  # switched off: never started


def test_a_run_records_the_card_that_it_is_given(tmp_path):
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    shutil.copy(HERE / "fake_nvml.py", fakes / "pynvml.py")
    script(tmp_path, "import time; time.sleep(0.6)")
    done = run(["t.py"], tmp_path, PYTHONPATH=str(fakes), BRICKPROF_CARD_SECONDS="0.1")
    assert done.returncode == 0, done.stderr
    cards = [event for event in events(tmp_path) if event.kind == "card"]
    assert [event.fields["what"] for event in cards[:2]] == ["device", "sample"]
    assert cards[0].fields["name"] == "NVIDIA H200" and len(cards) >= 3
    assert exited(tmp_path)["code"] == 0


def test_card_seconds_zero_means_never(tmp_path):
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    shutil.copy(HERE / "fake_nvml.py", fakes / "pynvml.py")
    script(tmp_path, "import time; time.sleep(0.4)")
    assert run(["t.py"], tmp_path, PYTHONPATH=str(fakes), BRICKPROF_CARD_SECONDS="0").returncode == 0
    assert not events(tmp_path, "card")


def test_doctor_shows_the_card_and_what_it_answers(monkeypatch):
    library = FakeNvml(Card(unsupported={"GetTotalEccErrors"}))
    monkeypatch.setattr(nvml, "library", lambda: library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check = doctor._card()
    assert check.state == "ok" and "NVIDIA H200 (0): utilisation" in check.says and "not told: ecc" in check.says
    assert library.shut == 1


def test_doctor_says_in_one_line_that_there_is_none(monkeypatch):
    def absent():
        raise nvml.NoCards("NVML cannot be used: Driver Not Loaded")

    monkeypatch.setattr(nvml, "library", absent)
    check = doctor._card()
    assert check.state == "missing" and "Driver Not Loaded" in check.says


def test_doctor_says_whether_the_sanitizer_can_be_used(monkeypatch, tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._sanitizer({"available": False}) == [], "without a GPU nobody asks"
    (check,) = doctor._sanitizer({"available": True})
    assert check.state == "ok" and str(program) in check.says
    monkeypatch.setattr(sanitizer, "_places", lambda given: iter(()))
    (check,) = doctor._sanitizer({"available": True})
    assert check.state == "missing" and "not installed here" in check.says and "CUDA toolkit" in check.says
