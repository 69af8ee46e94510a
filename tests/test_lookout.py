"""The lookout over block outputs, with a kernel that is played by torch."""

from __future__ import annotations

import copy
import gc
import math
from types import SimpleNamespace

import late
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import brickprof
from brickprof.capture import lookout as module
from brickprof.capture import outputs
from brickprof.capture.backlog import Backlog
from brickprof.capture.cadence import GROWN
from brickprof.capture.lookout import Lookout


class Counts:
    """What the kernel does; says how many tensors it was given."""

    lost = ""

    def __init__(self):
        self.given: list[int] = []

    def __call__(self, gate, values):
        self.given.append(len(values))
        if math.isfinite(gate.item()):
            return torch.zeros((len(values), 2), dtype=torch.int64)
        return torch.tensor([[int(v.isnan().sum()), int(v.isinf().sum())] for v in values])

    def prepare(self, device):
        return True

    def readable(self, value):
        return True

    def compiled(self, device):
        return False


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setattr(module, "on_device", lambda tensor: True)
    monkeypatch.setattr(module, "Counts", Counts)
    monkeypatch.setattr(module, "compiled_frames", lambda: 0)  # whatever other tests have compiled


def session(typical=30e6):
    readback = SimpleNamespace(read=lambda tensor, done: done(tensor), late=lambda stamp: False)
    paid: list[int] = []
    failed: list[Exception] = []
    return SimpleNamespace(
        step=0, on=SimpleNamespace(blocks=False, deep=False), backward_depth=0, thread=module._thread(), paid=paid,
        correct=paid.append, started=(started := []), charge_start=started.append, backlog=Backlog(), readback=readback,
        steps=SimpleNamespace(backwards=1), errors=failed,
        cadence=SimpleNamespace(budget=0.01, typical_ns=typical, ease=1.0, stride={"blocks": 8}), facts=(facts := []),
        fact=lambda kind, fields, always: facts.append((kind, fields)), is_off=lambda name: len(failed) >= 3,
        failed=lambda name, error: failed.append(error),
    )  # fmt: skip


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(self.norm(x))


class Net(torch.nn.Module):
    """Blocks, and a way to spoil what goes into one of them or comes out of it."""

    def __init__(self, blocks=4):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(blocks)])
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x, between=None):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = x if between is None else between(number, x)
        return self.head(x)


def watched(net, over=None):
    """Lookout over the layers and the head of ``net``, whose bricks are numbered as they stand."""
    over, told = over or session(), []
    watch = Lookout(over, lambda *arrived: told.append(arrived))
    watch.choose(enumerate([*net.layers, net.head]))
    over.step = 8
    watch.enter(8)
    return watch, over, told


def stepped(watch, over, net, step=8, **given):
    over.step = step
    watch.enter(step)
    loss = net(torch.ones(2, 4), **given).sum()
    watch.backward([loss])
    over.backward_depth = 1
    loss.backward()
    over.backward_depth = 0


def broken(told):
    return [[seen.brick for seen, counts in zip(seens, table, strict=True) if any(counts)] for *_, seens, table in told]


def spoil(block):
    return lambda number, x: x * math.nan if number == block else x


def break_inside(net, block):
    """The output of ``block`` has one NaN in it."""

    def forward(x, of=net.layers[block], plain=net.layers[block].forward):
        return plain(x) * torch.tensor([1.0, math.nan, 1.0, 1.0])

    net.layers[block].forward = forward


def test_until_there_is_a_kernel_blocks_are_looked_at_one_by_one(monkeypatch):
    net, ready = Net(), iter([False, False, True])
    monkeypatch.setattr(Counts, "prepare", lambda self, device: next(ready))
    watch, over, _ = watched(net)
    waited = [over.cadence.awaited]
    for step in range(8, 12):
        watch.counts.given.clear()
        stepped(watch, over, net, step)
        waited.append(over.cadence.awaited)
    assert waited == [True, True, True, False, False]


@pytest.mark.parametrize("why", ["lost", "blind", "no blocks", "grown", "on the host"])
def test_nobody_waits_for_a_kernel_that_will_not_come_or_is_of_no_use(monkeypatch, why):
    monkeypatch.setattr(Counts, "prepare", lambda self, device: False)
    net, over = Net(), session()
    over.step = 300 if why == "grown" else 0
    watch = Lookout(over, lambda *_: None)
    if why == "on the host":
        monkeypatch.setattr(module, "on_device", lambda tensor: False)
    watch.choose([] if why == "no blocks" else enumerate(net.layers))
    if why == "blind":
        watch.blind()
    if why == "lost":
        watch.counts.lost = "no triton"
        watch.backward([net(torch.ones(2, 4)).sum()])
    assert over.cadence.awaited is False


