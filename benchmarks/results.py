"""What the overhead benchmark has found, beside what is promised: ratios with their intervals, and tables of them.

Enters: blocks of steps of plain and watched runs that alternated, and what the watched ones said of themselves. Leaves:
three tables, and in words what the machine was too busy to tell.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field

from rich.table import Table
from workers import Block

DEEP = "deep"
LEVELS = ("light", "standard", DEEP)
CPU_CASES = ("host-bound", "medium")
ASKED_FOR = ("124m-unclipped", "124m-accumulated", "124m-drawn")
"""Only where they are: loops that have less at hand for us."""
CUDA_CASES = ("124m", "124m-compiled", "350m", *ASKED_FOR)
PROMISED = {
    "host-bound": {"standard": 1.03},
    "medium": {"standard": 1.01},
    **{case: {"light": 1.003, "standard": 1.01} for case in CUDA_CASES if case not in ASKED_FOR},
}
"""What each level may cost."""


@dataclass(frozen=True)
class Ratio:
    variant: str
    median: float
    low: float
    high: float
    total: float
    """All its seconds over all the baseline's: rare, dear steps count here and not in the median."""
    cpu: float
    """All its CPU seconds over all the baseline's: a busy machine hardly touches this one."""
    quiet: float
    """Its quick quarter of blocks over the baseline's: noise only ever adds time, so this is where it is least."""
    own: float
    """One, and the part of the baseline's seconds that brickprof says it took: no noise of the machine is in that, nor
    what it cannot see of itself."""


@dataclass(frozen=True)
class Recorded:
    """What a watched run has said of itself when it ended, its first steps included."""

    costs: dict[str, float]
    """Probe -> microseconds a step."""
    steps: int
    judged: int
    """Steps of which it knows whether the gradients were finite."""
    measured: int
    """Those with all statistics of every gradient."""
    looked_out: int
    """Backwards in which a NaN in any block's output would have been seen."""


@dataclass
class Result:
    case: str
    step_ms: float
    steps_per_block: int
    rounds: int
    replicas: int
    baselines: Ratio
    ratios: list[Ratio]
    recorded: dict[str, Recorded] = field(default_factory=dict)
    """By level."""
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    """Variant -> seconds of each block, a list per replica; blocks of the same number lie next to each other."""
    cores: list[int] = field(default_factory=list)
    """Those that all processes were kept to, where they were."""


Replicas = list[list[Block]]
"""Blocks of one variant, a list per replica."""


def middle(replicas: list[list[float]]) -> float:
    """The mean over replicas of each one's median."""
    return statistics.fmean(statistics.median(values) for values in replicas)


def interval(replicas: list[list[float]], *, draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of ``middle``: replicas are drawn, and blocks within each."""
    draw = random.Random(0)
    means = sorted(
        middle([draw.choices(values, k=len(values)) for values in draw.choices(replicas, k=len(replicas))])
        for _ in range(draws)
    )
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def ratio(name: str, ours: Replicas, baseline: Replicas, quiet: float) -> Ratio:
    pairs = [
        [block.wall / plain.wall for block, plain in zip(blocks, plains, strict=True)]
        for blocks, plains in zip(ours, baseline, strict=True)
    ]
    low, high = interval(pairs)
    wall = sum(block.wall for blocks in ours for block in blocks) / sum(b.wall for bs in baseline for b in bs)
    cpu = sum(block.cpu for blocks in ours for block in blocks) / sum(b.cpu for bs in baseline for b in bs)
    own = 1 + sum(block.own for blocks in ours for block in blocks) / sum(b.wall for bs in baseline for b in bs)
    return Ratio(name, middle(pairs), low, high, wall, cpu, quiet, own)


def quiet(ours: Replicas, *plain: Replicas) -> float:
    """The quick quarter of our blocks over that of each plain run, a ratio for each replica."""
    return statistics.fmean(
        quarter(blocks) / statistics.fmean(quarter(each[replica]) for each in plain)
        for replica, blocks in enumerate(ours)
    )


def quarter(blocks: list[Block]) -> float:
    """The time that a quarter of the blocks stay below."""
    if len(blocks) == 1:
        return blocks[0].wall
    return statistics.quantiles([block.wall for block in blocks], n=4)[0]


def noise(result: Result) -> float:
    """By how much two plain runs may differ beside each other."""
    return max(result.baselines.high - 1, 1 - result.baselines.low)


def verdict(result: Result, found: float, promise: float) -> str:
    """Whether a promise is kept; nobody can tell where two plain runs differ by more than it allows, and by more than
    it is kept or missed by."""
    if noise(result) > max(promise - 1, abs(found - promise)):
        return "~"
    return "✓" if found <= promise else "✗"


def untold(results: list[Result]) -> list[str]:
    """In words, what could not be told."""
    lines = []
    for result in results:
        promised = PROMISED.get(result.case, {})
        rows = [row for row in result.ratios if row.variant in promised]
        if any(verdict(result, row.median, promised[row.variant]) == "~" for row in rows):
            lines.append(
                f"~ {result.case}: two plain runs differ by up to {noise(result):.1%} beside each other, more than what"
                " is promised: a quieter machine can tell, or more --seconds and --replicas"
            )
    return lines


def ratio_table(results: list[Result]) -> Table:
    table = Table(title="Time of a step against the plain run", title_justify="left")
    for heading in ("case", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ms a step", "ratio", "95 %", "quiet", "all seconds", "all CPU", "own account", "promised"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        for row in (result.baselines, *result.ratios):
            promise = PROMISED.get(result.case, {}).get(row.variant)
            mark = "" if promise is None else f"{promise:g} {verdict(result, row.median, promise)}"
            milliseconds = result.step_ms * (row.median if row is not result.baselines else 1)
            table.add_row(
                result.case, row.variant, f"{milliseconds:.2f}", f"{row.median:.3f}",
                f"{row.low:.3f}-{row.high:.3f}", f"{row.quiet:.3f}", f"{row.total:.3f}", f"{row.cpu:.3f}",
                f"{row.own:.4f}" if row.own > 1 else "", mark,
            )  # fmt: skip
        table.add_section()
    return table


def coverage_table(results: list[Result]) -> Table:
    title = "What was looked at: steps whose gradients were judged, or have all statistics; backwards with all blocks"
    table = Table(title=title, title_justify="left")
    for heading in ("case", "level"):
        table.add_column(heading)
    for heading in ("steps", "judged", "all statistics", "blocks"):
        table.add_column(heading, justify="right")
    for result in results:
        for level, run in result.recorded.items():
            counts = (run.steps, run.judged, run.measured, run.looked_out)
            table.add_row(result.case, level, *(f"{count:,}" for count in counts))
    return table


def cost_table(results: list[Result]) -> Table:
    table = Table(title="What each probe costs, microseconds a step", title_justify="left")
    table.add_column("case")
    table.add_column("probe")
    levels = [level for level in LEVELS if any(level in result.recorded for result in results)]
    for level in levels:
        table.add_column(level, justify="right")
    for result in results:
        costs = {level: result.recorded[level].costs for level in levels if level in result.recorded}
        everyone = {probe for each in costs.values() for probe in each}
        last = next((costs[level] for level in reversed(levels) if level in costs), {})
        for probe in sorted(everyone, key=lambda name: (-last.get(name, 0.0), name)):
            cells = (costs.get(level, {}).get(probe) for level in levels)
            table.add_row(result.case, probe, *("-" if cell is None else f"{cell:.1f}" for cell in cells))
        table.add_section()
    return table
