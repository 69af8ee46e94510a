"""On a real device: every kind of copy and read is seen once, as it was; healthy loops are left alone, slow ones told.

Skips without CUDA. ``pytest -q tests/test_gpu_transfers.py``."""

from __future__ import annotations

import hashlib
import io
import sys

import pytest
import torch

import brickprof
from brickprof.capture.taps import copying, reads
from brickprof.contracts.verdicts import Severity
from brickprof.reference.config import Config
from brickprof.reference.train import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

N = 1 << 16


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
    torch.cuda.init()
    listener = Ear()
    yield listener
    copying.unwatch(listener)
    reads.unwatch()


def heard(ear, act, *given):
    torch.cuda.synchronize()
    reads.watch()
    copying.watch(ear)
    act(*given)
    copying.unwatch(ear)
    return ear.heard, {read: tally.count for read, tally in reads.unwatch().items()}


COPIES = {
    # what is done: direction, bytes, pinned, asked not to block, blocks
    "to device": (lambda h, p, d: h.to("cuda"), ("H2D", 4 * N, False, False, True)),
    "cuda()": (lambda h, p, d: h.cuda(), ("H2D", 4 * N, False, False, True)),
    "pageable, non_blocking": (lambda h, p, d: h.to("cuda", non_blocking=True), ("H2D", 4 * N, False, True, True)),
    "pinned": (lambda h, p, d: p.to("cuda"), ("H2D", 4 * N, True, False, True)),
    "pinned, non_blocking": (lambda h, p, d: p.to("cuda", non_blocking=True), ("H2D", 4 * N, True, True, False)),
    "converted": (lambda h, p, d: p.to("cuda", torch.half), ("H2D", 2 * N, True, False, True)),
    "converted, non_blocking": (lambda h, p, d: p.to("cuda", torch.half, True), ("H2D", 4 * N, True, True, False)),
    "cuda(non_blocking)": (lambda h, p, d: p.cuda(non_blocking=True), ("H2D", 4 * N, True, True, False)),
    "copy_ to device": (lambda h, p, d: d.copy_(h), ("H2D", 4 * N, False, False, True)),
    "copy_ pinned": (lambda h, p, d: d.copy_(p, True), ("H2D", 4 * N, True, True, False)),
    "cpu()": (lambda h, p, d: d.cpu(), ("D2H", 4 * N, False, False, True)),
    "to host": (lambda h, p, d: d.to("cpu"), ("D2H", 4 * N, False, False, True)),
    "to host, non_blocking": (lambda h, p, d: d.to("cpu", non_blocking=True), ("D2H", 4 * N, True, True, False)),
    "to host, converted": (lambda h, p, d: d.to("cpu", torch.half), ("D2H", 4 * N, False, False, True)),
    "to host, converted, non_blocking": (
        lambda h, p, d: d.to("cpu", torch.half, True),
        ("D2H", 2 * N, True, True, False),
    ),
    "copy_ to host": (lambda h, p, d: h.copy_(d), ("D2H", 4 * N, False, False, True)),
    "copy_ to pinned": (lambda h, p, d: p.copy_(d, non_blocking=True), ("D2H", 4 * N, True, True, False)),
    "tensor": (lambda h, p, d: torch.tensor([1.0, 2.0], device="cuda"), ("H2D", 8, False, False, True)),
    "as_tensor": (lambda h, p, d: torch.as_tensor(h, device="cuda"), ("H2D", 4 * N, False, False, True)),
    "new_tensor": (lambda h, p, d: d.new_tensor([1.0]), ("H2D", 4, False, False, True)),
    "index": (lambda h, p, d: d[torch.arange(16)], ("H2D", 128, False, False, True)),
    "pin_memory": (lambda h, p, d: h.pin_memory(), ("pin", 4 * N, True, False, True)),
}


@pytest.mark.parametrize("how", COPIES)
def test_every_copy_is_heard_once_as_it_was(ear, how):
    act, expected = COPIES[how]
    given = torch.ones(N), torch.ones(N).pin_memory(), torch.ones(N, device="cuda")
    copies, waited = heard(ear, act, *given)
    told = [(copy.direction, copy.bytes, copy.pinned, copy.non_blocking, copy.blocking) for copy in copies]
    assert told == [expected], copies
    assert copies[0].site == f"test_gpu_transfers.py:{act.__code__.co_firstlineno}"
    assert sum(waited.values()) == (expected[0] == "D2H" and expected[4]), waited


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_from_one_device_to_another(ear):
    copies, _ = heard(ear, lambda d: d.to("cuda:1"), torch.ones(N, device="cuda:0"))
    assert [(copy.direction, copy.bytes, copy.blocking) for copy in copies] == [("D2D", 4 * N, False)]


def test_a_copy_within_the_device_is_told_apart(ear):
    copies, waited = heard(ear, lambda d: torch.empty_like(d).copy_(d), torch.ones(N, device="cuda"))
    told = [(copy.direction, copy.bytes, copy.blocking, copy.within, copy.device) for copy in copies]
    assert told == [("D2D", 4 * N, False, True, "cuda:0")] and waited == {}


