"""What brickprof costs a training, as a ratio: `make bench`, or `python benchmarks/overhead.py --quick`.

Enters: the cases of train_case.py. Leaves: two tables on stdout, and JSON where asked for. Plain and watched
runs alternate in short blocks (A B C A', then A' C B A), so each ratio compares moments that lie next to each
other; the two equal baselines A and A' tell how far a ratio is to be trusted. Two processes of the very same
program differ by a per cent for as long as they live (where their memory happens to lie; on a rented machine by ten,
by the cores they happen to be on, so on CUDA all share the same four), so `--replicas` starts all of them anew, and
the interval is drawn over replicas as well as over blocks.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from workers import ROOT, Block, Variant, Worker, kept_to

sys.path.insert(0, str(ROOT))  # the table of costs is read with brickprof's own Run

DEEP = "deep"
LEVELS = ("light", "standard", DEEP)
PEERS = {"detect_anomaly": "anomaly", "torch.profiler": "profiler", "block hooks with .item()": "hooks"}
CUDA_PEERS = {"CSAN (torch.cuda._sanitizer)": "streams"}
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
BLOCK_SECONDS = 0.3
CUDA_BLOCK_SECONDS = 2.0
"""About as long as what brickprof does once in a while there: it works off 0.8 s of steps together, at level light up
to 3 s, and a pause of the others' blocks ends that early, which no training on its own has."""
DEAR_BLOCK_SECONDS, DEAR_WARM_UP_SECONDS = 0.2, 5.0
"""Of level deep, and of the peers on CUDA: what is done in every step, and takes many times as long, shows in a few."""
CUDA_CORES = 4
"""Room for the thread that trains, autograd's, the driver's and the one that writes."""
WARM_UP_STEPS = 280
"""The looks that only a young run gets are over by then."""
WARM_UP_SECONDS = 60.0
CASE_SECONDS = 150
FEWEST_ROUNDS = 12


ending = threading.Event()
ended_at: list[float] = []
"""Somebody wants the benchmark to end, and since when."""
AT_ONCE_SECONDS = 1.0
"""Whoever ends it may tell the process, and all of its group: that is one wish."""


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


@dataclass(frozen=True)
class Length:
    rounds: int
    seconds: float
    warm_up: float
    replicas: int = 1
    block: float | None = None
    """Seconds of a block, if not what is usual for the case."""


def warm_up(worker: Worker, most: float) -> None:
    """Past what brickprof looks at more closely; a slow case gets a bounded time for it."""
    done, seconds = 0, 0.0
    while done < WARM_UP_STEPS and seconds < most and not ending.is_set():
        seconds += worker.run(5).wall
        done += 5


def measure(
    case: str, variants: list[Variant], length: Length, folder: Path, progress: Progress, tell: Callable[[Result], None]
) -> Result:
    """Interleaves ``variants`` between two plain baselines, in fresh processes for every replica; ``tell`` is told
    what is known after each."""
    taken: list[Replicas] = [[] for _ in range(len(variants) + 2)]
    steps, recorded = 0, {}
    for number in range(length.replicas):
        blocks, steps, recorded = replica(case, variants, length, folder / str(number), steps, progress)
        for i, of_worker in enumerate(blocks):
            taken[i].append(of_worker)
        result = result_of(case, variants, steps, recorded, taken)
        tell(result)
        if ending.is_set():
            break
    return result


def result_of(
    case: str, variants: list[Variant], steps: int, recorded: dict[str, Recorded], taken: list[Replicas]
) -> Result:
    first, *watched, second = taken
    baseline = [
        [Block((a.wall + b.wall) / 2, (a.cpu + b.cpu) / 2) for a, b in zip(one, other, strict=True)]
        for one, other in zip(first, second, strict=True)
    ]
    return Result(
        case, 1e3 * statistics.median(block.wall for blocks in baseline for block in blocks) / steps,
        steps, min(len(blocks) for blocks in first), len(first),
        ratio("plain, again", second, first, quiet(second, first)),
        [ratio(v.name, ours, baseline, quiet(ours, first, second)) for v, ours in zip(variants, watched, strict=True)],
        recorded,
        {
            name: [[block.wall for block in blocks] for blocks in replicas]
            for name, replicas in zip(["plain", *(v.name for v in variants), "plain, again"], taken, strict=True)
        },
    )  # fmt: skip


