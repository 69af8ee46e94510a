"""Bricks whose time on the device scatters, or is far beyond their budget, are traced, and rarely."""

from __future__ import annotations

import io
import json
import random
import time
from dataclasses import replace

import pytest
import torch
from making import START, Made
from rich.console import Console

import brickprof
from brickprof import settings
from brickprof.bricks import Brick, Kind
from brickprof.capture.budgets import Budgets, Declared, efficiency
from brickprof.capture.device_clock import DeviceClock
from brickprof.contracts import registry
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import Diagnosis
from brickprof.errors import ConfigurationError
from brickprof.records import BUDGET, DECLARED, PHASES, Span
from brickprof.reports import budgets as reported
from brickprof.reports import html as page
from brickprof.reports import overview
from brickprof.rules.budgeted import Budgeted
from brickprof.rules.story import Story

FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")


def fed(steps, times, first=0, declared=None, whole=10_000):
    """``times``: of each brick, what it takes in a step, by a generator of numbers or by that and the step."""
    told = []
    budgets = Budgets(told.append, declared)
    draw = random.Random(0)
    for step in range(first, first + steps):
        budgets.learn(step, whole, [(brick, FORWARD, int(time(draw, step))) for brick, time in times.items()])
    return told, budgets


def steady(ns):
    return lambda draw, step: ns


def scattering(draw, step):
    return draw.choice([1000, 3000])


def slower_from(step_, before, after):
    return lambda draw, step: after if step >= step_ else before


def test_steady_bricks_are_left_alone():
    told, _ = fed(2000, {1: lambda draw, step: draw.gauss(5000, 300), 2: steady(4000)})
    assert told == []


def test_the_brick_that_scatters_is_named():
    told, _ = fed(200, {1: steady(5000), 2: scattering})
    assert [(strain.brick, strain.reason) for strain in told] == [(2, "cv_exceeded")]
    assert told[0].cv > 0.3


def test_three_times_in_a_run_and_further_and_further_apart():
    assert len(fed(20_000, {1: scattering})[0]) == 3
    assert len(fed(400, {1: scattering})[0]) == 1


def test_what_nobody_declared_waits_until_the_training_affords_a_closer_look():
    told, at = [], [0]
    budgets = Budgets(lambda strain: told.append((at[0], strain.brick)), None, lambda: at[0] >= 300)
    draw = random.Random(0)
    for at[0] in range(400):
        budgets.learn(at[0], 10_000, [(1, FORWARD, scattering(draw, at[0]))])
    assert told == [(300, 1)]


def test_what_was_declared_does_not_wait():
    told = []
    declared = Declared({}, {})
    declared.add(2, 1.0)
    budgets = Budgets(told.append, declared, lambda: False)
    draw = random.Random(0)
    for step in range(200):
        budgets.learn(step, 10_000, [(1, FORWARD, scattering(draw, step)), (2, FORWARD, 5000)])
    assert [(strain.brick, strain.reason) for strain in told] == [(2, "efficiency_low")]


def test_what_hardly_matters_may_scatter():
    assert fed(500, {1: lambda draw, step: draw.choice([10, 300])})[0] == []


def test_the_first_steps_may_scatter():
    assert fed(64, {1: scattering})[0] == []


# -- efficiency


def test_a_budget_is_learned_from_the_first_settled_window():
    _, budgets = fed(79, {1: slower_from(64, 90_000, 5000)})
    assert budgets.of(1, FORWARD) is None
    _, budgets = fed(400, {1: lambda draw, step: 90_000 if step < 64 else 5000 + step % 3})
    assert budgets.of(1, FORWARD) == 5001 and budgets.of(1, BACKWARD) is None and budgets.of(9, FORWARD) is None


