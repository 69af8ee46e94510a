"""Triton kernels that write outside of their arguments, and how many were seen not to.

Enters: ``canary`` events (a launch on copies between guards that wrote into a guard) and ``canaries`` events (how many
launches were looked at so, and which were not). Leaves: C-BUFSIZE-001 with the kernel as its brick: which argument, on
which side, how many bytes, how far away, and what that distance is equal to. Launches that were looked at and kept to
their arguments are evidence for it; a write beside a view, but inside its storage, would not have shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_THRESHOLD = "nothing is written outside of a kernel's arguments"
_MOST_FINDINGS = 8
_MOST_REASONS = 3
_FOLLOWS = frozenset({
    "overwritten", "sanitizer", "out-of-bounds", "nonfinite", "diverged", "spike", "exploding", "not-learning",
    "plateau", "slow-learning", "optimizer-state", "crashed", "exited", "crashed-by-signal",
})  # fmt: skip
_MASK = "Give the store a mask (mask=offsets < n), or a grid and a block that end where the argument does."
_ROOM = "Size the argument by what is written into it, or write only what it has room for."
_INDEX = "Check the smallest and the largest index of the store: offsets, strides, and the order of the sizes."


class _Argument(NamedTuple):
    name: str
    shape: str
    numel: int
    itemsize: int
    offset: int
    storage: int
    whole: bool

    @property
    def words(self) -> str:
        held = f"{self.shape}, {self.storage:,} bytes"
        return f"{self.name} ({held})" if self.whole else f"the storage of {self.name} ({held})"


class _Write(NamedTuple):
    """The write that says most: the nearest to an argument."""

    argument: _Argument
    side: str
    bytes: int
    nearest: int
    farthest: int
    guard: int

    @property
    def overflows(self) -> bool:
        return self.side == "behind" and self.nearest == 0

    @property
    def reach(self) -> int:
        """How many elements from its start the argument would need."""
        held = self.argument
        return (held.storage + self.farthest) // held.itemsize - held.offset

    @property
    def where(self) -> str:
        end = "behind the end of" if self.side == "behind" else "before the start of"
        return f"{wording.count(self.bytes, 'byte')} {end} {self.argument.name}"


class Canaries:
    contract = "C-BUFSIZE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        kernels: dict[str, list[Event]] = {}
        for event in (event for rank in story.ranks for event in story.events("canary", rank)):
            if _write(event) is not None:
                kernels.setdefault(str(event.fields.get("kernel", "a kernel")), []).append(event)
        if kernels:
            found = [_violation(contract, name, events) for name, events in list(kernels.items())[:_MOST_FINDINGS]]
            return outcomes.broken(contract, found, _THRESHOLD)
        return _nothing_found(story, contract)


def _nothing_found(story: Story, contract: Contract) -> ContractResult:
    looked = [last.fields for rank in story.ranks if (last := story.last("canaries", rank)) is not None]
    checked, partly, touched, launches = (
        sum(whole(fields.get(name)) for fields in looked) for name in ("checked", "partly", "touched", "launches")
    )
    refused = _reasons(looked)
    if touched:
        return outcomes.unjudged(contract, "guards were written to, and the events that say which are missing")
    if not story.trained and not checked:
        return outcomes.vacuous(contract, "nothing was trained")
    if checked > partly:
        kernels = max(whole(fields.get("distinct")) for fields in looked)
        told = f"{checked:,} of {wording.count(launches, 'launch', 'launches')} of {_kernels(kernels)}, on copies "
        told += "between guards, wrote nothing outside their arguments"
        told += f"; {partly:,} on views, of which only the storage is guarded" if partly else ""
        return replace(outcomes.held(contract, told + refused, _THRESHOLD), why="launches were made on guarded copies")
    if checked:
        return outcomes.unjudged(contract, f"kernels were given views only, and their storages are whole{refused}")
    if launches:
        return outcomes.unjudged(contract, f"no launch of a Triton kernel could be looked at{refused}")
    why = "no launch of a Triton kernel was looked at; --level deep does, where there are any"
    return outcomes.aside(contract, why)


def _kernels(count: int) -> str:
    return wording.count(count, "Triton kernel")


def _reasons(looked: list[dict[str, Any]]) -> str:
    counted: dict[str, int] = {}
    for fields in looked:
        refused = fields.get("refused")
        for reason, times in refused.items() if isinstance(refused, dict) else ():
            counted[str(reason)] = counted.get(str(reason), 0) + whole(times)
    most = sorted(counted.items(), key=lambda item: -item[1])[:_MOST_REASONS]
    return f"; not looked at: {', '.join(f'{times:,} ({reason})' for reason, times in most)}" if most else ""


def _violation(contract: Contract, kernel: str, events: list[Event]) -> Violation:
    first = events[0]
    write = _write(first)
    assert write is not None
    evidence = tuple(event.id for event in events[:_MOST_FINDINGS])
    site = str(first.fields.get("site") or "")
    at = f", launched at {site}," if site else ""
    symptom = f"the Triton kernel {kernel}{at} writes {write.where}"
    finding, action = _explained(write, first)
    return Violation(
        contract.id, "canary", Severity.ERROR, symptom, first.step, first.step, kernel, "kernel", first.rank, evidence,
        cause="buffer-overflow" if write.overflows else "out-of-bounds", certainty=0.96, static=True,
        explains=_FOLLOWS,
        whys=(
            Because("What did it touch?", _touched(write, first, len(events)), kernel, evidence),
            Because("Why does it reach that far?", finding, kernel, (first.id,)),
        ),
        details={"question": "Does every kernel keep to its arguments?", "asked": "Who writes there?", "site": site},
        action=action,
        experiment="brickprof run --sanitizer memcheck SCRIPT names the thread that does it.",
    )  # fmt: skip


def _touched(write: _Write, event: Event, times: int) -> str:
    far = f"{write.nearest:,} to {write.farthest:,} bytes away"
    more = " at least, as far as was looked" if write.farthest >= write.guard else ""
    again = f" So in {times:,} launches that were looked at." if times > 1 else ""
    return (
        f"In step {event.step:,} it was launched on copies of its arguments between guards. {write.where[:1].upper()}"
        f"{write.where[1:]} changed, {far}{more}; the argument is {write.argument.words}.{again}"
    )


def _explained(write: _Write, event: Event) -> tuple[str, str]:
    """What the distance is equal to, and what to do about it."""
    held, reach = write.argument, write.reach
    if write.side == "before":
        back = wording.count(-(-write.farthest // held.itemsize), "element")
        return f"Its smallest index is {back} before the start of {held.name}, and no mask keeps it out.", _INDEX
    if write.nearest:
        gap = f"{write.nearest:,} bytes behind the end of {held.name} are left alone"
        return f"{gap[:1].upper()}{gap[1:]}, so it is no size that is too large but an index or a stride.", _INDEX
    ends = f"Its writes end with element {reach:,} of {held.name}, which holds {held.numel:,}"
    for other in _arguments(event):
        if other.name != held.name and other.numel == reach:
            return f"{ends}; {reach:,} is what {other.name} holds.", _ROOM
    for name, value in _numbers(event, "sizes").items():
        if value == reach:
            return f"{ends}; {reach:,} is what it was told as {name}.", _ROOM
    blocks = {name: value for name, value in _numbers(event, "constants").items() if value > 1 and not reach % value}
    if blocks:
        name, value = max(blocks.items(), key=lambda item: item[1])
        return f"{ends}; {reach:,} is a multiple of {name} = {value:,}: the last block is written whole.", _MASK
    return f"{ends}: its grid and its masks allow for more than there is.", _MASK


def _write(event: Event) -> _Write | None:
    touched = event.fields.get("touched")
    rows = [row for row in touched if isinstance(row, dict)] if isinstance(touched, list) else []
    rows = [row for row in rows if whole(row.get("bytes")) > 0]
    if not rows:
        return None
    row = min(rows, key=lambda row: whole(row.get("nearest")))
    counted = (whole(row.get(name)) for name in ("bytes", "nearest", "farthest", "guard"))
    side = "before" if row.get("side") == "before" else "behind"
    return _Write(_argument(event, whole(row.get("slot"), -1)), side, *counted)


def _argument(event: Event, slot: int) -> _Argument:
    """What lies in a slot; several arguments where they share their storage."""
    shared = [each for place, each in zip(_slots(event), _arguments(event), strict=True) if place == slot]
    if not shared:
        return _Argument("an argument", "not recorded", 0, 1, 0, 0, True)
    led = next((each for each in shared if each.whole), shared[0])
    if len(shared) == 1:
        return led
    name = " and ".join(each.name for each in shared[:3])
    return _Argument(name, led.shape, led.numel, led.itemsize, led.offset, led.storage, led.whole)


def _rows(event: Event) -> list[dict[str, Any]]:
    rows = event.fields.get("arguments")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _slots(event: Event) -> list[int]:
    return [whole(row.get("slot"), -1) for row in _rows(event)]


def _arguments(event: Event) -> list[_Argument]:
    return [
        _Argument(
            str(row.get("name", "an argument")), f"{row.get('dtype', '')}{row.get('shape', '')}",
            whole(row.get("numel")), max(whole(row.get("itemsize"), 1), 1), whole(row.get("offset")),
            whole(row.get("storage")), bool(row.get("whole")),
        )
        for row in _rows(event)
    ]  # fmt: skip


def _numbers(event: Event, name: str) -> dict[str, int]:
    given = event.fields.get(name)
    return {str(key): whole(value) for key, value in given.items()} if isinstance(given, dict) else {}


RULE = Canaries
