"""Numbers of a device that are only held, and fetched together: the device is played by the host."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from brickprof.capture import readback as module
from brickprof.capture import surroundings
from brickprof.capture.readback import Readback, Several
from tests.late import Lane


class Device:
    """Fetches what stands at the addresses of a page, as the kernel does."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def __call__(self, page: torch.Tensor) -> None:
        room, words = module.ROOM, page.numpy()
        out = words[3 * room :].view("float32")
        asked = [tuple(int(words[i + part * room]) for part in range(3)) for i in range(room) if words[room + i]]
        self.fetched.append(len(asked))
        for address, count, place in asked:
            out[place : place + count] = (ctypes.c_float * count).from_address(address)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(module, "on_host", lambda tensor: False)
    readback, device = Readback(), Device()
    readback.lane = Lane(0.0)
    readback.gather = lambda value: device
    return readback, device


def alone(readback, value, seen):
    """One number, for somebody of its own."""
    readback.keep(
        [(value, None, 0)], Several(lambda _: True, lambda _, found: seen.extend(found), lambda _, x: seen.append(x))
    )


def test_numbers_are_fetched_together_and_each_goes_to_whoever_asked(made):
    readback, device = made
    seen: list[tuple[int, float]] = []
    whose = Several(lambda _: True, lambda tags, found: seen.extend(zip(tags, found, strict=True)), lambda *_: None)
    for number in range(32):
        assert not readback.ripe
        readback.keep([(torch.tensor(0.5 + number), number, 0)], whose)
    assert readback.ripe and readback.busy and not device.fetched
    readback.send()
    readback.poll()
    assert device.fetched == [32] and readback.lane.marks == 1
    assert seen == [(number, 0.5 + number) for number in range(32)] and not readback.busy


def test_rows_of_numbers_and_single_ones_share_a_page(made):
    readback, device = made
    seen: list[object] = []
    alone(readback, torch.tensor(7.0), seen)
    readback.keep_row(torch.arange(300.0), lambda values: seen.append(values.tolist()))
    alone(readback, torch.tensor(8.0), seen)
    readback.keep_row(torch.arange(12.0).view(3, 4).t()[0], lambda values: seen.append(values.tolist()))  # not in a row
    readback.send()
    readback.poll()
    assert device.fetched == [3]
    assert sorted(seen, key=str) == [7.0, 8.0, [float(number) for number in range(300)], [0.0, 4.0, 8.0]]


def test_what_is_not_a_single_float32_is_copied_at_once(made):
    readback, device = made
    seen: list[float] = []
    for value in (torch.tensor(2.5, dtype=torch.bfloat16), torch.tensor(3.5, dtype=torch.float64), torch.ones(1)):
        alone(readback, value, seen)
    readback.send()
    readback.poll()
    assert device.fetched == [1] and sorted(seen) == [1.0, 2.5, 3.5]


@pytest.mark.parametrize("why", ["nothing compiled", "none wanted"])
def test_without_a_kernel_everything_is_copied_at_once(made, why):
    readback, device = made
    readback.gather = None if why == "none wanted" else lambda value: None
    seen: list[float] = []
    loss = torch.tensor(1.5)
    alone(readback, loss, seen)
    loss.fill_(9.0)  # later than the copy
    readback.send()
    readback.poll()
    assert seen == [1.5] and not device.fetched


def test_a_number_that_was_written_over_is_not_told_and_none_is_held_again(made):
    readback, device = made
    seen: list[float] = []
    first, second = torch.tensor(1.0), torch.tensor(2.0)
    alone(readback, first, seen)
    alone(readback, second, seen)
    first.mul_(7)
    readback.send()
    readback.poll()
    assert seen == [2.0] and readback.dropped == 1
    third = torch.tensor(3.0)
    alone(readback, third, seen)
    third.mul_(7)
    readback.send()
    readback.poll()
    assert seen == [2.0, 3.0] and device.fetched == [1]


def test_memory_that_is_used_again_is_noticed(made):
    """A replayed graph writes every loss into the same place, and no version tells."""
    readback, _ = made
    seen: list[float] = []
    place = torch.tensor(1.0)
    alone(readback, place.detach(), seen)
    ctypes.c_float.from_address(place.data_ptr()).value = 5.0
    alone(readback, place.detach(), seen)
    ctypes.c_float.from_address(place.data_ptr()).value = 6.0
    readback.send()
    readback.poll()
    assert seen == [5.0] and readback.dropped == 1 and not readback.holding


