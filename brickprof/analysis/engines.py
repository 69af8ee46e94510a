"""Where the work is done: here, in processes of this machine, or on a Dask cluster.

Enters: a function and what to apply it to. Leaves: the results, in order. All engines give the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

from brickprof.errors import BrickprofError, UnreadableInput, UsageError
from brickprof.text import clean

ENGINES = ("local", "dask")


class Engine(Protocol):
    workers: int

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Iterable[Any]: ...


class Here:
    """In this process, one after another."""

    workers = 1

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Iterable[Any]:
        return map(function, items)


class Processes:
    """Processes of this machine; they start when there is work."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: Any = None

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Iterable[Any]:
        if len(items) < 2:
            return map(function, items)
        if self._pool is None:
            self._pool = self._started()
        return self._results(self._pool.map(function, items, chunksize=1))

    def _started(self) -> Any:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # Not forked: Arrow and others have threads of their own, whose locks a fork would inherit.
        return ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"), initializer=_one_core)

    def _results(self, results: Iterator[Any]) -> Iterator[Any]:
        from concurrent.futures.process import BrokenProcessPool

        try:
            yield from results
        except BrokenProcessPool:
            raise BrickprofError(
                "a process that read a log was killed, perhaps for want of memory.", "Try --jobs 1."
            ) from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _one_core() -> None:
    """There is a process for each core: none of them needs threads for it. Its readers are there before its work is."""
    import pyarrow as pa
    import pyarrow.compute

    from brickprof import logs

    pa.set_cpu_count(1)
    logs.readers()


class Dask:
    """Workers of a Dask cluster, which see the same files under the same names."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.workers = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Iterable[Any]:
        if not items:
            return iter(())
        futures = self._client.map(function, items, pure=False)
        return (future.result() for future in futures)


@contextmanager
def engine(name: str = "local", jobs: int | None = None, scheduler: str = "") -> Iterator[Engine]:
    """The engine that was asked for; its workers end with the context."""
    if name not in ENGINES:
        raise UsageError(f"--engine is {clean(name)!r}.", f"Give one of: {', '.join(ENGINES)}.")
    if scheduler and name != "dask":
        raise UsageError("--scheduler is for --engine dask.")
    if name == "dask":
        with _dask(jobs, scheduler) as found:
            yield found
        return
    wanted = jobs or cores()
    if wanted == 1:
        yield Here()
        return
    pool = Processes(wanted)
    try:
        yield pool
    finally:
        pool.close()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _dask(jobs: int | None, scheduler: str) -> Iterator[Engine]:
    try:
        distributed: Any = import_module("dask.distributed")
    except ImportError:
        raise UsageError("--engine dask needs Dask.", "pip install 'brickprof[dask]'") from None
    if scheduler:
        try:
            client = distributed.Client(scheduler, timeout=10)
        except (OSError, ValueError, TypeError) as error:
            raise UnreadableInput(f"there is no Dask scheduler at {clean(scheduler)}: {clean(error)}.") from None
        with client:
            yield Dask(client)
        return
    with (
        distributed.LocalCluster(
            n_workers=jobs or cores(), threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield Dask(client)
        with suppress(Exception):
            client.shutdown()
