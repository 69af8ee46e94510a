"""The vigil over gradients, with a kernel that is played by torch."""

from __future__ import annotations

import gc
import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import brickprof
from brickprof.capture import patches
from brickprof.capture import vigil as module
from brickprof.capture.backlog import Backlog
from brickprof.capture.fused import Table
from brickprof.capture.readback import Readback
from brickprof.capture.vigil import Norms, Vigil
from brickprof.clock import now
from brickprof.probes.gradients import GradientsProbe
from brickprof.settings import Settings
from tests.late import Lane


class Pretended(torch.nn.Parameter):
    """A parameter that says it lies on a device."""

    is_cuda = True


class Fused:
    def __init__(self) -> None:
        self.looked: list[int] = []
        self.device = 0.0

    def timed_table(self, purpose, values):
        self.looked.append(len(values))
        rows = [
            [float(torch.isnan(v).sum()), 0.0, 1.0, float(v.nan_to_num().norm()), 0, 0, 0, v.numel()] for v in values
        ]
        return Table(torch.tensor(rows, dtype=torch.float64), None)

    def settled(self, purpose):
        return False

    coming = False

    def device_ns(self, purpose):
        return self.device


class Compiling(Fused):
    """One that is there after some questions."""

    def __init__(self, questions) -> None:
        super().__init__()
        self.left = questions

    def timed_table(self, purpose, values):
        self.left -= 1
        return super().timed_table(purpose, values) if self.left < 0 else None

    @property
    def coming(self):
        return self.left >= 0