@pytest.mark.parametrize(("after", "ratio"), [(5000, None), (19_000, None), (21_000, 5 / 21)])
def test_a_brick_that_takes_four_times_what_it_took_is_named(after, ratio):
    """All times of the last window are alike: what it is compared with is the first."""
    declared = Declared({}, {})
    told = []
    budgets = Budgets(told.append, declared)
    for step in range(64, 90):
        budgets.learn(step, 50_000, [(1, FORWARD, 5000)])
    budgets._due = 120  # nobody judges the window in which it changes
    for step in range(90, 140):
        budgets.learn(step, 50_000, [(1, FORWARD, after)])
    if ratio is None:
        assert told == []
    else:
        (strain,) = told
        assert (strain.reason, strain.budget_ns) == ("efficiency_low", 5000)
        assert strain.efficiency == pytest.approx(ratio) and strain.cv == 0


def test_a_declared_budget_is_judged_from_the_first_window_on_and_however_small_the_brick():
    declared = Declared({}, {})
    declared.add(1, 0.01)  # 10 ns
    told, budgets = fed(200, {1: steady(50), 2: steady(50)}, declared=declared)
    assert [(strain.brick, strain.reason, strain.efficiency) for strain in told] == [(1, "efficiency_low", 0.2)]
    assert budgets.of(1, FORWARD) == 10 and budgets.of(2, FORWARD) == 50


def test_a_small_brick_with_a_budget_may_still_scatter():
    declared = Declared({}, {})
    declared.add(1, 1.0)
    assert fed(500, {1: lambda draw, step: draw.choice([10, 300])}, declared=declared)[0] == []


def test_both_reasons_are_one():
    declared = Declared({}, {})
    declared.add(1, 0.2)
    told, _ = fed(100, {1: scattering}, declared=declared)
    assert [strain.reason for strain in told] == ["both"]
    assert told[0].efficiency < 0.25 and told[0].cv > 0.15


def test_low_efficiency_is_told_as_rarely_as_scatter():
    declared = Declared({}, {})
    declared.add(1, 0.1)
    assert len(fed(400, {1: steady(5000)}, declared=declared)[0]) == 1
    assert len(fed(20_000, {1: steady(5000)}, declared=declared)[0]) == 3


def test_efficiency_is_at_most_one():
    assert [efficiency(100, actual) for actual in (400, 200, 50, 0)] == [0.25, 0.5, 1.0, 1.0]


def test_budgets_are_declared_by_name():
    bricks = {
        Brick(Kind.BLOCK, "blocks.0.attention", "GPT"): 1,
        Brick(Kind.BLOCK, "blocks.0.mlp", "GPT"): 2,
        Brick(Kind.BLOCK, "", "GPT"): 3,
    }
    given = {"blocks.*.attention": 5, "*.mlp backward": 7, "GPT": 9}
    declared = Declared(given, bricks)
    found = {(brick, phase): declared.of(brick, phase) for brick in (1, 2, 3, 4) for phase in (FORWARD, BACKWARD)}
    assert {key: value for key, value in found.items() if value is not None} == {
        (1, FORWARD): 5000.0, (2, BACKWARD): 7000.0, (3, FORWARD): 9000.0,
    }  # fmt: skip


def test_settings_take_budgets(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.brickprof.budgets]\n"blocks.*" = 500\nhead = 1.5\n')
    assert settings.load(start=tmp_path).budgets == {"blocks.*": 500.0, "head": 1.5}
    chosen = settings.load({"budgets": "head=2;blocks.0=3"}, start=tmp_path)
    assert settings.Settings.from_json(chosen.to_json()).budgets == {"head": 2.0, "blocks.0": 3.0}
    for wrong in ("head", "head=0", "head=-1", "head=nan", "head=soon"):
        with pytest.raises(ConfigurationError, match="head"):
            settings.load({"budgets": wrong}, start=tmp_path)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "500", True])
def test_a_brick_wants_a_budget_that_is_a_number(wrong):
    with pytest.raises(ValueError, match="budget_us"):
        brickprof.brick("attention", budget_us=wrong)


# -- in a training, on a device whose bricks take what the test says


class Event:
    def __init__(self, device):
        self.device = device

    def query(self):
        return True

    def elapsed_time(self, later):
        return (later.at - self.at) / 1e6


