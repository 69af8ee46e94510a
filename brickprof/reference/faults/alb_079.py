"""The schedule is built from the configuration and never stepped: warm-up does not begin, the learning rate stays at
its first value, a tenth of the declared one, for the whole run."""

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-079",
    "row": 24,
    "title": "the scheduler is made and never stepped",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-COSINE-001"],
    "root_causes": ["schedule-not-stepped"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "settings": ["steps=70", "layers=2", "length=16", "evaluate_every=35"],
}


class Broken(Trainer):
    def update(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


TRAINER = Broken
