"""The quick ways to read and judge a run say what the slow ones say: of whole files, torn ones and damaged ones."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from brickprof.bricks import Brick, Kind
from brickprof.cli import app
from brickprof.diagnosis import diagnose, stored
from brickprof.diagnosis.saving import keep
from brickprof.diagnosis.series import Series
from brickprof.diagnosis.timeline import Timeline
from brickprof.journal import Journal, lines, pages, rank_folder, read_table, schema, write_meta
from brickprof.journal.frames import batch_frame, schema_frame
from brickprof.journal.sweep import Sweep
from brickprof.records import ROLES, Event, RunMeta
from brickprof.rules.engine import Engine
from brickprof.rules.gradflow import GradFlow
from brickprof.rules.stability import Stability
from brickprof.rules.story import Story
from brickprof.run import Run, parts, thinning
from brickprof.run.columns import rows as rows_of

COLUMNS = ("step", "tensor", "brick", "role", "nan", "inf", "l2")
NUMBERS = [name for name in schema("samples").names if name != "histogram"]


# -- samples by the column


def row(chance: random.Random, step: int) -> tuple:
    maybe = lambda value, share: None if chance.random() < share else value  # noqa: E731
    return (
        10**18 + step, step, chance.randrange(2), chance.randrange(1, 5), chance.randrange(9), chance.randrange(7),
        64, maybe(chance.choice((0, 0, 3)), 0.2), 0, maybe(chance.gauss(0, 1), 0.1), chance.choice((1.5, math.inf)),
        0.0, None, None, maybe(chance.randrange(2**40), 0.9), None, None,
    )  # fmt: skip


def written(file: Path, sizes: list[int], seed: int = 0) -> list[bytes]:
    chance = random.Random(seed)
    step, frames = 0, [schema_frame("samples")]
    for seq, size in enumerate(sizes, start=1):
        frames.append(batch_frame("samples", [row(chance, step + i // 3) for i in range(size)], seq).data)
        step += size // 3
    file.write_bytes(b"".join(frames))
    return frames


def alike(sweep: Sweep, file: Path) -> bool:
    table, damage = read_table(file, schema("samples"))
    assert sweep.whole
    assert sweep.damage == damage and sweep.rows == table.num_rows
    assert sweep.checksum == crc32(file.read_bytes())
    for name in NUMBERS:
        column, slow = sweep.column(name), table[name]
        assert sweep.missing(name) == slow.null_count
        there = np.zeros(table.num_rows, bool) if column.values is None else column.present
        there = np.ones(table.num_rows, bool) if there is None else there
        assert there.tolist() == slow.is_valid().to_pylist()
        if column.values is not None:
            assert np.array_equal(column.values[there], slow.drop_null().to_numpy(), equal_nan=True)
    return True


@pytest.mark.parametrize("piece", [500, 20_000, 2**24])
@pytest.mark.parametrize(
    "sizes", [[100] * 40, [7], [300] * 30 + [20, 20] + [300] * 30, list(range(1, 60)), [1, 4000, 2], [1], [1] * 30]
)
def test_columns_are_those_of_the_table(tmp_path, piece, sizes):
    file = tmp_path / "samples.arrow"
    written(file, sizes)
    assert alike(Sweep(file, "samples", COLUMNS, piece=piece), file)


@pytest.mark.parametrize("piece", [5_000, 2**24])
@pytest.mark.parametrize("cut", [1, 10, 700, 9_000])
def test_a_torn_tail_is_counted_alike(tmp_path, piece, cut):
    file = tmp_path / "samples.arrow"
    written(file, [100] * 30)
    file.write_bytes(file.read_bytes()[:-cut])
    assert alike(Sweep(file, "samples", COLUMNS, piece=piece), file)


@pytest.mark.parametrize("piece", [5_000, 2**24])
@pytest.mark.parametrize("which", [0, 1, 7, 29])
def test_one_bit_is_enough_to_send_it_the_slow_way(tmp_path, piece, which):
    file = tmp_path / "samples.arrow"
    frames = [bytearray(frame) for frame in written(file, [100] * 30)]
    frames[which][len(frames[which]) * 2 // 3] ^= 1
    file.write_bytes(b"".join(frames))
    assert not Sweep(file, "samples", COLUMNS, piece=piece).whole


@pytest.mark.parametrize("data", [b"", b"nothing of ours" * 1000, schema_frame("spans")])
def test_what_is_no_file_of_samples_goes_the_slow_way(tmp_path, data):
    file = tmp_path / "samples.arrow"
    file.write_bytes(data)
    assert not Sweep(file, "samples", COLUMNS).whole


def test_rows_are_fetched_with_all_their_columns(tmp_path):
    file = tmp_path / "samples.arrow"
    written(file, [100] * 30 + [50] * 5)
    table, sweep = read_table(file, schema("samples"))[0], Sweep(file, "samples", COLUMNS)
    assert sweep.whole
    for chosen in ([], [0], [99, 100, 3249], range(0, 3250, 7)):
        mask = np.zeros(table.num_rows, bool)
        mask[list(chosen)] = True
        around, inside = sweep.around(mask)
        assert rows_of(around, inside).equals(rows_of(table, mask))
        some = sweep.some("absmax", np.flatnonzero(mask))
        assert some.rows == len(list(chosen))
        if some.values is not None and some.rows:
            there = np.ones(some.rows, bool) if some.present is None else some.present
            slow = rows_of(table, mask)["absmax"]
            assert there.tolist() == slow.is_valid().to_pylist()
            assert some.values[there].tolist() == slow.drop_null().to_pylist()


# -- events of a whole file


def event_lines(count: int = 50) -> list[bytes]:
    values = [1.5, math.nan, -math.inf, 'a "quoted" $word', None, [1, {"seq": 3}], {"$float": "nan"}, 2**70]
    return [lines.encode(n, 10**18 + n, "loss", n, {"value": values[n % len(values)], "$crc": n}) for n in range(count)]


def told(found: tuple[list[Event], object]) -> str:
    return repr(found)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:-9],
        lambda data: data.replace(b'"kind":"loss","step":7', b'"kind":"lost","step":7'),
        lambda data: data.replace(b"\n", b"", 3),
        lambda data: b"\n" + data,
        lambda data: data + b"what is this\n",
        lambda data: data + lines.encode(2**70, 1, "loss", 1, {}),
        lambda data: data + lines.encode(1, 1, "loss", -(2**63), {}),
        lambda data: data + lines.encode(-1, 1, "loss", 1, {}),
    ],
)
def test_events_are_those_of_the_lines(tmp_path, change):
    file = rank_folder(tmp_path, 3) / "events.jsonl"
    file.parent.mkdir()
    file.write_bytes(change(b"".join(event_lines())))
    assert told(pages.read_events(file, 3)) == told(lines.read_events(file, 3))


def test_a_line_that_holds_two_is_read_line_by_line(tmp_path):
    """Its checksum is right, and it is no event: nobody here wrote it."""
    file = tmp_path / "events.jsonl"
    body = b'{"seq":1,"t":1,"kind":"a","step":1},{"seq":2,"t":1,"kind":"b","step":1'
    file.write_bytes(b"".join(event_lines(3)) + b'%b,"crc":"%08x"}\n' % (body, crc32(body)))
    assert told(pages.read_events(file, 0)) == told(lines.read_events(file, 0))


def test_a_missing_file_is_empty(tmp_path):
    assert told(pages.read_events(tmp_path / "none", 0)) == told(lines.read_events(tmp_path / "none", 0))


def test_an_event_is_frozen_and_has_fields_of_its_own():
    event = Event("loss", 3)
    assert event.fields == {} and event.fields is not Event("loss", 3).fields
    with pytest.raises(AttributeError):
        event.step = 4
    assert event == Event("loss", 3, {}) and hash is not None


# -- judging


def recorded(folder: Path, seed: int, ranks: int = 1) -> Path:
    """A run with a bit of everything that may go wrong: the order of it is chance."""
    write_meta(folder, RunMeta(run_id=f"chance{seed}", script="chance.py"))
    for rank in range(ranks):
        chance = random.Random(1000 * seed + rank)
        journal = Journal(rank_folder(folder, rank), max_bytes=2**40)
        models = ["G", "D"][: 1 + seed % 2]
        bricks = [journal.brick(Brick(Kind.BLOCK, f"blocks.{i}", models[i % len(models)])) for i in range(6)]
        names: list[int] = []
        stamp = time.time_ns() + 10**6
        breaks = chance.choice((None, None, 30, 55))
        mute = chance.randrange(6) if chance.random() < 0.5 else -1
        for step in range(60):
            if len(names) < 6 and step in (0, 20):  # some names are given late
                known = range(len(names), 6 if step else 4)
                fields = {"shape": [8, 8], "dtype": "float32", "device": "cpu", "trainable": True}
                names += [
                    journal.tensor(
                        f"blocks.{i}.weight", {**fields, "model": models[i % len(models)], "brick": bricks[i]}
                    )
                    for i in known
                ]
                groups = [{"tensors": list(names), "lr": 1e-3}]
                journal.event("optimizer_created", step, {"optimizer": 0, "cls": "SGD", "groups": groups})
            broken = breaks is not None and step >= breaks
            loss = math.nan if broken else 3 * math.exp(-step / 20) + chance.random()
            journal.event("loss", step, {"value": loss, "micro": 0})
            journal.event(
                "clip", step, {"norm": math.inf if broken else 1.0, "max_norm": 2.0, "how": "norm", "tensors": 6}
            )
            journal.event("optimizer", step, {"optimizer": 0, "lr": [1e-3], "count": step + 1})
            for role in ("grad", "grad_local", "weight", "update", "activation"):
                for i, name in enumerate(names):
                    stamp += chance.choice((0, 1, 1000, -500))  # devices tell things late, and out of order
                    size = 0.0 if i == mute and role.startswith("grad") else chance.choice((1e-3, 0.0, 2.0, 5.0))
                    nan = chance.choice((0, 4)) if broken else chance.choice((0, 0, 0, 0, None))
                    absmax = None if chance.random() < 0.05 else math.inf if nan and chance.random() < 0.5 else size
                    journal.sample((
                        stamp, step if chance.random() < 0.97 else max(0, step - 1), 0, bricks[i], name,
                        ROLES.index(role), 64, nan, 0 if chance.random() < 0.9 else None, absmax, 8 * size, 0.0,
                        chance.choice((0.0, 1.0)), 1e-3 if role == "update" else None, None,
                        chance.choice((None, 1024.0)) if role == "grad" else None, None,
                    ))  # fmt: skip
            if step % 7 == 0:
                journal.flush()
        if chance.random() < 0.7:
            journal.event("exit", 60, {"steps": 60, "costs": {}, "overhead": 0.001})
        journal.close()
    return folder


def judged(folder: Path, monkeypatch, *, quick: bool) -> str:
    monkeypatch.setattr(parts, "_LONG", 0 if quick else 2**60)
    monkeypatch.setattr(Engine, "telling", quick)
    run = Run.open(folder)
    run.read_ahead()
    found = diagnose(run)
    used = [part for part in run.parts if part.rank >= 0 and part.read_ahead() and part._sweep.whole]
    assert bool(used) == quick
    return json.dumps(found.to_dict(), sort_keys=True)


@pytest.mark.parametrize("seed", range(24))
def test_the_quick_way_finds_what_the_slow_one_finds(tmp_path, monkeypatch, seed):
    folder = recorded(tmp_path / "run", seed, ranks=1 + seed % 3)
    assert judged(folder, monkeypatch, quick=True) == judged(folder, monkeypatch, quick=False)


@pytest.mark.parametrize("seed", range(4))
def test_so_it_is_where_there_is_too_much_to_keep(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("brickprof.run.thinning._ENOUGH", 300)
    monkeypatch.setattr("brickprof.run.thinning.thinned.__defaults__", (300,))
    monkeypatch.setattr("brickprof.run.thinning._HEAD", 4)
    monkeypatch.setattr("brickprof.run.thinning._TAIL", 6)
    folder = recorded(tmp_path / "run", seed, ranks=2)
    assert judged(folder, monkeypatch, quick=True) == judged(folder, monkeypatch, quick=False)


def state(thing: object) -> dict[str, str]:
    """All that somebody who followed records remembers; of a count only whether there is any."""
    kept = vars(thing) | {"_samples": bool(getattr(thing, "_samples", 0))}
    shown = {name: list(value) if isinstance(value, Series) else value for name, value in kept.items()}
    apart = ("_names", "names", "_depth", "depth", "_use", "moves", "_handlers")
    return {name: repr(value) for name, value in shown.items() if name not in apart}


@pytest.mark.parametrize("seed", range(12))
def test_who_follows_samples_remembers_the_same_without_those_that_say_it_again(tmp_path, seed):
    run = Run.open(recorded(tmp_path / "run", seed, ranks=1 + seed % 2))
    for kind in (GradFlow, Stability, Timeline):
        least, most = kind(), kind()
        for record in run.records(thinned=True, telling=True):
            least.feed(record)
        for record in run.records(thinned=True):
            most.feed(record)
        assert state(least) == state(most)


def test_so_it_is_of_a_run_that_was_killed(tmp_path, monkeypatch):
    folder = recorded(tmp_path / "run", 5)
    for name in ("samples.arrow", "events.jsonl"):
        file = rank_folder(folder, 0) / name
        file.write_bytes(file.read_bytes()[:-37])
    assert judged(folder, monkeypatch, quick=True) == judged(folder, monkeypatch, quick=False)
    assert '"damage"' in judged(folder, monkeypatch, quick=True)


def test_a_listener_of_somebody_else_gets_every_sample(tmp_path):
    class Listener:
        contract = "C-TRAINSTABLE-001"

        def feed(self, record: object) -> None: ...

    assert Engine().telling
    assert not Engine([Listener]).telling
    run = Run.open(recorded(tmp_path / "run", 1))
    everything, some = (sum(1 for _ in run.records(thinned=True, telling=telling)) for telling in (False, True))
    assert some < everything


def test_a_story_is_the_same_at_once(tmp_path):
    run = Run.open(recorded(tmp_path / "run", 3))
    at_once, fed = Story(), Story()
    for part in run.parts:
        events = sorted(part.events, key=lambda event: event.moment)
        events.append(Event("loss", 3, {"model": [1], "value": 2.0}, 10**6, events[-1].time_ns + 1, part.rank))
        at_once.take(part.rank, events)
        for event in events:
            fed.feed(event)
    assert repr(at_once._events) == repr(fed._events)
    assert (at_once._steps, at_once._deep) == (fed._steps, fed._deep)
    assert repr(vars(at_once.names)) == repr(vars(fed.names))


def test_a_series_keeps_its_ends_and_the_greatest_of_a_step():
    series = Series()
    for step in range(10_000):
        series.raise_last(step, 1.0, Event("loss", step, {}, 2 * step))
        series.raise_last(step, 2.0, Event("loss", step, {}, 2 * step + 1))
    points = list(series)
    assert series.count == 10_000 and len(points) == len(series) <= 4096
    assert [point.step for point in points[:64]] == list(range(64))
    assert points[-1].evidence == "event:19999@0" and {point.value for point in points} == {2.0}
    assert series.until(5) == points[:6]


# -- keeping what was found


def ended(folder: Path) -> Path:
    write_meta(folder, RunMeta(run_id="ended", script="ended.py"))
    journal = Journal(rank_folder(folder, 0))
    journal.event("run", 0, {"pid": 1, "host": "h", "coordinates": {}})
    for step in range(9):
        journal.event("loss", step, {"value": 1.0 / (step + 1), "micro": 0})
    journal.event("exit", 9, {"steps": 9, "costs": {}, "overhead": 0.001})
    journal.close()
    return folder


@pytest.mark.parametrize("command", [["show"], ["report", "-r", "terminal"]])
def test_the_first_report_is_kept_for_the_second(tmp_path, capsys, command):
    folder = ended(tmp_path / "run")
    assert app.main([*command, str(folder)]) == 0
    first = capsys.readouterr().out
    assert stored(Run.open(folder)) is not None
    assert app.main([*command, str(folder)]) == 0
    assert capsys.readouterr().out == first


def test_what_somebody_found_before_is_left_alone(tmp_path):
    folder = ended(tmp_path / "run")
    (folder / "diagnosis.json").write_text("somebody's word")
    assert app.main(["show", str(folder)]) == 0
    assert (folder / "diagnosis.json").read_text() == "somebody's word"
    assert not (folder / "judged.json").exists()


def test_a_run_that_goes_on_is_not_kept(tmp_path, monkeypatch):
    folder = ended(tmp_path / "run")
    events = rank_folder(folder, 0) / "events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:-1]))
    run = Run.open(folder)
    keep(diagnose(run), run)
    assert not (folder / "diagnosis.json").exists()
    monkeypatch.setattr("brickprof.diagnosis.saving._A_WHILE", -1)  # nothing came of it for long: it was killed
    keep(diagnose(run), run)
    assert stored(Run.open(folder)) is not None


def test_checksums_that_are_known_are_those_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_LONG", 0)
    folder = recorded(tmp_path / "run", 2, ranks=2)
    run = Run.open(folder)
    keep(diagnose(run), run)
    known = run.checksums()
    assert set(known) == {"rank00000/samples.arrow", "rank00001/samples.arrow"}
    for name, told in known.items():
        data = (folder / name).read_bytes()
        assert told == (len(data), crc32(data))


def test_one_command_is_built_alone():
    assert [command.name for command in app.build("report")[0].registered_commands] == ["report"]
    assert len(app.build("nothing")[0].registered_commands) > 5


@pytest.mark.parametrize("widest", [1, 50, 2**62])
def test_rows_are_numbered_alike_only_where_they_are(monkeypatch, widest):
    monkeypatch.setattr("brickprof.run.thinning._WIDEST", widest)
    columns = np.random.default_rng(0).integers(-3, 4, (3, 400))
    columns[1, 5] = 2**62
    numbered = thinning._numbered(*columns)
    rows = list(zip(*columns.tolist(), strict=True))
    assert len(set(zip(numbered.tolist(), rows, strict=True))) == len(set(numbered.tolist())) == len(set(rows))
