"""What a card shows of a run: too little to do, heat, strangers, errors, memory in pieces; how much of it was used."""

from __future__ import annotations

import pytest
from making import NAN, START, Made

from brickprof.bricks import Brick, Kind
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.records import Event, Span
from brickprof.reports import overview, terminal
from brickprof.rules import card, card_memory, card_share, cards, growth_of_memory, hardware, throttle
from brickprof.rules.mfu import mfu
from brickprof.rules.peaks import peak
from brickprof.rules.story import Story

SECOND, GB = 1_000_000_000, 10**9
H200 = {"name": "NVIDIA H200", "known_by": "listed", "interval": 1.0, "sm_clock_max": 1980.0, "ecc_uncorrected": 0}


def judge(made: Made, rule):
    judged, run = rule(), made.run()
    if hasattr(judged, "feed"):
        for record in run.records():
            judged.feed(record)
    return judged.judge(Story.of(run), Terms().contract(rule.contract))


class OnCard(Made):
    """A training on a card: steps at a pace, and a look at the card in every second."""

    def __init__(self, seconds=60, step=0.1, parameters=4096, loss=True, **sample):
        super().__init__("embed", "head")
        self.seconds, self.step_seconds, self.count = seconds, step, 0
        side = int(parameters**0.5)
        for record in self.records:
            if record.kind == "tensor":
                record.fields.update(device="cuda:0", shape=[side, side])
        self.card(0, what="device", **H200)
        self.steps = int(seconds / step)
        for number in range(self.steps):
            self.at("loss", number, (number + 0.5) * step, value=1.0, micro=0)
            self.at("optimizer", number, (number + 1) * step, optimizer=0, lr=[1e-3], count=number + 1)
        for second in range(1, seconds + 1):
            self.look(second, **sample)

    def at(self, kind, step, seconds, rank=0, **fields):
        self.count += 1
        made = Event(kind, step, fields, 1000 + self.count, START + int(seconds * SECOND), rank)
        self.records.append(made)
        return made

    def card(self, seconds, **fields):
        return self.at("card", int(seconds / self.step_seconds), seconds, -1, device=0, ordinal=0, **fields)

    def look(self, second, **fields):
        told = {"looks": 1, "utilisation": 0.95, "memory_used": 40 * GB, "memory_total": 140 * GB, "throttled": {}}
        told |= {"sm_clock": 1900.0, "temperature": 60.0, "memory_peak": 41 * GB, "power": 600.0, "power_limit": 700.0}
        return self.card(second, what="sample", **told | fields)

    def ended(self, code=0, told="ok", **fields):
        return self.at("exited", 0, self.seconds + 1, -1, code=code, text=f"exited {code}", **{"class": told}, **fields)

    def raised(self, kind, message):
        self.at("exception", self.steps, self.seconds + 0.5, type=kind, message=message, frames=[])
        return self.ended(1, "failed")

    def looks(self):
        return [record for record in self.records if record.kind == "card" and record.fields["what"] == "sample"]


BIG = {"parameters": 4_000_000}


def waiting(made, share):
    for step in range(made.steps):
        fields = {"loader": 0, "wait_ns": int(share * made.step_seconds * SECOND), "count": step + 1, "index": step}
        made.at("batch", step, step * made.step_seconds + 0.001, **fields)
    return made


# -- too little to do


def test_a_card_in_use_holds():
    result = judge(OnCard(**BIG), card.Utilisation)
    assert result.verdict is Verdict.PASS and "95%" in result.observed


def test_an_idle_card_beside_a_slow_loader_names_the_loader():
    (violation,) = judge(waiting(OnCard(utilisation=0.2, **BIG), 0.7), card.Utilisation).violations
    assert (violation.cause, violation.severity) == ("loader-bound", Severity.WARNING)
    assert "20%" in violation.symptom and "70%" in violation.whys[0].finding
    found = diagnose(waiting(OnCard(utilisation=0.2, **BIG), 0.7).run()).findings
    assert [one.root_cause for one in found if one.severity is Severity.WARNING] == ["loader-bound"]


def test_an_idle_card_beside_host_reads_names_the_line():
    made = OnCard(utilisation=0.3, **BIG)
    for step in (20, 40, 80, 160):
        made.at("syncs", step, step * 0.1, count=20, device=20, sites=[["train.py:9", 18], ["train.py:3", 2]])
    (violation,) = judge(made, card.Utilisation).violations
    assert violation.cause == "host-sync-in-loop" and "train.py:9" in violation.whys[0].finding


