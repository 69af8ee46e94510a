"""Who reads makes no difference: one process, several, a Dask cluster."""

from __future__ import annotations

import gzip
import os
import sys
import time

import pytest
from logs_made import PlainReader, jsonl, plain, same

from brickprof import logs
from brickprof.analysis import Options, analyse, engines
from brickprof.analysis.engines import Processes, engine
from brickprof.errors import UsageError
from brickprof.logs.reading import source as sources
from brickprof.logs.reading.source import Source


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 20_000)


def long_log(path, restarts=(0, 3000, 2500, 7000)):
    """Attempts, evaluations, chatter, a jump, a hole of NaN and a stack of calls."""
    lines = []
    for start, stop in zip(restarts, (*restarts[1:], 12_000), strict=True):
        for line in plain(max(stop - start, 600), start, s5000=90.0, s8123=float("nan")):
            lines.append(line)
            step = int(line.split()[1])
            if step % 250 == 0:
                lines += [f"eval step {step} loss {3 - step / 9000:.4f}", "saved a checkpoint"]
    lines += ["boom CUDA error"]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_large_file_is_the_same_in_one_process_and_in_several(tmp_path, small_pieces):
    file = long_log(tmp_path / "x.log")
    reader = PlainReader()
    assert len(Source(file).pieces()) > 10
    alone = logs.read(file, reader)
    pool = Processes(2)
    try:
        same(logs.read(file, reader, mapped=pool.map), alone)
    finally:
        pool.close()
    assert alone.rows > 10_000 and len(alone.attempts) >= 1 and alone.facts[-1].kind == "exception"


def test_pieces_come_to_what_the_whole_file_is(tmp_path, monkeypatch):
    """Below the size at which points are thinned, cutting changes nothing at all."""
    file = long_log(tmp_path / "x.log")
    whole = logs.read(file, PlainReader())
    for size in (7_000, 50_000, 300_000):
        monkeypatch.setattr(sources, "PIECE", size)
        same(logs.read(file, PlainReader()), whole)


def test_thinned_series_are_the_same_too(tmp_path, monkeypatch):
    from brickprof.logs.reading import gather

    monkeypatch.setattr(gather, "MOST_POINTS", 600)
    monkeypatch.setattr(sources, "PIECE", 20_000)
    file = long_log(tmp_path / "x.log")
    alone = logs.read(file, PlainReader())
    pool = Processes(2)
    try:
        same(logs.read(file, PlainReader(), mapped=pool.map), alone)
    finally:
        pool.close()
    kept = alone.series["loss"]
    assert len(kept) < 2 * 600 < kept.count and 90.0 in kept.values and kept.values[0] and 8123 in kept.steps


def known(analysis):
    return [(run.name, run.files, run.format, run.diagnosis.to_dict(), run.holds, run.best) for run in analysis.runs]


@pytest.fixture
def folder(tmp_path):
    for number in range(8):
        jsonl(tmp_path / f"run{number}" / "train.jsonl", broken_at=100 if number == 5 else None, seed=float(number))
    for rank in range(2):
        jsonl(tmp_path / "job" / f"rank{rank}.jsonl")
    (tmp_path / "run3" / "broken.log").write_bytes(bytes(range(256)) * 20)
    packed = tmp_path / "run4" / "train.jsonl"
    (tmp_path / "run4" / "old.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes())[:-40])
    return tmp_path


def test_many_files_are_the_same_in_one_process_and_in_several(folder):
    alone = analyse([folder])
    with engine(jobs=2) as found:
        together = analyse([folder], Options(), found)
    assert known(together) == known(alone) and together.problems == alone.problems
    assert len(alone.runs) == 10 and len(alone.problems) == 1


def test_progress_is_told(folder):
    told = []
    analyse([folder], progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == len(told)


def test_a_dask_cluster_of_processes_comes_to_the_same(folder):
    pytest.importorskip("dask.distributed")
    alone = analyse([folder])
    with engine("dask", jobs=2) as found:
        assert found.workers == 2
        together = analyse([folder], Options(), found)
    assert known(together) == known(alone) and together.problems == alone.problems


def test_dask_reads_a_large_file_in_pieces(tmp_path):
    pytest.importorskip("dask.distributed")
    file = tmp_path / "x.jsonl"
    lines = jsonl(tmp_path / "small.jsonl", count=2000).read_text()
    with file.open("w") as stream:
        while stream.tell() < 2 * sources.PIECE + 1000:
            stream.write(lines)
    assert len(Source(file).pieces()) == 2
    alone = logs.read(file)
    with engine("dask", jobs=2) as found:
        same(logs.read(file, mapped=found.map), alone)


def test_a_scheduler_that_is_not_there_is_one_sentence(capsys):
    pytest.importorskip("dask.distributed")
    from brickprof.cli.app import main

    began = time.monotonic()
    assert main(["analyze", "x.log", "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "no Dask scheduler at" in capsys.readouterr().err and time.monotonic() - began < 60


def test_without_dask_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(UsageError, match="brickprof\\[dask\\]"), engine("dask"):
        pass


def die(_item):
    os._exit(9)


def test_a_worker_that_is_killed_is_said():
    pool = Processes(2)
    with pytest.raises(Exception, match="was killed"):
        list(pool.map(die, [1, 2, 3]))
    pool.close()
    assert engines.cores() >= 1
