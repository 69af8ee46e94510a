"""Copies of a step against their budget, gradients that go home in micro-batches, and storms of launches."""

from __future__ import annotations

import html
import io
import re

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
from brickprof.rules import host_reads, launch_counts
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


# -- reads that cost


@pytest.mark.parametrize(("ns", "found"), [(3 * MS, True), (MS // 100, False)])
def test_fifty_reads_in_a_step_are_told_where_they_cost(ns, found):
    made = moving(row(2))
    for step in STEPS:
        made.event("syncs", step, count=50, device=50, ns=ns, sites=[["log.py:5", 50, 0, 50, ns]], kinds=[])
    violations = judge(made).violations
    assert [violation.cause for violation in violations] == ["host-sync-in-loop"] * found
    assert all("log.py:5 reads 50" in violation.symptom for violation in violations)


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


@pytest.mark.parametrize(("times", "backwards"), [(900, 1), (3000, 16)])
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
