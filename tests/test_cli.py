"""The command line: exit codes, help, and the commands that read a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from making import NAN, Made

from brickprof import __version__
from brickprof.cli import app, doctor
from brickprof.cli.app import main


@pytest.fixture
def run(tmp_path):
    made = Made()
    made.owned()
    for step in range(12):
        made.event("sampled", step, roles=["grad"])
        for block in made.numbers:
            made.sample("grad", step, block)
        made.step(step, loss=NAN if step == 11 else 3.0 - step / 10)
    return made.run().save(tmp_path / "train-20261115-0121-k3f9")


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brickprof", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip


# -- the frame


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"brickprof {__version__}\n"


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("run", "show", "export", "doctor"):
        assert f"\n  {name} " in out


def test_no_command_shows_the_help_and_is_wrong_usage(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shwo"], "there is no command shwo. Did you mean show?"),
        (["train.py"], "there is no command train.py. Did you mean brickprof run train.py?"),
        (["xyzzy"], "there is no command xyzzy. Commands:"),
        (["\x1b[31m"], "there is no command \\x1b[31m."),
        (["show"], "Missing argument 'RUN'. See: brickprof show --help"),
        (["show", "a", "--nope"], "No such option"),
        (["show", "no-such-run"], "no-such-run"),
        (["export", "x", "--to", "xml"], "--to is 'xml'. Formats: csv, otlp, parquet, perfetto,"),
        (["export", "x", "--to", "csv", "--endpoint", "http://x"], "--endpoint is for --to otlp"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("brickprof: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert captured.out == ""


def test_every_command_registers_itself():
    built = app.build()[0]
    known = {entry.name for entry in (*built.registered_commands, *built.registered_groups)}
    files = {path.stem for path in Path(app.__file__).parent.glob("[a-z]*.py")} - {"app"}
    assert known == files


def test_options_are_a_conscious_choice():
    """A new flag is a change of the interface: write it down here."""
    options = {}
    for entry in app.build()[0].registered_commands:
        code = entry.callback.__annotations__
        options[entry.name] = sorted(name for name in code if name != "return")
    assert {name: options[name] for name in ("show", "export", "doctor")} == {
        "show": ["as_json", "identity", "run"],
        "export": ["endpoint", "out", "run", "steps", "to"],
        "doctor": ["as_json"],
    }


def test_a_reader_that_goes_away_is_no_traceback(run):
    shell = f"{sys.executable} -m brickprof show {run} --json | head -c 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout == "{"


def test_help_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from brickprof.cli.app import main\n"
        "main(['--help'])\n"
        "heavy = {'torch', 'pandas', 'pyarrow', 'numpy', 'yaml', 'rich.markdown', 'opentelemetry'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


# -- show


def test_show_is_an_overview(run, capsys):
    assert main(["show", str(run)]) == 0
    out = capsys.readouterr().out
    assert "FAIL  training broke in step 11" in out
    for title in ("Loss", "Bricks by time", "Gradients by layer"):
        assert f"\n  {title}\n" in out
    assert "3 → nan" in out


def test_show_finds_a_run_by_the_end_of_its_id(run, capsys, monkeypatch):
    home = run.parent / "brickprof-runs"
    home.mkdir()
    run.rename(home / run.name)
    monkeypatch.chdir(run.parent)
    assert main(["show", "k3f9", "loss:11"]) == 0
    assert "value nan" in capsys.readouterr().out


def test_show_json_is_json(run, capsys):
    assert main(["show", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "FAIL"
    assert told["loss"][-1] == {"step": 11, "value": None}
    assert main(["show", str(run), "g:3", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["tensor"] for record in records} == {"embed.weight", "body.weight", "head.weight"}


def test_every_evidence_id_of_a_diagnosis_can_be_shown(run, capsys):
    main(["show", str(run), "--json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    cited = {i for part in (*finding["whys"], *finding["ruled_out"]) for i in part["evidence"]}
    assert cited
    for identity in cited:
        assert main(["show", str(run), identity]) == 0
        assert identity in capsys.readouterr().out


@pytest.mark.parametrize("identity", ["loss:999", "nonsense", "event:99999@0", "g:1:nowhere"])
def test_an_id_that_names_nothing_is_exit_2(run, identity, capsys):
    assert main(["show", str(run), identity]) == 2
    assert capsys.readouterr().err.startswith("brickprof: ")


def test_a_damaged_run_is_shown_with_a_counted_warning(run, capsys):
    file = run / "rank00000" / "events.jsonl"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    assert main(["show", str(run)]) == 0
    captured = capsys.readouterr()
    assert "this run is damaged" in captured.err
    assert "Damage" in captured.out


# -- export


def test_export_csv_and_parquet(run, tmp_path, capsys):
    import pandas as pd

    assert main(["export", str(run), "--to", "csv", "-o", str(tmp_path / "tables")]) == 0
    assert len(pd.read_csv(tmp_path / "tables" / "loss.csv")) == 12
    assert main(["export", str(run), "--to", "parquet", "-o", str(tmp_path / "columns")]) == 0
    assert "columns" in capsys.readouterr().out
    assert list((tmp_path / "columns").rglob("*.parquet"))


def test_export_otlp_to_a_file(run, tmp_path, capsys):
    assert main(["export", str(run), "--to", "otlp", "-o", str(tmp_path / "spans.jsonl")]) == 0
    lines = (tmp_path / "spans.jsonl").read_text().splitlines()
    assert lines
    assert "resourceSpans" in json.loads(lines[0])
    assert "wrote" in capsys.readouterr().out


def test_export_to_where_nothing_can_be_written(run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", str(run), "--to", "csv", "-o", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_export_to_an_endpoint_that_is_down(run, capsys):
    assert main(["export", str(run), "--to", "otlp", "--endpoint", "http://127.0.0.1:9"]) == 2
    assert "not exported" in capsys.readouterr().err


# -- doctor

TOLD = {
    "version": "2.13.0",
    "cuda": None,
    "available": False,
    "devices": [],
    "distributed": True,
    "threads": 2,
}


def test_doctor_says_what_will_and_will_not_be_captured(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ask_torch", lambda: TOLD)
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    states = {check["name"]: check for check in told["checks"]}
    assert states["capture"]["state"] == "ok"
    assert states["gpu"]["state"] == "missing"
    assert "not captured" in states["gpu"]["says"]


@pytest.mark.parametrize(
    ("triton", "gpu", "says"),
    [
        (None, True, "foreach"),
        (None, False, "no GPU"),
        ("3.4.0", False, "no GPU"),
        ("3.4.0", True, "triton 3.4.0"),
    ],
)
def test_doctor_says_what_stands_in_for_kernels(monkeypatch, triton, gpu, says):
    monkeypatch.setattr(doctor, "_version", lambda package: triton)
    check = doctor._triton({**TOLD, "available": gpu})
    assert check.state == ("ok" if triton and gpu else "missing")
    assert says in check.says and "single kernels" not in check.says
    assert ("profiler" in check.says) == (gpu and triton is None)


def test_a_broken_torch_does_not_break_doctor(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_ASK_TORCH", "import os; os.abort()")
    assert main(["doctor"]) == 1
    assert "torch cannot be imported" in capsys.readouterr().out


def test_a_torch_that_hangs_does_not_hang_doctor(monkeypatch):
    monkeypatch.setattr(doctor, "_ASK_TORCH", "import time; time.sleep(60)")
    assert "longer than 1 s" in doctor.ask_torch(1.0)["error"]


@pytest.mark.slow
def test_doctor_for_real():
    done = command("doctor")
    assert done.returncode == 0
    assert "capture" in done.stdout
    ascii_only = command("doctor", PYTHONIOENCODING="ascii")
    assert ascii_only.stdout.isascii()
