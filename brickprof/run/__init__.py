"""A run, for reading: a folder or records in, tables and records out.

Enters: the folder of a journal (whole, damaged or still growing), or records made by hand. Leaves: one
``Run``, which is all that rules, diagnosis and reports ever see; they cannot tell where it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof import plugins
from brickprof.journal import PROCESS, PROCESS_RANK, Damage, rank_folders, read_meta
from brickprof.records import Event, Record, RunMeta
from brickprof.run import evidence, saving, tables
from brickprof.run.parts import Part, of_folder, of_records, time_of
from brickprof.run.places import locate
from brickprof.run.state import State
from brickprof.run.state import state as state_of
from brickprof.text import clean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run"]

_AT_ONCE = 2
"""Files that are read at a time before anybody asks for them."""


class Run:
    """One training run. Tables are built when they are first asked for, and kept."""

    def __init__(self, meta: RunMeta, parts: dict[int, Part], path: Path | None = None) -> None:
        self.meta = meta
        self.path = path
        self._parts = parts
        self._meta_damage = Damage("meta.json")
        self.files: State = {}
        """The files of its folder as they stood before anything was read of them."""

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a folder, alone in a folder, or whose name ends in ``path``."""
        folder = locate(path)
        files = state_of(folder)
        meta, damage = read_meta(folder)
        parts = {rank: of_folder(rank, home) for rank, home in rank_folders(folder).items()}
        if (folder / PROCESS).exists():
            parts[PROCESS_RANK] = of_folder(PROCESS_RANK, folder)
        run = cls(meta, dict(sorted(parts.items())), folder)
        run._meta_damage = damage
        run.files = files
        return run

    @classmethod
    def from_records(cls, records: Iterable[Record], meta: RunMeta | None = None) -> Run:
        """A run made by hand, for tests and for logs of other tools."""
        return cls(meta or RunMeta(run_id="records", source="records"), of_records(records))

    @classmethod
    def from_log(cls, path: str | Path | Iterable[str | Path], *, format: str = "", pattern: str = "") -> Run:
        """The run that a log of another tool tells of; several files are one run: its ranks, its restarts."""
        from brickprof import logs
        from brickprof.logs.reading.to_run import to_run
        from brickprof.logs.reading.together import together

        paths = [path] if isinstance(path, str | Path) else list(path)
        reader = logs.choose(format, pattern)
        return to_run(together([logs.read(each, reader) for each in paths]))

    @cached_property
    def spans(self) -> pd.DataFrame:
        """The time each brick took: step, phase, brick, host_ns, device_ns, ..."""
        return tables.frame([tables.spans_table(part, qualified=self.qualified) for part in self._ranks_or_none])

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The statistics of each tensor looked at: step, role, brick, tensor, absmax, l2, ..."""
        return tables.frame([tables.samples_table(part, qualified=self.qualified) for part in self._ranks_or_none])

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every event, the launch's own (rank -1) among them; ``fields`` is a dict."""
        return tables.events_frame(self._parts.values())

    @cached_property
    def loss(self) -> pd.DataFrame:
        """The loss of every step and micro-batch: step, micro, value, scale, rank, time, ..."""
        return tables.loss_frame(self._parts.values())

    @cached_property
    def lr(self) -> pd.DataFrame:
        """The learning rate of every update: step, optimizer, group, value, rank, time."""
        return tables.lr_frame(self._parts.values())

    @cached_property
    def grads(self) -> pd.DataFrame:
        """The samples of gradients as the optimizer saw them."""
        return self.samples[self.samples["role"] == "grad"].reset_index(drop=True)

    @cached_property
    def bricks(self) -> pd.DataFrame:
        """Every brick by its number and name."""
        return tables.bricks_frame(self._parts.values(), qualified=self.qualified)

    @cached_property
    def tensors(self) -> pd.DataFrame:
        """Every parameter: name, model, brick, shape, dtype, device, trainable, alias_of."""
        return tables.tensors_frame(self._parts.values(), qualified=self.qualified)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row for each rank that trained."""
        return tables.ranks_frame(self._parts.values())

    @cached_property
    def damage(self) -> list[Damage]:
        """What of the files could not be read; empty when everything could."""
        found = [damage for part in self._parts.values() for damage in part.damage]
        return [self._meta_damage, *found] if self._meta_damage else found

    @cached_property
    def steps(self) -> int:
        """The number of steps, of the rank that went furthest."""
        return max((tables.steps_of(part.events) for part in self._parts.values()), default=0)

    @cached_property
    def costs(self) -> dict[str, float]:
        """What each probe cost, as a share of the time the run took; the dearest first."""
        shares: dict[str, float] = {}
        exits = [(part, event) for part in self._parts.values() for event in part.events if event.kind == "exit"]
        for part, event in exits:
            lasted = max(1, event.time_ns - min(first.time_ns for first in part.events))
            for probe, spent in (event.fields.get("costs") or {}).items():
                shares[probe] = shares.get(probe, 0.0) + spent / lasted / len(exits)
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @cached_property
    def overhead(self) -> float | None:
        """Capture's own share of the step time, as it measured it; None when it did not say."""
        for kind in ("exit", "cadence"):
            last = {event.rank: event.fields.get("overhead") for event in self._all_events() if event.kind == kind}
            known = [float(value) for value in last.values() if isinstance(value, int | float)]
            if known:
                return sum(known) / len(known)
        return None

    @property
    def parts(self) -> list[Part]:
        """What each rank wrote, the launch (rank -1) first: for those who read columns rather than records."""
        return list(self._parts.values())

    def read_ahead(self) -> None:
        """Begins to read what takes longest, beside whatever else is done."""
        begun = 0
        for part in self._parts.values():
            begun += part.read_ahead() if begun < _AT_ONCE else 0

    @property
    def on_its_way(self) -> bool:
        """Whether something of it is being read beside whatever else is done."""
        return any(part.on_its_way for part in self._parts.values())

    def records(self, rank: int | None = None, *, thinned: bool = False, telling: bool = False) -> Iterator[Record]:
        """Events, samples and spans, ordered by time.

        ``thinned`` leaves out samples of uneventful steps where there are very many; those of the first and last
        steps, and of steps around anything that is not finite, are always there. ``telling`` leaves out of these the
        ones that only say again that a tensor is finite (see ``brickprof.run.thinning``).
        """
        parts = [part for part in self._parts.values() if rank is None or part.rank == rank]
        streams = [part.records(qualified=self.qualified, thinned=thinned, telling=telling) for part in parts]
        return streams[0] if len(streams) == 1 else merge(*streams, key=time_of)

    def checksums(self) -> dict[str, tuple[int, int]]:
        """Size and CRC-32 of those files of its folder that are known already."""
        return {name: known for part in self._parts.values() for name, known in part.checksums().items()}

    def find(self, identity: str) -> list[Record]:
        """The records that an evidence id names (see ``brickprof.run.evidence``)."""
        return evidence.find(self._parts.values(), identity, qualified=self.qualified)

    def save(self, folder: str | Path) -> Path:
        """Writes the run as a journal that ``Run.open`` reads."""
        saving.save(self._parts.values(), self.meta, Path(folder))
        return Path(folder)

    def to_parquet(self, folder: str | Path) -> Path:
        """Writes spans, samples and events as Parquet, partitioned by ``rank=``."""
        saving.to_parquet(self._parts.values(), Path(folder), qualified=self.qualified)
        return Path(folder)

    @cached_property
    def qualified(self) -> bool:
        """Whether names carry their model: the run has more than one."""
        return len(set().union(*(part.names.models for part in self._parts.values()))) > 1

    def _all_events(self) -> Iterator[Event]:
        return (event for part in self._parts.values() for event in part.events)

    @property
    def _ranks_or_none(self) -> list[Part]:
        return list(self._parts.values()) or list(of_records([Event("note", 0)]).values())

    # How it looks in a notebook is said where reports stand, to the right of this module: asked for by name.
    @property
    def plot(self) -> Any:
        """Figures (plotly): ``run.plot.loss()``, ``.gradients()``, ``.updates()``, ``.timeline()``, ``.ranks()``."""
        return plugins.load("brickprof.notebook", "plots").Plots(self)

    def _repr_html_(self) -> str:
        html: str = plugins.load("brickprof.notebook", "cards").run(self)
        return html

    def __repr__(self) -> str:
        ranks = sum(rank >= 0 for rank in self._parts)
        return f"<Run {clean(self.meta.run_id)}: {_count(self.steps, 'step')}, {_count(ranks, 'rank')}>"


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}{'s' * (number != 1)}"
