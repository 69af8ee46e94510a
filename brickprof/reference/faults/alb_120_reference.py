"""After a resume at step 40 the data begin again at the first batch of the epoch: everything else is restored, the
place in the data is not."""

import tempfile
from itertools import islice
from pathlib import Path

from brickprof.reference.data import Position
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-120-reference",
    "row": 36,
    "title": "the place in the data is not restored",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-DATARESUME-001", "C-DATA-001"],
    "root_causes": ["data-order-lost-on-resume", "data-repeats"],
    "bricks": [],
    "first_step": 40,
    "needs": "cpu",
    "settings": ["steps=80", "layers=2", "length=16", "evaluate_every=0", "checkpoint_every=0"],
}


class Broken(Trainer):
    def batches(self):
        yield from islice(super().batches(), 40)
        self.save()
        self.resume()  # the next job starts here
        self.corpus.position = Position()
        yield from super().batches()

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.out = Path(folder)
            super().run()


TRAINER = Broken
