"""Copies and host reads of any script: seen once each, with their line; and nothing in torch is left changed.

Without a GPU: what is of type float64 lies on a device here, everything else on the host, so that casts are copies."""

from __future__ import annotations

import importlib
import json
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from making import Made
from torch.nn.functional import rms_norm

import brickprof
from brickprof.bricks import Brick, Kind, title
from brickprof.capture import copies, sites
from brickprof.capture.taps import copying, indexing, reads, triton_launches
from brickprof.capture.taps.swap import Swap
from brickprof.diagnosis import diagnose
from brickprof.probes import syncs, transfers
from brickprof.reference.blocks import InTorch
from brickprof.reference.config import Config
from brickprof.reference.train import Trainer
from brickprof.reports.transfers import lines
from brickprof.run.step_budget import step_budget

DEVICE = torch.float64


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(copies, "place", lambda tensor: "cuda:0" if tensor.dtype is DEVICE else copies.HOST)
    monkeypatch.setattr(transfers, "has_device", lambda: True)


class Ear:
    def __init__(self):
        self.heard = []

    def copying(self, way, *, timed):
        return None

    def queued(self, mark):
        pass

    def copied(self, copy, mark):
        self.heard.append(copy)


@pytest.fixture
def ear():
    listener = Ear()
    reads.watch()
    copying.watch(listener)
    yield listener
    copying.unwatch(listener)
    reads.unwatch()


def here() -> int:
    return sys._getframe(1).f_lineno


# -- which way, and who waits


@pytest.mark.parametrize(
    ("source", "target", "way"),
    [
        ("host", "cuda:0", "H2D"), ("cuda:0", "host", "D2H"), ("cuda:0", "cuda:1", "D2D"), ("cuda:0", "cuda:0", ""),
        ("host", "host", ""), ("", "cuda:0", ""), ("host", "", ""),
    ],
)  # fmt: skip
def test_directions(source, target, way):
    assert copies.direction(source, target) == way


def test_a_meta_tensor_lies_nowhere():
    assert copies.place(torch.empty(2, device="meta")) == "" and copies.place(torch.empty(2)) == "host"


@pytest.mark.parametrize(
    ("way", "pinned", "non_blocking", "straight", "blocks"),
    [
        ("H2D", True, True, True, False), ("H2D", False, True, True, True), ("H2D", True, False, True, True),
        ("D2H", True, True, False, True), ("D2H", None, True, True, True), ("D2D", False, False, False, False),
    ],
)  # fmt: skip
def test_who_waits(way, pinned, non_blocking, straight, blocks):
    assert copies.blocks(way, pinned=pinned, non_blocking=non_blocking, straight=straight) is blocks


@pytest.mark.parametrize(
    ("way", "non_blocking", "size"),
    [("H2D", False, 20), ("H2D", True, 40), ("D2H", False, 40), ("D2H", True, 20), ("D2D", False, 20),
     ("D2D", True, 20), ("pin", False, 20)],
)  # fmt: skip
def test_what_is_converted_travels_as_it_is_where_nobody_converts_it(way, non_blocking, size):
    """Four bytes become two: on the host where it blocks, else on the device."""
    assert copies.moved(way, 10, 4, 2, non_blocking=non_blocking) == size


SQUARE = torch.empty(4, 4)


@pytest.mark.parametrize(
    ("way", "source", "target", "straight"),
    [
        ("H2D", SQUARE, SQUARE.half(), True), ("H2D", SQUARE, SQUARE.half().t(), True),
        ("H2D", SQUARE.t(), SQUARE.t().clone(), True), ("H2D", SQUARE.t(), SQUARE.half().t(), False),
        ("H2D", SQUARE[:, :2], SQUARE[:, :2].clone(), False), ("H2D", SQUARE[:, :2], SQUARE[:, :2], False),
        ("H2D", SQUARE[:1], SQUARE, False), ("H2D", SQUARE[0], SQUARE[:1], True),
        ("D2H", SQUARE, SQUARE.half(), True), ("D2H", SQUARE[:, :2], SQUARE[:, :2].clone(), True),
        ("D2H", SQUARE[:1], SQUARE, True), ("D2H", SQUARE, SQUARE.half().t(), False),
        ("D2H", SQUARE, SQUARE.t(), False),
    ],
)  # fmt: skip
def test_only_what_lies_scattered_on_the_host_goes_through_ordinary_memory(way, source, target, straight):
    assert copies.straight(way, source, target) is straight


