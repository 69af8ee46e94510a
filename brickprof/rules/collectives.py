"""What ranks say to each other: the same words in the same order, and nobody left waiting.

Enters: ``collective`` events of every rank, and hangs with the stacks of every rank. Leaves: C-RING-001 (order, waits,
no deadlock) and C-WIRE-002 (what arrives is what was sent; judged where messages are, not on a run).
"""

from __future__ import annotations

import re
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.failures import failure
from brickprof.rules.names import number, whole
from brickprof.rules.standstill import Stand, crashed, distributed, stand, stuck
from brickprof.rules.story import Story

_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "p2p", "coalesced")
_SAME_SIZE = ("allreduce", "broadcast", "reduce", "barrier", "reducescatter")
_ENDS = frozenset({"hung", "killed", "crashed", "exited", "interrupted", "crashed-by-signal"})
_PARTED = frozenset({"drift", "rank-divergence", "gradient-not-reduced", "nonfinite", "diverged"})
_TIMED_OUT = re.compile(r"timed? ?out|timeout|watchdog", re.IGNORECASE)


class Conversation:
    contract = "C-RING-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        said = {rank: story.events("collective", rank) for rank in story.ranks}
        said = {rank: events for rank, events in said.items() if events}
        wrong = _mismatch(said, contract)
        found = [wrong] if wrong is not None else []
        waiting = _deadlock(story, said, contract) or _failed(story, contract) if wrong is None else None
        found += [waiting] if waiting is not None else []
        found += _orphans(said, contract)
        threshold = "the same operations in the same order on every rank, each waited for"
        if found:
            return outcomes.broken(contract, found, threshold)
        if not said:
            several = len(story.ranks) > 1
            why = "no collective was recorded; --level deep records them" if several else "one rank trained"
            return outcomes.unjudged(contract, why) if several else outcomes.vacuous(contract, why)
        total = sum(len(events) for events in said.values())
        return outcomes.held(contract, f"{wording.count(total, 'collective')} on {len(said)} ranks agree", threshold)


class Wire:
    contract = "C-WIRE-002"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        why = "a run records no message bodies; a round trip of the wire format is judged by `brickprof check`"
        return outcomes.unjudged(contract, why)


# -- order


