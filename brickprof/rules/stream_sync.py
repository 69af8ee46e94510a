"""Memory that is used while a copy, or another stream, is still at it.

Enters: ``race`` events (two lines of the script, one range, no order between them) and ``sync_check`` events (how much
was looked at). Leaves: C-STREAMSYNC-001, with the cause that the sides tell: the host read what was still being copied
(missing-sync), wrote what was still being copied (host-buffer-reuse), or two streams met (stream-race).

What the check cannot see into (compiled code, replays of graphs, Triton kernels between streams) is in order as far as
anybody knows, which is no pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.device import has_device
from brickprof.rules.names import whole
from brickprof.rules.story import Story

NO_GPU = "no GPU: a CPU has no streams; --sync-check records them on a GPU"
NEVER_BEGAN = "a dispatch mode of the script's own was on whenever a step began: copies and streams were not looked at"
_THRESHOLD = "no range is used before whoever was at it is done"
_ORDER = ("missing-sync", "host-buffer-reuse", "stream-race")
_SUSPICIONS = ("alias-kept", "alias-unread")
_UNHEARD = (
    "this Python does not let torch.Event.query and torch.Stream.query be heard: whoever asks until the answer is yes "
    "looks like one that never waited"
)
_FOLLOWS = frozenset({
    "loss", "grad", "weight", "activation", "nonfinite", "spike", "diverged", "exploding", "not-learning", "plateau",
    "slow-learning", "underfitting",
})  # fmt: skip
_ACTIONS = {
    "missing-sync": "Wait before the host reads: record an event after the copy and call event.synchronize(), or "
    "synchronise the stream of the copy; or copy without non_blocking=True.",
    "host-buffer-reuse": "Record an event after the copy and wait for it before the buffer is written again, or take "
    "turns with several buffers, each with an event of its own.",
    "stream-race": "Let the second stream wait for the first one: second.wait_stream(first), or an event that is "
    "recorded after the first use.",
    "freed": "Call tensor.record_stream(stream) for the stream that still uses it, or keep the tensor until its "
    "stream has waited.",
}  # fmt: skip
_INSTEAD = {
    "not-done": "{at} asked whether it was done, was told no, and went on",
    "event-too-early": "{at} waited for an event that had been recorded before it",
    "other-stream": "{at} waited for another stream",
}


class StreamSync:
    contract = "C-STREAMSYNC-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        pairs = [pair for rank in story.ranks for pair in _pairs(story, rank)]
        guilty = [event for event in pairs if event.fields.get("how") not in _SUSPICIONS]
        if guilty and not all(fields.get("hears_questions", True) for fields in _looked(story).values()):
            return outcomes.unjudged(contract, _UNHEARD, _symptom(guilty[0]))
        if guilty:
            found = [_violation(contract, cause, _of(guilty, cause)) for cause in _ORDER if _of(guilty, cause)]
            return outcomes.broken(contract, found, _THRESHOLD)
        if pairs:
            return outcomes.broken(contract, [_suspicion(contract, pairs)], _THRESHOLD)
        return _nothing_found(story, contract)


def _nothing_found(story: Story, contract: Contract) -> ContractResult:
    by_rank = _looked(story)
    looked = list(by_rank.values())
    if not looked:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        if not has_device(story):
            return outcomes.unjudged(contract, NO_GPU)
        return outcomes.unjudged(contract, "copies and their streams were not recorded; --sync-check records them")
    if not all(fields.get("began", True) for fields in looked):
        return outcomes.unjudged(contract, NEVER_BEGAN)
    if not all(fields.get("whole", False) for fields in looked):
        return outcomes.unjudged(contract, "the check of copies and streams had to give up; see the notes of the run")
    copies, streams = (max(whole(fields.get(name)) for fields in looked) for name in ("copies", "streams"))
    launches = sum(whole(fields.get("launches")) for fields in looked)
    told = f"{launches:,} launches on {streams} streams, {copies:,} copies of pinned memory, all in order"
    if unseen := _unseen(story, by_rank):
        why = f"{' and '.join(unseen)}: what they read and write is not seen, so that they may be out of order"
        return outcomes.unjudged(contract, why, f"{told} as far as it was seen")
    if not copies and streams < 2:
        return outcomes.vacuous(contract, "one stream, and no copy that anybody would have to wait for")
    return outcomes.held(contract, told, _THRESHOLD)


def _looked(story: Story) -> dict[int, dict[str, Any]]:
    """By rank: how much was looked at in the end."""
    return {rank: events[-1].fields for rank in story.ranks if (events := story.events("sync_check", rank))}


def _unseen(story: Story, looked: dict[int, dict[str, Any]]) -> list[str]:
    """What happened that the check does not see into, with how much of it there was."""
    counts = {
        "compiled function": sum(len(story.events("compile", rank)) for rank in looked),
        "replay of a graph": sum(whole(fields.get("replays")) for fields in looked.values()),
        "launch of a Triton kernel": sum(_kernels_unseen(story, rank, fields) for rank, fields in looked.items()),
    }
    return [f"{count:,} x {what}" for what, count in counts.items() if count]


def _kernels_unseen(story: Story, rank: int, fields: dict[str, Any]) -> int:
    """Launches of Triton kernels whose tensors nobody knows, or that share them with another stream in no order.

    A kernel that shares what it was given with nobody, or in order, is in order whatever it does.
    """
    if not whole(fields.get("kernels")):
        return sum(whole(event.fields.get("count")) for event in story.events("launches", rank))
    return whole(fields.get("astray")) + whole(fields.get("doubtful"))


def _pairs(story: Story, rank: int) -> list[Event]:
    """The last word on each pair, of the step in which it was first seen, and in that order."""
    last: dict[int, Event] = {}
    for event in story.events("race", rank):
        if isinstance(event.fields.get("first"), dict) and isinstance(event.fields.get("second"), dict):
            pair = whole(event.fields.get("pair"))
            last[pair] = replace(event, step=last[pair].step if pair in last else event.step)
    return list(last.values())


def _of(events: list[Event], cause: str) -> list[Event]:
    return [event for event in events if event.fields.get("cause") == cause]


def _violation(contract: Contract, cause: str, events: list[Event]) -> Violation:
    led = max(events, key=lambda event: whole(event.fields.get("count")))
    evidence = tuple(event.id for event in events[:8])
    action = _ACTIONS["freed" if led.fields.get("how") == "freed" else cause]
    more = f"; {len(events) - 1} more such pairs of lines" if len(events) > 1 else ""
    return Violation(
        contract.id, cause, Severity.ERROR, f"{_symptom(led)}{more}", min(event.step for event in events),
        min(event.step for event in events), "", "transfer" if led.fields.get("memory") == "pinned" else "kernel",
        led.rank, evidence, cause=cause, certainty=0.97, static=True, explains=_FOLLOWS, whys=_whys(led),
        details={
            "question": "Is memory used while somebody is still at it?", "asked": "Which lines touch the same bytes?",
            "pairs": [_symptom(event) for event in events[:8]], "count": whole(led.fields.get("count")),
        },
        action=action, experiment="brickprof experiment launch-blocking SCRIPT shows whether the order matters.",
    )  # fmt: skip


def _suspicion(contract: Contract, events: list[Event]) -> Violation:
    first, second = (_side(events[0], name) for name in ("first", "second"))
    text = (
        f"{second['site']} takes a numpy view of a pinned buffer while the copy of {first['site']} may be under way, "
        "and the view is gone before the host waits: whether it was read is not known"
    )
    if events[0].fields.get("how") == "alias-kept":
        text = (
            f"{second['site']} holds a numpy view of a pinned buffer that {first['site']} copies into again and again, "
            "and the host never waits for a copy: whoever reads that view reads too early"
        )
    return Violation(
        contract.id, "missing-sync", Severity.INFO, text, events[0].step, events[0].step, "", "transfer",
        events[0].rank, tuple(event.id for event in events[:8]),
        details={"question": "Is memory used while somebody is still at it?", "asked": "Who reads the view, and when?"},
        action=_ACTIONS["missing-sync"],
    )  # fmt: skip


def _symptom(event: Event) -> str:
    first, second = (_side(event, name) for name in ("first", "second"))
    size, count = _size(whole(event.fields.get("bytes"))), whole(event.fields.get("count"))
    times = f", {count:,} times" if count > 1 else ""
    if event.fields.get("cause") == "missing-sync":
        return (
            f"{second['site']} reads {size} of pinned memory while the copy of {first['site']} may be under way{times}"
        )
    if event.fields.get("how") == "write-unseen":
        return (
            f"{size} of pinned memory, copied by {first['site']}, were written before that copy was known to be done; "
            f"{second['site']} copies them again{times}"
        )
    if event.fields.get("cause") == "host-buffer-reuse":
        return (
            f"{second['site']} writes {size} of pinned memory while the copy of {first['site']} may be under way{times}"
        )
    if event.fields.get("how") == "freed":
        return (
            f"{second['site']} gets memory on {second['stream']} that {first['site']} may still use on "
            f"{first['stream']}{times}"
        )
    acts = ["writes" if side["writes"] else "reads" for side in (first, second)]
    return (
        f"{second['site']} {acts[1]} {size} on {second['stream']} that {first['site']} {acts[0]} on {first['stream']}, "
        f"and nothing orders the two{times}"
    )


def _whys(event: Event) -> tuple[Because, ...]:
    first, second = (_side(event, name) for name in ("first", "second"))
    sides = f"{_told(first)}; then {_told(second)}."
    at = str(event.fields.get("instead_site", "")).partition(" ")[0]
    instead = _INSTEAD.get(str(event.fields.get("instead")), "Nothing between the two waits for the first one")
    return (
        Because("Which two are not in order?", sides, "", (event.id,)),
        Because("Why is there no order?", f"{instead.format(at=at or 'The script')}.", "", (event.id,)),
    )


def _told(side: dict[str, Any]) -> str:
    stack = " < ".join(str(line) for line in side["stack"][:3]) or side["site"] or "a line that is not known"
    return f"{side['op']} on {side['stream']} at {stack}"


def _side(event: Event, name: str) -> dict[str, Any]:
    side = event.fields.get(name)
    told: dict[str, Any] = side if isinstance(side, dict) else {}
    stack = told.get("stack")
    return {
        "site": str(told.get("site") or "a line that is not known"), "stream": str(told.get("stream", "")),
        "op": str(told.get("op", "")), "writes": bool(told.get("writes")),
        "stack": stack if isinstance(stack, list) else [],
    }  # fmt: skip


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


RULE = StreamSync