@pytest.mark.parametrize(
    ("name", "given", "named", "way"),
    [
        ("to", ("cuda:0",), {}, "H2D"), ("to", (), {"device": torch.device("cuda", 1)}, "H2D"), ("to", (0,), {}, "H2D"),
        ("to", (torch.half,), {}, ""), ("to", (torch.half,), {"device": "cuda:0"}, "H2D"), ("to", ("cpu",), {}, ""),
        ("to", (torch.empty(1, device="meta"),), {}, ""), ("to", (None, torch.half), {}, ""), ("cpu", (), {}, ""),
        ("cuda", (), {}, "H2D"), ("cuda", (None, True), {}, "H2D"), ("cuda", (), {"non_blocking": True}, "H2D"),
        ("pin_memory", (), {}, "pin"),
    ],
)  # fmt: skip
def test_which_way_a_call_will_send_its_tensor(name, given, named, way):
    assert copying.bound(name, (torch.ones(2), *given), named) == way


# -- every kind of copy, once


COPIES = {
    "to": (lambda x, d: x.to(DEVICE), "H2D", 8 * 6),
    "to, as the first": (lambda x, d: x.to(d), "H2D", 8 * 6),
    "to, back": (lambda x, d: d.to(torch.float32), "D2H", 8 * 3),
    "copy_": (lambda x, d: torch.empty(6, dtype=DEVICE).copy_(x), "H2D", 8 * 6),
    "copy_, back": (lambda x, d: torch.empty(3).copy_(d), "D2H", 8 * 3),
    "tensor": (lambda x, d: torch.tensor([1.0, 2.0], dtype=DEVICE), "H2D", 16),
    "as_tensor": (lambda x, d: torch.as_tensor([1.0], dtype=DEVICE), "H2D", 8),
    "new_tensor": (lambda x, d: d.new_tensor([1.0, 2.0, 3.0]), "H2D", 24),
    "index": (lambda x, d: d[torch.tensor([0, 1])], "H2D", 16),
    "index of a list": (lambda x, d: d[[0, 2]], "H2D", 16),
    "value": (lambda x, d: d.__setitem__(slice(0, 2), x[:2]), "H2D", 8),
}


@pytest.mark.parametrize("how", COPIES)
def test_every_copy_is_heard_once(device, ear, how):
    act, way, size = COPIES[how]
    act(torch.ones(6), torch.ones(3).double())
    heard = ear.heard
    assert [(copy.direction, copy.bytes) for copy in heard] == [(way, size)]
    assert heard[0].site == f"test_transfers.py:{act.__code__.co_firstlineno}"
    assert heard[0].blocking and heard[0].device == "cuda:0"
    waited = [(read.kind, tally.device) for read, tally in reads.found.items()]
    assert waited == ([(how.split(",")[0].strip("_"), 1)] if way == "D2H" else [])


def test_what_stays_in_its_place_is_no_copy(device, ear):
    x, d = torch.ones(4), torch.ones(4).double()
    x.to(torch.bfloat16).contiguous(), x.clone(), d.clone(), d.to(DEVICE), x.cpu(), d[1:3], d[None], x[x > 0]
    torch.tensor([1.0]), torch.empty(4).copy_(x)
    d[0] = 2.0
    assert ear.heard == []


def test_a_copy_within_the_device_is_one_and_waits_for_nothing(device, ear):
    x = torch.ones(4, dtype=DEVICE, requires_grad=True)
    line = here() + 1
    torch.empty(4, dtype=DEVICE).copy_(x).sum().backward()
    (copy,) = ear.heard
    assert (copy.direction, copy.bytes, copy.how, copy.device, copy.within) == ("D2D", 32, "copy_", "cuda:0", True)
    assert copy.site == f"test_transfers.py:{line}" and not copy.blocking and reads.found == {}


