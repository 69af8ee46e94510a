"""`brickprof analyze`, `show` and `compare` on logs: what is printed, written and returned."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from logs_made import jsonl

import brickprof
from brickprof import logs
from brickprof.cli.app import main
from brickprof.errors import UnreadableInput


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def analyzed(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["analyze", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def as_json(capsys, *arguments: str) -> list[dict]:
    return json.loads(analyzed(capsys, *arguments, "--json")[1])


# -- one log


def test_a_healthy_log_is_a_pass_and_says_what_it_holds(place, capsys):
    jsonl(place / "train.jsonl")
    code, out, err = analyzed(capsys, "train.jsonl")
    assert code == 0 and err == ""
    assert out.startswith("✓ PASS  200 steps, nothing wrong")
    assert "What the log holds" in out and "grad_norm" in out and "Cannot tell" in out
    assert os.listdir(place) == ["train.jsonl"]


def test_a_broken_log_has_verdict_whys_and_the_command_that_shows_the_evidence(place, capsys):
    jsonl(place / "train.jsonl", broken_at=150)
    code, out, _ = analyzed(capsys, "train.jsonl")
    assert code == 1 and out.startswith("✗ FAIL") and "nan from step 150" in out and "  1  Why" in out
    typed = next(line for line in out.splitlines() if "brickprof show" in line).split("brickprof show ")[1].split()
    assert typed[0] == "train.jsonl"
    assert main(["show", typed[0], typed[1]]) == 0
    assert capsys.readouterr().out.strip()


def test_every_piece_of_evidence_resolves_from_the_log(place, capsys):
    jsonl(place / "train.jsonl", broken_at=150)
    run = brickprof.Run.from_log("train.jsonl")
    (diagnosis,) = as_json(capsys, "train.jsonl")
    ids = [evidence for finding in diagnosis["findings"] for why in finding["whys"] for evidence in why["evidence"]]
    assert ids and all(run.find(identity) for identity in ids)


def test_kept_runs_are_journals_and_resolve_their_evidence(place, capsys):
    jsonl(place / "train.jsonl", broken_at=150)
    code, out, _ = analyzed(capsys, "train.jsonl", "-o", "kept")
    (folder,) = (place / "kept").iterdir()
    assert code == 1 and (folder / "diagnosis.json").is_file()
    typed = next(line for line in out.splitlines() if "brickprof show" in line).split("brickprof show ")[1].split()
    assert folder.name.endswith(f"-{typed[0]}")
    assert main(["show", str(folder), typed[1]]) == 0
    assert json.loads((folder / "diagnosis.json").read_text())["run"]["files"] == ["train.jsonl"]


def test_packed_and_piped_logs_come_to_the_same(place, capsys):
    plain = jsonl(place / "train.jsonl", broken_at=150)
    (place / "packed.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (whole,) = as_json(capsys, "train.jsonl")
    (packed,) = as_json(capsys, "packed.jsonl.gz")
    command = [sys.executable, "-m", "brickprof", "analyze", "-", "--json"]
    piped = subprocess.run(command, input=plain.read_bytes(), capture_output=True, timeout=120, check=False)
    assert piped.returncode == 1
    for other in (packed, json.loads(piped.stdout)[0]):
        assert [finding["symptom"] for finding in other["findings"]] == [f["symptom"] for f in whole["findings"]]
        assert other["run"]["log"] == whole["run"]["log"]


def test_json_is_a_list_with_the_source_of_each(place, capsys):
    jsonl(place / "a.jsonl")
    (diagnosis,) = as_json(capsys, "a.jsonl")
    assert diagnosis["schema"] == 1 and diagnosis["run"]["source"] == "jsonl"
    assert diagnosis["run"]["files"] == ["a.jsonl"]
    assert {row["name"] for row in diagnosis["run"]["log"]["series"]} == {"loss", "grad_norm", "lr"}


def test_nothing_to_judge_is_3(place, capsys):
    (place / "empty.jsonl").write_text('{"a": "b"}\n{"a": "c"}\n')
    assert analyzed(capsys, "empty.jsonl", "--format", "jsonl")[0] == 3


# -- several


@pytest.fixture
def three(place):
    jsonl(place / "runs" / "good" / "train.jsonl")
    jsonl(place / "runs" / "bad" / "train.jsonl", broken_at=150)
    jsonl(place / "runs" / "short" / "train.jsonl", count=60)
    return place


def test_several_are_a_table_with_the_worst_first_and_their_whys(three, capsys):
    code, out, _ = analyzed(capsys, "runs")
    lines = out.splitlines()
    assert code == 1
    assert lines[0].split()[:4] == ["run", "format", "steps", "verdict"]
    assert [line.split()[0] for line in lines[1:4]] == ["bad", "good", "short"]
    assert lines[1].split()[3:5] == ["✗", "nan"] and "✓" in lines[2]
    assert "── bad ──" in out and "Why" in out and "── good ──" not in out


@pytest.mark.parametrize(
    ("sort", "order"),
    [("name", ["bad", "good", "short"]), ("steps", ["good", "bad", "short"]), ("given", ["short", "good", "bad"])],
)
def test_sorted_as_asked(three, capsys, sort, order):
    paths = [f"runs/{name}/train.jsonl" for name in ("short", "good", "bad")]
    out = analyzed(capsys, *paths, "--brief", "--sort", sort)[1]
    assert [line.split()[0] for line in out.splitlines()[1:4]] == order
    assert "Why" not in out


def test_csv_markdown_and_report(three, capsys):
    code, out, _ = analyzed(capsys, "runs", "--csv", "t.csv", "--markdown", "t.md", "--report", "r.json", "--brief")
    assert code == 1 and out
    rows = list(csv.DictReader(io.StringIO((three / "t.csv").read_text())))
    assert [row["run"] for row in rows] == ["bad", "good", "short"]
    assert rows[0]["verdict"] == "FAIL" and rows[0]["first_step"] and rows[1]["cause"] == ""
    assert (three / "t.md").read_text().startswith("| run | format |")
    written = sorted(path.name for path in three.glob("r-*.json"))
    assert len(written) == 3 and json.loads((three / written[0]).read_text())["verdict"] == "FAIL"
    assert analyzed(capsys, "runs", "--csv", "-")[1].startswith("run,format,")


def test_a_report_that_nobody_writes_says_which_there_are(three, capsys):
    code, out, err = analyzed(capsys, "runs", "--report", "out.xyz")
    assert code == 2 and out == "" and "no report is written as out.xyz. There are: " in err and ".json" in err


def test_a_glob_that_the_shell_left_alone(three, capsys):
    assert len(as_json(capsys, "runs/*/train.jsonl")) == 3
    code, _, err = analyzed(capsys, "runs/*/nothing.log")
    assert code == 2 and "nothing fits" in err


def test_one_bad_file_among_good_ones_is_one_line(three, capsys):
    (three / "runs" / "photo.log").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 50)
    (three / "runs" / "notes.txt").write_text("")
    code, out, err = analyzed(capsys, "runs", "--brief", "--fail-on", "never")
    assert code == 0 and len(out.splitlines()) == 4
    assert err.count("photo.log") == 1 and "is not a log I can read (binary, PNG)" in err
    assert analyzed(capsys, "runs/good/train.jsonl", "runs/photo.log")[0] == 2
    assert analyzed(capsys, "runs/bad/train.jsonl", "runs/photo.log")[0] == 1
    assert analyzed(capsys, "runs/photo.log")[0] == 2


@pytest.mark.parametrize(
    ("fail_on", "code"), [("warning", 1), ("error", 1), ("never", 0)],
)  # fmt: skip
def test_what_counts_as_a_failure(three, capsys, fail_on, code):
    assert analyzed(capsys, "runs/bad/train.jsonl", "--fail-on", fail_on)[0] == code


# -- many files, one run


@pytest.mark.parametrize("broken", [{2}, {0, 1, 2}])
def test_ranks_are_one_run(place, capsys, broken):
    for rank in range(3):
        jsonl(place / "job" / f"rank{rank}.jsonl", broken_at=150 if rank in broken else None)
    (diagnosis,) = as_json(capsys, "job")
    assert diagnosis["verdict"] == "FAIL" and len(diagnosis["run"]["files"]) == 3
    assert diagnosis["run"]["ranks"] == 3
    assert diagnosis["findings"][0]["first_step"] == 150


def test_a_restart_in_another_file_is_the_same_run_and_another_run_is_not(place, capsys):
    jsonl(place / "job" / "train_1.jsonl", count=100)
    jsonl(place / "job" / "train_2.jsonl", start=90, count=100)
    jsonl(place / "other" / "train_1.jsonl", count=100)
    jsonl(place / "other" / "train_2.jsonl", count=120)
    found = as_json(capsys, "job", "other", "--sort", "given")
    assert [[os.path.basename(file) for file in one["run"]["files"]] for one in found] == [
        ["train_1.jsonl", "train_2.jsonl"], ["train_1.jsonl"], ["train_2.jsonl"],
    ]  # fmt: skip


def test_output_and_errors_of_a_job_are_one_run(place, capsys):
    jsonl(place / "slurm-77.out", count=150)
    (place / "slurm-77.err").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    step()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    (diagnosis,) = as_json(capsys, ".")
    assert sorted(diagnosis["run"]["files"]) == ["./slurm-77.err", "./slurm-77.out"]
    assert diagnosis["verdict"] == "FAIL" and diagnosis["findings"][0]["root_cause"] == "out-of-memory"
    assert diagnosis["findings"][0]["first_step"] >= 149


def test_of_checkpoints_with_their_whole_history_only_the_last_counts(place, capsys):
    for step in (100, 200, 1000):
        state = {"log_history": [{"step": s, "loss": 5 - s / 500, "epoch": s / 100} for s in range(10, step + 1, 10)],
                 "global_step": step, "max_steps": 1000}  # fmt: skip
        folder = place / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps(state))
    (diagnosis,) = as_json(capsys, "out")
    assert diagnosis["run"]["files"] == ["out/checkpoint-1000/trainer_state.json"]


def test_a_recorded_run_is_judged_like_any(place, capsys):
    jsonl(place / "train.jsonl", broken_at=150)
    analyzed(capsys, "train.jsonl", "-o", "kept")
    (diagnosis,) = as_json(capsys, "kept")
    assert diagnosis["run"]["format"] == "brickprof" and diagnosis["verdict"] == "FAIL"


# -- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'PATH...'"),
        (["trian.log"], "there is no file trian.log here. Did you mean train.log?"),
        (["train.log", "--format", "jsnl"], "there is no format jsnl. Did you mean jsonl?"),
        (["train.log", "--sort", "x"], "--sort is 'x'. Give one of:"),
        (["train.log", "--fail-on", "x"], "--fail-on is 'x'"),
        (["train.log", "--engine", "x"], "--engine is 'x'"),
        (["train.log", "--scheduler", "x"], "--scheduler is for --engine dask"),
        (["train.log", "--exec", "true"], "are for --follow"),
        (["train.log", "x.log", "--follow"], "--follow watches one log"),
        (["train.log", "--set", "C-NOPE-001.x=1"], "C-NOPE-001"),
        (["train.log", "--pattern", "a {step}", "--format", "jsonl"], "give one"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(place, capsys, words, said):
    (place / "train.log").write_text("step 1 loss 2\n")
    code, out, err = analyzed(capsys, *words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1


def test_formats_are_listed(capsys):
    code, out, _ = analyzed(capsys, "--list-formats")
    assert code == 0 and len(out.splitlines()) == len(logs.readers())
    assert any(line.startswith("tensorboard ") for line in out.splitlines())


def test_a_pattern_reads_what_nobody_knows(place, capsys):
    lines = [f"<<{step};;{4 - step / 100:.3f}>>" for step in range(1, 80)]
    (place / "odd.txt").write_text("\n".join(lines) + "\n")
    (diagnosis,) = as_json(capsys, "odd.txt", "--pattern", "<<{step};;{loss}>>")
    (series,) = [row for row in diagnosis["run"]["log"]["series"] if row["role"] == "loss"]
    assert (series["points"], series["first_step"], series["last_step"]) == (79, 1, 79)


# -- compare


def test_compare_of_two_logs_names_the_first_step_where_they_part(place, capsys):
    one = jsonl(place / "a.jsonl")
    lines = one.read_text().splitlines()
    changed = json.loads(lines[70]) | {"loss": 9.5}
    (place / "b.jsonl").write_text("\n".join([*lines[:70], json.dumps(changed), *lines[71:]]) + "\n")
    assert main(["compare", "a.jsonl", "b.jsonl", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["step"] == 70 and found["first"]["what"] == "loss"
    assert main(["compare", "a.jsonl", "a.jsonl"]) == 0


# -- Python


def test_analyze_from_python(three):
    one = brickprof.analyze("runs/bad/train.jsonl")
    assert one.verdict == "FAIL" and "Why" in str(one)
    several = brickprof.analyze("runs")
    assert [each.verdict for each in several] == ["FAIL", "PASS", "PASS"]
    with pytest.raises(UnreadableInput, match="there is no file"):
        brickprof.analyze("nowhere.log")


def test_a_log_as_tables(three):
    run = brickprof.Run.from_log("runs/bad/train.jsonl")
    assert run.loss["value"].isna().sum() == 50 and len(run.lr) == 200
    frame = logs.read("runs/good/train.jsonl").frame()
    assert list(frame.columns) == ["loss", "grad_norm", "lr"] and len(frame) == 200


def test_importing_the_command_costs_nothing():
    program = (
        "import sys, brickprof.cli.analyze; "
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'torch', 'rich', 'dask'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "numpy" not in done.stdout and "pandas" not in done.stdout and "torch" not in done.stdout


def test_options_are_a_conscious_choice():
    """A new flag is a change of the interface: write it down here."""
    from brickprof.cli.analyze import analyze

    assert sorted(name for name in analyze.__annotations__ if name != "return") == [
        "as_json", "brief", "command", "csv_file", "engine", "fail_on", "follow", "format", "halt_on", "jobs",
        "list_formats", "markdown_file", "max_files", "out", "paths", "pattern", "report", "scheduler", "sort",
        "suppress", "thresholds", "until_idle",
    ]  # fmt: skip


def test_the_page_names_every_format():
    page = (Path(__file__).parents[1] / "docs" / "analyze.md").read_text("utf-8")
    assert [name for name in logs.readers() if f"| `{name}` |" not in page] == []


# -- one meaning of steps, names and silence


@pytest.mark.parametrize(("first", "count"), [(0, 30), (1, 30)])
def test_the_table_and_the_verdict_count_the_same_steps(place, capsys, first, count):
    rows = "".join(f"{first + n},{2 / (n + 1):.4f},{2.1 / (n + 1):.4f}\n" for n in range(count))
    for name in ("a.csv", "b.csv"):
        (place / name).write_text("epoch,loss,val_loss\n" + rows)
    assert analyzed(capsys, "a.csv", "--brief")[1].startswith("✓ PASS  30 steps")
    table = analyzed(capsys, "a.csv", "b.csv", "--csv", "-")[1]
    assert {row["steps"] for row in csv.DictReader(io.StringIO(table))} == {"30"}
    (told,) = as_json(capsys, "a.csv")
    assert told["run"]["steps"] == 30 and told["run"]["log"]["last_step"] == first + count - 1


def test_steps_told_now_and_then_are_counted_by_the_last(place, capsys):
    lines = [json.dumps({"step": step, "loss": 2 + 100 / (step + 50)}) for step in range(0, 5001, 100)]
    (place / "t.jsonl").write_text("\n".join(lines) + "\n")
    assert analyzed(capsys, "t.jsonl", "--brief")[1].startswith("✓ PASS  5,000 steps")


def test_brief_has_no_whys(place, capsys):
    jsonl(place / "train.jsonl", broken_at=150)
    _, out, _ = analyzed(capsys, "train.jsonl", "--brief")
    assert "What " in out and "Cause " in out and "  1  Why" not in out and "Ruled out" not in out


def test_two_logs_of_one_name_are_called_as_they_were_typed(place, capsys):
    jsonl(place / "good" / "train.jsonl")
    jsonl(place / "bad" / "train.jsonl", broken_at=150)
    assert main(["compare", "good/train.jsonl", "bad/train.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "A        good/train.jsonl" in out and "B        bad/train.jsonl" in out
    typed = next(line for line in out.splitlines() if "brickprof show" in line).split("brickprof show ")[1].split()
    assert main(["show", *typed]) == 0


@pytest.mark.parametrize(
    "command",
    [["analyze", "train.jsonl"], ["analyze", "train.jsonl", "--json"], ["show", "train.jsonl"],
     ["compare", "train.jsonl", "train.jsonl"], ["analyze", "--list-formats"]],
)  # fmt: skip
def test_a_reader_that_went_away_is_no_error(place, command):
    jsonl(place / "train.jsonl")
    reading, writing = os.pipe()
    os.close(reading)
    typed = [sys.executable, "-m", "brickprof", *command]
    done = subprocess.run(typed, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


# -- folders that hold more than anybody means


def test_a_folder_with_too_many_logs_is_refused_before_any_is_read(place, capsys):
    for number in range(5):
        jsonl(place / "runs" / f"r{number}" / "train.jsonl", count=20)
    code, out, err = analyzed(capsys, "runs", "--max-files", "4")
    assert code == 2 and out == "" and "more than 4 files" in err and "--max-files" in err
    assert analyzed(capsys, "runs", "--max-files", "5", "--brief")[0] == 0


def test_a_folder_with_too_much_else_is_refused_as_well(place, capsys, monkeypatch):
    monkeypatch.setattr("brickprof.analysis.files._PASSED_FOR_ONE", 3)
    for number in range(8):
        (place / "runs" / f"d{number}").mkdir(parents=True)
    code, _, err = analyzed(capsys, "runs", "--max-files", "2")
    assert code == 2 and "more than 6 files" in err


def test_what_the_kernel_shows_as_files_is_never_looked_into(place, capsys):
    jsonl(place / "runs" / "train.jsonl")
    (place / "runs" / "kernel").symlink_to("/proc/self")
    code, out, err = analyzed(capsys, "runs", "--brief")
    assert (code, err) == (0, "") and out.startswith("✓ PASS")
    assert analyzed(capsys, "/proc/self")[0] == 2


def test_folders_in_folders_without_end(place, capsys):
    deep = 1_200
    for _ in range(deep):
        os.mkdir("d")
        os.chdir("d")
    try:
        code, _, err = analyzed(capsys, place / "d")
        assert code == 2 and "holds no logs" in err
    finally:  # whoever clears up behind the tests would not come to its end
        for _ in range(deep):
            os.chdir("..")
            os.rmdir("d")


def test_links_that_lead_back_are_walked_once(place, capsys):
    jsonl(place / "runs" / "a" / "train.jsonl")
    (place / "runs" / "a" / "up").symlink_to("..")
    assert len(as_json(capsys, "runs")) == 1


def test_who_waits_for_the_search_is_told(place):
    from brickprof.analysis.files import find

    for number in range(1_100):
        (place / f"{number}.bin").touch()
    told: list[int] = []
    list(find([place], looked=told.append))
    assert told == [1_100]
