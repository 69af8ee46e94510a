"""Which kernels took the device how long, from two kinds of spans that are never added up.

Enters: kernel spans, by the column, and the sums that a window has besides. The profiler saw every kernel of the few
steps that it looked at; the hook hears Triton's kernels alone, in every step whose spans were wanted. Leaves: a row for
each kernel, the dearest first. Times, shares and counts are the profiler's where it looked at any step of any rank, and
else the hook's, as ``source`` says, and ``steps`` is how many of them they are of; the line of the script (``site``) is
known to the hook alone, and stands with the kernel of that name either way. And whether a run on a CUDA device lacks
what only the profiler sees (``unprofiled``), and how many kernels of its windows have no span (``without_span``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brickprof.bricks import Brick, Kind
from brickprof.run import columns

if TYPE_CHECKING:
    from brickprof.run.parts import Part

PROFILER, TRITON = "profiler", "triton"
_NUMBERS = (0, 1, 3, 4)
"""Where a row of a window's sums has numbers."""
_FAR = 2**62
_PROFILED = re.compile(r'"source": ?"profiler"')


class Kernels(NamedTuple):
    """Kernel spans of one rank."""

    steps: Any
    codes: Any
    """What each is called, as a key of ``names``."""
    device_ns: Any
    """Negative where it is not known."""
    attributes: Sequence[Any]
    names: dict[int, str]
    besides: Sequence[Unwritten] = ()


class Unwritten(NamedTuple):
    """Launches of one kernel, or copies, by one brick in a step that had too many for a span each."""

    step: int
    name: str
    kind: Kind
    block: Brick | None
    """Which launched them; None where that is not known."""
    phase: str
    times: int
    device_ns: int


def of_part(part: Part, *, qualified: bool) -> Kernels:
    table = part.spans[0]
    known = {code: part.names.brick(code) for code in np.unique(columns.whole(table["brick"])).tolist()}
    names = {code: brick.name(qualified=qualified) for code, brick in known.items() if brick.kind.value == "kernel"}
    table = columns.rows(table, np.isin(columns.whole(table["brick"]), list(names)))
    steps, codes, device_ns = columns.whole(table["step"]), columns.whole(table["brick"]), table["device_ns"]
    besides = [each for each in unwritten(part, qualified=qualified) if each.kind is Kind.KERNEL]
    return Kernels(steps, codes, columns.whole(device_ns, -1), table["attributes"].to_pylist(), names, besides)


def once(part: Part) -> Any:
    """A rank's spans, less the launches that the hook heard in steps that the profiler saw: there they stand twice."""
    table = part.spans[0]
    codes, steps = columns.whole(table["brick"]), columns.whole(table["step"])
    kernels = [code for code in np.unique(codes).tolist() if part.names.brick(code).kind.value == "kernel"]
    rows = np.flatnonzero(np.isin(codes, kernels))
    if not len(rows):
        return table
    profiled = _profiled(columns.rows(table, np.isin(codes, kernels))["attributes"].to_pylist())
    twice = rows[~profiled & np.isin(steps[rows], steps[rows[profiled]])]
    return columns.rows(table, ~np.isin(np.arange(len(codes)), twice)) if len(twice) else table


def unwritten(part: Part, *, qualified: bool) -> list[Unwritten]:
    """What the windows of a rank tell of that has no span."""
    found = []
    for event in part.events:
        listed = event.fields.get("unwritten") if event.kind == "window" else None
        for row in listed if isinstance(listed, list) else ():
            if isinstance(row, list) and len(row) == 5 and all(_is_count(row[at]) for at in _NUMBERS):
                brick, block = part.names.brick(row[0]), part.names.brick(row[1]) if row[1] else None
                name = brick.name(qualified=qualified)
                found.append(Unwritten(event.step, name, brick.kind, block, str(row[2]), row[3], row[4]))
    return found


