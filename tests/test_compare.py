"""Where two runs part: the first step, brick and tensor, in the order in which things act."""

from __future__ import annotations

import json

import pytest
from making import NAN, Made

from brickprof.cli.app import main
from brickprof.diagnosis.compare import compare
from brickprof.errors import NothingToJudge
from brickprof.records import RunMeta
from brickprof.run import Run


def trained(steps: int = 6, *, lr: float = 1e-3, rank: int = 0) -> Made:
    made = Made(rank=rank)
    made.event("optimizer_created", 0, optimizer=0, cls="AdamW", groups=[{"lr": lr, "tensors": [1]}])
    for step in range(steps):
        made.event("batch", step, loader=0, wait_ns=1, fingerprint=f"f{step}", count=step + 1)
        made.step(step, loss=2.0 / (step + 1), norm=1.0 + step, lr=lr)
        for place, block in enumerate(made.numbers):
            made.sample("grad", step, block, l2=1.0 + place + step)
            made.sample("weight", step, block, checksum=100 * step + place)
    return made


def changed(made: Made, kind: str, step: int, **fields) -> Made:
    """The same run with other fields from ``step`` on in every event of ``kind``."""
    for event in made.records:
        if getattr(event, "kind", "") == kind and event.step >= step:
            event.fields.update(fields)
    return made


def resampled(made: Made, role: str, step: int, block: str, **fields) -> Made:
    from dataclasses import replace

    made.records = [
        replace(record, **fields)
        if getattr(record, "role", "") == role and record.step >= step and record.brick.path == block
        else record
        for record in made.records
    ]
    return made


def test_equal_runs_are_the_same():
    found = compare(trained().run(), trained().run())
    assert found.same
    assert {row.what for row in found.rows} >= {"setting", "batch", "loss", "gradient", "learning rate", "weight bits"}
    assert all(row.compared and not row.different for row in found.rows)


def test_the_first_step_and_tensor_are_named():
    found = compare(trained().run(), resampled(trained(), "weight", 3, "body", checksum=7).run())
    assert (found.first.what, found.first.step, found.first.tensor) == ("weight bits", 3, "body.weight")
    assert found.first.brick == "body"
    assert found.equal_until == 2


def test_within_a_step_what_acts_first_comes_first():
    other = changed(trained(), "loss", 4, value=9.0)
    other = resampled(resampled(other, "weight", 4, "embed", checksum=7), "grad", 4, "head", l2=50.0)
    found = compare(trained().run(), other.run())
    assert (found.first.what, found.first.step) == ("loss", 4)
    other = changed(other, "batch", 4, fingerprint="other")
    assert compare(trained().run(), other.run()).first.what == "batch"


def test_a_backward_is_read_from_the_loss_on():
    other = resampled(resampled(trained(), "grad", 2, "embed", l2=9.0), "grad", 2, "head", l2=9.0)
    assert compare(trained().run(), other.run()).first.tensor == "head.weight"


def test_a_setting_that_differs_is_where_runs_part():
    found = compare(trained().run(), trained(lr=2e-3).run())
    assert (found.first.what, found.first.tensor, found.first.a, found.first.b) == ("setting", "lr", 1e-3, 2e-3)


@pytest.mark.parametrize(("tolerance", "same"), [(0.0, False), (1e-4, True), (1e-7, False)])
def test_a_tolerance_lets_numbers_differ(tolerance, same):
    other = changed(trained(), "loss", 5, value=2.0 / 6 + 1e-5)
    assert compare(trained().run(), other.run(), tolerance).same is same


def test_a_tolerance_is_not_for_learning_rates():
    other = changed(trained(), "optimizer", 3, lr=[1.1e-3])
    assert compare(trained().run(), other.run(), 0.01).first.what == "learning rate"


def test_the_same_nan_is_the_same():
    both = [changed(trained(), "loss", 3, value=NAN).run() for _ in range(2)]
    assert compare(*both).same
    assert not compare(trained().run(), both[0]).same


def test_gradients_that_broke_in_one_run_differ():
    found = compare(trained().run(), resampled(trained(), "grad", 1, "body", l2=NAN, nan=3).run())
    assert (found.first.what, found.first.step, found.first.tensor) == ("gradient", 1, "body.weight")


def test_runs_with_other_numbers_of_ranks_compare_their_mean_loss():
    single = changed(trained(), "loss", 0, value=1.5)
    first, second = changed(trained(), "loss", 0, value=1.0), changed(trained(rank=1), "loss", 0, value=2.0)
    pair = Run.from_records([*first.records, *second.records], RunMeta("pair"))
    found = compare(pair, single.run(), 1e-4)
    assert found.same and found.ranks == (2, 1)
    assert not compare(pair, changed(trained(), "loss", 0, value=1.6).run(), 1e-4).same


def test_nothing_in_common_is_said():
    with pytest.raises(NothingToJudge):
        compare(Made().run(), trained().run())


@pytest.mark.parametrize(("lr", "code"), [(1e-3, 0), (2e-3, 1)])
def test_the_command_says_where_and_ends_with_the_right_code(tmp_path, capsys, lr, code):
    trained().run().save(tmp_path / "a")
    trained(lr=lr).run().save(tmp_path / "b")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == code
    text = capsys.readouterr().out
    assert ("SAME" in text) is (code == 0)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is (code == 0)
    assert code == 0 or told["first"]["tensor"] == "lr"


def test_the_command_knows_wrong_usage_and_nothing_to_compare(tmp_path, capsys):
    trained().run().save(tmp_path / "a")
    Made().run().save(tmp_path / "empty")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "nowhere")]) == 2
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--tolerance", "inf"]) == 2
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "empty")]) == 3


def test_evidence_of_a_difference_can_be_shown(tmp_path):
    a, b = trained().run(), resampled(trained(), "weight", 3, "body", checksum=7).run()
    found = compare(a, b).first
    assert a.find(found.evidence[0]) and b.find(found.evidence[1])


def test_json_is_strict_where_numbers_are_not_finite(tmp_path, capsys):
    trained().run().save(tmp_path / "a")
    changed(trained(), "loss", 3, value=NAN).run().save(tmp_path / "b")
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["first"]["b"] == "nan"