def replica(
    case: str, variants: list[Variant], length: Length, folder: Path, steps: int, progress: Progress
) -> tuple[list[list[Block]], int, dict[str, Recorded]]:
    """The blocks of each worker, steps a block (``steps`` when not 0) and what the watched ones said of themselves."""
    task = progress.add_task(f"{case}: starting", total=length.rounds)
    workers: list[Worker] = []
    try:
        for i, variant in enumerate([Variant("plain"), *variants, Variant("plain again")]):
            workers.append(Worker(variant, case, folder / str(i)))
        for worker in workers:
            worker.ready()
        for worker in workers:
            progress.update(task, description=f"{case}: warming up {worker.variant.name}")
            warm_up(worker, length.warm_up)
        block = length.block or (CUDA_BLOCK_SECONDS if case in CUDA_CASES else BLOCK_SECONDS)
        steps = steps or max(1, min(200, round(block * 5 / workers[0].run(5).wall)))
        one_round = 0.0 if ending.is_set() else sum(worker.run(steps).wall for worker in workers)
        rounds = min(length.rounds, max(FEWEST_ROUNDS, round(length.seconds / one_round))) if one_round else 1
        progress.update(task, total=rounds, description=f"{case}: {steps} steps a block")
        blocks = alternate(workers, steps, rounds, lambda: progress.update(task, advance=1))
    finally:
        for worker in workers:
            worker.close()
        progress.remove_task(task)
    told = {worker.variant.level: recorded_in(worker.out) for worker in workers if worker.variant.level}
    return blocks, steps, {level: found for level, found in told.items() if found is not None}


def alternate(workers: list[Worker], steps: int, rounds: int, tick: Callable[[], None]) -> list[list[Block]]:
    """What each block took, a list per worker; every second round goes backwards."""
    blocks: list[list[Block]] = [[] for _ in workers]
    for number in range(rounds):
        order = range(len(workers)) if number % 2 == 0 else reversed(range(len(workers)))
        for i in order:
            blocks[i].append(workers[i].run(steps))
        tick()
        if ending.is_set():
            break
    return blocks


def recorded_in(out: Path) -> Recorded | None:
    """Of the one run in ``out``."""
    from brickprof.run import Run

    folders = list(out.iterdir()) if out.is_dir() else []
    if len(folders) != 1:
        return None
    events = Run.open(folders[0]).events
    last = events[events.kind == "exit"].fields.iloc[-1]
    costs = {probe: ns / 1e3 / max(last["steps"], 1) for probe, ns in last["costs"].items()}
    return Recorded(costs, *(last[name] for name in ("steps", "judged", "measured", "looked_out")))


def groups(args: argparse.Namespace, case: str) -> list[list[Variant]]:
    """Levels together, level deep and the peers apart: a GPU does not hold them all at once, and a block that is long
    enough for the others takes those a minute."""
    levels = [Variant(level, level=level) for level in args.levels if level != DEEP]
    deep = [Variant(level, level=level) for level in args.levels if level == DEEP]
    known = PEERS | (CUDA_PEERS if case in CUDA_CASES else {})
    peers = [Variant(name, peer=peer) for name, peer in known.items()]
    with_peers = case in CUDA_CASES if args.peers is None else args.peers
    return [group for group in (levels, deep, peers if with_peers else []) if group] or [[]]


def for_group(length: Length, case: str, variants: list[Variant]) -> Length:
    """Short blocks for what is dear, unless somebody has said how long they are."""
    dear = case in CUDA_CASES and not any(variant.level and variant.level != DEEP for variant in variants)
    if not (variants and dear) or length.block is not None:
        return length
    return replace(length, block=DEAR_BLOCK_SECONDS, warm_up=min(length.warm_up, DEAR_WARM_UP_SECONDS))


