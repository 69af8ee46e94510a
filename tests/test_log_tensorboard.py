"""TensorBoard event files: every point, both encodings, restarts, sub-folders, and files that are damaged."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.analysis import analyse
from brickprof.errors import UnreadableInput
from brickprof.logs.reading import frames
from brickprof.logs.reading.model import Head
from brickprof.logs.tensorboard import READER, home

pb = pytest.importorskip("tensorboard.compat.proto.event_pb2")


def frame(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    check = struct.pack("<I", frames.masked_crc32c(size))
    return size + check + data + struct.pack("<I", frames.masked_crc32c(data))


def scalar(tag: str, step: int, value: float, wall: float = 0.0) -> bytes:
    event = pb.Event(step=step, wall_time=wall or 1000.0 + step)
    event.summary.value.add(tag=tag, simple_value=value)
    return frame(event.SerializeToString())


def tensor(tag: str, step: int, dtype: int, plugin: str = "scalars", **values) -> bytes:
    event = pb.Event(step=step, wall_time=1000.0 + step)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = plugin
    value.tensor.dtype = dtype
    for name, given_ in values.items():
        if name == "tensor_content":
            value.tensor.tensor_content = given_
        else:
            getattr(value.tensor, name).extend(given_)
    return frame(event.SerializeToString())


VERSION = frame(pb.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())


def written(folder, *records: bytes, begun: int = 1700000000, name: str = "host.1.0"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{begun}.{name}"
    path.write_bytes(VERSION + b"".join(records))
    return path


def together(paths) -> list:
    homes: dict[str, list] = {}
    for path in paths:
        homes.setdefault(home(str(path))[0], []).append(logs.read(path))
    return [log for read in homes.values() for log in READER.joined(read)]


def test_crc_is_that_of_the_standard():
    assert frames.crc32c(b"123456789") == 0xE3069283
    assert frames.crc32c(bytes(32)) == 0x8A9136AA


def test_every_point_of_a_long_series_is_counted_and_the_file_is_recognised(tmp_path):
    path = written(tmp_path, *(scalar("train/loss", step, 1 / (1 + step)) for step in range(9000)))
    log = logs.read(path)
    assert log.format == "tensorboard"
    series = log.series["train/loss"]
    assert series.count == 9000 and series.role == "loss"
    assert series.steps[0] == 0 and series.steps[-1] == 8999
    assert not log.damage and not log.attempts and log.steps_by == "step"


def test_tensors_of_every_kind_of_number(tmp_path):
    path = written(
        tmp_path,
        tensor("float", 1, 1, float_val=[0.25]),
        tensor("double", 1, 2, double_val=[0.1]),
        tensor("content", 1, 1, tensor_content=struct.pack("<f", -3.5)),
        tensor("whole", 1, 9, int64_val=[7]),
        tensor("half", 1, 19, half_val=[0x3E00]),
        tensor("brain", 1, 14, tensor_content=b"\x40\x40"),
        tensor("lost", 1, 1, float_val=[float("nan")]),
        tensor("image", 1, 1, plugin="images", float_val=[1.0]),
        tensor("matrix", 1, 1, float_val=[1.0, 2.0]),
    )
    log = logs.read(path)
    values = {name: series.values[0] for name, series in log.series.items()}
    assert np.isnan(values.pop("lost"))
    assert values == {"float": 0.25, "double": 0.1, "content": -3.5, "whole": 7.0, "half": 1.5, "brain": 3.0}


def test_what_torch_writes(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(5):
            writer.add_scalar("loss", 2.0 - step, step)
            writer.add_scalar("new", step, step, new_style=True)
            writer.add_histogram("weights/head", torch.tensor([-2.0, 1.0 + step]), step)
        writer.add_scalars("both", {"train": 1.0, "val": 2.0}, 4)
        writer.add_text("args", '{"learning_rate": 0.5, "optim": {"name": "adamw"}}')
        writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|lr|0.5|\n|nesterov|True|")
        writer.add_hparams({"width": 64, "act": "gelu"}, {"best": 1.0}, run_name="1700000000.5")
    (log,) = together(tmp_path.rglob("*tfevents*"))
    assert log.series["loss"].values.tolist() == [2.0, 1.0, 0.0, -1.0, -2.0]
    assert log.series["new"].steps.tolist() == [0, 1, 2, 3, 4]
    assert log.series["both_train/both"].values.tolist() == [1.0]
    stated = {
        key: value for fact in log.facts if fact.kind == "setting" for key, value in fact.fields["values"].items()
    }
    assert stated["learning_rate"] == 0.5 and stated["optim.name"] == "adamw"
    assert stated["lr"] == 0.5 and stated["nesterov"] is True
    assert stated["width"] == 64 and stated["act"] == "gelu"
    (histogram,) = [fact.fields for fact in log.facts if fact.kind == "histogram"]
    assert histogram["tag"] == "weights/head" and histogram["points"] == 5 and histogram["count"] == 2
    assert histogram["min"] == -2.0 and histogram["max"] == 5.0 and histogram["nonfinite_step"] is None


def test_a_histogram_that_stops_being_finite_says_when(tmp_path):
    def histogram(step: int, low: float, total: float) -> bytes:
        event = pb.Event(step=step)
        made = event.summary.value.add(tag="gradients/head").histo
        made.min, made.max, made.num, made.sum = low, 1.0, 8, total
        return frame(event.SerializeToString())

    rows = tensor("gradients/body", 3, 2, plugin="histograms", double_val=[-1, 0, 5, 0, 2, 1, 2, 9, 0])
    path = written(tmp_path, histogram(1, -1, 0), histogram(2, -1, float("nan")), histogram(3, float("inf"), 0), rows)
    found = {fact.fields["tag"]: fact.fields for fact in logs.read(path).facts if fact.kind == "histogram"}
    assert found["gradients/head"]["nonfinite_step"] == 2
    assert (found["gradients/body"]["min"], found["gradients/body"]["max"]) == (-1.0, 2.0)
    assert found["gradients/body"]["count"] == 6 and found["gradients/body"]["nonfinite_step"] is None


def test_restarts_are_joined_in_order_and_go_back_once(tmp_path):
    def both(steps, wall: float) -> list[bytes]:
        return [scalar(tag, step, step, wall + step) for step in steps for tag in ("loss", "lr")]

    later = written(tmp_path, *both(range(50, 120), 1900), begun=1700000900)
    first = written(tmp_path, *both(range(100), 1000), begun=1700000000)
    (log,) = together([later, first])
    assert [(one.stopped_at, one.goes_on_at) for one in log.attempts] == [(99, 50)]
    for series in log.series.values():
        assert series.count == 170
        assert series.last_attempts().steps.tolist() == list(range(120))


def test_folders_of_parts_stand_before_their_tags(tmp_path):
    run = tmp_path / "run"
    paths = [
        written(run / "train", scalar("epoch_loss", 0, 2.0)),
        written(run / "validation", scalar("epoch_loss", 0, 3.0)),
        written(tmp_path / "other", scalar("epoch_loss", 0, 4.0)),
    ]
    names = sorted(tuple(log.series) for log in together(paths))
    assert names == [("epoch_loss",), ("train/epoch_loss", "validation/epoch_loss")]
    alone = logs.read(paths[1])
    assert alone.series["validation/epoch_loss"].role == "eval_loss"


def test_files_written_at_the_same_time_are_of_different_ranks(tmp_path):
    paths = [
        written(tmp_path, *(scalar("loss", step, step) for step in range(9)), name=f"host.{pid}.0") for pid in "12"
    ]
    assert [log.series["loss"].count for log in together(paths)] == [9, 9]


def test_joined_logs_keep_their_counts_their_facts_and_their_damage(tmp_path):
    first = written(tmp_path, *(scalar("loss", step, step, 1000 + step) for step in range(17_000)), begun=1)
    later = written(
        tmp_path, scalar("loss", 12_000, 1.0, 90_000), tensor("args", 0, 7, "text", string_val=[b"{}"]), b"x", begun=2
    )
    (log,) = together([later, first])
    assert log.series["loss"].count == 17_001 and log.rows == 17_001
    assert log.attempts[0].goes_on_at == 12_000
    assert sorted(fact.kind for fact in log.facts) == ["setting", "written", "written"]
    assert later.name in log.damage[0] and len(log.damage) == 1


def test_a_folder_of_runs_is_a_run_for_each_with_its_parts_and_restarts(tmp_path):
    for part in ("train", "validation"):
        written(tmp_path / "keras" / part, *(scalar("epoch_loss", step, 2 - step / 50) for step in range(50)))
    for begun, steps in ((1, range(60)), (2, range(40, 90))):
        points = (scalar("loss", step, 2 - step / 90, 1000 * begun + step) for step in steps)
        written(tmp_path / "resumed", *points, begun=begun)
    found = {run.name: run for run in analyse([tmp_path]).runs}
    assert sorted(found) == ["keras", "resumed"]
    assert [held["name"] for held in found["keras"].holds] == ["train/epoch_loss", "validation/epoch_loss"]
    assert [(held["points"], held["rank"]) for held in found["resumed"].holds] == [(110, None)]


def test_cut_off_anywhere_it_gives_what_came_before(tmp_path):
    path = written(tmp_path, *(scalar("loss", step, step) for step in range(6)))
    whole = path.read_bytes()
    size = len(scalar("loss", 3, 3.0))
    ends = {len(VERSION)} | {len(whole) - size * left for left in range(5)}
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        log = logs.read(path, READER)
        points = log.series["loss"].values.tolist() if "loss" in log.series else []
        assert points == [float(step) for step in range(len(points))]
        assert len(points) >= (cut - len(VERSION)) // size - 1
        assert bool(log.damage) == (cut not in ends and cut != len(whole) - size * 5), cut


def test_a_flipped_bit_costs_one_record(tmp_path):
    records = [scalar("loss", step, step) for step in range(40)]
    path = written(tmp_path, *records)
    whole = path.read_bytes()
    begin = len(VERSION) + len(b"".join(records[:20]))
    for place in range(begin, begin + len(records[20])):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        log = logs.read(path, READER)
        assert log.series["loss"].steps.tolist() == [step for step in range(40) if step != 20]
        assert len(log.damage) == 1


def test_zeros_in_the_middle_are_stepped_over(tmp_path):
    path = written(tmp_path, scalar("loss", 1, 1.0), bytes(3_000_000), scalar("loss", 2, 2.0))
    log = logs.read(path, READER)
    assert log.series["loss"].steps.tolist() == [1, 2]
    assert "damaged" in log.damage[0]


def test_a_length_without_bounds_is_no_reason_to_allocate(tmp_path):
    size = struct.pack("<Q", 1 << 62)
    path = written(tmp_path, scalar("loss", 1, 1.0), size + struct.pack("<I", frames.masked_crc32c(size)), b"x" * 99)
    log = logs.read(path, READER)
    assert log.series["loss"].count == 1
    assert "left out" in log.damage[0]


def test_packed_files_and_names_that_move_the_cursor(tmp_path):
    plain = written(tmp_path, scalar("\x1b[2Jloss\n", 1, 1.0), scalar("step", 1, 5.0), scalar("wall_time", 1, 5.0))
    packed = tmp_path / f"{plain.name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    log = logs.read(packed)
    assert all(name.isprintable() for name in log.series)
    assert "\\x1b[2Jloss⏎" in log.series
    assert log.series["\\x1b[2Jloss⏎"].steps.tolist() == [1]


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    path = written(tmp_path, scalar("loss", 1, 1.0))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UnreadableInput, match=r"pip install 'brickprof\[logs\]'"):
        logs.read(path)


def test_neither_tensorflow_nor_the_package_itself_is_imported_before_it_is_needed(tmp_path):
    path = written(tmp_path, scalar("loss", 1, 1.0))
    fake = tmp_path / "fake" / "tensorflow"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise RuntimeError('tensorflow was imported')")
    script = (
        "import sys; from brickprof import logs; logs.readers(); early = 'tensorboard' in sys.modules;"
        f"log = logs.read({str(path)!r}); print(early, 'tensorflow' in sys.modules, log.series['loss'].count)"
    )
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(fake.parent)!r}); {script}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == ["False", "False", "1"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(frame)), max_size=8))
def test_arbitrary_bytes_are_read_or_called_damaged(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("any") / "events.out.tfevents.1"
    path.write_bytes(VERSION + b"".join(parts))
    log = logs.read(path, READER)
    assert log.format == "tensorboard"
    for series in log.series.values():
        assert len(series.steps) == len(series.values)


@given(st.binary(max_size=200))
def test_other_files_are_not_taken_for_one(data):
    assert READER.sniff(Head("train.log", data)) == 0.0 or b"brain.Event:" in data[:64]