def test_an_idle_card_beside_copies_names_them():
    made = OnCard(utilisation=0.3, **BIG)
    for step in range(20, 40):
        start = START + step * SECOND // 10
        made.records.append(Span(Brick(Kind.STEP, "step"), step, start, start + SECOND // 10, "step", id=2 * step + 1))
        made.records.append(
            Span(Brick(Kind.TRANSFER, "h2d"), step, start, start + SECOND // 15, "transfer", 2 * step + 2)
        )
    (violation,) = judge(made, card.Utilisation).violations
    assert (violation.cause, violation.granularity) == ("extra-transfers", "transfer")


def test_an_idle_card_without_a_cause_is_only_worth_knowing():
    made = waiting(OnCard(utilisation=0.3, **BIG), 0.02)
    result = judge(made, card.Utilisation)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert [violation.severity for violation in result.violations] == [Severity.INFO]


@pytest.mark.parametrize(
    "made",
    [
        OnCard(seconds=12, utilisation=0.1, **BIG),
        OnCard(utilisation=0.1, parameters=4096),
        OnCard(seconds=60, step=20.0, utilisation=0.1, **BIG),
    ],
    ids=["a run of seconds", "a tiny model", "three steps"],
)
def test_short_runs_and_small_models_are_not_judged(made):
    result = judge(waiting(made, 0.7), card.Utilisation)
    assert result.verdict is Verdict.NOT_EVALUATED and not result.violations


def test_start_up_and_pauses_for_checkpoints_are_no_findings():
    made = waiting(OnCard(seconds=100, step=1.0, **BIG), 0.3)
    for look in made.looks():
        second = (look.time_ns - START) // SECOND
        if second <= 10 or second % 3 == 0:
            look.fields["utilisation"] = 0.0
    assert judge(made, card.Utilisation).verdict is Verdict.PASS


def test_without_a_card_nothing_is_judged():
    cpu = Made()
    cpu.healthy(40)
    for rule in (card.Utilisation, throttle.Throttle, card_share.Alone, hardware.Hardware):
        result = judge(cpu, rule)
        assert result.verdict is Verdict.NOT_EVALUATED and "no GPU" in result.why
    for record in cpu.records:
        if getattr(record, "kind", "") == "tensor":
            record.fields["device"] = "cuda:0"
    assert "brickprof doctor" in judge(cpu, card.Utilisation).why


# -- clocks that are held down


def hot(share, slower=1.0, words=("thermal",), clock=900.0, seconds=100):
    """The last ``share`` of a run is hot, and its steps take longer."""
    made = OnCard(seconds=seconds, step=0.5, **BIG)
    begins = seconds * (1 - share)
    for look in made.looks():
        if (look.time_ns - START) / SECOND > begins:
            look.fields.update(throttled=dict.fromkeys(words, 1), sm_clock=clock, temperature=91.0)
    kept = [r for r in made.records if not (r.rank == 0 and r.step * 0.5 > begins and r.step % round(slower))]
    if slower > 1.0:  # every other step is left out, and the others are numbered anew: they take twice as long
        numbers = {step: place for place, step in enumerate(sorted({r.step for r in kept if r.rank == 0}))}
        kept = [
            Event(r.kind, numbers[r.step], r.fields, r.seq, r.time_ns, 0) if r.rank == 0 else r for r in kept
        ]  # fmt: skip
    made.records = kept
    return made


def test_heat_that_slows_the_steps_is_told_with_its_share_and_cost():
    (violation,) = judge(hot(0.4, slower=2.0), throttle.Throttle).violations
    assert (violation.cause, violation.severity) == ("hardware-error", Severity.WARNING)
    assert violation.details["share"] == pytest.approx(0.4, abs=0.05)
    assert "too hot" in violation.symptom and "91 °C" in violation.whys[0].finding
    assert violation.details["longer"] == pytest.approx(1.0, abs=0.1)


def test_heat_that_costs_nothing_is_only_worth_knowing():
    result = judge(hot(0.4, clock=1850.0), throttle.Throttle)
    assert [violation.severity for violation in result.violations] == [Severity.INFO]


@pytest.mark.parametrize("words", [("power_cap",), ("idle",), ("application_clocks",)])
def test_a_card_at_its_power_limit_is_healthy(words):
    assert judge(hot(0.9, words=words, clock=1700.0), throttle.Throttle).verdict is Verdict.PASS


def test_a_power_limit_that_costs_half_the_clock_is_worth_knowing():
    result = judge(hot(0.9, words=("power_cap",), clock=900.0), throttle.Throttle)
    assert [violation.severity for violation in result.violations] == [Severity.INFO]


def test_single_hot_looks_are_nothing():
    assert judge(hot(0.03), throttle.Throttle).verdict is Verdict.PASS


# -- strangers


@pytest.mark.parametrize(
    ("fields", "guilty"),
    [
        ({"orphan": True, "memory": 20 * GB}, True),
        ({"orphan": False, "memory": 20 * GB}, False),
        ({"memory": 20 * GB}, False),
        ({"orphan": True, "memory": 10**6}, False),
    ],
)
def test_only_a_large_orphan_is_accused(fields, guilty):
    made = OnCard(**BIG)
    made.card(1, what="process", pid=4242, name="python", before=True, **fields)
    result = judge(made, card_share.Alone)
    assert (result.verdict is Verdict.FAIL) is guilty
    if guilty:
        (violation,) = result.violations
        assert (violation.cause, violation.severity) == ("orphaned-process", Severity.WARNING)
        assert "4242" in violation.symptom and "20 GB" in violation.symptom


def test_an_orphan_explains_memory_that_ran_out():
    made = OnCard(**BIG)
    made.card(1, what="process", pid=4242, name="python", before=True, orphan=True, memory=100 * GB)
    made.at("exception", 50, 59.0, type="torch.OutOfMemoryError", message="CUDA out of memory.", frames=[])
    first = diagnose(made.run()).findings[0]
    assert (first.root_cause, first.severity) == ("orphaned-process", Severity.ERROR)


def test_who_works_again_is_no_orphan():
    made = OnCard(**BIG)
    for second, orphan in ((11, True), (31, False)):
        made.card(second, what="process", pid=4242, name="python", before=True, memory=20 * GB, orphan=orphan)
    assert judge(made, card_share.Alone).verdict is Verdict.PASS


def test_where_strangers_cannot_be_told_nothing_is_judged():
    made = OnCard(**BIG)
    next(r for r in made.records if r.kind == "card").fields["known_by"] = "grown"
    assert judge(made, card_share.Alone).verdict is Verdict.NOT_EVALUATED


# -- errors of the hardware


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 94, 95, 119])
def test_an_xid_of_the_hardware_is_an_error(xid):
    made = OnCard(**BIG)
    made.card(30, what="xid", xid=xid)
    (violation,) = judge(made, hardware.Hardware).violations
    assert (violation.cause, violation.severity) == ("hardware-error", Severity.ERROR)
    assert f"Xid {xid}" in violation.symptom


def test_an_xid_of_the_program_is_an_access_out_of_bounds_and_no_broken_card():
    made = OnCard(**BIG)
    made.card(60, what="xid", xid=31)
    made.ended(134, "aborted", signal=6)
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    (violation,) = judge(made, hardware.Faults).violations
    assert (violation.cause, violation.contract) == ("out-of-bounds", "C-BUFSIZE-001")
    said = "CUDA error: an illegal memory access was encountered"
    made.at("exception", 50, 59.0, type="torch.AcceleratorError", message=said, frames=[])
    assert not judge(made, hardware.Faults).violations  # the exception says it already, and where
    causes = [one.root_cause for one in diagnose(made.run()).findings if one.severity is Severity.ERROR]
    assert causes == ["out-of-bounds"]


LAUNCH = "CUDA error: unspecified launch failure"
ELSEWHERE = {"device": 1, "ordinal": 1}


def about(made, known_by):
    next(r for r in made.records if r.kind == "card" and r.fields["what"] == "device").fields["known_by"] = known_by
    return made


def unseen(made):
    """The same run, as it is told where nobody has seen it on a card."""
    looks = made.looks()
    made.records = [record for record in made.records if record not in looks]
    return about(made, "")


def on_cpu(made):
    for record in made.records:
        if record.kind == "tensor":
            record.fields["device"] = "cpu"
    return made


def neighbour(made, **fields):
    made.card(1, what="process", pid=4242, name="python", before=True, memory=GB, **fields)
    return made


def orderly(made):
    made.at("exit", made.steps, made.seconds + 0.5, steps=made.steps)
    return made


def fault(made, second=60, **where):
    made.at("card", 10 * second, second, -1, **{"device": 0, "ordinal": 0, **where}, what="xid", xid=31)
    return made


@pytest.mark.parametrize(
    ("made", "end"),
    [
        (fault(OnCard(**BIG)), ()),
        (fault(OnCard(**BIG)), (134, "aborted")),
        (fault(OnCard(**BIG)), ("TrainingFailed", "step 600 failed")),
        (fault(neighbour(OnCard(**BIG))), ("AcceleratorError", LAUNCH)),
        (fault(neighbour(OnCard(**BIG))), (134, "aborted")),
        (fault(neighbour(OnCard(**BIG))), (1, "failed")),
        (fault(orderly(OnCard(**BIG))), (1, "failed")),
        (fault(about(OnCard(**BIG), "grown")), ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
        (fault(unseen(OnCard(**BIG))), ("AcceleratorError", LAUNCH)),
        (fault(unseen(OnCard(**BIG))), (139, "segmentation_fault")),
    ],
    ids=[
        "alone, and it goes on", "alone, aborted", "alone, an exception", "a neighbour, an error of the card",
        "a neighbour, aborted", "a neighbour, and nobody said goodbye", "alone, exited 1", "in a container",
        "over before it was seen", "over before it was seen, by a signal",
    ],
)  # fmt: skip
def test_a_wrong_address_that_only_the_card_tells_of_is_told_where_it_is_the_runs_own(made, end):
    if end:
        (made.raised if isinstance(end[0], str) else made.ended)(*end)
    (violation,) = judge(made, hardware.Faults).violations
    (seen,) = cards.cards(Story.of(made.run()))
    assert violation.cause == "out-of-bounds" and violation.certainty == (0.8 if seen.alone else 0.6)
    assert ("Others may have been on the card" in violation.whys[0].finding) is not seen.alone


@pytest.mark.parametrize(
    ("made", "end"),
    [
        (fault(OnCard(**BIG)), (0,)),
        (fault(OnCard(**BIG), second=30), ()),
        (fault(OnCard(**BIG), second=30), ("AcceleratorError", "CUDA error: invalid argument")),
        (fault(neighbour(OnCard(**BIG))), ()),
        (fault(neighbour(OnCard(**BIG))), ("FileNotFoundError", "no such file: shard-7.bin")),
        (fault(neighbour(OnCard(**BIG))), ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.")),
        (fault(neighbour(OnCard(**BIG))), (130, "interrupted")),
        (fault(neighbour(OnCard(**BIG))), (143, "terminated")),
        (fault(neighbour(OnCard(**BIG))), (137, "out_of_memory")),
        (fault(neighbour(orderly(OnCard(**BIG)))), (1, "failed")),
        (fault(neighbour(orderly(OnCard(**BIG)))), (2, "usage")),
        (fault(neighbour(OnCard(**BIG))), (2, "usage")),
        (fault(neighbour(orderly(OnCard(**BIG)))), (1, ["failed"])),
        (fault(about(orderly(OnCard(**BIG)), "grown")), (1, "failed")),
        (fault(about(OnCard(**BIG), "grown")), ()),
        (fault(OnCard(**BIG), **ELSEWHERE), ()),
        (fault(OnCard(**BIG), **ELSEWHERE), ("AcceleratorError", LAUNCH)),
        (fault(unseen(OnCard(**BIG))), ()),
        (fault(unseen(OnCard(**BIG))), ("ValueError", "no such preset")),
        (fault(on_cpu(unseen(OnCard(**BIG)))), (1, "failed")),
        (fault(on_cpu(about(OnCard(**BIG), "grown"))), (1, "failed")),
    ],
    ids=[
        "it ended well", "it trains on", "it trained on, and ended by another error of the card", "a neighbour",
        "a neighbour, an error of its own", "a neighbour, out of memory", "a neighbour, interrupted",
        "a neighbour, asked to stop", "a neighbour, killed for memory", "a neighbour, exited 1",
        "a neighbour, exited 2",
        "a neighbour, over before it began", "a neighbour, an odd class", "in a container, exited 1", "in a container",
        "another card",
        "another card, an error of its own card", "seen on no card", "seen on no card, an error of its own",
        "on the CPU", "on the CPU, beside a card whose memory grows",
    ],
)  # fmt: skip
def test_a_wrong_address_of_somebody_else_is_not_the_runs(made, end):
    if end:
        (made.raised if isinstance(end[0], str) else made.ended)(*end)
    result = judge(made, hardware.Faults)
    assert result.verdict is Verdict.NOT_EVALUATED and not result.violations


def test_a_wrong_address_that_may_be_anothers_is_said_to_be_so():
    made = fault(OnCard(**BIG))
    made.ended()
    assert "may be another program's: the run came to its end" in judge(made, hardware.Faults).why
    assert not [one for one in diagnose(made.run()).findings if one.severity is not Severity.INFO]


@pytest.mark.parametrize("fields", [{"what": "xid", "xid": 79}, {"what": "lost"}])
def test_an_error_of_a_card_that_the_run_does_not_use_is_not_its_error(fields):
    made = OnCard(**BIG)
    made.at("card", 600, 60, -1, what="device", **ELSEWHERE, **H200 | {"known_by": ""})
    made.at("card", 600, 60, -1, **ELSEWHERE, **fields)
    made.ended()
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    gone = unseen(OnCard(**BIG))
    gone.card(60, **fields)
    assert judge(gone, hardware.Hardware).verdict is Verdict.NOT_EVALUATED
    gone.raised("AcceleratorError", LAUNCH)
    (violation,) = judge(gone, hardware.Hardware).violations
    assert violation.cause == "hardware-error"
    other = on_cpu(unseen(OnCard(**BIG)))
    other.card(60, **fields)
    other.ended(1, "failed")
    assert not judge(other, hardware.Hardware).violations


def two_grown(*fields):
    """Two cards whose memory grows, as in a container: the run is on the first one, and these befall the second."""
    made = about(OnCard(**BIG), "grown")
    made.at("card", 1, 0.1, -1, what="device", **ELSEWHERE, **H200 | {"known_by": "grown"})
    for each in fields:
        made.at("card", 300, 30, -1, **ELSEWHERE, **each)
    return made


def test_a_card_whose_memory_grew_is_the_runs_where_its_tensors_are():
    gone = {"what": "xid", "xid": 79}, {"what": "lost"}
    made = two_grown(*gone)
    made.ended()
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    assert not [one for one in diagnose(made.run()).findings if one.severity is Severity.ERROR]
    there = two_grown(*gone)
    for record in there.records:
        if record.kind == "tensor":
            record.fields["device"] = "cuda:1"
    there.ended()
    stopped = two_grown(*gone)
    stopped.raised("AcceleratorError", LAUNCH)
    for made in (there, stopped):
        assert {each.cause for each in judge(made, hardware.Hardware).violations} == {"hardware-error"}


@pytest.mark.parametrize("kind", [["failed"], {"failed": 1}, None])
def test_an_odd_end_is_no_failure_of_a_rule(kind):
    made = fault(neighbour(OnCard(**BIG)))
    made.ended(1, kind)
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    assert judge(made, hardware.Faults).violations


@pytest.mark.parametrize("fields", [{"interval": 1e300}, {"interval": 10**400}, {"interval": -1.0}, {"interval": NAN}])
def test_odd_pauses_between_looks_are_taken_for_a_second(fields):
    made = OnCard(seconds=12, **BIG)
    made.records[[record.kind for record in made.records].index("card")].fields.update(fields)
    (seen,) = cards.cards(Story.of(made.run()))
    assert {look.event.time_ns - look.begun_ns for look in seen.looks} == {SECOND}
    diagnose(made.run())


def test_more_looks_in_a_line_than_can_be_are_no_failure():
    for looks in (10**400, 2**61):
        made = OnCard(seconds=12, looks=looks, **BIG)
        (seen,) = cards.cards(Story.of(made.run()))
        assert 0 < START - min(look.begun_ns for look in seen.looks) + 2**62 < 2**63
        diagnose(made.run())


def test_an_xid_that_is_not_known_here_is_told_where_no_neighbour_can_have_caused_it():
    alone, beside = OnCard(**BIG), neighbour(OnCard(**BIG))
    for made in (alone, beside):
        made.card(30, what="xid", xid=109)
    assert [v.severity for v in judge(alone, hardware.Hardware).violations] == [Severity.WARNING]
    assert judge(beside, hardware.Hardware).verdict is Verdict.PASS
    beside.card(31, what="xid", xid=63)
    (violation,) = judge(beside, hardware.Hardware).violations
    assert "Xid 63" in violation.symptom


def test_a_process_that_ended_and_a_retired_page_are_told_apart():
    made = OnCard(**BIG)
    made.card(30, what="xid", xid=45)
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    made.card(31, what="xid", xid=63)
    assert [v.severity for v in judge(made, hardware.Hardware).violations] == [Severity.WARNING]


def test_only_new_uncorrected_memory_errors_count():
    made = OnCard(**BIG)
    made.card(30, what="ecc", corrected=12, uncorrected=0, ecc_corrected=12, ecc_uncorrected=3)
    assert judge(made, hardware.Hardware).verdict is Verdict.PASS
    made.card(31, what="ecc", corrected=0, uncorrected=2, ecc_corrected=12, ecc_uncorrected=5)
    (violation,) = judge(made, hardware.Hardware).violations
    assert "2 memory errors" in violation.symptom and violation.first_step == 310


# -- memory


def test_growth_outside_torch_is_told_and_growth_inside_is_left_to_its_own_rule():
    made = OnCard(**BIG)
    for place, look in enumerate(made.looks()):
        look.fields["memory_used"] = (20 + place) * GB
        made.at("memory", look.step, place + 1.0, rss=GB, device_allocated=10 * GB, device_reserved=12 * GB)
    (violation,) = judge(made, card_memory.OutsideTorch).violations
    assert violation.cause == "memory-leak" and "outside torch" in violation.symptom
    for record in made.records:
        if record.kind == "memory":
            record.fields["device_reserved"] += int(record.step / 10) * GB
    assert not judge(made, card_memory.OutsideTorch).violations


def test_memory_under_the_sanitizer_is_no_growth_of_the_run():
    made = OnCard(**BIG)
    for place, look in enumerate(made.looks()):
        look.fields["memory_used"] = (20 + place) * GB
        made.at("memory", look.step, place + 1.0, rss=GB, device_allocated=10 * GB, device_reserved=12 * GB)
    assert judge(made, card_memory.OutsideTorch).violations
    made.event("sanitizer", 0, rank=-1, what="start", tool="memcheck")
    for rule in (card_memory.OutsideTorch, growth_of_memory.Stable):
        judged = judge(made, rule)
        assert judged.verdict is Verdict.NOT_EVALUATED and "compute-sanitizer" in judged.why
    for step in range(20):
        made.event("retained", step, graphs=step, since=0, looked=step + 1)
    (violation,) = judge(made, growth_of_memory.Stable).violations
    assert "still alive with their graphs" in violation.symptom, "what is alive is alive under it too"


def test_memory_of_others_on_the_card_is_no_growth_of_the_run():
    made = OnCard(**BIG)
    for place, look in enumerate(made.looks()):
        look.fields["memory_used"] = (20 + place) * GB
        made.at("memory", look.step, place + 1.0, rss=GB, device_allocated=10 * GB, device_reserved=12 * GB)
    made.card(3, what="process", pid=4711, name="python", memory=9 * GB, before=False)
    result = judge(made, card_memory.OutsideTorch)
    assert result.verdict is Verdict.NOT_EVALUATED and "others use the card" in result.why
    for look in made.looks():
        look.fields["memory_ours"] = 13 * GB
    result = judge(made, card_memory.OutsideTorch)
    assert result.verdict is Verdict.NOT_EVALUATED and "did not grow" in result.why
    for place, look in enumerate(made.looks()):
        look.fields["memory_ours"] = (13 + place) * GB
    (violation,) = judge(made, card_memory.OutsideTorch).violations
    assert "grew from" in violation.symptom and violation.cause == "memory-leak"


def test_growth_of_a_card_whose_processes_are_not_told_is_not_the_runs():
    made = about(OnCard(**BIG), "grown")
    for place, look in enumerate(made.looks()):
        look.fields["memory_used"] = (20 + place) * GB
        made.at("memory", look.step, place + 1.0, rss=GB, device_allocated=10 * GB, device_reserved=12 * GB)
    result = judge(made, card_memory.OutsideTorch)
    assert result.verdict is Verdict.NOT_EVALUATED and not result.violations and "not told here" in result.why


OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.10 GiB is free."
    " Of the allocated memory 15.00 GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(("unused", "guilty"), [("6.50", True), ("0.40", False)])
def test_memory_that_ran_out_beside_unused_memory_is_fragmentation(unused, guilty):
    made = OnCard(**BIG)
    made.at("exception", 50, 59.0, type="torch.OutOfMemoryError", message=OOM.format(unused), frames=[])
    assert bool(judge(made, card_memory.Fragmented).violations) is guilty
    cause = diagnose(made.run()).findings[0].root_cause
    assert (cause == "memory-fragmentation") is guilty


@pytest.mark.parametrize(("peak_gb", "grows", "guilty"), [(4, True, True), (4, False, False), (40, True, False)])
def test_reserved_memory_that_grows_far_above_its_use_is_fragmentation(peak_gb, grows, guilty):
    made = OnCard(**BIG)
    for place in range(40):
        held = (10 + place * grows) * GB
        fields = {"device_allocated": 2 * GB, "device_reserved": held, "device_peak": peak_gb * GB}
        made.at("memory", place * 10, place + 1.0, rss=GB, **fields)
    found = judge(made, card_memory.Fragmented).violations
    assert [violation.cause for violation in found] == ["memory-fragmentation"] * guilty


# -- how much of the card was used


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA GB200", "bfloat16", 2500.0), ("NVIDIA B200", "bfloat16", 2250.0), ("NVIDIA B100", "bfloat16", 1750.0),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4), ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200 NVL", "bfloat16", 835.5), ("NVIDIA H100 80GB HBM3", "float16", 989.4),
        ("NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9), ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0), ("NVIDIA H100 PCIe", "float32", 51.2),
        ("NVIDIA H800", "bfloat16", 989.4), ("NVIDIA H800 PCIe", "bfloat16", 756.0), ("NVIDIA H20", "bfloat16", 148.0),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312.0), ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312.0), ("NVIDIA A100 80GB PCIe", "float32", 19.5),
        ("NVIDIA A800-SXM4-80GB", "bfloat16", 312.0), ("NVIDIA A10", "bfloat16", 125.0),
        ("NVIDIA A10G", "bfloat16", 70.0), ("NVIDIA A30", "bfloat16", 165.0), ("NVIDIA A40", "bfloat16", 149.7),
        ("NVIDIA L4", "bfloat16", 121.0), ("NVIDIA L40", "bfloat16", 181.0), ("NVIDIA L40S", "bfloat16", 362.0),
        ("NVIDIA L40S", "float32", 91.6), ("NVIDIA RTX 6000 Ada Generation", "bfloat16", 364.2),
        ("NVIDIA RTX A6000", "bfloat16", 154.8), ("NVIDIA GeForce RTX 3090", "bfloat16", 71.0),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2), ("NVIDIA GeForce RTX 5090", "bfloat16", 209.5),
        ("Tesla V100-SXM2-16GB", "float16", 125.0), ("Tesla V100-PCIE-32GB", "float16", 112.0),
        ("Tesla V100S-PCIE-32GB", "float16", 130.0), ("Tesla T4", "float16", 65.0),
        ("AMD Instinct MI300X", "bfloat16", 1307.4), ("AMD Instinct MI325X", "float8_e4m3fnuz", 2614.9),
        ("AMD Instinct MI300X VF", "float32", 163.4), ("AMD Instinct MI250X", "bfloat16", 191.5),
        ("AMD Instinct MI210", "bfloat16", 181.0),
    ],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(name, dtype, tflops):
    assert peak(name, dtype) == tflops


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("something else", "float32"), ("", "bfloat16"), ("NVIDIA B300 SXM6 AC", "bfloat16"),
        ("NVIDIA A10G", "float32"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"), ("NVIDIA GeForce RTX 4090 D", "bfloat16"),
        ("NVIDIA GeForce RTX 3090 Ti", "bfloat16"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16"),
        ("GRID A100-10C", "bfloat16"), ("NVIDIA L40S-48Q", "bfloat16"), ("NVIDIA A100-SXM-64GB", "bfloat16"),
        ("NVIDIA H100 CNX", "bfloat16"), ("NVIDIA A100X", "bfloat16"), ("Quadro RTX 6000", "float16"),
        ("Tesla T4", "bfloat16"), ("Tesla V100-SXM2-16GB", "bfloat16"), ("NVIDIA A100-SXM4-80GB", "float8_e4m3fn"),
        ("NVIDIA H200", "float64"), ("AMD Instinct MI250X", "tf32"),
    ],
)  # fmt: skip
def test_nothing_is_made_up_for_other_cards_slices_and_types(name, dtype):
    assert peak(name, dtype) is None