def test_what_torch_copies_within_the_device_is_its_own_affair(device, ear):
    one, other = (torch.nn.Linear(3, 2).to(DEVICE) for _ in range(2))
    ear.heard.clear()
    one.load_state_dict(other.state_dict())
    assert [copy for copy in ear.heard if copy.within] == [] and torch.equal(one.weight, other.weight)


def test_the_gradient_of_a_copy_goes_back(device, ear):
    x = torch.ones(4, requires_grad=True)
    (x * 2).to(DEVICE).sum().backward()
    assert [(copy.how, copy.direction, copy.bytes) for copy in ear.heard] == [
        ("to", "H2D", 32), ("backward", "D2H", 32),
    ]  # fmt: skip
    assert ear.heard[0].site == ear.heard[1].site != ""


def test_what_was_asked_for_is_told_beside_what_became_of_it(device, ear):
    torch.ones(4).to(DEVICE, non_blocking=True)
    torch.empty(4, dtype=DEVICE).copy_(torch.ones(4), True)
    assert [(copy.non_blocking, copy.blocking, copy.pinned) for copy in ear.heard] == [(True, True, False)] * 2


@pytest.mark.parametrize(
    ("act", "told", "reads_of_it"),
    [
        (lambda x, d: x.to(DEVICE, non_blocking=True), ("H2D", 24, False), 0),
        (lambda x, d: d.to(torch.float32, non_blocking=True), ("D2H", 24, False), 0),
        (lambda x, d: torch.empty(6).copy_(d, True), ("D2H", 24, False), 0),
        (lambda x, d: x.to(DEVICE), ("H2D", 48, True), 0),
        (lambda x, d: d.to(torch.float32), ("D2H", 48, True), 1),
    ],
)
def test_a_copy_that_is_converted_from_or_to_pinned_memory_blocks_only_where_asked_to(
    device, ear, monkeypatch, act, told, reads_of_it
):
    monkeypatch.setattr(copying, "_pinned", lambda tensor, way: True)
    act(torch.ones(6), torch.ones(6).double())
    assert [(copy.direction, copy.bytes, copy.blocking) for copy in ear.heard] == [told]
    assert sum(tally.count for tally in reads.found.values()) == reads_of_it


def test_the_gradient_of_a_copy_that_did_not_block_travels_as_the_device_has_it(device, ear):
    x = torch.ones(4, requires_grad=True)
    (x * 2).to(DEVICE, non_blocking=True).sum().backward()
    assert [(copy.direction, copy.bytes, copy.blocking) for copy in ear.heard] == [("H2D", 16, True), ("D2H", 32, True)]


# -- host reads

READS = {
    "item": lambda d: d.sum().item(),
    "tolist": lambda d: d.tolist(),
    "bool": lambda d: bool(d.sum()),
    "float": lambda d: float(d.sum()),
    "print": lambda d: f"{d!r}",
    "nonzero": lambda d: torch.nonzero(d).size(0),
    "masked_select": lambda d: d.masked_select(d > 0),
    "unique": lambda d: d.unique(),
    "equal": lambda d: torch.equal(d, d),
    "where": lambda d: torch.where(d)[0],
}


@pytest.mark.parametrize("kind", READS)
def test_every_read_is_counted_once_with_its_line_and_its_cost(device, ear, kind):
    act = READS[kind]
    act(torch.ones(3).double())
    ((read, tally),) = reads.found.items()
    assert (read.kind, read.site) == (kind, f"test_transfers.py:{act.__code__.co_firstlineno}")
    assert (tally.count, tally.device) == (1, 1) and tally.ns > 0


def test_a_mask_waits_and_a_number_under_a_mask_does_not(monkeypatch):
    monkeypatch.setattr(copies, "place", lambda tensor: "cuda:0")
    mask, numbers = torch.tensor([True, False]), torch.ones(2)
    assert indexing.masked((slice(None), mask)) and not indexing.masked(torch.tensor([0, 1]))
    assert indexing.waits_to_store(mask, numbers) and not indexing.waits_to_store(mask, 1.0)
    assert indexing.plain((0, None, slice(2))) and not indexing.plain([0, 1])


