"""Trainings that are really killed: what they had told when they died is in the run afterwards."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import time

import launching
import pytest

from brickprof.journal import EVENTS, SLATE, Damage, Journal, Slate, read_events, read_slate
from brickprof.run import Run

KILLS = 200
PARTS = 5
WORD = struct.Struct("<qqd")

TRAINING = """
import os, struct, sys, time
import torch

WORD = struct.Struct("<qqd")


def train(pipe):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10**9):
        loss = (model(torch.randn(16, 8)) ** 2).mean()
        loss.backward()
        os.write(pipe, WORD.pack(os.getpid(), step, loss.item()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if PAUSE:
            time.sleep(PAUSE)
"""

NURSERY = """
import json, random, signal
import pyarrow
import torch._dynamo  # every optimizer of torch's loads it
from brickprof import plugins
from brickprof.capture import session

plugins.discover("brickprof.probes")  # once here, and not again in every child
PAUSE = 0.0

chance = random.Random(int(sys.argv[2]))
for number in range(int(sys.argv[1])):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        PAUSE = (0.0, 0.0, 0.004, 0.06)[number % 4]
        train(writer)
    os.close(writer)
    first = os.read(reader, WORD.size)
    time.sleep(chance.uniform(0.0, 0.5))
    os.kill(pid, signal.SIGKILL)
    told = first
    while block := os.read(reader, 2**16):
        told += block
    os.close(reader)
    os.waitpid(pid, 0)
    print(json.dumps([WORD.unpack_from(told, at)[1:] for at in range(0, len(told) - WORD.size + 1, WORD.size)]
                     + [pid]), flush=True)
"""


@pytest.mark.parametrize("seed", range(PARTS))
def test_a_training_killed_at_any_moment_keeps_every_loss_it_had(tmp_path, seed):
    launching.script(tmp_path, TRAINING + NURSERY)
    tight = seed % 2 == 1  # a budget so small that most losses take the way over the slate
    budget = "0.01%" if tight else "1%"
    done = launching.run(["--overhead", budget, "t.py", str(KILLS // PARTS), str(seed)], tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    deaths = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(deaths) == KILLS // PARTS
    folder = launching.recorded(tmp_path)
    run = Run.open(folder)
    ranks = dict(zip(run.ranks["pid"], run.ranks["rank"], strict=True))
    of_rank = dict(iter(run.loss.groupby("rank")))
    from_slate = 0
    for *told, pid in deaths:
        frame = of_rank[ranks[pid]]
        kept = dict(zip(frame["step"], frame["value"], strict=True))
        assert dict(told) == {step: kept.get(step) for step, _ in told}
        assert len(kept) == len(frame)  # and none of them twice
        from_slate += bool(read_slate(folder / f"rank{ranks[pid]:05d}")[0])
    assert from_slate or not tight  # the kill did come while losses lay there
    for torn in run.damage:
        # The kernel may end a write for a kill, where a page of the file ends: that line was not written yet. No other
        # damage is forgiven.
        written = (folder / torn.where).read_bytes()
        assert len(written) % mmap.PAGESIZE == 0, torn
        assert (torn.records_lost, torn.bytes_lost) == (1, len(written.rpartition(b"\n")[2])), torn
    shown = launching.finished([*launching.COMMAND, "show", str(folder)], tmp_path, timeout=120)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("seed", range(4))
def test_a_whole_run_that_is_killed_can_be_shown(tmp_path, seed):
    launching.script(tmp_path, TRAINING + "PAUSE = 0.002\nprint('up', flush=True)\ntrain(1)\n")
    process = launching.start(["t.py"], tmp_path)
    process.stdout.buffer.readline()
    told = process.stdout.buffer.read(WORD.size)
    time.sleep(random.Random(seed).uniform(0.05, 1.0))
    os.kill(launching.script_pid(tmp_path), signal.SIGKILL)
    rest, _ = process.stdout.buffer.read(), process.wait(60)
    told += rest
    assert process.returncode == 137
    run = Run.open(launching.recorded(tmp_path))
    kept = dict(zip(run.loss["step"], run.loss["value"], strict=True))
    words = [WORD.unpack_from(told, at)[1:] for at in range(0, len(told) - WORD.size + 1, WORD.size)]
    assert words and all(kept.get(step) == value for step, value in words)
    shown = launching.finished([*launching.COMMAND, "show", str(run.path)], tmp_path)
    assert shown.returncode == 0
    assert "SIGKILL" in shown.stdout


def slated(folder, count):
    slate = Slate(folder)
    for step in range(count):
        slate.keep(step, step % 3, step / 7, 10**18 + step)
    return list(slate.kept)


def test_a_slate_gives_back_what_was_kept(tmp_path):
    kept = slated(tmp_path, 40)
    assert read_slate(tmp_path) == (kept, Damage(SLATE))


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_damaged_slate_gives_every_whole_entry_and_counts_the_rest(tmp_path, harm):
    kept = slated(tmp_path, 60)
    whole = (tmp_path / SLATE).read_bytes()
    chance = random.Random(5)
    for _ in range(200):
        at = chance.randrange(60 * 36)
        flipped = bytes([whole[at] ^ (1 << chance.randrange(8))])
        page = whole[:at] if harm == "cut" else whole[:at] + flipped + whole[at + 1 :]
        (tmp_path / SLATE).write_bytes(page)
        found, damage = read_slate(tmp_path)
        touched = at // 36
        expected = kept[:touched] if harm == "cut" else kept[:touched] + kept[touched + 1 :]
        assert found == expected
        assert damage.records_lost == (1 if harm == "flip" else None)
        assert damage


def test_a_writer_that_follows_a_killed_one_writes_what_it_left(tmp_path):
    slated(tmp_path, 5)
    Journal(tmp_path).close()
    (event,) = read_events(tmp_path / EVENTS)[0]
    assert (event.kind, event.fields["steps"]) == ("losses", [0, 1, 2, 3, 4])
    assert not (tmp_path / SLATE).exists()


def test_a_run_that_ends_leaves_no_slate(tmp_path):
    loop = TRAINING.replace("range(10**9)", "range(300)") + "PAUSE = 0\ntrain(os.open(os.devnull, os.O_WRONLY))\n"
    launching.script(tmp_path, loop)
    assert launching.run(["t.py"], tmp_path).returncode == 0
    folder = launching.recorded(tmp_path)
    assert not list(folder.rglob(SLATE))
    assert Run.open(folder).loss["step"].tolist() == list(range(300))
