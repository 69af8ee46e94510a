"""What could not be read back: counted, placed, never raised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """The part of one file that is not what was written. False when there is none."""

    where: str
    bytes_lost: int = 0
    records_lost: int | None = 0
    """None when bytes are gone and nothing left tells how many records they held."""
    why: str = ""

    def __bool__(self) -> bool:
        return self.bytes_lost > 0 or self.records_lost != 0

    def __str__(self) -> str:
        if not self:
            return f"{self.where} is whole"
        records = "an unknown number of" if self.records_lost is None else f"{self.records_lost:,}"
        noun = "record" if self.records_lost == 1 else "records"
        reason = f" ({self.why})" if self.why else ""
        return f"{self.where}: {records} {noun} lost in {self.bytes_lost:,} damaged bytes{reason}"
