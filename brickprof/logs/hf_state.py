"""Hugging Face ``trainer_state.json``: what the Trainer saves beside a checkpoint.

Enters: one object whose ``log_history`` holds what was logged, entry by entry: of the training, of evaluations, and at
the very end a summary. Leaves: rows for the first two, the summary as the end of the training (its loss is a mean over
all of it, not that of a step), and the rest of the object as settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from brickprof.logs.reading import rows, settings
from brickprof.logs.reading.model import Fact, Head, Item
from brickprof.logs.reading.objects import Entry, Walk, flat
from brickprof.logs.reading.source import Source

_HISTORY = "log_history"
_TOLD = re.compile(rb'"log_history"\s*:\s*\[')
_BESIDE = (b'"global_step"', b'"is_world_process_zero"', b'"best_metric"', b'"max_steps"', b'"epoch"')
_LEFT_OUT = frozenset({"stateful_callbacks", "trial_params", "is_local_process_zero", "is_world_process_zero"})


class TrainerState:
    name = "hf"
    title = "Hugging Face trainer_state.json"

    def sniff(self, head: Head) -> float:
        start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start.startswith(b"{"):
            return 0.0
        if _TOLD.search(start):
            return 0.98
        known = sum(key in start for key in _BESIDE)
        return 0.9 if head.name == "trainer_state.json" and known > 1 else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        text = source.whole().decode("utf-8-sig", "replace")
        train, evaluation = _Rows("train"), _Rows("eval")
        states: dict[str, Any] = {}
        facts: list[Fact] = []
        try:
            for entry in Walk(text):
                if entry.key != _HISTORY or entry.place is None:
                    if entry.place is None and entry.key not in _LEFT_OUT:
                        states[entry.key] = entry.value
                elif not isinstance(entry.value, dict):
                    continue
                elif "train_runtime" in entry.value:
                    facts.append(_summary(entry))
                else:
                    (evaluation if _evaluates(entry.value) else train).add(entry)
        except ValueError as broken:
            source.damage.append(str(broken))
        yield Fact("setting", 1, {"values": settings.flat({k: v for k, v in states.items() if v is not None})})
        yield from rows.blocks(train.lines, train.rows, train.kind)
        yield from rows.blocks(evaluation.lines, evaluation.rows, evaluation.kind)
        yield from facts


class _Rows:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.lines: list[int] = []
        self.rows: list[dict[str, float]] = []

    def add(self, entry: Entry) -> None:
        self.lines.append(entry.line)
        self.rows.append(flat(entry.value))


def _evaluates(entry: dict[str, Any]) -> bool:
    """Whether an evaluation was logged: its measures are called ``eval_...`` or, of a test set, ``test_...``."""
    return any(key.startswith(("eval_", "test_")) for key in entry) and "loss" not in entry


def _summary(entry: Entry) -> Fact:
    told = flat(entry.value)
    return Fact("finished", entry.line, {"text": f"trained for {told.get('train_runtime', 0.0):.0f} s", "values": told})


READER = TrainerState()
