"""What brickprof costs a training, as a ratio: `make bench`, or `python benchmarks/overhead.py --quick`.

Enters: the cases of train_case.py. Leaves: three tables on stdout, and JSON where asked for. Plain and watched
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
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from results import (
    ASKED_FOR,
    CPU_CASES,
    CUDA_CASES,
    DEEP,
    LEVELS,
    Recorded,
    Replicas,
    Result,
    cost_table,
    coverage_table,
    quiet,
    ratio,
    ratio_table,
    untold,
)
from rich.console import Console
from rich.progress import Progress
from workers import ROOT, Block, Variant, Worker, kept_to

sys.path.insert(0, str(ROOT))  # the table of costs is read with brickprof's own Run

PEERS = {"detect_anomaly": "anomaly", "torch.profiler": "profiler", "block hooks with .item()": "hooks"}
CUDA_PEERS = {"CSAN (torch.cuda._sanitizer)": "streams"}
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
    parser.add_argument(
        "--seconds", type=float, default=CASE_SECONDS,
        help=f"at most a replica, once {FEWEST_ROUNDS} rounds are made; default %(default)s",
    )  # fmt: skip
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
