"""Views of pinned memory that the host holds as numpy arrays, outside of torch's sight.

Enters: arrays as they are handed out, and copies as they are launched. Leaves: races, as far as they can be known.

Nobody can see an array being read. What can be seen is its life, and the lines that took it (``readings``):

    taken while a copy is under way, and gone before the host waited     told where the lines read it for certain,
    taken so, alive, and the next copy comes without any wait between    a suspicion (``alias-unread``) where nobody
                                                                         knows, nothing where they ask for its shape
    taken so, alive when the host waits                                  a harmless alias, for all that is known
    taken before the copies, alive, and nobody ever waits for one        a suspicion (``alias-kept``), no accusation
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brickprof.capture.pending import readings
from brickprof.capture.pending.clocks import HOST
from brickprof.capture.pending.ledger import Ledger, Memory
from brickprof.capture.pending.races import Use
from brickprof.capture.pending.readings import Reading
from brickprof.capture.pending.regions import shared

_MOST = 32


@dataclass(slots=True, eq=False)
class Alias:
    alive: Callable[[], Any]
    use: Use
    """Where it was taken, as a read by the host."""
    after: int
    """The last launch at that time."""
    early: list[Use]
    """Copies that were under way then."""
    dimensions: int


class Aliases:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of: weakref.WeakKeyDictionary[Memory, list[Alias]] = weakref.WeakKeyDictionary()
        self._dead: list[tuple[Memory, Alias]] = []

    def taken(self, memory: Memory, use: Use, holder: Any, dimensions: int = 1) -> None:
        """The host took a view of ``memory``; ``holder`` lives as long as it, or is None where nobody can tell."""
        early = self._ledger.open(memory, use.region, writes=True)
        alias = Alias(lambda: True, use, self._ledger.clocks.launched, early, dimensions)
        if holder is not None:
            alias.alive = weakref.ref(holder, lambda _: self._died(memory, alias))
        held = self._of.setdefault(memory, [])
        held[:] = [each for each in held if each.alive() is not None][-_MOST:]
        held.append(alias)

    def _died(self, memory: Memory, alias: Alias) -> None:
        # This may come at any moment, in the middle of the ledger's own work: it is only written down.
        known = self._ledger.clocks.known
        alias.early = [copy for copy in alias.early if not known(HOST, copy.agent, copy.number)]
        if alias.early:
            self._dead.append((memory, alias))

    def settle(self) -> None:
        """Judges the arrays that are gone since the last time."""
        while self._dead:
            memory, alias = self._dead.pop(0)
            for copy in alias.early:
                reading = readings.of(alias.use.site, dimensions=alias.dimensions)
                self._judge(memory, copy, alias, "alias-dropped", reading)

    def overwritten(self, memory: Memory, use: Use) -> None:
        """A copy into pinned memory is about to be launched: did anybody wait for the one before?"""
        held = self._of.get(memory)
        if not held:
            return
        for copy in self._ledger.open(memory, use.region, writes=True):
            for alias in held:
                if alias.alive() is None or not shared(alias.use.region, copy.region):
                    continue
                if copy in alias.early:
                    reading = readings.of(alias.use.site, use.site, dimensions=alias.dimensions)
                    self._judge(memory, copy, alias, "alias-overwritten", reading)
                elif copy.number > alias.after:
                    self._ledger.accuse(memory, copy, alias.use, "alias-kept")

    def _judge(self, memory: Memory, copy: Use, alias: Alias, how: str, reading: Reading) -> None:
        if reading is Reading.ASKED or (HOST, copy.number) in memory.accused:
            return
        if reading is Reading.UNKNOWN:
            self._ledger.accuse(memory, copy, alias.use, "alias-unread")
            return
        memory.accused.add((HOST, copy.number))
        self._ledger.accuse(memory, copy, alias.use, how)
