"""Copies of a step against their budget, gradients that go home in micro-batches, and storms of launches."""

from __future__ import annotations

import html
import io
import re
from dataclasses import replace

import pytest
from making import START, Made
from rich.console import Console

from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.records import Span
from brickprof.reports import overview, terminal
from brickprof.reports.page import tables
from brickprof.rules import host_reads, launch_counts, longest_waits
from brickprof.rules.story import Story

MS = 1_000_000
STEPS = (1, 2, 4, 8, 16, 32, 64, 128)


def judge(made: Made, rule=host_reads.Transfers, **thresholds):
    run, judged = made.run(), rule()
    if hasattr(judged, "feed"):
        for record in run.records():
            judged.feed(record)
    terms = Terms({f"{rule.contract}.{name}": value for name, value in thresholds.items()})
    return judged.judge(Story.of(run), terms.contract(rule.contract))


def row(count, site="train.py:9", way="H2D", size=4096, ns=0):
    return [site, way, count, size * count, True, False, ns]


def moving(*rows, steps=STEPS, device="cuda:0", backwards=1, step_ms=10.0, **fields) -> Made:
    """Steps with these copies; a list in place of a row holds one for each step."""
    made = Made(*(f"b{place}" for place in range(20)))
    for event in made.records:
        if event.kind == "tensor":
            event.fields["device"] = device
    for place, step in enumerate(steps):
        for micro in range(backwards):
            made.event("loss", step, value=1.0, micro=micro)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
        now = [each[place] if isinstance(each[0], list) else each for each in rows]
        told = {"count": sum(r[2] for r in now), "bytes": sum(r[3] for r in now), "backwards": backwards}
        made.event("transfers", step, **told, device=[device], rows=now, **fields)
        start = START + step * 10**10
        made.records.append(Span(Brick(Kind.STEP, "step"), step, start, start + int(step_ms * MS), "step", id=step + 1))
    return made


# -- healthy


def test_a_batch_that_is_moved_in_a_few_copies_holds():
    result = judge(moving(row(2), row(1, "train.py:40", "D2H", 4)))
    assert (result.verdict, result.violations) == (Verdict.PASS, ())
    assert result.observed.startswith("3 transfers a step") and "as at first" in result.threshold