class Device:
    at = 0

    def ready(self):
        return True

    def current(self):
        return 0

    def event(self):
        return Event(self)

    def record(self, event, device):
        event.at = self.at
        return 0


def trained(tmp_path, monkeypatch, took, *, steps=200, budget_us=None, **given):
    """A step is a model and the brick ``attention``, which takes the device ``took(step)`` ns of 1 ms."""
    device = Device()
    monkeypatch.setattr(DeviceClock, "lane", device)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with brickprof.attach(net, optimizer, out=tmp_path, overhead="100%", **given) as bp:
        for step in range(steps):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 4)).mean()
            with brickprof.brick("attention", budget_us=budget_us):
                device.at += took(step)
            device.at += 1_000_000 - took(step)
            loss.backward()
            optimizer.step()
    return brickprof.load(bp.folder), bp.folder


def escalations(run):
    rows = run.spans[run.spans.phase == "step"]
    told = [(row.step, json.loads(row.attributes).get("escalated")) for row in rows.itertuples()]
    return [(step, reason) for step, reason in told if reason is not None]


@pytest.mark.parametrize(
    ("took", "budget", "reason"),
    [
        (lambda step: 300_000, 60.0, "efficiency_low"),
        (lambda step: 200_000 + 200_000 * (step % 2), 1000.0, "cv_exceeded"),
        (lambda step: 200_000 + 200_000 * (step % 2), 10.0, "both"),
        (lambda step: 300_000, 100.0, None),
    ],
)
def test_the_spans_of_the_steps_that_follow_say_why(tmp_path, monkeypatch, took, budget, reason):
    run, _ = trained(tmp_path, monkeypatch, took, budget_us=budget)
    events = [event.fields for event in run.events.itertuples() if event.kind == "unsteady"]
    told = escalations(run)
    if reason is None:
        assert events == [] and told == []
        return
    assert events[0]["reason"] == reason and events[0]["budget_us"] == budget and events[0]["phase"] == "user"
    assert {why for _, why in told} == {reason}
    steps = sorted(step for step, _ in told)
    assert steps == list(range(steps[0], steps[0] + 8)) and steps[0] > 64


def test_deep_steps_that_somebody_asked_for_say_so(tmp_path, monkeypatch):
    run, _ = trained(tmp_path, monkeypatch, lambda step: 1000, steps=120, deep_at=100)
    assert {why for _, why in escalations(run)} == {"manual"}
    assert 100 in {step for step, _ in escalations(run)}


