"""Numbers from the device to the host, without ever waiting for the device.

Enters: small device tensors and what to do with them. Leaves: the same numbers on the host, handed over
at once for a CPU tensor and some steps later for a CUDA tensor, when its copy has finished by itself.
The copies go to pinned memory that is used again and again; nothing here blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

Done = Callable[[torch.Tensor], None]
_LONGEST = 256
_SLOTS = 64
_LITTLE = 4096
"""Larger results are full statistics; smaller ones a norm or a sum per tensor."""


class Readback:
    def __init__(self, spend: Callable[[str, int], None] = lambda _way, _ns: None) -> None:
        self._spend = spend
        self._waiting: deque[tuple[Any, torch.Tensor, torch.Tensor, Done]] = deque()
        self._pinned: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._scalars: list[Callable[[float], None]] = []
        self._current: torch.Tensor | None = None
        self._stream: Any = None
        self.dropped = 0
        self.used = False
        """Whether any number ever came from a device."""

    def read(self, tensor: torch.Tensor, done: Done) -> None:
        """Hands ``tensor``'s values to ``done`` on the host, now or later."""
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            done(tensor)
            return
        if tensor.device.type != "cuda" or len(self._waiting) >= _LONGEST:
            self.dropped += 1
            return
        self.used = True
        flat = tensor.reshape(-1)
        buffer = self._buffer(flat.numel(), flat.dtype)
        target = buffer[: flat.numel()]
        target.copy_(flat, non_blocking=True)
        self._wait_for(buffer, target.view(tensor.shape), done, torch.cuda.current_stream(tensor.device))

    def _wait_for(self, buffer: torch.Tensor, values: torch.Tensor, done: Done, stream: Any = None) -> None:
        event = torch.cuda.Event()
        event.record(stream)
        self._waiting.append((event, buffer, values, done))

    def scalar(self, value: torch.Tensor, done: Callable[[float], None]) -> None:
        """One number: at once from a CPU, else with the step's other numbers in a single copy."""
        value = value.detach()
        if value.device.type == "cpu":
            done(value.item())
        elif value.device.type == "cuda" and len(self._scalars) < _SLOTS and self._stream_of(value):
            self.used = True
            # Copied now, in the order of the stream: what the user writes into it later does not show.
            self._page()[len(self._scalars)].copy_(value.reshape(()), non_blocking=True)
            self._scalars.append(done)
        else:
            self.dropped += 1

    def send(self) -> None:
        """Marks the place in the stream behind which the step's single numbers have arrived."""
        scalars, self._scalars = self._scalars, []
        page, self._current, self._stream = self._current, None, None
        if not scalars or page is None:
            return

        def arrived(host: torch.Tensor) -> None:
            for number, done in zip(host[: len(scalars)].tolist(), scalars, strict=True):
                done(number)

        self._wait_for(page, page, arrived)

    def _page(self) -> torch.Tensor:
        if self._current is None:
            self._current = self._buffer(_SLOTS, torch.float32)
        return self._current

    def _stream_of(self, value: torch.Tensor) -> bool:
        """One event stands for all numbers of a step, so they must come from one stream."""
        stream = torch.cuda.current_stream(value.device)
        if self._stream is None:
            self._stream = stream
        return bool(stream == self._stream)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._scalars)

    def poll(self) -> None:
        """Delivers what has arrived, in order."""
        while self._waiting and self._waiting[0][0].query():
            self._deliver()

    def drain(self, seconds: float) -> None:
        """At the end of the run: gives the last copies a bounded time to arrive."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            if self._waiting[0][0].query():
                self._deliver()
            else:
                time.sleep(0.001)
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _deliver(self) -> None:
        _, buffer, values, done = self._waiting.popleft()
        start = time.perf_counter_ns()
        try:
            done(values)
        finally:
            self._pinned[buffer.numel(), buffer.dtype].append(buffer)
            if buffer.numel() > _LITTLE:  # what full statistics cost when they arrive is part of what they cost
                self._spend("full", time.perf_counter_ns() - start)

    def _buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        size = 1 << max(4, (numel - 1).bit_length())
        free = self._pinned.setdefault((size, dtype), [])
        return free.pop() if free else torch.empty(size, dtype=dtype, device="cpu", pin_memory=True)
