"""Numbers and words in a journal that no run writes: whoever reads them goes on."""

from __future__ import annotations

import pytest
from making import Made

from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Verdict
from brickprof.diagnosis import diagnose
from brickprof.rules.names import Names, whole
from brickprof.rules.story import Story
from brickprof.rules.stream_sync import StreamSync

HUGE = (10**400, -(10**400), 2**62, -(2**62))


def failures(made: Made) -> list[str]:
    return [f"{result.id}: {result.why}" for result in diagnose(made.run()).contracts if "rule failed" in result.why]


def transfers(**changes):
    """Steps of two micro-batches with a line that copies."""
    made = Made()
    for event in made.records:
        if event.kind == "tensor":
            event.fields["device"] = "cuda:0"
    for step in range(12):
        for micro in range(2):
            made.event("loss", step, value=1.0, micro=micro)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
        row = ["train.py:9", "H2D", 2, 8192, True, False, 1000]
        for place, value in changes.get("row", {}).items():
            row[place] = value
        told = {"count": 2, "bytes": 8192, "backwards": 2, **changes.get("fields", {})}
        made.event("transfers", step, device=["cuda:0"], rows=[row], **told)
    return made


@pytest.mark.parametrize("number", HUGE, ids=range(4))
def test_a_number_that_no_run_has_is_none(number):
    assert whole(number, -1) == -1
    assert whole(2**62 - 1) == 2**62 - 1 and whole(-(2**62) + 1) == -(2**62) + 1


def test_a_tensor_of_a_size_that_no_tensor_has_has_none():
    names, made = Names(), Made()
    made.block("odd", shape=[2] * 20_000)
    for record in made.records:
        names.feed(record)
    assert [tensor.numel for tensor in names.tensors(0)][-1] == 0


@pytest.mark.parametrize("number", HUGE, ids=range(4))
@pytest.mark.parametrize("name", ["count", "bytes", "backwards"])
def test_traffic_beyond_counting_ends_no_rule(name, number):
    assert failures(transfers(fields={name: number})) == []


@pytest.mark.parametrize("number", HUGE, ids=range(4))
@pytest.mark.parametrize("place", [2, 3, 6])
def test_a_line_beyond_counting_ends_no_rule(place, number):
    assert failures(transfers(row={place: number})) == []


@pytest.mark.parametrize("number", HUGE, ids=range(4))
@pytest.mark.parametrize("place", [1, 2, 3])
def test_gradients_beyond_counting_end_no_rule(place, number):
    home = ["train.py:9", 2, 200, 8_000_000]
    fields = {"home": [[*home[:place], number, *home[place + 1 :]]]}
    assert failures(transfers(fields={"home": [home]})) == failures(transfers(fields=fields)) == []


@pytest.mark.parametrize("value", [[], {}, [True], "yes", 1])
@pytest.mark.parametrize(("place", "name"), [(4, "pinned"), (5, "blocking")])
def test_an_odd_word_on_a_copy_is_not_known(place, name, value):
    (row,) = diagnose(transfers(row={place: value}).run()).run["transfers"]
    assert row[name] is None and row["steps"] == 12


@pytest.mark.parametrize("number", HUGE, ids=range(4))
def test_a_race_over_more_bytes_than_there_are_is_one(number):
    made = Made()
    made.healthy(4)
    side = {"site": "a.py:1", "stream": "stream 1", "op": "copy", "writes": True, "stack": ["a.py:1"]}
    told = {"pair": 0, "cause": "missing-sync", "how": "read-before-copy", "memory": "pinned", "count": number}
    made.event("race", 2, **told, bytes=number, first=side, second=side)
    result = StreamSync().judge(Story.of(made.run()), Terms().contract("C-STREAMSYNC-001"))
    assert result.verdict is Verdict.FAIL
