"""``brickprof export`` itself: formats found by themselves, where they are written, windows, and names that agree."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import launching
import pytest
from export_cases import META, T0, two_ranks
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_cases import ADAM, BACKWARD, BLOCK, LOADER, MODEL, STEP, one_step, run_event, span

from brickprof.bricks import Brick, Kind, title
from brickprof.capture.device_clock import DeviceClock
from brickprof.capture.ranges import Ranges
from brickprof.capture.trace import PHASE, Trace
from brickprof.cli.app import main
from brickprof.errors import NothingToJudge, UsageError
from brickprof.records import Event, RunMeta
from brickprof.run import Run
from brickprof.telemetry import export_run, exports
from brickprof.telemetry.exports import perfetto, speedscope
from brickprof.telemetry.files import whole, whole_text
from brickprof.telemetry.window import steps, within

NAMES = ["csv", "otlp", "parquet", "perfetto", "speedscope", "tensorboard", "wandb-csv"]
FILES = ["perfetto", "speedscope", "wandb-csv", "otlp"]


@pytest.fixture
def folder(tmp_path):
    return two_ranks().save(tmp_path / "train-20261115-0121-k3f9")


# -- formats


def test_every_file_is_a_format():
    found = exports.formats()
    files = {path.stem for path in Path(exports.__file__).parent.glob("[a-z]*.py")}
    assert list(found) == NAMES
    assert {module.__name__.rpartition(".")[2] for module in found.values()} == files


def test_help_has_a_line_for_each(capsys):
    assert main(["export", "--help"]) == 0
    out = capsys.readouterr().out
    for name, module in exports.formats().items():
        assert f"\n  {name} " in out and module.TITLE.split()[0] in out
    assert "brickprof export k3f9 --to perfetto -o trace.json.gz --steps 200:210" in out


def test_a_third_party_adds_one(monkeypatch, folder, tmp_path, capsys):
    theirs = ModuleType("their_export")
    theirs.NAME, theirs.TITLE, theirs.SUFFIX = "theirs", "something else", ".txt"
    theirs.write = lambda run, out: (out.write_text(f"{run.steps}"), out)[1]
    monkeypatch.setitem(sys.modules, "their_export", theirs)
    points = [importlib.metadata.EntryPoint("telemetry.exports.theirs", "their_export", "brickprof.plugins")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    assert main(["export", str(folder), "--to", "theirs", "-o", str(tmp_path / "x.txt")]) == 0
    assert (tmp_path / "x.txt").read_text() == "5"
    assert "theirs" in exports.formats()


def test_the_example_of_the_manual_is_one(tmp_path):
    manual = (Path(__file__).parents[1] / "docs" / "export.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", manual, re.DOTALL)
    space: dict = {}
    exec(compile(example, "docs/export.md", "exec"), space)
    assert {"NAME", "TITLE", "SUFFIX", "write"} <= space.keys()
    path = space["write"](Run.from_records([Event("loss", 0, {"value": 2.5})]), tmp_path / "x.txt")
    assert path.read_text() == "2.5\n"


def test_the_manual_has_every_format():
    manual = (Path(__file__).parents[1] / "docs" / "export.md").read_text("utf-8")
    assert all(f"\n| `{name}` |" in manual for name in exports.formats())


def test_an_unknown_format_names_those_there_are(capsys):
    assert main(["export", "x", "--to", "\x1b[31mxml"]) == 2
    said = capsys.readouterr().err
    assert f"Formats: {', '.join(NAMES)}." in said and "\x1b" not in said


# -- where it goes


@pytest.mark.parametrize("name", [name for name in NAMES if name != "otlp"])
def test_without_a_place_it_stands_beside_the_run(name, folder, capsys):
    before = set(folder.iterdir())
    assert main(["export", str(folder), "--to", name]) == 0
    (made,) = set(folder.iterdir()) - before
    assert capsys.readouterr().out == f"wrote {made}\n"
    assert Run.open(folder).steps == 5, "and the run is still one"


@pytest.mark.parametrize("name", FILES)
def test_a_folder_takes_the_file(name, folder, tmp_path):
    (tmp_path / "out").mkdir()
    assert main(["export", str(folder), "--to", name, "-o", str(tmp_path / "out")]) == 0
    (made,) = (tmp_path / "out").iterdir()
    assert made.name == f"{META.run_id}{exports.find(name).SUFFIX}"


@pytest.mark.parametrize("name", NAMES)
def test_folders_on_the_way_are_made(name, folder, tmp_path):
    assert main(["export", str(folder), "--to", name, "-o", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_cannot_be_written_is_one_line(name, folder, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["export", str(folder), "--to", name, "-o", str(tmp_path / "file" / "x")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert str(tmp_path / "file") in captured.err
    assert (tmp_path / "file").read_text() == "mine"


def test_where_the_run_lies_may_be_no_place_to_write(folder, capsys):
    (folder / f"{META.run_id}.wandb.csv").mkdir()
    assert main(["export", str(folder), "--to", "wandb-csv"]) == 2
    assert "cannot be written: Is a directory. Say where else with -o PATH." in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_is_one_line(name, folder, capsys):
    assert main(["export", str(folder), "--to", name, "-o", "/dev/full"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device()


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("before")

    def half() -> None:
        with whole_text(path) as stream:
            stream.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_as_it_is(tmp_path):
    (tmp_path / "real").write_bytes(b"")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    with whole(link) as stream:
        stream.write(b"through")
    assert link.is_symlink() and (tmp_path / "real").read_bytes() == b"through"


@pytest.mark.parametrize("place", ["-", "/dev/stdout"])
def test_stdout_gets_the_file_and_nothing_else(place, folder, tmp_path):
    command = [*launching.COMMAND, "export", str(folder), "--to", "perfetto", "-o", place]
    done = launching.finished(command, tmp_path)
    assert json.loads(done.stdout)["traceEvents"] and "wrote /dev/stdout" in done.stderr
    assert not (tmp_path / "-").exists()


def test_a_folder_does_not_go_to_stdout(folder, capsys):
    assert main(["export", str(folder), "--to", "csv", "-o", "-"]) == 2
    assert "--to csv writes a folder" in capsys.readouterr().err


# -- runs of every kind


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_run_gives_what_is_whole(name, folder, tmp_path, capsys):
    for file in ("spans.arrow", "events.jsonl"):
        target = folder / "rank00000" / file
        target.write_bytes(target.read_bytes()[:-30])
    assert main(["export", str(folder), "--to", name, "-o", str(tmp_path / "out")]) == 0
    assert "this run is damaged, and what is whole is written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["perfetto", "speedscope", "tensorboard", "wandb-csv"])
def test_a_run_that_tells_nothing_is_exit_3(name, tmp_path, capsys):
    run = Run.from_records([run_event()], META).save(tmp_path / "run")
    assert main(["export", str(run), "--to", name, "-o", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["csv", "parquet", "otlp"])
def test_tables_of_nothing_are_empty_tables(name, tmp_path):
    run = Run.from_records([run_event()], META).save(tmp_path / "run")
    assert main(["export", str(run), "--to", name, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [("csv", 0), ("parquet", 0), ("tensorboard", 0), ("wandb-csv", 0), ("perfetto", 3), ("speedscope", 3), ("otlp", 3)],
)
def test_a_log_of_another_tool(name, code, tmp_path, capsys):
    log = tmp_path / "metrics.csv"
    log.write_text("step,train_loss,lr\n" + "".join(f"{step},{3 - step / 10},0.1\n" for step in range(10)))
    assert main(["export", str(log), "--to", name, "-o", str(tmp_path / "out")]) == code
    assert (tmp_path / "out").exists() == (code == 0)
    assert ("no timeline" in capsys.readouterr().err) == (code == 3)


def test_a_log_is_written_where_one_is(tmp_path, monkeypatch):
    (tmp_path / "metrics.csv").write_text("step,train_loss\n0,3\n1,2\n2,1\n")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "metrics.csv", "--to", "wandb-csv"]) == 0
    assert main(["export", "metrics.csv", "--to", "csv"]) == 0
    assert sorted(os.listdir()) == ["metrics.csv", "metrics.csv-csv", "metrics.csv.wandb.csv"]


# -- windows


@pytest.mark.parametrize(
    ("typed", "first", "last"),
    [("3", 3, 3), ("100:200", 100, 200), (":50", 0, 50), ("7:7", 7, 7), (" 2:4 ", 2, 4)],
)
def test_a_window_is_read_as_it_is_typed(typed, first, last):
    assert steps(typed) == range(first, last + 1)


def test_an_open_window_has_no_end():
    assert 10**12 in steps("5:") and 4 not in steps("5:")


@pytest.mark.parametrize("typed", ["", ":", "a:b", "5:3", "-1:2", "1:2:3", "1e3", "9" * 40])
def test_what_is_no_window_says_so(typed):
    with pytest.raises(UsageError, match="--steps"):
        steps(typed)


def test_a_window_is_a_run_of_its_steps():
    run = two_ranks(5)
    cut = within(run, steps("1:2"))
    assert set(cut.spans["step"]) == set(cut.samples["step"]) == set(cut.loss["step"]) == {1, 2}
    assert set(cut.events[cut.events["kind"] == "run"]["rank"]) == {0, 1}
    assert cut.qualified == run.qualified and set(cut.spans["brick"]) == set(run.spans["brick"])
    assert {record.step for record in cut.records() if not isinstance(record, Event)} == {1, 2}
    assert cut.whole is run


def test_names_stay_in_a_window_of_a_saved_run(folder):
    cut = within(Run.open(folder), steps("2"))
    assert "blocks.0" in set(cut.spans["brick"]) and set(cut.spans["step"]) == {2}


def test_a_window_outside_of_the_run(folder, capsys):
    assert main(["export", str(folder), "--to", "perfetto", "--steps", "900:"]) == 3
    assert "Nothing was recorded of the steps from 900 on." in capsys.readouterr().err
    with pytest.raises(NothingToJudge, match="50 to 60"):
        within(two_ranks(), steps("50:60"))


# -- names


CRITIC = Brick(Kind.BLOCK, "blocks.0", "Critic")


class Nvtx:
    def __init__(self) -> None:
        self.names: list[str] = []

    def push_range(self, name, domain):
        self.names.append(name)

    def pop_range(self, domain):
        pass


def nvtx_names(spans) -> set[str]:
    """The ranges that capture opens for these bricks in these phases."""
    nvtx = Nvtx()
    pulse = SimpleNamespace(enter=lambda *_: None, leave=lambda *_: None, beat=lambda *_: None, depth=0)
    trace = Trace(SimpleNamespace(span=lambda row: None), pulse, DeviceClock(lambda row: None))
    bricks = {brick: number for number, brick in enumerate(dict.fromkeys(each.brick for each in spans), 1)}
    trace.ranges = Ranges(bricks, nvtx)
    for each in spans:
        trace.close(trace.open(bricks[each.brick], PHASE[each.phase]), write=False)
    return set(nvtx.names)


@pytest.mark.parametrize("models", [1, 2])
def test_a_brick_has_one_name_in_every_tool(models, tmp_path):
    kernel = Brick(Kind.KERNEL, "softmax_kernel")
    spans = [*one_step(), span(70, kernel, "backward", 320, 330, parent=5)]
    spans += [span(71, CRITIC, "forward", 610, 620, parent=1)] if models == 2 else []
    run = Run.from_records([run_event(), *spans], META)
    otlp = InMemorySpanExporter()
    export_run(run, exporter=otlp)
    trace = json.loads(perfetto.write(run, tmp_path / "p.json").read_text())["traceEvents"]
    frames = json.loads(speedscope.write(run, tmp_path / "s.json").read_text())["shared"]["frames"]
    names = {
        "nvtx": nvtx_names(spans),
        "otlp": {each.name for each in otlp.get_finished_spans()} - {"run"},
        "perfetto": {each["name"] for each in trace if each["ph"] == "X" and each["cat"] != "user_annotation"},
        "speedscope": {frame["name"] for frame in frames},
    }
    one = {
        "loader",
        "forward",
        "blocks.0",
        "backward",
        "blocks.0 backward",
        "AdamW optimizer",
        "step",
        "softmax_kernel",
    }
    two = {
        "loader", "GPT", "GPT.blocks.0", "Critic.blocks.0", "backward", "GPT.blocks.0 backward", "AdamW optimizer",
        "step", "softmax_kernel",
    }  # fmt: skip
    assert names == dict.fromkeys(names, one if models == 1 else two)


@pytest.mark.parametrize(
    ("brick", "phase", "said"),
    [
        (STEP, "step", "step"), (LOADER, "loader", "loader"), (MODEL, "forward", "forward"),
        (BLOCK, "forward", "blocks.0"), (BLOCK, "backward", "blocks.0 backward"), (BLOCK, "eval", "blocks.0 eval"),
        (BACKWARD, "backward", "backward"), (ADAM, "optimizer", "AdamW optimizer"),
        (Brick(Kind.KERNEL, "k"), "backward", "k"), (Brick(Kind.TRANSFER, "H2D"), "transfer", "H2D transfer"),
        (Brick(Kind.TRANSFER, "H2D"), "forward", "H2D transfer"), (Brick(Kind.BLOCK, ""), "user", "block user"),
        (Brick(Kind.BLOCK, "a\x1b[31m"), "forward", "a\\x1b[31m"),
    ],
)  # fmt: skip
def test_titles(brick, phase, said):
    assert title(brick, phase) == said


def test_a_run_of_no_rank_is_no_crash(tmp_path):
    launch = Event("exited", 0, {"code": 1, "signal": None, "class": "error", "text": "exited 1"}, 1, T0, -1)
    run = Run.from_records([launch], RunMeta("killed-early", started_ns=T0)).save(tmp_path / "run")
    codes = {name: main(["export", str(run), "--to", name, "-o", str(tmp_path / name)]) for name in NAMES}
    assert codes == dict.fromkeys(NAMES, 0) | {"speedscope": 3, "wandb-csv": 3}, (
        "there is a finding, and there are no numbers"
    )
