"""Contracts of the user's own, and what ``brickprof ratchet`` makes of a finding: obligation, test, files."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from making import NAN, Made

from brickprof import settings
from brickprof.cli.app import main
from brickprof.contracts import formulas, own
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Finding, Why, diagnose
from brickprof.diagnosis.proposals import proposals, rounded_up
from brickprof.errors import ConfigurationError, OutputError, UsageError
from brickprof.ratchet import command, documents, training, writing
from brickprof.ratchet.command import Command, Hidden
from brickprof.records import RunMeta
from brickprof.rules import obligations
from brickprof.rules.engine import Engine
from brickprof.rules.story import Story
from brickprof.run import Run

HOSTILE = 'a"""\'\\ \n<script>\x1b[31m\u202e\udcff{} # : - &x *y !!z %s \U0001f600'


def contract(formal: str, *, identity: str = "C-OWN-X", about: str = "", **thresholds: float) -> str:
    limits = (
        f"thresholds: {{{', '.join(f'{name}: {value}' for name, value in thresholds.items())}}}\n" if thresholds else ""
    )
    depends = f"  depends_on: [{about}]\n" if about else ""
    return (
        f"metadata:\n  id: {identity}\n  version: 1.0.0\n  description: It holds.\n{depends}motivation: Because.\n"
        f"obligations:\n  - id: it\n    kind: bound\n    property: It holds.\n    formal: {formal}\n{limits}"
    )


def judged(
    made: Made, formal: str, others: dict[str, ContractResult] | None = None, **thresholds: float
) -> ContractResult:
    text = contract(formal, **thresholds)
    return obligations.result(own.parse(text, "x.yaml"), Story.of(made.run()), others or {})


def trained(*norms: float, rates: tuple[float, ...] = ()) -> Made:
    made = Made("embed", "head")
    for step, norm in enumerate(norms):
        made.step(step, norm=norm, loss=2.0 / (1 + step), lr=rates[step] if rates else 1e-3)
    return made


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


def test_every_quantity_can_be_measured():
    assert set(formulas.QUANTITIES) == set(obligations.MEASURES)


def test_a_file_that_says_nothing_checkable_is_refused_with_its_line():
    with pytest.raises(ConfigurationError, match=r"mine.yaml:11: obligations.0.formal asks for 'norm'"):
        own.parse(contract("max(norm) <= 1", about="C-CLIP-001"), "mine.yaml")
    with pytest.raises(ConfigurationError, match="says that it holds if it holds"):
        own.parse(contract("C-OWN-X holds"), "mine.yaml")


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


def broken() -> Made:
    """Norms of about 3 that run away, then a loss that is no number."""
    made = trained(*[3.0] * 12, 30, 900)
    for step in (14, 15):
        made.event("loss", step, value=NAN, micro=0)
        made.broken("grad", step, "head", point="step", l2=None, absmax=NAN)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    return made


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


# -- what a finding becomes


def finding(cause: str, contract: str = "C-X-001", first: int = 9, **fields) -> Finding:
    about = {"brick": "", "symptom": "it broke", "whys": (Why("Why?", "Because."),), "action": "Do this.", **fields}
    return Finding(
        id="F1", contract=contract, verdict=Verdict.FAIL, severity=Severity.ERROR, root_cause=cause, confidence=0.9,
        granularity="block", scope="local", nature="dynamic", first_step=first, detected_step=first, coordinates={},
        **about,
    )  # fmt: skip


def proposed(
    found: Finding, made: Made, others: dict[str, ContractResult] | None = None
) -> dict[str, dict[str, float]]:
    return {each.formal: each.thresholds for each in proposals(found, Story.of(made.run()), others or {})}


def test_a_bound_comes_from_the_healthy_steps():
    found = finding("learning-rate-too-high", "C-TRAINSTABLE-001", first=14)
    told = proposals(found, Story.of(broken().run()), {})
    assert told[0].formal == "max(applied_grad_norm) <= max_norm"
    assert told[0].thresholds == {"max_norm": 10.0}
    assert "3 x 3, the largest until step 6" in told[0].because
    assert "came to 900 in step 13, and was not finite later" in told[0].because


def test_a_bound_that_is_declared_is_taken():
    made = trained(5, 5, 5)
    made.event("config", 0, rank=-1, source="train.yaml", values={"max_grad_norm": 1.0})
    told = proposals(finding("grad-clip-not-applied", "C-CLIP-001", first=0), Story.of(made.run()), {})
    assert [(each.formal, each.thresholds, each.tolerance) for each in told] == [
        ("max(applied_grad_norm) <= max_norm", {"max_norm": 1.0}, 1e-3)
    ]
    assert "max_grad_norm is declared as 1" in told[0].because


