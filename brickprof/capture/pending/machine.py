"""What is asked of the device's side of torch: streams, pinned memory, captures.

Enters: tensors. Leaves: plain answers; nothing here waits for anything.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

_DEFAULTS = -1
"""Default streams have no handle: one number a device, below zero."""


class Machine(Protocol):
    def on_device(self, tensor: torch.Tensor) -> bool: ...
    def device(self, tensor: torch.Tensor) -> int: ...
    def stream(self, device: int) -> int:
        """The stream that work for ``device`` goes to now."""

    def default(self, stream: int) -> bool: ...
    def blocking(self, stream: int) -> bool:
        """Whether ``stream`` may wait for the default stream by itself."""

    def pinned(self, tensor: torch.Tensor) -> bool: ...
    def capturing(self) -> bool: ...
    def base(self, tensor: torch.Tensor) -> int:
        """Where the tensor's storage begins."""

    def numbered(self, handle: int) -> int:
        """The stream of a handle that torch's trace names."""

    def handed(self, stream: Any) -> int:
        """The stream of one that was given to ``record_stream``."""

    def current_device(self) -> int: ...


class Cuda:
    """torch's own, made when CUDA is there."""

    def __init__(self) -> None:
        self._raw: Any = torch._C._cuda_getCurrentRawStream
        self._full: Any = torch._C._cuda_getCurrentStream
        self._foreign: dict[int, bool] = {}

    def on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def device(self, tensor: torch.Tensor) -> int:
        return tensor.get_device()

    def stream(self, device: int) -> int:
        handle = int(self._raw(device))
        if not handle:
            return _DEFAULTS - device
        if handle not in self._foreign:
            number = self._full(device)[0]
            # Streams of torch's pools have odd numbers; one that was made elsewhere has its address for a number.
            self._foreign[handle] = number % 2 == 0
        return handle

    def default(self, stream: int) -> bool:
        return stream < 0

    def blocking(self, stream: int) -> bool:
        return self._foreign.get(stream, False)

    def pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def base(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def numbered(self, handle: int) -> int:
        return handle or _DEFAULTS - self.current_device()

    def handed(self, stream: Any) -> int:
        handle = getattr(stream, "cuda_stream", None)
        if handle is None:  # the dispatcher hands over a plain torch.Stream
            whole = torch.cuda.Stream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
            handle = whole.cuda_stream
        return int(handle) or _DEFAULTS - int(stream.device_index)

    def current_device(self) -> int:
        return torch.cuda.current_device()