@pytest.mark.parametrize(
    "made",
    [
        moving([row(400 if step == 64 else 2) for step in STEPS]),
        moving([row(400 if step in (32, 64) else 2) for step in STEPS]),
        moving([row(4 if step > 8 else 2) for step in STEPS]),
        moving(row(64), backwards=16),
        moving(row(40, ns=MS // 10)),
    ],
    ids=["one evaluation", "two checkpoints", "two copies more", "micro-batches", "many that cost nothing"],
)
def test_ordinary_traffic_is_no_finding(made):
    assert judge(made).verdict is Verdict.PASS


def test_nothing_transferred_is_no_pass():
    made = moving()
    assert judge(made).verdict is Verdict.VACUOUS


@pytest.mark.parametrize(("device", "why"), [("cpu", "no device"), ("cuda:0", "in full")])
def test_without_evidence_nothing_is_judged(device, why):
    made = moving(row(2), device=device)
    made.records = [record for record in made.records if getattr(record, "kind", "") != "transfers"]
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED and why in result.why


def test_a_compiled_run_says_why_it_is_not_judged():
    made = moving(row(2))
    made.records = [record for record in made.records if getattr(record, "kind", "") != "transfers"]
    made.event("compile", 0, model="Net", path="")
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED and "compiled (Net)" in result.why


def test_copies_of_compiled_code_have_their_block_and_the_functions_that_were_compiled():
    made = moving(row(2))
    made.records = [record for record in made.records if getattr(record, "kind", "") != "transfers"]
    for name in ("Net.forward", "mix", "Net.forward", "other", "last"):
        made.event("compile", 0, function=name, site="model.py:12")
    made.records.append(Span(Brick(Kind.BLOCK, "a", "Net"), 30, START, START + 90, id=900))
    for number, parent in enumerate((900, 900, 7)):
        told = {"id": 910 + number, "parent": parent, "attributes": {"source": "profiler"}}
        made.records.append(Span(Brick(Kind.TRANSFER, "H2D"), 30, START + 10, START + 10, **told))
    result = judge(made)
    assert "(Net.forward at model.py:12, mix at model.py:12, other at model.py:12 and 1 more)" in result.why
    assert result.observed == "3 copies between host and device in a step, most of them in a"


def windows(*copies: int) -> Made:
    """A compiled run in whose windows of the profiler so many copies were seen."""
    made = moving(row(2))
    made.records = [record for record in made.records if getattr(record, "kind", "") != "transfers"]
    made.event("compile", 0, function="Net.forward", site="model.py:12")
    for place, count in enumerate(copies):
        step = 30 * (place + 1)
        for number in range(count):
            told = {"id": 1000 * step + number, "parent": 7, "attributes": {"source": "profiler"}}
            made.records.append(Span(Brick(Kind.TRANSFER, "D2H"), step, START + 10, START + 10, **told))
        made.event("window", step, kernels=100, written=100, names=[])
    return made


@pytest.mark.parametrize(
    ("copies", "verdict"),
    [
        ((90, 91), Verdict.FAIL), ((90,), Verdict.NOT_EVALUATED), ((90, 2), Verdict.NOT_EVALUATED),
        ((10, 10, 10), Verdict.NOT_EVALUATED), ((3, 2, 0), Verdict.PASS), ((3, 3), Verdict.NOT_EVALUATED),
    ],
    ids=["far too many", "once", "not always", "numbers that are read too", "as declared", "seen twice alone"],
)  # fmt: skip
def test_compiled_code_is_held_to_what_is_declared_as_far_as_windows_decide(copies, verdict):
    result = judge(windows(*copies), transfers=3)
    assert result.verdict is verdict, result
    assert all("copies between host and device in a step, where 3 are declared" in v.symptom for v in result.violations)
    assert all(violation.first_step == 30 and violation.evidence for violation in result.violations)
    assert judge(windows(*copies)).verdict is Verdict.NOT_EVALUATED, "nothing is declared, and nothing is learned"


# -- too many


def test_a_line_that_copies_for_every_parameter_is_named():
    (violation,) = judge(moving(row(60, "clip.py:7", ns=3 * MS), row(2))).violations
    assert (violation.cause, violation.severity, violation.granularity) == (
        "extra-transfers", Severity.WARNING, "transfer",
    )  # fmt: skip
    assert "clip.py:7 makes 60 copies (H2D)" in violation.symptom and "30%" in violation.symptom


@pytest.mark.parametrize(("declared", "verdict"), [(2, Verdict.FAIL), (3, Verdict.PASS)])
def test_a_declared_budget_is_held_to(declared, verdict):
    result = judge(moving(row(2), row(1, "train.py:40", "D2H", 4)), transfers=declared)
    assert result.verdict is verdict and result.threshold == f"{declared} transfers a step"


def test_declared_bytes_are_held_to():
    (violation,) = judge(moving(row(2, size=10**6)), bytes=10**6).violations
    assert violation.cause == "extra-transfers" and "2 MB" in violation.symptom


def test_more_than_at_first_is_told_with_the_step_it_began_in():
    (violation,) = judge(
        moving(row(2), [row(20 if step > 8 else 0, "log.py:3", "D2H", 4) for step in STEPS])
    ).violations
    assert (violation.cause, violation.first_step, violation.static) == ("extra-transfers", 16, False)
    assert "log.py:3" in violation.symptom


def test_a_declared_budget_takes_the_place_of_the_learned_one():
    made = moving(row(2), [row(20 if step > 8 else 0, "log.py:3", "D2H", 4) for step in STEPS])
    result = judge(made, transfers=30)
    assert (result.verdict, result.threshold) == (Verdict.PASS, "30 transfers a step")


def episodes(each_us=8, more=0, **fields) -> Made:
    """An agent whose episodes get longer, and which copies one observation at a time."""
    lengths = (18, 22, 15, 30, 60, 120, 300, 500)
    made = moving([row(n, "rollout.py:8", "H2D", 16, ns=n * each_us * 1000) for n in lengths], step_ms=1000.0)
    for event in made.records:
        if getattr(event, "kind", "") == "transfers":
            event.fields.update(fields, count=event.fields["count"] + more)
    return made


@pytest.mark.parametrize(("each_us", "verdict"), [(8, Verdict.PASS), (800, Verdict.FAIL), (0, Verdict.FAIL)])
def test_more_copies_than_at_first_are_a_finding_where_they_cost_or_nobody_took_the_time(each_us, verdict):
    assert judge(episodes(each_us)).verdict is verdict


def test_copies_without_a_row_count_as_what_all_copies_took():
    assert judge(episodes(more=9, ns=5 * MS)).verdict is Verdict.PASS
    assert judge(episodes(more=9, ns=100 * MS)).verdict is Verdict.FAIL
    assert judge(episodes(more=9)).verdict is Verdict.FAIL, "nobody timed those that have no row"


def test_a_step_that_was_not_timed_makes_no_copy_cheap():
    made = episodes()
    made.records = [record for record in made.records if not isinstance(record, Span)]
    assert judge(made).verdict is Verdict.FAIL


# -- more bytes than at first


def since_16(early, late):
    return [late if step > 8 else early for step in STEPS]


def swelling(step_ms=None, **late) -> Made:
    """One line fetches a number at first, and then what ``late`` says; a step lasts as long as ``step_ms`` has it."""
    made = moving(row(2), since_16(row(1, "log.py:3", "D2H", 4), row(1, "log.py:3", "D2H", **late)))
    lasts = dict(zip(STEPS, step_ms or [10] * len(STEPS), strict=True))
    made.records = [
        replace(each, end_ns=each.start_ns + int(lasts[each.step] * MS)) if isinstance(each, Span) else each
        for each in made.records
    ]  # fmt: skip
    return made


@pytest.mark.parametrize("late", [{"size": 128 * 10**6, "ns": 7 * MS}, {"size": 128 * 10**6}], ids=["timed", "untimed"])
def test_a_line_that_comes_to_move_many_bytes_is_told_with_the_step_it_began_in(late):
    (violation,) = judge(swelling(**late)).violations
    assert (violation.cause, violation.first_step, violation.static) == ("extra-transfers", 16, False)
    assert violation.symptom.startswith("128 MB are moved in a step since step 16, 8.2 kB at first")
    assert violation.symptom.endswith("log.py:3")


def test_the_learned_budget_says_its_bytes():
    assert judge(moving(row(2), row(1, "train.py:40", "D2H", 4))).threshold == (
        "3 transfers and 8.2 kB a step, as at first"
    )


LONGER = since_16(10, 100)


@pytest.mark.parametrize(
    "made",
    [
        swelling(size=128 * 10**6, ns=MS // 2),
        swelling(size=128 * 10**6, ns=32 * MS, step_ms=LONGER),
        swelling(size=8 * 10**6, ns=95 * MS, step_ms=LONGER),
        swelling(size=4 * 10**6, ns=7 * MS),
        moving(since_16(row(2, size=30 * 10**6, ns=4 * MS), row(2, size=55 * 10**6, ns=7 * MS))),
        moving([row(2, size=10**8 if step in (16, 64) else 4096, ns=5 * MS) for step in STEPS]),
        moving([row(2, size=4096 if step == 128 else 10**8, ns=4 * MS) for step in STEPS]),
    ],
    ids=[
        "that cost little", "of a longer sequence", "awaited with what was queued before", "few", "not twice as many",
        "of two evaluations", "and a last small batch",
    ],
)  # fmt: skip
def test_more_bytes_alone_are_no_finding(made):
    assert judge(made).verdict is Verdict.PASS


def test_bytes_that_are_declared_are_not_learned():
    result = judge(swelling(size=128 * 10**6, ns=7 * MS), bytes=2 * 10**8)
    assert (result.verdict, result.threshold) == (Verdict.PASS, "200 MB a step")


@pytest.mark.parametrize("made", [
    lambda: swelling(size=128 * 10**6, ns=7 * MS),
    lambda: moving(row(2), since_16(row(1), row(20, ns=MS // 10))),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["checkpoint", "evaluation"])
def test_looks_that_all_fall_on_a_checkpoint_say_nothing_of_other_steps(made, kind):
    aside, always = made(), made()
    for step in STEPS:
        always.event(kind, step, op="save")
        if step > 8:
            aside.event(kind, step, op="save")
    assert judge(aside).verdict is Verdict.PASS and judge(always).verdict is Verdict.FAIL


# -- the script's own bricks


def offloading(copies_inside: int, **declared) -> Made:
    made = moving(row(copies_inside))
    for step in STEPS:
        start, number = START + step * 10**10, 1000 + step
        own = Span(Brick(Kind.TRANSFER, "to_device"), step, start, start + MS, "user", id=number, attributes=declared)
        inner = {"direction": "H2D", "bytes": 4096, "site": "train.py:9"}
        copies = [
            Span(
                Brick(Kind.TRANSFER, "H2D"), step, start, start + 1, "transfer", id=5000 + 10 * step + place,
                parent=number, attributes=inner,
            )
            for place in range(copies_inside)
        ]  # fmt: skip
        made.records += [own, *copies]
    return made


@pytest.mark.parametrize(("inside", "told"), [(0, "1 transfers"), (1, "1 transfers"), (3, "3 transfers")])
def test_a_copy_inside_a_transfer_brick_is_counted_once(inside, told):
    assert judge(offloading(inside)).observed.startswith(told)


@pytest.mark.parametrize(
    ("declared", "verdict"),
    [({"transfers": 3}, Verdict.PASS), ({"transfers": 2}, Verdict.FAIL), ({"bytes": 4096}, Verdict.FAIL)],
)
def test_a_brick_is_held_to_what_it_declares(declared, verdict):
    result = judge(offloading(3, **declared))
    assert result.verdict is verdict
    assert all(violation.brick == "to_device" for violation in result.violations)


def nested(parents, **declared) -> Made:
    """A brick that declares what it transfers, 10 at its first, and another one inside; a copy for each of parents."""
    made = moving(row(len(parents)))
    for step in STEPS:
        start, number = START + step * 10**10, 1000 * step
        spans = {"step": 10, "outer": 11, "inner": 12, "backward": 13, "later": 90}
        kinds = {"outer": Kind.BLOCK, "inner": Kind.TRANSFER, "backward": Kind.STEP}
        for place, parent in enumerate(parents):
            began = start + MS * (9 if parent == "later" else 1) + place
            made.records.append(
                Span(
                    Brick(Kind.TRANSFER, "H2D"), step, began, began + 1, "transfer", id=number + 20 + place,
                    parent=number + spans[parent], attributes={"bytes": 4096},
                )
            )  # fmt: skip
        for name, kind in kinds.items():
            told = {"id": number + spans[name], "attributes": declared if name == "outer" else {}}
            made.records.append(Span(Brick(kind, name), step, start, start + 5 * MS, "user", **told))
    return made


@pytest.mark.parametrize(
    ("parents", "verdict"),
    [
        (["outer", "inner", "backward"], Verdict.PASS), (["outer", "inner", "backward", "backward"], Verdict.FAIL),
        (["inner"] * 4, Verdict.FAIL), (["inner"] * 3 + ["step"], Verdict.PASS),
        (["inner"] * 3 + ["later"], Verdict.PASS),
    ],
    ids=["as declared", "one more in backward", "one more inside", "another thread's", "afterwards"],
)  # fmt: skip
def test_a_brick_is_held_to_what_is_copied_in_all_that_it_holds(parents, verdict):
    result = judge(nested(parents, transfers=3))
    assert result.verdict is verdict
    assert all(violation.symptom.startswith("outer makes 4 copies (16.4 kB)") for violation in result.violations)


# -- reads that cost


@pytest.mark.parametrize(("ns", "found"), [(3 * MS, True), (MS // 100, False)])
def test_fifty_reads_in_a_step_are_told_where_they_cost(ns, found):
    made = moving(row(2))
    for step in STEPS:
        sites = [["log.py:5", 50, 0, 50, ns, ns // 50]]
        made.event("syncs", step, count=50, device=50, ns=ns, sites=sites, kinds=[])
    violations = judge(made).violations
    assert [violation.cause for violation in violations] == ["host-sync-in-loop"] * found
    assert all("log.py:5 reads 50" in violation.symptom for violation in violations)


@pytest.mark.parametrize(
    ("count", "ns", "step_ms", "found"),
    [(100, MS, 2000.0, False), (100, MS, 10.0, True), (100, MS, 20.0, False), (63, MS, 10.0, False)],
)
def test_a_hundred_reads_in_a_step_are_told_where_they_cost(count, ns, step_ms, found):
    made = moving(row(2), step_ms=step_ms)
    for step in STEPS:
        sites = [["ppo.py:5", count, 0, count, ns, ns // count]]
        made.event("syncs", step, count=count, device=count, ns=ns, sites=sites, kinds=[])
    violations = judge(made).violations
    assert [violation.cause for violation in violations] == ["host-sync-in-loop"] * found


@pytest.mark.parametrize(("longest", "found"), [(7.9, False), (1.0, True)])
@pytest.mark.parametrize("brick", [Brick(Kind.HOST_SYNC, "item"), Brick(Kind.TRANSFER, "D2H")])
def test_what_the_longest_read_waits_for_is_no_cost_of_reading_often(brick, longest, found):
    """The first of a hundred waits for all that was queued; one read would as well."""
    made = moving(row(2))
    for step in STEPS:
        told = {"sites": [["ppo.py:5", 100, 0, 100, 8 * MS]], "kinds": []}
        made.event("syncs", step, count=100, device=100, ns=8 * MS, **told)
        for place, ms in enumerate((longest, 0.001)):
            start, told = START + step * 10**10, {"id": 9000 + 2 * step + place, "attributes": {"site": "ppo.py:5"}}
            made.records.append(Span(brick, step, start, start + int(ms * MS), "sync", **told))
    violations = judge(made).violations
    assert [violation.cause for violation in violations] == ["host-sync-in-loop"] * found
    assert all("all but one take 70% of the step" in str(violation.whys) for violation in violations)


def hundred(longest=None, steps=STEPS, waits=False) -> Made:
    """A line reads, or waits, a hundred times in each step; all of these take 8 of its 10 ms, and the ``longest`` of
    them so many."""
    told = [] if longest is None else [int(longest * MS)]
    made = moving(row(2), steps=steps)
    for step in steps:
        sites = [["ppo.py:5", 1, 0, 1, 900, 900]] if waits else [["ppo.py:5", 100, 0, 100, 8 * MS, *told]]
        more = {"waits": [["ppo.py:5", "synchronize", 100, 8 * MS, *told]]} if waits else {}
        made.event("syncs", step, count=sites[0][1], device=sites[0][1], ns=8 * MS, sites=sites, kinds=[], **more)
    return made


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("longest", "found"), [(7.9, False), (1.0, True), (None, False)])
def test_the_longest_wait_is_known_from_the_journal_without_any_span(longest, found, waits):
    """Where nobody says how long it was, it may have been all."""
    violations = judge(hundred(longest, waits=waits)).violations
    assert [violation.cause for violation in violations] == ["host-sync-in-loop"] * found
    assert all("all but one take 70% of the step" in str(violation.whys) for violation in violations)


def test_what_the_journal_says_of_the_longest_goes_before_the_spans_that_were_written():
    """Of a step with more waits than spans, the longest may have none."""
    made = hundred(7.9)
    for step in STEPS:
        start, told = START + step * 10**10, {"id": 9000 + step, "attributes": {"site": "ppo.py:5"}}
        made.records.append(Span(Brick(Kind.HOST_SYNC, "item"), step, start, start + 1000, "sync", **told))
    assert judge(made).violations == ()


def test_lines_beyond_those_whose_spans_are_kept_are_not_told_as_if_each_wait_were_the_usual_one(monkeypatch):
    monkeypatch.setattr(longest_waits, "_MOST", 2)
    made = hundred()
    for step in STEPS:
        start, told = START + step * 10**10, {"id": 9000 + step, "attributes": {"site": "ppo.py:5"}}
        made.records.append(Span(Brick(Kind.HOST_SYNC, "item"), step, start, start + int(7.9 * MS), "sync", **told))
    assert judge(made).violations == ()


def test_a_line_that_reads_and_waits_has_to_do_so_in_nearly_all_steps():
    made = hundred(1.0, steps=STEPS[:4])
    for event in made.records:
        if getattr(event, "kind", "") == "syncs":
            event.fields["waits"] = [["ppo.py:5", "synchronize", 100, 8 * MS, MS]]
    for step in STEPS[4:]:
        made.event("syncs", step, count=1, device=1, sites=[["train.py:9", 1, 0, 1, 900, 900]], kinds=[])
    assert judge(made).violations == ()


# -- an environment's steps

TURNS = {"rollout.py:8": ["range(horizon)", "env"]}


def playing(counts=(153, 120, 198, 101, 166, 187, 140, 110), around=TURNS, **kinds) -> Made:
    """A policy on a device whose actions are read one by one, 0.4 ms each."""
    made = moving(row(2), step_ms=300.0)
    for step, count in zip(STEPS, counts, strict=True):
        ns = count * 4 * MS // 10
        told = {"around": around} if around else {}
        sites = [["rollout.py:8", count, 0, count, ns, MS]]
        made.event("syncs", step, count=count, device=count, ns=ns, sites=sites, kinds=[], **told, **kinds)
    return made


def test_what_an_environment_reads_on_a_device_is_a_note_that_decides_nothing():
    result = judge(playing())
    assert result.verdict is Verdict.PASS
    (note,) = result.violations
    assert (note.severity, note.cause) == (Severity.INFO, "host-sync-in-loop")
    assert note.symptom == "rollout.py:8 reads 146 numbers back to the host in a step, not as many in each"
    assert "several environments" in note.action and "stack" not in note.action
    found = diagnose(playing().run()).findings
    assert [each.root_cause for each in found if each.severity is not Severity.INFO] == []


@pytest.mark.parametrize(
    "made",
    [
        lambda: playing(around=None),
        lambda: playing(around={"rollout.py:8": ["range(steps)", "model.parameters()"]}),
        lambda: playing(counts=[150] * 8),
        lambda: playing(waits=[["rollout.py:8", "synchronize", 90, 200 * MS, MS]]),
    ],
    ids=["nobody read the source", "over parameters", "as many in each step", "it waits for the device as well"],
)
def test_other_loops_that_read_as_much_are_told_as_before(made):
    (violation,) = judge(made()).violations
    assert (violation.severity, violation.cause) == (Severity.WARNING, "host-sync-in-loop")


def test_a_note_hides_no_mistake():
    made = playing()
    for event in made.records:
        if getattr(event, "kind", "") == "transfers":
            event.fields["rows"].append(row(60, "clip.py:7", ns=100 * MS))
    (violation,) = judge(made).violations
    assert (violation.severity, violation.cause) == (Severity.WARNING, "extra-transfers")


# -- micro-batches


def accumulating(home, backwards=8) -> Made:
    return moving(row(2 * backwards), backwards=backwards, home=home)


@pytest.mark.parametrize(
    ("home", "verdict"),
    [
        ([["accumulate.py:4", 8, 160, 8 << 20]], Verdict.FAIL),
        ([["train.py:50", 1, 20, 1 << 20]], Verdict.PASS),
        ([["train.py:44", 8, 8, 32]], Verdict.PASS),
        ([], Verdict.PASS),
    ],
    ids=["gradients after every backward", "once a step", "a number each", "nothing"],
)
def test_gradients_that_go_home_in_every_micro_batch_are_named(home, verdict):
    result = judge(accumulating(home), host_reads.Accumulation)
    assert result.verdict is verdict
    assert all("accumulate.py:4" in violation.symptom for violation in result.violations)


def test_one_mistake_is_one_finding():
    made = moving(
        row(640, "accumulate.py:4", "D2H", ns=5 * MS), backwards=8, home=[["accumulate.py:4", 8, 640, 1 << 20]]
    )
    found = [each for each in diagnose(made.run()).findings if each.severity is not Severity.INFO]
    assert [each.root_cause for each in found] == ["extra-transfers"]


# -- the table of lines


def told_of(made: Made, width: int = 200) -> tuple[str, str]:
    """What the terminal and the page say of a run."""
    run = made.run()
    found, stream = diagnose(run), io.StringIO()
    overview.render(found, Console(file=stream, width=width))
    return stream.getvalue(), " ".join(html.unescape(re.sub(r"<[^>]+>", " ", tables.moved(found))).split())


def now_and_then() -> Made:
    """A checkpoint is fetched in one of eight steps and takes long; a batch is moved in each."""
    seldom = [row(1, "train.py:70", "D2H", 8_000_000, 5 * MS), *[row(0, "train.py:8", "pin")] * 7]
    made = moving(row(2, ns=MS), seldom)
    for event in made.records:
        if getattr(event, "kind", "") == "transfers":
            event.fields["rows"] = [each for each in event.fields["rows"] if each[2]]
    return made


def test_a_copy_of_few_steps_is_told_as_such_and_ranked_by_what_it_takes_on_average():
    made = now_and_then()
    first, second = diagnose(made.run()).run["transfers"]
    assert (first["site"], first["steps"], first["of"]) == ("train.py:9", 8, 8)
    assert (second["site"], second["steps"], second["of"], second["count"]) == ("train.py:70", 1, 8, 1.0)
    shown, page = told_of(made)
    assert "the host goes on  in 1 of 8 steps" in shown and "in all 8 steps" in shown
    assert "copy to host train.py:70 1 of 8 1 8 MB" in page and "train.py:9 all 8 2" in page


def test_lines_that_have_no_row_are_counted_with_what_they_move_and_take():
    made = moving(*(row(1, f"train.py:{line}", size=1000 * line, ns=line * MS) for line in range(1, 12)))
    told = diagnose(made.run()).run
    assert len(told["transfers"]) == 8
    assert told["transfers_more"] == {"lines": 3, "bytes": 6000.0, "ns": 6.0 * MS}
    for shown in told_of(made):
        assert "and 3 more: 6 kB, 6.000 ms in a step on average" in shown
    assert "transfers_more" not in diagnose(now_and_then().run()).run


# -- launches


def launching(times: int, kind="launches", backwards=1) -> Made:
    made = moving(row(2), backwards=backwards)
    for step in STEPS[:3]:
        rows = [["rmsnorm_row", times, "norm.py:12"], ["other", 3, "x.py:1"]]
        fields = {"kernels": rows} if kind == "launches" else {"most_launched": [each[:2] for each in rows]}
        made.event(kind, step, count=times + 3, **fields)
    return made


@pytest.mark.parametrize("kind", ["launches", "window"])
def test_a_kernel_that_is_launched_for_every_row_is_named(kind):
    (violation,) = judge(launching(50_000, kind), launch_counts.Launches).violations
    assert (violation.cause, violation.brick) == ("launch-storm", "rmsnorm_row") and "50,000 times" in violation.symptom
    assert ("norm.py:12" in violation.symptom) == (kind == "launches")


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<fl"
)


def test_the_block_that_launches_a_kernel_most_is_named_and_of_equal_layers_the_first():
    made = moving(row(2))
    layers = [f"blocks.{n}.attention.rope" for n in range(3)]
    for path in (*layers, "head"):
        made.block(path)
    made.forward(0, *layers, "head")
    made.event("brick", 0, id=70, brick_kind="step", path="backward", model="Net")
    launches = zip((*layers[::-1], "head"), (1100, 1000, 1000, 900), strict=True)
    by = [[70, 4000], *([made.numbers[path], n] for path, n in launches)]
    for step in STEPS[:2]:
        made.event("window", step, kernels=9000, most_launched=[[ELEMENTWISE, 8000, "", by], ["fill", 3, "", []]])
    (violation,) = judge(made, launch_counts.Launches).violations
    assert violation.brick == "blocks.0.attention.rope"
    symptom = "vectorized_elementwise_kernel · BinaryFunctor is launched 8,000 times in a step, 1,000 of them by "
    assert violation.symptom == symptom + "blocks.0.attention.rope, and about as often by 2 more like it"


@pytest.mark.parametrize("kind", ["launches", "window"])
def test_many_launches_in_many_micro_batches_are_a_note_that_decides_nothing(kind):
    made = launching(7200, kind, backwards=8)
    result = judge(made, launch_counts.Launches)
    (note,) = result.violations
    assert (result.verdict, note.severity) == (Verdict.NOT_EVALUATED, Severity.INFO) and not note.explains
    assert "is launched 7,200 times in a step, 900 for each of 8 micro-batches" in note.symptom
    diagnosis = diagnose(made.run())
    assert {each.id: each.verdict for each in diagnosis.contracts}["C-GPUTRAIN-002"] is Verdict.PASS
    assert [each.root_cause for each in diagnosis.findings if each.severity is not Severity.INFO] == []


def test_too_many_launches_for_each_micro_batch_are_a_finding_as_before():
    (violation,) = judge(launching(16_000, backwards=8), launch_counts.Launches).violations
    assert violation.severity is Severity.WARNING and "is launched 2,000 times in a step" in violation.symptom


@pytest.mark.parametrize(("times", "backwards"), [(900, 1), (900, 16)])
def test_ordinary_launches_decide_nothing(times, backwards):
    made = launching(times, backwards=backwards)
    result = judge(made, launch_counts.Launches)
    assert (result.verdict, result.violations) == (Verdict.NOT_EVALUATED, ())
    assert {each.id: each.verdict for each in diagnose(made.run()).contracts}["C-GPUTRAIN-002"] is Verdict.PASS


# -- the table


def shown(render) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=140, color_system=None))
    return stream.getvalue()


def test_the_table_stands_in_the_overview_and_in_the_report_of_a_run_that_is_slow_by_it():
    healthy, slow = moving(row(2, ns=MS)).run(), moving(row(60, "clip.py:7\x1b[2J", ns=3 * MS)).run()
    diagnosis = diagnose(healthy)
    assert "train.py:9" not in shown(lambda console: terminal.render(diagnosis, console))
    table = shown(lambda console: overview.render(diagnosis, console))
    assert "train.py:9  to device, pinned, the host goes on" in table and "8.19 kB" in table
    diagnosis = diagnose(slow)
    report = shown(lambda console: terminal.render(diagnosis, console))
    assert "60.0x" in report and "\x1b" not in report
    assert shown(lambda console: overview.render(diagnosis, console)).count("60.0x") == 1