def without_span(parts: Iterable[Part]) -> dict[str, Any]:
    """How many of the kernels and copies of all windows have no span, and whether their sums were told; {} where all
    have one."""
    windows = [event.fields for part in parts for event in part.events if event.kind == "window"]
    seen = [told for told in windows if _is_count(told.get("kernels")) and _is_count(told.get("written"))]
    short = [told for told in seen if told["written"] < told["kernels"]]
    if not short:
        return {}
    count, of = sum(told["kernels"] - told["written"] for told in short), sum(told["kernels"] for told in seen)
    return {"count": count, "of": of, "counted": all(isinstance(told.get("unwritten"), list) for told in short)}


def _is_count(value: Any) -> bool:
    """Journals can be damaged or come from elsewhere."""
    return type(value) is int and 0 <= value < _FAR


def kernel_times(ranks: Iterable[Kernels]) -> list[dict[str, Any]]:
    looked = [(kernels, _profiled(kernels.attributes)) for kernels in ranks]
    by_profiler = any(profiled.any() or kernels.besides for kernels, profiled in looked)
    sums: dict[str, list[float]] = {}
    sites: dict[str, str] = {}
    steps = 0
    for kernels, profiled in looked:
        sites |= _sites(kernels, ~profiled)
        counted = (profiled if by_profiler else ~profiled) & (kernels.device_ns >= 0)
        besides = kernels.besides if by_profiler else ()
        steps += len({*np.unique(kernels.steps[counted]).tolist(), *(each.step for each in besides)})
        codes, places = np.unique(kernels.codes[counted], return_inverse=True)
        spent = np.bincount(places, kernels.device_ns[counted], len(codes)).tolist()
        timed = zip((kernels.names[code] for code in codes.tolist()), spent, np.bincount(places).tolist(), strict=True)
        for name, ns, times in [*timed, *((each.name, each.device_ns, each.times) for each in besides)]:
            known = sums.setdefault(name, [0.0, 0])
            known[0], known[1] = known[0] + ns, known[1] + times
    whole = sum(ns for ns, _ in sums.values()) or 1.0
    rows: list[dict[str, Any]] = [
        {"kernel": name, "share": ns / whole, "mean_us": ns / times / 1e3, "a_step": times / steps,
         "steps": steps, "site": sites.get(name, ""), "source": PROFILER if by_profiler else TRITON}
        for name, (ns, times) in sums.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["share"])


def unprofiled(parts: Iterable[Part]) -> bool:
    """Whether a CUDA device was used, and the profiler looked at no step."""
    parts = list(parts)
    if any(event.kind == "window" for part in parts for event in part.events):
        return False
    return any(_on_cuda(part) for part in parts)


def _on_cuda(part: Part) -> bool:
    """Only such a device's clock times spans, and only its tensors are said to lie there."""
    if bool(np.any(columns.present(part.spans[0]["device_ns"]))):
        return True
    return any(str(tensor.fields.get("device", "")).startswith("cuda") for tensor in part.names.tensors.values())


def _profiled(attributes: Sequence[Any]) -> Any:
    found = (
        bool(_PROFILED.search(told)) if isinstance(told, str) else _field(told, "source") == PROFILER
        for told in attributes
    )
    return np.fromiter(found, bool, len(attributes))


def _sites(kernels: Kernels, heard: Any) -> dict[str, str]:
    """The line that each kernel was last launched from, where the hook says."""
    rows = np.flatnonzero(heard)[::-1]
    codes, first = np.unique(kernels.codes[rows], return_index=True)
    last = zip(codes.tolist(), rows[first].tolist(), strict=True)
    told = {kernels.names[code]: _field(kernels.attributes[row], "site") for code, row in last}
    return {name: site for name, site in told.items() if isinstance(site, str)}


def _field(attributes: Any, name: str) -> Any:
    try:
        told = json.loads(attributes) if isinstance(attributes, str) else attributes
        return told.get(name)
    except (ValueError, AttributeError):
        return None
