"""The first look at a run that nobody has judged: what is taken by the column, or by a process beside this one, is what
taking it one by one comes to."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof import plugins
from brickprof.cli import _showing, app
from brickprof.contracts import catalogue, registry
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.diagnosis import course_facts, diagnose, keeping
from brickprof.diagnosis.series import Series
from brickprof.diagnosis.timeline import Timeline
from brickprof.journal import Journal, errands, write_meta
from brickprof.records import Event, RunMeta
from brickprof.reports import overview
from brickprof.rules import declared, feasibility, handling, ledger
from brickprof.rules.engine import Engine
from brickprof.rules.gradflow import GradFlow
from brickprof.rules.many import Many
from brickprof.rules.names import number, whole
from brickprof.rules.process import Process
from brickprof.rules.stability import Stability
from brickprof.rules.story import NotYet, Story, loading, tracks
from brickprof.run import Run

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.hypothesis

ODD = st.sampled_from([None, True, 0, 3, -1, 2**70, 0.0, 1.5, math.nan, math.inf, -math.inf, "1", [1.5], [], {"a": 1}])
"""What a field may hold in a file from anywhere."""
PLAIN = st.floats(0.1, 3)
FIELDS = {
    "loss": {"value": PLAIN | ODD, "micro": st.integers(0, 2) | ODD, "scale": st.none() | ODD},
    "clip": {
        "norm": PLAIN | ODD, "max_norm": PLAIN | ODD, "how": st.sampled_from(["norm", "value"]),
        "norm_type": st.sampled_from([None, 2.0, 1.0]), "late": st.sampled_from([None, True, False]),
        "local": st.sampled_from([None, True]),
    },
    "optimizer": {
        "lr": st.lists(PLAIN, min_size=1, max_size=2) | ODD, "skipped": st.booleans(),
        "optimizer": st.integers(0, 1) | ODD, "count": st.integers(0, 9) | ODD,
    },
    "grad": {"l2": PLAIN | ODD, "point": st.sampled_from(["step", "clip"]), "nonfinite": st.just([])},
    "applied": {"coefficient": PLAIN | ODD},
    "scaler": {"op": st.sampled_from(["step", "unscale"]), "scale": PLAIN, "found_inf": st.sampled_from([0.0, 1.0])},
    "batch": {"nan": st.integers(0, 1), "inf": st.just(0)},
    "memory": {"rss": PLAIN},
    "anomaly": {"until": st.integers(0, 5)},
}  # fmt: skip


@st.composite
def events(draw, kinds=tuple(FIELDS)):
    """Events as they happened; devices tell some of them late, and whole stretches are as plain as can be."""
    usual = draw(st.booleans())
    found = []
    for place in range(draw(st.integers(0, 30))):
        kind = draw(st.sampled_from(("loss", "clip", "optimizer") if usual else kinds))
        step = max(0, place // 3 - draw(st.sampled_from([0, 0, 0, 1])))
        if usual and draw(st.integers(0, 9)):
            fields = {"loss": {"value": 1.0, "micro": 0}, "clip": {"norm": 1.0, "max_norm": 2.0, "how": "norm"},
                      "optimizer": {"lr": [1e-3], "optimizer": 0, "count": step}}[kind]  # fmt: skip
        else:
            given = {name: draw(values) for name, values in FIELDS[kind].items()}
            fields = {name: value for name, value in given.items() if draw(st.integers(0, 4))}
        found.append(Event(kind, step, fields, place, 10**18 + place, draw(st.sampled_from([0, 0, 0, 1, -1]))))
    return found


def story_of(told: list[Event]) -> Story:
    return Story.of(Run.from_records(told))


# -- many records at once


def remembered(thing: object) -> dict[str, str]:
    """All that a listener remembers, in a form that can be compared."""
    if isinstance(thing, GradFlow | Stability):
        thing._catch_up()
    kept = {name: list(each) if isinstance(each, Series) else each for name, each in vars(thing).items()}
    counts = {f"{name} count": each.count for name, each in vars(thing).items() if isinstance(each, Series)}
    apart = ("_names", "names", "_depth", "depth", "_use", "moves", "_handlers", "steps")
    return {name: repr(each) for name, each in (kept | counts).items() if name not in apart}


@pytest.mark.parametrize("kind", [Timeline, GradFlow, Process, Stability])
@given(told=events(), cut=st.integers(0, 30))
def test_who_follows_many_remembers_what_who_is_fed_does(kind, told, cut):
    fed, followed = kind(), kind()
    for record in told:
        fed.feed(record)
    for some in (told[:cut], told[cut:]):
        followed.follow(Many(some))
    assert remembered(followed) == remembered(fed)
    assert getattr(followed, "steps", None) == getattr(fed, "steps", None)


@pytest.mark.parametrize("kept", [1, 2, 5])
@given(told=events(), cut=st.integers(0, 30))
def test_a_ledger_that_forgets_soon_is_skimmed_alike(kept, told, cut):
    was, ledger._RECENT_STEPS = ledger._RECENT_STEPS, kept
    try:
        fed, followed = Stability(), Stability()
        for record in told:
            fed.feed(record)
        for some in (told[:cut], told[cut:]):
            followed.follow(Many(some))
        assert remembered(followed) == remembered(fed)
        assert repr(followed.finish(None)) == repr(fed.finish(None))
    finally:
        ledger._RECENT_STEPS = was


def test_many_are_set_apart_in_order():
    told = [Event("loss", 0, {}, 0), Event("note", 0, {}, 1), Event("loss", 0, {}, 2, rank=-1), Event("clip", 1, {}, 3)]
    many = Many(told)
    assert many.each("loss") == told[:1] and many.each("clip") == told[3:] and many.each("optimizer") == []
    assert many.others == told[1:3]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 9)), max_size=60), st.integers(0, 60))
def test_a_series_takes_many_as_it_takes_each(rows, cut):
    told = [(step, value, Event("loss", step, {}, seq)) for seq, (step, value) in enumerate(rows)]
    for one, many in (("add", "extend"), ("raise_last", "raise_with")):
        each, together = Series(), Series()
        for row in told:
            getattr(each, one)(*row)
        for some in (told[:cut], told[cut:]):
            getattr(together, many)(some)
        assert (list(each), each.count, each._step, each._value) == (
            list(together), together.count, together._step, together._value,
        )  # fmt: skip


@pytest.mark.parametrize("count", [4096, 4097, 9000])
def test_a_long_series_is_thinned_alike(count):
    told = [(step, 1.0, Event("loss", step, {}, step)) for step in range(count)]
    each, together = Series(), Series()
    for row in told:
        each.add(*row)
    together.extend(told[:100])
    together.extend(told[100:])
    assert list(each) == list(together) and each.count == together.count


# -- columns of events


@given(st.lists(ODD | PLAIN))
def test_a_track_has_the_numbers_and_only_these(values):
    told = [Event("loss", place % 7, {"value": value}, place) for place, value in enumerate(values)]
    try:
        rows = [(e.step, found, e.seq) for e in told if (found := number(e.fields["value"])) is not None]
    except OverflowError:
        with pytest.raises(OverflowError):
            tracks.track(told, "value")
        return
    rows.sort(key=lambda row: row[0])
    found = tracks.track(told, "value")
    assert found.steps.tolist() == [row[0] for row in rows] and found.seqs.tolist() == [row[2] for row in rows]
    assert np.array_equal(found.values, [row[1] for row in rows], equal_nan=True)


@given(events(("loss", "optimizer")))
def test_columns_of_a_story_say_what_its_events_say(told):
    story = story_of(told)
    for rank in (0, 1):
        losses, updates = story.events("loss", rank), story.events("optimizer", rank)
        assert story.tells("loss", "scale", rank) == any(e.fields.get("scale") is not None for e in losses)
        assert story.wholes("loss", "micro", rank).tolist() == [whole(e.fields.get("micro")) for e in losses]
        assert story.steps_of("loss", rank).tolist() == [e.step for e in losses]
        most: dict[int, int] = {}
        for event in losses:
            most[event.step] = max(most.get(event.step, 0), whole(event.fields.get("micro")) + 1)
        if len(most) > 1:
            most.pop(max(most))
        counts = sorted(most.values())
        assert feasibility.micros(story, rank) == (len(counts), counts[len(counts) // 2] if counts else 1)
        made: dict[int, int] = {}
        last: dict[int, int] = {}
        for event in updates:
            at = whole(event.fields.get("optimizer"))
            made[at], last[at] = max(made.get(at, 0), whole(event.fields.get("count"))), event.step
        assert declared.updates(story, rank) == made
        assert declared.lasting(story, rank) == [at for at in last if last[at] >= 0.9 * max(last.values())]


@given(events(("optimizer", "clip", "clip", "grad", "applied")))
def test_a_look_that_is_reckoned_at_once_is_what_it_would_be_when_asked(told):
    story = story_of(told)
    for look in handling.looks(story, 0):
        plain = handling.Look(look.step, look.rank, look.clips, look.grads, look.applieds, look.update)
        for name in ("bounds", "too_late", "before", "after"):
            assert repr(getattr(look, name)) == repr(getattr(plain, name))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6), st.integers(1, 40))
def test_samples_that_come_again_in_their_order_have_a_period(row, length):
    tensors, bricks = (np.resize(np.asarray(column, np.int32), length) for column in zip(*row, strict=True))
    period = loading._period(tensors, bricks)
    for column in (tensors, bricks):
        assert np.array_equal(np.resize(column[:period], length), column)
    if length > 2 * len(row) and len(set(row)) == len(row):
        assert period == len(row)
    tensors[-1] += 1
    assert np.array_equal(np.resize(tensors[: loading._period(tensors, bricks)], length), tensors)


# -- the library as one file


def test_the_catalogue_is_the_library():
    """Where it is not: python -m brickprof.contracts.catalogue."""
    known, read = catalogue.read(registry.LIBRARY), registry.read_folder(registry.LIBRARY)
    assert known is not None, "the YAML has changed: python -m brickprof.contracts.catalogue"
    assert repr(known) == repr(read) and known == read


def test_a_catalogue_of_other_files_is_not_taken(tmp_path):
    file = tmp_path / "catalogue.json"
    folder = tmp_path / "library"
    folder.mkdir()
    for one in sorted(registry.LIBRARY.glob("*.yaml"))[:3]:
        (folder / one.name).write_bytes(one.read_bytes())
    read = registry.read_folder(folder)
    catalogue.write(folder, read, file)
    assert catalogue.read(folder, file) == read
    changed = sorted(folder.glob("*.yaml"))[1]
    changed.write_bytes(changed.read_bytes() + b"\n# more\n")
    assert catalogue.read(folder, file) is None
    changed.unlink()
    assert catalogue.read(folder, file) is None
    assert catalogue.read(folder, tmp_path / "none") is None
    for told in ("", "[]", '{"of": 1}', json.dumps({"of": catalogue.digest(folder), "contracts": [{}]})):
        file.write_text(told)
        assert catalogue.read(folder, file) is None


# -- processes beside this one

BESIDE = """
import sys
from pathlib import Path
from brickprof.journal import errands
from brickprof.journal.pages import Page
from brickprof.journal.sweep import Sweep
import brickprof.journal.pages as pages
pages._LONG = 0
assert errands.possible()
errands.alone()
piece = int(sys.argv[4])
page, sweep = Page(Path(sys.argv[1]), 3), Sweep(Path(sys.argv[2]), "samples", ("step", "nan", "absmax"), piece=piece)
page.begin()
assert page._errand is not None and sweep._beside is not None
if sys.argv[3] == "killed":
    import os, signal
    for errand in (page._errand, sweep._beside._errand):
        os.kill(errand._process, signal.SIGKILL)