def test_another_stream_is_a_reason_to_fetch(made):
    readback, device = made
    seen: list[float] = []
    alone(readback, torch.tensor(1.0), seen)
    readback.lane.at = "another"
    alone(readback, torch.tensor(2.0), seen)
    assert device.fetched == [1]
    readback.send()
    readback.poll()
    assert seen == [1.0, 2.0]


def test_a_graph_is_never_held_alive(made):
    readback, _ = made
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    alone(readback, loss, [])
    held = next(iter(readback._held.values()))[0]
    assert held.grad_fn is None and held.data_ptr() == loss.data_ptr()


def test_a_full_page_is_fetched(made):
    readback, device = made
    seen: list[float] = []
    for number in range(200):
        alone(readback, torch.tensor(float(number)), seen)
    readback.send()
    readback.poll()
    assert device.fetched == [128, 72] and seen == [float(number) for number in range(200)]


def several(seen, usual=lambda numbers: True):
    return Several(
        usual,
        lambda tags, numbers: seen.append(("together", list(zip(tags, numbers, strict=True)))),
        lambda tag, number: seen.append((tag, number)),
    )


def test_numbers_that_are_as_usual_are_handed_over_together(made):
    readback, device = made
    seen: list[object] = []
    whose = several(seen)
    readback.keep([(torch.tensor(0.5 + step), step, 100 + step) for step in range(3)], whose)
    alone(readback, torch.tensor(9.0), seen)
    readback.keep([(torch.tensor(7.5), 7, 107)], whose)
    readback.send()
    readback.poll()
    assert device.fetched == [5] and seen == [("together", [(0, 0.5), (1, 1.5), (2, 2.5), (7, 7.5)]), 9.0]


def test_what_is_copied_and_what_is_held_is_told_in_its_order(made):
    readback, device = made
    seen: list[float] = []
    for number in range(0, 9, 3):
        alone(readback, torch.tensor(float(number)), seen)
        readback.scalar(torch.tensor(number + 1.0), seen.append)
        readback.scalar(torch.tensor(number + 2.0), seen.append)
    readback.send()
    readback.poll()
    assert seen == [float(number) for number in range(9)] and device.fetched == [1, 1, 1]


def test_where_nothing_is_held_numbers_still_share_a_page(made):
    readback, _ = made
    readback.holding = False
    seen: list[float] = []
    for number in range(20):
        alone(readback, torch.tensor(float(number)), seen)
    readback.send()
    readback.poll()
    assert seen == [float(number) for number in range(20)] and readback.lane.marks == 1


def test_a_row_of_one_is_a_row(made):
    readback, _ = made
    seen: list[object] = []
    readback.keep_row(torch.ones(1), lambda row: seen.append(row.tolist()))
    readback.send()
    readback.poll()
    assert seen == [[1.0]]


def test_what_fails_with_one_is_no_others_loss(made):
    readback, _ = made
    seen: list[float] = []
    readback.keep_row(torch.ones(3), lambda row: 1 / 0)
    readback.keep_row(torch.ones(2), lambda row: seen.append(row.sum()))
    alone(readback, torch.tensor(4.0), seen)
    readback.send()
    with pytest.raises(ZeroDivisionError):
        readback.poll()
    assert sorted(seen) == [2.0, 4.0] and not readback.busy


def test_what_belongs_together_stands_in_one_page(made):
    """The loss of a step and the norm of its gradients, told in the order of their time."""
    readback, device = made
    seen: list[object] = []
    losses, norms = several(seen, lambda _: False), several(seen)
    for number in range(90):
        readback.keep([(torch.tensor(0.0), "before", number)], losses)
    readback.keep([(torch.tensor(1.0), f"loss {step}", 100 + 10 * step) for step in range(16)], losses)
    readback.keep([(torch.tensor(2.0), f"norm {step}", 105 + 10 * step) for step in range(16)], norms)
    readback.send()
    readback.poll()
    told = [tag for tag, _ in seen if tag != "before"]
    assert device.fetched == [90, 32] and told == [f"{what} {step}" for step in range(16) for what in ("loss", "norm")]


