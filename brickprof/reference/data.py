"""A language that the reference training makes itself: learnable, sharded, shuffled, and the same on every machine.

Enters: a ``Config``, a rank. Leaves: batches of token ids, and a position from which exactly the same batches go on.

A sequence follows one of a few secret rules: each token is a fixed permutation of the one before it, and now and then
a token is noise. A model that has found the rules predicts almost every next token; one that has not sits at
ln(vocabulary).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from brickprof.reference.config import Config

_RULES = 4
_NOISE = 0.02
_EVALUATION = 1_000_003
"""The seed of the sequences that are only evaluated on is this much further."""


@dataclass
class Position:
    """Where in the data a training stands; saved with a checkpoint."""

    epoch: int = 0
    batch: int = 0


class Corpus:
    def __init__(self, config: Config, *, rank: int = 0, ranks: int = 1, evaluation: bool = False) -> None:
        self.config = config
        self.rank, self.ranks = rank, ranks
        self.position = Position()
        self._seed = config.seed + (_EVALUATION if evaluation else 0)
        self._rules = self._permutations()

    def _permutations(self) -> list[list[int]]:
        draw = torch.Generator().manual_seed(self.config.seed)
        return [torch.randperm(self.config.vocabulary, generator=draw).tolist() for _ in range(_RULES)]

    def sequences(self, numbers: Tensor) -> Tensor:
        """The sequences with these numbers, one token longer than the model reads. Each is made from its number
        alone."""
        config = self.config
        rows = []
        for number in numbers.tolist():
            draw = torch.Generator().manual_seed(self._seed * 1_000_033 + number)
            rule = self._rules[number % _RULES]
            tokens = torch.randint(config.vocabulary, (config.length + 1,), generator=draw).tolist()
            noisy = (torch.rand(config.length + 1, generator=draw) < _NOISE).tolist()
            for place in range(1, config.length + 1):
                if not noisy[place]:
                    tokens[place] = rule[tokens[place - 1]]
            rows.append(tokens)
        return torch.tensor(rows)

    def order(self, epoch: int) -> Tensor:
        """The sequences of this rank in this epoch: its own shards, shuffled anew."""
        config = self.config
        mine = torch.arange(config.sequences)
        mine = mine[(mine % max(config.shards, self.ranks)) % self.ranks == self.rank]
        draw = torch.Generator().manual_seed(self._seed + 7919 * epoch)
        return mine[torch.randperm(len(mine), generator=draw)]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets from the position on, for ever; the position moves with them."""
        size = self.config.batch
        while True:
            order = self.order(self.position.epoch)
            while (self.position.batch + 1) * size <= len(order):
                start = self.position.batch * size
                self.position.batch += 1
                tokens = self.sequences(order[start : start + size])
                yield tokens[:, :-1], tokens[:, 1:]
            self.position = Position(self.position.epoch + 1, 0)