def test_the_first_block_that_is_broken_is_told_with_its_step_and_what_went_into_it():
    net = Net()
    break_inside(net, 2)
    watch, over, told = watched(net)
    stepped(watch, over, net, step=33)
    ((step, micro, seen, counts),) = told
    assert (step, micro) == (33, 0)
    assert broken(told) == [[2, 3]]
    assert [each.brick for each in seen] == [0, 1, 2, 3]  # nobody keeps what the head put out
    assert (seen[2].numel, seen[2].dtype, seen[2].follows) == (8, torch.float32, True)
    assert counts[2] == [2, 0]


def test_nothing_is_counted_behind_a_finite_loss_and_nothing_lives_longer():
    net = Net()
    watch, over, told = watched(net)
    stepped(watch, over, net)
    assert broken(told) == [[]] and over.errors == []
    watch.enter(9)
    net(torch.ones(2, 4))
    kept = [output[0] for output in watch._kept]
    gc.collect()
    assert len(kept) == 5 and all(reference() is None for reference in kept)


def test_a_block_that_was_given_something_else_is_not_said_to_have_been_given_finite_values():
    net = Net()
    watch, over, told = watched(net)
    stepped(watch, over, net, between=spoil(1))
    assert broken(told) == [[2, 3]]
    assert [(each.brick, each.follows) for each in told[0][2]] == [(0, False), (2, False), (3, True)]


def test_an_output_that_somebody_wrote_into_is_no_evidence():
    net = Net()

    def write(number, x):
        return x.add_(math.nan) if number == 1 else x

    watch, over, told = watched(net)
    stepped(watch, over, net, between=write)
    assert [each.brick for each in told[0][2]] == [0, 2, 3] and broken(told) == [[2, 3]]
    assert [each.follows for each in told[0][2]] == [False, False, True]


def test_an_output_whose_memory_was_given_away_is_no_evidence():
    net, held = Net(), []
    watch, over, told = watched(net)
    over.step = 9
    watch.enter(9)
    hidden = net.layers[0](torch.ones(2, 4))
    held.append(hidden)
    hidden.data = torch.full((1,), math.nan)
    watch.backward([torch.tensor(math.nan)])
    assert told == []


def test_an_output_of_another_stream_is_no_evidence(monkeypatch):
    net, current = Net(), [1]
    for each in (module, outputs):
        monkeypatch.setattr(each, "stream_of", lambda device: current[0])

    def switch(number, x):
        current[0] = 2 if number == 1 else 1
        return x

    watch, over, told = watched(net)
    stepped(watch, over, net, between=switch)
    assert [each.brick for each in told[0][2]] == [0, 1, 3]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_inside_a_backward_is_not_looked_at(reentrant):
    class Checkpointed(Net):
        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x.requires_grad_() if x.is_leaf else x, use_reentrant=reentrant)
            return self.head(x)

    net = Checkpointed()
    watch, over, _ = watched(net)
    for step in (8, 9):
        stepped(watch, over, net, step=step)
        assert watch._kept == []
    assert watch.counts.given == [] if reentrant else [4, 4]


def test_without_gradients_and_in_steps_that_are_looked_at_nothing_is_kept():
    net = Net()
    watch, over, _ = watched(net)
    with torch.no_grad():
        net(torch.ones(2, 4))
    over.on.blocks = True
    net(torch.ones(2, 4))
    assert watch._kept == []


def test_a_forward_of_the_step_before_is_forgotten_unless_its_backward_began_the_step():
    net = Net()
    watch, _, _ = watched(net)
    out = net(torch.ones(2, 4))
    watch.enter(9, forward_done=True)
    assert len(watch._kept) == 5
    watch.enter(10)
    assert watch._kept == [] and out is not None


def test_the_first_steps_are_left_to_the_other_looks():
    net = Net()
    watch = Lookout(session(), lambda *_: None)
    watch.choose(enumerate(net.layers))
    watch.enter(2)
    assert watch.hooked == 0
    watch.enter(3)
    assert watch.hooked == 4


def hooks(net):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in net.modules())


