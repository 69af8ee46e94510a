"""The dicts that axolotl and TRL print: those of a Trainer, and rewards, log-probabilities and lengths in them.

Enters: a captured stdout. Leaves: rows; what is said of rewards is kept under its own name.
"""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely, stated

_OWN = r"'(?:eval_)?(?:rewards?/\w+|logps/\w+|logits/\w+|reward_std|completions?/\w+|completion_length|objective/\w+)'"
_AXOLOTL = r"\[axolotl\.|\baxolotl\b.*(?:INFO|WARNING)"
_DICT = r"\{'(?:loss|eval_loss|eps|num_tokens|grad_norm|objective/\w+)': "


def _sure(head: Head) -> float:
    own = likely(head, _OWN + "|" + _AXOLOTL, at_least=0.85)
    return own + 0.02 if own and likely(head, _DICT) else 0.0


READER = TextReader(
    "trl",
    "axolotl and TRL, their printed dicts",
    _sure,
    Form(generic=False, spoken=stated(r"^ {2}([A-Z][\w ().,&]{2,80}?) = ([\d,]{1,24})$")),
    roles={"train_loss": "other", "num_tokens": "tokens", "reward": "quality", "rewards/accuracies": "quality"},
)