def test_sizes_of_host_tensors_are_no_reads(device, ear):
    x = torch.ones(3)
    torch.nonzero(x), x[x > 0], x.unique(), repr(x)
    assert reads.found == {}


# -- torch is left as it was


def test_everything_is_put_back():
    before = dict(vars(torch.Tensor)), torch.tensor, torch.nonzero
    listener = Ear()
    for _ in range(2):
        reads.watch()
        copying.watch(listener)
        assert torch.tensor is not before[1]
        copying.unwatch(listener)
        reads.unwatch()
    assert dict(vars(torch.Tensor)) == before[0]
    assert (torch.tensor, torch.nonzero) == before[1:]


def test_a_default_device_holds_also_when_it_is_set_while_we_watch(ear):
    torch.set_default_device("meta")
    try:
        inside = torch.tensor([1.0]).device.type
        copying.unwatch(ear)
        assert (inside, torch.tensor([1.0]).device.type) == ("meta", "meta")
    finally:
        torch.set_default_device(None)


def test_what_somebody_else_puts_over_ours_stays():
    class Thing:
        def speak(self):
            return "own"

    swap = Swap([(Thing, ("speak", "missing"), lambda original, name: lambda self: f"swapped {original(self)}")])
    swap.put()
    over = Thing.speak
    Thing.speak = lambda self: f"theirs {over(self)}"
    assert Thing().speak() == "theirs swapped own"
    swap.back()
    assert Thing().speak() == "theirs swapped own"


def test_our_own_frames_are_nobodys_line():
    code = compile("answer = asked(frame())", f"{sites._OURS}capture/readback.py", "exec")
    told = {"asked": sites.asked, "frame": lambda: sys._getframe(1)}
    exec(code, told)
    assert told["answer"] is None
    assert sites.asked(sys._getframe()) == (f"test_transfers.py:{here()}", True)


# -- a run


def trained(tmp_path, each=None, steps=6):
    torch.manual_seed(0)
    low, high = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD([*low.parameters(), *high.parameters()], lr=0.1)
    with brickprof.attach(low, optimizer, out=tmp_path, overhead="100%") as session:
        for _ in range(steps):
            with brickprof.brick("to_device", kind="transfer", transfers=1):
                hidden = low(torch.ones(8, 4)).to(DEVICE)
            optimizer.zero_grad()
            high(hidden).square().mean().backward()
            if each is not None:
                each(high)
            optimizer.step()
    run = brickprof.load(session.folder)
    return run, [r for r in run.records() if getattr(r, "kind", "") == "transfers"], low.weight.detach().clone()


def test_a_step_in_sum_and_in_spans(device, tmp_path):
    run, looks, _ = trained(tmp_path)
    assert len(looks) >= 3
    fields = looks[-1].fields
    assert (fields["count"], fields["bytes"], fields["backwards"], fields["device"]) == (2, 512, 1, ["cuda:0"])
    assert sorted(row[1:6] for row in fields["rows"]) == [["D2H", 1, 256, False, True], ["H2D", 1, 256, False, True]]
    spans = run.spans[(run.spans.kind == "transfer") & (run.spans.step == looks[-1].step)]
    assert sorted(spans.brick.astype(str)) == ["D2H", "H2D", "to_device"]
    brick = spans[spans.brick.astype(str) == "to_device"].iloc[0]
    assert spans[spans.brick.astype(str) == "H2D"].iloc[0].parent == brick.id