assert sweep.whole == (sys.argv[3] != "damaged")
import json, numpy as np
told = {"events": repr(page.read()), "rows": sweep.rows, "checksum": sweep.checksum, "damage": repr(sweep.damage)}
if sweep.whole:
    for name in ("step", "nan", "absmax", "l2"):
        column = sweep.column(name)
        told[name] = [repr(np.asarray(column.values).tolist()), repr(np.asarray(column.present).tolist())]
print(json.dumps(told))
"""


def files(folder: Path, *, damaged: bool) -> tuple[Path, Path]:
    from test_quick_reading import event_lines, written

    events, samples = folder / "events.jsonl", folder / "samples.arrow"
    events.write_bytes(b"".join(event_lines()))
    written(samples, [100] * 40)
    for file in (events, samples) if damaged else ():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    return events, samples


linux = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and a second core"
)


@linux
@pytest.mark.parametrize("how", ["whole", "killed", "damaged"])
@pytest.mark.parametrize("piece", [30_000, 65_536])  # in and out of step with the pages of a file
def test_what_another_process_reads_is_what_this_one_would(tmp_path, how, piece):
    from brickprof.journal.pages import read_events
    from brickprof.journal.sweep import Sweep

    events, samples = files(tmp_path, damaged=how == "damaged")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, str(events), str(samples), how, str(piece)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert not done.stderr
    told, sweep = json.loads(done.stdout), Sweep(samples, "samples", ("step", "nan", "absmax"), piece=30_000)
    assert told["events"] == repr(read_events(events, 3))
    assert sweep.whole == (how != "damaged")
    if sweep.whole:
        assert (told["rows"], told["checksum"], told["damage"]) == (sweep.rows, sweep.checksum, repr(sweep.damage))
        for name in ("step", "nan", "absmax", "l2"):
            column = sweep.column(name)
            said = [repr(np.asarray(column.values).tolist()), repr(np.asarray(column.present).tolist())]
            assert told[name] == said


@linux
def test_a_process_with_threads_forks_none():
    code = """