class Settled(Fused):
    """One that writes straight into the page as long as the gradients have the sizes that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, list[int]] = {}
        self.again_at: list[int] = []

    def settled(self, purpose):
        return True

    def timed_table(self, purpose, values):
        self.at[purpose] = [value.numel() for value in values]
        return super().timed_table(purpose, values)

    def again(self, purpose, values, page, stream):
        if self.at.get(purpose) != [value.numel() for value in values]:
            return False
        self.again_at.append(len(values))
        page.values.copy_(super().timed_table(purpose, values).values)
        self.looked.pop()
        return True


def cadence(typical, level):
    made = SimpleNamespace(budget=Settings(level=level).budget, typical_ns=typical, relieved=False, ease=1.0)
    made.relieve = lambda relieved: setattr(made, "relieved", relieved)
    return made


def session(level="standard", typical=30e6):
    readback = SimpleNamespace(read=lambda tensor, done: done(tensor), late=lambda stamp: False)
    paid: list[int] = []
    started: list[int] = []
    return SimpleNamespace(
        step=0, paid=paid, correct=paid.append, backlog=Backlog(), fused=Fused(), readback=readback,
        settings=SimpleNamespace(level=level), hidden=False, steps=SimpleNamespace(backwards=1),
        started=started, charge_start=started.append,
        takes_norms=level != "light",
        cadence=cadence(typical, level),
    )  # fmt: skip


def parameters(count=3):
    made = [Pretended(torch.ones(4)) for _ in range(count)]
    for each in made:
        each.grad = torch.ones(4)
    return made


def vigil(over, arrived, normal=lambda *_: None, broken=lambda *_: None, normed=lambda *_: None):
    return Vigil(over, arrived, normal, normed, broken, lambda totals: math.isfinite(sum(totals)))


def kept(over, given, steps, arrived=None):
    seen = [] if arrived is None else arrived
    watch = vigil(over, lambda step, names, table: seen.append((step, list(map(id, names.parameters())), table.copy())))
    for step in range(steps):
        over.step = step
        watch.take(given)
    return watch, seen


def test_every_step_is_judged_under_its_own_number():
    over, given = session(), parameters()
    given[1].grad[2] = torch.nan
    _, seen = kept(over, given, 5)
    assert [step for step, _, _ in seen] == list(range(5))
    assert [row[0] for row in seen[0][2].tolist()] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("clips", [True, False])
def test_until_the_kernel_is_compiled_norms_judge_every_step(clips):
    over, given, told, tables = session(), parameters(), [], []
    over.fused = Compiling(4)
    watch = vigil(
        over,
        lambda step, names, table: tables.append(step),
        normal=lambda steps, totals: told.append((steps, totals)),
        broken=lambda step, names, norms, *, clipped: told.append(
            (step, list(map(id, names.parameters())), norms, clipped)
        ),
    )
    for step in range(5):
        over.step = step
        given[1].grad[2] = torch.nan if step == 2 else 1.0
        given[2].grad = None if step == 3 else torch.ones(4)
        values = [each.grad for each in given if each.grad is not None]
        each = torch.stack([value.norm() for value in values])
        watch.take(given, Norms(each.norm(), each, each.norm()._version) if clips else None)
        each.fill_(7)  # as a script may do with what is its own
        watch.take(given)  # the update of what was clipped
    whole, part = pytest.approx(math.sqrt(12)), pytest.approx(math.sqrt(8))
    assert told[0] == ([0], [whole]) and told[1] == ([1], [whole]) and told[3] == ([3], [part])
    step, names, norms, clipped = told[2]
    assert clipped is clips and step == 2 and names == list(map(id, given))
    assert norms[0] == norms[2] == 2 and math.isnan(norms[1])
    assert len(over.started) == 4 and all(spent > 0 for spent in over.started)
    assert tables == [4]


def test_norms_in_place_of_the_kernel_come_to_an_end(monkeypatch):
    monkeypatch.setitem(module._MOST_MEANWHILE_NS, "standard", 1)
    over, told = session(), []
    over.fused = Compiling(100)
    watch = vigil(over, lambda *_: None, normal=lambda steps, totals: told.extend(steps))
    given = parameters()
    for step in range(8):
        over.step = step
        watch.take(given)
    assert told == [0]


def test_norms_that_cannot_be_taken_are_not_tried_again(monkeypatch):
    asked = []

    def refuses(values):
        asked.append(len(values))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(module.tensors, "l2_norms", refuses)
    over = session()
    over.fused = Compiling(100)
    kept(over, parameters(), 6)
    assert asked == [3] and over.started == []


def test_of_gradients_of_several_types_a_clip_has_the_norms_in_an_order_of_its_own():
    over, given, told = session(), parameters(), []
    over.fused = Compiling(100)
    given[1].data = given[1].data.double()
    given[1].grad = torch.full((4,), torch.inf, dtype=torch.float64)
    watch = vigil(over, lambda *_: None, broken=lambda step, names, norms, *, clipped: told.append(norms))
    each = torch.tensor([torch.inf, 2.0, 2.0])
    watch.take(given, Norms(each.norm(), each, each.norm()._version))
    assert told == [[2.0, math.inf, 2.0]]


def settled():
    over = session(typical=1e12)  # every step can afford a look
    over.fused, over.readback = Settled(), Readback()
    over.readback.lane = Lane(0.0)
    return over


def read(over):
    over.readback.send()
    over.readback.poll()


def test_gradients_of_the_same_sizes_take_one_launch_and_say_the_same():
    over, given = settled(), parameters()
    given[1].grad[2] = torch.nan
    watch, seen = kept(over, given, 0)
    for step in range(5):
        over.step = step
        given[0].grad.fill_(step)
        watch.take(given)
        read(over)
    assert over.fused.looked == [3] and over.fused.again_at == [3] * 4
    assert [step for step, _, _ in seen] == list(range(5))
    assert [rows[0][3] for _, _, rows in seen] == [2.0 * step for step in range(5)]
    assert all([row[0] for row in rows] == [0.0, 1.0, 0.0] for _, _, rows in seen)
    assert all(whose == list(map(id, given)) for _, whose, _ in seen)


@pytest.mark.parametrize("change", ["longer", "gone", "back"])
def test_gradients_that_are_others_are_looked_at_anew(change):
    over, given = settled(), parameters()
    if change == "back":
        given[1].grad = None
    watch, seen = kept(over, given, 2)
    before = given[1].grad
    if change == "longer":
        given[1].data = torch.ones(9)
    given[1].grad = None if change == "gone" else torch.full((9 if change == "longer" else 4,), 3.0)
    over.step = 2
    watch.take(given)
    read(over)
    assert over.fused.again_at == [len(given) - (change == "back")] and len(over.fused.looked) == 2
    step, whose, rows = max(seen, key=lambda each: each[0])
    assert step == 2 and len(rows) == len(whose) == (2 if change == "gone" else 3)
    assert change == "gone" or rows[1][3] == (9.0 if change == "longer" else 6.0)
    assert before is None or before is not given[1].grad


def test_pages_are_used_again_and_only_after_they_were_read():
    over, given = settled(), parameters()
    over.readback.lane = Lane(60.0)  # nothing arrives
    _, seen = kept(over, given, 4)
    over.readback.send()
    pages = [entry[1].at for entry in over.readback._waiting]
    assert len(set(pages)) == 3 and [step for step, _, _ in seen] == [0]  # the first was read as any other
    for entry in over.readback._waiting:
        entry[0]._ready = 0.0
    read(over)
    assert [step for step, _, _ in seen] == [0, 1, 2, 3]
    assert over.readback.page(3, 8).at in pages


def test_no_number_of_shapes_takes_memory_for_ever():
    over = settled()
    for rows in range(3, 90):
        pages = [over.readback.page(rows, 8) for _ in range(3)]
        for page in pages:
            over.readback.unused(page)
    buffers = [page.buffer for (lane, *_), cut in Readback._cut.items() if lane is over.readback.lane for page in cut]
    buffers += [each for (lane, *_), free in Readback._free.items() if lane is over.readback.lane for each in free]
    assert len({each.data_ptr() for each in buffers}) <= 3 * (8 + 6)


def test_in_a_step_that_is_only_noted_nothing_is_told():
    over, given = settled(), parameters()
    _, seen = kept(over, given, 400)
    over.readback.send()
    before, waiting = len(seen), over.readback._waiting
    over.readback._waiting.extend([waiting[-1]] * (256 - len(waiting)))
    assert over.readback.page(3, 8, noted=True) is None and len(seen) == before
    waiting.pop()
    assert over.readback.page(3, 8, noted=True) is not None and len(seen) == before


def test_what_was_marked_just_now_is_not_late():
    over = settled()
    over.readback.lane = Lane(60.0)
    page = over.readback.page(3, 8)
    over.readback.written(page, "stream", lambda host: None, now() - 10**9)
    over.readback.send()
    assert not over.readback.late(now() - 10**8) and over.readback.late(now() + 10**8)


def test_a_device_that_is_far_behind_gets_no_more_looks():
    over, given = settled(), parameters()
    over.readback.lane = Lane(60.0)
    kept(over, given, 400)
    assert len(over.readback._waiting) == 256 and over.readback.dropped > 0


def test_names_are_kept_for_as_long_as_the_look_is_the_same():
    over, given, found = settled(), parameters(), []
    watch = vigil(over, lambda step, names, table: found.append(names))
    for step in range(4):
        over.step = step
        if step == 2:
            given[0].grad = None
        watch.take(given)
        read(over)
    assert found[0] is found[1] and len(found[0].parameters()) == 3
    assert found[2] is not found[3] and [len(names.parameters()) for names in found[2:]] == [2, 2]


def test_which_parameters_have_a_gradient_may_change_though_their_number_does_not():
    """As with experts that take turns."""
    over, given = settled(), parameters(4)
    given[3].grad = None
    watch, seen = kept(over, given, 2)
    given[3].grad, given[1].grad = torch.ones(4), None
    over.step = 2
    watch.take(given)
    read(over)
    assert over.fused.again_at == [3, 3]
    assert [whose for step, whose, _ in seen if step == 2] == [[id(given[0]), id(given[2]), id(given[3])]]


def test_nothing_of_a_model_lives_longer_for_what_is_on_its_way_home():
    over, given = settled(), parameters()
    over.readback.lane = Lane(60.0)  # nothing arrives
    watch, *_ = clipped(over, given, 6)
    alive = [weakref.ref(each) for each in given]
    assert over.readback.busy
    del given, watch
    gc.collect()
    assert not any(each() is not None for each in alive)


def clipped(over, given, steps, break_at=(), every=1):
    """Steps whose clip has computed norms; what was normal, what was broken, and what tables came."""
    normal, broken, tables = [], [], []
    over.rows = []
    watch = vigil(
        over, lambda step, *_: tables.append(step), lambda *told: normal.extend(zip(*told, strict=True)),
        lambda step, names, norms: broken.append((step, list(map(id, names.parameters())), norms)),
        lambda step, names, norms: over.rows.append((step, len(names.parameters()), norms.tolist())),
    )  # fmt: skip
    for step in range(steps):
        over.step = step
        if step in break_at:
            given[1].grad[0] = torch.nan
        each = torch.stack([p.grad.norm() for p in given if p.grad is not None])
        watch.take(given, Norms(each.norm(), each, 0))
        watch.take(given)  # the update
        if step % every == 0:
            over.readback.send()
            read(over)
    over.readback.send()
    read(over)
    return watch, normal, broken, tables


def test_norms_of_a_clip_tell_what_the_tables_between_do_not():
    over, given = settled(), parameters()
    _, normal, broken, tables = clipped(over, given, 12, break_at=(7,), every=5)
    assert tables == [0, 4, 8] and [step for step, _ in normal] == [1, 2, 3, 5, 6]
    assert all(size == pytest.approx(12**0.5) for _, size in normal)
    step, whose, norms = broken[0]
    assert step == 7 and whose == list(map(id, given))
    assert [norm == norm for norm in norms] == [True, False, True]


def test_where_tables_are_dear_every_fourth_step_has_rows_of_norms(monkeypatch):
    ticking(monkeypatch, lambda look: 1_600_000)
    over, given = settled(), parameters()
    over.cadence.typical_ns = 26e6
    watch, normal, _, tables = clipped(over, given, 200)
    assert watch.stride == 16 and tables[-3:] == [160, 176, 192] and over.cadence.relieved
    assert [step for step, *_ in over.rows][-3:] == [184, 188, 196] and over.rows[-1][1:] == (3, [2.0] * 3)
    assert {step for step, _ in normal} | set(tables) == set(range(200))


@pytest.mark.parametrize(("ease", "took", "stride"), [(1.0, 150, 1), (0.1, 150, 4), (0.5, 150, 2), (0.1, 1200, 8)])
def test_where_the_whole_is_too_dear_tables_are_rarer_but_rows_have_theirs(monkeypatch, ease, took, stride):
    """1 % of 26 ms, three quarters of it: 195 us a step."""
    ticking(monkeypatch, lambda look: 1000 * took / 1.25)
    over, given = settled(), parameters()
    over.cadence.typical_ns, over.cadence.ease = 26e6, ease
    watch = vigil(over, lambda *_: None)
    for step in range(400):
        over.step = step
        watch.take(given)
        read(over)
    assert watch.stride == stride


@pytest.mark.parametrize(
    ("hidden", "device", "stride", "cost"), [(False, 50_000, 8, 9_000_000), (True, 50_000, 1, 450_000),
     (True, 300_000, 2, 2_700_000), (True, 2_000_000, 16, 9_000_000)]
)  # fmt: skip
def test_where_the_device_is_behind_anyway_it_is_its_time_that_counts(monkeypatch, hidden, device, stride, cost):
    """1 % of 26 ms, three quarters of it: 195 us a step; to send for a table takes the host a millisecond."""
    ticking(monkeypatch, lambda look: 1_000_000)
    over, given = settled(), parameters()
    over.cadence.typical_ns, over.cadence.ease, over.hidden = 26e6, 0.1, hidden
    over.fused.device_ns = lambda purpose: device
    watch = vigil(over, lambda *_: None)
    for step in range(400):
        over.step = step
        watch.take(given)
        read(over)
    assert (watch.stride, watch.cost(9, 9_000_000)) == (stride, cost)


def test_gradients_are_of_the_last_micro_batch_of_their_step():
    over, given = settled(), parameters()
    watch = vigil(over, lambda *_: None)
    for step in range(1200):
        over.step, over.steps.backwards = step, 1 + step % 3
        watch.take(given)
        over.steps.backwards = 7  # of a later step
        read(over)
    assert [watch.micro_of(step) for step in range(1194, 1200)] == [0, 1, 2, 0, 1, 2]
    assert watch.micro_of(1) == 0 and len(watch._micros) == 512  # nobody asks any more


def test_what_tables_took_in_passing_is_forgotten_where_they_are_not_sent_for_so(monkeypatch):
    ticking(monkeypatch, lambda look: 1_600_000)
    over, given = settled(), parameters()
    over.cadence.typical_ns = 26e6
    watch = vigil(over, lambda *_: None)
    for _ in range(16):
        watch._learn_passing(20_000, False)
    strides = []
    for step in range(2000):
        over.step = step
        watch.take(given)
        read(over)
        strides.append(watch.stride)
    assert strides[10] == 1 and strides[-1] == 16  # 1.25 times 1.6 ms are three quarters of 1 % of ten steps


@pytest.mark.parametrize("clips", ["all", "some", "no longer"])
def test_norms_stand_in_for_tables_only_while_they_tell_of_all_that_is_updated(clips):
    over, given = settled(), parameters(5)
    watch, told = vigil(over, lambda *_: None), given[:3] if clips == "some" else given
    optimizer = SimpleNamespace(param_groups=[{"params": given}])
    for step in range(40):
        over.step = step
        if clips != "no longer" or step < 10:
            each = torch.stack([p.grad.norm() for p in told])
            watch.take(told, Norms(each.norm(), each, 0))
        if watch.wants(optimizer):
            watch.take(given)
        read(over)
        if step == 5:
            assert over.cadence.relieved
    assert over.cadence.relieved is watch._by_norms is (clips == "all")
    assert watch.stride == 1


def test_at_light_norms_are_not_held():
    over, given = settled(), parameters()
    over.settings.level, over.takes_norms = "light", False
    _, normal, _, tables = clipped(over, given, 6)
    assert not normal and tables


def test_norms_belong_to_the_parameters_that_had_a_gradient_then():
    over, given = settled(), parameters(4)
    given[2].grad = None
    given[1].grad[0] = torch.nan
    _, _, broken, _ = clipped(over, given, 3, every=99)
    assert [step for step, _, _ in broken] == [1, 2]
    assert broken[0][1] == [id(given[0]), id(given[1]), id(given[3])]


def test_a_first_look_is_a_table_whatever_the_clip_has_computed():
    over, given = settled(), parameters()
    over.step = 5
    seen = []
    watch = vigil(over, lambda step, *_: seen.append(step))
    watch.take(given, Norms(torch.tensor(1.0), torch.ones(3), 0))
    assert seen == [5]


def test_an_optimizer_whose_parameters_were_not_clipped_is_looked_at():
    over, given, others = settled(), parameters(), parameters(2)
    seen = []
    watch = vigil(over, lambda step, names, *_: seen.append((step, len(names.parameters()))))
    for step in range(3):
        over.step = step
        watch.take(given, Norms(torch.tensor(1.0), torch.ones(3), 0))
        watch.take(given)
        watch.take(others)
        read(over)
    assert [step for step, tensors in seen if tensors == 2] == [0, 1, 2]
    assert [step for step, tensors in seen if tensors == 3] == [0]


def test_rows_belong_to_the_parameters_that_have_a_gradient():
    over, given = session(), parameters()
    given[1].grad = None
    _, seen = kept(over, given, 1)
    assert seen[0][1] == [id(given[0]), id(given[2])] and len(seen[0][2]) == 2


def test_an_update_after_a_clip_is_not_looked_at_again():
    over, given = session(), parameters()
    watch, seen = kept(over, given, 1)
    watch.take(given)
    assert len(seen) == 1


def test_an_optimizer_that_holds_the_same_in_another_order_is_not_looked_at_again():
    over, given = session(), parameters(4)
    watch, seen = kept(over, given, 1)
    watch.take([given[2], given[0], given[3], given[1]])
    assert len(seen) == 1


def test_a_parameter_without_a_gradient_is_no_reason_to_look_twice():
    over, given = session(), parameters(3)
    given[1].grad = None
    watch, seen = kept(over, given, 1)
    watch.take(given)
    assert len(seen) == 1


def test_two_optimizers_of_one_step_are_both_looked_at():
    over, larger, smaller = session(), parameters(4), parameters(2)
    watch, seen = kept(over, larger, 1)
    watch.take(smaller)
    assert [len(rows) for _, _, rows in seen] == [4, 2]


def ticking(monkeypatch, costs):
    """A clock: look number n takes ``costs(n)`` nanoseconds."""
    now = [0, 0]

    def counter():
        if now[1] % 2:
            now[0] += costs(now[1] // 2)
        now[1] += 1
        return now[0]

    monkeypatch.setattr(module, "_counter", counter)


def test_waiting_for_a_device_that_is_behind_is_no_reason_to_look_more_rarely(monkeypatch):
    ticking(monkeypatch, lambda look: 100_000 if look == 3 else 9_000_000)
    over = session()
    over.readback.late = lambda stamp: True
    watch, _ = kept(over, parameters(), 64)
    assert watch.stride == 1
    assert over.paid[4:] == [200_000 - 9_000_000] * 60


def test_a_look_that_is_dear_in_itself_is_taken_more_rarely_and_paid_for(monkeypatch):
    ticking(monkeypatch, lambda look: 900_000)
    over = session()
    watch, _ = kept(over, parameters(), 200)
    assert watch.stride == 8 and not any(over.paid)


@pytest.mark.parametrize(
    ("level", "device", "stride"), [("standard", 150e3, 1), ("standard", 900e3, 4), ("light", 150e3, 64)]
)
def test_it_is_kept_as_often_as_the_budget_allows(monkeypatch, level, device, stride):
    ticking(monkeypatch, lambda look: 50_000)
    over = session(level)
    over.fused.device = device
    watch, _ = kept(over, parameters(), 200)
    assert watch.stride == stride


@pytest.mark.parametrize(("level", "stride"), [("standard", 2), ("light", 512)])
def test_at_light_it_counts_what_comes_of_a_table_later(monkeypatch, level, stride):
    ticking(monkeypatch, lambda look: 300_000)
    watch, _ = kept(session(level), parameters(), 2000)
    assert watch.stride == stride


def test_a_host_is_left_alone_and_so_is_a_graph_that_is_captured(monkeypatch):
    over = session()
    _, seen = kept(over, [torch.nn.Parameter(torch.ones(2))], 3)
    assert seen == [] and over.fused.looked == []
    monkeypatch.setattr(module, "hands_off", lambda: True)
    _, seen = kept(over, parameters(), 3)
    assert seen == []


def test_an_optimizer_that_is_looked_at_in_parts_is_covered_by_all_of_them():
    over, one, other = session(), parameters(2), parameters(3)
    watch = vigil(over, lambda *_: None)
    whole = SimpleNamespace(param_groups=[{"params": [*one, *other]}])
    watch.take(one)
    assert not watch.covers(whole)
    watch.take(other)
    assert watch.covers(whole)
    left = torch.nn.Parameter(torch.ones(4))
    left.grad = torch.ones(4)
    whole.param_groups[0]["params"].insert(2, left)
    assert not watch.covers(whole)


def test_gradients_of_several_devices_are_looked_at_on_each():
    """What lies on the host in front of them does not hide them."""
    taken: list[Any] = []
    probe = object.__new__(GradientsProbe)
    probe._vigil = SimpleNamespace(take=lambda given, norms=None: taken.append((given, norms)))
    host, device, norms = torch.nn.Parameter(torch.ones(4)), parameters(3), object()
    probe._take([host, *device], norms)
    assert len(taken) == 2 and taken[0][0] == [host] and taken[1] == (device, None)
    taken.clear()
    probe._take(device, norms)
    assert taken == [(device, norms)]


def test_a_step_in_which_something_was_applied_that_nobody_looked_at_is_not_judged():
    probe = object.__new__(GradientsProbe)
    told: list[int] = []
    probe.session = SimpleNamespace(pulse=SimpleNamespace(norm=0.0), judged=SimpleNamespace(add=told.extend), step=5)
    probe._alarm = lambda *_: None
    probe._lacking, probe._unscaled = {}, -1
    probe._vigil = SimpleNamespace(wants=lambda of: False, covers=lambda of: of == "covered", take=None)
    probe._watch("covered")
    probe.session.step = 6
    probe._watch("other")
    probe._normal([5, 6, 7], [1.0, 1.0, 1.0])
    assert told == [5, 7]


def test_many_groups_of_parameters_do_not_each_get_a_table():
    over = session()
    watch = vigil(over, lambda *_: None)
    held = [parameters(1) for _ in range(24)]
    for step, given in enumerate(held):
        over.step = step
        watch.take(given)
    assert len(over.fused.looked) == 16


@pytest.mark.parametrize("clip", [True, False])
def test_it_is_asked_in_every_step_that_is_not_looked_at_for_its_gradients(tmp_path, monkeypatch, clip):
    """With and without clipping: the update itself is reason enough."""
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    asked: list[int] = []
    caught: list[Norms] = []

    def take(self, given, norms=None):
        asked.append(self._session.step)
        if norms is not None:
            caught.append(Norms(norms.total.clone(), norms.each.clone(), 0))

    monkeypatch.setattr(Vigil, "take", take)
    with brickprof.attach(net, out=tmp_path, overhead="0.01%"):
        for _ in range(300):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).mean().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    looked = range(192, 256, 64)  # for its gradients too
    assert set(range(130, 256)).difference(looked) <= set(asked)
    assert len(caught) == (0 if not clip else len(asked) // 2)
    assert all(float(each.norm()) == pytest.approx(float(total)) for total, each, _ in caught)
    assert torch.stack is not patches._catch
