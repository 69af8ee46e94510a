"""Uses of memory that may still be going on, and who comes too early.

Enters: every use of a range, by a stream or by the host. Leaves: a ``Race`` for a use that conflicts with an earlier
one that it does not come after for certain. Only uses by streams are kept: what the host does is over when it is done.

Memory is told apart by its storage, and a storage that has died takes its uses along. One exception: device memory goes
back to the stream it was allocated on at once, so that what another stream still does with it is kept until that memory
is handed out again. Whoever called ``record_stream`` is safe from that. Pinned memory waits for its copies by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from brickprof.capture.pending import races
from brickprof.capture.pending.clocks import HOST, Clocks
from brickprof.capture.pending.races import Race, Use
from brickprof.capture.pending.regions import Region, shared, within

_MOST_USES = 64
_MOST_ACCUSED = 256
_MOST_FREED = 512
_SWEEP_EVERY = 4096
_FEWEST_ASTRAY = 64
Key = Hashable


@dataclass(slots=True, eq=False, weakref_slot=True)
class Memory:
    """One storage."""

    expired: Callable[[], bool]
    base: int = 0
    size: int = 0
    home: int | None = None
    """The stream it was allocated on, where that was seen."""
    pinned: bool = False
    uses: dict[Hashable, Use] = field(default_factory=dict)
    accused: set[tuple[int, int]] = field(default_factory=set)
    """Agents and launches that were accused already: one mistake is told once, not at every later use."""
    safe: set[int] = field(default_factory=set)
    """Streams that were told to ``record_stream``."""
    prints: list[Any] = field(default_factory=list)
    """What pinned memory held when it was copied (see ``contents``)."""
    inherited: dict[int, Use] = field(default_factory=dict)
    """By launch: uses of what lay here before, by streams that may still be at it."""

    @property
    def strays(self) -> bool:
        return not self.pinned and any(use.agent not in (self.home, HOST) for use in self.uses.values())


class Ledger:
    def __init__(self, clocks: Clocks, found: Callable[[Race], None]) -> None:
        self.clocks = clocks
        self.uses = 0
        self.doubtful = 0
        """Pairs that nothing orders, of which one is a kernel that may do anything to what it was given."""
        self._found = found
        self._memories: dict[Key, Memory] = {}
        self._freed: list[Memory] = []
        self._astray: dict[Key, Memory] = {}
        """Memory of a known home that other streams may still use when it dies; and some that they no longer do."""
        self._most_astray = _FEWEST_ASTRAY

    # -- memory

    def memory(self, key: Key) -> Memory | None:
        return self._memories.get(key)

    def meet(self, key: Key, memory: Memory, *, fresh: bool) -> Memory:
        """A storage is seen for the first time; ``fresh`` if it was made just now."""
        self.release(key)
        self._memories[key] = memory
        if fresh and memory.home is not None and not memory.pinned:
            self._collect()
            self._inherit(memory)
        return memory

    def release(self, key: Key) -> None:
        """A storage has died, or has got other memory."""
        memory = self._memories.pop(key, None)
        self._astray.pop(key, None)
        if memory is not None and memory.home is not None and memory.strays:
            self._freed = [*self._freed[-_MOST_FREED:], memory]

    def forget_freed(self) -> None:
        """Freed memory went back to the driver, which waits for everything first."""
        self._collect()
        self._freed.clear()

    def _collect(self) -> None:
        for key in [key for key, memory in self._astray.items() if memory.expired()]:
            self.release(key)
        if len(self._astray) > self._most_astray:  # as many lookups as there are operations: only what has to be
            self._astray = {key: memory for key, memory in self._astray.items() if self._left(memory)}
            self._most_astray = max(_FEWEST_ASTRAY, 2 * len(self._astray))

    def _inherit(self, memory: Memory) -> None:
        lo, hi = memory.base, memory.base + memory.size
        for old in self._freed:
            if old.home != memory.home or old.base >= hi or old.base + old.size <= lo:
                continue
            for use in self._left(old):
                memory.inherited[use.number] = replace(use, region=use.region.moved(old.base - lo))
            old.uses.clear()
        self._freed = [old for old in self._freed if self._left(old)]

    def _left(self, old: Memory) -> list[Use]:
        """What other streams may still do with memory that was freed."""
        home = old.home
        if home is None:
            return []
        return [
            use for use in old.uses.values()
            if use.agent not in (home, *old.safe) and not self.clocks.known(home, use.agent, use.number)
        ]  # fmt: skip

    def _sweep(self) -> None:
        for key in [key for key, memory in self._memories.items() if memory.expired()]:
            self.release(key)
        self._freed = [old for old in self._freed if self._left(old)]

    # -- uses

    def use(self, key: Key, use: Use) -> None:
        """``use.agent`` touches some of the memory ``key``."""
        self.uses += 1
        if self.uses % _SWEEP_EVERY == 0:
            self._sweep()
        memory = self._memories.get(key)
        if memory is None or use.region.lo == use.region.hi:
            return
        self._judge(memory, use, memory.uses.values(), freed=False)
        if memory.inherited:
            self._judge(memory, use, memory.inherited.values(), freed=True)
        if use.agent != HOST:
            self._keep(key, memory, use)

    def open(self, memory: Memory, region: Region, *, writes: bool) -> list[Use]:
        """Uses of ``region`` by streams that the host does not know to be over."""
        return [
            use for use in memory.uses.values()
            if use.write is writes and not self.clocks.known(HOST, use.agent, use.number)
            and shared(use.region, region)
        ]  # fmt: skip

    def _judge(self, memory: Memory, use: Use, earlier: Iterable[Use], *, freed: bool) -> None:
        for other in list(earlier):
            certain, writes = use.certain and other.certain, use.write or other.write
            if other.agent == use.agent or (certain and not writes):
                continue
            if self.clocks.known(use.agent, other.agent, other.number):
                continue
            if (use.agent, other.number) in memory.accused or not shared(use.region, other.region):
                continue
            if not (writes and use.touched and other.touched and _covered(use, other)):
                self.doubtful += 1
                continue
            if len(memory.accused) >= _MOST_ACCUSED:
                memory.accused.clear()
            memory.accused.add((use.agent, other.number))
            self.accuse(memory, other, use, how="freed" if freed else "")

    def accuse(self, memory: Memory, first: Use, second: Use, how: str = "") -> None:
        instead, site = self.clocks.instead(second.agent, first.agent, first.number)
        cause, plain = _cause(first, second)
        self._found(Race(cause, how or plain, first, second, memory.pinned, instead, site))

    def _keep(self, key: Key, memory: Memory, use: Use) -> None:
        uses = memory.uses
        if use.write and len(uses) > 1:
            known = self.clocks.known
            for place, other in list(uses.items()):
                if within(other.region, use.region) and known(use.agent, other.agent, other.number):
                    del uses[place]
        place = (use.agent, use.write, use.certain, use.touched, use.region)
        uses.pop(place, None)
        uses[place] = use
        if len(uses) > _MOST_USES:
            del uses[next(iter(uses))]
        if not memory.pinned and memory.home not in (None, use.agent):
            self._astray[key] = memory


def _covered(one: Use, other: Use) -> bool:
    """Whether two uses that meet do so whatever part of its region an uncertain one touches."""
    return (one.certain or within(one.region, other.region)) and (other.certain or within(other.region, one.region))


def _cause(first: Use, second: Use) -> tuple[str, str]:
    if second.agent == HOST:
        if second.write:
            return races.BUFFER_REUSE, "write-during-copy"
        return races.MISSING_SYNC, "read-before-copy"
    after = "write" if first.write else "read"
    return races.STREAM_RACE, f"{'write' if second.write else 'read'}-after-{after}"