def test_of_several_that_are_not_alike_all_are_told_in_their_order(made):
    readback, _ = made
    seen: list[object] = []
    kinds = [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    readback.keep([(torch.tensor(float(at), dtype=kind), at, at) for at, kind in enumerate(kinds)], several(seen))
    readback.send()
    readback.poll()
    told = [each[1] if each[0] == "together" else [each] for each in seen]
    assert [number for part in told for _, number in part] == [0.0, 1.0, 2.0, 3.0]


def test_what_lies_on_the_host_is_told_at_once(made, monkeypatch):
    readback, _ = made
    host = torch.tensor(3.0)
    monkeypatch.setattr(module, "on_host", lambda tensor: tensor.data_ptr() == host.data_ptr())
    readback.lane.serves = lambda tensor: tensor.data_ptr() != host.data_ptr()
    seen: list[object] = []
    readback.keep([(host, "host", 0)], several(seen), noted=True)
    assert seen == [("host", 3.0)] and not readback.busy and not readback.dropped


def test_a_page_has_as_much_room_here_as_in_the_kernel():
    source = (Path(module.__file__).parents[2] / "kernels" / "_scalars.py").read_text()
    assert f"\nROOM = {module.ROOM}\n" in source


def test_where_two_of_several_lie_in_one_place_none_is_told(made):
    readback, _ = made
    seen: list[object] = []
    place, whose, other = torch.tensor(1.0), several(seen), several(seen)
    readback.keep([(torch.tensor(5.0), "of another", 0)], other)
    readback.keep([(torch.tensor(3.0), "before", 0)], whose)
    readback.keep([(place, 1, 1), (torch.tensor(2.0), 2, 2), (place.view(()), 3, 3)], whose)
    readback.send()
    readback.poll()
    assert seen == [("together", [("of another", 5.0)])] and readback.dropped == 4 and not readback.holding


def test_one_that_is_not_as_usual_has_all_handed_over_in_the_order_of_their_time(made):
    readback, _ = made
    dates: list[int] = []
    readback._date = dates.append
    seen: list[object] = []
    losses, norms = several(seen), several(seen, lambda numbers: max(numbers) < 10)
    readback.keep([(torch.tensor(float(step)), f"loss {step}", 10 * step) for step in (1, 2)], losses)
    readback.keep([(torch.tensor(50.0 + step), f"norm {step}", 10 * step + 1) for step in (1, 2)], norms)
    readback.send()
    readback.poll()
    assert seen == [("loss 1", 1.0), ("norm 1", 51.0), ("loss 2", 2.0), ("norm 2", 52.0)]
    assert [date for date in dates if date] == [10, 11, 20, 21]


def test_of_several_only_what_is_still_there_is_handed_over(made):
    readback, device = made
    seen: list[object] = []
    values = [torch.tensor(float(step)) for step in range(4)]
    readback.keep([(value, step, step) for step, value in enumerate(values)], several(seen))
    values[2].mul_(7)
    readback.send()
    readback.poll()
    assert seen == [("together", [(0, 0.0), (1, 1.0), (3, 3.0)])] and readback.dropped == 1 and not readback.holding
    readback.keep([(torch.tensor(8.0), 8, 8)], several(seen))  # copied at once from here on
    readback.keep([(torch.tensor(9.0), 9, 9)], several(seen), passive=True)  # or not at all
    readback.send()
    readback.poll()
    assert seen[1:] == [(8, 8.0)] and device.fetched == [3] and readback.dropped == 2


def test_replayed_graphs_are_known(monkeypatch):
    import sys
    from types import SimpleNamespace

    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    assert not surroundings.static_outputs()
    for containers, expected in (({}, False), ({0: object()}, True)):
        trees = SimpleNamespace(local=SimpleNamespace(tree_manager_containers=containers))
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
        assert surroundings.static_outputs() is expected


def test_memory_that_was_made_in_an_inference_is_used_outside_of_it(made):
    readback, _ = made
    seen: list[list[float]] = []
    with torch.inference_mode():
        readback.read(torch.ones(3), lambda host: seen.append(host.tolist()))
        readback.poll()
    readback.read(torch.zeros(3), lambda host: seen.append(host.tolist()))  # into the very same
    readback.poll()
    with torch.inference_mode():
        readback.read(torch.full((3,), 2.0), lambda host: seen.append(host.tolist()))
        readback.poll()
    assert seen == [[1.0] * 3, [0.0] * 3, [2.0] * 3]
