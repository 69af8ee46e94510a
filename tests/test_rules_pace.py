"""Slow steps, host reads, memory that grows, buffers that overflow; and what only a device can tell."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from making import START, Made

from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.operators import launch
from brickprof.records import BUDGET, DECLARED, Event, RunMeta, Span
from brickprof.rules import artifacts, bounds, device, growth_of_memory, host_reads, pace, resource
from brickprof.rules.story import Story
from brickprof.run import Run

MS = 1_000_000


def judge(made: Made | Run, rule):
    run = made if isinstance(made, Run) else made.run()
    judged = rule()
    if hasattr(judged, "feed"):
        for record in run.records():
            judged.feed(record)
    return judged.judge(Story.of(run), Terms().contract(rule.contract))


# -- waiting for data


def loading(waits_ms, work_ms: float, steps: int = 40) -> Made:
    made, now, rng = Made(), START, np.random.default_rng(0)
    for step in range(steps):
        wait = rng.choice(waits_ms) * MS
        now += int(wait)
        batch = {"loader": 0, "wait_ns": int(wait), "fingerprint": f"f{step}", "count": step + 1}
        made.records.append(Event("batch", step, batch, 1000 + step, now, 0))
        made.step(step)
        now += int(work_ms * MS)
    return made


def test_a_loader_that_takes_most_of_the_time_is_found():
    (violation,) = judge(loading([40.0, 45.0], 5.0), pace.Budget).violations
    assert (violation.cause, violation.severity, violation.granularity) == ("loader-bound", Severity.WARNING, "loader")
    assert violation.detected_step <= 15


@pytest.mark.parametrize(
    ("read", "waits", "severity"),
    [(0, "", Severity.INFO), (1, "", Severity.WARNING), (0, "synchronize", Severity.WARNING),
     (0, "event.synchronize", Severity.INFO), (0, "stream.synchronize", Severity.INFO)],
)  # fmt: skip
def test_next_to_a_device_a_wait_proves_something_only_where_each_step_waits_for_it(read, waits, severity):
    made = loading([40.0, 45.0], 5.0)
    for event in made.records:
        if getattr(event, "kind", "") == "tensor":
            event.fields["device"] = "cuda:0"
    for step in (1, 2, 4, 8):
        told = {"waits": [["train.py:7", waits, 1, 10_000]]} if waits else {}
        made.event("syncs", step, count=read, device=read, sites=[["train.py:9", read]], **told)
    (violation,) = judge(made, pace.Budget).violations
    assert (violation.cause, violation.severity) == ("loader-bound", severity)


@pytest.mark.parametrize(
    ("waits", "work"),
    [([2.0], 0.5), ([10.0], 40.0), ([0.2] * 9 + [400.0], 5.0)],
    ids=["short waits of a toy", "a small share", "workers that start now and then"],
)
def test_ordinary_waits_are_no_findings(waits, work):
    assert judge(loading(waits, work), pace.Budget).violations == ()


def evaluated(steps: int, every: int, batches: int) -> Made:
    """Trains with a quick loader, 5 ms a step, and draws so many ``batches`` from a slow one every so many steps."""
    made, now, drawn = Made(), START, [0, 0]
    for step in range(steps):
        for loader, wait, work in [(0, 0.5, 5.0), *[(1, 8.0, 2.0)] * (batches if step % every == every - 1 else 0)]:
            now += int(wait * MS)
            drawn[loader] += 1
            batch = {"loader": loader, "wait_ns": int(wait * MS), "count": drawn[loader]}
            made.records.append(Event("batch", step, batch, 1000 + sum(drawn), now, 0))
            now += int(work * MS)
        made.step(step)
    return made


@pytest.mark.parametrize(
    ("steps", "every", "batches"), [(400, 40, 4), (2000, 150, 12)], ids=["a few batches", "seconds of a long run"]
)
def test_the_slow_loader_of_an_evaluation_now_and_then_does_not_slow_the_training_down(steps, every, batches):
    assert judge(evaluated(steps, every, batches), pace.Budget).violations == ()


def test_the_slow_loader_of_evaluations_that_take_most_of_the_time_is_found():
    (violation,) = judge(evaluated(100, 10, 40), pace.Budget).violations
    assert violation.cause == "loader-bound"


# -- a late rank


def together(alone_ms, together_ms, steps: int = 24) -> Run:
    """Two ranks: time by themselves, and from the backward to the update."""
    records = []
    for rank in (0, 1):
        made = Made(rank=rank)
        made.records[0].fields["world_size"] = 2
        made.records[1].fields["wrapper"] = "DistributedDataParallel"
        now = START
        for step in range(steps):
            now += int(alone_ms[rank] * MS)
            made.records.append(Event("loss", step, {"value": 1.0}, 1000 + 2 * step, now, rank))
            made.sample("weight", step, "body", checksum=step)
            now += int(together_ms[rank] * MS)
            made.records.append(Event("optimizer", step, {"lr": [1e-3]}, 1001 + 2 * step, now, rank))
        records += made.records
    return Run.from_records(records, RunMeta("pair", source="records"))


def test_a_rank_that_the_others_wait_for_is_named():
    (violation,) = judge(together((5.0, 50.0), (50.0, 5.0)), pace.Budget).violations
    assert (violation.cause, violation.rank) == ("straggler", 1)


@pytest.mark.parametrize(
    ("alone", "both"), [((5.0, 6.0), (10.0, 9.0)), ((5.0, 50.0), (10.0, 10.0)), ((1.0, 3.0), (3.0, 1.0))]
)
def test_noise_and_ranks_that_nobody_waits_for_are_no_stragglers(alone, both):
    assert judge(together(alone, both), pace.Budget).violations == ()


# -- a block that takes longer than the matrices


def timed(norm_ms: float, linear_ms: float, steps: int = 20) -> Made:
    made = Made("linear", "norm")
    for event in made.records:
        if event.kind == "tensor" and event.fields["name"] == "norm.weight":
            event.fields["shape"] = [8]
    now = START
    for step in range(steps):
        made.step(step)
        for path, lasted in (("", norm_ms + linear_ms), ("linear", linear_ms), ("norm", norm_ms)):
            end = now + int(lasted * MS)
            made.records.append(Span(Brick(Kind.BLOCK, path, made.model), step, now, end, "forward", id=step + 1))
        now += 100 * MS
    return made


def test_a_normalisation_that_takes_longer_than_products_is_named():
    made = timed(20.0, 1.0)
    made.records = [record for record in made.records if not (isinstance(record, Span) and record.id == 0)]
    (violation,) = judge(made, pace.Budget).violations
    assert (violation.cause, violation.brick) == ("launch-storm", "norm")


@pytest.mark.parametrize(("norm", "linear"), [(3.0, 1.0), (0.5, 0.01), (1.5, 20.0)])
def test_ordinary_blocks_are_no_storm(norm, linear):
    made = timed(norm, linear)
    made.records = [record for record in made.records if not (isinstance(record, Span) and record.id == 0)]
    assert judge(made, pace.Budget).violations == ()


def test_a_loop_of_launches_explains_why_its_brick_is_over_its_budget():
    made = timed(20.0, 1.0)
    made.records = [record for record in made.records if not (isinstance(record, Span) and record.id == 0)]
    for record in made.records:
        if isinstance(record, Span) and record.brick.path == "norm":
            record.attributes.update({BUDGET: 500.0, DECLARED: True})
    assert [violation.what for violation in judge(made, pace.Budget).violations] == ["launch-storm", "over-budget"]
    (finding,) = diagnose(made.run()).findings
    assert (finding.root_cause, finding.brick) == ("launch-storm", "norm")
    assert finding.symptom == "norm takes 20,000 us on the host, 40 times what was declared for it"


# -- host reads


def reading(site: str, reads: int, tensors: int = 20, device: str = "cpu", over: str = "") -> Made:
    made = Made(*(f"b{place}" for place in range(tensors)))
    for event in made.records:
        if event.kind == "tensor":
            event.fields["device"] = device
    for step in range(6):
        made.step(step)
        around = {"around": {site: ["range(steps)", over]}} if over else {}
        made.event("syncs", step, count=reads + 1, sites=[[site, reads], ["train.py:9", 1]], **around)
    return made


@pytest.mark.parametrize(("times", "over"), [(1, ""), (1, "model.parameters()"), (2, "named_parameters")])
def test_a_read_for_each_parameter_is_named_with_its_line(times, over):
    (violation,) = judge(reading("train.py:50", 20 * times, over=over), host_reads.Transfers).violations
    assert (violation.cause, violation.severity) == ("host-sync-in-loop", Severity.WARNING)
    assert "train.py:50 reads" in violation.symptom


@pytest.mark.parametrize(
    ("site", "reads"), [("train.py:50", 3), ("rollout.py:8", 205), ("train.py:50", 1000), ("adamw.py:400", 20)]
)
def test_ordinary_reads_are_no_findings(site, reads):
    assert judge(reading(site, reads), host_reads.Transfers).violations == ()


@pytest.mark.parametrize(("reads", "over"), [(40, ""), (20, "range(horizon)"), (60, "zip(u.tolist(), r.tolist())")])
def test_as_many_reads_as_parameters_in_a_loop_over_something_else_are_no_finding(reads, over):
    assert judge(reading("rollout.py:8", reads, over=over), host_reads.Transfers).violations == ()


@pytest.mark.parametrize(
    ("kind", "times", "found"), [("synchronize", 64, True), ("synchronize", 1, False), ("event.synchronize", 64, False)]
)
def test_a_loop_that_waits_for_the_device_is_named_as_what_it_is(kind, times, found):
    made = reading("train.py:9", 1, device="cuda:0")
    for event in made.records:
        if getattr(event, "kind", "") == "syncs":
            event.fields.update(device=1, waits=[["train.py:44", kind, times, 1000]])
    told = judge(made, host_reads.Transfers).violations
    assert bool(told) is found
    if found:
        assert told[0].cause == "host-sync-in-loop" and "synchronize() out of the loop" in told[0].action
        assert told[0].symptom == "train.py:44 waits 64 times for the device in a step, in every step"


def test_many_reads_from_a_device_are_named():
    (violation,) = judge(reading("rollout.py:8", 205, device="cuda:0"), host_reads.Transfers).violations
    assert violation.cause == "host-sync-in-loop"


@pytest.mark.parametrize(
    ("device", "over", "severities"),
    [("cuda:0", "range(horizon)", [Severity.INFO]), ("cuda:0", "", [Severity.WARNING]), ("cpu", "range(horizon)", [])],
)
def test_reads_of_an_environment_on_a_device_are_no_violation_where_the_source_shows_what_they_are(
    device, over, severities
):
    made = reading("rollout.py:8", 150, device=device, over=over)
    looks = [event for event in made.records if getattr(event, "kind", "") == "syncs"]
    for count, event in zip((120, 198, 101, 166, 187, 140), looks, strict=True):
        event.fields.update(sites=[["rollout.py:8", count, 0, count]], device=count)
    result = judge(made, host_reads.Transfers)
    assert [violation.severity for violation in result.violations] == severities
    assert (result.verdict is Verdict.FAIL) is (severities == [Severity.WARNING])


def test_nothing_accumulates_with_one_backward_a_step():
    assert judge(reading("train.py:1", 1), host_reads.Accumulation).verdict is Verdict.VACUOUS


# -- memory


def remembering(sizes_mb, **fields) -> Made:
    made = Made()
    made.event("start", 0, rank=-1, memory_limit=None, memory_total=64e9)
    for look, size in enumerate(sizes_mb):
        made.step(10 * look)
        made.event("memory", 10 * look, rss=size * 1e6, **fields)
    return made


def test_losses_that_keep_their_graphs_are_a_leak():
    made = remembering([500, 500, 500])
    for step in range(0, 60, 6):
        made.event("retained", step, graphs=max(0, step - 1), since=0)
    (violation,) = judge(made, growth_of_memory.Stable).violations
    assert (violation.cause, violation.severity) == ("memory-leak", Severity.ERROR)


@pytest.mark.parametrize("graphs", [[0, 1, 1, 1, 1], [0, 9, 0, 9, 0], [0, 16, 16, 16, 16], [3, 3]])
def test_graphs_that_are_let_go_are_no_leak(graphs):
    made = remembering([500] * 6)
    for look, alive in enumerate(graphs):
        made.event("retained", 20 * look, graphs=alive, since=0)
    assert judge(made, growth_of_memory.Stable).verdict is Verdict.PASS


def test_the_same_amount_in_every_step_is_a_leak():
    (violation,) = judge(remembering([500 + 40 * look for look in range(10)]), growth_of_memory.Stable).violations
    assert (violation.cause, violation.severity) == ("memory-leak", Severity.WARNING)


@pytest.mark.parametrize(
    "sizes",
    [
        [300, 420, 500, 520, 525, 526, 526, 526, 526, 526],
        [300, 300, 300, 300, 300, 600, 600, 600, 600, 600],
        [500 + look for look in range(10)],
        [500, 620, 480, 640, 470, 650, 500, 610, 520, 630],
        [500] * 10,
    ],
    ids=["warm-up", "one jump", "a trickle", "noise", "constant"],
)
def test_memory_that_does_not_go_on_growing_is_fine(sizes):
    assert judge(remembering(sizes), growth_of_memory.Stable).verdict is Verdict.PASS


def test_few_looks_decide_nothing():
    assert judge(remembering([100, 200]), growth_of_memory.Stable).verdict is Verdict.NOT_EVALUATED


def test_a_kill_that_a_leak_explains_is_one_finding():
    made = remembering([500 + 40 * look for look in range(10)])
    made.event("exited", 0, rank=-1, code=137, signal=9, name="SIGKILL", **{"class": "killed"})
    found = [finding for finding in diagnose(made.run()).findings if finding.severity is not Severity.INFO]
    assert [finding.root_cause for finding in found] == ["memory-leak"]


# -- bounds


ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def raising(kind: str, message: str) -> Made:
    made = Made()
    made.healthy(5)
    frames = [{"file": "/home/me/train.py", "line": 12, "function": "main", "text": ""}]
    made.event("exception", 4, type=kind, message=message, frames=frames, brick=1)
    made.event("exited", 0, rank=-1, code=1, text="the script exited 1", **{"class": "failed"})
    return made


@pytest.mark.parametrize(
    ("kind", "message", "cause", "contract"),
    [
        ("IndexError", "index out of range in self", "out-of-bounds", "C-BUFSIZE-001"),
        ("IndexError", "Target 12 is out of bounds.", "out-of-bounds", "C-BUFSIZE-001"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "out-of-bounds", "C-BUFSIZE-001"),
        (
            "RuntimeError",
            "The size of tensor a (64) must match the size of tensor b (128) at non-singleton dimension 0",
            "buffer-overflow",
            "C-BUFSIZE-001",
        ),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", "exception", "C-PROCESS-001"),
        ("ZeroDivisionError", "float division by zero", "division-by-zero", "C-PROCESS-001"),
        ("ValueError", "no such preset", "exception", "C-PROCESS-001"),
        ("AcceleratorError", f"CUDA error: device-side assert triggered{ADVICE}", "out-of-bounds", "C-BUFSIZE-001"),
        ("AcceleratorError", f"CUDA error: out of memory{ADVICE}", "out-of-memory", "C-PROCESS-001"),
        ("AcceleratorError", f"CUDA error: invalid argument{ADVICE}", "exception", "C-PROCESS-001"),
        ("RuntimeError", "NCCL: uncorrectable ECC error encountered", "hardware-error", "C-PROCESS-001"),
        (
            "RuntimeError",
            "element 0 of tensors does not require grad and does not have a grad_fn",
            "no-gradient-path",
            "C-PROCESS-001",
        ),
    ],
)
def test_an_exception_says_what_it_is_about(kind, message, cause, contract):
    (finding,) = [
        found for found in diagnose(raising(kind, message).run()).findings if found.severity is not Severity.INFO
    ]
    assert (finding.root_cause, finding.contract) == (cause, contract)


def refused(buffer, elements) -> launch.BufferTooSmall:
    with pytest.raises(launch.BufferTooSmall) as caught:
        launch.Kernel._fits(SimpleNamespace(name="swiglu.forward"), "y", buffer, elements)
    return caught.value


def test_a_kernel_that_refuses_a_buffer_is_named_with_the_sizes():
    made = raising("brickprof.operators.launch.BufferTooSmall", str(refused(torch.empty(1000), 1024)))
    diagnosis = diagnose(made.run())
    (finding,) = [found for found in diagnosis.findings if found.severity is not Severity.INFO]
    assert (finding.contract, finding.root_cause, finding.brick) == (
        "C-BUFSIZE-001", "buffer-overflow", "swiglu.forward",
    )  # fmt: skip
    assert finding.confidence > 0.9 and "train.py:12" in str(finding.to_dict())
    (violation,) = judge(made, bounds.Sizes).violations
    assert "swiglu.forward is too small: y holds 1,000 elements and the kernel reaches 1,024" in violation.symptom
    assert violation.action.startswith("Give y 24 more")


@pytest.mark.parametrize("kind", ["CannotLaunch", "WrongArgument"])
def test_other_refusals_of_a_kernel_are_exceptions_like_any_other(kind):
    made = raising(f"brickprof.operators.launch.{kind}", "gemm: x should be (..., 8); given: (2, 7)")
    (finding,) = [found for found in diagnose(made.run()).findings if found.severity is not Severity.INFO]
    assert (finding.contract, finding.root_cause) == ("C-PROCESS-001", "exception")


def test_what_a_device_reports_late_is_told_in_one_line_with_the_way_to_its_place():
    made = raising("AcceleratorError", f"CUDA error: device-side assert triggered{ADVICE}")
    (finding,) = [found for found in diagnose(made.run()).findings if found.severity is not Severity.INFO]
    assert "TORCH_USE_CUDA_DSA" not in str(finding.to_dict())
    assert finding.next_experiment.startswith("CUDA_LAUNCH_BLOCKING=1 brickprof run ")


def test_reads_of_an_environment_are_no_loop_over_parameters():
    made = reading("rollout.py:8", 40)
    looks = [event for event in made.records if getattr(event, "kind", "") == "syncs"]
    for number, event in enumerate(looks):  # as many as there were steps until the goal: a multiple by chance
        event.fields["sites"] = [["rollout.py:8", 20 * (1 + number % 3)]]
    assert judge(made, host_reads.Transfers).violations == ()


def test_whole_tensors_that_are_fetched_are_transfers():
    made = reading("train.py:50", 20, device="cuda:0")
    for event in made.records:
        if getattr(event, "kind", "") == "syncs":
            event.fields.update(sites=[["train.py:50", 20, 20]], device=20)
    (violation,) = judge(made, host_reads.Transfers).violations
    assert violation.cause == "extra-transfers" and "copies 20 tensors" in violation.symptom


def test_numbers_that_lie_on_the_host_are_read_for_nothing_next_to_a_device():
    made = reading("train.py:50", 20, device="cuda:0")
    for event in made.records:
        if getattr(event, "kind", "") == "syncs":
            event.fields["device"] = 0
    assert judge(made, host_reads.Transfers).violations == ()


def test_without_an_exception_bounds_are_not_evaluated():
    made = Made()
    made.healthy(5)
    assert judge(made, bounds.Sizes).verdict is Verdict.NOT_EVALUATED


# -- what a run cannot show


@pytest.mark.parametrize("rule", [*device.RULES, *artifacts.RULES], ids=lambda rule: rule.contract)
def test_what_a_run_cannot_show_is_not_evaluated_and_says_why(rule):
    made = Made()
    made.healthy(5)
    result = judge(made, rule)
    assert (result.id, result.verdict) == (rule.contract, Verdict.NOT_EVALUATED)
    assert result.why


def test_no_contract_promises_a_level_that_records_nothing_for_it():
    made = Made()
    made.healthy(5)
    for device_ in ("cpu", "cuda:0"):
        for event in made.records:
            if getattr(event, "kind", "") == "tensor":
                event.fields["device"] = device_
        said = judge(made, device.NoTensorCores)
        assert said.verdict is Verdict.NOT_EVALUATED and "--level" not in said.why and "check operator" in said.why


@pytest.mark.parametrize(
    ("cost", "seconds", "verdict"),
    [(0.01, 100.0, Verdict.PASS), (0.3, 0.2, Verdict.VACUOUS), (0.3, 100.0, Verdict.FAIL)],
)
def test_our_own_cost_is_counted(cost, seconds, verdict):
    made = Made()
    made.healthy(5)
    made.event("exit", 5, steps=5, overhead=cost, spent_seconds=seconds)
    assert judge(made, resource.Resource).verdict is verdict


def test_what_was_asked_for_may_cost():
    made = Made()
    made.event("run", 0, level="deep", budget=0.01)
    made.healthy(5)
    made.event("exit", 5, steps=5, overhead=4.0, spent_seconds=60.0)
    assert judge(made, resource.Resource).verdict is Verdict.NOT_EVALUATED
