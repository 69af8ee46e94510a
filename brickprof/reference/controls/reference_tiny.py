"""The reference training as it is, without a fault: checkpoints, evaluation, accumulation and schedule included."""

from brickprof.reference.config import read
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "reference-tiny",
    "title": "the reference training, tiny configuration",
    "family": "reference",
    "trap": "whatever the reference training does",
    "needs": "cpu",
}

if __name__ == "__main__":
    Trainer(read("tiny", ("steps=20",)), device="cpu").run()
