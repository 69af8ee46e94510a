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


class Readback:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, torch.Tensor, torch.Tensor, Done]] = deque()
        self._pinned: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._scalars: list[tuple[torch.Tensor, Callable[[float], None]]] = []
        self.dropped = 0

    def read(self, tensor: torch.Tensor, done: Done) -> None:
        """Hands ``tensor``'s values to ``done`` on the host, now or later."""
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            done(tensor)
            return
        if tensor.device.type != "cuda" or len(self._waiting) >= _LONGEST:
            self.dropped += 1
            return
        flat = tensor.reshape(-1)
        buffer = self._buffer(flat)
        target = buffer[: flat.numel()]
        target.copy_(flat, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensor.device))
        self._waiting.append((event, buffer, target.view(tensor.shape), done))

    def scalar(self, value: torch.Tensor, done: Callable[[float], None]) -> None:
        """One number: at once from a CPU, else with the step's other numbers in a single copy."""
        value = value.detach()
        if value.device.type == "cpu":
            done(value.item())
        elif value.device.type == "cuda" and len(self._scalars) < _LONGEST:
            # A view of the user's tensor would show what he writes into it later: this is a copy.
            self._scalars.append((value.to(torch.float32, copy=True).reshape(()), done))
        else:
            self.dropped += 1

    def send(self) -> None:
        """Sends the step's single numbers on their way."""
        scalars, self._scalars = self._scalars, []
        if not scalars:
            return
        home = scalars[0][0].device
        values = torch.stack([value if value.device == home else value.to(home) for value, _ in scalars])

        def arrived(host: torch.Tensor) -> None:
            for number, (_, done) in zip(host.tolist(), scalars, strict=True):
                done(number)

        self.read(values, arrived)

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
        try:
            done(values.clone())
        finally:
            self._pinned[buffer.numel(), buffer.dtype].append(buffer)

    def _buffer(self, flat: torch.Tensor) -> torch.Tensor:
        size = 1 << max(4, (flat.numel() - 1).bit_length())
        free = self._pinned.setdefault((size, flat.dtype), [])
        return free.pop() if free else torch.empty(
            size, dtype=flat.dtype, device="cpu", pin_memory=True
        )