def test_copies_within_the_device_are_bricks_that_no_budget_counts(device, tmp_path):
    shadow = torch.zeros(1, 4, dtype=DEVICE)

    def keep(high):
        with torch.no_grad(), brickprof.brick("keep", kind="transfer", transfers=1):
            for _ in range(100):
                shadow.copy_(high.weight)

    plain, looks, _ = trained(tmp_path / "plain")
    run, more, _ = trained(tmp_path / "more", keep)
    same = ("count", "bytes", "backwards", "device", "home")  # how many looks there are is a matter of time
    counted, alone = ({json.dumps([each.fields[name] for name in same]) for each in found} for found in (more, looks))
    assert counted == alone
    assert all("D2D" not in [row[1] for row in look.fields["rows"]] for look in more)
    spans = run.spans[run.spans.brick.astype(str) == "D2D"]
    spans = spans[spans.step == spans.step.max()]
    told = json.loads(spans.iloc[0].attributes)
    assert len(spans) == 64 and (told["within"], told["bytes"], told["blocking"]) == (True, 32, False)
    assert told["site"] == f"test_transfers.py:{keep.__code__.co_firstlineno + 3}"
    assert not [f for f in brickprof.diagnose(run).findings if f.root_cause == "extra-transfers"]
    assert brickprof.diagnose(plain).verdict == brickprof.diagnose(run).verdict


class Ends(Trainer):
    """The reference training with both ends on the host, and its blocks on what is a device here."""

    def __init__(self, each=None, **changes):
        config = Config(host_ends=True, steps=12, evaluate_every=0, layers=2, width=16, hidden=32, **changes)
        super().__init__(config, device="cpu")
        self.model.decoder.to(DEVICE)
        self.each = each

    def clip(self):
        super().clip()
        for parameter in self.model.decoder.parameters() if self.each else ():
            self.each(parameter.grad)


@pytest.mark.parametrize(("accumulation", "fetched"), [(1, False), (2, False), (1, True)])
def test_a_step_of_the_reference_is_held_to_the_three_transfers_that_it_declares(
    device, monkeypatch, tmp_path, accumulation, fetched
):
    monkeypatch.setattr(InTorch, "rmsnorm", lambda self, x, weight, eps: rms_norm(x, weight.shape, weight, eps))
    trainer = Ends((lambda gradient: gradient.to(torch.float32)) if fetched else None, accumulation=accumulation)
    with brickprof.attach(trainer.model, trainer.optimizer, out=tmp_path, overhead="100%") as session:
        trainer.run()
    run = brickprof.load(session.folder)
    counts = {r.fields["count"] for r in run.records() if getattr(r, "kind", "") == "transfers" and r.fields["count"]}
    each = len(list(trainer.model.decoder.parameters())) if fetched else 0
    assert counts == {3 * accumulation + each}
    judged = {contract.id: contract for contract in brickprof.diagnose(run).contracts}["C-GPUTRAIN-002"]
    said = [violation.symptom for violation in judged.violations]
    assert judged.verdict == ("FAIL" if fetched else "PASS"), judged
    assert all(text.startswith(f"train_step makes {3 + each} copies") and "'transfers': 3" in text for text in said)


def test_gradients_that_go_home_are_told_apart_from_the_graph(device, tmp_path):
    _, looks, _ = trained(tmp_path, lambda high: [p.grad.to(torch.float32) for p in high.parameters()])
    ((site, micros, count, size),) = looks[-1].fields["home"]
    assert site.startswith("test_transfers.py:") and (micros, count, size) == (1, 2, 40)


def test_steps_that_nobody_looks_at_cost_nothing_and_change_nothing(device, tmp_path):
    original, seen = torch.Tensor.to, []
    with_us = trained(tmp_path, lambda _: seen.append(torch.Tensor.to is original), steps=40)[2]
    assert torch.Tensor.to is original and not all(seen)
    torch.manual_seed(0)
    low, high = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD([*low.parameters(), *high.parameters()], lr=0.1)
    for _ in range(40):
        hidden = low(torch.ones(8, 4)).to(DEVICE)
        optimizer.zero_grad()
        high(hidden).square().mean().backward()
        optimizer.step()
    assert torch.equal(with_us, low.weight)


def test_without_a_device_nothing_is_written(tmp_path):
    assert trained(tmp_path)[1] == []


# -- Triton's hooks


