"""Our kernels beside everyone else's, on the GPU it runs on: `python benchmarks/kernels.py --markdown docs/kernels.md`.

Enters: nothing. Leaves: a table on stdout, and markdown or JSON where asked for. All contenders of a row take turns in
one process: each is captured in a CUDA graph and replayed with the L2 cache flushed before it; medians are compared.
Peers that are not installed are left out. cuBLASLt without split-K needs its environment before CUDA starts, so a child
process times it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from races import GROUPS, OURS, ROWS, SHAPES, Contender, host_microseconds, median, normal  # noqa: E402

NO_SPLIT = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


@dataclass
class Outcome:
    operation: str
    problem: str
    us: dict[str, float]
    against: str
    target: float
    most_us: float
    flops: float
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times as quick as whom the target is about."""
        times = [self.us[name] for name in self.against.split("|") if name in self.us]
        return min(times) / self.us[OURS] if times and OURS in self.us else math.nan

    @property
    def met(self) -> bool | None:
        if OURS not in self.us:
            return False
        if self.most_us:
            return self.us[OURS] <= self.most_us
        return self.ratio >= self.target if self.target else None


class Track:
    """One stream, one flush buffer, and the timing of contenders in turns."""

    def __init__(self, repetitions: int) -> None:
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.repetitions = repetitions
        self.flush = torch.empty(256 * 2**20 // 4, dtype=torch.int32, device="cuda")

    def race(self, contenders: dict[str, Contender]) -> tuple[dict[str, float], dict[str, str]]:
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        failed: dict[str, str] = {}
        for name, run in contenders.items():
            try:
                graphs[name] = self._captured(run)
            except Exception as error:  # somebody else's kernel, of any quality
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
        for _ in range(self.repetitions):
            for name, graph in graphs.items():
                self.flush.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                marks[name].append((begin, end))
        torch.cuda.synchronize()
        return {name: median([a.elapsed_time(b) * 1e3 for a, b in each]) for name, each in marks.items()}, failed

    def _captured(self, run: Contender) -> torch.cuda.CUDAGraph:
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            run()
        graph.replay()
        torch.cuda.synchronize()
        return graph


def without_split() -> dict[str, float]:
    """Microseconds of cuBLASLt held to no split-K, by problem; from a child process."""
    command = [sys.executable, __file__, "--only-cublas"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | NO_SPLIT, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def only_cublas(track: Track) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    times = {}
    for k, n in SHAPES:
        for m in ROWS:
            x, w = normal(m, k), normal(n, k) / k**0.5
            us, _ = track.race({"held": lambda x=x, w=w: x @ w.T})
            times[f"M {m} K {k} N {n}"] = us["held"]
    print(json.dumps(times))


def run(chosen: list[str], track: Track) -> list[Outcome]:
    outcomes = []
    for name in chosen:
        for race in GROUPS[name]():
            us, failed = track.race(race.contenders)
            outcomes.append(
                Outcome(race.operation, race.problem, us, race.against, race.target, race.most_us, race.flops, failed)
            )
            print(line(outcomes[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    return outcomes


def line(outcome: Outcome) -> str:
    return f"{outcome.operation:24} {outcome.problem:32} " + "  ".join(
        f"{name} {us:.1f}" for name, us in outcome.us.items()
    ) + "".join(f"  {name}: {why}" for name, why in outcome.failed.items())  # fmt: skip


def geometric(outcomes: list[Outcome], keep: Callable[[int], bool]) -> float:
    products = [each for each in outcomes if each.operation == "gemm forward"]
    ratios = [each.ratio for each in products if keep(int(each.problem.split()[1]))]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def markdown(outcomes: list[Outcome], held: dict[str, float], host: float) -> str:
    device, free = torch.cuda.get_device_name(), torch.version
    import triton

    lines = [
        "# What our kernels reach", "",
        "Made by `python benchmarks/kernels.py --markdown docs/kernels.md`; not edited by hand.", "",
        f"{device} · torch {torch.__version__} · CUDA {free.cuda} · triton {triton.__version__}. bf16 unless said "
        "otherwise. All contenders of a row in turns, in one process: CUDA graphs, L2 flushed, medians, microseconds. "
        "*Times as quick* is the peer's time over ours.", "",
        "| operation | problem | ours | peers | times as quick | wanted | |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for each in outcomes:
        peers = [f"{name} {us:.1f}" for name, us in each.us.items() if name != OURS]
        if each.problem in held and each.operation == "gemm forward":
            peers.append(f"cuBLASLt, no split-K {held[each.problem]:.1f}")
        peers += [f"{name}: did not run" for name in each.failed if name != OURS]
        speed = f" ({each.flops / each.us[OURS] / 1e6:.0f} TFLOP/s)" if each.flops and OURS in each.us else ""
        wanted = f"≤ {each.most_us:.0f} µs" if each.most_us else f"≥ {each.target:g}" if each.target else ""
        mark = {True: "✓", False: "✗", None: ""}[each.met]
        ours = f"{each.us[OURS]:.1f}" if OURS in each.us else "failed"
        lines.append(
            f"| {each.operation} | {each.problem} | {ours}{speed} | {', '.join(peers)} | "
            f"{each.ratio:.3f} ({each.against.replace('|', ' or ')}) | {wanted} | {mark} |"
        )
    large, small = geometric(outcomes, lambda m: m >= 1024), geometric(outcomes, lambda m: m <= 128)
    lines += [
        "", "| together | measured | wanted | |", "|---|---|---|---|",
        f"| gemm forward, M ≥ 1024, geometric mean | {large:.3f} | ≥ 0.97 | {'✓' if large >= 0.97 else '✗'} |",
        f"| gemm forward, M ≤ 128, geometric mean | {small:.3f} | ≥ 0.95 | {'✓' if small >= 0.95 else '✗'} |",
        f"| gradient statistics, host time a call | {host:.0f} µs | ≤ 60 µs | {'✓' if host <= 60 else '✗'} |", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="again for more; default all")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only-cublas", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py needs a CUDA device; none was found. On a CPU, `make test` checks the kernels.")
    track = Track(args.repetitions)
    if args.only_cublas:
        only_cublas(track)
        return
    outcomes = run(args.only or list(GROUPS), track)
    held = without_split() if not args.only or "gemm" in args.only else {}
    text = markdown(outcomes, held, host_microseconds())
    print(text)
    if args.markdown:
        args.markdown.write_text(text)
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")


if __name__ == "__main__":
    main()
