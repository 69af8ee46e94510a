"""The zoo: how runs are scored, how they are run, and what the command says.

Scoring is held against diagnosis.json documents made by hand; running against small scripts that really run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from brickprof.cli import app, doctor
from brickprof.cli.app import main
from brickprof.cli.zoo import MARK
from brickprof.errors import UsageError
from brickprof.reference import causes, zoo
from brickprof.reference.keeper import Keeper, command
from brickprof.reference.score import CRASHED, JUDGED, LOST, SKIPPED, TIMED_OUT, Outcome, judge, right_place
from brickprof.reference.tally import tally
from brickprof.reference.zoo import Specimen

FAULT = Specimen(
    "f-1", Path("f_1.py"), "a clip that never ran", "gpt", "numeric", 7,
    contracts=("C-CLIP-001", "C-TRAINSTABLE-001"), root_causes=("grad-clip-not-applied",),
    bricks=("blocks.3",), first_step=4,
)  # fmt: skip
CONTROL = Specimen("quiet", Path("quiet.py"), "a healthy run", "mlp")


def finding(**fields) -> dict:
    return {
        "contract": "C-CLIP-001", "severity": "error", "root_cause": "grad-clip-not-applied", "confidence": 0.9,
        "brick": "blocks.3", "first_step": 4, "detected_step": 5, "symptom": "nan",
    } | fields  # fmt: skip


def document(*findings: dict, code: int = 0) -> dict:
    return {
        "schema": 1, "verdict": "FAIL" if findings else "PASS", "findings": list(findings), "contracts": [],
        "run": {"exit": {"code": code, "text": f"the script exited {code}"}},
    }  # fmt: skip


def mark(specimen: Specimen, *findings: dict, **outcome):
    return judge(specimen, Outcome(outcome.pop("diagnosis", document(*findings)), 2.0, **outcome))


# -- one specimen


def test_a_fault_found_and_explained_is_right_in_everything():
    got = mark(FAULT, finding())
    assert (got.state, got.detected, got.contract, got.brick, got.root_cause) == (JUDGED, True, True, True, True)
    assert got.latency == 1
    assert got.right


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"contract": "C-DATA-001"}, {"contract"}),
        ({"root_cause": "learning-rate-too-high"}, {"root_cause"}),
        ({"brick": "blocks.1"}, {"brick"}),
        ({"brick": None, "root_cause": None}, {"brick", "root_cause"}),
    ],
)
def test_each_part_is_judged_for_itself(fields, wrong):
    got = mark(FAULT, finding(**fields))
    assert got.detected
    assert {name for name in ("contract", "brick", "root_cause") if not getattr(got, name)} == wrong
    assert not got.right


def test_any_contract_that_is_named_is_right():
    assert mark(FAULT, finding(contract="C-TRAINSTABLE-001")).contract


def test_a_fault_without_a_named_contract_accepts_any():
    nameless = Specimen("f-3", Path("f.py"), "", "mlp", "process", root_causes=("grad-clip-not-applied",))
    assert mark(nameless, finding(contract="")).contract
    assert not mark(nameless).contract


def test_only_the_finding_on_top_counts_and_the_others_are_kept():
    got = mark(FAULT, finding(root_cause="bad-initialisation"), finding())
    assert not got.root_cause
    assert [other["root_cause"] for other in got.others] == ["grad-clip-not-applied"]
    assert got.found["root_cause"] == "bad-initialisation"
    assert got.expected["root_causes"] == ["grad-clip-not-applied"]


def test_what_is_only_worth_knowing_is_no_detection_and_no_alarm():
    assert not mark(FAULT, finding(severity="info")).detected
    assert mark(CONTROL, finding(severity="info")).right


def test_an_info_on_top_does_not_hide_the_error_below_it():
    got = mark(FAULT, finding(severity="info", root_cause="plateau"), finding())
    assert got.root_cause


def test_a_healthy_run_with_a_warning_is_a_false_alarm():
    got = mark(CONTROL, finding(severity="warning"))
    assert got.detected and not got.right
    assert not got.root_cause


@pytest.mark.parametrize(
    ("found", "bricks", "right"),
    [
        ("embed", ("embed",), True),
        ("blocks.3.mlp.gate", ("blocks.3",), True),
        ("blocks.30", ("blocks.3",), False),
        ("blocks", ("blocks.3",), False),
        ("", ("blocks.3",), False),
        ("anything", (), True),
        ("head", ("embed", "head"), True),
        ("head", ("",), False),
        ("", ("",), True),
    ],
)
def test_the_place_is_the_brick_or_inside_it(found, bricks, right):
    assert bool(right_place(found, bricks)) is right


def test_a_crash_of_its_own_is_never_right():
    got = mark(FAULT, diagnosis=document(finding(), code=1), said="Traceback\nNameError: x\n  9 contracts held\n")
    assert (got.state, got.detected, got.contract, got.root_cause) == (CRASHED, False, False, False)
    assert "exited 1" in got.why and "NameError: x" in got.why
    assert got.found["root_cause"] == "grad-clip-not-applied"


@pytest.mark.parametrize("fields", [{"kind": "process"}, {"crashes": True}])
def test_a_fault_that_ends_in_a_crash_is_judged_as_the_others(fields):
    specimen = Specimen("f-2", Path("f.py"), "", "mlp", root_causes=("grad-clip-not-applied",), **fields)
    assert mark(specimen, diagnosis=document(finding(), code=139)).state == JUDGED


def test_out_of_time_is_never_right_even_with_the_right_finding():
    got = mark(FAULT, finding(), timed_out=True)
    assert got.state == TIMED_OUT and not got.detected


def test_no_diagnosis_and_not_run():
    lost = mark(FAULT, diagnosis=None, code=2, said="brickprof: no space left")
    assert lost.why == "no diagnosis, exit code 2: brickprof: no space left"
    assert mark(FAULT, diagnosis=None).state == LOST
    skipped = mark(FAULT, diagnosis=None, skipped="needs a GPU")
    assert (skipped.state, skipped.why, skipped.counts) == (SKIPPED, "needs a GPU", False)


def test_a_broken_control_is_not_a_quiet_one():
    assert not mark(CONTROL, diagnosis=document(code=1)).right
    assert not mark(CONTROL, diagnosis=None).right


# -- all of them


def marks_of(right: int, wrong: int, **fields):
    return [mark(FAULT, finding()) for _ in range(right)] + [mark(FAULT, finding(**fields)) for _ in range(wrong)]


def test_shares_and_the_bar():
    good = tally([*marks_of(19, 1, root_cause="plateau"), mark(CONTROL)])
    assert good.faults.root_cause.value == 0.95
    assert good.met
    poor = tally([*marks_of(17, 3, root_cause="plateau"), mark(CONTROL)])
    assert not poor.met
    assert [goal.name for goal in poor.goals if not goal.met] == ["root cause"]


def test_contract_and_brick_are_one_goal():
    half = [mark(FAULT, finding(brick="head")), mark(FAULT, finding(contract="C-X-001")), mark(FAULT, finding())]
    got = tally(half)
    assert (got.faults.contract.count, got.faults.brick.count, got.faults.placed.count) == (2, 2, 1)


def test_one_false_alarm_misses_the_bar():
    got = tally([mark(FAULT, finding()), mark(CONTROL), mark(CONTROL, finding(severity="warning"))])
    assert (got.silent.count, got.silent.of) == (1, 2)
    assert not got.met


def test_skipped_ones_are_counted_apart_and_broken_ones_as_missed():
    got = tally(
        [
            mark(FAULT, finding()),
            mark(FAULT, diagnosis=None, skipped="needs a GPU"),
            mark(FAULT, diagnosis=document(finding(), code=1)),
        ]
    )
    assert (got.faults.detected.count, got.faults.detected.of) == (1, 2)
    assert got.states == {JUDGED: 1, SKIPPED: 1, CRASHED: 1}


def test_latency_is_told_by_kind_with_its_limit():
    slow = Specimen("s", Path("s.py"), "", "cnn", "silent", root_causes=("plateau",), first_step=0)
    placeless = Specimen("p", Path("p.py"), "", "cnn", "silent", root_causes=("plateau",))
    got = tally(
        [
            mark(FAULT, finding(detected_step=4)),
            mark(FAULT, finding(detected_step=9)),
            mark(slow, finding(detected_step=30)),
            mark(placeless, finding()),
            mark(slow),
        ]
    ).latency
    assert (got["numeric"].median, got["numeric"].worst, got["numeric"].within) == (2.5, 5, 1)
    assert (got["silent"].count, got["silent"].worst, got["silent"].limit, got["silent"].within) == (1, 30, 50, 1)


def test_calibration_has_every_claim_false_alarms_included():
    got = tally(
        [
            mark(FAULT, finding(confidence=1.0)),
            mark(FAULT, finding(confidence=0.6, root_cause="plateau")),
            mark(CONTROL, finding(confidence=0.95, severity="warning")),
            mark(FAULT),
        ]
    ).calibration
    assert got.count == 3
    assert got.brier == pytest.approx((0 + 0.36 + 0.9025) / 3, abs=1e-4)
    assert [(one.low, one.high, one.count, one.right) for one in got.bins] == [(0.5, 0.7, 1, 0.0), (0.9, 1.0, 2, 0.5)]


def test_groups_by_family_and_kind():
    other = Specimen("o", Path("o.py"), "", "cnn", "silent", root_causes=("plateau",))
    got = tally([mark(FAULT, finding()), mark(other)])
    assert got.by_family["gpt"].detected.value == 1
    assert got.by_kind["silent"].detected.value == 0


def test_nothing_at_all_has_numbers_too():
    got = tally([])
    assert got.faults.detected.value is None
    assert json.dumps(got.to_dict(), allow_nan=False)


def test_every_mark_is_strict_json():
    json.dumps([mark(FAULT, finding()).to_dict(), mark(CONTROL).to_dict()], allow_nan=False)
    assert mark(FAULT, finding()).to_dict()["right"] is True


# -- what lies in the zoo


def test_specimens_are_named_after_their_files():
    for specimen in (*zoo.faults().values(), *zoo.controls().values()):
        assert specimen.path.stem == specimen.id.replace("-", "_")


def test_there_are_controls_of_every_family_each_with_its_trap():
    controls = zoo.controls().values()
    assert len(controls) >= 40
    assert {control.family for control in controls} == {"mlp", "cnn", "gpt", "lstm", "gan", "reference", "other"}
    for control in controls:
        assert control.healthy and control.trap, control.id
        assert not control.may_crash, control.id


def test_faults_say_what_is_true_of_them():
    for fault in zoo.faults().values():
        assert fault.root_causes, fault.id
        assert fault.kind in ("numeric", "silent", "performance", "process", "distributed"), fault.id


# -- real runs


TRAIN = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open("left.txt", "w").write(open("given.txt").read() + sys.argv[1])
"""