import threading, time
from brickprof.journal import errands
assert errands.possible()
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
assert not errands.possible()
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@linux
def test_an_errand_that_fails_has_no_answer():
    code = """
from brickprof.journal.errands import Errand
assert Errand(lambda: b"x" * 10**6).answer() == b"x" * 10**6
assert Errand(lambda: b"").answer() == b""
assert Errand(lambda: 1 / 0).answer() is None
print("once")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "once\n")


def python(code, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, env=environment, check=False, **options,
    )  # fmt: skip


LIVE = """
import os, sys, time
from pathlib import Path
import brickprof.journal.pages as pages
from brickprof.journal import Journal, errands
from brickprof.run import Run
errands.alone()
pages._LONG = 0
folder = Path(sys.argv[1])
journal = Journal(folder / "rank00000")
for step in range(100):
    journal.event("loss", step, {"value": 1.0, "micro": 0})
for step in range(100, 110):
    journal.loss(step, 0, 2.0, 10**18 + step)
journal._rest()
for _ in range(5000):  # one thread, as in a command: one that was joined may still be leaving
    if len(os.listdir("/proc/self/task")) == 1:
        break
    time.sleep(0.001)
run = Run.open(folder)
run.read_ahead()
cells = [cell.cell_contents for cell in run.parts[-1]._load_events.__closure__]
page = next(each for each in cells if isinstance(each, pages.Page))
os.waitid(os.P_PID, page._errand._process, os.WEXITED | os.WNOWAIT)  # it has read what there was
if sys.argv[2] == "goes on":
    journal.loss(110, 0, 3.0, 10**18 + 10**9)  # those on the slate go into the file
