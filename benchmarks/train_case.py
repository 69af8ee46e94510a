"""One training of the overhead benchmark: a GPT that steps only when told to.

Enters: the name of a case and a socket. Leaves: for each `{"steps": n}` line that comes in, one line with the
wall and CPU seconds the n steps took; the end of the stream ends the process. It imports nothing of
brickprof: the same file runs plainly, under `brickprof run`, and under the peers it is compared with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Case:
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    device: str = "cpu"
    tied: bool = False
    compiled: bool = False
    clips: bool = True
    parts: int = 1
    """Micro-batches of a step, with a backward each."""
    loads: bool = True
    """Whether a DataLoader makes the batches; many a loop draws them itself."""


CASES = {
    "host-bound": Case(layers=6, width=96, heads=4, length=32, batch=1, vocabulary=256),
    "medium": Case(layers=6, width=384, heads=6, length=256, batch=8, vocabulary=256),
    "124m": Case(12, 768, 12, 1024, 8, 50304, device="cuda", tied=True),
    "124m-compiled": Case(12, 768, 12, 1024, 8, 50304, device="cuda", tied=True, compiled=True),
    "350m": Case(24, 1024, 16, 1024, 8, 50304, device="cuda", tied=True),
    "124m-unclipped": Case(12, 768, 12, 1024, 8, 50304, device="cuda", tied=True, clips=False),
    "124m-accumulated": Case(12, 768, 12, 1024, 8, 50304, device="cuda", tied=True, parts=2),
    "124m-drawn": Case(12, 768, 12, 1024, 8, 50304, device="cuda", tied=True, loads=False),
}
PEERS = ("none", "anomaly", "profiler", "hooks", "streams")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embed = nn.Embedding(case.vocabulary, case.width)
        self.position = nn.Embedding(case.length, case.width)
        self.blocks = nn.ModuleList(Block(case.width, case.heads) for _ in range(case.layers))
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, case.vocabulary, bias=False)
        self.apply(self._initialise)
        if case.tied:
            self.head.weight = self.embed.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def batches(case: Case) -> Iterator[list[torch.Tensor]]:
    """Counting sequences, for ever."""
    starts = torch.randint(case.vocabulary, (case.batch * 64, 1))
    ids = (starts + torch.arange(case.length + 1)) % case.vocabulary
    loader = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), batch_size=case.batch, shuffle=True)
    while case.loads:
        yield from loader
    while True:
        drawn = ids[torch.randint(len(ids), (case.batch,))]
        yield [drawn[:, :-1], drawn[:, 1:]]


class Training:
    """The loop as people write it; ``run(n)`` times n steps of it."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.device = torch.device(case.device)
        model = GPT(case).to(self.device)
        self.model = torch.compile(model) if case.compiled else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100_000)
        self.batches = batches(case)

    def precision(self) -> contextlib.AbstractContextManager[None]:
        if self.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step(self) -> None:
        ids, targets = (tensor.to(self.device, non_blocking=True) for tensor in next(self.batches))
        self.optimizer.zero_grad()
        for part, wanted in zip(ids.chunk(self.case.parts), targets.chunk(self.case.parts), strict=True):
            with self.precision():
                loss = self.model(part, wanted) / self.case.parts
            loss.backward()
        if self.case.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, steps: int) -> dict[str, float]:
        """Wall and CPU seconds of ``steps`` steps; the device is waited for at both ends only."""
        self.synchronise()
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step()
        self.synchronise()
        return {"wall": time.perf_counter() - start, "cpu": time.process_time() - start_cpu}


@contextlib.contextmanager
def blocks_hooked(blocks: nn.ModuleList, largest: dict[str, float]) -> Iterator[None]:
    """The largest value of what each block puts out, and of the gradient that comes back to it, in every step."""
    names = {block: str(number) for number, block in enumerate(blocks)}

    def forward(block: nn.Module, inputs: object, output: torch.Tensor) -> None:
        largest[names[block]] = output.abs().max().item()

    def backward(block: nn.Module, inputs: object, outputs: tuple[torch.Tensor, ...]) -> None:
        largest[f"{names[block]} backward"] = outputs[0].abs().max().item()

    handles = [block.register_forward_hook(forward) for block in blocks]
    handles += [block.register_full_backward_hook(backward) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def watched_by(peer: str, training: Training) -> Iterator[None]:
    """What else people use to see inside a training."""
    if peer == "anomaly":
        with torch.autograd.set_detect_anomaly(True):
            yield
    elif peer == "profiler":
        with torch.profiler.profile(profile_memory=False, record_shapes=False):
            yield
    elif peer == "hooks":
        with blocks_hooked(training.model.blocks, {}):
            yield
    elif peer == "streams":
        from torch.cuda._sanitizer import CUDASanitizerDispatchMode

        with CUDASanitizerDispatchMode():
            yield
    else:
        yield


def told() -> float:
    """Seconds that whoever watches this process has used up so far, by its own account."""
    hub = sys.modules.get("brickprof.capture.hub")
    sessions = hub.sessions if hub is not None else ()
    return sum(session.spent + session.journal.written_ns for session in sessions) / 1e9


def serve(training: Training, peer: str, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        stream = channel.makefile("rw")
        for line in stream:
            # A profiler keeps every event until it stops: each block has its own.
            with watched_by(peer, training):
                before = told()
                seconds = training.run(json.loads(line)["steps"])
            stream.write(json.dumps(seconds | {"own": told() - before}) + "\n")
            stream.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--peer", choices=PEERS, default="none")
    parser.add_argument("--socket", help="without one, time a few steps and print them")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    training = Training(CASES[args.case])
    if args.socket:
        serve(training, args.peer, args.socket)
    else:
        training.run(3)
        with watched_by(args.peer, training):
            seconds = training.run(args.steps)
        print(f"{args.case}: {1e3 * seconds['wall'] / args.steps:.2f} ms a step")


if __name__ == "__main__":
    main()
