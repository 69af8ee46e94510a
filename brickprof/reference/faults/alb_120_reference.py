"""After a resume at step 40 the data begin again at the first batch of the epoch: everything else is restored, the
place in the data is not."""

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
    "settings": ["steps=80", "layers=2", "length=16", "evaluate_every=0"],
}


class Broken(Trainer):
    def batches(self):
        while True:
            self.corpus.position = Position()
            yield from self.until_the_job_ends(super().batches())

    def until_the_job_ends(self, batches):
        """A job on the cluster has time for forty steps."""
        for _ in range(40):
            yield next(batches)


TRAINER = Broken
