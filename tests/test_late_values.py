"""Values of a device arrive steps later: nothing is lost, mixed up or waited for."""

from __future__ import annotations

import itertools
import math
import sys

import late
import pytest
import torch

import brickprof
from brickprof.capture.readback import Cuda, Readback

STEPS = 600


def batches(steps):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(steps * 8, 6, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=8)


def trained(tmp_path, *, spoil=-1, loader=True, overhead="0.01%"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with brickprof.attach(model, optimizer, out=tmp_path, overhead=overhead) as bp:
        for step, (inputs, targets) in enumerate(batches(STEPS) if loader else tuple(batches(STEPS))):
            loss = (model(inputs) - targets).square().mean()
            if step == spoil:
                loss = loss * math.inf
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            loss.detach().zero_()  # what the script writes into it later is not the loss
    return brickprof.load(bp.folder), losses


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("overhead", ["0.01%", "50%"])
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.05])
def test_every_loss_arrives_in_its_step(tmp_path, monkeypatch, seconds, overhead, loader):
    lane = late.pretend(monkeypatch, seconds)
    run, losses = trained(tmp_path, loader=loader, overhead=overhead)
    assert run.loss["step"].tolist() == list(range(STEPS))
    assert run.loss["value"].tolist() == pytest.approx(losses)
    assert lane.marks > 0


def test_losses_of_steps_that_nobody_looks_at_share_their_marks(tmp_path, monkeypatch):
    lane = late.pretend(monkeypatch, 0.0)
    before = []
    keep = Readback.scalar

    def counting(self, *given):
        before.append(lane.marks)
        keep(self, *given)

    monkeypatch.setattr(Readback, "scalar", counting)
    trained(tmp_path)
    shared = [one == other for one, other in itertools.pairwise(before)]
    assert sum(shared) > STEPS / 3


def test_a_broken_loss_is_told_of_the_step_it_broke_in(tmp_path, monkeypatch):
    late.pretend(monkeypatch, 0.005)
    run, _ = trained(tmp_path, spoil=533)
    anomalies = [event for event in run.events.itertuples() if event.kind == "anomaly"]
    assert anomalies and anomalies[0].step == 533
    diagnosis = brickprof.diagnose(run)
    first = diagnosis.findings[0]
    assert (first.contract, first.first_step) == ("C-TRAINSTABLE-001", 533)


def test_numbers_of_two_streams_have_two_marks(monkeypatch):
    lane = late.pretend(monkeypatch, 0.0)
    readback, seen = Readback(), []
    for number in range(6):
        lane.at = f"stream {number // 3}"
        readback.scalar(torch.tensor(float(number)), seen.append)
    readback.send()
    readback.poll()
    assert (seen, lane.marks, readback.dropped) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, 0)


def test_more_numbers_than_a_page_holds_all_arrive(monkeypatch):
    late.pretend(monkeypatch, 0.0)
    readback, seen = Readback(), []
    for number in range(150):
        readback.scalar(torch.tensor(float(number)), seen.append)
    readback.send()
    readback.drain(1.0)
    assert seen == [float(number) for number in range(150)]


def test_what_does_not_arrive_in_time_is_counted(monkeypatch):
    late.pretend(monkeypatch, 60.0)
    readback, seen = Readback(), []
    readback.scalar(torch.tensor(1.0), seen.append)
    readback.read(torch.ones(3), seen.append)
    readback.send()
    readback.drain(0.01)
    assert (seen, readback.dropped) == ([], 2)


def test_gradients_under_a_scaler_come_with_the_scale_that_was_on_them(tmp_path, monkeypatch):
    late.pretend(monkeypatch, 0.002)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    scales = []
    with brickprof.attach(model, optimizer, out=tmp_path) as bp:
        for inputs, targets in batches(60):
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            scaler.scale((model(inputs) - targets).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    run = brickprof.load(bp.folder)
    told = [(event.step, event.fields["scale"]) for event in run.events.itertuples() if event.kind == "grad"]
    assert told and all(scale == scales[step] for step, scale in told)
    grads = run.grads
    assert len(grads) and all(row.scale == scales[row.step] for row in grads.itertuples())
    assert brickprof.diagnose(run).findings == ()


def test_the_guard_of_a_device_tells_norms_and_not_only_largest_values(tmp_path, monkeypatch):
    late.pretend(monkeypatch, 0.001)
    norms = []
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=tmp_path, overhead="100%") as bp:
        for inputs, targets in batches(30):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
            optimizer.step()
    told = [event for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "grad"]
    assert len(told) == 30
    assert [event.fields["l2"] for event in told] == pytest.approx([norms[event.step] for event in told], rel=1e-5)


def targets_of(folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=folder, overhead="100%") as bp:
        for step in range(20):
            generator = torch.Generator().manual_seed(step % 5)
            inputs = torch.randn(8, 6, generator=generator)
            labels = torch.randint(0, 4, (8,), generator=generator)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    told = [event for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "targets"]
    return [(event.step, event.fields["fingerprint"], event.fields["input"], event.fields["rows"]) for event in told]


def test_what_a_device_learns_from_has_the_fingerprint_it_has_on_a_host(tmp_path, monkeypatch):
    on_a_host = targets_of(tmp_path / "host")
    late.pretend(monkeypatch, 0.003)
    assert targets_of(tmp_path / "device") == on_a_host
    assert len(on_a_host) == 20 and len({told[1:] for told in on_a_host}) == 5