def test_where_nothing_was_ever_well_the_library_says_it():
    told = proposed(finding("exploding-gradients", "C-TRAINSTABLE-001", first=0), trained(1390, 2000))
    assert told == {"max(applied_grad_norm) <= max_norm": {"max_norm": 10.0}}


def test_causes_ask_for_what_they_are_about():
    made = trained(1, 1, 1, rates=(0.01, 0.01, 0.01))
    made.event("optimizer_created", 0, optimizer=0, cls="SGD", built_lr=0.2, groups=[])
    made.event("batch", 2, nan=1, inf=0, absmax=1.0)
    made.event("held", 1, held=2, tensors=2)
    for step in range(3):
        made.sample("weight", step, "embed", checksum=7)
    assert "distinct(lr) > 1" in proposed(finding("schedule-not-stepped"), made)
    assert proposed(finding("schedule-never-peaks"), made) == {"max(lr) >= peak_lr": {"peak_lr": 0.2}}
    assert list(proposed(finding("data-nonfinite"), made)) == ["max(nonfinite_inputs) == 0"]
    assert list(proposed(finding("missing-zero-grad"), made)) == ["max(held_gradients) == 0"]
    frozen = proposed(finding("parameters-frozen", brick="embed"), made)
    assert frozen == {"last(weights_changed[embed]) >= changed_share": {"changed_share": 1.0}}


def test_a_rate_that_was_spent_too_early():
    made = trained(*[1] * 8, rates=(0.1, *[1e-9] * 7))
    assert proposed(finding("schedule-horizon-wrong"), made) == {"median(lr) >= least_lr": {"least_lr": 1e-4}}


def test_what_this_run_does_not_break_is_not_proposed():
    for cause in ("learning-rate-too-high", "data-nonfinite", "schedule-not-stepped", "loader-bound", "undetermined"):
        made = trained(*[1] * 12, rates=tuple(0.1 + step for step in range(12)))
        assert proposed(finding(cause, "C-BUDGET-001"), made) == {"C-BUDGET-001 holds": {}}


@pytest.mark.parametrize(("value", "bound"), [(9.87, 10), (10, 10), (10.1, 20), (0.0012, 0.002), (34, 50), (7e8, 1e9)])
def test_bounds_are_round(value, bound):
    assert rounded_up(value) == bound


# -- the command


def recorded(
    tmp_path: Path, argv: list[str], script: str, *, cwd: Path | None = None, ranks: tuple[str | None, ...] = (), **meta
) -> Command:
    made = [Made("head"), Made("head", rank=1)]
    for rank in ranks:
        made[0].event("start", 0, rank=-1).fields["rank"] = rank
    records = [record for each in made for record in each.records]
    about = RunMeta("k3f9", script, tuple(argv), extra={"cwd": str(cwd or tmp_path)}, **meta)
    return command.recorded(Run.from_records(records, about), tmp_path)


@pytest.mark.parametrize(
    ("argv", "script", "words"),
    [
        (["/usr/bin/python", "-B", "train.py", "--lr", "1"], "train.py", ("train.py", "--lr", "1")),
        (["/usr/bin/python", "-m", "pkg.train", "-m", "x"], "-m pkg.train", ("-m", "pkg.train", "-m", "x")),
        (["/usr/bin/python", "-c", "print(1)", "x"], "-c", ("-c", "print(1)", "x")),
        (["/bin/torchrun", "--nproc-per-node", "2", "t.py"], "torchrun", ("torchrun", "--nproc-per-node", "2", "t.py")),
    ],
)
def test_a_command_is_what_was_typed(tmp_path, argv, script, words):
    (tmp_path / "train.py").touch()
    assert recorded(tmp_path, argv, script) == Command(words)


def test_several_ranks_are_launched_again(tmp_path):
    launched = recorded(tmp_path, ["python", "ddp.py", "--x"], "ddp.py", ranks=("0", "1"))
    assert launched.words == ("torchrun", "--nproc-per-node", "2", "ddp.py", "--x")
    spawned_by_the_script = recorded(tmp_path, ["python", "ddp.py", "--x"], "ddp.py", ranks=(None,))
    assert spawned_by_the_script.words == ("ddp.py", "--x")
    inside = recorded(tmp_path, ["/bin/torchrun", "ddp.py"], "torchrun", ranks=(None,))
    assert inside.words == ("torchrun", "ddp.py")


