"""Where the time of a step goes, on the host and on the device."""

from __future__ import annotations

import html
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from making import Made
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

import brickprof
from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import diagnose
from brickprof.diagnosis.doctor import Doctor
from brickprof.diagnosis.time_facts import time_facts
from brickprof.records import RunMeta, Span
from brickprof.reports import html as page
from brickprof.reports import overview, timeline
from brickprof.reports.page import tables
from brickprof.run import Run
from brickprof.run.kernel_times import Kernels, kernel_times
from brickprof.run.step_budget import lanes, most_idle, step_budget

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


def test_a_step_of_which_the_forward_alone_was_timed_tells_nothing_of_the_rest():
    seen = [whole(), host("block", "forward", 0, 500), host("step", "backward", 500, 1000)]
    later = [(0, step, *each[2:]) for step in range(1, 60) for each in (whole(), host("block", "forward", 0, 500))]
    assert step_budget(frame(*seen, *later)) == {"host": {"forward": 0.5, "backward": 0.5, "idle": 0.0}, "steps": 1}
    spans = [
        Span(Brick(Kind(kind), name), step, start, end, phase, number, 0)
        for number, (_, step, kind, phase, name, start, end, _, _) in enumerate([*seen, *later], 1)
    ]
    assert step_budget(spans) == step_budget(frame(*seen, *later))
    assert step_budget(frame(*later))["host"] == {"forward": 0.5, "idle": 0.5}


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


@pytest.mark.parametrize(
    ("looking", "told"),
    [
        (100, {"forward": 0.5, "backward": 0.2, "gradients": 0.1, "optimizer": 0.1, "brickprof": 0.1, "idle": 0.0}),
        (180, {"forward": 0.5, "backward": 0.2, "gradients": 0.02, "optimizer": 0.1, "brickprof": 0.18, "idle": 0.0}),
        (600, {"forward": 0.25, "backward": 0.1, "optimizer": 0.05, "brickprof": 0.6, "idle": 0.0}),
        (5000, {"brickprof": 1.0, "idle": 0.0}),
    ],
)
def test_what_looking_took_inside_of_bricks_is_none_of_their_time(looking, told):
    spans = frame(
        whole(looking=looking), host("block", "forward", 0, 500), host("step", "backward", 500, 700),
        host("optimizer", "optimizer", 800, 900),
    )  # fmt: skip
    assert step_budget(spans)["host"] == told


@pytest.mark.parametrize(("looking", "share"), [(10**400, 1.0), (-(10**400), 0.0)])
def test_looking_takes_no_more_than_the_step_and_no_less_than_nothing(looking, share):
    spans = frame(whole(looking=looking), host("block", "forward", 0, 500))
    assert step_budget(spans)["host"].get("brickprof", 0.0) == share
    (lane,) = lanes(spans)
    assert lane.looking == share * lane.length and len(timeline.draw(lane)) > 9
    made = Made()
    made.healthy(4)
    told = Span(Brick(Kind.STEP, "step"), 1, 1000, 2000, "step", id=9, attributes={"looking_ns": looking})
    made.records += [told, Span(Brick(Kind.BLOCK, "x"), 1, 1000, 1500, "forward", id=10)]
    diagnose(made.run())


def test_what_stands_between_forward_and_backward_and_before_the_update_has_a_name():
    """Two micro-batches, a copy in the middle of the loss, and a loop that does something of its own in front of it."""
    spans = frame(
        whole(),
        host("block", "forward", 100, 200),
        host("transfer", "transfer", 220, 230),
        host("step", "backward", 250, 400),
        host("block", "forward", 450, 550),
        host("step", "backward", 600, 750),
        host("optimizer", "optimizer", 800, 900),
    )
    assert step_budget(spans)["host"] == {
        "transfer": 0.01, "forward": 0.2, "criterion": 0.09, "backward": 0.3, "gradients": 0.05, "optimizer": 0.1,
        "idle": 0.25,
    }  # fmt: skip


