"""Batches: how long the training waited for each, and a fingerprint that tells two of them apart.

Enters: what a DataLoader hands out. Leaves: loader spans and ``batch`` events. The fingerprint is a checksum of
up to 64 elements of each tensor at a fixed stride; batches that are already on a device are not read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import tensors
from brickprof.capture.clock import now
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.survey import Row, survey
from brickprof.capture.trace import PHASE
from brickprof.records import ROLES

_INPUT = ROLES.index("input")
_ELEMENTS = 32
_MOST_TENSORS = 4


class LoaderProbe(Probe):
    name = "loader"
    ways = ("facts", "spans", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._loaders: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._bricks: dict[int, int] = {}
        self._open = 0

    def fetch_begin(self, loader: Any) -> None:
        if not self.session.tracing:
            return
        number = self._number(loader)
        brick = self._bricks.get(number)
        if brick is None:
            name = f"loader{number}" if number else "loader"
            brick = self._bricks[number] = self.session.journal.brick(Brick(Kind.LOADER, name))
        self._open = self.session.trace.open(brick, PHASE["loader"])

    def fetch_end(self, loader: Any, batch: Any, wait_ns: int) -> None:
        session = self.session
        if session.tracing:
            session.trace.close(self._open, write=True)
        if batch is None or not session.on.facts:
            return
        number = self._number(loader)
        count = self._counts[number] = self._counts.get(number, 0) + 1
        found = [tensor for tensor in _tensors(batch) if tensor.device.type == "cpu"][:_MOST_TENSORS]
        fields = {
            "loader": number,
            "wait_ns": wait_ns,
            "fingerprint": "" if hands_off() else _fingerprint(found),
            "size": found[0].shape[0] if found and found[0].dim() else None,
            "count": count,
        }
        session.fact("batch", fields)
        if session.on.full and session.settings.level != "light" and not hands_off():
            self._sample(found)

    def _number(self, loader: Any) -> int:
        # A new iterator is made every epoch; the dataset it draws from says which loader it is.
        dataset = getattr(loader, "_dataset", loader)
        return self._loaders.setdefault(id(dataset), len(self._loaders))

    def _sample(self, found: list[torch.Tensor]) -> None:
        session = self.session
        brick = self._bricks.get(0, 0)
        for place, tensor in enumerate(found):
            values = tensors.local(tensor)
            if not tensors.watchable(values):
                continue
            number = session.journal.tensor(
                f"batch[{place}]",
                {"model": "", "brick": brick, "shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]},
            )
            survey([values], session.readback, partial(self._write, brick, number))

    def _write(self, brick: int, number: int, rows: list[Row]) -> None:
        session = self.session
        for row in rows:
            session.journal.sample(
                (now(), session.step, session.steps.backwards, brick, number, _INPUT, row.numel, row.nan, row.inf,
                 row.absmax, row.l2, row.mean, row.zero_fraction, None, None, None, row.histogram)
            )  # fmt: skip


def _tensors(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < 4 and isinstance(batch, dict):
        for value in batch.values():
            yield from _tensors(value, depth + 1)
    elif depth < 4 and isinstance(batch, (tuple, list)) and len(batch) <= 64:
        for value in batch:
            yield from _tensors(value, depth + 1)


def _fingerprint(found: list[torch.Tensor]) -> str:
    checksum = 0
    for tensor in found:
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        picked = tensors.strided(tensor.detach(), _ELEMENTS).contiguous()
        checksum = zlib.crc32(_bytes(picked), zlib.crc32(str(tensor.shape).encode(), checksum))
    return f"{checksum:08x}"


def _bytes(picked: torch.Tensor) -> bytes:
    try:
        return picked.numpy().tobytes()
    except (RuntimeError, TypeError):  # no numpy, or a type it has no name for
        return repr(picked.tolist()).encode()
