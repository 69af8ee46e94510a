"""Missing syncs, on streams that are only told of: every bug is found, and nobody is accused who waits."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.cuda import _gpu_trace
from torch.utils.flop_counter import FlopCounterMode

import brickprof
from brickprof.capture import surroundings
from brickprof.capture.pending import sealed
from brickprof.capture.pending.clocks import HOST, Clocks
from brickprof.capture.pending.regions import region, shared, within
from brickprof.capture.pending.watch import (
    Eye,
    Watch,
    _any_stream,
    _asking,
    _event,
    _replaying,
    listen,
    put,
    wrap,
    wrap_any_device,
)  # fmt: skip
from brickprof.probes.pending import PendingProbe
from tests.fake_streams import DEFAULT, FakeMachine, Gpu, choosing, touching

SIDE, OTHER = 1, 2
Scenario = Callable[[Gpu], None]
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


# -- the host reads what is copied to it


@bug("missing-sync")
def read_at_once(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    host.sum()


@bug("missing-sync")
def read_through_another_view(gpu):
    host = gpu.pinned(8)
    view = host[2:4]
    gpu.to_host(host, gpu.tensor(8))
    float(view[0])


@bug("missing-sync")
def read_with_tolist(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    host.tolist()


@bug("missing-sync")
def read_with_numpy(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    float(host.numpy()[0])


@bug("missing-sync")
def read_as_an_array(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    np.mean(np.asarray(host))


@bug("missing-sync")
def numpy_view_until_the_next_copy(gpu):
    host = gpu.pinned(4)
    for _ in range(2):
        gpu.to_host(host, gpu.tensor(4))
        held = host.numpy()
        held.sum()


@bug("missing-sync")
def read_by_numpys_functions(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    np.mean(host.numpy()[1:])


@bug("missing-sync")
def copied_as_an_array(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    array = host.numpy().copy()
    assert array.shape == (4,)


@bug("missing-sync")
def an_array_with_a_name(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    array = host.numpy()
    with torch.no_grad():
        total = float(array.reshape(2, 2).sum())
    del array
    assert total == 0


@bug("missing-sync")
def an_array_by_way_of_a_function(gpu):
    def as_array(tensor):
        return tensor.numpy()

    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    sum(as_array(host))


@bug("missing-sync")
def the_wrong_stream_is_synchronised(gpu):
    host = gpu.pinned(4)
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    gpu.tensor(4)
    gpu.synchronize(DEFAULT)
    host.sum()
    assert gpu.told[0]["instead"] == "other-stream"


@bug("missing-sync")
def an_event_that_was_recorded_too_early(gpu):
    host, source = gpu.pinned(4), gpu.tensor(4)
    event = gpu.event()
    gpu.to_host(host, source)
    gpu.observer.event_done(event)
    host.sum()
    assert gpu.told[0]["instead"] == "event-too-early"


@bug("missing-sync")
def an_event_that_said_no(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    gpu.observer.event_not_done(gpu.event())
    host.sum()
    assert gpu.told[0]["instead"] == "not-done"


@bug("missing-sync")
def an_event_that_was_never_recorded(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    gpu.observer.event_done(4711)
    host.sum()


@bug("missing-sync")
def the_copy_before_was_waited_for(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    gpu.synchronize()
    gpu.to_host(host, gpu.tensor(4))
    host.sum()


@bug("missing-sync")
def a_stream_waits_but_not_the_host(gpu):
    host = gpu.pinned(4)
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    gpu.wait_stream(DEFAULT, SIDE)
    host.sum()


@healthy
def the_stream_is_synchronised(gpu):
    host = gpu.pinned(4)
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    gpu.synchronize(SIDE)
    host.sum()


@healthy
def the_device_is_synchronised(gpu):
    host = gpu.pinned(4)
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    gpu.synchronize()
    host.tolist()


@healthy
def an_event_after_the_copy(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    gpu.observer.event_done(gpu.event())
    host.sum()


@healthy
def an_event_on_a_stream_that_waits(gpu):
    host = gpu.pinned(4)
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    gpu.wait_stream(OTHER, SIDE)
    gpu.synchronize(OTHER)
    host.sum()


@healthy
def an_event_that_says_yes_after_a_no(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    event = gpu.event()
    gpu.observer.event_not_done(event)
    gpu.observer.event_done(event)
    host.sum()


@healthy
def a_copy_that_blocks(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4), non_blocking=False)
    host.sum()


@healthy
def a_later_copy_of_the_stream_blocks(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    gpu.to_host(torch.zeros(4), gpu.tensor(4), non_blocking=False)
    host.sum()


@healthy
def pageable_memory(gpu):
    host = torch.zeros(4)
    gpu.to_host(host, gpu.tensor(4))
    host.sum()


@healthy
def scattered_pinned_memory_goes_through_a_buffer(gpu):
    host = gpu.pinned(4, 4)
    gpu.to_host(host.t()[:, :2], gpu.tensor(4, 2))
    host.sum()


@healthy
def the_other_half_of_the_buffer(gpu):
    host = gpu.pinned(8)
    gpu.to_host(host[:4], gpu.tensor(4))
    host[4:].sum()


@healthy
def a_numpy_view_that_waits(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    view = host.numpy()
    gpu.synchronize()
    view.sum()


@healthy
def a_numpy_view_that_is_only_asked_for_its_size(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    sizes = host.numpy().nbytes, host.numpy().shape, host.numpy()[1:].dtype, len(host.numpy()), np.asarray(host).ndim
    pointer = host.numpy().ctypes.data
    array = host.numpy()
    sizes += (array.nbytes, array.strides)
    del array
    assert host.numpy() is not None and pointer and len(sizes) == 7
    gpu.synchronize()
    assert host.sum() == 0


@healthy
def a_numpy_view_of_every_copy_of_which_the_last_is_read(gpu):
    host = gpu.pinned(4)
    for _ in range(2):
        gpu.to_host(host, gpu.tensor(4))
        array = host.numpy()
        assert array.shape == (4,)
    gpu.synchronize()
    assert host.numpy().sum() == 0


@healthy
def a_numpy_view_for_the_whole_run(gpu):
    host = gpu.pinned(4)
    view = host.numpy()
    for _ in range(3):
        gpu.to_host(host, gpu.tensor(4))
        gpu.synchronize()
        view.sum()


@healthy
def a_second_view_that_is_read_after_the_wait(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    view = host.view(2, 2)
    assert view.shape == (2, 2) and torch.empty_like(host).shape == (4,)
    gpu.synchronize()
    view.sum()


@healthy
def a_copy_inside_a_capture(gpu):
    host = gpu.pinned(4)
    with gpu.capture():
        gpu.to_host(host, gpu.tensor(4))
    host.sum()


# -- the host writes what is copied from it


@bug("host-buffer-reuse")
def refilled_at_once(gpu):
    host, target = gpu.pinned(4), gpu.tensor(4)
    gpu.to_device(target, host)
    host.fill_(2)


@bug("host-buffer-reuse")
def refilled_after_to(gpu):
    host = gpu.pinned(4)
    host.to("meta", non_blocking=True)
    host[1:3] += 1


@bug("host-buffer-reuse")
def two_buffers_are_one_too_few(gpu):
    buffers = [gpu.pinned(4), gpu.pinned(4)]
    for step in range(3):
        buffers[step % 2].fill_(step)
        gpu.to_device(gpu.tensor(4), buffers[step % 2])


@bug("host-buffer-reuse")
def written_while_it_is_filled(gpu):
    host = gpu.pinned(4)
    gpu.to_host(host, gpu.tensor(4))
    host.zero_()


@bug("host-buffer-reuse")
def refilled_through_numpy(gpu):
    host, target = gpu.pinned(4), gpu.tensor(4)
    view = host.numpy()
    for step in range(2):
        view[:] = step
        gpu.to_device(target, host)
    assert gpu.told[0]["how"] == "write-unseen"


@healthy
def refilled_through_numpy_after_its_event(gpu):
    host, target = gpu.pinned(4), gpu.tensor(4)
    view = host.numpy()
    for step in range(3):
        view[:] = step
        gpu.to_device(target, host)
        gpu.observer.event_done(gpu.event())


@healthy
def copied_twice_as_it_is(gpu):
    host = gpu.pinned(4096)
    for _ in range(3):
        gpu.to_device(gpu.tensor(4096), host)


@healthy
def refilled_after_its_event(gpu):
    host, target = gpu.pinned(4), gpu.tensor(4)
    for step in range(3):
        host.fill_(step)
        gpu.to_device(target, host)
        gpu.observer.event_done(gpu.event())


@healthy
def a_source_is_read(gpu):
    host = gpu.pinned(4)
    gpu.to_device(gpu.tensor(4), host)
    host.sum()


@healthy
def two_buffers_with_events(gpu):
    buffers, events = [gpu.pinned(4), gpu.pinned(4)], {}
    for step in range(5):
        if step % 2 in events:
            gpu.observer.event_done(events[step % 2])
        buffers[step % 2].fill_(step)
        gpu.to_device(gpu.tensor(4), buffers[step % 2])
        events[step % 2] = gpu.event()


@healthy
def a_new_buffer_each_time(gpu):
    for step in range(3):
        gpu.to_device(gpu.tensor(4), gpu.pinned(4).fill_(step))


# -- two streams


@bug("stream-race")
def used_on_another_stream(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    made.sum()


@bug("stream-race")
def the_default_stream_waits_for_nobody(gpu):
    made = gpu.tensor(4)
    with gpu.stream(SIDE):
        made * 2


@bug("stream-race")
def written_while_another_stream_reads(gpu):
    made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        made.sum()
    made.add_(1)


@bug("stream-race")
def the_streams_wait_the_wrong_way_round(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    made.sum()


@bug("stream-race")
def an_event_recorded_before_the_kernel(gpu):
    with gpu.stream(SIDE):
        event = gpu.event()
        made = gpu.tensor(4)
    gpu.wait(DEFAULT, event)
    made.sum()


@bug("stream-race")
def pinned_memory_between_two_streams(gpu):
    host, target = gpu.pinned(4), gpu.tensor(4)
    gpu.synchronize()
    with gpu.stream(SIDE):
        gpu.to_host(host, gpu.tensor(4))
    with gpu.stream(OTHER):
        gpu.to_device(target, host)


@bug("stream-race")
def freed_while_another_stream_reads(gpu):
    made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        made.sum()
    del made
    gpu.tensor(4)  # at the same place: every base is 0 here
    assert gpu.told[0]["how"] == "freed"


@bug("stream-race")
def a_kernel_before_its_tensor_is_there(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    gpu.kernel(made, 4)


@bug("stream-race")
def written_while_a_kernel_is_at_it(gpu):
    made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        gpu.kernel(4, x=made[1:3])
    made.add_(1)


@healthy
def kernels_in_order(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
        gpu.kernel(made, made)
    gpu.wait_stream(DEFAULT, SIDE)
    gpu.kernel(made)
    made.add_(1)


@healthy
def two_kernels_that_may_both_only_read(gpu):
    made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        gpu.kernel(made)
        made.sum()
    gpu.kernel(made)


@healthy
def a_kernel_that_may_use_the_other_half(gpu):
    made = gpu.tensor(8)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        made[4:].add_(1)
    gpu.kernel(made)


@healthy
def a_kernel_that_is_handed_both_halves_and_reads_its_own(gpu):
    one, other, out = gpu.tensor(8), gpu.tensor(8), gpu.tensor(8)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        other.fill_(1)
    gpu.kernel(one, other, out, 0, source=choosing)


@healthy
def a_kernel_that_is_handed_what_it_has_no_use_for(gpu):
    x, absent, out = gpu.tensor(8), gpu.tensor(8), gpu.tensor(8)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        absent.fill_(1)
    gpu.kernel(x, x, out, absent)


@healthy
def a_kernel_inside_a_capture(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    with gpu.capture():
        gpu.kernel(made)


@healthy
def one_stream_waits_for_the_other(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    gpu.wait_stream(DEFAULT, SIDE)
    made.sum()


@healthy
def in_order_by_a_third_stream(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    gpu.wait_stream(OTHER, SIDE)
    gpu.wait_stream(DEFAULT, OTHER)
    made.sum()


@healthy
def in_order_by_the_host(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    gpu.synchronize(SIDE)
    made.sum()


@healthy
def both_only_read(gpu):
    made = gpu.tensor(4)
    gpu.synchronize()
    with gpu.stream(SIDE):
        made.sum()
    made.sum()


@healthy
def two_halves_on_two_streams(gpu):
    made = gpu.tensor(4, 8)
    gpu.synchronize()
    with gpu.stream(SIDE):
        made[:, :4].add_(1)
    with gpu.stream(OTHER):
        made[:, 4:].add_(1)


@healthy
def only_its_shape_is_asked_for(gpu):
    with gpu.stream(SIDE):
        made = gpu.tensor(4)
    torch.randn_like(made)
    made.new_zeros(3)


@healthy
def a_blocking_stream_and_the_default_stream(gpu):
    gpu.machine.external.add(SIDE)
    made = gpu.tensor(4)
    with gpu.stream(SIDE):
        made.add_(1)
    made.sum()


@healthy
def freed_after_the_home_stream_waited(gpu):
    made = gpu.tensor(4)
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        made.sum()
    gpu.wait_stream(DEFAULT, SIDE)
    del made
    gpu.tensor(4)


@healthy
def freed_memory_that_is_not_used_again(gpu):
    made = gpu.tensor(4)
    gpu.machine.bases[made.untyped_storage()._cdata] = 1 << 20
    gpu.wait_stream(SIDE, DEFAULT)
    with gpu.stream(SIDE):
        made.sum()
    del made
    gpu.tensor(4)


@healthy
def a_compute_stream_inside_a_capture(gpu):
    with gpu.capture():
        made = gpu.tensor(4)
        with gpu.stream(SIDE):
            made.add_(1)
        made.sum()
    made.sum()


@pytest.mark.parametrize(("cause", "scenario"), BUGS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bug_is_found_once_and_both_lines_are_named(cause, scenario):
    gpu = Gpu()
    with gpu.on():
        scenario(gpu)
    assert set(gpu.causes) == {cause}, gpu.told
    code = scenario.__code__
    lines = range(code.co_firstlineno, max(line for _, _, line in code.co_lines() if line) + 1)
    for side in ("first", "second"):
        told = gpu.told[0][side]
        stack = [line for line in told["stack"] if line.endswith(f" in {code.co_name}")]
        assert stack, told
        assert int(stack[0].split(":")[1].split()[0]) in lines, told


@pytest.mark.parametrize("scenario", HEALTHY, ids=lambda each: each.__name__)
def test_nobody_is_accused_who_waits(scenario):
    gpu = Gpu()
    with gpu.on():
        scenario(gpu)
    assert gpu.told == []


def test_views_of_what_was_there_before_are_no_writes():
    gpu = Gpu()
    before = torch.ones(8, device="meta")
    with gpu.on():
        with gpu.stream(SIDE):
            before[2:4].view(1, 2).detach()
        before.sum()
        with gpu.stream(SIDE):
            before.view(2, 4).sum()
    assert gpu.told == []


def test_sparse_tensors_and_lists_of_tensors_are_no_obstacle():
    gpu = Gpu()
    with gpu.on():
        table = torch.nn.Embedding(5, 2, sparse=True)
        table(torch.tensor([1, 3])).sum().backward()
        torch.optim.SGD(table.parameters(), lr=0.1).step()
        with gpu.stream(SIDE):
            made = [gpu.tensor(4), gpu.tensor(2)]
        torch._foreach_mul_(made, 2.0)
    assert gpu.causes == ["stream-race"] and len(gpu.told) == 2 and gpu.told[1]["count"] == 2


def test_a_pair_of_lines_is_told_again_only_when_its_count_has_doubled():
    gpu = Gpu()
    host = gpu.pinned(4)
    with gpu.on():
        for _ in range(11):
            gpu.to_host(host, gpu.tensor(4))
            host.sum()
    assert [fields["count"] for fields in gpu.told] == [1, 2, 4, 8, 11]
    assert {fields["pair"] for fields in gpu.told} == {0}


def test_a_numpy_view_from_before_the_copies_is_a_suspicion_only():
    gpu = Gpu()
    host = gpu.pinned(4)
    with gpu.on():
        view = host.numpy()
        for _ in range(4):
            gpu.to_host(host, gpu.tensor(4))
            view.sum()
    assert {fields["how"] for fields in gpu.told} == {"alias-kept"}
    assert gpu.told[-1]["count"] == 3


def test_a_view_that_may_have_been_read_is_a_suspicion_only():
    def given(gpu, host):
        list(map(np.ndarray.sum, [host.numpy()]))

    def under_a_condition(gpu, host):
        array = host.numpy()
        if gpu.told:
            array.sum()

    def left_before(gpu, host):
        array = host.numpy()
        if not gpu.told:
            return 0
        return array.sum()

    def without_a_source(gpu, host):
        exec(compile("host.numpy().sum()", "nowhere.py", "exec"), {"host": host})

    for scenario in (given, under_a_condition, left_before, without_a_source):
        gpu = Gpu()
        host = gpu.pinned(4)
        with gpu.on():
            gpu.to_host(host, gpu.tensor(4))
            scenario(gpu, host)
            gpu.synchronize()
            host.sum()
        assert [fields["how"] for fields in gpu.told] == ["alias-unread"] and gpu.causes == [], scenario.__name__


def test_a_view_that_is_read_after_the_next_copy_is_no_accusation():
    gpu = Gpu()
    host = gpu.pinned(4)
    with gpu.on():
        gpu.to_host(host, gpu.tensor(4))
        array = host.numpy()
        gpu.to_host(host, gpu.tensor(4))
        gpu.synchronize()
        assert array.sum() == 0
    assert gpu.causes == []


ATEN = torch.ops.aten
ON_DEVICE = {"device": "meta"}
MASK, WHERE = torch.ones(4, dtype=torch.bool, **ON_DEVICE), torch.ones(4, dtype=torch.long, **ON_DEVICE)
X, ONE = torch.ones(4, **ON_DEVICE), torch.ones((), **ON_DEVICE)
WAITS = [
    (ATEN.index.Tensor, (X, [MASK]), {}),
    (ATEN.index.Tensor, (X, [torch.tensor([1, 2])]), {}),
    (ATEN.index_put_.default, (X, [MASK], X), {}),
    (ATEN.index_put_.default, (X, [MASK], ONE), {}),
    (ATEN.index_put_.default, (X, [WHERE], torch.tensor(1.0)), {}),
    (ATEN.masked_fill_.Tensor, (X, MASK, ONE), {}),
    (ATEN.masked_select.default, (X, MASK), {}),
    (ATEN.nonzero.default, (X,), {}),
    (ATEN.repeat_interleave.Tensor, (WHERE,), {}),
    (ATEN._unique2.default, (X,), {}),
    (ATEN.unique_dim_consecutive.default, (X, 0), {}),
    (ATEN.bincount.default, (WHERE,), {}),
    (ATEN.histc.default, (X,), {}),
    (ATEN._linalg_check_errors.default, (X, "linalg.inv"), {"is_matrix": True}),
    (ATEN.linalg_inv_ex.default, (X,), {"check_errors": True}),
    (ATEN._linalg_eigh.default, (X,), {}),
]
GOES_ON = [
    (ATEN.index.Tensor, (X, [None, WHERE]), {}),
    (ATEN.index.Tensor, (X, [torch.zeros(0, dtype=torch.long)]), {}),
    (ATEN.index_put_.default, (X, [MASK], torch.tensor(1.0)), {}),
    (ATEN.index_put_.default, (X, [WHERE], X), {}),
    (ATEN.masked_fill_.Scalar, (X, MASK, 1.0), {}),
    (ATEN.repeat_interleave.Tensor, (WHERE,), {"output_size": 4}),
    (ATEN.histc.default, (X, 10, 0, 1), {}),
    (ATEN.linalg_inv_ex.default, (X,), {}),
    (ATEN.where.self, (MASK, X, X), {}),
]


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "waits"),
    [*((*each, True) for each in WAITS), *((*each, False) for each in GOES_ON)], ids=str,
)  # fmt: skip
def test_operations_in_which_the_host_waits_are_waits(operation, args, kwargs, waits):
    gpu = Gpu()
    host = gpu.pinned(4)
    with gpu.on():
        gpu.to_host(host, gpu.tensor(4))
        gpu.does(operation, *args, **kwargs)
        host.sum()
    assert gpu.causes == ([] if waits else ["missing-sync"])


def test_an_inverse_waits_for_the_host():
    gpu = Gpu()
    host = gpu.pinned(4)
    with gpu.on():
        gpu.to_host(host, gpu.tensor(4))
        torch.linalg.inv(gpu.tensor(2, 2))
        host.sum()
    assert gpu.told == []


def test_kernels_that_share_a_tensor_in_no_order_are_counted():
    handed = a_kernel_that_is_handed_both_halves_and_reads_its_own
    told = ((kernels_in_order, 0, 2), (two_kernels_that_may_both_only_read, 2, 2), (handed, 1, 1))
    for scenario, doubtful, kernels in told:
        gpu = Gpu()
        with gpu.on():
            scenario(gpu)
        assert (gpu.observer.ledger.doubtful > 0) == (doubtful > 0), scenario.__name__
        assert gpu.observer.kernels == kernels and gpu.observer.astray == 0


def test_a_kernel_that_is_given_memory_of_the_host_is_counted():
    gpu = Gpu()
    with gpu.on():
        gpu.kernel(gpu.pinned(4), gpu.tensor(4))
    assert (gpu.observer.kernels, gpu.observer.astray) == (1, 1)


def test_a_descriptor_that_a_kernel_is_given_is_its_tensor():
    gpu = Gpu()
    with gpu.on():
        with gpu.stream(SIDE):
            made = gpu.tensor(4)
        gpu.kernel(SimpleNamespace(base=made), 4)
    assert gpu.causes == ["stream-race"]


def test_record_stream_keeps_freed_memory_safe():
    gpu = Gpu()
    with gpu.on():
        made = gpu.tensor(4)
        gpu.wait_stream(SIDE, DEFAULT)
        with gpu.stream(SIDE):
            made.sum()
        gpu.observer.before(torch.ops.aten.record_stream.default, (made, SIDE), {})
        del made
        gpu.tensor(4)
    assert gpu.told == []


def test_what_goes_wrong_inside_ends_the_watching_and_not_the_script():
    gpu = Gpu()
    gpu.machine.stream = None  # type: ignore[assignment, method-assign]
    with Eye(gpu.observer):
        for _ in range(9):
            assert gpu.tensor(2).sum().shape == ()
    assert len(gpu.failures) == 3 and gpu.observer.broken


def test_our_own_operations_are_not_the_users():
    gpu = Gpu()
    with gpu.on():
        exec(compile("host.sum()", surroundings.__file__, "exec"), {"host": torch.zeros(2)})
        host = gpu.pinned(4)
        gpu.to_host(host, gpu.tensor(4))
        exec(compile("host.sum()", surroundings.__file__, "exec"), {"host": host})
    assert gpu.told == []


def test_our_mode_is_no_reason_to_keep_our_hands_off():
    gpu = Gpu()
    with Eye(gpu.observer):
        assert not surroundings.host_hands_off()
        with FlopCounterMode(display=False):
            assert surroundings.host_hands_off()


def test_a_compiled_function_stays_compiled_under_the_mode():
    calls = []

    def backend(graph, _inputs):
        calls.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: (x * 2).sum(), backend=backend)
    with Gpu().on():
        assert float(compiled(torch.ones(3))) == 6
        assert float(compiled(torch.ones(3))) == 6
    assert len(calls) == 1


def test_results_and_gradients_are_the_same_under_the_mode():
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
        return torch.cat([each.flatten() for each in model.parameters()]).tolist()

    plain = train()
    with Gpu().on():
        assert train() == plain


# -- clocks


def test_an_event_recorded_anew_stands_for_the_new_place():
    clocks = Clocks()
    first = clocks.launch(SIDE)
    clocks.record(7, SIDE)
    second = clocks.launch(SIDE)
    clocks.record(7, SIDE)
    clocks.event_done(7)
    assert clocks.known(HOST, SIDE, first) and clocks.known(HOST, SIDE, second)


def test_what_the_host_knows_counts_for_every_stream_but_not_the_other_way_round():
    clocks = Clocks()
    number = clocks.launch(SIDE)
    clocks.record(7, SIDE)
    clocks.wait(OTHER, 7)
    assert clocks.known(OTHER, SIDE, number) and not clocks.known(HOST, SIDE, number)
    assert not clocks.known(DEFAULT, SIDE, number)
    clocks.stream_done(SIDE)
    assert clocks.known(HOST, SIDE, number) and clocks.known(DEFAULT, SIDE, number)


def test_a_deleted_event_orders_nothing():
    clocks = Clocks()
    number = clocks.launch(SIDE)
    clocks.record(7, SIDE)
    clocks.forget(7)
    clocks.event_done(7)
    assert not clocks.known(HOST, SIDE, number)


def test_another_device_is_not_synchronised():
    clocks = Clocks()
    clocks.meet(SIDE, 0)
    clocks.meet(OTHER, 1)
    here, there = clocks.launch(SIDE), clocks.launch(OTHER)
    clocks.device_done(0)
    assert clocks.known(HOST, SIDE, here) and not clocks.known(HOST, OTHER, there)


# -- regions


def test_regions_agree_with_the_elements_of_the_tensors():
    torch.manual_seed(0)
    base = torch.arange(240).view(6, 8, 5)
    views = [
        base, base[2], base[:, 3], base[..., 1], base[..., 2:4], base[::2], base[1::2], base.transpose(0, 2)[1],
        base[:3, :4], base[:3, 4:], base[3:, ::3], base[0, 0, :0],
    ]  # fmt: skip
    for one in views:
        for other in views:
            regions = [region(v.storage_offset(), v.shape, v.stride(), v.element_size()) for v in (one, other)]
            elements = [set(v.flatten().tolist()) for v in (one, other)]
            assert shared(*regions) == bool(elements[0] & elements[1])
            if within(*regions):
                assert elements[0] <= elements[1]


# -- torch's trace, and the methods that are wrapped


def test_torchs_trace_is_heard_and_left_again():
    from torch.cuda import _gpu_trace

    gpu = Gpu()
    undo = listen(gpu.observer)
    with Eye(gpu.observer), gpu.stream(SIDE):
        made = gpu.tensor(4)
        _gpu_trace.EventRecordCallbacks.fire_callbacks(7, SIDE)
        _gpu_trace.EventWaitCallbacks.fire_callbacks(7, OTHER)
        with gpu.stream(OTHER):
            made.sum()
        host = gpu.pinned(4)
        gpu.to_host(host, made)
        _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(SIDE)
        host.sum()
        gpu.to_host(host, made)
        _gpu_trace.EventRecordCallbacks.fire_callbacks(8, SIDE)
        _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(8)
        host.sum()
        gpu.to_host(host, made)
        _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
        host.sum()
        _gpu_trace.EventDeletionCallbacks.fire_callbacks(8)
    for each in undo:
        each()
    assert gpu.told == [] and not gpu.failures
    waited = gpu.observer.clocks.waited
    _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    assert waited == gpu.observer.clocks.waited == 4


def test_wrapped_methods_do_what_they_did_and_are_put_back():
    names = ("numpy", "tolist", "__repr__", "__reduce_ex__", "__dlpack__")
    before = {name: torch.Tensor.__dict__.get(name) for name in names}
    query, emptied = torch.cuda.Event.query, torch.cuda.empty_cache
    gpu = Gpu()
    undo = wrap(gpu.observer)
    try:
        host = gpu.pinned(2)
        with Eye(gpu.observer):
            assert host.tolist() == [0, 0] and repr(host) == "tensor([0., 0.])" and (host.numpy() == 0).all()
            assert np.from_dlpack(host).tolist() == [0, 0] and torch.equal(pickle.loads(pickle.dumps(host)), host)
            assert gpu.told == []
            gpu.to_host(host, gpu.tensor(2))
            pickle.dumps(host)
    finally:
        while undo:
            undo.pop()()
    assert gpu.causes == ["missing-sync"] and gpu.told[0]["second"]["op"] == "__reduce_ex__" and not gpu.failures
    assert {name: torch.Tensor.__dict__.get(name) for name in names} == before
    assert torch.cuda.Event.query is query and torch.cuda.empty_cache is emptied


def test_an_event_that_is_asked_answers_as_before():
    gpu, answers = Gpu(), iter([False, True])

    class Event:
        cuda_event = 7

        def query(self) -> bool:
            return next(answers)

    with gpu.on():
        host = gpu.pinned(4)
        gpu.to_host(host, gpu.tensor(4))
        gpu.record(7)
        undo = put(Event, "query", partial(_asking, gpu.observer.event_done, gpu.observer.event_not_done, _event))
        event = Event()
        while not event.query():
            pass
        host.sum()
        undo()
    assert gpu.told == []


def test_an_event_of_any_device_that_is_asked_is_heard_and_put_back():
    gpu = Gpu()
    event, query, asked = torch.Event(device="cpu"), torch.Event.query, torch.Stream.query
    assert event.event_id == 0  # it was never recorded, and says that it is done
    host = gpu.pinned(4)
    undo = wrap_any_device(gpu.observer)
    try:
        with gpu.on():
            gpu.to_host(host, gpu.tensor(4))
            gpu.record(event.event_id)
            while not event.query():
                pass
            host.sum()
        assert torch.Event.query is not query and torch.Stream.query is not asked
    finally:
        for each in undo:
            each()
    assert gpu.told == [] and gpu.observer.hears_questions and gpu.observer.clocks.waited == 1
    assert torch.Event.query is query and torch.Stream.query is asked and event.query()
    assert gpu.observer.clocks.waited == 1


def test_a_stream_of_any_device_is_that_of_its_handle():
    gpu = Gpu()
    gpu.machine.handed = lambda stream: stream.stream_id
    of = partial(SimpleNamespace, stream_id=SIDE)
    assert _any_stream(gpu.observer, of(device=torch.device("cuda", 0))) == SIDE
    assert _any_stream(gpu.observer, of(device=torch.device("cpu"))) is None


def test_a_question_whose_handle_cannot_be_had_is_answered_all_the_same():
    answered = _asking(lambda _: 1 // 0, lambda _: None, lambda _: 7, lambda _: True)
    assert answered(None) is True


def test_where_a_class_of_torchs_cannot_be_changed_the_observer_knows(monkeypatch):
    monkeypatch.setattr(sealed, "_methods", lambda owner: None)
    gpu, query = Gpu(), torch.Event.query
    assert wrap_any_device(gpu.observer) == [] and not gpu.observer.hears_questions
    assert torch.Event.query is query


def test_kernels_are_heard_from_when_triton_is_there(monkeypatch):
    class JITFunction:
        __name__, arg_names, fn = "mine", ("x",), staticmethod(touching)

        def run(self, *args, grid, warmup=False):
            return args, grid

    before = JITFunction.run
    gpu, watch = Gpu(), Watch(lambda fields: None, lambda error: None)
    watch.observer = gpu.observer
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter", raising=False)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", ModuleType("triton.runtime.jit"))
    assert watch.start() and JITFunction.run is before
    monkeypatch.setattr(sys.modules["triton.runtime.jit"], "JITFunction", JITFunction, raising=False)
    assert watch.start() and watch.start()
    with gpu.on():
        with gpu.stream(SIDE):
            made = gpu.tensor(4)
        kernel = JITFunction()
        assert kernel.run(made, grid=(1,), warmup=True) == ((made,), (1,)) and gpu.told == []
        assert kernel.run(made, grid=(1,)) == ((made,), (1,))
    watch.stop()
    assert gpu.causes == ["stream-race"] and gpu.observer.kernels == 1 and JITFunction.run is before
    assert gpu.told[0]["second"]["op"] == "mine"
    assert gpu.told[0]["second"]["site"].startswith(Path(__file__).name)


def test_replays_of_graphs_are_counted():
    gpu, replayed = Gpu(), []
    _replaying(gpu.observer, replayed.append)("graph")
    assert gpu.observer.replays == 1 and replayed == ["graph"]


def test_what_it_takes_is_in_what_the_run_cost(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda _ready: None)
    paid: list[tuple[str, int]] = []
    settings = SimpleNamespace(sync_check=True, level="standard")
    session = SimpleNamespace(settings=settings, charge_apart=lambda *booked: paid.append(booked))
    probe = PendingProbe(session)
    assert probe._watch is not None
    probe._watch._charge(7)
    assert paid == [("pending", 7)]


@pytest.mark.parametrize("asked", [True, None])
def test_it_can_be_asked_for_where_somebody_attaches(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda _ready: None)
    made: list[PendingProbe] = []

    def closed(probe):
        made.append(probe)

    monkeypatch.setattr(PendingProbe, "close", closed)
    monkeypatch.setattr(Watch, "start", lambda watch, **_: False)
    with brickprof.attach(None, out=tmp_path, sync_check=asked):
        pass
    assert [probe._watch is not None for probe in made] == [asked is True]


def test_a_watch_that_cannot_begin_leaves_nothing_behind(monkeypatch):
    def breaks(_observer):
        raise RuntimeError("another torch")

    before, watch = torch.Tensor.tolist, Watch(lambda fields: None, lambda error: None)
    monkeypatch.setattr("brickprof.capture.pending.watch.Cuda", FakeMachine)
    monkeypatch.setattr("brickprof.capture.pending.watch.wrap_any_device", breaks)
    heard = _gpu_trace.EventRecordCallbacks.callback_list
    for _ in range(2):
        with pytest.raises(RuntimeError, match="another torch"):
            watch.start(ready=True)
    assert torch.Tensor.tolist is before and heard == [] and not torch._C._len_torch_dispatch_stack()
    watch.stop()
