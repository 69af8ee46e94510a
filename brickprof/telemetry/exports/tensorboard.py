"""A run as TensorBoard event files.

Enters: a run, or a log of any format. Leaves: a folder with an event file for each rank: numbers by step, histograms
of what was sampled of gradients and weights, and, at the top, what the launch told and what the diagnosis found.

A sample knows how large its values are and not their signs, so a histogram is one of log2 |x|. Where values are not
finite they are in its last bin. The protobufs and the framing are TensorBoard's own.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from heapq import merge
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.errors import ConfigurationError, NothingToJudge
from brickprof.records import HISTOGRAM_BINS, HISTOGRAM_LOW, HISTOGRAM_OCTAVES
from brickprof.telemetry.curves import by_step
from brickprof.telemetry.files import whole
from brickprof.telemetry.findings import diagnosis_of
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Finding
    from brickprof.run import Run
    from brickprof.run.parts import Part

NAME, SUFFIX = "tensorboard", ""
TITLE = "event files: numbers, histograms of gradients and weights, findings; a folder for each rank"
FILE = "events.out.tfevents.{seconds}.brickprof"
_EDGES = [float(HISTOGRAM_LOW + HISTOGRAM_OCTAVES * each) for each in range(HISTOGRAM_BINS + 1)]
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~-])")
_VERSION = "brain.Event:2"

Value = tuple[int, float, Any]
"""Its step, when it was told in seconds, and the summary value itself."""


def write(run: Run, out: Path) -> Path:
    proto = _messages()
    written = False
    for part in run.parts:
        folder = out / f"rank{part.rank:05d}" if part.rank >= 0 else out
        values = merge(_scalars(part, proto), _histograms(part, run, proto), key=lambda value: value[0])
        if part.rank < 0:
            values = merge(values, _texts(run, proto), key=lambda value: value[0])
        written |= _file(folder, run, values, proto)
    if all(part.rank >= 0 for part in run.parts):
        written |= _file(out, run, _texts(run, proto), proto)
    if not written:
        raise NothingToJudge("This run tells no number and nothing was found in it: there is nothing to write.")
    return out


def _file(folder: Path, run: Run, values: Iterator[Value], proto: Any) -> bool:
    """Writes the event file of ``folder``, the values of one step in one event; False where there are none."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    steps = groupby(values, key=lambda value: value[0])
    first = next(steps, None)
    if first is None:
        return False
    name = FILE.format(seconds=max(run.meta.started_ns, 0) // 10**9)
    with whole(folder / name) as stream:
        records = RecordWriter(stream)
        records.write(proto.Event(wall_time=run.meta.started_ns / 1e9, file_version=_VERSION).SerializeToString())
        while first is not None:
            step, told = first[0], list(first[1])
            summary = proto.Summary(value=[value for _, _, value in told])
            event = proto.Event(wall_time=min(seconds for _, seconds, _ in told), step=step, summary=summary)
            records.write(event.SerializeToString())
            first = next(steps, None)
    return True


# -- what is in them


def _scalars(part: Part, proto: Any) -> Iterator[Value]:
    curves = by_step(part)
    return merge(*(_scalar(name, curve, proto) for name, curve in curves.items()), key=lambda value: value[0])


def _scalar(name: str, curve: Any, proto: Any) -> Iterator[Value]:
    for step, time_ns, value in zip(curve.steps.tolist(), curve.times.tolist(), curve.means.tolist(), strict=True):
        yield step, time_ns / 1e9, proto.Summary.Value(tag=name, simple_value=value)


def _histograms(part: Part, run: Run, proto: Any) -> Iterator[Value]:
    import pyarrow.compute as pc

    table = part.samples[0]
    table = table.filter(pc.is_valid(table["histogram"]))
    for sample in part.as_samples(table.sort_by("step"), qualified=run.qualified):
        counts = sample.histogram or ()
        if sum(counts) > 0 and len(counts) == HISTOGRAM_BINS:
            tag = f"{sample.role}_log2_abs/{clean(sample.tensor, limit=200)}"
            yield sample.step, sample.time_ns / 1e9, proto.Summary.Value(tag=tag, histo=_histogram(counts))


def _histogram(counts: tuple[int, ...]) -> dict[str, Any]:
    held = [number for number, count in enumerate(counts) if count]
    middles = [(low + high) / 2 for low, high in pairwise(_EDGES)]
    return {
        "min": _EDGES[held[0]],
        "max": _EDGES[held[-1] + 1],
        "num": sum(counts),
        "sum": math.fsum(count * middle for count, middle in zip(counts, middles, strict=True)),
        "sum_squares": math.fsum(count * middle**2 for count, middle in zip(counts, middles, strict=True)),
        "bucket_limit": _EDGES[1:],
        "bucket": counts,
    }


def _texts(run: Run, proto: Any) -> Iterator[Value]:
    """Each finding as a text at the step where it began."""
    content = proto.SummaryMetadata(plugin_data=proto.SummaryMetadata.PluginData(plugin_name="text"))
    for finding in sorted(diagnosis_of(run).findings, key=lambda finding: finding.first_step):
        text = proto.TensorProto(dtype=proto.STRING, string_val=[_told(finding).encode()])
        tag = f"findings/{clean(finding.id, limit=60)}/text_summary"
        value = proto.Summary.Value(tag=tag, metadata=content, tensor=text)
        yield max(finding.first_step, 0), run.meta.started_ns / 1e9, value


def _told(finding: Finding) -> str:
    lines = [f"**{_plain(finding.symptom)}** ({finding.severity}, {_plain(finding.contract)})", ""]
    lines += [f"Cause: {_plain(finding.root_cause)}, {finding.confidence:.0%}", ""] if finding.root_cause else []
    lines += [f"{n}. {_plain(why.question)} {_plain(why.finding)}" for n, why in enumerate(finding.whys, 1)]
    return "\n".join([*lines, "", f"Do: {_plain(finding.action)}"] if finding.action else lines)


def _plain(foreign: str) -> str:
    """``foreign`` as text that is neither Markdown nor HTML."""
    return _MARKDOWN.sub(r"\\\1", html.escape(clean(foreign, limit=2000)))


class _Proto:
    """The messages of TensorBoard that are needed."""

    def __init__(self) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

        self.Event, self.Summary = event_pb2.Event, summary_pb2.Summary
        self.SummaryMetadata = summary_pb2.SummaryMetadata
        self.TensorProto, self.STRING = tensor_pb2.TensorProto, types_pb2.DT_STRING


def _messages() -> Any:
    try:
        return _Proto()
    except ImportError:
        raise ConfigurationError(
            "Event files are written with the tensorboard package, which is not installed.",
            "Install it: pip install 'brickprof[logs]'.",
        ) from None
