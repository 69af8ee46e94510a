"""C-STREAMSYNC-001 on runs made by hand: both sides are named, and nothing that was not looked at passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import brickprof
from brickprof.capture.pending.observer import Observer
from brickprof.capture.pending.watch import Eye
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Diagnosis, diagnose
from brickprof.launch.asked import answers
from brickprof.launch.conclusion import conclude
from brickprof.launch.exits import Exit
from brickprof.launch.folder import Place
from brickprof.probes.pending import PendingProbe
from brickprof.records import Event
from brickprof.rules.story import Story
from brickprof.rules.stream_sync import StreamSync
from tests.fake_streams import Gpu
from tests.making import Made


def training(device: str = "cuda:0") -> Made:
    made = Made()
    for event in made.records:
        if getattr(event, "kind", "") == "tensor":
            event.fields["device"] = device
    made.owned()
    for step in range(4):
        made.event("loss", step, value=1.0, micro=0)
        made.event("optimizer", step, optimizer=0, lr=[0.1], count=step + 1)
    return made


def side(line: int, stream: str, *, writes: bool, op: str = "aten::copy_") -> dict[str, Any]:
    stack = [f"train.py:{line} in step", "train.py:90 in main"]
    return {"site": f"train.py:{line}", "stack": stack, "stream": stream, "op": op, "writes": writes}


def race(made: Made, step: int = 1, **changes: Any) -> None:
    told = {
        "pair": 0, "cause": "missing-sync", "how": "read-before-copy", "memory": "pinned",
        "first": side(20, "side stream 1", writes=True), "second": side(23, "the host", writes=False, op="tolist"),
        "bytes": 4096, "shape": [1024], "itemsize": 4, "instead": "nothing", "instead_site": "", "count": 1,
    }  # fmt: skip
    made.event("race", step, **(told | changes))


def looked(made: Made, **changes: Any) -> None:
    told = {"copies": 8, "launches": 400, "waits": 8, "streams": 2, "pairs": 0, "dropped": 0, "whole": True}
    made.event("sync_check", 3, **(told | changes))


def judge(made: Made) -> ContractResult:
    contract = registry.library()[StreamSync.contract]
    return StreamSync().judge(Story.of(made.run()), contract)


def test_a_race_is_of_the_step_in_which_it_was_first_seen():
    made = training()
    looked(made)
    for step, count in ((3, 1), (5, 2), (64, 64)):
        race(made, step, count=count)
    (violation,) = judge(made).violations
    assert (violation.first_step, violation.detected_step) == (3, 3) and "64 times" in violation.symptom


def test_both_sides_are_named_and_the_last_count_counts():
    made = training()
    race(made)
    race(made, step=2, count=64)
    looked(made, pairs=1)
    result = judge(made)
    assert result.verdict is Verdict.FAIL
    (violation,) = result.violations
    assert violation.cause == "missing-sync" and violation.severity is Severity.ERROR
    assert "train.py:23 reads 4 KiB" in violation.symptom and "train.py:20" in violation.symptom
    assert "64 times" in violation.symptom
    assert "side stream 1" in violation.whys[0].finding and "train.py:90 in main" in violation.whys[0].finding


@pytest.mark.parametrize(
    ("instead", "words"),
    [("event-too-early", "recorded before it"), ("other-stream", "another stream"), ("not-done", "was told no")],
)
def test_what_was_done_instead_is_said(instead, words):
    made = training()
    race(made, instead=instead, instead_site="train.py:22 in step")
    (violation,) = judge(made).violations
    assert "train.py:22" in violation.whys[1].finding and words in violation.whys[1].finding


def test_each_cause_is_a_violation_of_its_own():
    made = training()
    race(made)
    race(made, pair=1, cause="host-buffer-reuse", how="write-during-copy", second=side(30, "the host", writes=True))
    race(
        made, pair=2, cause="stream-race", how="freed", memory="device", first=side(40, "side stream 1", writes=False),
        second=side(41, "the default stream", writes=True),
    )  # fmt: skip
    result = judge(made)
    assert [violation.cause for violation in result.violations] == ["missing-sync", "host-buffer-reuse", "stream-race"]
    assert "record_stream" in result.violations[2].action and "train.py:41 gets memory" in result.violations[2].symptom


def test_the_diagnosis_names_the_cause():
    made = training()
    race(made, count=4)
    looked(made, pairs=1)
    (finding,) = [each for each in diagnose(made.run()).findings if each.severity is not Severity.INFO]
    assert finding.root_cause == "missing-sync" and finding.contract == "C-STREAMSYNC-001"


def test_a_suspicion_decides_nothing():
    made = training()
    race(made, how="alias-kept")
    looked(made, pairs=1)
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert result.violations[0].severity is Severity.INFO


def test_a_view_that_may_not_have_been_read_decides_nothing():
    made = training()
    race(made, how="alias-unread")
    looked(made, pairs=1)
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED and "whether it was read is not known" in result.why


def test_nobody_is_accused_where_questions_are_not_heard():
    made = training()
    race(made)
    looked(made, pairs=1, hears_questions=False)
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED and "torch.Event.query" in result.why and not result.violations
    made = training()
    race(made)
    looked(made, pairs=1, hears_questions=True)
    assert judge(made).verdict is Verdict.FAIL


@pytest.mark.parametrize("streams", [1, 2])
def test_compiled_code_and_replays_are_no_pass(streams):
    made = training()
    made.event("compile", 0, model="Net", path="")
    looked(made, streams=streams, replays=7)
    result = judge(made)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert "1 x compiled function" in result.why and "7 x replay" in result.why


def test_a_replay_is_not_vacuous():
    made = training()
    looked(made, copies=0, streams=1, replays=7)
    assert judge(made).verdict is Verdict.NOT_EVALUATED


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"kernels": 900}, Verdict.PASS),
        ({"kernels": 900, "doubtful": 3}, Verdict.NOT_EVALUATED),
        ({"kernels": 900, "astray": 3}, Verdict.NOT_EVALUATED),
        ({}, Verdict.NOT_EVALUATED),
    ],
)
def test_kernels_pass_where_they_share_nothing_in_no_order(fields, verdict):
    made = training()
    made.event("launches", 1, count=3, kernels=[["mine", 3, "t.py:3"]])
    looked(made, **fields)
    result = judge(made)
    assert result.verdict is verdict
    assert verdict is Verdict.PASS or "3 x launch of a Triton kernel" in result.why


def test_a_pass_needs_something_that_was_looked_at():
    made = training()
    assert judge(made).verdict is Verdict.NOT_EVALUATED
    assert "--sync-check" in judge(made).why
    looked(made)
    assert judge(made).verdict is Verdict.PASS and "8 copies" in judge(made).observed


def test_one_stream_without_copies_is_vacuous():
    made = training()
    looked(made, copies=0, streams=1)
    assert judge(made).verdict is Verdict.VACUOUS


def test_a_check_that_gave_up_is_no_pass():
    made = training()
    looked(made, whole=False)
    assert judge(made).verdict is Verdict.NOT_EVALUATED


def test_without_a_device_it_is_not_evaluated():
    result = judge(training("cpu"))
    assert result.verdict is Verdict.NOT_EVALUATED and "no GPU" in result.why


@pytest.mark.parametrize("damage", [{"first": None}, {"second": "x"}, {"pair": None}, {"bytes": "x", "first": {}}])
def test_a_damaged_event_does_not_break_the_rule(damage):
    made = training()
    race(made, **damage)
    judge(made)


def test_the_flag_reaches_the_script_and_a_cpu_is_left_alone_and_told(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "assert not torch._C._len_torch_dispatch_stack() and 'numpy' not in torch.Tensor.__dict__\n"
    )
    command = [sys.executable, "-m", "brickprof", "run", "--sync-check", "-o", str(tmp_path / "runs"), str(script)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    contracts = json.loads((folder / "diagnosis.json").read_text())["contracts"]
    (told,) = [each for each in contracts if each["id"] == "C-STREAMSYNC-001"]
    assert told["verdict"] == "NOT_EVALUATED" and "no GPU" in told["why"]
    note = "--sync-check had nothing to check: no CUDA device was used"
    assert ran.stderr.count(note) == 1
    for asked in (False, True):
        conclude(Place(folder, "k3f9"), Exit(0, "ok", "the script exited 0"), sync_check=asked)
        assert (note in capsys.readouterr().err) == asked


def checked(**changes: Any) -> Made:
    made = training()
    looked(made, **changes)
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (training("cpu"), "had nothing to check: no CUDA device was used"),
        (checked(), ": 400 launches on 2 streams, 8 copies of pinned memory, all in order"),
        (checked(copies=0, streams=1), "had nothing to check: one stream, and no copy"),
        (training(), "cannot tell: copies and their streams were not recorded"),
        (checked(began=False), "cannot tell: a dispatch mode of the script's own was on"),
        (checked(whole=False), "cannot tell: the check of copies and streams had to give up"),
        (checked(replays=3), "cannot tell: 3 x replay of a graph"),
    ],
)
def test_whoever_asked_for_the_check_hears_what_became_of_it(made, said):
    diagnosis = Diagnosis(Verdict.PASS, {}, (), (judge(made),))
    (line,) = answers(diagnosis, made.run(), sync_check=True, sanitizer="")
    assert line.removeprefix("--sync-check").strip().startswith(said), line
    assert answers(diagnosis, made.run(), sync_check=False, sanitizer="") == []


def test_a_race_is_told_by_its_finding_alone():
    made = training()
    race(made)
    looked(made, pairs=1)
    assert answers(diagnose(made.run()), made.run(), sync_check=True, sanitizer="") == []


@pytest.mark.parametrize("there", [True, False])
def test_a_check_that_never_began_says_so_where_there_is_a_device(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: there)
    monkeypatch.setattr("brickprof.capture.pending.watch.Watch.start", lambda watch, **_: False)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda _ready: None)
    facts: list[tuple[str, dict[str, Any]]] = []
    session = SimpleNamespace(
        settings=SimpleNamespace(sync_check=True, level="standard"),
        fact=lambda kind, told, **_: facts.append((kind, told)),
    )
    probe = PendingProbe(session)
    probe.step_begin(1)
    probe.close()
    assert facts == [("sync_check", {"began": False})] * there


def test_the_probe_writes_what_is_found_and_how_much_was_looked_at(monkeypatch, tmp_path):
    gpu = Gpu()

    def start(self: Any, *, ready: bool = False) -> bool:
        if self.observer is None:
            self.observer = Observer(gpu.machine, self._tell, self._failed)
            self._eye = Eye(self.observer)
            self._eye.__enter__()
            gpu.observer = self.observer
        return True

    monkeypatch.setattr("brickprof.capture.pending.watch.Watch.start", start)
    monkeypatch.setenv("BRICKPROF_SYNC_CHECK", "1")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with brickprof.attach(model, optimizer, out=tmp_path) as session:
        host = gpu.pinned(4)
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            gpu.to_host(host, gpu.tensor(4))
            host.sum()
    assert not torch._C._len_torch_dispatch_stack()
    events = [event for event in brickprof.load(session.folder).records() if isinstance(event, Event)]
    races = [event for event in events if event.kind == "race"]
    assert [event.fields["count"] for event in races] == [1, 2, 4, 5]
    assert races[0].fields["second"]["site"].startswith("test_pending_rule.py:")
    looked_at = [event.fields for event in events if event.kind == "sync_check"]
    assert looked_at[-1]["copies"] == 5 and looked_at[-1]["whole"] and looked_at[-1]["pairs"] == 1
    assert not [event for event in events if event.kind == "probe_off"]
    assert [each.root_cause for each in session.diagnose().findings][:1] == ["missing-sync"]
