"""After a session torch has every function and method that it had before it."""

from __future__ import annotations

import functools

import pytest
from as_found import left_as_found, train

LEVELS = [{"level": "light"}, {"level": "standard"}, {"level": "standard", "deep_at": 3}, {"level": "deep"}]


@pytest.mark.parametrize("how", LEVELS, ids=lambda how: "-".join(map(str, how.values())))
def test_nothing_of_torch_stays_replaced(tmp_path, how):
    left_as_found(tmp_path, functools.partial(train, "cpu"), **how)
