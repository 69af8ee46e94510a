"""What ``brickprof ratchet`` makes of a finding: obligation, test, files."""

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
from making import Made
from ratcheting import broken, contract, trained

from brickprof import settings
from brickprof.cli.app import main
from brickprof.contracts import own
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Finding, Why, diagnose
from brickprof.diagnosis.proposals import proposals, rounded_up
from brickprof.errors import OutputError, UsageError
from brickprof.ratchet import command, documents, training, writing
from brickprof.ratchet.command import Command, Hidden
from brickprof.records import RunMeta
from brickprof.rules import obligations
from brickprof.rules.story import Story
from brickprof.run import Run

HOSTILE = 'a"""\'\\ \n<script>\x1b[31m\u202e\udcff{} # : - &x *y !!z %s \U0001f600'


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
        "+wandb.api_key=sk-1",
        "optimizer.lr=1",
    ]
    found = recorded(tmp_path, argv, "t.py")
    assert found.words == (
        "t.py", "--api-key", Hidden("API_KEY"), "--hf_token", Hidden("HF_TOKEN"), "--pad-token", "<pad>",
        "--tokens", "5", Hidden("WANDB_API_KEY", "+wandb.api_key="), "optimizer.lr=1",
    )  # fmt: skip
    assert len(found.notes) == 3
    text = documents.regression_test(case(found))
    assert "sk-1" not in text
    assert '"+wandb.api_key=" + os.environ["WANDB_API_KEY"],' in text
    ruffed(tmp_path, text)


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


@pytest.mark.parametrize(
    ("source", "argv"), [("log", ["t.py"]), ("notebook", []), ("attach", [""]), ("attach", ["-c"]), ("capture", [])]
)
def test_what_cannot_be_started_again_has_no_command(tmp_path, source, argv):
    with pytest.raises(UsageError, match="does not say how it was started"):
        recorded(tmp_path, argv, "t", source=source)


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


def test_a_folder_is_not_replaced_by_a_file(project, capsys):
    made = writing.plan(Run.open("k3f9"), "F1", project)
    made.test.path.mkdir()
    assert main(["ratchet", "k3f9", "--dry-run"]) == 0
    assert main(["ratchet", "k3f9", "--force"]) != 0
    assert "cannot be written to: Is a directory" in capsys.readouterr().err
    assert not made.contract.path.exists()


def test_what_is_to_be_typed_can_be_typed(project, capsys):
    (project / "brickprof-runs").rename(project / "my runs")
    assert main(["ratchet", "my runs"]) == 0
    assert "--brickprof-run 'my runs/train-20261116-0000-k3f9'" in capsys.readouterr().out


def test_tests_go_where_pytest_looks(project):
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    for outside in ("../elsewhere", str(elsewhere)):
        (project / "pyproject.toml").write_text(f'[tool.pytest.ini_options]\ntestpaths = ["{outside}"]\n')
        assert writing.plan(Run.open("k3f9"), "F1", project).case.test_file.startswith("tests/test_ratchet_")
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
