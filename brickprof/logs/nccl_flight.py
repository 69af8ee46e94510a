"""Dumps of the flight recorder of torch.distributed (``TORCH_NCCL_DUMP_ON_TIMEOUT``): pickle or JSON, a file a rank.

Enters: the dump of one rank. Leaves: facts of the kind ``collective``: of each process group the call that this rank
waits in, or the last one that it completed, and its latest calls. Of the logs of several ranks (``joined``): which rank
never started the call that others wait in, and where two ranks called different operations, or the same one with
tensors that do not fit.

A dump is what the watchdog leaves behind when the time is up: a call that is open in it was waited for that long. But
it can be asked for at any time: where the file was written long before the time of an open call was up, that call is
only under way, and nothing is wrong. A pickle is never unpickled: see ``plain_pickle``. The rank is told by the file's
name.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import plain_pickle
from brickprof.logs.reading.gather import Log
from brickprof.logs.reading.model import Fact, Head, Item
from brickprof.logs.reading.source import Source
from brickprof.text import clean

_LARGEST = 256 << 20
_MOST_ENTRIES = 200_000
_MOST_FRAMES = 12
_MOST_SHOWN = 64
_MOST_MEMBERS = 4_096
_EARLY = 0.5
_RECENT = 128
"""Calls of a group that are kept to be compared: ranks that hang are a few calls apart."""
_RANK = re.compile(r"rank[_.-]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?=\D*$)")
_WORDS = (b"collective_seq_id", b"pg_status", b"pg_config", b"nccl_comm_state")
_SAME_SIZE = re.compile(r"all_?reduce|_all_?gather_base|_reduce_scatter_base|broadcast|:reduce$", re.IGNORECASE)
"""Operations whose tensors have the same size on every rank."""
_LIBRARY = re.compile(r"(^|/)torch/")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a collective."""

    seq: int
    op: str
    sizes: tuple[Any, ...]
    dtypes: tuple[str, ...]
    state: str
    p2p: bool
    frames: tuple[str, ...]
    timeout_ms: float | None
    waited_s: float | None
    """From the call to the newest time in the dump."""
    young: bool = False
    """The dump was written long before its time was up."""

    @property
    def site(self) -> str:
        """The innermost frame that is not torch's own."""
        own = (frame for frame in self.frames if not _LIBRARY.search(frame))
        return next(own, self.frames[0] if self.frames else "")

    def said(self) -> dict[str, Any]:
        return {
            "seq": self.seq, "op": self.op, "sizes": [list(size) for size in self.sizes], "dtypes": list(self.dtypes),
            "state": self.state, "frames": list(self.frames), "site": self.site, "timeout_ms": self.timeout_ms,
            "waited_s": self.waited_s,
        }  # fmt: skip

    def brief(self) -> list[Any]:
        """What a ``Brief`` is made of."""
        numel = sum(math.prod(size) for size in self.sizes)
        sizes = " + ".join("×".join(map(str, size)) or "one number" for size in self.sizes)
        text = " ".join(part for part in (self.op, f"of {sizes}" if sizes else "", *self.dtypes[:1]) if part)
        dtype = self.dtypes[0] if self.dtypes and numel else ""
        return [self.seq, self.op, numel, dtype, text, self.state, self.site, self.young]


class Brief(NamedTuple):
    """A call as far as it can be compared with those of others."""

    seq: int
    op: str
    numel: int
    dtype: str
    text: str
    state: str
    site: str
    young: bool = False


@dataclass(slots=True)
class Group:
    """What one rank says about one process group."""

    name: str
    description: str = ""
    members: tuple[int, ...] = ()
    completed: int = -1
    started: int = -1
    enqueued: int = -1
    calls: list[Call] = field(default_factory=list)

    @property
    def shown(self) -> str:
        return f"group {self.name}" + (f" ({self.description})" if self.description else "")

    def open(self) -> list[Call]:
        return [call for call in self.calls if call.state != "completed" and (call.p2p or call.seq > self.completed)]

    def recent(self) -> list[list[Any]]:
        return [call.brief() for call in self.calls if not call.p2p][-_RECENT:]


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank's fact says about one group."""

    shown: str
    name: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    calls: tuple[Brief, ...]

    def open(self) -> list[Brief]:
        return [call for call in self.calls if call.state != "completed" and call.seq > self.completed]