def script(folder: Path, text: str, **fields) -> Specimen:
    path = folder / f"{fields.get('id', 'made')}.py"
    path.write_text(text)
    return Specimen(**{"id": "made", "path": path, "title": "made here", "family": "mlp"} | fields)


def test_a_specimen_runs_in_a_folder_of_its_own_with_its_files_and_arguments(tmp_path):
    made = script(tmp_path, TRAIN, args=("told",), files=(("given.txt", "given and "),), run=("--level", "light"))
    outcome = Keeper(tmp_path / "out", timeout=120, jobs=1).run(made)
    assert outcome.diagnosis["run"]["steps"] == 8, outcome.said
    assert outcome.diagnosis["run"]["level"] == "light"
    assert (tmp_path / "out" / "made" / "work" / "left.txt").read_text() == "given and told"
    assert (outcome.folder / "diagnosis.json").exists()
    assert judge(made, outcome).right


@pytest.mark.parametrize(("own", "level"), [((), "deep"), (("--level", "light"), "light")])
def test_specimens_are_watched_at_the_level_that_is_asked_for_unless_they_ask_themselves(tmp_path, own, level):
    made = script(tmp_path, TRAIN, args=("told",), files=(("given.txt", "given and "),), run=own)
    outcome = Keeper(tmp_path / "out", timeout=120, jobs=1, level="deep").run(made)
    assert outcome.diagnosis["run"]["level"] == level, outcome.said


