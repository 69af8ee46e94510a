"""``brickprof run``: what it hands to the script, what it gives back, what it refuses."""

import json
import os
import re
import signal
import sys

import launching
import pytest

from brickprof.launch import exits, folder, supervisor, target
from brickprof.launch.conclusion import exit_code
from brickprof.launch.exits import OomKills
from brickprof.settings import Settings

SHOW_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv))"


def test_arguments_are_the_scripts_own(tmp_path):
    launching.script(tmp_path, SHOW_ARGUMENTS)
    own = ["--lr", "3", "-o", "zz", "-m", "q", "--help", "--", "-c"]
    done = launching.run(["-o", "A", "t.py", *own], tmp_path)
    assert json.loads(done.stdout) == ["t.py", *own]
    assert done.returncode == 0
    assert re.fullmatch(r"t-\d{8}-\d{4}-[a-z0-9]{4}", launching.recorded(tmp_path, "A").name)


@pytest.mark.parametrize("attached", [False, True])
def test_module_and_code_take_the_rest(tmp_path, attached):
    launching.script(tmp_path, SHOW_ARGUMENTS, "mod.py")
    module = ["-mmod"] if attached else ["-m", "mod"]
    done = launching.run(["-o", "A", *module, "-o", "B", "--level", "x", "-m", "y"], tmp_path)
    assert json.loads(done.stdout)[1:] == ["-o", "B", "--level", "x", "-m", "y"]
    done = launching.run(["-o", "B", "-c", SHOW_ARGUMENTS, "--help"], tmp_path)
    assert json.loads(done.stdout) == ["-c", "--help"]
    assert launching.recorded(tmp_path, "A").name.startswith("mod-")
    assert launching.recorded(tmp_path, "B").name.startswith("code-")


def test_a_program_on_the_path(tmp_path):
    launching.script(tmp_path, SHOW_ARGUMENTS)
    text = f"#!{sys.executable}\nimport sys; print('tool', sys.argv[1:])\n"
    tool = launching.script(tmp_path, text, "tool")
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = launching.run(["-o", "A", "tool", "-o", "x"], tmp_path.parent, PATH=path)
    assert done.stdout == "tool ['-o', 'x']\n"
    done = launching.run(["-o", "A", sys.executable, "t.py", "--x"], tmp_path)
    assert json.loads(done.stdout) == ["t.py", "--x"]
    assert launching.recorded(tmp_path, "A").name.startswith("t-")


def test_a_shell_script_runs_as_one(tmp_path):
    shell = launching.script(tmp_path, f'#!/bin/sh\n{sys.executable} -c "1/0"\nexit 9\n', "go.sh")
    shell.chmod(0o755)
    done = launching.run(["go.sh"], tmp_path)
    assert done.returncode == 9
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("code", "expected", "kind"),
    [
        ("pass", 0, "ok"),
        ("1/0", 1, "failed"),
        ("import sys; sys.exit(2)", 2, "usage"),
        ("import os; os._exit(77)", 77, "failed"),
        ("import os; os.abort()", 134, "aborted"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        *(
            (f"import os; os.kill(os.getpid(), {int(number)})", 128 + number, kind)
            for number, kind in (
                (signal.SIGKILL, "killed"),
                (signal.SIGSEGV, "segmentation_fault"),
                (signal.SIGFPE, "arithmetic_error"),
                (signal.SIGBUS, "bus_error"),
                (signal.SIGTERM, "terminated"),
                (signal.SIGRTMIN + 1, "signalled"),
            )
        ),
    ],
)
def test_the_end_of_a_script_is_its_own(tmp_path, code, expected, kind):
    ended = watched(tmp_path, code)
    assert (ended.code, ended.kind) == (expected, kind)
    recorded = launching.exited(tmp_path)
    assert (recorded["code"], recorded["class"]) == (expected, kind)


def watched(tmp_path, code):
    """A run without its conclusion."""
    settings = Settings(out=str(tmp_path / "brickprof-runs"))
    wanted = target.resolve([], code=code)
    return supervisor.Watch(wanted, settings, folder.claim(wanted, settings), live=False).until_the_end()


