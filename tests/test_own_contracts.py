"""Contracts of the user's own: what can be said in them, what they come to, and where they are found."""

from __future__ import annotations

import os
import time

import pytest
from making import NAN, Made
from ratcheting import broken, contract, trained

from brickprof import settings
from brickprof.contracts import formulas, own
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.errors import ConfigurationError
from brickprof.records import RunMeta
from brickprof.rules import obligations
from brickprof.rules.engine import Engine
from brickprof.rules.story import Story
from brickprof.run import Run


def judged(
    made: Made, formal: str, others: dict[str, ContractResult] | None = None, **thresholds: float
) -> ContractResult:
    text = contract(formal, **thresholds)
    return obligations.result(own.parse(text, "x.yaml"), Story.of(made.run()), others or {})


# -- formulas


@pytest.mark.parametrize(
    ("formal", "parts"),
    [
        ("max(grad_norm) <= 10", ("max", "grad_norm", "", "<=", "10")),
        ("  last( lr )>=least ", ("last", "lr", "", ">=", "least")),
        ("min(grad_norm[blocks.0]) > 0", ("min", "grad_norm", "blocks.0", ">", "0")),
        ("max(update_ratio[odd ]name]) < 1e-3", ("max", "update_ratio", "odd ]name", "<", "1e-3")),
    ],
)
def test_a_formula_is_read(formal, parts):
    told = formulas.parse(formal, {"least": 1.0})
    assert isinstance(told, formulas.Formula)
    assert (told.aggregate, told.quantity, told.brick, told.relation, told.right) == parts


def test_a_contract_may_be_asked_to_hold():
    assert formulas.parse("C-CLIP-001 holds", {}) == formulas.Formula(contract="C-CLIP-001")