elif sys.argv[2] == "ends":
    journal.close()
print(sorted(run.events.step.tolist())[-1], len(run.events))
"""


@linux
@pytest.mark.parametrize(("what", "told"), [("stays", "109 110"), ("goes on", "110 111"), ("ends", "109 110")])
def test_a_run_that_goes_on_while_it_is_read_has_no_hole(tmp_path, what, told):
    from brickprof.journal import write_meta

    write_meta(tmp_path, RunMeta("k3f9", script="train.py"))
    done = python(LIVE, tmp_path, what)
    assert done.stdout.strip() == told, done.stderr


ERRAND = """
import os, signal, sys, time
from brickprof.journal.errands import Errand
for stream in map(int, sys.argv[2:]):
    os.close(stream)
def work():
    if sys.argv[1] == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if sys.argv[1] == "raises":
        raise KeyboardInterrupt
    return b"made"
errand = Errand(work)
found = errand.answer(0.5 if sys.argv[1] == "stops" else 60)
with open(os.environ["SAID"], "w") as file:
    file.write(repr(found))
"""


@linux
@pytest.mark.parametrize(
    ("how", "closed", "found"),
    [("works", "", b"made"), ("works", "0", b"made"), ("works", "0 1 2", b"made"), ("works", "2", b"made"),
     ("stops", "", None), ("raises", "", None)],
)  # fmt: skip
def test_an_errand_is_run_or_left_to_who_asks(tmp_path, monkeypatch, how, closed, found):
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    python(ERRAND, how, *closed.split(), timeout=60)
    assert (tmp_path / "said").read_text() == repr(found)


@linux
def test_of_many_ranks_only_some_are_read_ahead(tmp_path):
    from brickprof.journal import write_meta

    for rank in range(6):
        journal = Journal(tmp_path / f"rank{rank:05d}")
        journal.event("loss", 0, {"value": 1.0})
        journal.close()
    write_meta(tmp_path, RunMeta("k3f9", script="train.py"))
    code = """
