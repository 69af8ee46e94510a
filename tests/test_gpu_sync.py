"""Missing syncs on real streams: every bug is found with its two lines, and no healthy look-alike is accused.

A bug marks its two sides by comments, ``# first`` and ``# second``. Kernels that sleep make the races real.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brickprof.capture.pending.watch import Watch
from brickprof.reference import zoo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

N = 1 << 20
LONG = 100_000_000
Scenario = Callable[[], None]
BUGS: list[tuple[str, Scenario]] = []
HEALTHY: list[Scenario] = []


def bug(cause: str) -> Callable[[Scenario], Scenario]:
    def keep(scenario: Scenario) -> Scenario:
        BUGS.append((cause, scenario))
        return scenario

    return keep


def healthy(scenario: Scenario) -> Scenario:
    HEALTHY.append(scenario)
    return scenario


def busy() -> None:
    torch.cuda._sleep(LONG)


@triton.jit
def doubled(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) * 2)


def device(value: float = 1.0) -> torch.Tensor:
    made = torch.full((N,), value, device="cuda")
    torch.cuda.synchronize()
    return made


def pinned() -> torch.Tensor:
    return torch.zeros(N, pin_memory=True)


# -- bugs: the host reads too early


@bug("missing-sync")
def read_at_once():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)  # first
    host.sum()  # second


@bug("missing-sync")
def read_after_to_cpu():
    x = device()
    busy()
    host = x.to("cpu", non_blocking=True)  # first
    float(host[0])  # second


@bug("missing-sync")
def read_a_numpy_temporary():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)  # first
    float(host.numpy()[0])  # second


@bug("missing-sync")
def read_a_list_of_a_view():
    x, host = device(), pinned()
    view = host[:4]
    busy()
    host.copy_(x, non_blocking=True)  # first
    view.tolist()  # second


@bug("missing-sync")
def read_by_numpy_itself():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)  # first
    np.mean(np.asarray(host))  # second


@bug("missing-sync")
def the_wrong_stream_is_synchronised():
    x, host, side = device(), pinned(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        host.copy_(x, non_blocking=True)  # first
    torch.cuda.current_stream().synchronize()
    host.sum()  # second


@bug("missing-sync")
def the_event_is_recorded_too_early():
    x, host, event = device(), pinned(), torch.cuda.Event()
    event.record()
    busy()
    host.copy_(x, non_blocking=True)  # first
    event.synchronize()
    host.sum()  # second


@bug("missing-sync")
def the_event_said_no():
    x, host, event = device(), pinned(), torch.cuda.Event()
    busy()
    host.copy_(x, non_blocking=True)  # first
    event.record()
    assert not event.query()
    host.sum()  # second


@bug("missing-sync")
def only_a_stream_waits():
    x, host, side = device(), pinned(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        host.copy_(x, non_blocking=True)  # first
    torch.cuda.current_stream().wait_stream(side)
    host.sum()  # second


@bug("missing-sync")
def an_event_of_any_device_said_no():
    x, host, event = device(), pinned(), torch.Event("cuda")
    busy()
    host.copy_(x, non_blocking=True)  # first
    event.record()
    assert not event.query()
    host.sum()  # second


@bug("missing-sync")
def a_mask_is_looked_at_on_another_stream():
    x, other, host, side = device(), device(), pinned(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        host.copy_(x, non_blocking=True)  # first
    other[other > 0]
    host.sum()  # second


# -- bugs: the host writes too early


@bug("host-buffer-reuse")
def refilled_at_once():
    x, host = device(), pinned()
    busy()
    x.copy_(host, non_blocking=True)  # first
    host.fill_(2)  # second


@bug("host-buffer-reuse")
def refilled_after_to_cuda():
    host = pinned()
    device()
    busy()
    host.to("cuda", non_blocking=True)  # first
    host[: N // 2] += 1  # second


@bug("host-buffer-reuse")
def refilled_through_a_numpy_view():
    x, host = device(), pinned()
    view = host.numpy()
    busy()
    x.copy_(host, non_blocking=True)  # first
    view[:] = 1
    x.copy_(host, non_blocking=True)  # second


# -- bugs: two streams


@bug("stream-race")
def a_kernel_reads_what_another_stream_fills():
    x, out, side = device(), device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.fill_(2.0)  # first
    doubled[(N // 1024,)](x, out, SIZE=1024)  # second


@bug("stream-race")
def side_stream_result_is_used():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        y = x * 2  # first
    y.sum()  # second


@bug("stream-race")
def default_stream_result_is_used_on_the_side():
    side = torch.cuda.Stream()
    busy()
    x = torch.full((N,), 3.0, device="cuda")  # first
    with torch.cuda.stream(side):
        x.sum()  # second


@bug("stream-race")
def overwritten_while_it_is_read():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.sum()  # first
    x.add_(1)  # second


@bug("stream-race")
def the_streams_wait_the_wrong_way_round():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.mul_(2)  # first
    side.wait_stream(torch.cuda.current_stream())
    x.sum()  # second


@bug("stream-race")
def freed_without_record_stream():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.sum()  # first
    del x
    torch.full((N,), 5.0, device="cuda")  # second


@bug("stream-race")
def pinned_memory_between_two_streams():
    x, y, host, side = device(), device(), pinned(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        host.copy_(x, non_blocking=True)  # first
    y.copy_(host, non_blocking=True)  # second


# -- healthy look-alikes


@healthy
def the_stream_is_synchronised():
    x, host, side = device(), pinned(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        host.copy_(x, non_blocking=True)
    side.synchronize()
    assert host.sum() == N


@healthy
def the_device_is_synchronised():
    x, host = device(), pinned()
    host.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    assert host.tolist()[0] == 1


@healthy
def an_event_after_the_copy():
    x, host, event = device(), pinned(), torch.cuda.Event()
    busy()
    host.copy_(x, non_blocking=True)
    event.record()
    event.synchronize()
    assert host.sum() == N


@healthy
def an_event_of_any_device_that_is_asked_until_it_says_yes():
    x, host, event = device(), pinned(), torch.Event("cuda")
    busy()
    host.copy_(x, non_blocking=True)
    event.record()
    while not event.query():
        time.sleep(0.001)
    host.sum()


@healthy
def a_mask_makes_the_host_wait():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)
    x[x > 0]
    host.sum()


@healthy
def an_array_is_asked_for_its_size():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)
    assert host.numpy().nbytes == 4 * N
    torch.cuda.synchronize()
    host.sum()


@healthy
def kernels_behind_the_other_stream():
    x, out, side = device(), device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.fill_(2.0)
    torch.cuda.current_stream().wait_stream(side)
    doubled[(N // 1024,)](x, out, SIZE=1024)
    float(out[0])


@healthy
def kernels_that_read_beside_each_other():
    x, out, other, side = device(), device(), device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        doubled[(N // 1024,)](x, other, SIZE=1024)
    doubled[(N // 1024,)](x, out, SIZE=1024)
    torch.cuda.synchronize()


@healthy
def an_event_that_is_asked_until_it_says_yes():
    x, host, event = device(), pinned(), torch.cuda.Event()
    host.copy_(x, non_blocking=True)
    event.record()
    while not event.query():
        time.sleep(0.001)
    assert host.sum() == N


@healthy
def a_number_is_read_in_between():
    x, host = device(), pinned()
    host.copy_(x, non_blocking=True)
    x.sum().item()
    assert host.sum() == N


@healthy
def copies_that_block():
    x, host = device(), pinned()
    busy()
    host.copy_(x)
    assert host.sum() == N
    x.copy_(host)
    host.fill_(2)


@healthy
def pageable_memory():
    x, host = device(), torch.zeros(N)
    busy()
    host.copy_(x, non_blocking=True)
    assert host.sum() == N
    x.copy_(host, non_blocking=True)
    host.fill_(2)


@healthy
def a_numpy_view_that_waits():
    x, host = device(), pinned()
    busy()
    host.copy_(x, non_blocking=True)
    view = host.numpy()
    torch.cuda.current_stream().synchronize()
    assert view.sum() == N


@healthy
def a_numpy_view_for_the_whole_run():
    x, host, side = device(), pinned(), torch.cuda.Stream()
    view = host.numpy()
    for _ in range(3):
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        side.synchronize()
        assert view[0] == 1


@healthy
def the_other_half_of_the_buffer():
    x, host = device(), pinned()
    busy()
    host[: N // 2].copy_(x[: N // 2], non_blocking=True)
    host[N // 2 :].fill_(3)


@healthy
def two_buffers_with_events():
    x, buffers, events = device(), [pinned(), pinned()], [torch.cuda.Event(), torch.cuda.Event()]
    for step in range(6):
        events[step % 2].synchronize()
        buffers[step % 2].fill_(step)
        x.copy_(buffers[step % 2], non_blocking=True)
        events[step % 2].record()


@healthy
def refilled_through_a_numpy_view_after_its_event():
    x, host, event = device(), pinned(), torch.cuda.Event()
    view = host.numpy()
    for step in range(3):
        event.synchronize()
        view[:] = step
        x.copy_(host, non_blocking=True)
        event.record()


@healthy
def one_stream_waits_for_the_other():
    x, side = device(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    assert y.sum() == 2 * N


@healthy
def a_prefetcher_as_it_should_be():
    side, host, done = torch.cuda.Stream(), pinned(), torch.cuda.Event()
    for step in range(4):
        done.synchronize()
        host.fill_(step)
        with torch.cuda.stream(side):
            batch = host.to("cuda", non_blocking=True)
            done.record(side)
        torch.cuda.current_stream().wait_stream(side)
        batch.record_stream(torch.cuda.current_stream())
        assert batch[0] == step


@healthy
def both_streams_only_read():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.sum()
    x.sum()


@healthy
def columns_on_two_streams():
    x = torch.zeros(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    for at, stream in enumerate((torch.cuda.Stream(), torch.cuda.Stream())):
        with torch.cuda.stream(stream):
            busy()
            x[:, 512 * at : 512 * at + 512].add_(1)


@healthy
def only_the_shape_is_asked_for():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.mul_(2)
    assert torch.empty_like(x).shape == x.shape


@healthy
def freed_with_record_stream():
    x, side = device(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        x.sum()
    x.record_stream(side)
    del x
    torch.full((N,), 5.0, device="cuda")


@healthy
def a_captured_graph():
    x, y = device(), device()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.copy_(x * 2)
    torch.cuda.current_stream().wait_stream(side)
    graph, branch = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        branch.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(branch):
            y.copy_(x * 3)
        torch.cuda.current_stream().wait_stream(branch)
        y.add_(1)
    graph.replay()
    assert y[0].item() == 4


@healthy
def a_backward_whose_forward_ran_on_two_streams():
    layer, side = torch.nn.Linear(512, 512, device="cuda"), torch.cuda.Stream()
    for _ in range(3):
        x = torch.randn(256, 512, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            half = layer(x)
        x.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        half.record_stream(torch.cuda.current_stream())
        (half.square().mean() + layer(x).mean()).backward()
        with torch.no_grad():
            for each in layer.parameters():
                each.sub_(each.grad, alpha=0.1)
                each.grad = None


@healthy
def an_ordinary_training_with_pinned_batches():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        x = torch.randn(32, 64).pin_memory().to("cuda", non_blocking=True)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        float(loss)


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    found: list[dict[str, Any]] = []
    failures: list[Exception] = []
    watch = Watch(found.append, failures.append)
    assert watch.start()
    try:
        yield found
    finally:
        watch.stop()
        torch.cuda.synchronize()
    assert not failures, failures
    assert torch._C._len_torch_dispatch_stack() == 0


def marked(scenario: Scenario, mark: str) -> str:
    lines, start = inspect.getsourcelines(scenario)
    (at,) = [start + number for number, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}")]
    return f"{Path(__file__).name}:{at}"


def test_there_are_enough_scenarios():
    assert len(BUGS) + len(HEALTHY) >= 20  # what was asked for
    assert len(BUGS) >= 21 and len(HEALTHY) >= 26  # what there is


@pytest.mark.parametrize(("cause", "scenario"), BUGS, ids=lambda each: getattr(each, "__name__", each))
def test_a_bug_is_found_with_its_two_lines(cause, scenario, told):
    scenario()
    torch.zeros(1)  # arrays that are gone are judged at the next operation
    said = [(fields["cause"], fields["first"]["site"], fields["second"]["site"]) for fields in told]
    assert said == [(cause, marked(scenario, "first"), marked(scenario, "second"))], json.dumps(told, indent=1)


@pytest.mark.parametrize("scenario", HEALTHY, ids=lambda each: each.__name__)
def test_no_healthy_one_is_accused(scenario, told):
    scenario()
    torch.zeros(1)
    assert told == [], json.dumps(told, indent=1)


def test_nothing_waits_for_the_device(told):
    """A device that sleeps goes on sleeping: the check itself never waits."""
    x, host, event = device(), pinned(), torch.cuda.Event()
    host.copy_(x, non_blocking=True)
    x.add_(1)  # kernels are loaded when they are first used, and that waits
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * LONG)
    host.copy_(x, non_blocking=True)
    event.record()
    x.add_(1)
    assert not event.query(), "the host was held up until the device was done"


def test_the_mode_and_the_wrappers_are_gone_afterwards():
    torch.zeros(1, device="cuda")
    before = {name: torch.Tensor.__dict__.get(name) for name in ("numpy", "tolist", "__repr__", "__dlpack__")}
    query = torch.cuda.Event.query
    watch = Watch(lambda fields: None, lambda error: None)
    assert watch.start()
    watch.stop()
    assert {name: torch.Tensor.__dict__.get(name) for name in before} == before
    assert torch.cuda.Event.query is query and torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    "fault", ["alb-065", "cause-missing-sync-lstm", "cause-stream-race-mlp", "cause-host-buffer-reuse-cnn"]
)
def test_the_faults_of_the_zoo_are_diagnosed(fault, tmp_path):
    specimen = zoo.faults()[fault]
    found = diagnosed(tmp_path, str(specimen.path), *specimen.run)
    causes = [finding["root_cause"] for finding in found["findings"] if finding["contract"] == "C-STREAMSYNC-001"]
    assert causes and causes[0] in specimen.root_causes, json.dumps(found["findings"], indent=1)[:4000]
    (contract,) = [each for each in found["contracts"] if each["id"] == "C-STREAMSYNC-001"]
    assert contract["verdict"] == "FAIL"


def test_the_experiment_tells_a_missing_wait_without_the_check(tmp_path):
    fault = str(zoo.faults()["alb-065"].path)
    done = command("experiment", "launch-blocking", "--json", "-o", str(tmp_path), fault)
    assert done.returncode == 1, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert told["outcome"] == "differ" and "none was used" not in told["text"], told["text"]


def test_a_healthy_script_passes_only_because_something_was_looked_at(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(5):\n"
        "    x = torch.randn(4, 8).pin_memory().to('cuda', non_blocking=True)\n"
        "    loss = model(x).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    for flags in (["--sync-check"], ["--level", "deep"]):
        found = diagnosed(tmp_path / flags[-1], str(script), *flags)
        (contract,) = [each for each in found["contracts"] if each["id"] == "C-STREAMSYNC-001"]
        assert contract["verdict"] == "PASS" and "5 copies" in contract["observed"], contract
    found = diagnosed(tmp_path / "standard", str(script))
    (contract,) = [each for each in found["contracts"] if each["id"] == "C-STREAMSYNC-001"]
    assert contract["verdict"] == "NOT_EVALUATED"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "brickprof", *words], capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": paths}, check=False,
    )  # fmt: skip


def diagnosed(out: Path, script: str, *flags: str) -> dict[str, Any]:
    ran = command("run", "-o", str(out), "--no-live", *flags, script)
    folders = [each for each in out.iterdir() if (each / "diagnosis.json").is_file()]
    assert folders, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads((folders[0] / "diagnosis.json").read_text())
    return found