class Chain:
    def __init__(self):
        self.calls = []

    def add(self, hook):
        self.calls.append(hook)

    def remove(self, hook):
        if hook in self.calls:
            self.calls.remove(hook)

    def __call__(self, metadata):
        for call in list(self.calls):
            call(metadata)


@pytest.fixture
def runtime(monkeypatch):
    with suppress(ImportError):  # the real one is not to begin beside the double
        importlib.import_module("triton.compiler")
    runtime = SimpleNamespace(launch_enter_hook=Chain(), launch_exit_hook=Chain())
    monkeypatch.setitem(sys.modules, "triton.knobs", SimpleNamespace(runtime=runtime))
    return runtime


def test_launches_are_heard_through_the_chain_and_nobodys_hook_is_touched(runtime):
    theirs, heard = [], []
    runtime.launch_enter_hook.add(theirs.append)

    def begin(name, site):
        heard.append((name, site))
        return lambda: heard.append("queued")

    assert triton_launches.listen(begin)
    metadata = SimpleNamespace(data={"name": "softmax_kernel"}, get=lambda: pytest.fail("it may cost anything"))
    runtime.launch_enter_hook(metadata), runtime.launch_exit_hook(metadata)
    ((name, site), queued) = heard
    assert (name, queued, theirs) == ("softmax_kernel", "queued", [metadata]) and site.startswith("test_transfers.py:")
    triton_launches.stop()
    assert runtime.launch_enter_hook.calls == [theirs.append] and runtime.launch_exit_hook.calls == []


@pytest.mark.parametrize("hook", [None, print])
def test_where_there_is_no_chain_nothing_is_overwritten(monkeypatch, hook):
    runtime = SimpleNamespace(launch_enter_hook=hook, launch_exit_hook=hook)
    monkeypatch.setitem(sys.modules, "triton.knobs", SimpleNamespace(runtime=runtime))
    assert not triton_launches.listen(lambda name, site: None)
    triton_launches.stop()
    assert runtime.launch_enter_hook is hook


