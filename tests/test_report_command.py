"""``brickprof report``: files that are whole or not there, which report goes where, and exit codes."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from making import Made
from test_report_formats import SCHEMA, complaints, several_run, told_run
from test_reports import healthy_run

from brickprof.cli import _reporters as reporters
from brickprof.cli import _writing as writing
from brickprof.cli.app import main
from brickprof.errors import OutputError
from brickprof.records import Event

# -- files


@pytest.mark.parametrize(("why", "advised"), [(30, True), (13, True), (28, True), (5, False)])
def test_what_cannot_be_written_may_go_elsewhere(tmp_path, monkeypatch, why, advised):
    """A run's folder may be one that is only read."""
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(why, os.strerror(why))))
    with pytest.raises(OutputError, match=r"report\.html cannot be written") as raised:
        writing.write(tmp_path / "report.html", "new")
    assert (raised.value.hint == "Say where else with -o.") == advised


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "report.md"
    file.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OutputError, match=r"cannot be written: No space left on device"):
            writing.write(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"] and file.read_text() == "old"
    writing.write(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"] and file.read_text() == "new"


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writing.write(tmp_path / "report.md", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_link_and_a_mode_stay(tmp_path):
    real, link = tmp_path / "real.md", tmp_path / "link.md"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    writing.write(link, "new")
    assert link.is_symlink() and real.read_text() == "new" and stat.S_IMODE(real.stat().st_mode) == 0o640
    mask = os.umask(0o022)
    try:
        writing.write(tmp_path / "fresh.md", "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh.md").stat().st_mode) == 0o644


def test_a_device_is_written_to_and_a_folder_is_not(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    writing.write(tmp_path / "null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and (tmp_path / "null").is_symlink()
    reading, out = os.pipe()
    writing.write(f"/dev/fd/{out}", "through a pipe")  # as `-o >(command)` and /dev/stdout are
    assert os.read(reading, 100) == b"through a pipe"
    os.close(reading), os.close(out)
    with pytest.raises(OutputError, match="it is a folder"):
        writing.write(tmp_path, "x")
    with pytest.raises(OutputError, match=r"there is no folder .*mkdir -p"):
        writing.write(tmp_path / "no" / "file.md", "x")


# -- the command


@pytest.fixture
def folder(tmp_path) -> Path:
    return told_run(several_run()).save(tmp_path / "runs" / "k3f9")


@pytest.mark.parametrize(
    ("file", "begins"),
    [
        ("a.md", b"## "), ("a.xml", b"<?xml"), ("a.sarif", b"{"), ("a.sarif.json", b'{\n  "$schema"'),
        ("a.json", b'{\n  "schema"'), ("a.csv", b"run,name,run_verdict,steps,finding"),
        ("a.contracts.csv", b"run,name,run_verdict,steps,contract"), ("a.parquet", b"PAR1"),
        ("a.contracts.parquet", b"PAR1"), ("a.github.txt", b"::error file=train.py"), ("A.MD", b"## "),
    ],
)  # fmt: skip
def test_the_ending_says_which_report(folder, tmp_path, file, begins, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / file)]) == 0
    assert (tmp_path / file).read_bytes().startswith(begins)
    told = capsys.readouterr()
    assert told.out == "" and told.err == f"brickprof: written to {tmp_path / file}\n"


def test_several_reports_lie_in_a_folder(folder, tmp_path):
    words = ["-r", "markdown", "-r", "junit", "-r", "sarif", "-r", "terminal"]
    assert main(["report", str(folder), *words, "-o", str(tmp_path / "out" / "deep")]) == 0
    names = sorted(path.name for path in (tmp_path / "out" / "deep").iterdir())
    assert names == ["report.md", "report.sarif", "report.txt", "report.xml"]
    assert main(["report", str(folder), "-r", "csv", "-r", "contracts-csv"]) == 0
    assert (folder / "report.csv").is_file() and (folder / "report.contracts.csv").is_file()


def test_several_files_by_their_endings(folder, tmp_path):
    files = [tmp_path / "a.md", tmp_path / "b.xml"]
    assert main(["report", str(folder), "-o", str(files[0]), "-o", str(files[1])]) == 0
    assert files[0].read_text("utf-8").startswith("##") and files[1].read_text("utf-8").startswith("<?xml")


def test_one_report_into_a_folder(folder, tmp_path):
    (tmp_path / "there").mkdir()
    assert main(["report", str(folder), "-r", "markdown", "-o", str(tmp_path / "there")]) == 0
    assert main(["report", str(folder), "-r", "markdown", "-o", f"{tmp_path}/new/"]) == 0
    assert (tmp_path / "there" / "report.md").is_file() and (tmp_path / "new" / "report.md").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-r", "junti"], "there is no report junti. Did you mean junit?"),
        (["-o", "x.pdf"], "no report is written as x.pdf. There are: "),
        (["-r", "csv", "-o", "a.csv", "-o", "b.csv"], "-r and several -o do not go together."),
        (["-r", "csv", "-r", "junit", "-o", "-"], "stdout takes one report."),
        (["-r", "csv", "-r", "junit", "-o", __file__], "is a file. Several reports go into a folder"),
        (["-r", "csv", "-o", "/nowhere/x.csv"], "cannot be written: there is no folder /nowhere. Make it first"),
        (["--fail-on", "always"], "Give one of: never, error, warning."),
    ],
)
def test_mistakes_get_help(folder, words, said, capsys):
    assert main(["report", str(folder), *words]) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") == 1 and told.out == ""