class NcclFlight:
    name = "nccl-flight"
    title = "flight-recorder dumps of torch.distributed (NCCL)"

    def sniff(self, head: Head) -> float:
        pickled = head.start[:1] == b"\x80" and head.start[1:2] in b"\x02\x03\x04\x05"
        if not pickled and not head.start.lstrip().startswith(b"{"):
            return 0.0
        known = sum(word in head.start for word in _WORDS)
        if known >= 2 or (known and b"entries" in head.start):
            return 0.97
        return 0.5 if known else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        rank = rank_of(source)
        for group in groups_of(load(source), _written_ns(source)):
            if group.enqueued >= 0 or group.calls:
                yield _alone(group, rank)

    def joined(self, logs: Sequence[Log]) -> list[Log]:
        """The logs of several ranks; what only all of them together tell stands in the first."""
        ranks: dict[int, list[Told]] = {}
        for place, log in enumerate(logs):
            for fact in log.facts:
                if fact.kind == "collective" and "recent" in fact.fields:
                    ranks.setdefault(place if fact.rank is None else fact.rank, []).append(_told(fact))
        found = list(across(ranks))
        alone = [[fact for fact in log.facts if "recent" in fact.fields] for log in logs]
        return [replace(log, facts=[*([] if place else found), *alone[place]]) for place, log in enumerate(logs)]


# -- reading one dump


def load(source: Source) -> dict[str, Any]:
    """The dump; what is damaged in it is said in ``source.damage``."""
    data, shown = source.whole(_LARGEST), clean(source.path)
    torn = ""
    if data[:1] == b"\x80":
        found, torn = plain_pickle.load(data, shown)
    else:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableInput(f"{shown} is no whole JSON dump: {clean(error, limit=120)}.") from None
    if torn:
        source.damage.append(clean(torn, limit=200))
    if not isinstance(found, dict) or not ({"entries", "pg_status", "pg_config"} & {*found}):
        raise UnreadableInput(
            f"{shown} is no dump of the flight recorder{': ' if torn else ''}{clean(torn, limit=120)}."
        )
    return found


def rank_of(source: Source) -> int | None:
    return None if source.is_pipe else _rank_in(source.name)


def _rank_in(name: str) -> int | None:
    found = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(found[1]) if found else None


def _written_ns(source: Source) -> int | None:
    """When the file was written; a copy may be younger than the dump, and never older."""
    try:
        return None if source.is_pipe else os.stat(source.path).st_mtime_ns
    except OSError:
        return None


def groups_of(dump: Mapping[str, Any], written_ns: int | None = None) -> list[Group]:
    groups: dict[str, Group] = {}
    names: dict[str, str] = {}
    entries: Any = dump.get("entries")
    listed = [entry for entry in entries[-_MOST_ENTRIES:] if isinstance(entry, dict)] if _is_list(entries) else []
    newest = max((_time(entry, key) for entry in listed for key in _TIMES), default=0)
    for entry in listed:
        name, description = _named(entry.get("process_group"))
        names.setdefault(str(entry.get("pg_id")), name)
        group = groups.setdefault(name, Group(name, description))
        call = _call(entry, newest, written_ns)
        group.calls.append(call)
        if not call.p2p:
            group.enqueued = max(group.enqueued, call.seq)
            group.started = max(group.started, call.seq if call.state in ("started", "completed") else -1)
            group.completed = max(group.completed, call.seq if call.state == "completed" else -1)
    for number, status in _items(dump.get("pg_status")):
        group = groups.setdefault(names.get(number, number), Group(names.get(number, number)))
        group.enqueued = max(group.enqueued, _int(status.get("last_enqueued_collective")))
        group.started = max(group.started, _int(status.get("last_started_collective")))
        group.completed = max(group.completed, _int(status.get("last_completed_collective")))
    for name, config in _items(dump.get("pg_config")):
        if name in groups:
            groups[name].members = _members(config.get("ranks"))
            groups[name].description = groups[name].description or clean(config.get("desc", ""), limit=80)
    return list(groups.values())


