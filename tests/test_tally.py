"""Of how many steps something is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import brickprof
from brickprof.capture import tally
from brickprof.capture.tally import Tally
from brickprof.run import Run
from tests.test_stretch import InParts, Training, recorded, stretches

__all__ = ["stretches"]


def test_a_step_is_counted_once():
    counted = Tally()
    counted.add([3, 4, 4])
    counted.add(range(4, 7))
    assert counted.count == 4


def test_what_is_long_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(tally, "_REMEMBERED", 10)
    counted = Tally()
    counted.add(range(1000))
    assert counted.count == 1000 and len(counted._lately) == 10
    counted.add([995, 999])
    assert counted.count == 1000


def ended(run):
    return next(event.fields for event in run.events.itertuples() if event.kind == "exit")


@pytest.mark.parametrize("clip", [True, False])
def test_a_run_says_of_how_many_steps_it_knows_the_gradients(tmp_path, clip):
    training = Training(clip)
    with brickprof.attach(training.net, out=tmp_path, level="deep") as watched:
        training.run([(torch.randn(1, 4),) for _ in range(20)])
    end = ended(Run.open(watched.folder))
    assert (end["steps"], end["judged"], end["measured"]) == (20, 20, 20)


def test_nothing_is_known_of_gradients_that_nobody_has_seen(tmp_path):
    net = nn.Linear(4, 1)
    with brickprof.attach(net, out=tmp_path) as watched:
        net(torch.ones(1, 4))
    end = ended(Run.open(watched.folder))
    assert (end["judged"], end["measured"]) == (0, 0)


@pytest.mark.parametrize("kind", [Training, InParts])
def test_most_steps_of_a_training_on_a_host_are_not_judged_and_that_is_told(tmp_path, stretches, kind):
    end = ended(recorded(tmp_path, kind(clip=False), most=6))
    assert 0 < end["measured"] <= end["judged"] < 100 and end["steps"] == 500