def test_a_state_whose_counter_is_on_a_device_is_not_taken_for_a_new_one(tmp_path, monkeypatch):
    late.pretend(monkeypatch, 0.001)
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for place in range(2):
        with brickprof.attach(model, optimizer, out=tmp_path / str(place)) as bp:
            for inputs, targets in batches(20):
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
        run = brickprof.load(bp.folder)
        told = [event for event in run.events.itertuples() if event.kind == "moments"]
        assert told and not any(row["stale"] for event in told for row in event.fields["tensors"])
        assert brickprof.diagnose(run).findings == ()


class Chain(torch.nn.Module):
    """Ends in an operation that the data of one step break."""

    def __init__(self, last):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.last = last

    def forward(self, x):
        return self.last(self.first(x))


class Logarithm(torch.nn.Module):
    def forward(self, x):
        return x.relu().log()


class Ratio(torch.nn.Module):
    def forward(self, x):
        return x / x.relu()


class Ignores(torch.nn.Module):
    def forward(self, x):
        targets = torch.where((x.detach() > 0).all(1), 0, -100)
        return torch.nn.functional.cross_entropy(x, targets)


class Root(torch.nn.Module):
    def forward(self, x):
        return x.sqrt()


def origins_of(folder, last, **backward):
    torch.manual_seed(0)
    model = Chain(last)
    with torch.no_grad():
        model.first.bias.fill_(8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, optimizer, out=folder, overhead="100%") as bp:
        for step, (inputs, _) in enumerate(batches(12)):
            optimizer.zero_grad()
            loss = model(-1000 * inputs.abs() if step == 8 else inputs).square().mean()
            loss.backward(**backward)
            optimizer.step()
    run = brickprof.load(bp.folder)
    told = [event for event in run.events.itertuples() if event.kind == "origin"]
    bricks = {event.fields["id"]: event.fields["path"] for event in run.events.itertuples() if event.kind == "brick"}
    return [
        (event.step, event.fields["op"], event.fields["kind"], bricks.get(event.fields.get("brick"))) for event in told
    ]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (Logarithm(), "log-of-zero"),
        (Ratio(), "division-by-zero"),
        (Root(), "root-of-negative"),
        (Ignores(), "empty-mean"),
    ],
    ids=["log", "division", "root", "mean"],
)
def test_where_a_loss_broke_is_known_of_a_device_as_of_a_host(tmp_path, monkeypatch, last, kind):
    on_a_host = origins_of(tmp_path / "host", last)
    late.pretend(monkeypatch, 0.003)
    assert origins_of(tmp_path / "device", last)[:1] == on_a_host[:1]
    (step, _, found, brick) = on_a_host[0]
    assert (step, found, brick) == (8, kind, "last")


def fingerprints_of(folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with brickprof.attach(model, optimizer, out=folder, overhead="100%") as bp:
        for inputs, targets in batches(20):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
    told = [event for event in brickprof.load(bp.folder).events.itertuples() if event.kind == "batch"]
    about = [(event.step, event.fields["size"], event.fields["std"], event.fields["nan"]) for event in told]
    return about, {event.fields["fingerprint"] for event in told}


def test_batches_on_a_device_are_told_apart(tmp_path, monkeypatch):
    on_a_host, _ = fingerprints_of(tmp_path / "host")
    late.pretend(monkeypatch, 0.003)
    on_a_device, prints = fingerprints_of(tmp_path / "device")
    assert on_a_device == on_a_host and len(prints - {""}) == len(on_a_host) == 20


def test_pinned_memory_outlives_every_session(monkeypatch):
    lane = late.pretend(monkeypatch, 0.0)
    for _ in range(3):  # the second and third find what the first has left
        readback = Readback()
        for number in range(3):
            readback.scalar(torch.tensor(float(number)), lambda _: None)
        readback.send()
        readback.drain(1.0)
    (kept,) = [buffers for (owner, _, _), buffers in Readback._free.items() if owner is lane]
    assert len(kept) == 1


@pytest.mark.parametrize("backward", [{"retain_graph": True}, {"create_graph": True}], ids=["retained", "created"])
@pytest.mark.filterwarnings("ignore:Using backward.*create_graph")
def test_a_graph_that_the_script_keeps_is_not_held_until_an_answer_comes(tmp_path, monkeypatch, backward):
    late.pretend(monkeypatch, 0.003)
    assert origins_of(tmp_path, Logarithm(), **backward) == []


def test_a_buffer_of_pinned_memory_is_never_destroyed(monkeypatch):
    """One reference is nobody's: on a device that has failed, giving it back would abort the process."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda numel, dtype, device, pin_memory: empty(numel, dtype=dtype))
    plain, buffer = empty(8), Cuda().buffer(8, torch.float32)
    assert sys.getrefcount(buffer) == sys.getrefcount(plain) + 1


class Summed(torch.nn.Module):
    """A sum over powers, of which ``away`` takes places out or lets one overflow."""

    def __init__(self, away):
        super().__init__()
        self.away = away

    def forward(self, x):
        return (x + torch.tensor([self.away, *[0.0] * 7])).logsumexp(-1)


@pytest.mark.parametrize("late_values", [False, True])
def test_minus_infinity_is_a_mask_and_infinity_is_none(tmp_path, monkeypatch, late_values):
    if late_values:
        late.pretend(monkeypatch, 0.003)
    assert origins_of(tmp_path / "masked", Summed(-math.inf)) == []
    (first, *_) = origins_of(tmp_path / "overflown", Summed(math.inf))
    assert first[:3] == (0, "AddBackward0", "overflow")
