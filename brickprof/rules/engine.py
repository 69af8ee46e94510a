"""The one rule engine: the same code for a run that goes on and for one that is over.

Enters: records, one at a time, or a whole ``Run``. Leaves: a ``ContractResult`` of each rule. A rule
that fails is a result too (NOT_EVALUATED, with what it raised): it takes neither the other rules nor a
live run with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from brickprof import plugins
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.records import Record

if TYPE_CHECKING:
    from brickprof.run import Run


class Rule(Protocol):
    """One family of obligations, in one file of ``brickprof/rules/`` that names its class ``RULE``."""

    contract: str

    def feed(self, record: Record) -> None: ...
    def finish(self, run: Run | None) -> ContractResult: ...


class Engine:
    """Every rule, fed together. Feed it as records arrive; ask for results as often as you like."""

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        self.notes: tuple[str, ...] = ()
        if rules is None:
            found = plugins.discover("brickprof.rules")
            self.notes = found.notes
            rules = [rule() for rule in found.exports("RULE").values()]
        self._rules = list(rules)
        self._failed: dict[int, str] = {}
        self._feeds = [(place, rule.feed) for place, rule in enumerate(self._rules)]

    def feed(self, record: Record) -> None:
        for place, feed in self._feeds:
            try:
                feed(record)
            except Exception as error:
                self._fails(place, error)

    def results(self, run: Run | None = None) -> list[ContractResult]:
        results = []
        for place, rule in enumerate(self._rules):
            if place not in self._failed:
                try:
                    results.append(rule.finish(run))
                    continue
                except Exception as error:
                    self._fails(place, error)
            why = f"the rule failed: {self._failed[place]}"
            results.append(ContractResult(rule.contract, Verdict.NOT_EVALUATED, why=why))
        return results

    def _fails(self, place: int, error: Exception) -> None:
        self._failed[place] = f"{type(error).__name__}: {error}"
        self._feeds = [(other, feed) for other, feed in self._feeds if other != place]


def evaluate(run: Run) -> list[ContractResult]:
    """What every rule says of a run that is over."""
    engine = Engine()
    for record in run.records():
        engine.feed(record)
    return engine.results(run)
