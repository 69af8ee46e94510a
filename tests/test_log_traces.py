"""Chrome traces of torch.profiler: steps, kernels, copies, idle time; damage, length and hostile content."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.logs import chrome_trace
from brickprof.logs.chrome_trace import READER
from brickprof.logs.reading.model import Head
from brickprof.run import Run

HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
}


def span(cat: str, name: str, ts: float, dur: float, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, stream: int = 7) -> dict:
    return span("kernel", name, ts, dur, device=0, stream=stream)


def step(number: int, ts: float, dur: float) -> list[dict]:
    """A step: a matrix product, a kernel that overlaps with it, an all-reduce, half of it alone, and a copy."""
    return [
        span("user_annotation", f"ProfilerStep#{number}", ts, dur),
        span("gpu_user_annotation", f"ProfilerStep#{number}", ts, dur + 500),
        span("cpu_op", "aten::mm", ts + 10, 50),
        span("cuda_runtime", "cudaLaunchKernel", ts + 20, 5),
        span("cuda_runtime", "cudaLaunchKernelExC", ts + 30, 5),
        span("cuda_driver", "cuLaunchKernelEx", ts + 40, 5),
        span("cuda_runtime", "cudaStreamSynchronize", ts + 600, 300),
        kernel("gemm", ts + 100, 200),
        kernel("relu", ts + 200, 150, stream=9),
        kernel("ncclDevKernel_AllReduce", ts + 300, 100, stream=11),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", ts + 500, 100, device=0, bytes=4096),
        span("python_function", "train.py(3): step", ts, dur),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": ts, "cat": "ac2g", "name": "ac2g"},
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts,
            "args": {"Total Allocated": 1000 * number, "Total Reserved": 9000, "Device Type": 1},
        },
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "args": {"Device Type": 0}},
    ]  # fmt: skip


EVENTS = [event for number in range(4) for event in step(10 + number, 1000.0 * number, 1000.0)]


def written(path, events=EVENTS, **more):
    path.write_text(json.dumps({**HEADER, "traceEvents": events, "traceName": "x", **more}, indent=1))
    return path


def facts(log) -> dict:
    return {fact.kind: fact.fields for fact in log.facts}


def test_steps_and_what_happened_in_them(tmp_path):
    log = logs.read(written(tmp_path / "host.pt.trace.json"))
    assert log.format == "chrome-trace" and not log.damage
    values = {series.name: series.values.tolist() for series in log.series.values()}
    assert log.series["step_seconds@3"].steps.tolist() == [10, 11, 12, 13]
    assert values["step_seconds"] == pytest.approx([1e-3] * 4)
    assert log.series["step_seconds@3"].role == "step_seconds"
    # busy from 100 to 400 and from 500 to 600
    assert values["device_busy_share"] == pytest.approx([0.4] * 4)
    assert values["kernels"] == [3.0] * 4 and values["launches"] == [3.0] * 4
    assert values["copies"] == [1.0] * 4 and values["copied_bytes"] == [4096.0] * 4
    assert values["sync_seconds"] == pytest.approx([300e-6] * 4)
    # the all-reduce runs from 300 to 400, beside others until 350
    assert values["communication_seconds"] == pytest.approx([100e-6] * 4)
    assert values["exposed_communication_seconds"] == pytest.approx([50e-6] * 4)
    assert {series.rank for series in log.series.values()} == {3}


def test_the_whole_trace_and_the_kernels_that_cost_most(tmp_path):
    found = facts(logs.read(written(tmp_path / "a.json")))
    whole = found["trace"]
    assert whole["seconds"] == pytest.approx(4e-3) and whole["steps"] == 4
    assert whole["device_busy_share"] == pytest.approx(0.4) and whole["idle_share"] == pytest.approx(0.6)
    assert whole["kernels"] == 12 and whole["launches"] == 12
    assert whole["copies"] == {"HtoD": {"count": 4, "seconds": pytest.approx(4e-4), "bytes": 16384}}
    assert whole["syncs"]["cudaStreamSynchronize"]["count"] == 4
    assert whole["memory_peak"] == {"allocated": 13000, "reserved": 9000}
    assert whole["rank"] == 3 and whole["world_size"] == 8 and whole["device_names"] == ["NVIDIA H200"]
    top = found["kernels"]["top"]
    assert [one["name"] for one in top] == ["gemm", "relu", "ncclDevKernel_AllReduce"]
    assert top[0]["count"] == 4 and top[0]["share"] == pytest.approx(200 / 450)
    assert found["operators"]["top"][0]["name"] == "aten::mm"


def test_each_step_is_a_window_as_our_own_profiler_would_tell_it(tmp_path):
    log = logs.read(written(tmp_path / "a.json"))
    windows = [fact for fact in log.facts if fact.kind == "window"]
    assert [fact.fields["step"] for fact in windows] == [10, 11, 12, 13] and windows[0].rank == 3
    assert windows[1].fields == {
        "step": 11, "kernels": 3, "busy_ns": 400_000, "step_ns": 1_000_000,
        "names": [["gemm", 1, 200_000], ["relu", 1, 150_000], ["ncclDevKernel_AllReduce", 1, 100_000]],
    }  # fmt: skip


def test_a_run_made_of_a_trace_holds_the_windows(tmp_path):
    events = Run.from_log(written(tmp_path / "a.json")).events
    windows = events[events["kind"] == "window"]
    assert windows["step"].tolist() == [10, 11, 12, 13]
    assert windows["fields"].iloc[0]["busy_ns"] == 400_000


def test_what_torch_writes(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "cpu.pt.trace.json"
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(5):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    log = logs.read(path)
    assert log.format == "chrome-trace" and not log.damage
    assert log.series["step_seconds"].steps.tolist() == [2, 3, 4]
    assert (log.series["step_seconds"].values > 0).all()
    assert set(log.series) == {"step_seconds"}, "without a device nothing is said about one"
    assert any(one["name"] == "aten::mm" for one in facts(log)["operators"]["top"])


def test_packed_arrays_and_old_names(tmp_path):
    old = [
        span("Operator", "ProfilerStep#5", 0, 100),
        span("Kernel", "gemm", 10, 50),
        span("Memcpy", "Memcpy DtoH (Device -> Pageable)", 70, 10, bytes=8),
        span("Runtime", "hipLaunchKernel", 5, 1),
    ]
    path = tmp_path / "old.json.gz"
    path.write_bytes(gzip.compress(json.dumps(old).encode()))
    log = logs.read(path)
    assert log.format == "chrome-trace"
    assert log.series["device_busy_share"].values.tolist() == [pytest.approx(0.6)]
    assert facts(log)["trace"]["copies"]["DtoH"]["bytes"] == 8
    assert facts(log)["trace"]["launches"] == 1


def test_without_steps_the_whole_trace_counts(tmp_path):
    log = logs.read(written(tmp_path / "a.json", [kernel("gemm", 0, 30), kernel("gemm", 70, 30)]))
    assert not log.series
    assert facts(log)["trace"]["idle_share"] == pytest.approx(0.4)


def test_cut_off_anywhere_it_gives_what_came_before(tmp_path):
    path = written(tmp_path / "a.json")
    whole = path.read_text()
    begin = whole.index('"traceEvents"') + 20
    counted = []
    for cut in range(begin, len(whole) - 30, 97):
        path.write_text(whole[:cut])
        log = logs.read(path, READER)
        assert log.damage, cut
        series = log.series.get("step_seconds@3")
        counted.append(0 if series is None else len(series))
    assert counted == sorted(counted) and counted[0] == 0 and counted[-1] == 4


def test_one_damaged_event_costs_that_event(tmp_path):
    path = written(tmp_path / "a.json")
    broken = path.read_text().replace('"dur": 200', '"dur": 2 00', 1)
    path.write_text(broken)
    log = logs.read(path, READER)
    assert "1 events could not be read" in " ".join(log.damage)
    assert facts(log)["trace"]["kernels"] == 11
    assert len(log.series["step_seconds@3"]) == 4


@pytest.mark.parametrize(
    "event",
    [
        {"cat": ["kernel"], "name": "x", "ts": 1, "dur": 1},
        {"cat": "kernel", "name": "x", "ts": "1", "dur": 1},
        {"cat": "kernel", "name": "x", "ts": 1, "dur": -5},
        {"cat": "kernel", "name": {"a": 1}, "ts": 1, "dur": 1},
        {"cat": "kernel", "name": "x", "ts": 10**400, "dur": 1},
        {"cat": "kernel", "name": "x", "ts": float("nan"), "dur": float("inf")},
        {"cat": "gpu_memcpy", "name": "Memcpy", "ts": 1, "dur": 1, "args": "none"},
        {"cat": "kernel", "name": "\x1b[2J\u202e", "ts": 1, "dur": 1, "args": {"device": 10**30}},
        {"name": "[memory]", "args": {"Total Allocated": "many", "Device Type": 1}},
        [], 7, None,
    ],
)  # fmt: skip
def test_events_that_are_not_as_they_should_be(tmp_path, event):
    log = logs.read(written(tmp_path / "a.json", [*EVENTS, event, kernel("last", 3700, 10)]))
    assert len(log.series["step_seconds@3"]) == 4
    names = [one["name"] for one in facts(log)["kernels"]["top"]]
    assert "last" in names and all(name.isprintable() for name in names)


def test_nested_too_deep_is_one_line(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"traceEvents": [' + "[" * 200_000)
    log = logs.read(path, READER)
    assert len(log.damage) >= 1 and not log.series


def test_more_than_can_be_kept_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome_trace, "MOST_KEPT", 20)
    log = logs.read(written(tmp_path / "a.json"), READER)
    assert "left out" in log.damage[0]
    assert 0 < facts(log)["trace"]["kernels"] < 12


def test_a_long_trace_is_read_piece_by_piece(tmp_path):
    path = tmp_path / "long.json"
    filler = json.dumps(span("python_function", "x" * 900, 1, 1))
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for _ in range(100_000):
            file.write(filler + ",\n")
        file.write(",".join(json.dumps(event) for event in EVENTS) + "]}")
    script = (
        "import resource; from brickprof import logs; from brickprof.logs.chrome_trace import READER;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        f"log = logs.read({str(path)!r}, READER);"
        "print(len(log.series['step_seconds']), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    assert path.stat().st_size > 90 << 20
    assert int(said[0]) == 4 and int(said[1]) * unit < 60 << 20


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.binary(max_size=200), st.text(alphabet='{}[]",:0123456789.eabts \n\\"', max_size=200).map(str.encode))
)
def test_arbitrary_bytes_are_read_or_called_damaged(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "t.json"
    path.write_bytes(b'{"traceEvents": [' + json.dumps(EVENTS[0]).encode() + b"," + data)
    log = logs.read(path, READER)
    assert len(log.series.get("step_seconds", [])) <= 1
    assert log.damage or data.rstrip().endswith(b"}")


def test_other_json_is_not_taken_for_a_trace():
    assert READER.sniff(Head("a.json", b'{"log_history": [{"step": 1}]}')) == 0.0
    assert READER.sniff(Head("a.jsonl", b'[{"step": 1, "loss": 2}]')) == 0.0
    assert READER.sniff(Head("a.log", b"step 1 loss 2")) == 0.0