def test_the_mfu_of_a_card_that_is_not_in_the_table_is_not_known_and_says_so():
    made = tokens(OnCard(**BIG), 8, 1024)
    for record in made.records:
        if record.kind == "card" and record.fields["what"] == "device":
            record.fields.update(name="NVIDIA Something 9000")
    found = mfu(Story.of(made.run()))
    assert (found.ratio, found.how, found.peak_tflops) == (None, "", None)
    assert "NVIDIA Something 9000 in bfloat16 is not in the table" in found.why


def tokens(made, rows, places):
    made.at("shapes", 1, 0.1, fed=[rows, places])
    made.at("criterion", 1, 0.1, name="cross_entropy", rows=rows * places, grad=True, dtype="bfloat16")
    return made


def test_an_estimate_says_that_it_is_one():
    made = tokens(OnCard(**BIG), 8, 1024)
    found = mfu(Story.of(made.run()))
    expected = 6 * 8_000_000 * 8192 / 0.1 / 1e12
    assert (found.how, found.dtype) == ("estimated", "bfloat16") and found.tflops == pytest.approx(expected, rel=0.01)
    assert found.ratio == pytest.approx(expected / 989.4, rel=0.01) and "8,192 tokens" in found.why
    diagnosis = diagnose(made.run())
    assert diagnosis.run["mfu"]["how"] == "estimated" and diagnosis.run["cards"][0]["name"] == "NVIDIA H200"
    assert "(estimated)" in terminal.text(diagnosis)
    assert any(line.startswith("MFU 0.4% estimated") for line in overview.card_lines(diagnosis.run))


