"""When to keep one's hands off: places where even a harmless operation would become the user's.

Enters: torch's own state. Leaves: True while a tensor operation of ours would be traced, captured into a
CUDA graph, transformed, or seen by a dispatch mode of the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

_dispatch_modes = torch._C._len_torch_dispatch_stack
_dispatch_mode: Callable[[int], object] = torch._C._get_dispatch_stack_at
_functorch_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
_tracing: Callable[[], object] = torch._C._get_tracing_state
_cuda_ready: Callable[[], bool] = torch.cuda.is_initialized
_capturing: Callable[[], bool] = (
    torch._C._cuda_isCurrentStreamCapturing if hasattr(torch._C, "_CudaStreamBase") else lambda: False
)


def capturing(device: int) -> Callable[[], bool]:
    """Says whether a graph of ``device``, which is in use, is being captured; of a host (-1) there are none."""
    return _capturing if device >= 0 else _never


def _never() -> bool:
    return False


def hands_off() -> bool:
    return host_hands_off() or recording()


def recording() -> bool:
    """Whether a graph of a device is being captured."""
    return _cuda_ready() and _capturing()


def host_hands_off() -> bool:
    """The same for an operation on a host tensor, which no graph of a device would capture."""
    return bool((_dispatch_modes() and _users_modes()) or _functorch_level() is not None or _tracing() is not None)


def _users_modes() -> bool:
    """Whether a dispatch mode is on that is not one of ours: those let our own operations pass."""
    modes = (_dispatch_mode(at) for at in range(_dispatch_modes()))
    return any(not getattr(mode, "brickprofs", False) for mode in modes)


def static_outputs() -> bool:
    """Whether compiled code replays graphs of a device: what it returns is written over by the next replay, and whoever
    still holds it then is in its way."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    return trees is not None and bool(getattr(trees.local, "tree_manager_containers", True))


_UNKNOWN = (-1, -1)


class _Made:
    graph = False


def graph_is_made() -> None:
    _Made.graph = True


def graphs() -> bool:
    """Whether this process holds a graph of a device, as far as one can tell: one whose capture was seen, or memory in
    a pool of its own. Takes milliseconds where there is much memory."""
    if _Made.graph or static_outputs():
        return True
    try:
        pools = _pools() if _cuda_ready() else set()
    except Exception:  # an allocator that tells nobody
        pools = {_UNKNOWN}
    _Made.graph = bool(pools - {(0, 0)})
    return _Made.graph


def _pools() -> set[tuple[int, ...]]:
    try:
        segments = torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:  # an older torch
        segments = torch.cuda.memory_snapshot()
    return {tuple(each["segment_pool_id"]) for each in segments}


class _Saved:
    by_others = False


def saves_by_itself() -> None:
    _Saved.by_others = True


def saved_by_others() -> bool:
    """Whether somebody in this process has had a say in how autograd saves tensors (checkpointing, offloading): to read
    one may compute or copy it."""
    return _Saved.by_others


def compiled_frames() -> int:
    """How much torch.compile has had to do in this process, functions that nobody was told of included."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return int(counters.get("frames", {}).get("total", 0)) if counters else 0