def _mismatch(said: dict[int, list[Event]], contract: Contract) -> Violation | None:
    spoken: dict[tuple[Any, int], dict[int, Event]] = {}
    apart = {event.fields.get("group") for events in said.values() for event in events if _between_two(event)}
    for rank, events in said.items():
        for event in events:
            if event.fields.get("group") not in apart and isinstance(event.fields.get("seq"), int):
                spoken.setdefault((event.fields.get("group"), event.fields["seq"]), {}).setdefault(rank, event)
    for (group, seq), by_rank in sorted(spoken.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        different = {_words(event) for event in by_rank.values()}
        if len(different) > 1:
            return _other_words(group, seq, by_rank, contract)
    return None


def _between_two(event: Event) -> bool:
    return any(word in str(event.fields.get("op", "")).lower() for word in _POINT_TO_POINT)


def _words(event: Event) -> tuple[Any, ...]:
    op = str(event.fields.get("op", "")).lower().replace("_", "")
    if any(op.startswith(name) for name in _SAME_SIZE):
        return op, event.fields.get("numel"), event.fields.get("dtype")
    return (op,)


def _other_words(group: Any, seq: int, by_rank: dict[int, Event], contract: Contract) -> Violation:
    first = min(by_rank.values(), key=lambda event: event.step)
    told = "; ".join(f"rank {rank}: {_told(event)}" for rank, event in sorted(by_rank.items())[:4])
    symptom = f"collective {seq:,} is not the same on all ranks ({told})"
    evidence = tuple(event.id for event in by_rank.values())[:4]
    return Violation(
        contract.id, "collective-mismatch", Severity.ERROR, symptom, first.step, first.step, _site(first), "collective",
        first.rank, evidence, cause="collective-mismatch", certainty=0.96, explains=_ENDS | _PARTED,
        whys=(Because("What do the ranks say to each other?", wording.sentence(told), "", evidence),),
        details={"group": group, "question": "Why do the ranks not meet?", "asked": "Why do the ranks not meet?"},
        action="Every rank has to call the same collectives, with the same sizes, in the same order: look for an "
        "`if rank == ...` or a branch on local data around them.",
    )  # fmt: skip


def _told(event: Event) -> str:
    fields = event.fields
    numel = number(fields.get("numel"))
    size = f" of {numel:,.0f} {fields.get('dtype') or 'values'}" if numel else ""
    site = f" at {fields['site']}" if fields.get("site") else ""
    return f"{fields.get('op')}{size}{site}"


def _site(event: Event) -> str:
    return str(event.fields.get("brick") or "")


# -- handles that nobody waits for


def _orphans(said: dict[int, list[Event]], contract: Contract) -> list[Violation]:
    lost = [event for events in said.values() for event in events if _orphaned(event)]
    if not lost:
        return []
    first = min(lost, key=lambda event: (event.step, event.moment))
    ranks = sorted({event.rank for event in lost})
    times = wording.count(len(lost), "asynchronous operation")
    symptom = f"{times} on rank {', '.join(map(str, ranks[:4]))} nobody waited for, first {_told(first)}"
    evidence = tuple(event.id for event in lost[:4])
    text = "The handle was dropped: the tensor is read while other ranks' values are still on their way."
    return [
        Violation(
            contract.id, "collective-orphaned", Severity.ERROR, symptom, first.step, first.step, _site(first),
            "collective", first.rank, evidence, cause="collective-orphaned", certainty=0.96,
            explains=_PARTED | {"hung", "not-learning", "spike"},
            whys=(Because("Why is its result not to be trusted?", text, "", evidence),),
            details={"question": "Was every operation finished?", "asked": "Was every operation finished?"},
            action="Keep the handle that async_op=True returns, and call .wait() before the tensor is read.",
        )
    ]  # fmt: skip


def _orphaned(event: Event) -> bool:
    fields = event.fields
    if fields.get("phase") == "orphaned":
        return True
    return fields.get("phase") == "done" and bool(fields.get("asynchronous")) and fields.get("waited") is False


# -- ranks that wait forever


def _deadlock(story: Story, said: dict[int, list[Event]], contract: Contract) -> Violation | None:
    hang = stuck(story)
    if hang is None:
        return None
    waiting = {rank: event for rank, events in said.items() if (event := _open(events)) is not None}
    stands = {stood.rank: stood for stood in stand(hang) if distributed(stood)}
    if not waiting and not stands:
        return None
    who = sorted({*waiting, *stands})
    told = "; ".join(_waits(rank, waiting.get(rank), stands) for rank in who[:4])
    symptom = f"{wording.count(len(who), 'rank')} wait for each other in step {hang.step:,} ({told})"
    evidence = (hang.id, *(event.id for event in waiting.values()))[:4]
    whys = [Because("Where does each rank stand?", wording.sentence(told), "", evidence)]
    missing = [rank for rank in story.ranks if rank not in who]
    if missing:
        text = f"Rank {', '.join(map(str, missing))} is not in a collective: the others wait for it."
        whys.append(Because("Who is missing?", text, "", (hang.id,)))
    return Violation(
        contract.id, "deadlock", Severity.ERROR, symptom, hang.step, hang.step, "", "collective", evidence=evidence,
        cause="deadlock", certainty=0.9, explains=_ENDS, whys=tuple(whys),
        details={"question": "Why does nothing move?", "asked": "Why does nothing move?"},
        action="Let every rank reach the same collective; with two ranks, one sends while the other receives "
        "(isend/irecv, or batch_isend_irecv).",
    )  # fmt: skip


# -- a collective that fails


def _failed(story: Story, contract: Contract) -> Violation | None:
    """An exception or an abort inside a collective: the ranks were not in the same one."""
    for rank in (*story.ranks, -1):
        for event in story.events("exception", rank):
            raised = failure(event)
            if raised.in_collective:
                text = f"{raised.type}: {' '.join(raised.message.split())[:200]}"
                late = bool(_TIMED_OUT.search(raised.message)) or _stood_still(story, event)
                return _in_collective(story, event, text, raised.where, late=late, contract=contract)
    for event in story.events("stacks", -1):
        stood = crashed(event)
        if stood is not None and distributed(stood):
            return _in_collective(
                story, event, "native code aborted", stood.frame, late=False, contract=contract, stood=stood
            )
    return None


def _stood_still(story: Story, end: Event) -> bool:
    """Whether nothing had moved since: who is told that a peer has left had waited for it as long as the peer."""
    last = max((loss.time_ns for rank in story.ranks for loss in story.events("loss", rank)[-1:]), default=0)
    return any(last < hang.time_ns < end.time_ns for hang in story.events("hang", -1))


def _in_collective(
    story: Story, event: Event, text: str, where: str, *, late: bool, contract: Contract, stood: Stand | None = None
) -> Violation:
    steps = {rank: max((loss.step for loss in story.events("loss", rank)), default=0) for rank in story.ranks}
    step = event.step or min(steps.values(), default=0)
    apart = len(set(steps.values())) > 1
    cause = "deadlock" if late and not apart else "collective-mismatch"
    symptom = f"a collective failed in step {step:,}{f' at {where}' if where else ''}: {text}"
    whys = [Because("What did the collective say?", wording.sentence(text.rstrip(".")), "", (event.id,))]
    if apart:
        told = ", ".join(f"rank {rank} in step {at:,}" for rank, at in steps.items())
        finding = f"The ranks were not in the same place: {told}. One called a collective that the other did not."
        ids = tuple(loss.id for rank in story.ranks for loss in story.events("loss", rank)[-1:])
        whys.append(Because("Where were the ranks?", finding, "", ids[:4]))
    return Violation(
        contract.id, cause, Severity.ERROR, symptom, step, step, "", "collective",
        stood.rank if stood else max(event.rank, 0), (event.id,), cause=cause,
        certainty=0.85 if apart or late else 0.7, explains=_ENDS, whys=tuple(whys),
        details={"question": "Why did the run end?", "asked": "Where did it end?"},
        action="Let every rank call the same collectives, with the same sizes, in the same order: look for an "
        "`if rank == ...` around one, and for two ranks that both send or both receive first.",
    )  # fmt: skip


def _open(events: list[Event]) -> Event | None:
    """The last collective that began on a rank, if nothing says that it ended."""
    finished = {
        (event.fields.get("group"), event.fields.get("seq")) for event in events if event.fields.get("phase") != "open"
    }
    begun = [event for event in events if event.fields.get("phase") == "open"]
    last = max(begun, key=lambda event: whole(event.fields.get("seq")), default=None)
    if last is None or (last.fields.get("group"), last.fields.get("seq")) in finished:
        return None
    return last


def _waits(rank: int, event: Event | None, stands: dict[int, Any]) -> str:
    if event is not None:
        return f"rank {rank} in {_told(event)}"
    return f"rank {rank} in {stands[rank].frame or 'a collective'}"


RULES = (Conversation, Wire)