def test_bricks_cover_a_plain_loop(tmp_path):
    """Loss and clip outside of the model, as most write it: 95 % of the step has a name. The middle of three runs."""

    def left(folder):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 4000))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ids = torch.randint(4000, (64 * 24,))
        loader = DataLoader(TensorDataset(torch.randn(64 * 24, 256), ids), batch_size=64)
        with brickprof.attach(model, optimizer, out=folder, overhead="100%") as session:
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        run = brickprof.load(session.folder)
        shares = step_budget(run.spans)["host"]
        assert shares["criterion"] > 0.01
        (judged,) = [result for result in diagnose(run).contracts if result.id == "C-BUDGET-001"]
        most, least = (f"{1 - idle:.1%}" for idle in (shares["idle"], most_idle(run.spans)))
        if judged.verdict is Verdict.PASS:
            assert most_idle(run.spans) <= 0.05 and f"{least} of the step" in judged.observed
        elif shares["idle"] <= 0.05:
            assert most_idle(run.spans) > 0.05 and judged.observed == f"bricks cover {least} to {most} of the step"
        else:
            assert judged.observed == f"bricks cover {most} of the step"
        return shares["idle"]

    assert sorted(left(tmp_path / str(turn)) for turn in range(3))[1] <= 0.05


def stepping(steps, *, idle, forward_only=0):
    """Steps of 1 us: loader, forward, criterion, backward, gradients, update, and what nobody has. Behind them others
    of which the forward alone was timed."""
    made = Made()
    made.healthy(steps + forward_only)
    made.records = [record for record in made.records if not isinstance(record, Span)]
    for step in range(steps + forward_only):
        begin, last = 10_000 + 2_000 * step, 1_000 - idle
        parts = [(Kind.LOADER, "loader", 0, 50), (Kind.BLOCK, "forward", 50, 300), (Kind.STEP, "backward", 400, 700),
                 (Kind.OPTIMIZER, "optimizer", 800, last)]  # fmt: skip
        parts = parts[:2] if step >= steps else parts
        for number, (kind, phase, start, end) in enumerate([*parts, (Kind.STEP, "step", 0, 1_000)], 1):
            name = "" if phase == "forward" else phase
            span = Span(Brick(kind, name, made.model), step, begin + start, begin + end, phase, 10 * step + number)
            made.records.append(span)
    return made.run()


def coverage(results):
    (found,) = [result for result in results if result.id == "C-BUDGET-001"]
    return found.verdict, found.observed


@pytest.mark.parametrize(
    ("steps", "idle", "forward_only", "verdict", "observed"),
    [(8, 20, 0, "PASS", "bricks cover 98.0% of the step"),
     (8, 60, 0, "NOT_EVALUATED", "bricks cover 94.0% of the step"), (2, 20, 0, "NOT_EVALUATED", ""),
     (40, 20, 300, "PASS", "bricks cover 98.0% of the step"),
     (0, 20, 40, "NOT_EVALUATED", "")],
)  # fmt: skip
def test_the_contract_judges_the_coverage_that_is_drawn(steps, idle, forward_only, verdict, observed):
    """Criterion and gradients are covered, idle is not; of a run that is over as of one that goes on."""
    run = stepping(steps, idle=idle, forward_only=forward_only)
    found = diagnose(run)
    assert coverage(found.contracts) == (verdict, observed)
    assert not observed or observed == f"bricks cover {1 - found.run['step_budget']['host']['idle']:.1%} of the step"
    doctor = Doctor(Terms())
    for record in run.records():
        doctor.feed(record)
    assert coverage(doctor.diagnosis().contracts) == (verdict, observed)


def looked_into(looking, *, idle, steps=8):
    """The same steps, in which brickprof says that it took so many of the nanoseconds."""
    run = stepping(steps, idle=idle)
    records = [
        replace(record, attributes={"looking_ns": looking})
        if isinstance(record, Span) and record.phase == "step" else record
        for record in run.records()
    ]  # fmt: skip
    return Run.from_records(records, RunMeta("looked", source="records"))


