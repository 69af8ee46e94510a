"""Batches: how long the training waited for each, a fingerprint that tells two of them apart, what is in them.

Enters: what a DataLoader hands out. Leaves: a ``loader`` event for each, loader spans and ``batch`` events. The
fingerprint is a checksum of up to 32 elements of each tensor at a fixed stride; a batch that is already on a device has
its own some steps later. Where steps are slow, the first few thousand batches are all written, else those of steps
whose facts are.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import glance, hub, tensors
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.survey import Row, deliver, measure
from brickprof.capture.trace import PHASE
from brickprof.clock import now
from brickprof.records import ROLES

_INPUT = ROLES.index("input")
_ELEMENTS = 32
_MOST_TENSORS = 4
_SLOW_NS = 50_000_000
_EVERY_BATCH = 4096
_DEAR = 0.5
"""The part of the budget that steps may take in which only the batch is looked at: they are not merely noted then."""
_LOOKED_AT = 16_384
_WHOLE = 1 << 20


class _Loader:
    """What is known of one loader."""

    __slots__ = ("brick", "count", "described", "epochs", "iterator", "number", "told")

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = self.epochs = self.brick = 0
        self.described: dict[str, Any] = {}
        self.iterator: weakref.ref[Any] | None = None
        self.told = False


class LoaderProbe(Probe):
    name = "loader"
    ways = ("facts", "spans", "full")
    every_step = ("fetch_end", "step_begin")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._loaders: dict[Any, _Loader] = {}
        self._last: _Loader | None = None
        self._open = 0
        self._written = 0
        self._too_dear = False

    # -- loaders

    def loader_started(self, loader: Any, iterator: Any) -> None:
        known = self._known(iterator)
        known.epochs += 1
        known.iterator = weakref.ref(iterator)
        if not known.described:
            known.described = _describe(loader)

    def _known(self, iterator: Any) -> _Loader:
        # A new iterator is made every epoch, and often a new loader: what it draws from, and how, says which it is.
        order = getattr(iterator, "_index_sampler", None)
        inner = getattr(order, "sampler", order)
        key = (id(getattr(iterator, "_dataset", iterator)), type(inner).__name__, getattr(order, "batch_size", None))
        known = self._loaders.get(key)
        if known is None:
            known = self._loaders[key] = _Loader(len(self._loaders))
        return known

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        last = self._last
        if last is not None and not last.told:
            self._tell(last, train=True)

    def close(self) -> None:
        hub.every_batch = False
        for known in self._loaders.values():
            if not known.told and known.count:
                self._tell(known, train=False)

    def _tell(self, known: _Loader, *, train: bool) -> None:
        known.told = True
        self.session.fact("loader", {"loader": known.number, "train": train, **known.described}, always=True)

    # -- batches

    def step_begin(self, step: int) -> None:
        cadence = self.session.cadence
        if hub.every_batch and cadence.idle_ns > _DEAR * cadence.budget * cadence.typical_ns:
            self._too_dear = True
        slow = cadence.typical_ns >= _SLOW_NS
        hub.every_batch = slow and self._written < _EVERY_BATCH and not self._too_dear

    def fetch_begin(self, loader: Any) -> None:
        if not self.session.tracing:
            return
        known = self._known(loader)
        if not known.brick:
            name = f"loader{known.number}" if known.number else "loader"
            known.brick = self.session.journal.brick(Brick(Kind.LOADER, name))
        self._open = self.session.trace.open(known.brick, PHASE["loader"])

    def fetch_end(self, loader: Any, batch: Any, wait_ns: int) -> None:
        session = self.session
        if session.tracing:
            session.trace.close(self._open, write=True)
        if batch is None or not (session.on.facts or hub.every_batch):
            return
        known = self._last = self._known(loader)
        known.count += 1
        self._written += 1
        given = list(_tensors(batch))
        found = [tensor for tensor in given if tensors.on_host(tensor)][:_MOST_TENSORS]
        fields = self._describe_batch(known, loader, found or given[:_MOST_TENSORS], wait_ns)
        if session.on.facts and not hands_off():
            fields |= _contents(found, _WHOLE if session.on.full else _LOOKED_AT)
        if found or hands_off():
            session.fact("batch", fields | {"fingerprint": "" if hands_off() else _fingerprint(found)}, wanted=True)
        else:
            self._tell_later(fields, given[:_MOST_TENSORS])
        if session.on.full and session.settings.level != "light" and not hands_off():
            self._sample(known, found)

    def _tell_later(self, fields: dict[str, Any], given: list[torch.Tensor]) -> None:
        """A batch on a device: its elements are on their way."""
        session, step, elements = self.session, self.session.step, [_elements(tensor) for tensor in _readable(given)]
        if not elements:
            session.fact("batch", fields | {"fingerprint": ""}, wanted=True)
            return
        home: list[torch.Tensor] = []

        def arrived(host: torch.Tensor) -> None:
            home.append(host.clone())
            if len(home) == len(elements):
                session.fact("batch", fields | {"fingerprint": _fingerprint(home)}, step=step, wanted=True)

        floats = _floats(given) if session.on.facts else None
        if floats is not None:  # read first, and so there first
            contents = glance.elements(floats, _LOOKED_AT)
            session.readback.read(contents, lambda host: fields.update(glance.counts(host, _LOOKED_AT)))
        for some in elements:
            session.readback.read(some, arrived)

    def _describe_batch(self, known: _Loader, iterator: Any, found: list[torch.Tensor], wait_ns: int) -> dict[str, Any]:
        size = found[0].shape[0] if found and found[0].dim() else None
        yielded = getattr(iterator, "_num_yielded", None)
        fields = {
            "loader": known.number,
            "wait_ns": wait_ns,
            "size": size,
            "samples": size,
            "count": known.count,
            "epoch": max(known.epochs - 1, 0) if known.epochs else None,
            "index": yielded - 1 if yielded else None,
        }
        epoch = getattr(_sampler(iterator), "epoch", None)
        return fields if epoch is None else fields | {"sampler_epoch": epoch}

    def _sample(self, known: _Loader, found: list[torch.Tensor]) -> None:
        session, brick = self.session, known.brick
        for place, tensor in enumerate(found):
            values = tensors.local(tensor)
            if not tensors.watchable(values):
                continue
            number = session.journal.tensor(
                f"batch[{place}]",
                {"model": "", "brick": brick, "shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]},
            )
            deliver([measure([values])], session.readback, partial(self._write, brick, number))

    def _write(self, brick: int, number: int, rows: list[Row]) -> None:
        session = self.session
        for row in rows:
            session.journal.sample(
                (now(), session.step, session.steps.backwards, brick, number, _INPUT, row.numel, row.nan, row.inf,
                 row.absmax, row.l2, row.mean, row.zero_fraction, None, None, None, row.histogram)
            )  # fmt: skip


def _describe(loader: Any) -> dict[str, Any]:
    order = getattr(loader, "batch_sampler", None)
    sampler = getattr(order, "sampler", None) or getattr(loader, "sampler", None)
    fields = {
        "cls": type(loader).__name__,
        "sampler": type(sampler).__name__,
        "shuffles": _shuffles(sampler),
        "batch_size": getattr(loader, "batch_size", None) or getattr(order, "batch_size", None),
        "batches": _length(loader),
        "samples": _length(getattr(loader, "dataset", None)),
        "drop_last": bool(getattr(order, "drop_last", getattr(loader, "drop_last", False))),
        "workers": getattr(loader, "num_workers", None),
        "dataset": type(getattr(loader, "dataset", None)).__name__,
    }
    replicas = getattr(sampler, "num_replicas", None)
    return fields if replicas is None else fields | {"replicas": replicas, "shard": getattr(sampler, "rank", None)}


def _sampler(iterator: Any) -> Any:
    order = getattr(iterator, "_index_sampler", None)
    return getattr(order, "sampler", order)


def _shuffles(sampler: Any) -> bool | None:
    name = type(sampler).__name__
    if name in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"):
        return True
    if name == "SequentialSampler":
        return False
    told = getattr(sampler, "shuffle", None)
    return told if isinstance(told, bool) else None


def _length(sized: Any) -> int | None:
    # Only what torch itself would ask: a length of the user's own may be slow, or draw numbers.
    if isinstance(sized, torch.utils.data.IterableDataset) or not hasattr(type(sized), "__len__"):
        return None
    if isinstance(sized, torch.utils.data.DataLoader) and isinstance(sized.dataset, torch.utils.data.IterableDataset):
        return None
    try:
        return len(sized)
    except Exception:
        return None


def _contents(found: list[torch.Tensor], most: int) -> dict[str, Any]:
    """What is in the first tensor of floats."""
    floats = _floats(found)
    return {} if floats is None else glance.counts(floats, most)


def _floats(found: list[torch.Tensor]) -> torch.Tensor | None:
    return next((tensor for tensor in _readable(found) if tensor.is_floating_point()), None)


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
    """Empty where there is nothing that can be told apart."""
    checksum, readable = 0, _readable(found)
    for tensor in readable:
        checksum = zlib.crc32(_bytes(_elements(tensor)), zlib.crc32(str(tensor.shape).encode(), checksum))
    return f"{checksum:08x}" if readable else ""


def _readable(found: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in found if tensor.layout is torch.strided and tensor.numel()]


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensors.strided(tensor.detach(), _ELEMENTS).contiguous()


def _bytes(picked: torch.Tensor) -> bytes:
    try:
        return picked.numpy().tobytes()
    except (RuntimeError, TypeError):  # no numpy, or a type it has no name for
        return repr(picked.tolist()).encode()