def test_a_wrong_run_leaves_no_folder(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none"), "-r", "csv", "-r", "junit", "-o", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    assert main(["report"]) == 2
    assert "Missing argument 'RUN'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "fail_on", "code"),
    [
        (several_run, "never", 0), (several_run, "error", 1), (several_run, "warning", 1), (healthy_run, "warning", 0),
        (Made, "never", 0), (Made, "error", 3),
    ],
)  # fmt: skip
def test_the_exit_code_says_what_was_found(made, fail_on, code, tmp_path, capsys):
    folder = told_run(made()).save(tmp_path / "k3f9")
    assert main(["report", str(folder), "-r", "github", "--fail-on", fail_on]) == code
    assert capsys.readouterr().out.startswith("::")


def test_stdout_gets_what_a_file_would(folder, tmp_path, capsysbinary):
    for name, ending in (("junit", "xml"), ("parquet", "parquet")):
        assert main(["report", str(folder), "-r", name, "-o", str(tmp_path / f"a.{ending}")]) == 0
        capsysbinary.readouterr()
        assert main(["report", str(folder), "-r", name, "-o", "-"]) == 0
        assert capsysbinary.readouterr().out == (tmp_path / f"a.{ending}").read_bytes()


def test_bytes_are_not_poured_over_a_terminal(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["report", str(folder), "-r", "parquet"]) == 2
    assert "is binary, and stdout is a terminal. Give -o FILE" in capsys.readouterr().err


def test_help_names_every_report_in_a_line(capsys):
    assert main(["report", "--help"]) == 0
    listed = capsys.readouterr().out.partition("\nReports:\n")[2]
    for module in reporters.known():
        assert re.search(rf"^  {module.NAME} ", listed, re.MULTILINE), module.NAME
        assert reporters.about(module)
    assert main(["report", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [m.NAME for m in reporters.known()]


def test_no_two_reports_write_one_ending():
    endings = [ending for module in reporters.known() for ending in reporters.endings(module)]
    assert len(endings) == len(set(endings))
    names = [module.NAME for module in reporters.known()]
    assert len(names) == len(set(names))


def test_the_schema_is_printed(capsys):
    assert main(["report", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_reports_of_a_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"step": step, "loss": 2.0 if step < 60 else float("nan")}) for step in range(65)]
    Path("train.jsonl").write_text("\n".join(lines))
    assert main(["report", "train.jsonl", "-o", "a.md", "-o", "a.sarif", "-o", "a.xml", "--fail-on", "error"]) == 1
    result = json.loads(Path("a.sarif").read_text())["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.jsonl"
    assert complaints(xml.parse("a.xml").getroot()) == []
    assert "train.jsonl" in Path("a.md").read_text("utf-8")


def test_a_damaged_run_is_reported_and_says_so(folder, capsys):
    events = next(folder.rglob("events.jsonl"))
    events.write_bytes(events.read_bytes()[:-30])
    assert main(["report", str(folder), "-r", "markdown"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("## ") and "this run is damaged, and what is whole is reported" in told.err


def test_an_event_with_odd_fields_has_no_place():
    odd = [None, 3, "train.py:0", "train.py:-1", ["a:b:c"], {"x": ["train.py:9", {"deep": {"er": "y.py:1"}}]}]
    from brickprof.reports.places import _sites

    assert _sites(Event("syncs", 0, {"sites": odd, "site": "/etc/passwd.py:3"})) == ["train.py:9"]


def test_the_documentation_names_every_report_and_its_commands_are_right():
    text = (Path(__file__).parents[1] / "docs" / "reports-formats.md").read_text("utf-8")
    for module in reporters.known():
        if module.__name__.startswith("brickprof."):
            assert f"`{module.NAME}`" in text, module.NAME
            assert all(f"`{ending}`" in text for ending in reporters.endings(module))
    commands = re.findall(r"brickprof report [^\n]*", text)
    for named in re.findall(r"(?<=-r )[\w-]+", "\n".join(commands)):
        assert reporters.named(named)