def test_spans_carry_their_budget_declared_or_learned(tmp_path, monkeypatch):
    run, folder = trained(tmp_path, monkeypatch, lambda step: 200_000, budget_us=150)
    spans = run.spans[run.spans.step == 190]
    mine = {row.brick: json.loads(row.attributes) for row in spans.itertuples() if row.attributes}
    assert mine["attention"][BUDGET] == 150
    learned = [told.get(BUDGET) for brick, told in mine.items() if brick not in ("attention", "step")]
    assert learned and all(isinstance(budget, float) for budget in learned)
    early = run.spans[(run.spans.step == 5) & (run.spans.brick != "attention")]
    assert not any(BUDGET in (row.attributes or "") for row in early.itertuples())

    from brickprof.telemetry import export_run

    export_run(folder, file=tmp_path / "trace.jsonl")
    exported = [
        {each["key"].removeprefix("brickprof."): next(iter(each["value"].values())) for each in span["attributes"]}
        for line in (tmp_path / "trace.jsonl").read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    late = next(each for each in exported if each.get("brick.name") == "attention" and each["step"] == "190")
    assert (late["brick.budget_us"], late["brick.actual_us"], late["brick.over_budget"]) == (150.0, 200.0, True)
    assert late["brick.efficiency"] == 0.75


# -- what is told of it


def device_time(us: float, step: int, brick: str = "attention", phase: str = "user", **told) -> Span:
    """A span whose host time is a tenth of its time on the device: launches do not wait."""
    start = START + step * 10**7
    attributes = {BUDGET: 500.0, DECLARED: True} | told
    return Span(
        Brick(Kind.BLOCK, brick), step, start, start + int(100 * us), phase, step + 1, device_ns=int(1000 * us),
        attributes=attributes,
    )  # fmt: skip


def diagnosed(spans=(), unsteady=()):
    made = Made("attention", "head")
    made.healthy(20)
    made.records += spans
    for fields in unsteady:
        told = {"brick": 1, "phase": "forward", "mean_ns": 300_000, "cv": 0.34, "budget_us": 60.0, "efficiency": 0.2}
        made.event("unsteady", 81, **(told | fields))
    run = made.run()
    return brickprof.diagnose(run), run


def words(diagnosis) -> str:
    stream = io.StringIO()
    overview.render(diagnosis, Console(file=stream, width=400))
    return stream.getvalue()


def test_a_brick_over_its_declared_budget_is_in_show_and_on_the_page_and_is_no_finding():
    spans = [device_time(812 if step < 12 else 400, step) for step in range(16)]
    found, run = diagnosed(spans)
    assert "over budget: attention 812 us of 500, efficiency 62 %, in 12 of 16 steps" in words(found)
    text = page.text(found, run)
    assert 'id="budgets"' in text and ">812<" in text and ">62 %<" in text and ">12 of 16<" in text
    assert found.findings == () and found.verdict == "PASS"


def child(span: Span, brick: str, us: float) -> Span:
    inner = Brick(Kind.BLOCK, f"attention.{brick}")
    return replace(span, brick=inner, id=1000 + span.id + ord(brick[0]), parent=span.id, device_ns=int(1000 * us),
                   attributes={})  # fmt: skip


def test_a_brick_that_usually_takes_more_than_twice_its_declared_budget_is_a_finding():
    spans = [device_time(2_500, step) for step in range(30)]
    spans += [child(span, name, us) for span in spans[:30] for name, us in (("qkv", 400), ("scores", 1_900))]
    found, _ = diagnosed(spans)
    (finding,) = found.findings
    assert (finding.contract, finding.severity, finding.brick) == ("C-BUDGET-001", "warning", "attention")
    assert finding.root_cause == "undetermined" and finding.first_step == 0 and finding.detected_step == 11
    assert finding.symptom == "attention takes 2,500 us on the device, 5 times what was declared for it"
    _, far, most = finding.whys
    assert "500 us were declared, and its usual time (the median) is 2,500 us on the device" in far.finding
    assert "over its budget in 30 of 30 timed steps" in far.finding and far.evidence[0] == "span:1@0"
    assert most.finding == "Of the bricks inside it attention.scores takes most: 1,900 us, 76% of it."
    (result,) = [each for each in found.contracts if each.id == "C-BUDGET-001"]
    assert result.verdict == Verdict.FAIL and found.verdict == Verdict.FAIL
    assert "over budget: attention 2,500 us of 500" in words(found)


def test_a_host_over_its_declared_budget_is_a_finding_that_says_so():
    spans = [replace(device_time(25_000, step), device_ns=None) for step in range(30)]
    (finding,) = diagnosed(spans)[0].findings
    assert finding.symptom == "attention takes 2,500 us on the host, 5 times what was declared for it"


@pytest.mark.parametrize(
    "spans",
    [
        [device_time(990, step) for step in range(40)],
        [device_time(2_500, step) for step in range(11)],
        [device_time(2_500 if step < 19 else 400, step) for step in range(40)],
        [device_time(2_500, 1) for _ in range(40)],
    ],
    ids=["less than twice", "few steps", "in less than half of them", "one step"],
)
def test_a_brick_that_is_over_its_budget_by_little_or_seldom_is_no_finding(spans):
    assert diagnosed(spans)[0].findings == ()


def test_a_learned_budget_is_no_finding_however_far_over():
    spans = [device_time(25_000, step) for step in range(40)]
    for span in spans:
        del span.attributes[DECLARED]
    found, _ = diagnosed(spans)
    assert found.findings == () and "over_budget" not in found.run


@pytest.mark.parametrize(("on", "sampled"), [("host", False), ("device", True)])
@pytest.mark.parametrize("inside", ["a block", "a block in a brick of the script's", ""])
def test_what_brickprof_took_itself_is_not_held_against_a_brick_around_blocks(on, sampled, inside):
    """1,200 us of 500, in steps in which brickprof was at work for 300."""
    made = Made("attention", "head")
    made.healthy(20)
    for step in range(30):
        span = device_time(12_000 if on == "host" else 1_200, step)
        made.records.append(replace(span, device_ns=None) if on == "host" else span)
        own = Span(Brick(Kind.BLOCK, "mine"), step, span.start_ns, span.end_ns, "user", 900 + step, span.id)
        block = Span(Brick(Kind.BLOCK, "head", made.model), step, span.start_ns, span.end_ns, "forward", 800 + step)
        made.records.append(own)
        if inside:
            made.records.append(replace(block, parent=span.id if inside == "a block" else own.id))
        told = {"looking_ns": 300_000}
        end = span.start_ns + 10**7
        made.records.append(
            Span(Brick(Kind.STEP, "step"), step, span.start_ns, end, "step", 500 + step, attributes=told)
        )
        if sampled:
            made.event("sampled", step, level="standard", reason="cadence", tensors=1, roles=["activation"])
    found = brickprof.diagnose(made.run())
    assert len(found.findings) == (not inside) and found.run["over_budget"][0]["us"] == 1_200


def test_looking_is_given_to_the_credit_of_a_brick_however_many_bricks_of_the_scripts_are_around_the_block():
    """Of two bricks that are over their budgets by looking, the one with a block deep inside is none."""
    spans = []
    for step in range(30):
        deep, plain_ = device_time(12_000, step, "deep"), device_time(12_000, step, "plain")
        deep, plain_ = (
            replace(deep, id=10_000 + step, device_ns=None),
            replace(plain_, id=20_000 + step, device_ns=None),
        )
        spans += [deep, plain_]
        parent = deep.id
        for depth in range(5):
            inner = Span(Brick(Kind.BLOCK, f"d{depth}"), step, deep.start_ns, deep.end_ns, "user",
                         30_000 + 10 * step + depth, parent)  # fmt: skip
            spans.append(inner)
            parent = inner.id
        spans.append(Span(Brick(Kind.BLOCK, "head", "Net"), step, deep.start_ns, deep.end_ns, "forward", 40_000 + step,
                          parent))  # fmt: skip
        spans.append(Span(Brick(Kind.STEP, "step"), step, deep.start_ns, deep.start_ns + 10**7, "step", 50_000 + step,
                          attributes={"looking_ns": 300_000}))  # fmt: skip
    (finding,) = diagnosed(spans)[0].findings
    assert finding.brick == "plain" and "more" not in finding.symptom


def test_many_bricks_over_their_budgets_are_judged_at_once():
    spans = []
    for step in range(30):
        for place in range(400):
            span = replace(device_time(2_500, step, f"part{place}"), id=10_000 * (step + 1) + 2 * place)
            spans += [span, replace(span, brick=Brick(Kind.BLOCK, f"in{place}"), id=span.id + 1, parent=span.id,
                                    attributes={})]  # fmt: skip
    made, judged = Made("attention", "head"), Budgeted()
    made.healthy(20)
    for span in spans:
        judged.feed(span)
    begun = time.process_time()
    found = judged.worst(Story.of(made.run()), registry.library()["C-BUDGET-001"])
    assert found is not None and "so do 399 more bricks" in found.symptom
    assert time.process_time() - begun < 4.0


def test_steps_are_not_remembered_where_nothing_was_declared():
    judged, looked = Budgeted(), {"looking_ns": 1000}
    for step in range(20_000):
        judged.feed(Span(Brick(Kind.STEP, "step"), step, START, START + 1, "step", step + 1, attributes=looked))
    assert len(judged._looking) <= 4096


def test_of_layers_that_are_all_over_their_budgets_the_first_is_the_finding():
    spans = [replace(device_time(2_500 + n, step, f"blocks.{n}.mlp"), id=100 * n + step + 1)
             for step in range(20) for n in range(12)]  # fmt: skip
    (finding,) = diagnosed(spans)[0].findings
    assert finding.brick == "blocks.0.mlp" and "so do 11 more bricks, over theirs" in finding.symptom


def test_the_backward_of_a_brick_has_a_budget_of_its_own():
    (finding,) = diagnosed([device_time(2_500, step, phase="backward") for step in range(20)])[0].findings
    assert finding.symptom.startswith("attention backward takes 2,500 us") and finding.brick == "attention"


def test_a_budget_that_is_kept_or_was_learned_is_not_in_the_table():
    kept = [device_time(400 if step else 9000, step) for step in range(16)]
    learned = [device_time(812, step, "head") for step in range(16)]
    for span in learned:
        del span.attributes[DECLARED]
    found, run = diagnosed([*kept, *learned])
    assert "over_budget" not in found.run and "Budgets" not in words(found)
    assert 'id="budgets"' not in page.text(found, run)


def test_a_backward_is_called_so_and_a_host_says_that_it_is_one():
    spans = [device_time(900, step, phase="backward") for step in range(4)]
    spans += [replace(device_time(9000, step, "head"), device_ns=None, id=step + 20) for step in range(4)]
    found, _ = diagnosed(spans)
    assert "over budget: attention backward 900 us of 500, efficiency 56 %, in 4 of 4 steps" in words(found)
    assert "over budget: head 900 us of 500 on the host, efficiency 56 %" in words(found)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reason": "cv_exceeded"}, "unsteady: attention 300 us in step 81, its times scatter by 34 %;"),
        ({"reason": "efficiency_low", "declared": True}, "efficiency 20 % of its declared budget, 60 us;"),
        ({"reason": "both", "declared": False}, "scatter by 34 % and efficiency 20 % of what it took at first, 60 us;"),
        ({"reason": "<b>x\x1b</b>", "cv": None}, "81, <b>x\\x1b</b>;"),
    ],
)
def test_a_brick_that_was_traced_in_full_is_told_with_its_reason(fields, says):
    found, run = diagnosed(unsteady=[fields])
    assert says in words(found) and found.findings == ()
    text = page.text(found, run)
    assert "unsteady: attention" in text and "<b>x" not in text and "\x1b" not in text


