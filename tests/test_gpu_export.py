"""Timelines of a run on a real device: lanes of its streams, kernels inside, arrows, and nothing that crosses."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
import torch
from test_export_perfetto import check, lane, names_of
from test_export_speedscope import check as check_speedscope

import brickprof
from brickprof.run import Run
from brickprof.telemetry.exports import perfetto, speedscope

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)), torch.nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    with brickprof.attach(net, optimizer, out=tmp_path_factory.mktemp("runs"), level="deep", overhead="50%") as session:
        for _ in range(30):
            x = torch.randn(2048, 512).cuda()
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
    return brickprof.load(session.folder)


@pytest.fixture(scope="module")
def events(run, tmp_path_factory) -> list[dict]:
    path = perfetto.write(run, tmp_path_factory.mktemp("out") / "trace.json")
    return check(json.loads(path.read_text("utf-8")))


def test_every_brick_that_was_timed_stands_in_a_lane_of_the_device(run, events):
    timed = run.spans[run.spans["attributes"].astype(str).str.contains("device_start_ns")]
    drawn = [each for each in events if each["ph"] == "X" and each["cat"].startswith(("kernel", "gpu_"))]
    assert len(drawn) == len(timed) > 100
    assert any(name.startswith("device · bricks · stream") for name in names_of(events, "thread_name").values())


def test_kernels_run_after_they_were_launched_and_inside_a_step(events):
    kernels = [each for each in events if each["ph"] == "X" and each["cat"] == "kernel"]
    steps = {
        each["args"]["step"]: each for each in lane(events, "host") if each["name"] == "step" and each["ph"] == "X"
    }
    assert len(kernels) > 20
    for kernel in kernels:
        assert kernel["ts"] >= steps[kernel["args"]["step"]]["ts"], "on one clock with the host"


def test_arrows_come_from_the_host_and_go_forward(events):
    lanes = names_of(events, "thread_name")
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    assert len(flows) > 100
    for start, end in flows.values():
        assert start["ts"] <= end["ts"] and lanes[start["tid"]].startswith(("host", "transfers"))
        assert lanes[end["tid"]].startswith("device")


def test_the_host_needs_one_lane(events):
    """The bricks of one thread nest; what does not would be drawn beside them."""
    assert not [name for name in names_of(events, "thread_name").values() if name.startswith("host (")]


def test_flame_graphs_of_the_device(run, tmp_path):
    file = check_speedscope(json.loads(speedscope.write(run, tmp_path / "x.json").read_text("utf-8")))
    assert any("device · kernels" in profile["name"] for profile in file["profiles"])
