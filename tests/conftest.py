"""What every test stands on."""

from __future__ import annotations

import functools
import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Each of several workers, and each process that it starts, has one thread: torch's threads wait for one another by
# spinning, and two workers with two threads each take four times as long on two cores. Torch reads it when it loads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from brickprof.capture import loops

# The same tree gets the same answer: `make test` tries the same examples each time, `make fuzz` looks for new ones.
# How long an example takes says how busy the machine is.
for profile, derandomize in (("same", True), ("fuzz", False)):
    settings.register_profile(
        profile, derandomize=derandomize, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("same")

# A runner started in the background ignores these, and so would every script that the tests start.
for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish():
    """What was loaded so far is none of the tests': a session that looks for models among all objects, and every full
    collection, need not go through pytest's own million of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _sources_are_read_once():
    """Each session reads the sources of whoever called it, and forgets them when it is over: here that is pytest, for
    thousands of sessions."""
    parsed, forget = loops._parsed, loops.forget
    loops._parsed, loops.forget = functools.lru_cache(maxsize=None)(parsed.__wrapped__), lambda: None
    yield
    loops._parsed, loops.forget = parsed, forget
