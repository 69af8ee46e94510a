"""The one rule engine: the same code for a run that goes on and for one that is over.

Enters: records, one at a time, or a whole ``Run``; the terms on which to judge. Leaves: a ``ContractResult`` of each
rule. A rule that fails is a result too (NOT_EVALUATED, with what it raised): it takes neither the other rules nor a
live run with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from brickprof import plugins
from brickprof.contracts.schema import Contract
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, together
from brickprof.records import Event, Record, Sample
from brickprof.rules import log_lacks, obligations
from brickprof.rules.many import Many
from brickprof.rules.story import NotYet, Story

if TYPE_CHECKING:
    from brickprof.run import Run

_LIBRARY = ("story",)
_FOR_LOGS = "log_"
_AT_ONCE = 2**15


class Rule(Protocol):
    """One obligation, judged over the story so far. In a file of ``brickprof/rules/`` as ``RULE``, or in ``RULES``.

    A rule counts on what capture sees: every step, with all its digits. One that reads logs says so in ``told_by``:
    "log" (nothing else), or "any". Ours of the first kind are in files called ``log_``, which a run that was captured
    does not wait for.
    """

    contract: str

    def judge(self, story: Story, contract: Contract) -> ContractResult: ...


class Listener(Protocol):
    """A rule that follows the records one by one, because their order is what it is about.

    One that follows some kinds of records only says so in ``hears``: ``(Span,)``, or ``(Event, Sample)``. One that
    would say the same without samples that repeat that a tensor is finite (``run.thinning``) has ``telling = True``.
    One that is quicker with many records than with one at a time has ``follow(many)`` beside ``feed``, and then says
    the same: it gets all kinds of them, those too that it does not hear.
    """

    contract: str

    def feed(self, record: Record) -> None: ...
    def finish(self, run: Run | None) -> ContractResult: ...


class Engine:
    """Every rule over one story. Feed it as records arrive; ask for results as often as you like."""

    def __init__(self, rules: Iterable[Any] | None = None, terms: Terms | None = None) -> None:
        self.terms = terms or Terms()
        self.story = Story()
        self.notes: tuple[str, ...] = ()
        self._made: dict[tuple[str, int], Any] = {}
        """Rules by the module they are from, and by their place in it."""
        self._whole = rules is not None
        """Whether the rules for logs are among them."""
        self._rules = list(rules) if rules is not None else self._found(leave_out=(*_LIBRARY, *_for_logs()))
        self._failed: dict[int, str] = {}
        self._early: dict[int, ContractResult] = {}
        self._hearing: dict[type, list[tuple[int, Any]]] = {}
        self._feeds = self._listening()

    def _found(self, leave_out: tuple[str, ...]) -> list[Any]:
        found = plugins.discover("brickprof.rules", leave_out=leave_out)
        self.notes = tuple(dict.fromkeys((*self.notes, *found.notes)))
        several = found.exports("RULES").items()
        rules = {(name, 0): rule for name, rule in found.exports("RULE").items()}
        rules |= {(name, place): rule for name, more in several for place, rule in enumerate(more, start=1)}
        for key, rule in rules.items():
            if key not in self._made:
                self._made[key] = self._one(rule)
        return [self._made[key] for key in rules]

    def _one(self, rule: Any) -> Any:
        if hasattr(rule, "feed") and inspect.signature(rule).parameters:
            return rule(self.terms.contract(rule.contract))
        return rule()

    def _listening(self) -> list[tuple[int, Any]]:
        listeners = ((place, rule) for place, rule in enumerate(self._rules) if hasattr(rule, "feed"))
        return [(place, rule.feed) for place, rule in listeners if place not in self._failed]

    def _complete(self) -> None:
        """The rules for logs take their places, as soon as it is known that a log tells the story."""
        if self._whole or not self.story.logged:
            return
        before = self._rules
        self._rules = self._found(leave_out=_LIBRARY)
        self._whole = True
        places = {id(rule): place for place, rule in enumerate(self._rules)}
        self._failed = {places[id(before[place])]: said for place, said in self._failed.items()}
        self._early, self._hearing = {}, {}
        self._feeds = [(place, feed) for place, feed in self._listening() if self._concerns(self._rules[place])]

    def feed(self, record: Record) -> None:
        self._early.clear()
        self.story.feed(record)
        self.listen(record)

    def listen(self, record: Record) -> None:
        """Only for those who follow records one by one: the story has it already."""
        if isinstance(record, Event) and record.kind == "log":
            self._complete()
            self._feeds = [(place, feed) for place, feed in self._feeds if self._concerns(self._rules[place])]
            self._hearing = {}
        kind = type(record)
        if kind not in self._hearing:
            self._hearing[kind] = [(place, feed) for place, feed in self._feeds if self._hears(place, kind)]
        for place, feed in self._hearing[kind]:
            try:
                feed(record)
            except Exception as error:
                self._fails(place, error)

    def hear(self, many: Many) -> None:
        """Many records of a run whose story is known: ``listen``, one listener after the other."""
        self._complete()
        if self.story.logged:
            self._feeds = [(place, feed) for place, feed in self._feeds if self._concerns(self._rules[place])]
        kinds = set(map(type, many.records))
        for place, feed in self._feeds:
            heard = {kind for kind in kinds if self._hears(place, kind)}
            follow = getattr(self._rules[place], "follow", None)
            try:
                if follow is not None:
                    follow(many)
                elif heard:
                    for record in many.records:
                        if type(record) in heard:
                            feed(record)
            except Exception as error:
                self._fails(place, error)

    def _hears(self, place: int, kind: type) -> bool:
        return issubclass(kind, getattr(self._rules[place], "hears", object))

    @property
    def telling(self) -> bool:
        """Whether samples that say something new are all that anybody here listens to."""
        self._complete()
        listening = [self._rules[place] for place, _ in self._feeds if self._hears(place, Sample)]
        return all(getattr(rule, "telling", False) for rule in listening)

    def judge_early(self) -> None:
        """Judges by the rules that ask for events alone, while the rest of the story is still on its way.

        One that asks for more, or fails, is asked again when all is there; one that listens has heard nothing yet.
        """
        self._complete()
        for place, rule in enumerate(self._rules):
            if hasattr(rule, "judge") and not hasattr(rule, "feed") and self._concerns(rule):
                self.story.refused = False
                with suppress(NotYet, Exception):
                    judged = rule.judge(self.story, self.terms.contract(rule.contract))
                    if not self.story.refused:  # and it did not catch that and go on
                        self._early[place] = judged

    def results(self, run: Run | None = None) -> list[ContractResult]:
        """One result for each contract: several rules may watch one, each an obligation of it."""
        self._complete()
        found: dict[str, ContractResult] = {}
        for place, rule in enumerate(self._rules):
            if not self._concerns(rule):
                continue
            result = self._on_terms(self._result(place, rule, run))
            found[result.id] = together(found[result.id], result) if result.id in found else result
        if self.story.logged:
            for name in dict.fromkeys(rule.contract for rule in self._rules):
                if name not in found:
                    found[name] = log_lacks.unread(self.terms.contract(name))
        for name in self.terms.own:
            if name not in found:
                found[name] = self._on_terms(self._own(name, found))
        return list(found.values())

    def _own(self, name: str, others: Mapping[str, ContractResult]) -> ContractResult:
        """A contract of the user's own: no rule stands behind it, its formulas say what is meant."""
        try:
            return obligations.result(self.terms.contract(name), self.story, others)
        except Exception as error:
            return ContractResult(name, Verdict.NOT_EVALUATED, why=f"the rule failed: {type(error).__name__}: {error}")

    def _concerns(self, rule: Any) -> bool:
        told_by = getattr(rule, "told_by", "capture")
        return told_by == "any" or (told_by == "log") == self.story.logged

    def _result(self, place: int, rule: Any, run: Run | None) -> ContractResult:
        if place in self._early:
            return self._early[place]
        if place not in self._failed:
            try:
                if hasattr(rule, "judge"):
                    judged: ContractResult = rule.judge(self.story, self.terms.contract(rule.contract))
                else:
                    judged = rule.finish(run)
                return judged
            except Exception as error:
                self._fails(place, error)
        return ContractResult(rule.contract, Verdict.NOT_EVALUATED, why=f"the rule failed: {self._failed[place]}")

    def _on_terms(self, result: ContractResult) -> ContractResult:
        reason = self.terms.suppressed.get(result.id)
        if reason is None or result.verdict is not Verdict.FAIL:
            return result
        said = f"suppressed: {reason}"
        quiet = [replace(v, severity=Severity.INFO, symptom=f"{v.symptom} ({said})") for v in result.violations]
        why = f"{said}; it was broken: {result.why or result.observed}"
        return replace(result, verdict=Verdict.NOT_EVALUATED, why=why, violations=tuple(quiet))

    def _fails(self, place: int, error: Exception) -> None:
        self._failed[place] = f"{type(error).__name__}: {error}"
        self._feeds = [(other, feed) for other, feed in self._feeds if other != place]
        self._hearing = {}


def _for_logs() -> tuple[str, ...]:
    return tuple(name for name in plugins.names("brickprof.rules") if name.startswith(_FOR_LOGS))


def read(run: Run, terms: Terms | None = None) -> Engine:
    """An engine that has read a run that is over: its story at once, its records where their order counts."""
    engine = Engine(terms=terms)
    engine.story = Story.of(run)
    for records in batches(run.records(thinned=True, telling=engine.telling)):
        engine.hear(Many(records))
    return engine


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """As many at a time as are quick to hand on, and few enough to be held."""
    coming = iter(records)
    while found := list(islice(coming, _AT_ONCE)):
        yield found


def evaluate(run: Run, terms: Terms | None = None) -> list[ContractResult]:
    """What every rule says of a run that is over."""
    return read(run, terms).results(run)