@pytest.mark.parametrize("foreign", [None, 3, "x", [None, 3], [{}], [{"us": "x", "step": None, "reason": []}]])
def test_budgets_from_elsewhere_do_no_harm(foreign):
    told = {"over_budget": foreign, "unsteady": foreign}
    assert all(isinstance(line, str) for line in reported.lines(told))
    page.text(Diagnosis(Verdict.PASS, {"id": "k3f9", "steps": 1, **told}, (), ()))


def test_a_recorded_run_says_which_budget_was_declared(tmp_path, monkeypatch):
    run, _ = trained(tmp_path, monkeypatch, lambda step: 300_000, budget_us=60.0)
    found = brickprof.diagnose(run)
    (row,) = found.run["over_budget"]
    assert (row["brick"], row["budget_us"], row["us"], row["efficiency"]) == ("attention", 60.0, 300.0, 0.2)
    assert row["over"] == row["steps"] > 16 and row["on"] == "device"
    assert found.run["unsteady"][0]["declared"] is True


def test_budgets_by_name_are_declared_too_and_learned_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("BRICKPROF_BUDGETS", "attention=250")
    run, _ = trained(tmp_path, monkeypatch, lambda step: 300_000)
    (row,) = brickprof.diagnose(run).run["over_budget"]
    assert (row["brick"], row["budget_us"]) == ("attention", 250.0)
    told = [json.loads(row.attributes) for row in run.spans.itertuples() if isinstance(row.attributes, str)]
    assert any(BUDGET in each and DECLARED not in each for each in told)
