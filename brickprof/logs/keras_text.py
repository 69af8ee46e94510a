"""The progress that Keras draws: ``100/100 [====] - 1s 2ms/step - loss: 0.3 - val_loss: 0.4`` below ``Epoch 1/10``."""

from __future__ import annotations

from brickprof.logs.reading.model import Head
from brickprof.logs.reading.templates import Form, TextReader, likely


def _sure(head: Head) -> float:
    return likely(
        head,
        r"^\s*\d+/\d+ (?:\[[=>. ]+\]|(?:━)+).* (?:\w+_)?loss: ",
        r"^\s*\d+/\d+ - \d+s - .*loss: ",
        at_least=0.8,
    )


READER = TextReader("keras_text", "Keras progress text", _sure, Form())