@pytest.mark.parametrize(
    ("formal", "complaint"),
    [
        ("__import__('os').system('x') <= 1", "nothing that can be checked"),
        ("grad_norm <= 10", "nothing that can be checked"),
        ("sum(grad_norm) <= 10", "asks for sum(...)"),
        ("max(norm) <= 10", "asks for 'norm'"),
        ("max(loss[head]) <= 10", "of one brick"),
        ("max(loss) <= much", "neither a number"),
        ("max(loss) <= nan", "not finite"),
        ("max(loss) <= inf", "not finite"),
        ("", "nothing that can be checked"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused(formal, complaint):
    told = formulas.parse(formal, {"other": 1.0})
    assert isinstance(told, str)
    assert complaint in told


def test_a_formula_of_any_length_is_read_at_once():
    started = time.process_time()
    assert isinstance(formulas.parse("max(grad_norm[a" + "])<=" * 60_000 + " b c", {}), str)
    assert time.process_time() - started < 5


def test_every_quantity_can_be_measured():
    assert set(formulas.QUANTITIES) == set(obligations.MEASURES)


def test_a_file_that_says_nothing_checkable_is_refused_with_its_line():
    with pytest.raises(ConfigurationError, match=r"mine.yaml:11: obligations.0.formal asks for 'norm'"):
        own.parse(contract("max(norm) <= 1", about="C-CLIP-001"), "mine.yaml")
    with pytest.raises(ConfigurationError, match="says that it holds if it holds"):
        own.parse(contract("C-OWN-X holds"), "mine.yaml")


@pytest.mark.parametrize(
    "odd", ["thresholds: {a: " + "9" * 400 + "}", "thresholds: " + "[" * 900 + "]" * 900, "#\ud800"]
)
def test_what_is_no_contract_is_said_and_a_run_that_kept_it_is_judged_without_it(odd):
    text = contract("max(loss) <= 1") + odd
    with pytest.raises(ConfigurationError, match=r"^mine\.yaml:"):
        own.parse(text, "mine.yaml")
    assert own.recorded({"mine.yaml": text, "y.yaml": contract("max(loss) <= 1", identity="C-OWN-Y")}).keys() == {
        "C-OWN-Y"
    }


@pytest.mark.parametrize("odd", ["much", None, [1], NAN, pytest.param(10**400, id="huge")])
def test_a_kept_threshold_that_is_no_number_is_left_out(odd):
    kept = Terms.recorded({"thresholds": {"C-CLIP-001.over": odd, "C-CLIP-001.looks": 3}})
    assert kept.thresholds == {"C-CLIP-001.looks": 3.0}


def test_an_id_is_given_once():
    text = contract("max(loss) <= 1")
    with pytest.raises(ConfigurationError, match="another file"):
        own.read({"a.yaml": text, "b.yaml": text})
    with pytest.raises(ConfigurationError, match="brickprof's own library"):
        own.read({"a.yaml": contract("max(loss) <= 1", identity="C-CLIP-001")})


# -- what obligations come to


def test_an_upper_bound_is_for_every_step():
    made = trained(1, 2, 30, 4, 50)
    assert judged(made, "max(applied_grad_norm) <= 50").verdict is Verdict.PASS
    result = judged(made, "max(applied_grad_norm) <= most", most=10)
    (violation,) = result.violations
    assert (result.verdict, violation.first_step, violation.severity) == (Verdict.FAIL, 2, Severity.ERROR)
    assert "was 50 in step 4; it has to be at most 10 (C-OWN-X, it)" in violation.symptom
    assert len(violation.evidence) == 2
    assert all(made.run().find(identity) for identity in violation.evidence)


def test_the_largest_value_may_be_asked_to_be_large():
    made = trained(1, 1, 1, rates=(1e-4, 3e-4, 2e-4))
    assert judged(made, "max(lr) >= 3e-4").verdict is Verdict.PASS
    assert judged(made, "max(lr) >= 1e-3").verdict is Verdict.FAIL
    assert judged(made, "min(lr) >= 2e-4").violations[0].first_step == 0


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_what_is_no_number_keeps_no_bound(value):
    made = trained(1, 2)
    made.step(2, loss=value)
    for formal in ("max(loss) <= 1e30", "min(loss) >= -1e30", "last(loss) < 1e30", "max(nonfinite_losses) == 0"):
        result = judged(made, formal)
        kept = formal.startswith("min") and value > 0  # infinity is above every lower bound
        assert (result.verdict is Verdict.PASS) == kept, formal


def test_a_gradient_that_is_no_number_is_found_behind_large_ones():
    made = trained(1, 907)
    made.event("loss", 2, value=1.0)
    made.broken("grad", 2, "head", point="step", l2=None, absmax=NAN)
    made.event("optimizer", 2, optimizer=0, lr=[0.1], count=3)
    said = judged(made, "max(applied_grad_norm) <= 10").violations[0].symptom
    assert "was 907 in step 1, and not finite in step 2" in said
    assert judged(made, "max(nonfinite_gradients) == 0").violations[0].first_step == 2


def test_the_rest_of_the_aggregates():
    made = trained(1, 1, 1, 1, rates=(0.1, 0.1, 0.1, 0.2))
    assert judged(made, "distinct(lr) > 1").verdict is Verdict.PASS
    assert judged(made, "distinct(lr) == 2").verdict is Verdict.PASS
    assert judged(made, "first(lr) < 0.2").verdict is Verdict.PASS
    assert judged(made, "last(lr) < 0.2").verdict is Verdict.FAIL
    result = judged(trained(1, 1, rates=(0.1, 0.1)), "distinct(lr) > 1")
    assert "the number of values of the learning rate was 1" in result.why


def test_a_median_is_over_steps_and_not_over_looks():
    made = Made("head")
    for step, rate in ((0, 0.1), (1, 0.1), (2, 0.1), (3, 0.001), (100, 0.001)):
        made.step(step, lr=rate)
    assert judged(made, "median(lr) >= 0.1").verdict is Verdict.FAIL
    assert judged(made, "median(lr) <= 0.001").verdict is Verdict.PASS


def test_one_brick_may_be_asked_about():
    made = trained(1, 1, 1)
    for step in range(3):
        made.sample("weight", step, "embed", checksum=7)
        made.sample("weight", step, "head", checksum=step)
        made.sample("grad", step, "head", l2=float(step))
    assert judged(made, "last(weights_changed[head]) >= 1").verdict is Verdict.PASS
    assert judged(made, "last(weights_changed[head.weight]) >= 1").verdict is Verdict.PASS
    assert judged(made, "last(weights_changed) >= 1").verdict is Verdict.FAIL
    frozen = judged(made, "last(weights_changed[embed]) >= 1")
    assert "the share of parameters of embed that changed was 0 in step 2" in frozen.why
    assert frozen.violations[0].brick == "embed"
    assert judged(made, "min(grad_norm[head]) > 0").violations[0].first_step == 0


@pytest.mark.parametrize("formal", ["max(grad_norm[head]) <= 10", "min(grad_norm[head.weight]) >= 0"])
def test_a_brick_that_is_not_finite_keeps_no_bound(formal):
    """As a sample tells it, and as an event does where nobody sampled; that of another brick is another matter."""
    for tell in ("sample", "event"):
        made = trained(1, 1, 1)
        made.sample("grad", 0, "head", l2=1.0)
        made.sample("grad", 0, "embed", l2=1.0)
        if tell == "sample":
            made.sample("grad", 2, "head", l2=NAN, absmax=NAN, nan=3)
            made.sample("grad", 2, "embed", l2=1.0)
        else:
            made.broken("grad", 2, "head", point="step", l2=None, absmax=NAN)
        result = judged(made, formal)
        assert (result.verdict, result.violations[0].first_step) == (Verdict.FAIL, 2)
        assert judged(made, formal.replace("head", "embed")).verdict is Verdict.PASS


def test_a_step_that_a_loss_scaler_skipped_breaks_nothing():
    made = trained(1, 1)
    made.sample("grad", 0, "head", l2=1.0, scale=1.0)
    made.sample("grad", 2, "head", l2=NAN, absmax=NAN, inf=3, scale=65536.0)
    made.broken("grad", 2, "head", point="step", l2=None, absmax=NAN, scale=65536.0)
    made.event("optimizer", 2, optimizer=0, lr=[1e-3], count=2, skipped=True)
    assert judged(made, "max(grad_norm[head]) <= 10").verdict is Verdict.PASS


@pytest.mark.parametrize("where", ["", "[head]"])
def test_an_update_that_is_not_finite_keeps_no_bound(where):
    made = trained(1, 1)
    made.sample("update", 0, "head", l2=1.0, ratio=0.1)
    made.sample("update", 1, "head", l2=NAN, ratio=NAN, nan=3)
    result = judged(made, f"max(update_ratio{where}) <= 1")
    assert result.verdict is Verdict.FAIL
    assert "was 0.1 in step 0, and not finite in step 1" in result.why


def test_the_last_bit_of_a_weight_counts_and_a_late_tensor_has_a_first_look_of_its_own():
    made = trained(1, 1, 1)
    for step in range(3):
        made.sample("weight", step, "embed", checksum=2**62 + step)
    for step in (1, 2):
        made.sample("weight", step, "head", checksum=7)
    assert judged(made, "last(weights_changed[embed]) >= 1").verdict is Verdict.PASS
    assert judged(made, "first(weights_changed[head]) >= 1").violations[0].first_step == 2
    assert "was 0.5 in step 2" in judged(made, "last(weights_changed) >= 1").why


def test_other_quantities_are_measured():
    made = trained(1, 1)
    made.event("batch", 0, nan=0, inf=0, absmax=2.0)
    made.event("batch", 1, nan=3, inf=1, absmax=90.0)
    made.event("held", 1, held=2, tensors=2)
    made.sample("update", 0, "head", l2=1.0, ratio=0.5)
    made.sample("weight", 1, "head", nan=4)
    for formal, observed in (
        ("max(nonfinite_inputs) == 0", "4"),
        ("max(input_size) <= 10", "90"),
        ("max(held_gradients) == 0", "2"),
        ("max(update_ratio) <= 0.3", "0.5"),
        ("max(update_ratio[head]) <= 0.3", "0.5"),
        ("max(nonfinite_weights) == 0", "4"),
    ):
        result = judged(made, formal)
        assert result.verdict is Verdict.FAIL, formal
        assert f" {observed} (step" in result.observed


def test_what_was_not_measured_is_no_pass():
    made = trained(1, 1)
    result = judged(made, "max(update_ratio) <= 1")
    assert result.verdict is Verdict.NOT_EVALUATED
    assert "update / weights was not measured" in result.why
    assert judged(made, "max(grad_norm[nowhere]) <= 1").verdict is Verdict.NOT_EVALUATED
    assert judged(Made("head"), "max(loss) <= 1").verdict is Verdict.VACUOUS


def test_one_obligation_without_evidence_spoils_the_pass_of_another():
    text = contract("max(loss) <= 10") + "  - {id: other, kind: bound, property: So., formal: max(update_ratio) <= 1}\n"
    result = obligations.result(own.parse(text, "x"), Story.of(trained(1, 1).run()), {})
    assert result.verdict is Verdict.NOT_EVALUATED


def test_another_contract_may_be_asked_to_hold():
    def clip(verdict: Verdict) -> dict[str, ContractResult]:
        return {"C-CLIP-001": ContractResult("C-CLIP-001", verdict, why="nothing clips")}

    made = trained(1, 1)
    assert judged(made, "C-CLIP-001 holds", clip(Verdict.PASS)).verdict is Verdict.PASS
    for verdict in (Verdict.FAIL, Verdict.VACUOUS, Verdict.NOT_EVALUATED):
        result = judged(made, "C-CLIP-001 holds", clip(verdict))
        assert (result.verdict, result.why) == (verdict, f"C-CLIP-001 is {verdict}: nothing clips")
    assert judged(made, "C-NONE-001 holds").verdict is Verdict.NOT_EVALUATED


# -- in the house


def terms(*texts: str, **given) -> Terms:
    return Terms(own=own.read({f"{place}.yaml": text for place, text in enumerate(texts)}), **given)


def test_a_broken_obligation_is_a_finding():
    diagnosis = diagnose(trained(*[1] * 9, 50).run(), terms(contract("max(applied_grad_norm) <= 10")))
    finding = next(finding for finding in diagnosis.findings if finding.contract == "C-OWN-X")
    assert (diagnosis.verdict, finding.severity, finding.first_step) == (Verdict.FAIL, Severity.ERROR, 9)
    assert finding.action and finding.whys[0].evidence
    assert next(result for result in diagnosis.contracts if result.id == "C-OWN-X").verdict is Verdict.FAIL


def test_an_obligation_joins_the_finding_that_it_is_about():
    text = contract("max(applied_grad_norm) <= 10", about="C-TRAINSTABLE-001")
    alone = diagnose(broken().run())
    diagnosis = diagnose(broken().run(), terms(text))
    assert len(diagnosis.findings) == len(alone.findings)
    stable = next(each for each in diagnosis.findings if each.contract == "C-TRAINSTABLE-001")
    assert any("it has to be at most 10 (C-OWN-X, it)" in told for told in stable.follows)
    assert stable.symptom == alone.findings[0].symptom


def test_thresholds_and_reasons_reach_contracts_of_ones_own():
    text = contract("max(applied_grad_norm) <= most", most=10)
    made = trained(1, 50).run()

    def verdict(chosen: Terms) -> Verdict:
        engine = Engine(terms=chosen)
        engine.story = Story.of(made)
        return next(result.verdict for result in engine.results(made) if result.id == "C-OWN-X")

    assert verdict(terms(text)) is Verdict.FAIL
    assert verdict(terms(text, thresholds={"C-OWN-X.most": 60.0})) is Verdict.PASS
    assert verdict(terms(text, suppressed={"C-OWN-X": "on purpose"})) is Verdict.NOT_EVALUATED
    with pytest.raises(ConfigurationError, match="no threshold 'least'"):
        terms(text, thresholds={"C-OWN-X.least": 1.0})


def test_a_run_is_judged_on_what_it_was_started_with():
    text = contract("max(applied_grad_norm) <= most", most=10)
    extra = {"contracts": {"a.yaml": text, "b.yaml": "no contract"}, "thresholds": {"C-OWN-X.most": 5.0}}
    recorded = Terms.recorded(extra)
    assert list(recorded.own) == ["C-OWN-X"]
    assert recorded.contract("C-OWN-X").threshold("most") == 5.0
    run = Run.from_records(trained(1, 7).records, RunMeta("k3f9", extra=extra))
    assert any(finding.contract == "C-OWN-X" for finding in diagnose(run).findings)


def test_contracts_are_found_in_the_project(tmp_path, monkeypatch):
    monkeypatch.delenv("BRICKPROF_CONTRACTS", raising=False)
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "brickprof-contracts").mkdir()
    assert settings.load(start=project / "src").contracts == ()
    (project / "pyproject.toml").touch()
    assert settings.load(start=project / "src").contracts == (str(project / "brickprof-contracts"),)
    by_itself = str(project / "brickprof-contracts")
    (project / "pyproject.toml").write_text('[tool.brickprof]\ncontracts = ["mine", "brickprof-contracts/"]\n')
    assert settings.load(start=project / "src").contracts == (str(project / "mine"), by_itself)
    monkeypatch.setenv("BRICKPROF_CONTRACTS", os.pathsep.join(["/a", "b.yaml"]))
    assert settings.load(start=project).contracts == ("/a", str(project / "b.yaml"), by_itself)


def test_a_contract_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere.yaml cannot be read: No such file"):
        Terms.of(settings.load({"contracts": ["nowhere.yaml"]}, start=tmp_path))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        Terms.of(settings.load({"contracts": ["bytes.yaml"]}, start=tmp_path))
    with pytest.raises(ConfigurationError, match="list of files"):
        settings.load({"contracts": 3}, start=tmp_path)


def test_a_folder_holds_many(tmp_path):
    (tmp_path / "a.yaml").write_text(contract("max(loss) <= 1"))
    (tmp_path / "b.yml").write_text(contract("max(loss) <= 1", identity="C-OWN-Y"))
    (tmp_path / "README.md").write_text("not one")
    chosen = settings.load({"contracts": [str(tmp_path)]}, start=tmp_path)
    assert set(Terms.of(chosen).own) == {"C-OWN-X", "C-OWN-Y"}


def test_what_editors_leave_in_the_folder_is_no_contract(tmp_path):
    (tmp_path / "a.yaml").write_text(contract("max(loss) <= 1"))
    (tmp_path / ".#a.yaml").symlink_to("somebody@somewhere.1234")
    chosen = settings.load({"contracts": [str(tmp_path)]}, start=tmp_path)
    assert set(Terms.of(chosen).own) == {"C-OWN-X"}
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigurationError, match=r"pipe\.yaml cannot be read: this is no file"):
        Terms.of(chosen)


@pytest.mark.parametrize(
    "odd",
    [
        "deep_at = inf", f"max_bytes = {'9' * 400}", f"hang_seconds = {'9' * 400}", "overhead = []", "level = 3",
        f"thresholds = {{a = {'9' * 400}}}", f"budgets = {{a = {'9' * 400}}}", 'contracts = ["~nobody-here/a.yaml"]',
        'contracts = ["a\\u0000b.yaml"]', "suppress = [3]",
    ],
)  # fmt: skip
def test_odd_settings_of_a_project_are_one_clear_error(tmp_path, odd):
    (tmp_path / "pyproject.toml").write_text(f"[tool.brickprof]\n{odd}\n")
    with pytest.raises(ConfigurationError):
        Terms.of(settings.load(start=tmp_path))


@pytest.mark.parametrize("other", ["tool = 3", "not toml [", "x = " + "[" * 3_000 + "]" * 3_000])
def test_a_file_that_is_not_about_us_is_let_be(tmp_path, other):
    (tmp_path / "pyproject.toml").write_text(other)
    assert settings.load(start=tmp_path) == settings.load(start=tmp_path / "nowhere")
