"""Which blocks took part in which steps.

Enters: forward spans. Leaves: whether a block ran in every step whose times were taken, in some, or in
none: a block that a random depth skipped, or an expert nobody chose, has no gradient and is no fault.
"""

from __future__ import annotations

from brickprof.bricks import Brick
from brickprof.records import Span

_MOST_STEPS = 4096


class Use:
    def __init__(self) -> None:
        self._ran: dict[tuple[str, str], set[int]] = {}
        self._steps: dict[str, set[int]] = {}

    def feed(self, span: Span) -> None:
        # Under no_grad a block runs in the phase "eval"; the model is timed also where its blocks are not.
        if span.phase not in ("forward", "recompute", "eval") or span.brick.kind != "block":
            return
        steps = self._steps.setdefault(span.brick.model, set())
        if span.step not in steps and len(steps) >= _MOST_STEPS:
            return
        if span.phase == "forward" and span.brick.path:
            steps.add(span.step)
        self._ran.setdefault((span.brick.model, span.brick.path), set()).add(span.step)

    def always_ran(self, brick: Brick) -> bool:
        """Whether the watched block around ``brick`` ran in each of at least two timed steps."""
        path = self._around(brick)
        if not path or self._beside_watched(brick, path):
            return False
        ran = self._ran[brick.model, path]
        return len(ran) >= 2 and ran >= self._steps[brick.model]

    def idle(self, brick: Brick) -> bool:
        """Whether ``brick`` is seen to have stood idle, at least at times, while others ran."""
        steps = self._steps.get(brick.model, set())
        if len(steps) < 2:
            return False
        path = self._around(brick)
        if path is None:
            return False
        if self._beside_watched(brick, path):
            return True
        return bool(path) and not self._ran[brick.model, path] >= steps

    def _around(self, brick: Brick) -> str | None:
        """The path of the nearest block around ``brick`` that ever ran; "" is the model itself."""
        path = brick.path
        while (brick.model, path) not in self._ran:
            if not path:
                return "" if self._steps.get(brick.model) else None
            path = path.rpartition(".")[0]
        return path

    def _beside_watched(self, brick: Brick, around: str) -> bool:
        """Whether, inside ``around``, blocks beside the one that holds ``brick`` ran and it never did."""
        if brick.path == around:
            return False
        inner = brick.path[len(around) + 1 :] if around else brick.path
        own = inner.split(".")[0]
        prefix = f"{around}." if around else ""
        beside = [
            path.removeprefix(prefix).split(".")[0]
            for model, path in self._ran
            if model == brick.model and path != around and path.startswith(prefix)
        ]
        return (bool(beside) and own not in beside) or self._sibling_layers(brick, prefix, own)

    def _sibling_layers(self, brick: Brick, prefix: str, own: str) -> bool:
        """A layer of a stack that never ran, while other layers of the stack did."""
        stack = f"{prefix}{own}."
        ran = {path for model, path in self._ran if model == brick.model and path.startswith(stack)}
        return bool(ran) and not any(f"{brick.path}.".startswith(f"{path}.") for path in ran)
