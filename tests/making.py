"""Runs made by hand, record by record, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.records import Event, Record, RunMeta, Sample, Span
from brickprof.run import Run

NAN, INF = float("nan"), float("inf")
START = 1_763_170_000_000_000_000


class Made:
    """A small model of blocks in a row, one parameter each, and what happens to it."""

    def __init__(self, *blocks: str, model: str = "Net", dtype: str = "float32", rank: int = 0) -> None:
        self.records: list[Record] = []
        self.model, self.rank = model, rank
        self.numbers: dict[str, int] = {}
        self._clock = 0
        self._seq: dict[int, int] = {}
        self.event("run", 0, coordinates={"node": 0, "local_rank": rank, "dp": rank}, rank_of=rank)
        self.event("model", 0, model=model)
        for block in blocks or ("embed", "body", "head"):
            self.block(block, dtype=dtype)

    def block(self, path: str, *, dtype: str = "float32", trainable: bool = True, **fields: Any) -> None:
        number = len(self.numbers) + 1
        self.numbers[path] = number
        self.event("brick", 0, id=number, brick_kind="block", path=path, model=self.model)
        told = {"shape": [8, 8], "dtype": dtype, "trainable": trainable, **fields}
        self.event("tensor", 0, id=number, name=f"{path}.weight", model=self.model, brick=number, **told)

    def owned(self, *blocks: str, optimizer: int = 0, frozen: tuple[str, ...] = ()) -> None:
        group = {
            "tensors": [self.numbers[b] for b in blocks or self.numbers],
            "frozen": [self.numbers[b] for b in frozen],
        }
        self.event("optimizer_created", 0, optimizer=optimizer, cls="AdamW", groups=[group])

    def now(self) -> int:
        self._clock += 1000
        return START + self._clock

    def event(self, kind: str, step: int, *, rank: int | None = None, **fields: Any) -> Event:
        rank = self.rank if rank is None else rank
        seq = self._seq[rank] = self._seq.get(rank, -1) + 1
        made = Event(kind, step, fields, seq, self.now(), rank)
        self.records.append(made)
        return made

    def sample(self, role: str, step: int, block: str, **fields: Any) -> Sample:
        name = "" if role == "activation" else f"{block}.weight"
        told = {"numel": 64, "nan": 0, "inf": 0, "absmax": 1.0, "l2": 2.0, **fields}
        made = Sample(
            Brick(Kind.BLOCK, block, self.model), name, role, step, time_ns=self.now(), rank=self.rank, **told
        )
        self.records.append(made)
        return made

    def forward(self, step: int, *blocks: str, phase: str = "forward") -> None:
        for block in blocks or self.numbers:
            start = self.now()
            self.records.append(
                Span(Brick(Kind.BLOCK, block, self.model), step, start, self.now(), phase, rank=self.rank)
            )

    def step(self, step: int, *, loss: float = 1.0, norm: float = 1.0, lr: float = 1e-3, **optimizer: Any) -> None:
        """A healthy step, told in full."""
        self.forward(step)
        self.event("loss", step, value=loss, micro=0, scale=None, dtype="float32", grad_fn="NllLossBackward0")
        self.event("grad", step, point="step", tensors=len(self.numbers), l2=norm, nonfinite=[], scale=None)
        self.event("optimizer", step, optimizer=0, lr=[lr], count=step + 1, **optimizer)

    def healthy(self, steps: int, first: int = 0) -> None:
        for step in range(first, first + steps):
            self.step(step)

    def broken(
        self, kind: str, step: int, *blocks: str, nan: int | None = 1, inf: int | None = 0, **fields: Any
    ) -> Event:
        """A ``grad`` or ``weight`` event that names blocks whose values are not finite."""
        listed = [{"tensor": self.numbers[b], "nan": nan, "inf": inf, "numel": 64} for b in blocks]
        return self.event(kind, step, nonfinite=listed, **fields)

    def activation(self, step: int, block: str, *, nan: int = 0, inf: int = 0, **fields: Any) -> Event:
        told = {"numel": 64, "dtype": "float32", "phase": "forward", "inputs_finite": True, **fields}
        return self.event("activation", step, brick=self.numbers[block], nan=nan, inf=inf, **told)

    def run(self) -> Run:
        return Run.from_records(self.records, RunMeta("k3f9", script="train.py", source="records"))