import os, sys
import brickprof.journal.pages as pages
from brickprof.run import Run
pages._LONG, forks, fork = 0, [], os.fork
os.fork = lambda: forks.append(1) or fork()
run = Run.open(sys.argv[1])
run.read_ahead()
print(len(forks), len(run.events))
"""
    done = python(code, tmp_path)
    assert done.stdout.strip() == "2 6", done.stderr


def test_where_no_thread_is_to_be_had_who_asks_does_it_alone(tmp_path, monkeypatch):
    from test_quick_reading import written

    from brickprof.journal import sweep as module

    def refused(self):
        raise RuntimeError("can't start new thread")

    written(tmp_path / "samples.arrow", [100] * 40)
    monkeypatch.setattr(errands, "possible", lambda: False)
    plain = module.Sweep(tmp_path / "samples.arrow", "samples", ("step", "l2"), piece=30_000)
    assert plain.whole
    monkeypatch.setattr(module.Thread, "start", refused)
    found = module.Sweep(tmp_path / "samples.arrow", "samples", ("step", "l2"), piece=30_000)
    assert found.whole and found.checksum == plain.checksum
    assert found.column("l2").values.tolist() == plain.column("l2").values.tolist()


def test_a_path_that_is_no_text_is_looked_at_properly(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/none/such")])
    plugins._mentioned.cache_clear()
    assert plugins._mentioned(tuple(sys.path))
    plugins._mentioned.cache_clear()


def test_a_rule_that_catches_everything_is_asked_again():
    class Greedy:
        contract = "C-CLIP-001"

        def judge(self, story, contract):
            try:
                seen = len(story.grid("grad", 0))
            except BaseException:
                seen = -1
            return ContractResult(self.contract, Verdict.PASS, str(seen), "", "")

    engine = Engine([Greedy()])
    engine.story.partial = True
    engine.judge_early()
    engine.story.partial = False
    assert [result.observed for result in engine.results()] == ["0"]


def test_where_there_is_no_proc_nothing_is_forked(monkeypatch):
    monkeypatch.setattr(errands, "_TASKS", "/none/such")
    assert not errands.possible()


# -- without a parser


@pytest.mark.parametrize(
    ("typed", "plain"),
    [(["show", "k3f9"], True), (["show", "--help"], False), (["show"], False), (["show", "k3f9", "g:1"], False),
     (["show", "k3f9", "--json"], False), (["report", "k3f9"], False), (["show", "a\udcff"], False)],
)  # fmt: skip
def test_only_what_needs_no_parser_goes_without_one(typed, plain):
    assert app._plainly_shown(typed) == plain


def test_a_command_of_somebody_else_brings_the_parser_back(monkeypatch):
    monkeypatch.setattr(app.plugins, "others", lambda package: ["theirs"])
    assert not app._plainly_shown(["show", "k3f9"])


def test_the_first_look_waits_for_no_parser(tmp_path):
    Run.from_records([Event("loss", 0, {"value": 1.0})]).save(tmp_path / "run")
    code = (
        "import sys; from brickprof.cli.app import main; "
        "code = main(['show', sys.argv[1]]); print({'typer', 'pydantic', 'yaml'} & set(sys.modules), code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "set() 0", done.stderr


def test_the_file_that_says_that_a_run_was_judged_is_called_so():
    assert _showing._JUDGED == keeping.JUDGED


# -- rules that need not wait


@pytest.mark.parametrize("seed", range(8))
def test_what_is_judged_before_the_samples_are_there_is_judged_alike(tmp_path, monkeypatch, seed):
    from test_quick_reading import recorded

    folder = recorded(tmp_path / "run", seed, ranks=1 + seed % 3)
    told = []
    for early in (True, False):
        monkeypatch.setattr(Run, "on_its_way", early)
        told.append(json.dumps(diagnose(Run.open(folder)).to_dict(), sort_keys=True))
    assert told[0] == told[1]


def test_a_story_that_is_not_all_there_says_so_to_who_asks_for_more(tmp_path):
    from test_quick_reading import recorded

    run = Run.open(recorded(tmp_path / "run", 1))
    story = Story()
    rest = loading.load_events(story, run)
    assert story.trained and len(story.losses(0))
    asked = [
        lambda: story.grid("grad"), story.step_times, story.flops, lambda: story.depth,
        lambda: story.use, lambda: story.run,
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(NotYet):
            ask()
    loading.load_rest(story, rest)
    for ask in asked:
        ask()
    assert len(story.grid("grad"))


def test_early_rules_are_those_that_ask_for_events_alone(tmp_path):
    class Events:
        contract = "C-TRAINSTABLE-001"

        def judge(self, story, contract):
            return ContractResult(self.contract, Verdict.PASS, f"{len(story.events('loss', 0))}")

    class Samples(Events):
        asked = 0

        def judge(self, story, contract):
            Samples.asked += 1
            try:
                return ContractResult(self.contract, Verdict.PASS, f"{len(story.grid('grad', 0))}")
            except Exception:  # what a careless rule does: it must not take this for an answer
                return ContractResult(self.contract, Verdict.FAIL)

    class Listens(Events):
        def feed(self, record):
            self.heard = True

        def judge(self, story, contract):
            assert self.heard
            return ContractResult(self.contract, Verdict.PASS)

    class Fails(Events):
        def judge(self, story, contract):
            raise ValueError("always")

    from test_quick_reading import recorded

    run = Run.open(recorded(tmp_path / "run", 1))
    engine = Engine([Events(), Samples(), Fails(), Listens()])
    rest = loading.load_events(engine.story, run)
    engine.judge_early()
    assert list(engine._early) == [0]
    loading.load_rest(engine.story, rest)
    engine.hear(Many(list(run.records())))
    told = [engine._result(place, rule, run) for place, rule in enumerate(engine._rules)]
    assert [result.verdict.value for result in told] == ["PASS", "PASS", "NOT_EVALUATED", "PASS"]
    assert Samples.asked == 2 and told[2].why == "the rule failed: ValueError: always"
    engine.feed(Event("loss", 99, {"value": 1.0}, 10**6, 2 * 10**18))
    assert engine._result(0, engine._rules[0], run).observed != told[0].observed


def test_a_run_that_was_captured_does_not_wait_for_what_reads_logs(tmp_path):
    from test_quick_reading import recorded

    program = (
        "import sys; from brickprof.cli import app\n"
        "code = app.main(['show', sys.argv[1]])\n"
        "print(code, [name for name in sys.modules if name.startswith(('brickprof.logs', 'brickprof.rules.log_'))])"
    )
    folder = recorded(tmp_path / "run", 1)
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 ['brickprof.rules.log_lacks']", done.stdout


def test_rules_for_logs_are_the_ones_in_files_called_so():
    """The engine leaves out files by their name, and asks a rule only afterwards what tells it."""
    found = plugins.discover("brickprof.rules", leave_out=("story",))
    for attribute in ("RULE", "RULES"):
        for name, told in found.exports(attribute).items():
            for rule in told if attribute == "RULES" else (told,):
                assert (getattr(rule, "told_by", "capture") == "log") == name.startswith("log_"), rule


def test_rules_for_logs_take_their_places_when_a_log_speaks():
    engine, whole = Engine(), Engine()
    log = Event("log", 0, {"format": "text", "rows": 1}, 1, 1, -1)
    whole.story.feed(log)
    whole._complete()
    kinds = [type(rule) for rule in engine._rules]
    assert kinds == [kind for kind in map(type, whole._rules) if getattr(kind, "told_by", "") != "log"]
    before = {type(rule): rule for rule in engine._rules}
    broken = next(place for place, rule in enumerate(engine._rules) if isinstance(rule, Process))
    engine._fails(broken, ValueError("before the log"))
    engine.feed(log)
    assert [type(rule) for rule in engine._rules] == [type(rule) for rule in whole._rules] != kinds
    assert all(rule is before[type(rule)] for rule in engine._rules if type(rule) in before)
    assert [type(engine._rules[place]) for place in engine._failed] == [Process]
    assert Process not in [type(engine._rules[place]) for place, _ in engine._feeds]
    (place,) = engine._failed
    assert engine._result(place, engine._rules[place], None).why == "the rule failed: ValueError: before the log"
    assert [result.id for result in engine.results()] == [result.id for result in whole.results()]


def test_a_rule_that_is_named_twice_is_two(monkeypatch):
    """As before a log as after it: each place has its own, and hears every record once."""

    class Counts:
        contract, told_by = "C-X-001", "any"

        def __init__(self):
            self.heard = 0

        def feed(self, record):
            self.heard += 1

        def finish(self, run):
            return ContractResult(self.contract, Verdict.PASS, str(self.heard))

    theirs = types.SimpleNamespace(RULE=Counts, RULES=(Counts, Counts))
    monkeypatch.setattr(plugins, "_from_entry_points", lambda package: ([plugins.Plugin("theirs", theirs)], []))
    engine = Engine()
    engine.feed(Event("loss", 0, {"value": 1.0}, 1, 1))
    engine.feed(Event("log", 0, {"format": "text", "rows": 1}, 2, 2, -1))
    engine.feed(Event("loss", 1, {"value": 1.0}, 3, 3))
    assert [rule.heard for rule in engine._rules if isinstance(rule, Counts)] == [3, 3, 3]


@pytest.mark.parametrize("values", [[1.0], [3.0, 1.0], [1.0, 2.0, 9.0], [1e308, 1.5e308, 1.7e308], [5e-324, 1.0]])
def test_a_cell_shows_what_is_furthest_from_the_median(values):
    told = course_facts._telling(np.asarray(values))
    with np.errstate(over="ignore"):
        furthest = max(values, key=lambda value: abs(value - float(np.median(np.asarray(values) / 4)) * 4))
    assert told == float(f"{furthest:.6g}")


def test_nothing_installed_that_speaks_of_us_is_found_by_a_look_at_files(tmp_path, monkeypatch):
    assert not plugins._mentioned((str(tmp_path), "/none/such"))
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n")
    plugins._mentioned.cache_clear()
    assert not plugins._mentioned((str(tmp_path),))
    (info / "entry_points.txt").write_text("[brickprof.plugins]\nrules.mine = mine\n")
    plugins._mentioned.cache_clear()
    assert plugins._mentioned((str(tmp_path),))
    plugins._mentioned.cache_clear()
    packed = tmp_path / "packed.zip"
    packed.write_bytes(b"")
    assert plugins._mentioned((str(packed),))  # what is in there, the reader of metadata knows
    plugins._mentioned.cache_clear()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, type("Finder", (), {"find_distributions": None})])
    assert plugins._mentioned(())
    plugins._mentioned.cache_clear()


@pytest.mark.parametrize("kind", ["loss", "losses", "clip", "grad"])
def test_numbers_that_no_float_holds_are_judged_all_the_same(tmp_path, kind):
    """Nobody writes them; a file may hold them."""
    journal, huge = Journal(tmp_path / "rank00000"), 10**400
    losses = {"steps": [1, huge, True, 2], "micros": [0] * 4, "values": [1.0, 1.0, 1.0, huge], "times": [5, 6, 7, 8]}
    journal.event(kind, 0, losses if kind == "losses" else {"value": huge, "norm": huge, "l2": huge, "max_norm": huge})
    journal.event("optimizer", 0, {"lr": huge})
    journal.close()
    write_meta(tmp_path, RunMeta("k3f9", script="train.py"))
    run = Run.open(tmp_path)
    found = diagnose(run)
    assert found.verdict is Verdict.FAIL or kind in ("grad", "clip")
    assert json.loads(json.dumps(overview.facts(run, found)))["steps"] is not None
