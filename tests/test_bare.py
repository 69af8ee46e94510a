"""What is imported from C while a named tuple is being made."""

from __future__ import annotations

import collections
import ctypes
import gc
import sys
import weakref
from typing import NamedTuple

import pytest

from brickprof.capture.pending.bare import let_import

ByHand = collections.namedtuple("ByHand", "one two")


class Typed(NamedTuple):
    one: int
    two: int


class Cycle:
    def __init__(self):
        self.me = self


_imports = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyImport_Import", ctypes.pythonapi))


def tried_by_the_collector(make, monkeypatch):
    """What becomes of an import, as C makes it, when the collector runs while a tuple is being made. It is called with
    a weak reference for a name: where it can be made, that is what is wrong with it."""
    errors: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: errors.append(type(told.exc_value).__name__))
    before, making = gc.get_threshold(), map(make, range(10), range(10))
    gc.collect()
    gc.disable()
    gc.set_threshold(1, 1000, 1000)
    dropped = weakref.ref(Cycle(), _imports)
    gc.enable()
    next(making)
    gc.set_threshold(*before)
    gc.collect()
    assert dropped() is None
    return errors


@pytest.mark.parametrize("kind", [ByHand, Typed])
def test_it_can_be_imported_until_that_is_undone(kind, monkeypatch):
    assert tried_by_the_collector(kind, monkeypatch) == ["KeyError"], "else there is nothing to mend"
    (undo,) = let_import()
    try:
        assert tried_by_the_collector(kind, monkeypatch) == ["TypeError"]
    finally:
        undo()
    assert tried_by_the_collector(kind, monkeypatch) == ["KeyError"]
    assert kind(1, 2) == (1, 2)


def test_tuples_that_have_builtins_are_left_alone():
    class Own(tuple):
        def __new__(cls, *values):
            return super().__new__(cls, values)

    before = dict(vars(sys.modules["builtins"]))
    let_import()[0]()
    assert vars(sys.modules["builtins"]) == before and Own(1, 2) == (1, 2)
