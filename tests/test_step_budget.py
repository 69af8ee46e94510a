"""Where the time of a step goes, on the host and on the device."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from brickprof.reports import timeline
from brickprof.run.step_budget import lanes, step_budget

COLUMNS = ("rank", "step", "kind", "phase", "brick", "start_ns", "end_ns", "device_ns", "attributes")


def frame(*rows):
    return pd.DataFrame([dict(zip(COLUMNS, row, strict=True)) for row in rows], columns=list(COLUMNS))


def at(start):
    return json.dumps({"device_start_ns": start})


def whole(step=0, device=None, start=0, looking=0):
    told = {"looking_ns": looking} | ({} if device is None else {"device_start_ns": start})
    return (0, step, "step", "step", "step", 1000, 2000, device, json.dumps(told))


def host(kind, phase, start, end):
    return (0, 0, kind, phase, "x", 1000 + start, 1000 + end, None, None)


def test_shares_add_up_and_the_rest_is_idle():
    spans = frame(
        whole(),
        host("loader", "loader", 0, 100),
        host("block", "forward", 100, 400),
        host("step", "backward", 400, 800),
    )
    assert step_budget(spans)["host"] == {"loader": 0.1, "forward": 0.3, "backward": 0.4, "idle": 0.2}


def test_a_brick_in_a_brick_counts_once_and_the_inner_one_has_it():
    spans = frame(
        whole(),
        host("block", "forward", 0, 500),
        host("block", "forward", 100, 200),
        host("transfer", "user", 200, 300),
    )
    assert step_budget(spans)["host"] == {"transfer": 0.1, "forward": 0.4, "idle": 0.5}


def test_what_looking_took_is_not_idle():
    spans = frame(whole(looking=150), host("block", "forward", 0, 500))
    assert step_budget(spans)["host"] == {"forward": 0.5, "brickprof": 0.15, "idle": 0.35}


def test_the_device_has_a_lane_of_its_own():
    spans = frame(
        whole(device=800, start=5000),
        (0, 0, "block", "forward", "a", 1000, 1010, 200, at(5000)),
        (0, 0, "block", "backward", "a", 1010, 1020, 400, at(5300)),
    )
    assert step_budget(spans)["device"] == {"forward": 0.25, "backward": 0.5, "idle": 0.25}
    drawn = timeline.draw(lanes(spans)[1], width=8)
    assert drawn == "FF·BBBB·"


def test_spans_that_reach_out_of_the_step_are_cut():
    spans = frame(whole(), host("block", "forward", -500, 500), host("user", "user", 900, 5000))
    assert step_budget(spans)["host"] == {"forward": 0.5, "user": 0.1, "idle": 0.4}


@pytest.mark.parametrize("told", [None, "", "[]", "{", '{"device_start_ns": "x"}'])
def test_strange_attributes_give_no_device_lane(told):
    spans = frame((0, 0, "step", "step", "step", 0, 1000, 500, told), host("block", "forward", -1000, -500))
    assert "device" not in step_budget(spans)


def test_nothing_timed_is_nothing_told():
    empty = frame()
    assert step_budget(empty) == {} and lanes(empty) == [] and timeline.kernels(empty) == []
    assert step_budget(frame(whole())) == {}


def test_kernels_by_their_time_on_the_device():
    rows = [(0, step, "kernel", "forward", name, 0, 0, ns, None) for step in (1, 2) for name, ns in
            (("gemm", 300_000), ("gemm", 100_000), ("add", 100_000))]  # fmt: skip
    first, second = timeline.kernels(frame(*rows))
    assert (first["kernel"], first["share"], first["mean_us"], first["a_step"]) == ("gemm", 0.8, 200.0, 2.0)
    assert second["a_step"] == 1.0
    shown = timeline.kernel_lines({"kernels": [{**first, "kernel": "evil\x1b[31m"}]})
    assert "\x1b" not in shown[0]