@pytest.mark.parametrize(
    ("looking", "idle", "verdict", "observed"),
    [(400, 20, "PASS", "bricks cover at least 98.0% of the step"),
     (375, 150, "NOT_EVALUATED", "bricks cover 85.0% to 100.0% of the step"),
     (60, 150, "NOT_EVALUATED", "bricks cover 91.0% of the step"),
     (990, 150, "NOT_EVALUATED", "bricks cover 85.0% to 100.0% of the step")],
    ids=["covered either way", "a gap that looking may have left alone", "a gap either way", "little but looking"],
)  # fmt: skip
def test_where_brickprof_looked_in_a_step_decides_no_pass(looking, idle, verdict, observed):
    found = diagnose(looked_into(looking, idle=idle))
    assert coverage(found.contracts) == (verdict, observed)
    (why,) = [each.why for each in found.contracts if each.id == "C-BUDGET-001"]
    told = f"brickprof's own looking takes {looking / 1000:.0%} of these steps"
    assert (told in why) is (" to " in observed)
    assert found.run["step_budget"]["host"]["brickprof"] == looking / 1000, "the picture is as it was"


def test_what_looking_took_is_drawn_and_explained_where_it_occurs():
    forward, backward = host("block", "forward", 0, 400), host("step", "backward", 600, 800)
    shown = [timeline.draw(lanes(frame(whole(looking=ns), forward, backward))[0], width=10) for ns in (0, 100, 10**6)]
    assert shown == ["FFFFCCBB··", "FFFFCCBB·P", "FFFFCCBBPP"]
    titles = [timeline.title({"lanes": [{"drawn": picture}]}) for picture in shown]
    assert titles[0] == "Where a step goes    Forward Criterion Backward · idle"
    assert titles[1] == "Where a step goes    Forward Criterion Backward brickProf · idle"
    assert titles[2] == "Where a step goes    Forward Criterion Backward brickProf"


def test_it_is_said_that_the_lanes_are_one_step_and_the_shares_a_mean():
    lane, shares = [{"name": "host", "ms": 1.0, "drawn": "F"}], {"host": {"forward": 1.0}}
    (said, *_) = timeline.lines({"lanes": lane, "step_budget": {**shares, "steps": 3}})
    assert said == "The lanes are one step, the shares the mean of 3."
    (said, *_) = timeline.lines({"lanes": lane, "step_budget": {**shares, "steps": 1}})
    assert said == "Lanes and shares are of one step."
    assert timeline.lines({}) == []


def test_the_device_has_a_lane_of_its_own():
    spans = frame(
        whole(device=800, start=5000),
        (0, 0, "block", "forward", "a", 1000, 1010, 200, at(5000)),
        (0, 0, "block", "backward", "a", 1010, 1020, 400, at(5300)),
    )
    assert step_budget(spans)["device"] == {"forward": 0.25, "criterion": 0.125, "backward": 0.5, "idle": 0.125}
    drawn = timeline.draw(lanes(spans)[1], width=8)
    assert drawn == "FFCBBBB·"


def test_spans_that_reach_out_of_the_step_are_cut():
    spans = frame(whole(), host("block", "forward", -500, 500), host("user", "user", 900, 5000))
    assert step_budget(spans)["host"] == {"forward": 0.5, "user": 0.1, "idle": 0.4}


@pytest.mark.parametrize("told", [None, "", "[]", "{", '{"device_start_ns": "x"}'])
def test_strange_attributes_give_no_device_lane(told):
    spans = frame((0, 0, "step", "step", "step", 0, 1000, 500, told), host("block", "forward", -1000, -500))
    assert "device" not in step_budget(spans)


def test_nothing_timed_is_nothing_told():
    empty = frame()
    assert step_budget(empty) == {} and lanes(empty) == [] and timeline.kernels(as_run([])) == []
    assert step_budget(frame(whole())) == {}