@pytest.mark.parametrize(("code", "expected"), [("import sys; sys.exit(77)", 77), ("import os; os.abort()", 134)])
def test_the_exit_code_is_the_scripts_own(tmp_path, code, expected):
    assert launching.run(["-c", code], tmp_path).returncode == expected


def test_a_program_that_cannot_be_started_leaves_no_run(tmp_path):
    broken = launching.script(tmp_path, "#!/no/such/interpreter\n", "broken")
    broken.chmod(0o755)
    done = launching.run(["./broken"], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "broken cannot be started" in done.stderr
    assert list((tmp_path / "brickprof-runs").iterdir()) == []


def test_variables_left_behind_by_an_old_recording_do_no_harm(tmp_path):
    launching.script(tmp_path, "print('ran')")
    (tmp_path / "old").mkdir()
    done = launching.run(["t.py"], tmp_path, BRICKPROF_RUN=str(tmp_path / "old"), BRICKPROF_SETTINGS="{}")
    assert done.stdout == "ran\n"
    assert launching.recorded(tmp_path).name.startswith("t-")


def test_a_reader_that_left_changes_no_exit_code(tmp_path):
    launching.script(tmp_path, "import sys; sys.exit(6)")
    command = " ".join([*launching.COMMAND, "run", "t.py"])
    pipe = f"{command} 2>&1 | true; exit ${{PIPESTATUS[0]}}"
    assert launching.finished(["bash", "-c", pipe], tmp_path).returncode == 6
    assert launching.finished(["bash", "-c", f"{command} 2>&-"], tmp_path).returncode == 6


def test_a_silent_abort_leaves_its_stacks(tmp_path):
    launching.script(tmp_path, "import os\ndef deep():\n    os.abort()\ndeep()\n")
    done = launching.run(["t.py"], tmp_path)
    assert done.returncode == 134
    (stacks,) = launching.events(tmp_path, "stacks")
    assert "Aborted" in stacks.fields["stacks"][0]
    assert "in deep" in "".join(stacks.fields["stacks"])


def test_an_exception_is_in_the_record(tmp_path):
    launching.script(tmp_path, "def f():\n    raise ValueError('seven')\nf()\n")
    launching.run(["t.py"], tmp_path)
    (event,) = launching.events(tmp_path, "exception")
    assert (event.fields["type"], event.fields["message"]) == ("ValueError", "seven")
    assert event.fields["frames"][-1]["line"] == 2


@pytest.mark.parametrize(
    ("code", "options", "written"),
    [("1/0", [], True), ("1/0", ["--page", "never"], False), ("pass", [], False), ("pass", ["--page", "always"], True)],
)
def test_a_broken_run_leaves_a_page(tmp_path, code, options, written):
    launching.script(tmp_path, code)
    done = launching.run(["-o", "A", *options, "t.py"], tmp_path)
    folder = launching.recorded(tmp_path, "A")
    assert (folder / "report.html").exists() == written
    assert (f"A/{folder.name}/report.html" in done.stderr) == written
    assert not list(folder.glob(".report*"))


def test_output_is_passed_on_unchanged_when_piped(tmp_path):
    text = (
        "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 300)\nsys.stderr.buffer.write(b'\\x1b[31m\\r50%\\r')\n"
    )
    launching.script(tmp_path, text)
    done = launching.finished([*launching.COMMAND, "run", "t.py"], tmp_path, text=False)
    assert done.stdout == bytes(range(256)) * 300
    assert done.stderr.startswith(b"\x1b[31m\r50%\r")
    assert b"recording to" not in done.stderr


def test_a_missing_script_gets_help(tmp_path):
    launching.script(tmp_path, "", "train.py")
    done = launching.run(["trian.py"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "brickprof: there is no file trian.py here. Did you mean train.py?"
    done = launching.run(["sub/x.py"], tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, "brickprof: there is no file sub/x.py.")
    assert not (tmp_path / "brickprof-runs").exists()


def test_a_hostile_name_does_no_harm(tmp_path):
    done = launching.run(["\x1b[31mevil\n.py"], tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    name = "\x1b]0;x\x07" + "é" * 60 + ".py"
    launching.script(tmp_path, "print(1)", name)
    done = launching.run(["--name", "../../up", name], tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert launching.recorded(tmp_path).name.startswith("up-")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--level", "depp"], "Levels: light, standard, deep"),
        (["--overhead", "lots"], "share such as 1%"),
        (["--max-size", "tiny"], "size such as 256MB"),
        (["--hang", "nan"], "Give seconds"),
        (["--fail-on", "maybe"], "error"),
        (["--lvel", "deep"], "--lvel"),
        (["-m", ""], "-m"),
        ([], "nothing to run"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(tmp_path, options, complaint):
    launching.script(tmp_path, "print('ran')")
    words = [*options, "t.py"] if options and options != ["-m", ""] else options
    done = launching.run(words, tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "ran" not in done.stdout
    assert not (tmp_path / "brickprof-runs").exists()


def test_an_unwritable_folder_is_refused_before_anything_starts(tmp_path):
    launching.script(tmp_path, "print('ran')")
    done = launching.run(["-o", "t.py/runs", "t.py"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot record to t.py/runs" in done.stderr
    done = launching.run(["-o", "/proc/runs", "t.py"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_existing_runs_are_never_touched(tmp_path):
    launching.script(tmp_path, "")
    for _ in range(2):
        launching.run(["-o", "A", "t.py"], tmp_path)
    runs = sorted((tmp_path / "A").iterdir())
    assert len(runs) == 2
    assert all((run / "meta.json").exists() for run in runs)


def test_a_full_disk_later_stops_the_record_and_not_the_script(tmp_path):
    text = "import os, shutil\nshutil.rmtree(os.environ['BRICKPROF_RUN'])\nprint('done')\n"
    launching.script(tmp_path, text)
    done = launching.run(["t.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "Traceback" not in done.stderr


def test_inside_another_recording_it_steps_aside(tmp_path):
    launching.script(tmp_path, "print('in'); raise SystemExit(5)")
    command = " ".join([*launching.COMMAND, "run", "t.py"])
    outer = f"import os; raise SystemExit(os.waitstatus_to_exitcode(os.system('{command}')))"
    done = launching.run(["-c", outer], tmp_path)
    assert (done.returncode, done.stdout) == (5, "in\n")
    assert len(list((tmp_path / "brickprof-runs").iterdir())) == 1


def test_no_heavy_import_before_the_script_has_ended(tmp_path):
    """The supervisor shares the machine with the training: it must be small while that runs."""
    code = (
        "import os, pathlib\n"
        "maps = pathlib.Path(f'/proc/{os.getppid()}/maps').read_text()\n"
        "print([name for name in ('libarrow', 'pandas', 'numpy', 'libtorch') if name in maps])\n"
    )
    launching.script(tmp_path, code)
    assert launching.run(["t.py"], tmp_path).stdout == "[]\n"


def test_out_of_memory_is_told_from_a_plain_kill():
    killed = signal.SIGKILL
    assert exits.classify(killed, OomKills(1, 1)).kind == "out_of_memory"
    assert "probably" in exits.classify(killed, OomKills(0, 1)).text
    assert exits.classify(killed, OomKills()).kind == "killed"
    assert exits.classify(killed, OomKills(1, 1), ours=True).kind == "interrupted"
    assert OomKills(5, 7) - OomKills(5, 6) == OomKills(0, 1)


@pytest.mark.parametrize(
    ("script", "severity", "fail_on", "expected"),
    [
        (0, "error", "never", 0),
        (0, "error", "error", 1),
        (0, "warning", "error", 0),
        (0, "warning", "warning", 1),
        (0, "info", "warning", 0),
        (7, "error", "error", 7),
    ],
)
def test_fail_on(script, severity, fail_on, expected):
    assert exit_code(script, {"findings": [{"severity": severity}]}, fail_on) == expected