def test_on_a_host_there_is_no_hook(monkeypatch):
    monkeypatch.setattr(module, "on_device", lambda tensor: tensor.is_cuda)
    net = Net()
    watched(net)
    assert hooks(net) == 0


def test_what_is_compiled_or_scripted_gets_no_hook(monkeypatch):
    net = Net()
    net.layers[1] = torch.jit.script(torch.nn.Linear(4, 4))
    net.layers[2].compile(backend="eager")
    watch, _, _ = watched(net)
    assert [len(layer._forward_hooks) for layer in (net.layers[0], net.layers[2], net.layers[3])] == [1, 0, 1]
    assert watch.hooked == 3
    watch.blind()
    assert hooks(net) == 0
    watch.choose(enumerate(net.layers))
    watch.enter(9)
    assert hooks(net) == 0
    other = Net()
    monkeypatch.setattr(module, "compiled_frames", lambda: 1)
    watched(other)
    assert hooks(other) == 0


def ticking(monkeypatch, hook, look):
    """A clock: each call of a hook takes ``hook`` nanoseconds inside, each look ``look``."""
    now = [0]
    monkeypatch.setattr(module, "_counter", lambda: now[0])
    keep, count = Lookout.keep, Lookout._count

    def kept(self, *given):
        keep(self, *given)
        now[0] += hook

    def counted(self, *given):
        now[0] += look
        return count(self, *given)

    monkeypatch.setattr(Lookout, "keep", kept)
    monkeypatch.setattr(Lookout, "_count", counted)


@pytest.mark.parametrize(
    ("hook", "look", "stride"),
    [(1_000, 50_000, 1), (40_000, 50_000, 4), (1_000, 500_000, 8)],
)
def test_it_is_kept_as_often_as_the_budget_allows(monkeypatch, hook, look, stride):
    ticking(monkeypatch, hook, look)
    net = Net()
    watch, over, told = watched(net)
    for step in range(8, 8 + 64 * 8):
        stepped(watch, over, net, step=step)
    assert watch.stride == stride
    looked = [step for step, *_ in told]
    young = [step for step in looked if step < GROWN]
    assert young == list(range(8, GROWN)), "a young run is looked at in every step"
    assert looked[len(young) :] == list(range(GROWN, 8 + 64 * 8, stride))
    # The hooks are paid for as well, also what torch takes to get to them: 5 of them, twice.
    assert over.paid[-1] == 2 * 5 * hook
    # The first looks tell what one takes; from then on, those of the young run are on the account of its start.
    assert set(over.started[16:]) == {look + 2 * 5 * hook} and len(over.started) > GROWN - 32
    assert over.paid.count(-look) == len(over.started)


def test_in_a_young_run_of_tiny_steps_too(monkeypatch):
    ticking(monkeypatch, 1_000, 300_000)
    net = Net()
    watch, over, told = watched(net, session(typical=1e6))
    for step in range(8, 1200):
        stepped(watch, over, net, step=step)
    looked = [step for step, *_ in told]
    assert looked[: GROWN - 8] == list(range(8, GROWN))
    assert len(looked) - (GROWN - 8) <= 16, "it fits no budget later"
    assert watch._due > 1200


@pytest.mark.parametrize(("look", "in_each"), [(2_400_000, True), (2_600_000, False)])
def test_a_young_run_has_a_tenth_of_a_long_step_for_it(monkeypatch, look, in_each):
    ticking(monkeypatch, 0, look)  # a look counts as a quarter more than the quickest one
    watch, over, told = watched(net := Net(), session(typical=30e6))
    for step in range(8, GROWN):
        stepped(watch, over, net, step=step)
    assert ([step for step, *_ in told] == list(range(8, GROWN))) is in_each


def test_where_it_does_not_fit_at_all_no_hook_is_left(monkeypatch):
    ticking(monkeypatch, 1_000, 50_000_000)
    net = Net()
    watch, over, told = watched(net)
    for step in range(8, 300):
        stepped(watch, over, net, step=step)
    assert hooks(net) == 0 and len(told) < 40
    watch.enter(1600)
    assert hooks(net) == 5  # it is tried again, much later


def test_waiting_for_a_device_that_is_behind_is_no_reason_to_look_more_rarely(monkeypatch):
    ticking(monkeypatch, 1_000, 50_000)
    net, over = Net(), session()
    over.readback.late = lambda stamp: True
    watch, over, _ = watched(net, over)
    stepped(watch, over, net)
    ticking(monkeypatch, 0, 9_000_000)
    for step in range(9, 100):
        stepped(watch, over, net, step=step)
    assert watch.stride == 1