def test_kernels_by_their_time_on_the_device():
    rows = [(0, step, "kernel", "forward", name, 0, 0, ns, "{}") for step in (1, 2) for name, ns in
            (("gemm", 300_000), ("gemm", 100_000), ("add", 100_000))]  # fmt: skip
    first, second = timeline.kernels(as_run(rows))
    assert (first["kernel"], first["share"], first["mean_us"], first["a_step"]) == ("gemm", 0.8, 200.0, 2.0)
    assert second["a_step"] == 1.0
    shown = timeline.kernel_lines({"kernels": [{**first, "kernel": "evil\x1b[31m"}]})
    assert len(shown) == 3 and not any("\x1b" in line for line in shown)
    assert shown[1] == "Of 2 steps: 0.500 ms of kernels in a step."


def many_kernels(count):
    """Of one step: the first takes most, and each after it a microsecond less."""
    return [kernel(0, f"k{n}", 1000 * (count - n), PROFILED) for n in range(count)]


def test_kernels_that_have_no_row_are_counted_with_their_share_and_time():
    told = time_facts(as_run(many_kernels(30)))
    assert len(told["kernels"]) == 16 and told["kernels_more"] == 14
    shown = timeline.kernel_lines(told)
    assert shown[0] == "Of 1 step: 0.465 ms of kernels in a step." and len(shown) == 10
    assert shown[-1] == "and 22 more: 54.4%, 253.0 us in a step"
    assert "more" not in timeline.kernel_lines(time_facts(as_run(many_kernels(8))))[-1]


def test_the_page_says_so_too():
    run = as_run(many_kernels(30))
    body = html.unescape(tables.kernels(run, diagnose(run)))
    assert "Of 1 step: 0.465 ms of kernels in a step." in body
    assert "and 6 more: 4.5%, 21.0 us in a step" in body and "k23" in body and "k24" not in body


PROFILED, HEARD = json.dumps({"device_start_ns": 1, "source": "profiler"}), '{"site":"train.py:7","source":"triton"}'


def kernel(step, name, ns, told, rank=0):
    return (rank, step, "kernel", "forward", name, 0, 0, ns, told)


def looked_at_twice():
    """Steps 0 to 9 with the hook, and step 5 through the profiler as well: gemm has 90 % of the device."""
    heard = [kernel(step, "_mine", 100_000, HEARD) for step in range(10)]
    return [*heard, kernel(5, "gemm", 900_000, PROFILED), kernel(5, "_mine", 100_000, PROFILED)]


def as_run(rows, *more):
    spans = [
        Span(Brick(Kind.KERNEL, name), step, start, end, phase, number, 0, ns, attributes=json.loads(told), rank=rank)
        for number, (rank, step, _, phase, name, start, end, ns, told) in enumerate(rows, 1)
    ]
    return Run.from_records([*spans, *more])


@pytest.mark.parametrize(
    "table", [lambda rows: timeline.kernels(as_run(rows)), lambda rows: time_facts(as_run(rows))["kernels"]]
)
class TestKernelsOfTwoSources:
    def test_the_profilers_steps_alone_are_counted_and_the_hooks_line_stays(self, table):
        gemm, mine = table(looked_at_twice())
        assert (gemm["kernel"], gemm["share"], gemm["a_step"], gemm["site"]) == ("gemm", 0.9, 1.0, "")
        assert (mine["kernel"], mine["share"], mine["a_step"], mine["site"]) == ("_mine", 0.1, 1.0, "train.py:7")
        assert mine["mean_us"] == 100.0 and {gemm["source"], mine["source"]} == {"profiler"}

    def test_without_a_window_there_are_tritons_kernels_alone(self, table):
        rows = table(looked_at_twice()[:10])
        assert [(row["kernel"], row["share"], row["source"]) for row in rows] == [("_mine", 1.0, "triton")]
        assert "Triton kernels alone" in timeline.kernel_lines({"kernels": rows})[0]

    def test_a_rank_without_a_window_adds_nothing_to_those_with_one(self, table):
        others = [kernel(step, "_mine", 100_000, HEARD, rank=1) for step in range(10)]
        again = [kernel(5, "gemm", 900_000, PROFILED, rank=2), kernel(5, "_mine", 100_000, PROFILED, rank=2)]
        gemm, mine = table([*looked_at_twice(), *others, *again])
        assert (gemm["share"], gemm["a_step"], mine["share"], mine["a_step"]) == (0.9, 1.0, 0.1, 1.0)


