"""Why a contract that several rules watch could not be judged: who knows says so, whoever else has nothing to say."""

from __future__ import annotations

from itertools import permutations

import pytest
from making import Made

from brickprof.contracts.verdicts import ContractResult, Verdict, together
from brickprof.diagnosis import diagnose


def training(device: str = "cuda:0") -> Made:
    made = Made("a", "b")
    made.healthy(6)
    for event in made.records:
        if getattr(event, "kind", "") == "tensor":
            event.fields["device"] = device
    return made


def why(made: Made, contract: str) -> str:
    (found,) = [each for each in diagnose(made.run()).contracts if each.id == contract]
    assert found.verdict is Verdict.NOT_EVALUATED, found
    return found.why


def test_without_a_device_transfers_say_so():
    assert why(training("cpu"), "C-GPUTRAIN-002").startswith("no device: nothing was transferred")


def test_compiled_transfers_name_what_was_compiled():
    made = training()
    made.event("compile", 0, function="Net.forward", site="model.py:12")
    assert why(made, "C-GPUTRAIN-002").startswith("something was compiled (Net.forward at model.py:12)")


def test_refused_launches_are_why_buffers_are_not_judged():
    made = training()
    refused = {"it is given a tensor descriptor": 4}
    made.event(
        "canaries", 3, launches=4, checked=0, partly=0, touched=0, kernels={}, distinct=0, refused=refused, unwritten=0
    )
    assert "it is given a tensor descriptor" in why(made, "C-BUFSIZE-001")
    assert "--level deep on a GPU checks them" in why(training(), "C-BUFSIZE-001")


@pytest.mark.parametrize(("tool", "contract"), [("memcheck", "C-BUFSIZE-001"), ("initcheck", "C-GPUINIT-001")])
def test_what_the_sanitizer_doubts_is_said(tool, contract):
    made = training()
    made.event("sanitizer", 0, rank=-1, what="start", tool=tool)
    made.event("sanitizer", 0, rank=-1, what="summary", tool=tool, errors=0, doubts=["No attachable process found"])
    assert "No attachable process found" in why(made, contract)


def result(said: str, observed: str = "", *, aside: bool = False) -> ContractResult:
    return ContractResult("C", Verdict.NOT_EVALUATED, observed, why=said, aside=aside)


def test_the_order_of_rules_decides_nothing_but_the_order_of_words():
    known = [result("one"), result("two", "seen"), result("general", aside=True), result("vague", aside=True)]
    for first, second, third, fourth in permutations(known):
        found = together(together(together(first, second), third), fourth)
        assert (set(found.why.split("; ")), found.observed) == ({"one", "two"}, "seen")


def test_where_nobody_knows_one_of_them_says_what_would_decide():
    assert together(result("one", aside=True), result("two", aside=True)).why == "one"
    assert together(result("one"), result("one")).why == "one"


@pytest.mark.parametrize("judged", [Verdict.PASS, Verdict.FAIL, Verdict.VACUOUS])
def test_whoever_judged_is_not_outdone_by_reasons(judged):
    for pair in permutations([result("one", "seen"), ContractResult("C", judged, "this", why="so")]):
        assert (together(*pair).verdict, together(*pair).observed, together(*pair).why) == (judged, "this", "so")
