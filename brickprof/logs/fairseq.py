"""What fairseq and metaseq write: ``| epoch 001 | loss 5.2 | ... | num_updates 100``, ``epoch 001: 100 / 2000 loss=9.1,
...``, and JSON behind the name of a logger. The step is the number of updates; ``update`` is a part of an epoch.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely

_LOGGER = r"\| (?:train|train_inner|valid)(?:_\w+)? \| (?:\{|epoch \d)"


def _sure(head: Head) -> float:
    return likely(head, _LOGGER, r"\| epoch \d+ \|.*\bloss [\d.]", r"epoch \d+:\s+\d+ / \d+ loss=", at_least=0.85)


READER = TextReader(
    "fairseq",
    "fairseq and metaseq",
    _sure,
    Form(rename={"update": "", "valid_num_updates": "num_updates", "train_num_updates": "num_updates"}),
    roles={
        "validation best_loss": "other", "best_loss": "other", "valid_best_loss": "other", "nll_loss": "other",
        "validation nll_loss": "other", "valid_nll_loss": "other",
        "train_nll_loss": "other", "base_loss": "other", "train_wall": "other", "wall": "other",
    },
)  # fmt: skip
