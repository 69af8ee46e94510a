"""`brickprof check operator`: which of the four judgments fails, where it parts first, and how to see it again."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest
import torch
from fake_operators import chained, choosing, in_halves, mix, mix_reference, mixing, rectifying
from rich.console import Console
from typer.testing import CliRunner

from brickprof.cli.app import build, main
from brickprof.errors import ConfigurationError, NothingToJudge, UsageError
from brickprof.operators import bits, inquiry, launch, torch_candidates
from brickprof.operators.chain import judge_chain
from brickprof.operators.drift import Drift, find
from brickprof.operators.gold import plain_fp32
from brickprof.operators.judge import judge, replay
from brickprof.operators.judgement import JUDGMENTS, Judgement
from brickprof.operators.operator import Schedule
from brickprof.operators.problem import DTYPES, Problem
from brickprof.operators.tolerances import Tolerance, tolerance
from brickprof.operators.transforms import TRANSFORMS, cases
from brickprof.reports import operators as shown

FA, FI, GA, GI = JUDGMENTS


def verdicts(judgement, dtype="fp32"):
    return {cell.judgment: cell.verdict for cell in judgement.cells if cell.dtype == dtype}


def failing(judgement):
    return {cell.judgment for cell in judgement.cells if cell.verdict == "FAIL"}


# -- bits


def halves(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_equal_bytes_part_nowhere():
    nan = torch.tensor([[1.0, float("nan")], [-0.0, float("inf")]])
    found = bits.compare(nan, nan.clone())
    assert (found.elements, found.mismatches, found.first, found.max_error) == (4, 0, None, 0.0)


def test_a_signed_zero_is_another_number():
    found = bits.compare(halves(1.0, 0.0), halves(1.0, -0.0))
    assert (found.mismatches, found.max_error) == (1, 0.0)
    assert (found.first.row, found.first.expected_bits, found.first.given_bits) == (1, "0x00000000", "0x80000000")


def test_the_payload_of_a_nan_counts():
    one, other = (torch.tensor([struct.unpack("i", struct.pack("I", raw))[0]], dtype=torch.int32).view(torch.float32)
                  for raw in (0x7FC00000, 0x7FC00001))  # fmt: skip
    assert bits.compare(one, other).mismatches == 1
    assert bits.compare(one, one).mismatches == 0


def test_the_first_mismatch_is_the_lowest_not_the_largest():
    given = torch.zeros(4, 3, 2)
    given[1, 2, 0], given[3, 0, 0] = 1e-3, 100.0
    found = bits.compare(torch.zeros(4, 3, 2), given)
    assert (found.first.row, found.first.element, found.mismatches, found.max_error) == (1, 4, 2, 100.0)
    assert found.mean_error == pytest.approx((100 + 1e-3) / 24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_every_width_of_number_is_compared(dtype):
    one = torch.arange(6).to(dtype).reshape(3, 2)
    other = one.clone()
    other[2, 1] = 9
    assert bits.compare(one, other).first.row == 2


def test_other_shapes_and_types_are_told():
    assert "shape is (2,)" in bits.compare(halves(1, 2, 3), halves(1, 2)).note
    assert "float16" in bits.compare(halves(1), halves(1).half()).note


def test_what_is_not_finite_where_the_gold_is_parts_whatever_is_allowed():
    wide = Tolerance(1e9, 1e9)
    for value in (float("nan"), float("inf")):
        found = bits.within(halves(1, 2), halves(1, value), wide)
        assert (found.mismatches, found.first.row) == (1, 1)
        assert "where the gold is finite" in found.note
    same = halves(1, float("inf"))
    assert bits.within(same, same, wide).mismatches == 0


def test_the_share_of_what_is_allowed():
    found = bits.within(halves(0, 10), halves(0.5, 12), Tolerance(1.0, 0.1))
    assert (found.mismatches, found.share) == (0, pytest.approx(1.0))
    assert bits.within(halves(0, 10), halves(0.5, 12.1), Tolerance(1.0, 0.1)).mismatches == 1


def test_tolerances_are_those_of_the_family():
    assert tolerance("reduction", "bf16") == (5e-2, 2e-2)
    assert tolerance("reduction", "bf16", gradient=True) == (1e-1, 2e-2)
    assert tolerance("logprob", "fp32") == (1e-5, 0)
    with pytest.raises(ConfigurationError, match="family 'magic'"):
        tolerance("magic", "fp32")


# -- judgments


def test_a_good_operation_passes_all_four_in_every_type():
    judged = judge(mixing())
    assert [cell.verdict for cell in judged.cells] == ["PASS"] * 12
    assert (judged.verdict, judged.blame, judged.drifts) == ("PASS", "", ())
    assert all(cell.max_error < 1e-5 for cell in judged.cells if cell.dtype == "fp32")
    assert all(cell.max_error > 0 for cell in judged.cells if cell.judgment == FA)
    assert judged.cell(FI, "bf16").cases > 15


@pytest.mark.parametrize(
    ("fault", "failed", "transforms"),
    [
        ("split by rows", {FI}, {"T1"}),
        ("neighbours", {FI}, {"T1", "T3", "T4", "T6"}),
        ("position", {FI}, {"T1", "T2", "T4", "T6"}),
        ("inaccurate", {FA}, {"gold"}),
        ("nan", {FA, FI}, None),
        ("infinite", {FA, FI}, None),
        ("gradient wrong", {GA}, {"gold"}),
        ("gradient of ones", {GA}, {"gold"}),
        ("gradient split by rows", {GI}, {"T1"}),
        ("weight split by rows", {GI}, {"T4"}),
        ("no gradient of weight", {GA}, {"gold"}),
        ("backward raises", {GA}, {"gold"}),
        ("raises", {FA}, {"gold"}),
        ("no tensor", {FA}, {"gold"}),
        ("shape", {FA}, {"gold"}),
        ("raises for one row", {FI}, {"T1"}),
    ],
)
def test_a_fault_fails_its_judgment_and_no_other(fault, failed, transforms):
    judged = judge(mixing(fault), dtypes=["fp32"])
    assert failing(judged) == failed
    assert judged.verdict == "FAIL"
    assert judged.blame == ("kernel" if failed & {FI, GI} else "accuracy")
    if transforms is not None:
        assert {drift.transform for drift in judged.drifts} == transforms


def test_the_sign_of_zero_is_invariance_and_not_accuracy():
    judged = judge(rectifying(), dtypes=["fp32"])
    assert verdicts(judged) == {FA: "PASS", FI: "FAIL", GA: "NOT_EVALUATED", GI: "NOT_EVALUATED"}
    first = judged.cell(FI, "fp32").drifts[0]
    assert (first.transform, first.max_error, first.first.given_bits) == ("T1", 0.0, "0x80000000")


def test_what_raised_is_one_line():
    drift = judge(mixing("raises"), dtypes=["fp32"]).cell(FA, "fp32").drifts[0]
    assert drift.note == "RuntimeError: out of luck"
    judged = judge(mixing("backward raises"), dtypes=["fp32"])
    assert judged.cell(GA, "fp32").why == "RuntimeError: no backward today"
    assert judged.cell(GI, "fp32").verdict == "NOT_EVALUATED"


def test_no_gradient_is_no_pass():
    assert verdicts(judge(mixing("no gradient"), dtypes=["fp32"])) == {
        FA: "PASS", FI: "PASS", GA: "NOT_EVALUATED", GI: "NOT_EVALUATED",
    }  # fmt: skip


def test_an_empty_active_set_fails_hard():
    judged = judge(mixing(), dtypes=["fp32"], sizes=[{"rows": 0, "width": 4}])
    assert set(verdicts(judged).values()) == {"FAIL"}
    assert "active set is empty" in judged.cell(FI, "fp32").why


def test_without_a_case_it_is_vacuous():
    judged = judge(mixing(), dtypes=["fp32"], sizes=[{"rows": 1, "width": 4}], transforms=["T2"])
    assert verdicts(judged) == {FA: "PASS", FI: "VACUOUS", GA: "PASS", GI: "VACUOUS"}


def test_without_rows_invariance_is_not_evaluated():
    judged = judge(mixing(rows={}), dtypes=["fp32"])
    assert verdicts(judged) == {FA: "PASS", FI: "NOT_EVALUATED", GA: "PASS", GI: "NOT_EVALUATED"}


def test_an_operation_that_differs_from_call_to_call_fails_without_rows_too():
    def restless(*, x, weight):
        return mix()(x=x, weight=weight) + 1e-6 * torch.rand(())

    judged = judge(mixing(function=restless, rows={}), dtypes=["fp32"])
    assert failing(judged) == {FI}
    assert judged.drifts[0].case == "the same batch again"


def test_a_gold_of_zeros_shows_nothing():
    nothing = mixing(function=lambda *, x, weight: x * 0, reference=lambda *, x, weight: x * 0, differentiable=())
    assert judge(nothing, dtypes=["fp32"]).cell(FA, "fp32").verdict == "VACUOUS"


def test_rows_along_another_dimension_and_integers_as_rows():
    judged = judge(choosing())
    assert judged.verdict == "PASS"
    assert failing(judged) == set()
    assert judged.cell(GI, "fp32").cases > 15


def test_an_operation_that_writes_into_its_input_spoils_nothing_for_the_others():
    judged = judge(mixing("writes into x", differentiable=()), dtypes=["fp32"])
    assert (judged.cell(FA, "fp32").verdict, judged.cell(FI, "fp32").verdict) == ("PASS", "PASS")


def test_a_layout_may_be_refused_clearly():
    judged = judge(mixing("wants contiguous"), dtypes=["fp32"])
    assert judged.verdict == "PASS"
    assert failing(judged) == set()
    assert judged.notes == ("T6 rows apart in memory: not judged, it refuses that: ValueError: x should be contiguous",)


@pytest.mark.parametrize("fault", [False, True])
def test_schedules_of_the_operation_are_judged(fault):
    judged = judge(mixing(schedules=(in_halves(fault),)), dtypes=["fp32"], transforms=["T5"])
    assert judged.cell(FI, "fp32").verdict == ("FAIL" if fault else "PASS")
    assert [drift.case for drift in judged.drifts] == ["two rows at a time"] * fault


def test_a_candidate_and_a_reference_take_the_places_of_our_own():
    judged = judge(mixing(), candidate=mix("inaccurate"), dtypes=["fp32"])
    assert failing(judged) == {FA}
    judged = judge(mixing(), reference=lambda *, x, weight: mix_reference(x=x, weight=weight) * 2, dtypes=["fp32"])
    assert failing(judged) == {FA, GA}


def test_a_reference_that_cannot_be_used_is_wrong_usage():
    with pytest.raises(UsageError, match="reference of mix cannot be used: ZeroDivisionError"):
        judge(mixing(reference=lambda *, x, weight: 1 / 0))
    with pytest.raises(UsageError, match=r"gave torch\.float16"):
        judge(mixing(reference=lambda *, x, weight: (x * weight).half()))


def test_the_gold_gets_the_rounded_numbers_in_fp32():
    seen = []

    def reference(*, x, weight):
        seen.append((x.dtype, torch.equal(x.detach().bfloat16().float(), x.detach())))
        return mix_reference(x=x, weight=weight)

    judge(mixing(reference=reference), dtypes=["bf16"], transforms=["T2"])
    assert seen == [(torch.float32, True)]


def test_fp32_means_fp32_inside_and_what_it_was_before_outside():
    torch.set_float32_matmul_precision("high")
    try:
        with plain_fp32("cpu"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_upstream_gradient_is_random_and_the_same_every_time():
    problem = Problem.make(mixing(), {"rows": 4, "width": 8}, "bf16", "cpu", 3)
    sent = problem.upstream((4, 8))
    assert torch.equal(sent, problem.upstream((4, 8)))
    assert sent.unique().numel() > 16
    assert not torch.equal(sent, Problem.make(mixing(), {"rows": 4, "width": 8}, "bf16", "cpu", 4).upstream((4, 8)))


@pytest.mark.parametrize("transform", ["T1", "T2", "T3", "T4", "T6"])
def test_variants_hold_the_rows_that_they_say(transform):
    problem = Problem.make(mixing(), {"rows": 9, "width": 5}, "fp32", "cpu", 0)
    sent = problem.upstream((9, 5))
    made = cases(problem, {transform})
    assert made
    for case in made:
        variant = case.build(problem, sent)
        for held, baseline in ((variant.arguments["x"], problem.arguments["x"]), (variant.upstream, sent)):
            assert torch.equal(held[variant.now], baseline[variant.was]), case.name
        assert len(variant.was) == len(variant.now) > 0


def test_what_surrounds_the_rows_is_what_the_case_says():
    problem = Problem.make(mixing(), {"rows": 9, "width": 5}, "fp32", "cpu", 0)
    made = {case.name: case.build(problem, problem.upstream((9, 5))) for case in cases(problem)}
    x, odd = problem.arguments["x"], slice(1, None, 2)
    assert (made["every other row is other content"].arguments["x"][odd] != x[odd]).all()
    assert made["every other row is NaN"].arguments["x"][odd].isnan().all()
    assert (made["every other row is large numbers"].upstream[odd] != made["the same batch again"].upstream[odd]).all()
    assert made["2 rows of NaN behind"].arguments["x"][9:].isnan().all()
    assert (made["1 row of zeros in front"].arguments["x"][:1] == 0).all()
    assert torch.equal(made["10 rows of copies behind, upstream gradient 0"].arguments["x"][9:18], x)
    apart = made["rows apart in memory"].arguments["x"]
    assert torch.equal(apart, x) and not apart.is_contiguous()
    gathered = made["rows gathered by an index, some twice"].was
    assert len(gathered) > len(gathered.unique())


def test_only_silent_padding_behind_and_the_same_rows_bind_the_gradient_of_a_weight():
    problem = Problem.make(mixing(), {"rows": 9, "width": 5}, "fp32", "cpu", 0)
    sent = problem.upstream((9, 5))
    for case in cases(problem):
        if case.whole:
            variant = case.build(problem, sent)
            assert torch.equal(variant.now, torch.arange(9)) and torch.equal(variant.was, torch.arange(9))
            assert not variant.upstream[9:].any() and variant.arguments["x"].isfinite().all()


# -- drifts


def drifting():
    return judge(mixing("split by rows"), dtypes=["fp32"], names=("own", "own"))


def test_a_drift_goes_to_json_and_back():
    for judged in (drifting(), judge(mixing("nan"), dtypes=["fp16"]), judge(mixing("raises"), dtypes=["fp32"])):
        for drift in judged.drifts:
            written = json.dumps(drift.to_dict(), allow_nan=False)
            again = Drift.from_dict(json.loads(written))
            assert (again.id, json.dumps(again.to_dict())) == (drift.id, written)


def test_ids_are_made_of_the_words_of_a_replay():
    one, other = drifting().drifts, drifting().drifts
    assert [drift.id for drift in one] == [drift.id for drift in other]
    assert len({drift.id for drift in one}) == len(one)
    assert {drift.id for drift in one}.isdisjoint(
        drift.id for drift in judge(mixing("split by rows"), dtypes=["fp32"], seed=1, names=("own", "own")).drifts
    )


def test_a_drift_says_what_a_replay_needs():
    drift = drifting().drifts[0]
    told = (drift.operator, drift.transform, drift.case, drift.direction, drift.dtype, drift.device, drift.seed)
    assert told == ("mix", "T1", "row 0 alone", "forward", "fp32", "cpu", 0)
    assert (drift.baseline_shapes["x"], drift.variant_shapes["x"]) == ((9, 24), (1, 24))
    assert (drift.atol, drift.rtol, drift.elements) == (0, 0, 24)
    assert drift.mismatches > 0 and drift.max_error > 0 and drift.first.row == 0


def test_the_row_of_a_mismatch_is_that_of_the_baseline():
    by_case = {drift.case: drift.first.row for drift in judge(mixing("split by rows"), dtypes=["fp32"]).drifts}
    assert by_case["row 8 alone"] == 8
    by_case = {drift.case: drift.first.row for drift in judge(mixing("position"), dtypes=["fp32"]).drifts}
    # The first row is off wherever it is one of many: reversed, that is row 0 in the baseline and row 8 in the variant.
    assert (by_case["rows reversed"], by_case["row 0 alone"]) == (0, 0)


def test_a_replay_finds_the_same_numbers():
    for drift in (drifting().drifts[0], judge(mixing("inaccurate"), dtypes=["fp32"]).drifts[0]):
        fault = "split by rows" if drift.relation == "I" else "inaccurate"
        assert replay(drift, mixing(fault)) == drift
        assert replay(drift.to_dict(), mixing(fault)) == drift


def test_a_replay_of_what_was_repaired_finds_nothing():
    assert replay(drifting().drifts[0], mixing()) is None


@pytest.mark.parametrize(
    ("fault", "now", "said"),
    [
        ("split by rows", "raises", "it raised before this could be judged"),
        ("inaccurate", "raises", "it raises now: RuntimeError: out of luck"),
        ("gradient wrong", "backward raises", "it raises now: RuntimeError: no backward today"),
        ("gradient split by rows", "no gradient", "its output carries no gradient"),
    ],
)
def test_what_cannot_be_tried_any_more_is_not_gone(fault, now, said):
    recorded = judge(mixing(fault), dtypes=["fp32"]).drifts[0]
    with pytest.raises(NothingToJudge, match=said):
        replay(recorded, mixing(now))


def test_a_case_that_is_unknown_is_not_gone():
    with pytest.raises(NothingToJudge, match="there is no case 'row 77 alone'"):
        replay(drifting().drifts[0].to_dict() | {"case": "row 77 alone"}, mixing())


def test_a_drift_is_found_by_the_beginning_of_its_id():
    drifts = [drift.to_dict() for drift in drifting().drifts]
    assert find({"drifts": drifts}, drifts[0]["id"][:6]).id == drifts[0]["id"]
    with pytest.raises(UsageError, match="names 0 of the drifts"):
        find({"drifts": drifts}, "zzz")


def test_a_judgement_goes_to_json_and_back():
    judged = judge(mixing("nan"))
    document = json.loads(json.dumps(judged.to_dict(), allow_nan=False))
    assert Judgement.from_dict(document, judged.drifts) == judged


# -- the chain


def test_a_clean_chain_passes():
    for dtype in DTYPES:
        chain = judge_chain(chained(), {}, dtype=dtype)
        assert (chain.verdict, chain.blame) == ("PASS", "")
        assert [link.verdict for link in chain.links] == ["PASS"] * 5
        itself, truth = chain.aggregates
        assert (itself.max_dlogp, itself.clip_fraction, truth.verdict) == (0.0, 0.0, "PASS")
        assert (truth.max_dlogp > 0) == (dtype != "fp32")


def test_the_first_link_that_fails_is_blamed_and_what_follows_is_downstream():
    def gemm(*, x, w):
        exact = chained()["gemm"].function(x=x, w=w)
        return exact * (1 + 1e-3) if len(x) <= 20 else exact

    chain = judge_chain(chained(), {"gemm": gemm}, dtype="fp32")
    assert (chain.verdict, chain.blame) == ("FAIL", "gemm")
    told = {link.name: (link.verdict, link.why) for link in chain.links}
    assert told["rmsnorm"] == ("PASS", "")
    assert told["gemm"][0] == "FAIL" and told["gemm"][1].startswith("T1 sequence 0 alone")
    for name in ("attention", "lm_head", "logprob"):
        assert told[name] == ("NOT_EVALUATED", "downstream of gemm")
    assert chain.aggregates[0].verdict == "FAIL"


def test_an_inaccurate_link_is_blamed_on_its_own_inputs():
    def lm_head(*, x, w):
        return 1.5 * chained()["lm_head"].function(x=x, w=w)

    chain = judge_chain(chained(), {"lm_head": lm_head}, dtype="fp32")
    assert (chain.verdict, chain.blame) == ("FAIL", "lm_head")
    assert [link.verdict for link in chain.links] == ["PASS", "PASS", "PASS", "FAIL", "PASS"]
    assert chain.aggregates[0].verdict == "PASS" and chain.aggregates[1].verdict == "FAIL"


def test_a_drift_that_no_link_owns_is_the_integration():
    def lm_head(*, x, w):
        logits = chained()["lm_head"].function(x=x, w=w)
        logits[:, ::2] += 8e-5  # inside the link's own tolerance, beyond that of the end
        return logits

    chain = judge_chain(chained(), {"lm_head": lm_head}, dtype="fp32")
    assert (chain.verdict, chain.blame) == ("FAIL", "integration")
    assert [link.verdict for link in chain.links] == ["PASS"] * 5


def test_a_link_that_raises_stops_the_chain():
    chain = judge_chain(chained(), {"attention": mix("raises")}, dtype="fp32")
    assert (chain.verdict, chain.blame) == ("FAIL", "attention")
    assert [link.verdict for link in chain.links] == ["PASS", "PASS", "FAIL", "NOT_EVALUATED", "NOT_EVALUATED"]


def test_a_missing_link_is_named():
    known = chained()
    del known["lm_head"], known["logprob"]
    chain = judge_chain(known, {}, dtype="fp32")
    assert (chain.verdict, chain.why) == ("NOT_EVALUATED", "not registered: lm_head, logprob")


# -- where there is no GPU


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    """The command over operations of this file, in an empty folder."""
    known = {"mix": mixing(), "rectify": rectifying(), **chained()}
    monkeypatch.setattr(inquiry, "all_operators", lambda: known)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words):
        code = main(["check", "operator", *words])
        return code, capsys.readouterr()

    run.known = known
    return run


def test_the_command_tells_triton_to_interpret_on_a_cpu(check):
    assert check("mix", "--dtype", "fp32", "--device", "cpu")[0] == 0
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_bf16_is_left_out_where_kernels_are_interpreted_unless_it_is_asked_for(check, monkeypatch):
    monkeypatch.setattr(launch, "interpreted", lambda: True)
    _, printed = check("mix", "--json")
    found = {(cell["dtype"], cell["verdict"]) for cell in json.loads(printed.out)["operators"][0]["cells"]}
    assert found == {("fp32", "PASS"), ("fp16", "PASS"), ("bf16", "NOT_EVALUATED")}
    printed = check("mix")[1].out
    assert "TRITON_INTERPRET=1" in printed
    assert "mix bf16: Triton's interpreter gets bf16 arithmetic wrong" in printed
    code, printed = check("mix", "--dtype", "bf16")
    assert (code, "equal in" in printed.out) == (0, True)


def test_sizes_of_models_are_not_for_the_interpreter(check, monkeypatch):
    assert check("mix", "--large", "--dtype", "fp32")[0] == 0
    monkeypatch.setattr(launch, "interpreted", lambda: True)
    code, printed = check("mix", "--large")
    assert (code, "--large needs a GPU" in printed.err) == (2, True)


def test_torch_runs_bf16_on_a_cpu(check, monkeypatch):
    monkeypatch.setattr(launch, "interpreted", lambda: True)
    monkeypatch.setitem(torch_candidates.CANDIDATES, "mix", mix())
    code, printed = check("mix", "--candidate", "torch", "--json")
    document = json.loads(printed.out)
    assert (code, document["notes"]) == (0, [])
    assert {cell["verdict"] for cell in document["operators"][0]["cells"]} == {"PASS"}


def test_a_kernel_that_cannot_run_here_is_not_evaluated(monkeypatch):
    monkeypatch.setattr(launch, "interpreted", lambda: False)

    def kernel(*, x, weight):
        raise launch.CannotLaunch("mix runs on CUDA devices")

    judged = judge(mixing(function=kernel), dtypes=["fp32"])
    assert set(verdicts(judged).values()) == {"NOT_EVALUATED"}
    assert "CUDA devices" in judged.cell(FA, "fp32").why

    def refusing(*, x, weight):
        raise launch.WrongArgument("mix", "x", "small", "large")

    assert failing(judge(mixing(function=refusing), dtypes=["fp32"])) == {FA}


def test_a_schedule_that_a_foreign_function_does_not_know_is_told_and_not_judged():
    def cached(operation, given):
        return operation(**given, cache=3), operation(**given)

    scheduled = mixing(schedules=(Schedule("T7", "with a cache", cached),))
    judged = judge(scheduled, candidate=mix(), dtypes=["fp32"], transforms=["T7"])
    assert judged.cell(FI, "fp32").verdict == "VACUOUS"
    assert judged.notes[0].startswith("T7 with a cache: not judged: TypeError")
    assert failing(judge(scheduled, dtypes=["fp32"], transforms=["T7"])) == {FI}


def registered(*words):
    """The command on the operations of kernels/, in a process of its own: Triton is told to interpret only once."""
    done = subprocess.run(
        [sys.executable, "-m", "brickprof", "check", "operator", *words, "--device", "cpu", "--json"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_registered_operation_holds_in_the_interpreter():
    found = registered("--dtype", "fp32", "--transforms", "T1,T4,T5")
    assert {each["operator"]: each["verdict"] for each in found["operators"]} == {
        each["operator"]: "PASS" for each in found["operators"]
    }
    assert found["operators"]


def test_what_torch_has_in_the_place_of_each_operation_is_the_same_mathematics():
    found = registered("--candidate", "torch", "--transforms", "T2")
    verdicts = {
        (each["operator"], cell["dtype"], cell["judgment"]): cell["verdict"]
        for each in found["operators"]
        for cell in each["cells"]
        if cell["judgment"] in (FA, GA) and each["operator"] in torch_candidates.CANDIDATES
    }
    assert {cell: verdict for cell, verdict in verdicts.items() if verdict != "PASS"} == {}
    assert verdicts


# -- the command


MINE = """
import torch