@pytest.mark.parametrize("told", ["{", "[]", "{}", '{"site":3}', '{"site":"\\"source\\": \\"profiler\\""}'])
def test_strange_attributes_of_a_kernel_are_no_profilers(told):
    (row,) = kernel_times([Kernels(*map(np.array, ([0], [1], [1000])), [told], {1: "k"})])
    assert row["source"] == "triton" and isinstance(row["site"], str)


def test_a_launch_that_was_heard_and_seen_is_one_call_of_its_brick():
    step = Span(Brick(Kind.STEP, "step"), 5, 0, 2_000_000, "step", 99, 0, 1_500_000)
    run = as_run(looked_at_twice(), step)
    calls = {brick["brick"]: brick["calls"] for brick in time_facts(run)["bricks"]}
    assert calls == {"_mine": 10, "gemm": 1}


# -- a step with more kernels than spans


def crowded(*, summed, step=5):
    """Of 9 kernels of a step, by two blocks, 3 have a span; 2 copies, of which one has."""
    made = Made("body", "head")
    made.event("brick", 0, id=11, brick_kind="kernel", path="gemm", model="")
    made.event("brick", 0, id=12, brick_kind="kernel", path="add", model="")
    made.event("brick", 0, id=13, brick_kind="transfer", path="H2D", model="")
    rest = [[11, 1, "forward", 2, 400_000], [12, 2, "backward", 4, 200_000], [13, 0, "user", 1, 9_000_000]]
    sums = {"unwritten": rest} if summed else {}
    made.event("window", step, kernels=11, written=4, busy_ns=2_500_000, step_ns=3_000_000, **sums)
    told = json.loads(PROFILED)
    for number, (kind, name, parent, ns) in enumerate(
        [("kernel", "gemm", 40, 900_000), ("kernel", "gemm", 40, 300_000), ("kernel", "add", 41, 200_000),
         ("transfer", "H2D", 40, 5_000)], 20,
    ):  # fmt: skip
        brick = Brick(Kind(kind), name)
        made.records.append(Span(brick, step, 5, 5, "forward", number, parent, ns, attributes=told))
    made.records.append(Span(Brick(Kind.STEP, "step"), step, 0, 10, "step", 39, 0, 3_000_000))
    blocks = [("body", "forward", 40, 1_700_000), ("head", "backward", 41, 450_000)]
    for name, phase, number, ns in blocks:
        made.records.append(Span(Brick(Kind.BLOCK, name, "Net"), step, 1, 9, phase, number, 0, ns))
    return made.run()


def test_kernels_without_a_span_are_counted_by_their_sums():
    run = crowded(summed=True)
    told = time_facts(run)
    gemm, add = told["kernels"]
    assert (gemm["kernel"], gemm["share"], gemm["mean_us"], gemm["a_step"]) == ("gemm", 0.8, 400.0, 4.0)
    assert (add["kernel"], add["share"], add["mean_us"], add["a_step"]) == ("add", 0.2, 80.0, 5.0)
    assert timeline.kernels(run) == told["kernels"] and {row["steps"] for row in told["kernels"]} == {1}
    _, *heads = timeline.kernel_lines(told)[:2]
    said = "7 of 11 kernels and copies in the profiler's windows have no span of their own: they are counted here, "
    assert timeline.kernel_lines(told)[0] == "Of 1 step: 2.000 ms of kernels in a step."
    assert heads == [f"{said}by their sums."]
    body = html.unescape(tables.kernels(run, diagnose(run)))
    assert said in body and "80.0%" in body


