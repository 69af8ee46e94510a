"""One sequence a step at ten times the learning rate that sixteen would bear: the loss oscillates and goes
nowhere."""

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-080-reference",
    "row": 25,
    "title": "batch of one at a high learning rate",
    "family": "reference",
    "kind": "silent",
    "contracts": [
        "C-STEPSIZE-001",
        "C-BATCH-001",
        "FALSIFY-ALBOR-001",
        "C-TRAINSTABLE-001",
        "C-LOSSSPIKE-001",
        "C-INTERLEAVED-001",
        "C-LEARN-001",
    ],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=200", "layers=2", "length=16", "batch=1", "lr=0.1", "schedule=constant", "evaluate_every=50"],
}


class Broken(Trainer):
    """The settings are the fault."""


TRAINER = Broken
