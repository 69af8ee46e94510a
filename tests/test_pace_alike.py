"""Of layers that are built alike and are about as slow, the first one is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brickprof.bricks import Brick, Kind
from brickprof.rules.pace import RULE


def story(paths):
    order = {Brick(Kind.BLOCK, path): place for place, path in enumerate(paths)}
    return SimpleNamespace(depth=SimpleNamespace(of=order.get))


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"blocks.0.rope": 80, "blocks.1.rope": 90, "blocks.2.rope": 100}, "blocks.0.rope"),
        ({"blocks.0.rope": 10, "blocks.1.rope": 90, "blocks.2.rope": 100}, "blocks.1.rope"),
        ({"blocks.0.mlp": 90, "blocks.0.rope": 40, "blocks.1.rope": 100}, "blocks.1.rope"),
    ],
)
def test_the_first_of_those_that_are_alike_is_named(times, named):
    rule = RULE()
    rule._bricks = {(0, Brick(Kind.BLOCK, path)): [(0, lasted, 1)] for path, lasted in times.items()}
    assert rule._slowest(0, story(times)) == Brick(Kind.BLOCK, named)