@pytest.mark.parametrize(
    ("words", "said"), [(("--level", "loud"), "--level is 'loud'"), (("--level", "light", "--again"), "runs nothing")]
)
def test_a_level_that_there_is_not_or_that_nobody_needs_runs_nothing(cage, capsys, words, said):
    assert main(["zoo", "calm", *words]) == 2
    assert said in capsys.readouterr().err


def test_out_of_time_ends_everything_that_was_started(tmp_path):
    child = (
        "import subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        "print(other.pid, flush=True)\ntime.sleep(99)"
    )
    made = script(tmp_path, child)
    outcome = Keeper(tmp_path / "out", timeout=4, jobs=1).run(made)
    assert judge(made, outcome).state == TIMED_OUT
    pid = int((tmp_path / "out" / "made" / "output.txt").read_text().split()[0])
    assert ended(pid)


def ended(pid: int) -> bool:
    return eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def eventually(holds, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_many_keep_their_order_and_what_cannot_run_is_told_why(tmp_path):
    fails = script(tmp_path, "raise SystemExit('no such thing')", id="fails")
    needy = script(tmp_path, "", id="needy", needs="gpu")
    heard = []
    outcomes = Keeper(tmp_path / "out", timeout=60, jobs=2, keep_runs=False).run_all(
        [needy, fails], {"gpu": "needs a GPU"}, lambda specimen, outcome: heard.append(specimen.id)
    )
    states = [judge(made, outcome).state for made, outcome in zip([needy, fails], outcomes, strict=True)]
    assert states == [SKIPPED, CRASHED]
    assert sorted(heard) == ["fails", "needy"]
    assert not (tmp_path / "out" / "fails").exists()


def test_one_that_wants_a_card_for_itself_comes_last_and_alone(tmp_path):
    said = "import time; print(time.time()); time.sleep(0.5); print(time.time())"
    names = {"greedy": True, "one": False, "other": False}
    made = [script(tmp_path, said, id=name, alone=alone) for name, alone in names.items()]
    heard = []
    keeper = Keeper(tmp_path / "out", timeout=60, jobs=3)
    keeper.run_all(made, {}, lambda specimen, outcome: heard.append(specimen.id))
    spans = {name: [float(word) for word in printed(tmp_path / "out" / name)] for name in names}
    assert heard[-1] == "greedy" and spans["greedy"][0] > max(spans["one"][1], spans["other"][1])


def printed(folder: Path) -> list[str]:
    return (folder / "output.txt").read_text().split()[:2]


def test_a_reference_fault_is_run_by_the_reference_training(tmp_path):
    fault = Specimen("alb-1", Path("alb_1.py"), "", "reference", root_causes=("plateau",), args=("--steps", "9"))
    words = command(fault, tmp_path)
    assert words[-7:] == ["brickprof.reference", "--config", "tiny", "--fault", "alb-1", "--steps", "9"]
    assert "alb_1.py" not in " ".join(words)


# -- the command


@pytest.fixture
def cage(tmp_path, monkeypatch):
    """A zoo of two: a fault that looks healthy, and a control."""
    dull = script(tmp_path, "print('nothing')", id="dull", kind="silent", root_causes=("plateau",))
    calm = script(tmp_path, "print('nothing')", id="calm", trap="none")
    needy = script(tmp_path, "", id="needy", kind="numeric", family="gpt", needs="triton", root_causes=("plateau",))
    monkeypatch.setattr(zoo, "faults", lambda: {"dull": dull, "needy": needy})
    monkeypatch.setattr(zoo, "controls", lambda: {"calm": calm})
    monkeypatch.setattr(doctor, "ask_torch", lambda: {"available": False})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_moved_to_a_gpu_that_is_not_there(cage, capsys):
    assert main(["zoo", "calm", "--on-gpu"]) == 3
    assert "there is no GPU" in capsys.readouterr().err


@pytest.fixture
def card(cage, monkeypatch):
    """That zoo on a machine with a GPU; the specimens are said to have been moved there, and not run."""
    moved = {}
    monkeypatch.setattr(doctor, "ask_torch", lambda: {"available": True})

    def run(keeper, specimen, lacking=""):
        moved[specimen.id] = keeper.on_gpu and not lacking
        return Outcome(document(), 1.0)

    monkeypatch.setattr(Keeper, "run", run)
    return moved


def test_for_a_gpu_are_those_that_need_one_and_those_that_say_so(cage, card, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    odd = script(cage, "", id="odd", kind="silent", gpu=True, root_causes=("plateau",))
    known = zoo.faults() | {"odd": odd}
    monkeypatch.setattr(zoo, "faults", lambda: known)
    assert main(["zoo", "--gpu"]) == 1  # nothing was found in them
    assert card == {"needy": True, "odd": True}
    card.clear()
    main(["zoo", "odd", "dull"])
    assert card == {"odd": False, "dull": False}


def test_without_a_gpu_one_line_says_so_and_no_page_is_overwritten(cage, capsys):
    (cage / "page.md").write_text(f"{MARK}\n\nold figures\n")
    assert main(["zoo", "--gpu", "--markdown", "page.md"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and "there is no GPU" in said.err
    assert "old figures" in (cage / "page.md").read_text()


def test_the_page_of_the_gpu_has_what_the_option_selects(capsys):
    page = (Path(__file__).parent.parent / "docs" / "zoo-gpu.md").read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in page.partition("### Faults")[2].splitlines() if line[:1] == "|"]
    assert main(["zoo", "--gpu", "--list", "--json", "-"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == rows[2:]


@pytest.mark.parametrize(
    ("on_gpu", "needs", "moved"), [(True, "cpu", True), (False, "cpu", False), (True, "gpu", False)]
)
def test_scripts_that_go_to_a_gpu_are_told_first(tmp_path, on_gpu, needs, moved):
    """The folder that moves them comes before all others that Python looks in; who names a device is left alone."""
    asks = "import sys; print('on_device' in str(getattr(sys.modules.get('sitecustomize'), '__file__', '')))"
    made = script(tmp_path, asks, id="told", needs=needs)
    outcome = Keeper(tmp_path / "out", timeout=60, jobs=1, on_gpu=on_gpu).run(made)
    assert str(moved) in outcome.said


ASKS = """
import sys, torch
net, other = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2)
torch.optim.SGD(net.parameters(), lr=0.1)
print([module._compiled_call_impl is not None for module in (net, net[0], other)], net(torch.ones(1, 2)).shape)
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_models_are_compiled_where_that_is_asked_for(tmp_path, compiled):
    """Those that are trained, as a whole, and nothing else."""
    outcome = Keeper(tmp_path / "out", timeout=120, jobs=1, compiled=compiled).run(script(tmp_path, ASKS, id="asks"))
    assert f"[{compiled}, False, False] torch.Size([1, 2])" in outcome.said


def test_both_ways_at_once(tmp_path):
    asks = "import sys; print(sum(type(each).__module__ == 'sitecustomize' for each in sys.meta_path))"
    made = script(tmp_path, asks, id="both")
    outcome = Keeper(tmp_path / "out", timeout=60, jobs=1, compiled=True, on_gpu=True).run(made)
    assert "2" in outcome.said.split()


def test_the_command_runs_scores_and_misses_the_bar(cage, capsys):
    assert main(["zoo", "--json", "zoo.json", "--markdown", "zoo.md", "-o", "kept", "--jobs", "2"]) == 1
    told = json.loads((cage / "zoo.json").read_text())
    assert {one["id"]: one["state"] for one in told["specimens"]} == {
        "dull": JUDGED, "needy": SKIPPED, "calm": JUDGED
    }  # fmt: skip
    assert told["tally"]["faults"]["detected"] == {"count": 0, "of": 1, "share": 0.0}
    assert told["tally"]["healthy"]["silent"]["count"] == 1
    out = capsys.readouterr().out
    assert "detected: 0 of 1 (0.0 %), wanted 95 %, MISSED" in out
    assert "skipped: needs a GPU and Triton" in out
    page = (cage / "zoo.md").read_text()
    assert "| dull | silent | mlp | NO | NO | NO | NO |" in page
    assert "| calm | mlp | made here | yes |" in page
    assert (cage / "kept" / "calm" / "runs").is_dir()


def test_the_command_meets_the_bar_on_quiet_controls_and_json_may_go_to_stdout(cage, capsys):
    assert main(["zoo", "--controls", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["tally"]["met"] is True


def test_the_page_keeps_what_stands_before_the_mark(cage):
    page = cage / "page.md"
    page.write_text(f"# The zoo\n\n{MARK}\n\nold figures\n")
    assert main(["zoo", "calm", "--markdown", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"# The zoo\n\n{MARK}\n\n- healthy runs left alone: 1 of 1")
    assert "old figures" not in text


def test_kept_runs_are_judged_again_without_running_them(cage, capsys):
    assert main(["zoo", "calm", "-o", "kept"]) == 0
    before = sorted((cage / "kept").rglob("*"))
    assert main(["zoo", "calm", "dull", "-o", "kept", "--again", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out.partition("alone: 1 of 1 (100.0 %), wanted all\n")[2])
    assert {one["id"]: one["state"] for one in told["specimens"]} == {"dull": SKIPPED, "calm": JUDGED}
    assert sorted((cage / "kept").rglob("*")) == before


def test_nothing_that_can_run_here_is_nothing_to_judge(cage, capsys):
    assert main(["zoo", "needy"]) == 3
    assert "Nothing of what was asked for" in capsys.readouterr().err


def test_runs_that_were_not_kept_are_nothing_to_judge(cage, capsys):
    (cage / "kept").mkdir()
    assert main(["zoo", "-o", "kept", "--again"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and "Nothing of what was asked for was run." in said.err


def test_the_list_runs_nothing(cage, capsys):
    assert main(["zoo", "--list", "--kind", "silent"]) == 0
    out = capsys.readouterr().out
    assert "dull" in out and "calm" not in out and "needy" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zoo", "dul"], "Did you mean dull?"),
        (["zoo", "--kind", "loud"], "There are: control, numeric, silent."),
        (["zoo", "--family", "rnn"], "There are: gpt, mlp."),
        (["zoo", "--controls", "dull"], "not in the part of the zoo that was asked for"),
        (["zoo", "--jobs", "0"], "--jobs"),
        (["zoo", "--again"], "--again needs -o DIR"),
    ],
)
def test_wrong_words_are_wrong_usage(words, said, cage, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_request_to_stop_ends_the_runs_too(tmp_path):
    words = [sys.executable, "-m", "brickprof", "zoo", "one-step", "-o", str(tmp_path / "kept")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    meta = tmp_path / "kept" / "one-step" / "runs"
    assert eventually(lambda: list(meta.glob("*/process.jsonl")))
    (journal,) = meta.glob("*/process.jsonl")
    assert eventually(journal.read_text)
    started = json.loads(journal.read_text().splitlines()[0])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert ended(started["pid"]) and ended(started["supervisor"])


def test_options_are_a_conscious_choice():
    (entry,) = (entry for entry in app.build()[0].registered_commands if entry.name == "zoo")
    assert sorted(name for name in entry.callback.__annotations__ if name != "return") == [
        "again", "compiled", "controls", "everything", "family", "faults", "folder", "gpu", "ids", "jobs", "json_file",
        "kind", "level", "markdown_file", "on_gpu", "only_list", "out", "timeout",
    ]  # fmt: skip


def test_specimens_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        'TRUTH = {"id": "mine", "title": "t", "family": "mlp", "kind": "silent", "root_causes": ["plateau"]}\n'
    )
    assert list(zoo.elsewhere(tmp_path)) == ["mine"]
    with pytest.raises(UsageError, match="holds no specimens"):
        zoo.elsewhere(tmp_path / "nothing")


def test_scripts_written_blind_state_known_truths():
    found = zoo.elsewhere(Path(__file__).parent.parent / "benchmarks" / "specimens")
    assert len(found) >= 70 and sum(each.healthy for each in found.values()) >= 20
    unknown = {cause for each in found.values() for cause in each.root_causes} - set(causes.CAUSES)
    assert not unknown


def test_the_command_itself_never_loads_torch():
    program = (
        "import sys\nfrom brickprof.cli.app import main\nmain(['zoo', '--list'])\n"
        "import brickprof.reference.keeper\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
