"""When to keep one's hands off: places where even a harmless operation would become the user's.

Enters: torch's own state. Leaves: True while a tensor operation of ours would be traced, captured into a
CUDA graph, transformed, or seen by a dispatch mode of the user's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
_tracing: Callable[[], object] = torch._C._get_tracing_state
_cuda_ready: Callable[[], bool] = torch.cuda.is_initialized
_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing


def hands_off() -> bool:
    return host_hands_off() or bool(_cuda_ready() and _capturing())


def host_hands_off() -> bool:
    """The same for an operation on a host tensor, which no graph of a device would capture."""
    return bool(_dispatch_modes() or _functorch_level() is not None or _tracing() is not None)