_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def _call(entry: Mapping[str, Any], newest: int, written_ns: int | None) -> Call:
    p2p = entry.get("is_p2p") is True
    created = _time(entry, "time_created_ns")
    timeout = entry.get("timeout_ms")
    known = float(timeout) if isinstance(timeout, (int, float)) and abs(timeout) < 1e15 else None
    state = "completed" if entry.get("retired") is True else clean(entry.get("state", "?"), limit=20)
    return Call(
        seq=_int(entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))),
        op=clean(entry.get("profiling_name", "?"), limit=80),
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=tuple(clean(one, limit=20) for one in _listed(entry.get("input_dtypes"))),
        state=state,
        p2p=p2p,
        frames=tuple(_frame(frame) for frame in _listed(entry.get("frames")) if isinstance(frame, dict)),
        timeout_ms=known,
        waited_s=(newest - created) / 1e9 if created else None,
        young=_is_young(created, max(newest, written_ns), known) if written_ns is not None else False,
    )


def _is_young(created: int, written: int, timeout_ms: float | None) -> bool:
    """Whether a call that was made at ``created`` had most of its time left."""
    return bool(created and timeout_ms) and (written - created) / 1e6 < _EARLY * (timeout_ms or 0.0)


def _frame(frame: Mapping[str, Any]) -> str:
    place = f"{clean(frame.get('filename', '?'), limit=200)}:{_int(frame.get('line'))}"
    return f"{place} in {clean(frame.get('name', '?'), limit=80)}"


def _named(group: Any) -> tuple[str, str]:
    parts = [clean(part, limit=80) for part in group[:2]] if isinstance(group, (list, tuple)) else [clean(group)]
    return (parts[0], parts[1]) if len(parts) == 2 else ("".join(parts), "")


def _sizes(said: Any) -> tuple[Any, ...]:
    sizes = [size if isinstance(size, (list, tuple)) else [size] for size in _listed(said)]
    return tuple(tuple(_int(length) for length in size[:16]) for size in sizes)


def _members(said: Any) -> tuple[int, ...]:
    if isinstance(said, str):
        return tuple(int(number) for number in re.findall(r"\d{1,7}", said[: 1 << 20]))
    return tuple(_int(rank) for rank in said) if _is_list(said) else ()


