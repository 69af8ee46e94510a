"""Flame graphs: the published schema's demands, balance, and the lanes of each rank."""

from __future__ import annotations

import json

import pytest
from export_cases import META, bare, device_step, hostile, numbers, two_ranks, us
from telemetry_cases import run_event

from brickprof.errors import NothingToJudge
from brickprof.records import Event, RunMeta
from brickprof.run import Run
from brickprof.telemetry import clocks
from brickprof.telemetry.exports import speedscope


def written(run: Run, folder) -> dict:
    return check(json.loads(speedscope.write(run, folder / "run.speedscope.json").read_text("utf-8")))


def check(file: dict) -> dict:
    """What https://www.speedscope.app/file-format-schema.json demands of a file of evented profiles."""
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(file) == {"$schema", "exporter", "name", "activeProfileIndex", "profiles", "shared"}
    frames = file["shared"]["frames"]
    assert all(set(frame) == {"name"} and isinstance(frame["name"], str) and frame["name"] for frame in frames)
    assert file["profiles"] and 0 <= file["activeProfileIndex"] < len(file["profiles"])
    for profile in file["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "events"}
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        balanced(profile, len(frames))
    return file


def balanced(profile: dict, frames: int) -> None:
    stack, last = [], profile["startValue"]
    assert profile["startValue"] >= 0
    for event in profile["events"]:
        assert set(event) == {"type", "frame", "at"} and 0 <= event["frame"] < frames
        assert last <= event["at"] <= profile["endValue"]
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert event["type"] == "C" and stack.pop() == event["frame"]
    assert stack == [] and last == profile["endValue"]


def told(file: dict, profile: str) -> list[tuple[str, str, int]]:
    frames = [frame["name"] for frame in file["shared"]["frames"]]
    (found,) = [each for each in file["profiles"] if each["name"] == profile]
    return [(event["type"], frames[event["frame"]], event["at"]) for event in found["events"]]


def test_every_rank_and_lane_is_a_profile(tmp_path):
    file = written(two_ranks(), tmp_path)
    lanes = ["host", "transfers", "device · bricks · stream 0", "device · kernels · stream 7"]
    assert [each["name"] for each in file["profiles"]] == [f"rank {rank} · {lane}" for rank in (0, 1) for lane in lanes]
    assert file["name"] == META.run_id


def test_what_opens_closes_in_nanoseconds(tmp_path):
    file = written(Run.from_records([run_event(), *device_step(1)], META), tmp_path)
    assert told(file, "rank 0 · host") == [
        ("O", "step", 0),
        ("O", "loader", 0),
        ("C", "loader", 50_000),
        ("O", "forward", 100_000),
        ("O", "blocks.0", 110_000),
        ("C", "blocks.0", 190_000),
        ("C", "forward", 200_000),
        ("C", "step", 700_000),
    ]
    assert told(file, "rank 0 · device · kernels · stream 7") == [
        ("O", "H2D transfer", 140_000),
        ("C", "H2D transfer", 160_000),
        ("O", "softmax_kernel", 170_000),
        ("C", "softmax_kernel", 190_000),
    ]


def test_ranks_lie_on_one_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "offsets", lambda run: {0: 0, 1: -100_000})
    starts = {each["name"]: each["startValue"] for each in written(two_ranks(1), tmp_path)["profiles"]}
    assert (starts["rank 0 · host"], starts["rank 1 · host"]) == (100_000, 0)


@pytest.mark.parametrize("run", [bare(), Run.from_records([run_event(), *numbers(2)], META)])
def test_without_spans_there_is_nothing_to_show(run, tmp_path):
    with pytest.raises(NothingToJudge, match="no spans"):
        speedscope.write(run, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_log_has_no_flames(tmp_path):
    run = Run.from_records([Event("loss", 0, {"value": 1.0, "line": 1}, 0, us(0))], RunMeta("log", level="log"))
    with pytest.raises(NothingToJudge, match="no timeline"):
        speedscope.write(run, tmp_path / "x.json")


def test_hostile_names_are_text(tmp_path):
    file = written(hostile(), tmp_path)
    whole = json.dumps(file, ensure_ascii=False)
    assert "\x1b" not in whole and "\u202e" not in whole
    assert all(len(frame["name"]) < 1000 for frame in file["shared"]["frames"])
    assert any("<script>" in frame["name"] for frame in file["shared"]["frames"])
