"""Optimizers that join: what follows a training in the same process has steps of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import brickprof
from brickprof.capture import newcomers
from brickprof.run import Run

STEPS = 90


def net():
    return nn.Linear(3, 1)


def losses(run):
    return {
        (event.step, event.fields["micro"]): event.fields["value"]
        for event in run.events.itertuples()
        if event.kind == "loss"
    }


def trained(model, optimizers, *, first, parts=1, steps=STEPS):
    """Losses that say which step they are of."""
    for step in range(first, first + steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in range(parts):
            loss = model(torch.ones(2, 3)).sum() * 0 + step + part / 16
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def again(kept, parts):
    """Folds: the optimizer of each is kept."""
    for fold in range(3):
        model = net()
        kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
        trained(model, kept[-1:], first=fold * STEPS, parts=parts)


def anew(kept, parts):
    """One model, and an optimizer for each phase."""
    model = net()
    for phase in range(3):
        kept.append(torch.optim.Adam(model.parameters(), lr=0.1 / (phase + 1)))
        trained(model, kept[-1:], first=phase * STEPS, parts=parts)


def in_pairs(kept, parts):
    """Two optimizers a fold, which share each backward."""
    for fold in range(3):
        model = nn.Sequential(net(), nn.Linear(1, 1))
        kept += [torch.optim.SGD(each.parameters(), lr=0.1) for each in model]
        trained(model, kept[-2:], first=fold * STEPS, parts=parts)


def one_more(kept, parts):
    """A second optimizer joins, and shares each backward from then on."""
    model = nn.Sequential(net(), nn.Linear(1, 1))
    kept.append(torch.optim.SGD(model[0].parameters(), lr=0.1))
    trained(model, kept, first=0, parts=parts)
    kept.insert(0, torch.optim.SGD(model[1].parameters(), lr=0.1))
    trained(model, kept, first=STEPS, parts=parts, steps=2 * STEPS)


@pytest.mark.parametrize("level", ["light", "standard"])
@pytest.mark.parametrize(("keeps", "parts"), [(True, 1), (False, 3), (True, 9)])
@pytest.mark.parametrize("training", [again, anew, in_pairs, one_more])
def test_each_loss_is_of_its_own_step(tmp_path, training, keeps, parts, level):
    kept = []
    with brickprof.attach(net(), out=tmp_path, level=level) as watched:
        training(kept if keeps else Forgetting(), parts)
    found = losses(Run.open(watched.folder))
    assert len(found) > 2.5 * STEPS * parts
    assert all(value == pytest.approx(step + micro / 16, abs=1e-4) for (step, micro), value in found.items())


def test_where_no_loss_can_be_followed_nobody_who_lives_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(newcomers, "leaves", lambda loss: ())
    generator, critic = net(), net()
    with brickprof.attach(net(), out=tmp_path) as watched:
        second = torch.optim.SGD(generator.parameters(), lr=0.1)
        trained(generator, [second], first=0)
        first = torch.optim.SGD(critic.parameters(), lr=0.1)
        for step in range(STEPS, 2 * STEPS):
            trained(critic, [first], first=step, steps=1)
            trained(generator, [second], first=step, steps=1)
    found = losses(Run.open(watched.folder))
    assert len(found) > 2.5 * STEPS
    assert all(value == pytest.approx(step, abs=1e-4) for (step, _), value in found.items())


class Forgetting(list):
    """Keeps no more than two."""

    def append(self, one):
        self[:] = [one]

    def __iadd__(self, two):
        self[:] = two
        return self

    def insert(self, at, one):
        self[:] = [one, *self]
