"""Runs made by hand that fill a page: a device with kernels and copies, many ranks, very many steps."""

from __future__ import annotations

import math

import numpy as np
from making import START, Made

from brickprof.bricks import Brick, Kind
from brickprof.records import Event, Record, RunMeta, Sample, Span
from brickprof.run import Run

MS = 1_000_000
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
KERNELS = (GEMM, "fused_rmsnorm", "elementwise_kernel<add>", "softmax_warp_forward")


class Device(Made):
    """A model on a device: steps of 40 ms whose bricks are timed on both sides, with kernels and copies."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__("embed", *(f"blocks.{n}" for n in range(layers)), "head", dtype="bfloat16")
        self._spans = 0

    def span(self, kind, path, step, start, ms, phase, parent=0, device=None, stream=None, **told):
        """A brick that begins ``start`` ms into its step; ``device`` is when and how long on the device, in ms."""
        self._spans += 1
        begin = START + int((50 * step + start) * MS)
        if device is not None:
            told["device_start_ns"] = START + int((50 * step + device[0]) * MS)
        ns = None if device is None else int(device[1] * MS)
        self.records.append(
            Span(Brick(kind, path, self.model if kind is Kind.BLOCK else ""), step, begin, begin + int(ms * MS), phase,
                 self._spans, parent, ns, stream, attributes=told, rank=self.rank)
        )  # fmt: skip
        return self._spans

    def timed(self, step: int, kernels: bool = True) -> None:
        whole = self.span(Kind.STEP, "step", step, 0, 40, "step", device=(3, 40), stream=0)
        self.span(Kind.LOADER, "loader", step, 0, 2, "loader", whole)
        self.span(Kind.TRANSFER, "H2D", step, 2, 0.5, "transfer", whole, (3, 0.8), 13, bytes=1 << 20)
        for place, block in enumerate(self.numbers):
            for phase, start, device in (
                ("forward", 3 + 2 * place, 4 + 2.4 * place),
                ("backward", 34 - 3 * place, 33.5 - 2.8 * place),
            ):
                mine = self.span(Kind.BLOCK, block, step, start, 1.8, phase, whole, (device, 2.2), 0)
                for n, name in enumerate(KERNELS if kernels else ()):
                    at = device + 0.5 * n, 0.4
                    self.span(Kind.KERNEL, name, step, start + 0.4 * n, 0, phase, mine, at, 7, source="profiler")
        self.span(Kind.OPTIMIZER, "AdamW", step, 37, 2, "optimizer", whole, (37, 4), 0)

    def resources(self, step: int) -> None:
        gigabyte = 10**9
        self.event(
            "memory", step, rss=gigabyte + step * 10**6, device_allocated=8 * gigabyte,
            device_reserved=(9 + (step > 20)) * gigabyte, device_peak=int(8.5 * gigabyte),
        )  # fmt: skip
        rows = [
            ["train.py:41", "H2D", 2, 1 << 20, True, False, 40_000],
            ["train.py:60", "D2H", 1, 4, False, True, 900_000],
        ]
        self.event("transfers", step, count=3, bytes=(1 << 20) + 4, ns=940_000, device=["cuda:0"], rows=rows)
        sites = [["train.py:60", 1, 0, 1, 900_000]]
        self.event(
            "syncs", step, count=1, device=1, ns=900_000, sites=sites, kinds=[["train.py:60", "item", 1, 900_000]]
        )
        self.event("launches", step, count=24, kernels=[["fused_rmsnorm", 6, "train.py:33"]])
        for card in (0, 1):
            self.event(
                "card", step, rank=-1, what="sample", device=card, ordinal=card, looks=4, seconds=step / 10,
                utilisation=0.9 - 0.2 * card, power=500.0 + step % 7, sm_clock=1900.0, temperature=50.0 + step / 5,
                memory_used=20 * gigabyte, memory_total=140 * gigabyte, power_limit=700.0, throttled={},
            )  # fmt: skip


def device_run(steps: int = 40, layers: int = 4) -> Run:
    """A healthy run on two cards, every fourth step timed, one of them kernel by kernel."""
    made = Device(layers)
    about = {"name": "NVIDIA H200", "interval": 0.25, "power_limit": 700.0, "sm_clock_max": 1980.0}
    for card in (0, 1):
        made.event("card", 0, rank=-1, what="device", device=card, ordinal=card, **about)
    for step in range(steps):
        made.step(step, loss=3 * math.exp(-step / 30) + 1, norm=1 + (step % 5) / 10, lr=1e-3 * min(1, (step + 1) / 8))
        for at, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=0.5 / (at + 1), absmax=0.01)
            made.sample("update", step, block, l2=0.01, ratio=1e-3 * (1 + at / 3))
        if step % 4 == 0:
            made.timed(step, kernels=step == 24)
            made.resources(step)
    return made.run()


def many_ranks(ranks: int = 64, steps: int = 60, slow: int = 17) -> Run:
    """Ranks on one host: one is late in every step, one drifts away."""
    records: list[Record] = []
    chance = np.random.default_rng(0)
    for rank in range(ranks):
        place = {"node": 0, "local_rank": rank, "dp": rank}
        records.append(
            Event("run", 0, {"coordinates": place, "rank": rank, "world_size": ranks, "host": "one"}, 0, START, rank)
        )
        records.append(Event("model", 0, {"model": "Net"}, 1, START, rank))
        for step in range(steps):
            late = int(chance.integers(0, 800_000)) + (9 * MS if rank == slow else 0)
            loss = 3 - step / 50 + chance.normal(0, 0.02) + (step / 100 if rank == 5 else 0)
            moment = START + step * 100 * MS + late
            told = {"value": loss, "micro": 0, "grad_fn": "NllLossBackward0", "dtype": "float32"}
            norm = {"point": "step", "tensors": 3, "l2": 1 + abs(chance.normal(0, 0.1)), "nonfinite": []}
            update = {"optimizer": 0, "lr": [1e-3], "count": step + 1}
            for n, (kind, fields) in enumerate((("loss", told), ("grad", norm), ("optimizer", update))):
                records.append(Event(kind, step, fields, 2 + 3 * step + n, moment + n, rank))
    return Run.from_records(records, RunMeta("r64r", script="train.py", source="records"))


def long_run(steps: int = 100_000) -> Run:
    """Many steps, one spike in the middle, samples now and then."""
    chance = np.random.default_rng(0)
    noise = chance.normal(0, 0.05, steps)
    records: list[Record] = [Event("run", 0, {"coordinates": {"node": 0}}, 0, START, 0)]
    seq = 1
    for step in range(steps):
        loss = 2 + 6 * math.exp(-step / (steps / 8)) + float(noise[step]) + (7.0 if step == steps // 2 else 0.0)
        moment = START + step * 20 * MS
        told = (
            ("loss", {"value": loss, "micro": 0}),
            ("grad", {"point": "step", "l2": 1 + step % 11 / 10, "nonfinite": []}),
        )
        for n, (kind, fields) in enumerate((*told, ("optimizer", {"optimizer": 0, "lr": [1e-3 / (1 + step / 1e4)]}))):
            records.append(Event(kind, step, fields, seq, moment + n, 0))
            seq += 1
        if step % 100 == 0:
            for at in range(24):
                brick = Brick(Kind.BLOCK, f"blocks.{at // 2}.{'attn' if at % 2 else 'mlp'}", "Net")
                for role, size in (("grad", {"l2": 0.1 * (1 + at)}), ("update", {"ratio": 1e-3 * (1 + at / 8)})):
                    records.append(Sample(brick, f"w{at}", role, step, 64, time_ns=moment, **size))
    return Run.from_records(records, RunMeta("l0ng", script="train.py", source="records"))
