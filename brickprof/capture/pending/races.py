"""What was found: each pair of lines once, with a count.

Enters: two uses of the same bytes that nothing orders. Leaves: plain fields for a ``race`` event, when a pair is first
seen and whenever its count has doubled, so that a run that dies has told what it knew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brickprof.capture.pending.regions import Region

Tell = Callable[[dict[str, Any]], None]
_MOST_PAIRS = 256

SUSPICIONS = frozenset({"alias-kept", "alias-unread"})
"""What is worth knowing and accuses nobody."""
MISSING_SYNC, BUFFER_REUSE, STREAM_RACE = "missing-sync", "host-buffer-reuse", "stream-race"


@dataclass(frozen=True, slots=True)
class Use:
    """One side: who touched the bytes, with what, where in the script."""

    agent: int
    op: str
    write: bool
    region: Region
    site: Any
    number: int = 0
    """Of a launch; the host's own uses have none."""
    certain: bool = True
    """Whether all of the region is touched; of a tensor that a kernel was given, some of it is, nobody knows which."""
    touched: bool = True
    """Whether any of it is for certain: a kernel may leave alone what it was given."""


@dataclass(frozen=True, slots=True)
class Race:
    cause: str
    how: str
    """read-before-copy | write-during-copy | alias-dropped | alias-overwritten | alias-kept | alias-unread | freed |
    write-unseen | read-after-write | write-after-read | write-after-write"""
    first: Use
    second: Use
    pinned: bool
    instead: str = "nothing"
    instead_site: Any = None


class Races:
    """Counts pairs, and tells of them."""

    def __init__(self, tell: Tell, describe: Callable[[Any], list[str]], name: Callable[[int], str]) -> None:
        self._tell = tell
        self._describe = describe
        self._name = name
        self._counts: dict[tuple[Any, ...], int] = {}
        self._fields: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._told: dict[tuple[Any, ...], int] = {}
        self.dropped = 0

    def add(self, race: Race) -> None:
        key = (race.cause, race.how in SUSPICIONS, _line(race.first.site), _line(race.second.site))
        count = self._counts.get(key, 0) + 1
        if count == 1:
            if len(self._counts) >= _MOST_PAIRS:
                self.dropped += 1
                return
            self._fields[key] = self._described(race, len(self._counts))
        self._counts[key] = count
        if count & (count - 1) == 0:
            self._say(key)

    def finish(self) -> None:
        """The last counts, of pairs whose last told one is out of date."""
        for key, count in self._counts.items():
            if count != self._told.get(key):
                self._say(key)

    def __len__(self) -> int:
        return len(self._counts)

    def _say(self, key: tuple[Any, ...]) -> None:
        self._told[key] = self._counts[key]
        self._tell(self._fields[key] | {"count": self._counts[key]})

    def _described(self, race: Race, pair: int) -> dict[str, Any]:
        region = race.second.region if race.how != "freed" else race.first.region
        instead = self._describe(race.instead_site)
        return {
            "pair": pair, "cause": race.cause, "how": race.how,
            "memory": "pinned" if race.pinned else "device",
            "first": self._side(race.first), "second": self._side(race.second),
            "bytes": region.nbytes, "shape": list(region.shape), "itemsize": region.itemsize,
            "instead": race.instead, "instead_site": instead[0] if instead else "",
        }  # fmt: skip

    def _side(self, use: Use) -> dict[str, Any]:
        stack = self._describe(use.site)
        return {
            "site": stack[0].partition(" ")[0] if stack else "", "stack": stack, "stream": self._name(use.agent),
            "op": use.op, "writes": use.write,
        }  # fmt: skip


def _line(site: Any) -> Any:
    return site[0] if isinstance(site, tuple) and site else site