def test_paths_are_those_of_the_repository(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").touch()
    inside = recorded(tmp_path, ["python", "train.py"], "train.py", cwd=tmp_path / "jobs")
    assert (inside.words, inside.cwd, inside.notes) == (("train.py",), "jobs", ())
    script = str(tmp_path / "jobs" / "train.py")
    absolute = recorded(tmp_path, ["python", script], script)
    assert (absolute.words, absolute.cwd) == (("jobs/train.py",), "")
    elsewhere = recorded(tmp_path, ["python", script], script, cwd=Path("/"))
    assert elsewhere.words == ("jobs/train.py",)
    assert "outside of this repository" in elsewhere.notes[0]
    foreign = recorded(tmp_path, ["python", sys.executable], sys.executable)
    assert "on this machine only" in foreign.notes[0]


def test_secrets_are_not_written_down(tmp_path):
    argv = [
        "python",
        "t.py",
        "--api-key",
        "sk-1",
        "--hf_token=abcdefghijklmnopqrst",
        "--pad-token",
        "<pad>",
        "--tokens",
        "5",
    ]
    found = recorded(tmp_path, argv, "t.py")
    assert found.words == (
        "t.py", "--api-key", Hidden("API_KEY"), "--hf_token", Hidden("HF_TOKEN"), "--pad-token", "<pad>",
        "--tokens", "5",
    )  # fmt: skip
    assert len(found.notes) == 2
    assert "sk-1" not in documents.regression_test(case(found))


def test_level_and_configuration_come_along(tmp_path):
    made = Made("head")
    made.event("config", 0, rank=-1, source="train.yaml", values={})
    run = Run.from_records(made.records, RunMeta("k3f9", "t.py", ("python", "t.py"), level="deep"))
    found = command.recorded(run, tmp_path)
    assert (found.level, found.config) == ("deep", "train.yaml")


def test_terms_of_the_command_line_are_missed(tmp_path):
    extra = {"cwd": str(tmp_path), "thresholds": {"C-CLIP-001.over": 2.0}, "suppress": {}}
    run = Run.from_records(Made("head").records, RunMeta("k3f9", "t.py", ("python", "t.py"), extra=extra))
    assert "another term for C-CLIP-001.over" in command.recorded(run, tmp_path).notes[0]
    (tmp_path / "pyproject.toml").write_text('[tool.brickprof.thresholds]\n"C-CLIP-001.over" = 2.0\n')
    assert command.recorded(run, tmp_path).notes == ()


def test_a_log_has_no_command(tmp_path):
    with pytest.raises(UsageError, match="does not say how it was started"):
        recorded(tmp_path, ["python", "t.py"], "t.py", source="log")


# -- the files


def case(told: Command | None = None, **fields) -> documents.Case:
    about = finding("learning-rate-too-high", "C-TRAINSTABLE-001", first=14, **fields)
    made = tuple(proposals(about, Story.of(broken().run()), {}))
    place = "brickprof-contracts/x.yaml", "tests/test_x.py"
    return documents.Case(
        "lr-too-high", "train-1-k3f9", about, made, told or Command(("train.py", "--steps", "20")), *place
    )


def ruffed(tmp_path: Path, text: str) -> None:
    """Neither ruff's check nor its formatter, as they come, has anything to say."""
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if ruff is None:
        pytest.skip("ruff is not installed")
    file = tmp_path / "test_x.py"
    file.write_text(text, "utf-8", "surrogatepass")
    for words in (("check", "--isolated", "--select", "E,F,W,I,UP,B,RUF100"), ("format", "--isolated", "--diff")):
        done = subprocess.run([ruff, *words, "--no-cache", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "told",
    [
        Command(("train.py",)),
        Command(("train.py", *(f"--option-{place}" for place in range(20))), "jobs", "train.yaml", "deep"),
        Command(("train.py", "--key", Hidden("KEY"), "it's", 'so "quoted"', "'\"\"", "back\\slash", "tab\t", "é\x1b")),
        Command(("train.py", "x" * 200), "a/long/folder/name/for/jobs", "settings/of/this/training/train.yaml", "deep"),
    ],
)  # fmt: skip
def test_a_test_reads_as_if_a_person_had_written_it(tmp_path, told):
    text = documents.regression_test(case(told))
    ruffed(tmp_path, text)
    tree = ast.parse(text)
    words = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "TRAINING")
    values = [part.value for part in words.elts if isinstance(part, ast.Constant)]
    assert values == [word for word in told.words if isinstance(word, str)]


def test_a_test_says_everything(tmp_path):
    assert documents.regression_test(case()) == (Path(__file__).parent / "golden" / "ratchet_test.txt").read_text(
        "utf-8"
    )


def test_a_contract_says_everything(tmp_path):
    text = documents.contract(case())
    assert text == (Path(__file__).parent / "golden" / "ratchet_contract.yaml").read_text("utf-8")
    assert own.parse(text, "x.yaml").threshold("max_norm") == 10.0


@pytest.mark.parametrize("hostile", [HOSTILE, "x" * 10_000, "- [ yes", '"', "no", "", "#", "\ufffe\uffff\x00", "é: {"])
def test_what_a_run_says_stays_text(tmp_path, hostile):
    told = case(
        Command(("train.py", hostile), "", "", ""), symptom=hostile, action=hostile, whys=(Why(hostile, hostile),)
    )
    told = replace(told, run_name=hostile)
    text = documents.contract(told)
    read = own.parse(text, "x.yaml")
    assert [each.id for each in read.obligations] == [each.id for each in told.proposals]
    assert list(yaml.safe_load(text)) == ["metadata", "motivation", "obligations", "thresholds", "falsification"]
    source = documents.regression_test(told)
    tree = ast.parse(source.encode("utf-8"))
    assert [type(node).__name__ for node in tree.body] == ["Expr", "Assign", "Assign", "FunctionDef"]
    assert tree.body[1].value.elts[1].value == hostile
    for unsafe in "\x1b\u202e\x00":
        assert unsafe not in text + source


def test_the_name_of_a_brick_comes_through_as_it_is():
    name = HOSTILE.replace("\udcff", "")
    made = trained(1, 1, 1)
    for path in (name, HOSTILE):
        made.block(path)
        for step in range(3):
            made.sample("weight", step, path, checksum=7)
    about, story = finding("parameters-frozen", "C-GRADFLOW-001", brick=name), Story.of(made.run())
    told = documents.Case("x", "r", about, tuple(proposals(about, story, {})), Command(("t.py",)), "c.yaml", "t.py")
    read = own.parse(documents.contract(told), "x.yaml")
    assert own.formula(read, 0).brick == name
    assert obligations.result(read, story, {}).verdict is Verdict.FAIL
    unspeakable = proposals(finding("parameters-frozen", "C-GRADFLOW-001", brick=HOSTILE), story, {})
    assert [each.formal for each in unspeakable] == ["C-GRADFLOW-001 holds"]


# -- the documentation


def example(name: str) -> str:
    text = (Path(__file__).parents[1] / "docs" / "ratchet.md").read_text("utf-8")
    return text.split(f"<!-- example: {name} -->\n```")[1].partition("\n")[2].split("```")[0]


def test_what_the_documentation_shows_is_so():
    assert own.parse(example("contract"), "docs").threshold("max_norm") == 5.0
    for name in ("test", "ci test"):
        called = {node.func.attr for node in ast.walk(ast.parse(example(name)))
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}  # fmt: skip
        assert all(hasattr(training.Training, each) for each in called)
    (job,) = yaml.safe_load(example("workflow"))["jobs"].values()
    assert any("--brickprof-out brickprof-failed" in step.get("run", "") for step in job["steps"])


# -- the command line


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A repository with a run in it that broke."""
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "train.py").touch()
    meta = RunMeta("k3f9", "train.py", ("/usr/bin/python", "train.py", "--steps", "16"), extra={"cwd": str(root)})
    Run.from_records(broken().records, meta).save(root / "brickprof-runs" / "train-20261116-0000-k3f9")
    monkeypatch.chdir(root)
    return root


def test_a_run_becomes_two_files(project, capsys):
    assert main(["ratchet", "k3f9"]) == 0
    shown = capsys.readouterr().out
    found = own.parse((project / "brickprof-contracts").glob("*.yaml").__next__().read_text("utf-8"), "x")
    (test,) = (project / "tests").glob("*.py")
    assert ast.parse(test.read_text("utf-8"))
    assert found.metadata.depends_on == ("C-TRAINSTABLE-001",)
    assert shown == (Path(__file__).parent / "golden" / "ratchet.txt").read_text("utf-8")
    assert sorted(path.name for path in project.iterdir()) == [
        "brickprof-contracts", "brickprof-runs", "pyproject.toml", "tests", "train.py",
    ]  # fmt: skip
    assert main(["ratchet", "k3f9"]) == 0
    assert "there already" in capsys.readouterr().out


def test_later_runs_are_judged_by_it(project, capsys):
    main(["ratchet", "k3f9"])
    chosen = Terms.of(settings.load(start=project))
    (name,) = chosen.own
    assert next(each for each in diagnose(broken().run(), chosen).contracts if each.id == name).verdict is Verdict.FAIL
    sound = diagnose(trained(*[3.0] * 20).run(), chosen)
    assert next(each for each in sound.contracts if each.id == name).verdict is Verdict.PASS


def test_a_dry_run_writes_nothing(project, capsys):
    assert main(["ratchet", "k3f9", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "metadata:" in shown and "def test_" in shown
    assert not (project / "brickprof-contracts").exists()
    assert list((project / "tests").iterdir()) == []


def test_an_edited_file_is_left_alone(project, capsys):
    main(["ratchet", "k3f9"])
    (test,) = (project / "tests").glob("*.py")
    (yaml_file,) = (project / "brickprof-contracts").glob("*.yaml")
    test.write_text("# mine\n")
    yaml_file.unlink()
    capsys.readouterr()
    assert main(["ratchet", "k3f9"]) == 2
    assert "would say something else" in capsys.readouterr().err
    assert test.read_text() == "# mine\n"
    assert not yaml_file.exists()
    assert main(["ratchet", "k3f9", "--dry-run"]) == 0
    assert "-# mine" in capsys.readouterr().out
    assert main(["ratchet", "k3f9", "--name", "another one!"]) == 0
    assert (project / "tests" / "test_ratchet_another_one.py").exists()
    assert main(["ratchet", "k3f9", "--force"]) == 0
    assert "assert_contract" in test.read_text()


@pytest.mark.parametrize("wanted", ["F1", "f1", "1", "C-TRAINSTABLE-001", "c-trainstable-001"])
def test_a_finding_is_named_in_many_ways(project, wanted):
    diagnosis = diagnose(Run.open(project / "brickprof-runs"))
    assert writing.choose(diagnosis, wanted) is diagnosis.findings[0]


def test_mistakes_get_help(project, capsys):
    assert main(["ratchet", "k3f9", "F9"]) == 2
    assert "no finding F9. It has: F1 (" in capsys.readouterr().err
    assert main(["ratchet", "k3f9", "--into", "nowhere"]) == 2
    assert "nowhere is no folder" in capsys.readouterr().err
    Run.from_records(trained(*[1.0] * 20).records, RunMeta("good", "train.py", ("python", "train.py"))).save("good")
    assert main(["ratchet", "good"]) == 2
    assert "no finding to keep from coming back" in capsys.readouterr().err


def test_what_is_kept_already_is_not_kept_twice(project):
    extra = {"cwd": str(project), "contracts": {"x.yaml": contract("max(applied_grad_norm) <= 10")}}
    run = Run.from_records(
        trained(*[1] * 9, 50).records, RunMeta("own1", "train.py", ("python", "train.py"), extra=extra)
    )
    with pytest.raises(UsageError, match="it is kept already"):
        writing.plan(run, "C-OWN-X", project)


def test_both_files_or_none(project):
    (project / "tests").rmdir()
    (project / "tests").write_text("a file in its place")
    made = writing.plan(Run.open("k3f9"), "F1", project)
    with pytest.raises(OutputError):
        writing.write(made)
    assert list((project / "brickprof-contracts").iterdir()) == []


def test_tests_go_where_pytest_looks(project):
    (project / "checks").mkdir()
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["checks/"]\n')
    assert writing.plan(Run.open("k3f9"), "F1", project).case.test_file.startswith("checks/test_ratchet_")
    (project / "pyproject.toml").write_text("not toml [")
    assert writing.plan(Run.open("k3f9"), "F1", project).case.test_file.startswith("tests/test_ratchet_")


def test_logs_are_not_held_to_it(project, capsys):
    """A contract of this project's trainings may have its settings here; logs of anybody are judged without it."""
    main(["ratchet", "k3f9"])
    (project / "pyproject.toml").write_text('[tool.brickprof.suppress]\n"C-OWN-EXPLODING-GRADIENTS" = "for now"\n')
    (project / "train.log").write_text(
        "".join(f"step {step} loss {9 - step % 2} grad_norm 900\n" for step in range(40))
    )
    capsys.readouterr()
    assert main(["analyze", "train.log", "--json"]) in (0, 1)
    assert "C-OWN" not in capsys.readouterr().out


def test_a_recorded_run_that_is_analysed_is_held_to_it(project, capsys):
    extra = {"contracts": {"x.yaml": contract("max(applied_grad_norm) <= 10")}}
    Run.from_records(
        trained(*[1] * 9, 50).records, RunMeta("own1", "train.py", ("python", "train.py"), extra=extra)
    ).save(project / "own")
    assert main(["analyze", str(project / "own"), "--json"]) == 1
    assert "C-OWN-X" in capsys.readouterr().out