def machine() -> dict[str, str]:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "device": device or platform.machine(),
    }


def default_cases() -> tuple[str, ...]:
    import torch

    return CPU_CASES + tuple(each for each in CUDA_CASES if torch.cuda.is_available() and each not in ASKED_FOR)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the host-bound case, a few rounds")
    parser.add_argument("--case", action="append", choices=CPU_CASES + CUDA_CASES, help="again for more")
    parser.add_argument(
        "--levels", default=LEVELS, type=lambda text: tuple(text.split(",")), metavar="LEVEL,...",
        help=f"of {', '.join(LEVELS)}; default all. '' and --no-peers: two plain runs, how quiet the machine is",
    )  # fmt: skip
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction,
        help="detect_anomaly, torch.profiler, block hooks, on CUDA CSAN too; by default on CUDA only",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="at most; default 60, 10 with --quick")
    parser.add_argument("--seconds", type=float, default=CASE_SECONDS, help="at most a replica; default %(default)s")
    parser.add_argument("--replicas", type=int, default=1, help="how often all is started anew; default %(default)s")
    parser.add_argument(
        "--block", type=float, metavar="SECONDS",
        help=f"how long a block of steps lasts; default {BLOCK_SECONDS}, on CUDA {CUDA_BLOCK_SECONDS}",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up", type=float, default=WARM_UP_SECONDS, metavar="SECONDS",
        help=f"a worker's first {WARM_UP_STEPS} steps are not counted, if they fit; default %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--cores", type=int, metavar="N",
        help=f"keep all processes to the same N cores; default all of them, on CUDA {CUDA_CORES}; 0: all",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, the seconds of each block too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was recorded in this folder")
    args = parser.parse_args()
    if unknown := set(args.levels) - {*LEVELS, ""}:
        parser.error(f"unknown level {', '.join(sorted(unknown))}; levels: {', '.join(LEVELS)}")
    args.levels = tuple(filter(None, args.levels))

    signal.signal(signal.SIGTERM, end)
    rounds, replicas = args.rounds or (10 if args.quick else 60), max(1, args.replicas)
    length = Length(rounds, args.seconds, args.warm_up, replicas, args.block)
    cases = args.case or (("host-bound",) if args.quick else default_cases())
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        for case in cases:
            for number, variants in enumerate(groups(args, case)):
                if ending.is_set():
                    break
                folder = Path(args.keep or scratch) / f"{case}{number}"

                cores = args.cores if args.cores is not None else CUDA_CORES if case in CUDA_CASES else 0
                with kept_to(cores) as kept:

                    def tell(so_far: Result, kept: list[int] = kept) -> None:
                        rows = (so_far.baselines, *so_far.ratios)
                        said = ", ".join(f"{row.variant} {row.median:.3f}" for row in rows)
                        progress.console.print(f"{so_far.case}, {so_far.replicas} of {length.replicas}: {said}")
                        so_far.cores = kept
                        save(args.json, [*results, so_far])

                    results.append(measure(case, variants, for_group(length, case, variants), folder, progress, tell))

    console = Console(width=max(Console().width, 130))
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    console.print(ratio_table(results))
    for line in untold(results):
        console.print(line)
    if any(result.recorded for result in results):
        console.print(coverage_table(results))
        console.print(cost_table(results))
    save(args.json, results)


def end(*_: object) -> None:
    """The round that is under way is the last; what is known so far is told. Asked twice, it ends at once."""
    if ending.is_set() and time.monotonic() - ended_at[0] > AT_ONCE_SECONDS:
        raise KeyboardInterrupt
    if not ending.is_set():
        ended_at.append(time.monotonic())
    ending.set()


def save(path: Path | None, results: list[Result]) -> None:
    """What is known so far: a benchmark that somebody ends early was not for nothing."""
    if path is not None:
        document = {"machine": machine(), "results": [asdict(result) for result in results]}
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(json.dumps(document, indent=2) + "\n")
        beside.replace(path)


if __name__ == "__main__":
    main()
