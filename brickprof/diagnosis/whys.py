"""The chain of whys: from what a person saw to what caused it, at most five.

Enters: an incident and the hypothesis that won. Leaves: questions and answers, the symptom first, the
root cause last, each with the records that show it.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.incidents import Incident
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules import wording
from brickprof.rules.causality import Anomaly, Stage, key

MOST = 5


def chain(incident: Incident, cause: Hypothesis | None, timeline: Timeline) -> tuple[Why, ...]:
    lead, seen = incident.lead, incident.seen
    if lead.mechanism:
        ending = [] if seen is lead else [_behind(lead, seen)]
        ending += list(cause.whys) if cause is not None else []
    else:
        ending = list(cause.whys[-2:]) if cause is not None else []
        ending += [missing] if (missing := _missing(cause)) is not None else []
    ending = ending[: MOST - 1]
    steps = _steps(seen, timeline) if "shown" in seen.details else [_seen(seen), *_then(seen)]
    return (*steps[: MOST - len(ending)], *ending)[:MOST]


def _behind(lead: Violation, seen: Violation) -> Why:
    """From what was seen to the mechanism."""
    question = lead.details.get("asked") or "What lies behind it?"
    return Why(question, wording.sentence(lead.symptom), lead.brick, lead.evidence)


def _then(violation: Violation) -> list[Why]:
    """What the rule that saw the symptom found on the way back from it."""
    told = violation.details.get("then", ())
    return [Why(each.question, each.finding, each.brick, each.evidence) for each in told]


def _seen(violation: Violation) -> Why:
    question = violation.details.get("question") or "What was seen?"
    if violation.what == "no-gradient":
        question = f"Why does {violation.details['tensor']} not learn?"
    elif violation.what in ("killed", "crashed-by-signal", "crashed", "out-of-memory"):
        question = "Why did the run end?"
    return Why(question, wording.sentence(violation.symptom), violation.brick, violation.evidence)


def _steps(violation: Violation, timeline: Timeline) -> list[Why]:
    """Back from the symptom to the origin, one sighting at a time."""
    shown: Anomaly = violation.details["shown"]
    limit = key(shown, timeline.depth)
    before = [a for a in violation.details["chain"] if key(a, timeline.depth) < limit and a.evidence]
    # Of many outputs or gradients that broke in one step, the first says where; the others follow from it.
    first: dict[tuple[int, Stage], Anomaly] = {}
    for anomaly in sorted(before, key=lambda each: key(each, timeline.depth)):
        first.setdefault((anomaly.step, anomaly.stage), anomaly)
    back = sorted(first.values(), key=lambda each: key(each, timeline.depth), reverse=True)
    if len(back) > MOST - 2:
        back = [*back[: MOST - 3], back[-1]]
    whys, asked = [], shown
    for anomaly in back:
        whys.append(_answer(asked, anomaly, timeline))
        asked = anomaly
    if not back:
        text = wording.sighting(shown, timeline.names.show(shown.brick))
        evidence = (shown.evidence,) if shown.evidence else violation.evidence
        finding = wording.sentence(f"{text}, and nothing before it was seen to be")
        whys.append(Why(_question(shown), finding, violation.brick, evidence))
    return whys


def _answer(asked: Anomaly, anomaly: Anomaly, timeline: Timeline) -> Why:
    where = timeline.names.show(anomaly.brick)
    text = wording.sighting(anomaly, where)
    return Why(_question(asked), wording.sentence(text), where, (anomaly.evidence,))


def _question(anomaly: Anomaly) -> str:
    what, step = wording.kind(anomaly), f"{anomaly.step:,}"
    if anomaly.stage is Stage.LOSS:
        return f"Why is the loss {what} in step {step}?"
    if anomaly.stage is Stage.FORWARD:
        return f"Why is that output {what}?"
    if anomaly.stage is Stage.WEIGHTS:
        return f"Why are the weights {what} after step {step}?"
    if anomaly.stage is Stage.DATA:
        return f"Why is the batch {what}?"
    return f"Why are the gradients {what} in step {step}?"


def _missing(cause: Hypothesis | None) -> Why | None:
    if cause is None or not cause.missing:
        return None
    finding = f"Not recorded: {'; '.join(cause.missing)}."
    return Why("What would make this certain?", finding)