def test_without_a_kernel_no_hook_is_left_and_it_is_told(monkeypatch):
    net = Net()
    watch, over, told = watched(net)
    monkeypatch.setattr(Counts, "__call__", lambda self, gate, values: None)
    stepped(watch, over, net)
    assert hooks(net) == 5 and over.facts == []  # it is still being compiled
    watch.counts.lost = "ImportError: no triton"
    stepped(watch, over, net, step=9)
    stepped(watch, over, net, step=10)
    assert hooks(net) == 0 and told == []
    assert [(kind, fields["reason"]) for kind, fields in over.facts] == [("fallback", "ImportError: no triton")]


def test_where_nothing_can_be_counted_no_hook_is_left(monkeypatch):
    net = Net()
    watch, over, told = watched(net)
    monkeypatch.setattr(Counts, "readable", lambda self, value: False)
    for step in range(8, 60):
        stepped(watch, over, net, step=step)
    assert hooks(net) == 0 and told == []


def test_where_every_step_is_looked_at_anyway_there_is_no_hook():
    net = Net()
    watch, over, _ = watched(net)
    over.on.blocks, over.cadence.stride["blocks"] = True, 1
    watch.enter(9)
    assert hooks(net) == 0


def test_whoever_fails_again_and_again_is_taken_off():
    net = Net()
    watch, over, _ = watched(net)
    watch.counts = None
    for step in range(8, 12):
        stepped(watch, over, net, step=step)
    assert len(over.errors) == 3 and hooks(net) == 0


def test_copies_of_a_model_go_without_hooks(tmp_path):
    """As all of ours do: the module that a hook comes from says whose it is."""
    net = Net()
    with brickprof.attach(net, out=tmp_path):
        watched(net)
        assert hooks(net) > 0 and hooks(copy.deepcopy(net)) == 0


# -- in a training


def train(net, steps, *, broken_at=-1, clip=False, accumulate=1, loader=False):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(0)
    plain = net.layers[2].forward
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(steps)))
    for step in map(int, (number for (number,) in batches) if loader else range(steps)):
        optimizer.zero_grad()
        for micro in range(accumulate):
            spoils = step == broken_at and micro == accumulate - 1
            net.layers[2].forward = (lambda x: plain(x).log()) if spoils else plain
            net(torch.randn(8, 4, generator=draw)).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def recorded(tmp_path, monkeypatch, *args, **kwargs):
    late.pretend(monkeypatch, 0.002)
    monkeypatch.setattr(module, "_SHARE", 1e9)  # steps of a millisecond have no room for it
    torch.manual_seed(0)
    net = Net()
    with brickprof.attach(net, out=tmp_path, overhead="0.01%") as bp:
        train(net, *args, **kwargs)
    assert hooks(net) == 0
    return brickprof.load(bp.folder)


@pytest.mark.parametrize(
    ("clip", "accumulate", "loader"), [(False, 1, False), (True, 1, False), (False, 3, False), (False, 1, True)]
)
def test_the_block_is_exact_in_a_step_that_nobody_looks_at(tmp_path, monkeypatch, clip, accumulate, loader):
    run = recorded(tmp_path, monkeypatch, 400, broken_at=333, clip=clip, accumulate=accumulate, loader=loader)
    told = [event for event in run.events.itertuples() if event.kind == "activation"]
    first = told[0]
    assert first.step == 333
    names = {event.fields["id"]: event.fields["path"] for event in run.events.itertuples() if event.kind == "brick"}
    assert names[first.fields["brick"]] == "layers.2"
    assert first.fields["nan"] > 0 and first.fields["inputs_finite"] is True
    assert first.fields["micro"] == accumulate - 1
    finding = brickprof.diagnose(run).findings[0]
    assert (finding.contract, finding.first_step) == ("C-TRAINSTABLE-001", 333)
    assert finding.brick == "layers.2"
    sampled = {event.step for event in run.events.itertuples() if event.kind == "sampled"}
    assert 333 not in sampled


def test_a_healthy_training_is_told_nothing(tmp_path, monkeypatch):
    run = recorded(tmp_path, monkeypatch, 200)
    kinds = {event.kind for event in run.events.itertuples()}
    assert kinds.isdisjoint({"activation", "probe_off", "anomaly"})