def test_a_users_kernel_is_a_brick_and_ours_is_one_only_once(runtime, tmp_path):
    from brickprof.operators import launch

    ours = launch.Launch("rmsnorm.forward", {}, {}, 0, 0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def queue(name):
        metadata = SimpleNamespace(data={"name": name})
        runtime.launch_enter_hook(metadata), runtime.launch_exit_hook(metadata)

    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as session:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            if launch._listener is not None:
                ended = launch._listener.begin(ours)
                queue("rmsnorm_forward")
                ended()
            queue("theirs")
            optimizer.step()
    run = brickprof.load(session.folder)
    told = [r for r in run.records() if getattr(r, "kind", "") == "launches"]
    assert {row[0]: row[1] for row in told[-1].fields["kernels"]} == {"rmsnorm.forward": 1, "theirs": 1}
    names = run.spans[(run.spans.kind == "kernel") & (run.spans.step == told[-1].step)].brick.astype(str)
    assert sorted(names) == ["rmsnorm.forward", "theirs"]
    assert runtime.launch_enter_hook.calls == []


def test_a_wait_that_asks_for_nothing_is_counted_with_its_line(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: waited.append("event"), raising=False)
    event = object.__new__(torch.cuda.Event)
    reads.watch()
    try:
        for _ in range(3):
            torch.cuda.synchronize("cuda:1")
        torch.cuda.Event.synchronize(event)
    finally:
        found = reads.unwatch()
    assert waited == ["cuda:1"] * 3 + ["event"]
    assert sorted((read.kind, tally.count, tally.device) for read, tally in found.items()) == [
        ("event.synchronize", 1, 1), ("synchronize", 3, 3),
    ]  # fmt: skip
    assert all("test_transfers.py:" in read.site and tally.ns > 0 for read, tally in found.items())
    torch.cuda.synchronize()
    assert len(waited) == 5 and reads.unwatch() == found


def test_the_longest_read_of_a_line_is_written_beside_the_sum():
    """Also of those that are heard of elsewhere: a copy to the host."""
    reads.watch()
    try:
        for kind, ns in (("to", 700), ("item", 40), ("to", 20), ("synchronize", 90), ("synchronize", 10)):
            reads.told(kind, "train.py:7", True, ns=ns)
        fields = syncs._fields(reads.unwatch())
    finally:
        reads.unwatch()
    assert fields["sites"] == [["train.py:7", 3, 0, 3, 760, 700]]
    assert fields["kinds"] == [["train.py:7", "to", 2, 720], ["train.py:7", "item", 1, 40]]
    assert fields["waits"] == [["train.py:7", "synchronize", 2, 100, 90]]


def test_the_longest_wait_is_known_where_it_has_no_span(tmp_path, monkeypatch):
    monkeypatch.setattr(syncs, "_MOST_SPANS", 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: time.sleep(device or 0.0))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            for seconds in (0.001, 0.1):
                torch.cuda.synchronize(seconds)
            optimizer.step()
    run = brickprof.load(bp.folder)
    spans = run.spans[run.spans["kind"] == "host_sync"]
    told = [event.fields["waits"] for event in run.events.itertuples() if event.kind == "syncs"]
    assert len(spans) and told
    assert all(end - start < 90e6 for start, end in zip(spans["start_ns"], spans["end_ns"], strict=True))
    for ((_, kind, count, ns, longest),) in told:
        assert (kind, count) == ("synchronize", 2) and 90e6 <= longest < ns


def test_who_waits_in_vain_gets_the_error_that_there_is(monkeypatch):
    def refuses(device=None):
        raise RuntimeError("no device")

    monkeypatch.setattr(torch.cuda, "synchronize", refuses)
    reads.watch()
    try:
        with pytest.raises(RuntimeError, match="no device"):
            torch.cuda.synchronize()
    finally:
        assert reads.unwatch() == {}


def test_a_wait_for_the_device_is_a_brick_of_its_step(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: time.sleep(0.1))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            torch.cuda.synchronize()
            optimizer.step()
    run = brickprof.load(bp.folder)
    waits = run.spans[run.spans["kind"] == "host_sync"]
    steps = run.spans[run.spans["phase"] == "step"].set_index("step")
    assert len(waits) >= 3 and set(waits["phase"]) == {"sync"} and set(waits["brick"]) == {"synchronize"}
    for wait in waits.itertuples():
        assert "test_transfers.py:" in str(wait.attributes) and wait.end_ns - wait.start_ns >= 90e6
        assert steps.loc[wait.step].start_ns <= wait.start_ns <= wait.end_ns <= steps.loc[wait.step].end_ns
    (told,) = {str(event.fields["waits"][0][1:3]) for event in run.events.itertuples() if event.kind == "syncs"}
    assert told == "['synchronize', 1]"
    assert all(not event.fields["device"] for event in run.events.itertuples() if event.kind == "syncs")  # no read
    assert reads._heard is None
    shares = step_budget(run.spans)["host"]
    assert shares["sync"] > 0.3 and shares["idle"] < 0.3
    assert title(Brick(Kind.HOST_SYNC, "item"), "sync") == "item sync"


def test_a_wait_stands_among_the_reads_with_what_it_waits_for():
    made = Made()
    made.healthy(3)
    for step in (0, 1, 2):
        made.event("transfers", step, count=1, bytes=8, rows=[["t.py:3", "H2D", 1, 8, True, False, 900]])
        waits = [["t.py:9", "event.synchronize", 4, 5_000], ["t.py:7", "synchronize", 1, 90_000]]
        made.event("syncs", step, count=1, device=1, sites=[["t.py:5", 1, 0, 1, 20_000]], waits=waits)
    run = diagnose(made.run()).run
    assert [(row["site"], row.get("waits_for"), row["count"]) for row in run["host_reads"]] == [
        ("t.py:7", "the device", 1.0), ("t.py:5", None, 1.0), ("t.py:9", "an event", 4.0),
    ]  # fmt: skip
    shown = "\n".join(lines(run))
    assert "waits for the device" in shown and "waits for an event" in shown and "read, the host waits" in shown