def test_what_stays_on_the_device_is_no_copy(ear):
    def act(d):
        d.half(), d.to(torch.bfloat16), d.t().contiguous(), d.clone(), d.to("cuda")
        d[d.argsort()], d[:4], torch.zeros(4, device="cuda"), torch.full_like(d, 2.0)
        d[d > 2] = 0.0

    copies, waited = heard(ear, act, torch.ones(64, device="cuda"))
    assert (copies, waited) == ([], {})


READS = {
    "item": lambda d: d.sum().item(),
    "tolist": lambda d: d.tolist(),
    "bool": lambda d: bool(d.sum()),
    "float": lambda d: float(d.sum()),
    "int": lambda d: int(d.sum()),
    "print": lambda d: print(d, file=io.StringIO()),
    "nonzero": lambda d: d.nonzero().size(0),
    "masked_select": lambda d: torch.masked_select(d, d > 0),
    "unique": lambda d: d.unique(),
    "equal": lambda d: torch.equal(d, d),
    "where": lambda d: torch.where(d)[0],
    "mask": lambda d: d[d > 0],
}


@pytest.mark.parametrize("kind", READS)
def test_every_read_is_counted_once(ear, kind):
    act = READS[kind]
    copies, waited = heard(ear, act, torch.ones(8, device="cuda"))
    assert copies == []
    line = f"test_gpu_transfers.py:{act.__code__.co_firstlineno}"
    assert waited == {reads.Read(line, kind): 1}


def test_a_wait_is_as_long_as_the_work_before_it(ear):
    a = torch.randn(4096, 4096, device="cuda")

    def act():
        b = a
        for _ in range(20):
            b = b @ a
        b.sum().item()

    act()
    torch.cuda.synchronize()
    reads.watch()
    copying.watch(ear)
    act()
    copying.unwatch(ear)
    (tally,) = reads.unwatch().values()
    assert tally.ns > 1_000_000, "twenty products of 4096 x 4096 take longer than a millisecond"


# -- loops


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(8))
        self.head = torch.nn.Linear(256, 10)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def train(steps, each=lambda step, model, loss: None, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(steps * 64, 256, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :10].argmax(1))
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True)):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        each(step, model, loss)
        optimizer.step()
        if step % 10 == 0:
            loss.item()
    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, buffer)
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def watched(tmp_path, steps=80, **how):
    with brickprof.attach(None, out=tmp_path) as session:
        digest = train(steps, **how)
    run = brickprof.load(session.folder)
    return run, brickprof.diagnose(run), digest


def contracts(diagnosis):
    return {contract.id: contract for contract in diagnosis.contracts}


def told(diagnosis):
    return [f for f in diagnosis.findings if f.severity is not Severity.INFO]


def looks(run, kind):
    return [record.fields for record in run.records() if getattr(record, "kind", "") == kind]


def test_a_healthy_loop_is_left_alone_and_its_bits_too(tmp_path):
    run, diagnosis, digest = watched(tmp_path)
    assert not looks(run, "probe_off"), looks(run, "probe_off")
    assert told(diagnosis) == []
    judged = contracts(diagnosis)["C-GPUTRAIN-002"]
    assert (judged.verdict, judged.observed.split(",")[0]) == ("PASS", "2 transfers a step"), judged
    last = looks(run, "transfers")[-1]
    sent = [row[2:6] for row in last["rows"] if row[1] == "H2D"]  # one row where both stand in one line
    assert sum(row[0] for row in sent) == 2 and sum(row[1] for row in sent) == 64 * 1024 + 64 * 8, last
    assert all(row[2:] == [True, False] for row in sent), last
    assert digest == train(80), "watching changes no bit"


def test_many_reads_in_a_step_are_told_with_their_line(tmp_path):
    """So many that they cost a part of the step also where others use the card, and one wait is as long as many."""

    def read(step, model, loss):
        for _ in range(400):
            loss.detach().item()

    line = f"test_gpu_transfers.py:{read.__code__.co_firstlineno + 2}"
    run, diagnosis, _ = watched(tmp_path, each=read)
    assert any(line in f.symptom and f.root_cause == "host-sync-in-loop" for f in told(diagnosis)), (
        told(diagnosis), looks(run, "syncs")[-1],
    )  # fmt: skip


def test_gradients_that_travel_are_told_with_their_line(tmp_path):
    def clip(step, model, loss):
        for parameter in model.parameters():
            parameter.grad.copy_((parameter.grad.cpu() * 0.5).to("cuda"))

    run, diagnosis, _ = watched(tmp_path, each=clip)
    line = f"test_gpu_transfers.py:{clip.__code__.co_firstlineno + 2}"
    found = [f for f in told(diagnosis) if f.root_cause == "extra-transfers"]
    assert found and line in found[0].symptom, (told(diagnosis), looks(run, "transfers")[-1])


