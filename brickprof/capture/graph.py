"""The autograd graph behind a loss, read and left as it is.

Enters: a loss before its backward. Leaves: its nodes, in the order in which the forward made them, and the tensors they
saved. A saved tensor with a hook of somebody's (checkpointing would compute it again) is not touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

MOST_NODES = 4000
_LATE = 1 << 62
_SEARCH = 10
_UNKNOWN = object()
RESHAPES = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Expand", "Slice",
    "Select", "Clone", "AsStrided", "Alias", "Detach",
})  # fmt: skip
"""Operations that show the values of another tensor in another shape, or some of them."""
_names: dict[type, tuple[str, ...]] = {}
_walked: list[tuple[Any, list[Node]]] = []


class Node(NamedTuple):
    function: Any
    name: str
    order: int
    depth: int

    @property
    def op(self) -> str:
        """``LogBackward0`` is ``Log``."""
        return self.name.partition("Backward")[0]


def nodes(loss: torch.Tensor) -> list[Node]:
    """Up to ``MOST_NODES`` nodes, those nearest to the loss first found, sorted from the first operation to the last.

    Several probes look at the same graph: it is walked once, and let go with ``forget``.
    """
    start = loss.grad_fn
    for known, found in _walked:
        if known is start:
            return found
    _walked.append((start, found := _walk(start)))
    return found


def forget() -> None:
    """Lets go of every graph that was walked: nodes keep activations alive."""
    _walked.clear()


def _walk(start: Any) -> list[Node]:
    queue: deque[tuple[Any, int]] = deque([(start, 0)] if start is not None else [])
    seen: set[Any] = {start}
    found: list[Node] = []
    while queue and len(found) < MOST_NODES:
        function, depth = queue.popleft()
        found.append(Node(function, type(function).__name__, order(function), depth))
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append((following, depth + 1))
    return sorted(found, key=lambda node: node.order)


def order(function: Any) -> int:
    number = function._sequence_nr() if hasattr(function, "_sequence_nr") else _LATE
    return min(int(number), _LATE)


def source(function: Any) -> Any:
    """The leaf that ``function`` only looks at in another shape or type (a weight's transpose), if that is all."""
    for _ in range(8):
        variable = getattr(function, "variable", None)
        following = [each for each, _ in function.next_functions if each is not None]
        if variable is not None or len(following) != 1 or _saved_names(function):
            return variable
        function = following[0]
    return None


def owner(function: Any, book: Any) -> int:
    """The block that owns the nearest parameter on the way back from ``function``; 0 when none is near."""
    for _ in range(_SEARCH):
        following = [each for each, _ in function.next_functions if each is not None]
        for each in following:
            leaf = source(each)
            entry = None if leaf is None else book.get(leaf)
            if entry is not None:
                return int(entry.brick)
        if not following:
            break
        function = following[0]
    return 0


def saved(function: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a node saved, by name, as far as they can be read without any effect."""
    for name in _saved_names(function):
        value = _read(function, name)
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, torch.Tensor):
                yield name, each


def saved_places(function: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The same where nobody in this process has a hook on any: the attribute, the place in it (-1: it is the tensor
    itself), and the tensor."""
    for name in _saved_names(function):
        try:
            value = getattr(function, f"_saved_{name}")
        except RuntimeError:  # freed, or written to since
            continue
        several = isinstance(value, (tuple, list))
        for place, each in enumerate(value if several else (value,)):
            if isinstance(each, torch.Tensor):
                yield f"_saved_{name}", place if several else -1, each


def closed(function: Any) -> bool:
    """Whether nobody can tell what ``function`` was given and gave: it is somebody's own, in Python, compiled code too,
    or what it saved is kept elsewhere or will be computed again."""
    if hasattr(type(function), "_forward_cls"):
        return True
    return any(_hooked(function, name) for name in _saved_names(function))


def _hooked(function: Any, name: str) -> bool:
    """Whether somebody has a say in how this is kept; an older torch does not tell, and then there may be."""
    try:
        raw = getattr(function, f"_raw_saved_{name}")
        each = raw if isinstance(raw, (tuple, list)) else (raw,)
        return any(getattr(one, "unpack_hook", _UNKNOWN) is not None for one in each)
    except RuntimeError:  # freed
        return False


def setting(function: Any, name: str) -> Any:
    """A plain value that a node saved."""
    try:
        return getattr(function, f"_saved_{name}", None)
    except RuntimeError:
        return None


def _saved_names(function: Any) -> tuple[str, ...]:
    names = _names.get(type(function))
    if names is None:
        known = set(dir(function))
        names = tuple(n[7:] for n in sorted(known) if n.startswith("_saved_") and f"_raw{n}" in known)
        _names[type(function)] = names
    return names


def _read(function: Any, name: str) -> Any:
    try:
        return None if _hooked(function, name) else getattr(function, f"_saved_{name}")
    except (RuntimeError, AttributeError):  # freed, or written to since
        return None


def shape(function: Any, place: int = 0) -> tuple[int, ...] | None:
    """The shape of what a node made; of several results the one at ``place``. None where torch does not say."""
    try:
        return tuple(map(int, function._input_metadata[place].shape))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # an older torch, a shape that is open
        return None


def device(function: Any) -> torch.device | None:
    """Where what a node made lies."""
    try:
        found = function._input_metadata[0].device
    except (AttributeError, IndexError, RuntimeError):
        return None
    return found if isinstance(found, torch.device) else None


def dtype(function: Any) -> str:
    """The type of what a node made; "" where torch does not say."""
    try:
        return str(function._input_metadata[0].dtype).removeprefix("torch.")
    except (AttributeError, IndexError, RuntimeError):
        return ""


def made_from(function: Any) -> list[tuple[int, Any, int]]:
    """What a node differentiates: the place of the argument, the node that made it, and which of its results it is."""
    return [(at, each, place) for at, (each, place) in enumerate(function.next_functions) if each is not None]


def named(function: Any) -> Node:
    """A node that was met on the way, by itself."""
    return Node(function, type(function).__name__, 0, 0)