def test_kernels_without_a_span_are_calls_of_theirs_and_no_time_of_the_block_around_them():
    bricks = {(row["brick"], row["phase"]): row for row in time_facts(crowded(summed=True))["bricks"]}
    assert (bricks["gemm", "forward"]["calls"], bricks["gemm", "forward"]["ms_a_step"]) == (4, 1.6)
    assert (bricks["add", "backward"]["calls"], bricks["add", "backward"]["ms_a_step"]) == (4, 0.2)
    assert bricks["H2D", "user"]["ms_a_step"] == 9.0
    # 1.7 ms less 1.205 in spans less 0.4 without; 0.45 less 0.2 and 0.2
    assert (bricks["body", "forward"]["ms_a_step"], bricks["head", "backward"]["ms_a_step"]) == (0.095, 0.05)


def test_the_page_places_a_kernel_by_those_without_a_span_too():
    made = crowded(summed=True)
    body = html.unescape(tables.kernels(made, diagnose(made)))
    assert "<code>body</code>" in body and "<code>head</code>" in body


def test_a_run_whose_windows_have_no_sums_says_what_its_table_lacks():
    told = time_facts(crowded(summed=False))
    assert told["kernels_unwritten"] == {"count": 7, "of": 11, "counted": False}
    assert "are missing here: shares and times are of the others." in timeline.kernel_lines(told)[1]
    assert [row["a_step"] for row in told["kernels"]] == [2.0, 1.0]


@pytest.mark.parametrize("foreign", [None, 3, "x", [None, 3], [[]], [[1, 1, "forward", "x", 1]], [[1, 1, 3, -1, 2]]])
def test_sums_from_elsewhere_do_no_harm(foreign):
    made = Made()
    made.event("window", 2, kernels=9, written=foreign, unwritten=foreign)
    made.event("window", 3, kernels=9, written=4, unwritten=foreign)
    run = Run.from_records([*made.records, *as_run([kernel(2, "gemm", 1000, PROFILED)]).records()])
    told = time_facts(run)
    assert [row["a_step"] for row in told["kernels"]] == [1.0] and told["kernels_unwritten"]["of"] >= 9
    timeline.kernel_lines({**told, "kernels_unwritten": foreign})


# -- what a short run on a GPU does not have


def short_run(device, level="standard", **window):
    made = Made()
    made.block("tail", device=device)
    made.healthy(3)
    if window:
        made.event("window", 2, **window)
    return Run.from_records(made.records, RunMeta("k3f9", script="train.py", level=level))


def said(run):
    diagnosis = diagnose(run)
    shown = Console(file=io.StringIO(), width=300)
    overview.render(diagnosis, shown)
    return shown.file.getvalue(), html.unescape(page.text(diagnosis, run))


@pytest.mark.parametrize("level", ["light", "standard"])
def test_a_run_on_a_gpu_without_a_window_says_what_is_missing_and_what_to_do(level):
    for text in said(short_run("cuda:0", level)):
        assert text.count("Kernels of torch are not known") == 1
        assert "--deep-at STEP" in text and "--level deep" in text
        assert ("--level standard --deep-at" in text) == (level == "light")


def test_times_on_a_device_are_a_gpus_too():
    (missing, *_) = timeline.kernel_lines(time_facts(as_run(looked_at_twice()[:10])))
    assert missing.startswith("Triton kernels alone") and "--deep-at STEP" in missing


def test_a_run_on_a_cpu_and_one_with_a_window_say_nothing_of_it():
    for run in (short_run("cpu"), short_run("cuda:0", kernels=9, busy_ns=1, step_ns=2)):
        assert not any("Kernels of torch" in text or "Kernels by" in text for text in said(run))
    assert "unprofiled" not in time_facts(as_run(looked_at_twice()))