class Ends(torch.nn.Module):
    """A model whose ends stay on the host."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(32, 64), torch.nn.Linear(64, 32)
        self.body = torch.nn.Linear(64, 64).cuda()

    def forward(self, tokens):
        with brickprof.brick("to_device", kind="transfer", transfers=1):
            hidden = self.embed(tokens).to("cuda")
        with brickprof.brick("to_host", kind="transfer", transfers=1):
            hidden = self.body(hidden).to("cpu")
        return self.head(hidden)


def test_ends_on_the_host_make_few_transfers_each_with_its_line(tmp_path):
    """Hidden states to the device and back, and the gradient of each."""
    torch.manual_seed(0)
    net = Ends()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with brickprof.attach(net, optimizer, out=tmp_path) as session:
        for _ in range(12):
            tokens = torch.randint(32, (4, 16))
            loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = brickprof.load(session.folder)
    last = looks(run, "transfers")[-1]
    size = 4 * 16 * 64 * 4
    assert (last["count"], last["bytes"]) == (4, 4 * size), last
    assert sorted(row[1] for row in last["rows"]) == ["D2H", "D2H", "H2D", "H2D"], last
    assert contracts(brickprof.diagnose(run))["C-GPUTRAIN-002"].verdict == "PASS"


@pytest.mark.parametrize("changes", [{}, {"kernels": "torch"}, {"host_ends": True}], ids=str)
def test_ten_steps_of_the_reference_have_the_losses_of_the_host(changes):
    """C-GPUTRAIN-002: the losses of a device and of the host are within 1e-3 after ten steps."""
    losses = {}
    for device in ("cpu", "cuda"):
        trainer = Trainer(Config(steps=10, **changes), device=device)
        batches = trainer.batches()
        losses[device] = [float(trainer.train_step(batches)) for _ in range(10)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], abs=1e-3), losses


class Travelling(Trainer):
    """The norm of every gradient goes to the host."""

    def sides(self):
        return [list(self.model.parameters())]


@pytest.mark.parametrize(
    ("make", "layers", "accumulation"), [(Trainer, 1, 1), (Trainer, 4, 1), (Trainer, 2, 2), (Travelling, 1, 1)]
)
def test_the_reference_with_both_ends_on_the_host_makes_the_three_transfers_that_it_declares(
    tmp_path, make, layers, accumulation
):
    config = Config(
        layers=layers, accumulation=accumulation, steps=12, evaluate_every=0, checkpoint_every=0, host_ends=True,
        clip=0.1, kernels="torch",
    )  # fmt: skip
    trainer = make(config, device="cuda")
    with brickprof.attach(trainer.model, trainer.optimizer, out=tmp_path) as session:
        trainer.run()
    run = brickprof.load(session.folder)
    found = [each for each in looks(run, "transfers") if each["count"]]  # after the last update nothing is copied
    diagnosis = brickprof.diagnose(run)
    judged = contracts(diagnosis)["C-GPUTRAIN-002"]
    if make is Travelling:
        symptoms = [finding.symptom for finding in told(diagnosis) if finding.contract == judged.id]
        assert judged.verdict == "FAIL" and "train_step makes" in symptoms[0], (judged, symptoms, found[-1])
        return
    size = 4 * config.batch * config.length * config.width
    times = 3 * accumulation
    assert {(each["count"], each["bytes"]) for each in found} == {(times, times * size)}, found
    assert sorted(row[1] for row in found[-1]["rows"]) == ["D2H", "H2D", "H2D"], found[-1]
    assert judged.verdict == "PASS", judged
    declared = run.spans[run.spans.brick.astype(str) == "train_step"]
    assert len(declared) and all(f'"transfers": {times}' in each for each in declared.attributes)


def test_a_users_triton_kernel_is_a_brick_and_a_storm_of_it_is_told(tmp_path):
    triton = pytest.importorskip("triton")
    import triton.language as tl

    source = tmp_path / "doubling.py"
    source.write_text(
        "import triton, triton.language as tl\n\n@triton.jit\ndef doubled(x, n, B: tl.constexpr):\n"
        "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)\n"
    )
    assert triton and tl
    sys.path.insert(0, str(tmp_path))
    try:
        from doubling import doubled
    finally:
        sys.path.remove(str(tmp_path))
    rows = torch.ones(1500, 32, device="cuda")

    def storm(step, model, loss):
        for row in rows:
            doubled[(1,)](row, 32, B=32)

    run, diagnosis, _ = watched(tmp_path / "runs", steps=12, each=storm)
    counted = [row for each in looks(run, "launches") for row in each["kernels"] if row[0] == "doubled"]
    assert counted and all(row[1] == 1500 and row[2].startswith("test_gpu_transfers.py:") for row in counted), counted
    assert any(f.root_cause == "launch-storm" and "doubled" in f.symptom for f in told(diagnosis)), told(diagnosis)
    spans = run.spans[(run.spans.kind == "kernel") & (run.spans.brick.astype(str) == "doubled")]
    assert len(spans) >= 1500 and spans.device_ns.notna().any()