def test_once_something_is_compiled_the_hooks_are_gone(tmp_path, monkeypatch):
    late.pretend(monkeypatch, 0.0)
    monkeypatch.setattr(module, "_SHARE", 1e9)
    monkeypatch.setattr(module, "_YOUNG_NS", 1e12)  # however busy the machine is
    net = Net()
    with brickprof.attach(net, out=tmp_path) as bp:
        train(net, 100)
        watch = bp._session.lookout
        assert watch.hooked
        torch.compile(lambda x: net(x) + 1, backend="eager")
        assert not watch.hooked
        train(net, 20)
        assert not watch.hooked


@pytest.mark.parametrize(
    ("step", "due", "stride", "grown_from", "expected"),
    [
        (20, 8, 16, 0, 11),
        (31, 8, 16, 0, 0),
        (32, 8, 16, 0, 15),
        (20, 8, 1, 0, 0),
        (10, 64, 1, 0, 53),
        (10, 70, 16, 0, 69),
        (10, 900, 4, 0, 99),
        (20, 8, 16, GROWN, 0),
        (20, 41, 16, GROWN, 20),
        (262, 8, 16, GROWN, 0),
        (263, 8, 16, GROWN, 8),
        (264, 8, 16, GROWN, 7),
        (20, 300, 16, GROWN, 99),
    ],
)
def test_how_long_nobody_looks_out_is_known_ahead(step, due, stride, grown_from, expected):
    net = Net()
    watch, over, _ = watched(net)
    watch._due, watch._stride, watch._grown_from, over.step = due, stride, grown_from, step
    watch.enter(step)
    watch.prepare(step + 1)
    ahead = watch.ahead(step, 99)
    assert ahead == expected
    assert bool(watch.hooked) is (expected == 0)
    for each in range(step + 1, step + 1 + ahead):
        watch.enter(each)
        assert not watch.hooked
    watch.enter(step + 1 + ahead)
    assert bool(watch.hooked) is (ahead < 99)


def test_hooks_that_cannot_be_had_are_told_and_nobody_elses_trouble(monkeypatch):
    watch, over, _ = watched(net := Net())
    watch._unhook()
    monkeypatch.setattr(Lookout, "_hook", lambda self: 1 / 0)
    watch.prepare(9)
    assert [type(error) for error in over.errors] == [ZeroDivisionError] and hooks(net) == 0


def test_without_blocks_nobody_looks_out():
    assert Lookout(session(), print).ahead(3, 17) == 17


def test_where_the_whole_is_too_dear_it_is_kept_more_rarely_but_not_given_up():
    net, over = Net(), session()
    watch, _, _ = watched(net, over)
    over.backlog = SimpleNamespace(cost=lambda *_, **__: 0.0, quickest=lambda _: 80_000.0)
    watch._reckon()
    assert watch.stride == 1
    for ease, stride in ((0.5, 2), (0.1, 8), (0.01, 32)):
        over.cadence.ease = ease
        watch._reckon()
        assert watch.stride == stride and watch._due < 16
    over.backlog.quickest = lambda _: 10_000_000.0
    watch._reckon()
    assert watch._due >= 1024


def test_a_batch_that_is_fetched_behind_the_forward_loses_no_output():
    net = Net()
    watch, over, told = watched(net)
    watch._reckon = lambda: None  # however busy the machine is
    for step in range(8, 60):
        watch.prepare(step)
        loss = net(torch.ones(2, 4)).sum()
        over.step = step
        watch.enter(step)  # the batch of the next step is asked for already
        watch.backward([loss])
        loss.backward()
    assert len(told) == 52 and all(len(seen) == 4 for *_, seen, _ in told) and watch.hooked


def test_outputs_that_nobody_differentiates_are_no_reason_to_go_on():
    net = Net()
    watch, over, told = watched(net)
    for step in range(8, 60):
        over.step = step
        watch.prepare(step)
        net(torch.ones(2, 4))
        watch.enter(step)
    assert told == [] and not watch.hooked


def test_outputs_that_are_gone_make_room_for_others():
    net = Net()
    watch, _, told = watched(net)
    for _ in range(200):
        net(torch.ones(2, 4))
    loss = net(torch.ones(2, 4)).sum()
    watch.backward([loss])
    assert [len(seen) for *_, seen, _ in told] == [4]  # nobody holds what is only summed