def _items(said: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(said, dict):
        return []
    return [(clean(key, limit=80), value) for key, value in list(said.items())[:10_000] if isinstance(value, dict)]


def _listed(said: Any) -> list[Any]:
    return list(said[:_MOST_FRAMES]) if _is_list(said) else []


def _is_list(said: Any) -> bool:
    return isinstance(said, (list, tuple))


def _time(entry: Mapping[str, Any], key: str) -> int:
    return max(_int(entry.get(key)), 0)


def _int(said: Any) -> int:
    """A number of the dump; in JSON some are text."""
    if isinstance(said, str):
        said = int(said) if re.fullmatch(r"-?\d{1,18}", said) else -1
    return said if isinstance(said, int) and abs(said) < 1 << 62 else -1


# -- what it says


def _alone(group: Group, rank: int | None) -> Fact:
    """What one rank knows: what it waits in, or what it did last."""
    who = "this rank" if rank is None else f"rank {rank}"
    waiting = group.open()
    pending = bool(waiting) or group.completed < group.enqueued
    young = bool(waiting) and all(call.young for call in waiting)
    fields: dict[str, Any] = {
        "what": "under-way" if young else "pending" if pending else "complete", "group": group.name,
        "description": group.description,
        "members": list(group.members[:_MOST_MEMBERS]), "enqueued": group.enqueued, "started": group.started,
        "completed": group.completed, "shown": group.shown, "recent": group.recent(),
    }  # fmt: skip
    if waiting:
        first = waiting[0]
        fields |= {"call": first.said(), "open": len(waiting)}
        since = f" since {first.waited_s:.0f} s" if first.waited_s and first.waited_s >= 1 else ""
        doing = "is in" if young else "waits in"
        fields["text"] = f"{who} {doing} {_titled(first.op, first.seq)} of {group.shown}{since}{_at(first)}"
    else:
        done = f"{max(group.completed, 0)} of {max(group.enqueued, group.completed)}"
        fields["text"] = f"{who} has completed {done} collectives of {group.shown}"
        fields |= {"call": group.calls[-1].said()} if group.calls else {}
    return Fact("collective", 1, fields, rank)


def _told(fact: Fact) -> Told:
    fields = fact.fields
    calls = tuple(Brief(*call) for call in fields["recent"])
    members = tuple(fields["members"])
    return Told(fields["shown"], fields["group"], members, fields["enqueued"], fields["completed"], calls)


def across(ranks: Mapping[int, Sequence[Told]]) -> Iterator[Fact]:
    """What the ranks know together."""
    shared: dict[tuple[str, tuple[int, ...]], dict[int, Told]] = {}
    for rank, groups in sorted(ranks.items()):
        for group in groups:
            shared.setdefault((group.name, group.members), {})[rank] = group
    for theirs in shared.values():
        if len(theirs) > 1:
            yield from _mismatch(theirs)
            yield from _stuck(theirs)


def _mismatch(theirs: Mapping[int, Told]) -> Iterator[Fact]:
    """The first call that the ranks of a group do not make alike; what comes after it follows from it."""
    calls: dict[int, dict[int, list[Brief]]] = {}
    for rank, group in theirs.items():
        for call in group.calls:
            calls.setdefault(call.seq, {}).setdefault(rank, []).append(call)
    for seq in sorted(calls):
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for rank, made in calls[seq].items():
            kinds.setdefault(_alike(made), []).append(rank)
        if len(kinds) < 2:
            continue
        first = {ranks[0]: ranks for ranks in kinds.values()}
        words = " but ".join(f"{_ranks(who)} called {_made(calls[seq][rank])}" for rank, who in first.items())
        group = next(iter(theirs.values()))
        shown = list(calls[seq].items())[:_MOST_SHOWN]
        yield Fact("collective", 1, {
            "what": "mismatch", "group": group.name, "seq": seq, "calls": {rank: _made(made) for rank, made in shown},
            "sites": {rank: made[0].site for rank, made in shown},
            "text": f"call {seq} of {group.shown} differs: {words}",
        })  # fmt: skip
        return


def _alike(made: Sequence[Brief]) -> tuple[Any, ...]:
    """What has to be the same on every rank."""
    return tuple((call.op, call.dtype, call.numel if _SAME_SIZE.search(call.op) else None) for call in made)


def _made(calls: Sequence[Brief]) -> str:
    shown = [call.text for call in calls[:3]]
    return ", ".join(shown) + (f" and {len(calls) - 3} more" if len(calls) > 3 else "")


def _stuck(theirs: Mapping[int, Told]) -> Iterator[Fact]:
    """The first call that somebody waits in, and who is not there."""
    waiting = {rank: group.open() for rank, group in theirs.items()}
    if all(call.young for calls in waiting.values() for call in calls):
        return
    seq = min(call.seq for calls in waiting.values() for call in calls)
    there = [rank for rank, group in theirs.items() if group.enqueued >= seq]
    absent = [rank for rank in theirs if rank not in there]
    done = [rank for rank in there if theirs[rank].completed >= seq]
    waits = [rank for rank in there if rank not in done]
    group = theirs[there[0]]
    unheard = sorted({*group.members} - {*theirs})
    call = next(call for rank in there for call in waiting[rank] if call.seq == seq)
    title = f"{_titled(call.op, seq)} of {group.shown}"
    fields: dict[str, Any] = {
        "group": group.name, "seq": seq, "op": call.op, "waiting": waits[:_MOST_SHOWN], "ranks": absent[:_MOST_SHOWN],
        "completed": done[:_MOST_SHOWN], "unheard": unheard[:_MOST_SHOWN], "site": call.site,
        "last": {rank: _last(theirs[rank]) for rank in absent[:_MOST_SHOWN]},
    }  # fmt: skip
    place = f", at {call.site}" if call.site else ""
    if absent:
        text = f"{_ranks(absent)} never started {title}, in which {_ranks(waits)} {_verb(waits, 'wait')}{place}"
        yield Fact("collective", 1, {"what": "timeout", "state": "missing", **fields, "text": text})
        return
    some = f"; {_ranks(done)} completed it" if done else ""
    silent = f"; {_ranks(unheard)} left no dump" if unheard else ""
    text = f"{_ranks(waits)} {_verb(waits, 'hang')} in {title}{place}; every rank that left a dump has started it"
    yield Fact("collective", 1, {"what": "timeout", "state": "stuck", **fields, "text": f"{text}{some}{silent}"})


def _last(group: Told) -> dict[str, Any]:
    call = group.calls[-1] if group.calls else None
    return {"seq": group.enqueued, "op": call.op if call else "", "site": call.site if call else ""}


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb


def _titled(op: str, seq: int) -> str:
    return f"{op} number {seq}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


def _at(call: Call) -> str:
    return f", at {call.site}" if call.site else ""


READER = NcclFlight()
