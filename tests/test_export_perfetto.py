"""The timeline: what stands in the file, how it nests, in what order, and on which clock."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict

import pytest
from export_cases import HOSTILE, META, T0, bare, device_step, hostile, numbers, two_ranks, us
from hypothesis import given
from hypothesis import strategies as st
from telemetry_cases import one_step, run_event, span

from brickprof import logs
from brickprof.bricks import Brick, Kind
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import Diagnosis
from brickprof.errors import NothingToJudge
from brickprof.records import Event, RunMeta
from brickprof.run import Run
from brickprof.telemetry import clocks, findings, lanes
from brickprof.telemetry.exports import perfetto
from brickprof.telemetry.lanes import Nest
from brickprof.telemetry.window import steps, within

PHASES = {
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "i": {"ph", "name", "pid", "tid", "ts", "s"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "bp", "pid", "tid", "ts"},
    "M": {"ph", "name", "pid", "tid", "args"},
}
"""What each kind of event has to have, as the Trace Event Format says."""


def written(run: Run, folder, name: str = "trace.json") -> dict:
    path = perfetto.write(run, folder / name)
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data, parse_constant=_no_constant)


def _no_constant(word):
    raise AssertionError(f"{word} is no JSON")


def check(trace: dict) -> list[dict]:
    """The schema, by hand; the events of the trace."""
    assert set(trace) <= {"displayTimeUnit", "baseTimeNanoseconds", "otherData", "distributedInfo", "traceEvents"}
    assert trace["displayTimeUnit"] == "ms" and isinstance(trace["baseTimeNanoseconds"], int)
    events = trace["traceEvents"]
    named = set()
    for event in events:
        assert PHASES[event["ph"]] <= set(event), event
        assert type(event["pid"]) is int and event["pid"] > 0 and type(event["tid"]) is int
        assert isinstance(event["name"], str) and len(event["name"]) < 1000
        if event["ph"] == "M":
            assert event["name"] in {
                "process_name", "process_sort_index", "process_labels", "thread_name", "thread_sort_index",
            }  # fmt: skip
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0
        assert ("process_name", event["pid"], 0) in named, "named before it is used"
        assert ("thread_name", event["pid"], event["tid"]) in named
        if event["ph"] == "C":
            assert isinstance(event["args"]["value"], int | float)
        if event["ph"] == "i":
            assert event["s"] in "gpt"
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    threads = {event["tid"]: event["pid"] for event in events if event["ph"] != "M"}
    assert len({(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}) == len(threads)
    nested(events)
    return events


def nested(events: list[dict]) -> None:
    """In no lane does a slice reach over the end of the one that it began in."""
    open_: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        ends, start, end = open_[event["tid"]], round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], event
        ends.append(end)


def names_of(events: list[dict], what: str) -> dict[int, str]:
    key = "pid" if what == "process_name" else "tid"
    return {event[key]: event["args"]["name"] for event in events if event["name"] == what}


def lane(events: list[dict], name: str, process: int = 1) -> list[dict]:
    threads = {tid for tid, lane in names_of(events, "thread_name").items() if lane == name}
    return [event for event in events if event["tid"] in threads and event["pid"] == process and event["ph"] != "M"]


def test_two_ranks_on_a_device(tmp_path):
    events = check(written(two_ranks(), tmp_path))
    assert names_of(events, "process_name") == {
        1: "rank 0 (node 0 local 0 dp 0 tp 0 pp 0)",
        2: "rank 1 (node 0 local 1 dp 1 tp 0 pp 0)",
        200_000: "launch",
    }
    assert [each["name"] for each in lane(events, "steps")] == [f"ProfilerStep#{step}" for step in range(3)]
    assert [each["name"] for each in lane(events, "host") if each["ph"] == "X"][:4] == [
        "step", "loader", "forward", "blocks.0",
    ]  # fmt: skip
    assert [each["name"] for each in lane(events, "transfers", 2)] == ["H2D transfer"] * 3
    bricks = [each for each in lane(events, "device · bricks · stream 0") if each["ph"] == "X"]
    assert [each["name"] for each in bricks][:3] == ["step", "forward", "blocks.0"]
    assert (bricks[2]["ts"], bricks[2]["dur"]) == (150.0, 100.0)
    kernels = [each for each in lane(events, "device · kernels · stream 7") if each["ph"] == "X"]
    assert [(each["name"], each["cat"]) for each in kernels][:2] == [
        ("H2D transfer", "gpu_memcpy"), ("softmax_kernel", "kernel"),
    ]  # fmt: skip
    assert kernels[1]["args"] | {"device": 0, "stream": 7, "step": 0, "device_us": 20.0} == kernels[1]["args"]


def test_lanes_are_in_the_order_in_which_people_read_them(tmp_path):
    events = check(written(two_ranks(), tmp_path))
    names = names_of(events, "thread_name")
    first = [names[tid] for tid in sorted(names) if tid // 10_000 == 1]
    assert first == [
        "findings", "events", "steps", "host", "transfers", "device · bricks · stream 0", "device · kernels · stream 7",
    ]  # fmt: skip


def test_times_are_microseconds_after_the_base(tmp_path):
    trace = written(Run.from_records([run_event(), *one_step(2)], META), tmp_path)
    assert trace["baseTimeNanoseconds"] == T0 + 2_000_000
    (loader,) = [event for event in check(trace) if event["name"] == "loader"]
    assert (loader["ts"], loader["dur"]) == (0.0, 50.0)


def test_an_arrow_leads_from_the_launch_to_the_device(tmp_path):
    events = check(written(two_ranks(1), tmp_path))
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    assert flows and all([each["ph"] for each in pair] == ["s", "f"] for pair in flows.values())
    assert all(pair[0]["pid"] == pair[1]["pid"] and pair[0]["tid"] != pair[1]["tid"] for pair in flows.values())
    names = names_of(events, "thread_name")
    ends = {(names[pair[0]["tid"]], names[pair[1]["tid"]]) for pair in flows.values()}
    assert ends == {("host", "device · bricks · stream 0"), ("host", "device · kernels · stream 7")}
    # An arrow is bound to the slice that was opened last in its thread: its own follows at once.
    for event in events:
        if event["ph"] == "f":
            around = [each for each in lane(events, names[event["tid"]], event["pid"]) if each["ph"] == "X"]
            assert event["ts"] in [each["ts"] for each in around]


def test_counters_and_what_went_wrong(tmp_path):
    events = check(written(two_ranks(), tmp_path))
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters >= {
        "train/loss", "train/lr", "train/lr/0.1", "train/grad_norm", "memory/rss", "time/step_seconds",
        "gpu0/utilisation", "gpu0/power",
    }  # fmt: skip
    loss = [event["args"]["value"] for event in events if event["name"] == "train/loss" and event["pid"] == 1]
    assert loss == [2.0, 4.0, 1.0, 3.0, 0.0, 2.0]
    instants = [event for event in events if event["ph"] == "i"]
    assert [event["name"] for event in instants].count("train/loss is nan") == 1, "said once, not at every step"
    killed = next(event for event in instants if event["name"].startswith("exited"))
    assert killed["name"] == "exited: killed" and killed["pid"] == 200_000
    assert any(event["name"].startswith("exception: ValueError") for event in instants)
    found = lane(events, "findings")
    assert found and all(event["ph"] == "i" and event["args"]["severity"] for event in found)


def test_a_finding_stands_at_the_step_where_it_began(tmp_path):
    rows = [row for step in range(4) for row in one_step(step)]
    broken = Event("loss", 2, {"value": float("nan"), "micro": 0}, 99, us(2210))
    events = check(written(Run.from_records([run_event(), *numbers(2), broken, *rows], META), tmp_path))
    found = [event for event in events if event.get("cat") == "finding" and event["args"]["step"] == 2]
    assert found and {event["ts"] for event in found} == {2210.0}


def test_collectives_have_a_lane(tmp_path):
    told = [
        Event("collective", 0, {"op": "all_reduce", "ns": 40_000, "phase": "done", "seq": 1}, 5, us(150)),
        Event("collective", 0, {"op": "broadcast", "ns": 100_000, "phase": "wait", "seq": 2}, 6, us(180)),
        Event("collective", 0, {"op": "barrier", "ns": 10_000, "phase": "open", "seq": 3}, 7, us(300)),
    ]
    events = check(written(Run.from_records([run_event(), *one_step(), *told], META), tmp_path))
    both = [*lane(events, "collectives"), *lane(events, "collectives (2)")]
    assert [(event["name"], event["ts"], event["dur"]) for event in both] == [
        ("broadcast", 80.0, 100.0), ("all_reduce", 110.0, 40.0),
    ]  # fmt: skip


def test_spans_that_lie_across_each_other_get_a_lane_more(tmp_path):
    other = Brick(Kind.BLOCK, "thread")
    rows = [*one_step(), span(80, other, "user", 180, 450), span(81, other, "user", 500, 650)]
    events = check(written(Run.from_records([run_event(), *rows], META), tmp_path))
    assert [event["ts"] for event in lane(events, "host (2)")] == [180.0]
    assert sum(event["name"] == "thread user" for event in events) == 2


def test_a_real_run_needs_one_lane(tmp_path):
    """Steps lie end to end, and hold what happened in them, however long probes look back at a step."""
    import torch

    import brickprof

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with brickprof.attach(model, optimizer, out=tmp_path / "runs") as session:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).mean().backward()
            optimizer.step()
    run = brickprof.load(session.folder)
    events = check(written(run, tmp_path))
    assert {"steps", "host"} <= (names := set(names_of(events, "thread_name").values()))
    assert not [name for name in names if name.endswith("(2)")]
    whole = run.spans[run.spans["phase"] == "step"].sort_values("step")
    assert len(whole) >= 3
    ends, starts = whole["end_ns"].tolist(), whole["start_ns"].tolist()
    follows = whole["step"].diff().tolist()
    assert all(start == end for end, start, by in zip(ends, starts[1:], follows[1:], strict=False) if by == 1)
    by_id = whole.set_index("id")
    inner = run.spans[run.spans["parent"].isin(whole["id"])]
    assert len(inner) and (inner["start_ns"].tolist() >= by_id.loc[inner["parent"], "start_ns"].to_numpy()).all()
    assert (inner["end_ns"].tolist() <= by_id.loc[inner["parent"], "end_ns"].to_numpy()).all()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=80))
def test_a_nest_never_lets_slices_cross(pairs):
    spans = sorted(((start, start + length) for start, length in pairs), key=lambda each: (each[0], -each[1]))
    nest, found = Nest(), defaultdict(list)
    for start, end in spans:
        number, until = nest.place(start, end)
        assert until == end
        found[number].append((start, end))
    for kept in found.values():
        for at, (start, end) in enumerate(kept):
            assert all(later >= end or (later >= start and until <= end) for later, until in kept[at + 1 :])


def test_ever_more_lanes_come_to_an_end():
    nest = Nest()
    placed = [nest.place(start, 1000 + start) for start in range(200)]
    assert max(number for number, _ in placed) == 63
    assert all(end == 1063 for _, end in placed[64:]), "cut where what holds it ends"


def test_the_clock_of_another_host_is_laid_on_the_first():
    def met(rank: int, by: int) -> list[Event]:
        about = Event("run", 0, {"host": f"host{rank}", "coordinates": {}}, 0, T0, rank)
        fields = {"op": "barrier", "group": "world", "phase": "done", "ns": 10, "asynchronous": False}
        times = [T0 + 200_000 * n + by + (500 if n == 2 else 0) for n in range(5)]
        return [about, *(Event("collective", n, {**fields, "seq": n}, n, at, rank) for n, at in enumerate(times))]

    late = Run.from_records([*met(0, 0), *met(1, 7_000_000)], META)
    assert clocks.offsets(late) == {0: 0, 1: -7_000_000}
    few = Run.from_records([*met(0, 0)[:3], *met(1, 7_000_000)[:3]], META)
    assert clocks.offsets(few) == {0: 0, 1: 0}


def test_ranks_of_one_host_are_not_moved(tmp_path):
    assert set(clocks.offsets(two_ranks()).values()) == {0}


def test_a_moved_rank_is_moved_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "offsets", lambda run: {0: 0, 1: -100_000})
    events = check(written(two_ranks(1), tmp_path))
    first = {pid: min(event["ts"] for event in events if event["pid"] == pid and "ts" in event) for pid in (1, 2)}
    assert first == {1: 100.0, 2: 0.0}


def test_memory_does_not_follow_the_number_of_spans(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "diagnosis_of", lambda run: Diagnosis(Verdict.PASS))  # it reads the whole run
    monkeypatch.setattr(lanes, "_ROWS", 256)

    def peak(count: int) -> int:
        run = Run.from_records([row for step in range(count) for row in one_step(step)], META)
        assert run.parts[0].spans[0].num_rows == 7 * count  # the run itself is in memory
        tracemalloc.start()
        try:
            perfetto.write(run, tmp_path / "trace.json")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is imported and remembered once
    assert peak(400) < 1.3 * peak(100), "four times as many, in blocks of equal size"


def test_packed_where_the_name_says_so(tmp_path):
    plain, packed = written(two_ranks(), tmp_path), written(two_ranks(), tmp_path, "trace.json.gz")
    assert plain == packed


def test_a_window_holds_its_steps_alone(tmp_path):
    run = two_ranks(5)
    cut = within(run, steps("1:2"))
    events = check(written(cut, tmp_path))
    assert [each["name"] for each in lane(events, "steps")] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X" and "args" in event} == {1, 2}
    assert "gpu0/power" in {event["name"] for event in events}, "what the launch told meanwhile"
    assert not any(event["name"].startswith("exited") for event in events)


def test_a_run_without_spans_still_has_its_counters(tmp_path):
    events = check(written(Run.from_records([run_event(), *numbers(2)], META), tmp_path))
    assert {event["ph"] for event in events} == {"M", "C"}


def test_nothing_at_all_is_said(tmp_path):
    with pytest.raises(NothingToJudge, match="nothing to draw"):
        perfetto.write(bare(), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_log_has_no_timeline(tmp_path):
    run = Run.from_records([Event("loss", 0, {"value": 1.0, "line": 1})], RunMeta("log", level="log"))
    with pytest.raises(NothingToJudge, match="tensorboard, wandb-csv"):
        perfetto.write(run, tmp_path / "trace.json")


def test_hostile_names_are_text(tmp_path):
    path = perfetto.write(hostile(), tmp_path / "trace.json")
    events = check(json.loads(path.read_text("utf-8")))
    assert "\x1b" not in json.dumps(events, ensure_ascii=False) and "\u202e" not in json.dumps(
        events, ensure_ascii=False
    )
    assert any("<script>" in event["name"] for event in events), "shown as it is: viewers show text"
    assert HOSTILE not in {event["name"] for event in events}


def test_our_own_reader_reads_it_back(tmp_path):
    rows = [row for step in range(4) for row in device_step(step)]
    path = perfetto.write(Run.from_records([run_event(), *rows], META), tmp_path / "trace.json")
    log = logs.read(path)
    assert (log.format, log.damage) == ("chrome-trace", [])
    seconds = log.series["step_seconds"]
    assert seconds.steps.tolist() == [0, 1, 2, 3]
    assert seconds.values.tolist() == pytest.approx([700e-6] * 4)
    assert log.series["kernels"].values.tolist() == [1.0] * 4
    assert log.series["copied_bytes"].values.tolist() == [64.0] * 4