def kernels(made, flops):
    for step in (20, 21, 22):
        start = START + step * SECOND
        for place in range(2):
            attributes = {"flops": flops // 2, "bytes": 10}
            brick = Brick(Kind.KERNEL, f"gemm{place}")
            made.records.append(
                Span(brick, step, start, start + 10, "forward", id=step * 2 + place, attributes=attributes)
            )
    return made


def test_counted_operations_are_used_where_there_is_no_estimate_or_they_are_all():
    found = mfu(Story.of(kernels(OnCard(**BIG), 10**12).run()))
    assert found.how == "counted" and found.tflops == pytest.approx(10.0, rel=0.01)
    all_of_them = kernels(tokens(OnCard(**BIG), 8, 1024), 6 * 8_000_000 * 8192)
    assert mfu(Story.of(all_of_them.run())).how == "counted"
    few = kernels(tokens(OnCard(**BIG), 8, 1024), 10**6)
    assert mfu(Story.of(few.run())).how == "estimated"


def test_operations_behind_the_loss_are_used_where_nothing_is_hidden():
    def made(*, losses=1, counts=(3,), step=lambda step: 1, frozen=False, **told):
        found = tokens(OnCard(**BIG), 8, 1024)
        for record in found.records if frozen else ():
            if record.kind == "tensor":
                record.fields["trainable"] = False
        for number in (1, 2, 4):
            for micro, count in enumerate(counts):
                fields = {"products": 9, "unknown": [], "whole": True, "micro": micro, "devices": 1, **told}
                count *= 10**12 * step(number)
                found.at("operations", number, 0.1, forward=count // 3, backward=count - count // 3, **fields)
        for step in range(found.steps if losses > 1 else 0):
            for micro in range(1, losses):
                found.at("loss", step, (step + 0.5 + micro / 100) * 0.1, value=1.0, micro=micro)
        return mfu(Story.of(found.run()))

    assert made().how == "counted" and made().tflops == pytest.approx(30.0, rel=0.01)
    assert made(losses=4).tflops == pytest.approx(120.0, rel=0.01)  # of micro-batches the first alone was counted
    assert made(losses=4, counts=(1, 3, 3, 3)).tflops == pytest.approx(100.0, rel=0.01)
    assert made(losses=2, counts=(1, 5)).tflops == pytest.approx(60.0, rel=0.01)  # two models that take turns
    assert made(losses=4, counts=(1, 5)).how == "estimated"
    assert made(step=lambda step: step).how == "estimated"  # batches that grow
    assert made(whole=False).how == "estimated" and made(devices=2).how == "estimated"
    assert made(frozen=True).how == "at least"
    beyond = made(counts=(300,))
    assert beyond.ratio is None and "more than the card can do" in beyond.why


def test_where_it_is_not_known_it_says_why():
    made = OnCard(**BIG)
    found = mfu(Story.of(made.run()))
    assert found.ratio is None and "tokens" in found.why
    assert "MFU not known" in overview.card_lines(diagnose(made.run()).run)[-1]
    assert "MFU" not in terminal.text(diagnose(made.run()))
    images = OnCard(**BIG)
    images.at("shapes", 1, 0.1, fed=[64, 3, 32, 32])
    images.at("criterion", 1, 0.1, name="cross_entropy", rows=64, grad=True)
    assert mfu(Story.of(images.run())).ratio is None
    assert mfu(Story.of(Made().run())) is None


def test_a_healthy_run_on_a_card_has_no_findings_of_the_card():
    found = diagnose(tokens(OnCard(**BIG), 8, 1024).run()).findings
    ours = {"C-UTILISATION-001", "C-THROTTLE-001", "C-CARDSHARE-001", "C-HARDWARE-001", "C-MEM-001", "C-BUFSIZE-001"}
    assert not [finding for finding in found if finding.contract in ours]