def good(*, x, weight):
    return x * weight + x.sum(-1, keepdim=True)

def off(*, x, weight):
    return 1.5 * good(x=x, weight=weight)

def broken(*, x, weight):
    raise RuntimeError("not today")

NUMBER = 3
"""


def test_a_clean_operation_exits_0(check):
    code, printed = check("mix", "--dtype", "fp32")
    assert code == 0
    assert printed.out.startswith("✓ PASS  1 of 1 operation holds")
    assert "equal in" in printed.out


def test_a_candidate_of_ones_own(check, tmp_path):
    (tmp_path / "mine_1.py").write_text(MINE)
    code, printed = check("--candidate", "mine_1:off", "--like", "mix", "--dtype", "fp32", "-o", "found.json")
    assert code == 1
    assert printed.out.startswith("✗ FAIL  0 of 1 operation holds; failed: mix")
    assert "✗ mix fp32: forward accuracy    blame: accuracy" in printed.out
    document = json.loads((tmp_path / "found.json").read_text())
    identity = document["drifts"][0]["id"]
    assert f"brickprof check operator --replay {identity} --from found.json" in printed.out
    code, printed = check("--replay", identity, "--from", "found.json")
    assert code == 1
    assert printed.out.startswith(f"✗ REPRODUCED  mix fp32, {identity}, the same numbers")


def test_a_replay_of_what_was_repaired_exits_0(check, tmp_path):
    (tmp_path / "mine_2.py").write_text(MINE)
    check("mix", "--candidate", "mine_2:off", "--dtype", "fp32", "-o", "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    recorded = document["drifts"][0] | {"candidate": "own"}
    (tmp_path / "repaired.json").write_text(json.dumps({"drifts": [recorded]}))
    code, printed = check("--replay", Drift.from_dict(recorded).id, "--from", "repaired.json")
    assert code == 0
    assert printed.out.startswith("✓ GONE")


def test_a_reference_of_ones_own(check, tmp_path):
    (tmp_path / "mine_3.py").write_text(MINE)
    code, _ = check("mix", "--reference", "mine_3:off", "--dtype", "fp32")
    assert code == 1
    assert check("mix", "--reference", "mine_3:good", "--dtype", "fp32")[0] == 0


def test_a_candidate_that_raises_is_a_failure_in_one_line(check, tmp_path):
    (tmp_path / "mine_4.py").write_text(MINE)
    code, printed = check("mix", "--candidate", "mine_4:broken", "--dtype", "fp32")
    assert code == 1
    assert "RuntimeError: not today" in printed.out
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mxi"], "there is no operation 'mxi'. Did you mean mix?"),
        (["mix", "--dtype", "fp64"], "--dtype is 'fp64'. Give some of: fp32,bf16,fp16."),
        (["mix", "--transforms", "T9"], "--transforms is 'T9'."),
        (["mix", "--sizes", "rows"], "Give it as rows=64,width=128."),
        (["mix", "--sizes", "raws=3"], "mix has no 'raws'. It takes such as: rows=9,width=24."),
        (["mix", "--device", "tpu"], "--device is 'tpu'."),
        (["mix", "--candidate", "nothing"], "Give it as package.module:function."),
        (["mix", "--candidate", "no_such_module_here:f"], "there is no module no_such_module_here"),
        (["mix", "--candidate", "mine_5:god"], "mine_5 has no god. Did you mean good?"),
        (["mix", "--candidate", "mine_5:NUMBER"], "mine_5:NUMBER is no function but a int."),
        (["mix", "--candidate", "spoilt:f"], "importing spoilt failed: SyntaxError"),
        (["--candidate", "mine_5:good"], "a candidate stands for one operation. Say for which"),
        (["--reference", "mine_5:good"], "a reference is that of one operation."),
        (["--replay", "abc"], "--replay and --from go together."),
        (["--replay", "abc", "--from", "no.json"], "no.json cannot be read"),
        (["--replay", "abc", "--from", "spoilt.py"], "spoilt.py cannot be read"),
        (["mix", "-o", "no/such/folder.json", "--dtype", "fp32"], "cannot be written"),
    ],
)
def test_wrong_words_are_one_clear_line(check, tmp_path, words, said):
    (tmp_path / "mine_5.py").write_text(MINE)
    (tmp_path / "spoilt.py").write_text("def f(:\n")
    code, printed = check(*words)
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_nothing_registered_exits_3(check):
    check.known.clear()
    code, printed = check()
    assert code == 3
    assert "no operation is registered" in printed.err


def test_what_is_not_evaluated_exits_3_and_says_why(check):
    code, printed = check("mix", "--candidate", "torch")
    assert code == 3
    assert "○ NOT EVALUATED" in printed.out
    assert "torch has no mix of its own" in printed.out


def test_sizes_and_transforms_are_those_asked_for(check):
    code, printed = check(
        "mix", "--sizes", "rows=5", "--sizes", "rows=7,width=3", "--transforms", "T1,T2", "--dtype", "fp32", "--json"
    )
    document = json.loads(printed.out)
    cells = {cell["judgment"]: cell for cell in document["operators"][0]["cells"]}
    assert (code, cells[FA]["cases"], cells[FI]["cases"]) == (0, 2, 2 * (3 + 1 + 1 + 3))


def test_json_is_a_document_that_says_everything(check, tmp_path):
    (tmp_path / "mine_6.py").write_text(MINE)
    code, printed = check("mix", "--candidate", "mine_6:off", "--json", "--seed", "4")
    document = json.loads(printed.out)
    assert (code, document["schema"], document["verdict"], document["seed"]) == (1, 1, "FAIL", 4)
    (judged,) = document["operators"]
    assert (judged["operator"], judged["candidate"], judged["verdict"]) == ("mix", "mine_6:off", "FAIL")
    assert [(cell["dtype"], cell["judgment"]) for cell in judged["cells"][:4]] == [("fp32", each) for each in JUDGMENTS]
    drifts = {drift["id"]: Drift.from_dict(drift) for drift in document["drifts"]}
    assert Judgement.from_dict(judged, drifts.values()).to_dict() == judged
    assert {identity for cell in judged["cells"] for identity in cell["drifts"]} == set(drifts)
    assert "--candidate mine_6:off" in document["drifts"][0]["command"]


def test_progress_goes_to_the_terminal_and_not_into_the_json(check, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, printed = check("mix", "--dtype", "fp32", "--json")
    assert (code, json.loads(printed.out)["verdict"]) == (0, "PASS")


def test_the_chain_from_the_command_line(check):
    code, printed = check("--chain", "--dtype", "fp32")
    assert code == 0
    assert "max |dlogp| 0 (allowed 1e-05)" in printed.out
    del check.known["lm_head"]
    code, printed = check("--chain", "--dtype", "fp32")
    assert code == 3
    assert "not registered: lm_head" in printed.out


def test_what_can_be_judged_is_listed(check):
    code, printed = check("--list")
    assert code == 0
    assert "mix(x, weight)" in printed.out and "rows=9,width=24" in printed.out
    assert {each["operator"] for each in json.loads(check("--list", "--json")[1].out)} == set(check.known)


def document(judged):
    return inquiry.document([judged], [], "cpu", 0, [])


@pytest.mark.parametrize("width", [40, 200])
def test_narrow_and_wide_say_the_same(width, tmp_path):
    found = document(judge(mixing("split by rows"), dtypes=["fp32"]))
    console = Console(width=width, force_terminal=True, no_color=True, record=True, file=(tmp_path / "x").open("w"))
    shown.render(found, console)
    text = console.export_text()
    for judgment in JUDGMENTS:
        assert judgment in text
    assert "✗" in text and "✓" in text
    table = text[: text.index("✗ mix fp32:")]
    assert max(len(line) for line in table.splitlines()[1:]) <= width


def test_nothing_but_ascii_where_that_is_all_there_is(tmp_path):
    found = document(judge(mixing("split by rows"), dtypes=["fp32"]))
    with (tmp_path / "x").open("w", encoding="ascii") as file:
        shown.render(found, Console(file=file, width=100))
    assert (tmp_path / "x").read_text("ascii").startswith("x FAIL")


def test_a_failure_shows_the_first_mismatch_and_how_to_see_it_again(tmp_path, capsys):
    judged = judge(mixing("split by rows"), dtypes=["fp32"], names=("own", "own"))
    shown.render(document(judged), Console(width=200))
    out = capsys.readouterr().out
    first = judged.drifts[0].first
    assert f"row 0, element {first.element}:" in out
    assert f"({first.expected_bits}) became" in out
    assert "again  brickprof check operator mix --dtype fp32 --sizes rows=9,width=24 --device cpu --seed 0" in out


def test_help_is_worth_reading():
    told = CliRunner().invoke(build()[0], ["check", "operator", "--help"]).output
    assert "brickprof check operator gemm --candidate torch" in told
    assert "--replay" in told


def test_options_are_a_conscious_choice():
    """A new flag is a change of the interface: write it down here."""
    from brickprof.cli import check

    assert sorted(name for name in check.operator.__annotations__ if name != "return") == [
        "as_json", "candidate", "chain", "device", "dtype", "large", "like", "names", "only_list", "out", "reference",
        "replayed", "seed", "sizes", "source", "transforms",
    ]  # fmt: skip


def test_all_seven_transforms_are_known():
    assert TRANSFORMS == ("T1", "T2", "T3", "T4", "T5", "T6", "T7")
