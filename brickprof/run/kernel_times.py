"""Which kernels took the device how long, from two kinds of spans that are never added up.

Enters: kernel spans, by the column. The profiler saw every kernel of the few steps that it looked at; the hook hears
Triton's kernels alone, in every step whose spans were wanted. Leaves: a row for each kernel, the dearest first. Times,
shares and counts are the profiler's where it looked at any step of any rank, and else the hook's, as ``source`` says,
and ``steps`` is how many of them they are of;
the line of the script (``site``) is known to the hook alone, and stands with the kernel of that name either way. And
whether a run on a CUDA device lacks what only the profiler sees (``unprofiled``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brickprof.run import columns

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run.parts import Part

PROFILER, TRITON = "profiler", "triton"
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


def of_part(part: Part, *, qualified: bool) -> Kernels:
    table = part.spans[0]
    known = {code: part.names.brick(code) for code in np.unique(columns.whole(table["brick"])).tolist()}
    names = {code: brick.name(qualified=qualified) for code, brick in known.items() if brick.kind.value == "kernel"}
    table = columns.rows(table, np.isin(columns.whole(table["brick"]), list(names)))
    steps, codes, device_ns = columns.whole(table["step"]), columns.whole(table["brick"]), table["device_ns"]
    return Kernels(steps, codes, columns.whole(device_ns, -1), table["attributes"].to_pylist(), names)


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


def of_frame(spans: pd.DataFrame) -> list[Kernels]:
    """The kernels of each rank in a table of spans."""
    if spans.empty:
        return []
    found = []
    for _, mine in spans[spans["kind"] == "kernel"].groupby("rank"):
        names = {name: code for code, name in enumerate(mine["brick"].unique())}
        codes, device_ns = mine["brick"].map(names).to_numpy("int64"), mine["device_ns"].astype("float64").fillna(-1)
        told = mine["attributes"].tolist()
        found.append(
            Kernels(mine["step"].to_numpy(), codes, device_ns.to_numpy(), told, {n: str(k) for k, n in names.items()})
        )
    return found


def kernel_times(ranks: Iterable[Kernels]) -> list[dict[str, Any]]:
    looked = [(kernels, _profiled(kernels.attributes)) for kernels in ranks]
    by_profiler = any(profiled.any() for _, profiled in looked)
    sums: dict[str, list[float]] = {}
    sites: dict[str, str] = {}
    steps = 0
    for kernels, profiled in looked:
        sites |= _sites(kernels, ~profiled)
        counted = (profiled if by_profiler else ~profiled) & (kernels.device_ns >= 0)
        steps += len(np.unique(kernels.steps[counted]))
        codes, places = np.unique(kernels.codes[counted], return_inverse=True)
        spent = np.bincount(places, kernels.device_ns[counted], len(codes)).tolist()
        for code, ns, times in zip(codes.tolist(), spent, np.bincount(places).tolist(), strict=True):
            known = sums.setdefault(kernels.names[code], [0.0, 0])
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
