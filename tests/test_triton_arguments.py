"""The method that launches Triton's kernels: one stand-in however many hear, and Triton as it was afterwards."""

from __future__ import annotations

import functools
import sys
from itertools import permutations
from types import SimpleNamespace

import pytest

from brickprof.capture.pending import stacks
from brickprof.capture.taps import triton_arguments
from brickprof.capture.taps.triton_arguments import Launch, hear, unhear
from brickprof.operators import queueing


class JITFunction:
    __name__ = "mine"

    def run(self, *args, grid, warmup=False):
        return args, grid


AS_FOUND = JITFunction.run


@pytest.fixture(autouse=True)
def _triton(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter", raising=False)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=JITFunction))
    yield
    for each in triton_arguments._hearing:
        unhear(each)
    JITFunction.run = AS_FOUND


def launched(*args, warmup=False):
    return JITFunction().run(*args, grid=(1,), warmup=warmup)


@pytest.mark.parametrize("leaving", list(permutations(range(3))))
def test_each_hears_once_and_whoever_leaves_first_triton_is_as_it_was(leaving):
    told: list[tuple[int, Launch]] = []
    hearing = [functools.partial(lambda at, launch: told.append((at, launch)), at) for at in range(3)]
    assert all(hear(each) for each in hearing) and queueing.attended
    assert launched(4) == ((4,), (1,))
    assert [at for at, _ in told] == [0, 1, 2]
    launch = told[0][1]
    assert (launch.args, launch.kwargs["grid"], launch.run) == ((4,), (1,), AS_FOUND)
    assert launch.frame.f_code is launched.__code__
    for left, at in enumerate(leaving, start=1):
        unhear(hearing[at])
        told.clear()
        launched(4)
        assert sorted(at for at, _ in told) == sorted(leaving[left:])
    assert JITFunction.run is AS_FOUND and not queueing.attended


def test_who_fails_keeps_nobody_from_hearing_and_no_launch_from_being_made():
    told: list[Launch] = []
    assert hear(lambda launch: 1 / 0) and hear(told.append)
    assert launched(4) == ((4,), (1,)) and len(told) == 1


def test_what_is_only_compiled_is_not_heard():
    told: list[Launch] = []
    assert hear(told.append)
    assert launched(4, warmup=True) == ((4,), (1,)) and told == []


def test_somebody_who_wrapped_ours_meanwhile_stays_and_nothing_is_told_twice():
    told: list[Launch] = []
    assert hear(told.append)
    ours = JITFunction.run

    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    JITFunction.run = theirs
    unhear(told.append)
    assert launched(4) == ((4,), (1,)) and told == [] and JITFunction.run is theirs
    assert hear(told.append)
    assert launched(4) == ((4,), (1,)) and len(told) == 1
    unhear(told.append)
    assert JITFunction.run is theirs


def test_without_triton_nobody_hears(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton.runtime.jit")
    assert not hear(print) and not queueing.attended


def test_the_line_of_a_launch_is_the_users_past_tritons_and_what_launches_for_it():
    triton = pytest.importorskip("triton")
    from brickprof.operators import launch

    sites = []
    for name in (f"{triton.__path__[0]}/runtime/jit.py", launch.__file__, queueing.__file__):
        names = {"here": stacks.here}
        exec(compile("site = here()", name, "exec"), names)
        sites.append(stacks.describe(names["site"])[0])
    assert all(each.startswith("test_triton_arguments.py:") for each in sites), sites
