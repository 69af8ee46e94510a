"""A recorded process is the process it would have been: same output, same errors, same exit."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from brickprof.capture import boot
from brickprof.journal import read_events
from brickprof.launch.child import SITE, variables
from brickprof.launch.folder import Place
from brickprof.settings import Settings

SCRIPTS = {
    "fine": "print('hello')",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('bad') from e\n",
    "context": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('bad')\n",
    "group": "raise ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "notes": "e = ValueError('x')\ne.add_note('a note')\nraise e",
    "syntax error": "print('a')\nx = = 3\n",
    "indentation error": "if True:\nprint(1)\n",
    "bad encoding": "# caf\udce9\nprint('x')\n",
    "exit 3": "import sys; sys.exit(3)",
    "exit 300": "import sys; sys.exit(300)",
    "exit text": "import sys; sys.exit('good bye')",
    "exit none": "import sys; sys.exit(None)",
    "exit now": "import os; os._exit(5)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "real interrupt": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "abort": "import os\nos.abort()\n",
    "segmentation fault": "import ctypes\nctypes.string_at(0)\n",
    "import error": "import no_such_module_anywhere",
    "no torch": "import sys\nsys.modules['torch'] = None\nimport torch\n",
    "recursion": "def f():\n    f()\nf()\n",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno)\n1/0\n",
    "bad excepthook": "import sys\ndef hook(*a): raise OSError('in hook')\nsys.excepthook = hook\n1/0\n",
    "at exit": "import atexit\natexit.register(lambda: print('bye'))\nraise SystemExit(4)\n",
    "thread": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()\n1/0\n"
    ),
    "thread error": "import threading as t\nx = t.Thread(target=lambda: 1/0); x.start(); x.join()\n",
    "unraisable": "class A:\n    def __del__(self): 1/0\na = A()\ndel a\n",
    "main module": (
        "import sys, json\n"
        "m = sys.modules['__main__']\n"
        "print(sys.argv, sys.path, m.__dict__ is globals(), sorted(globals()))\n"
        "print(__name__, __file__, __spec__, __builtins__, __package__, __doc__, __cached__)\n"
        "print(type(__loader__).__name__, sys.flags, 'sitecustomize' in sys.modules, sys.stdin.isatty())\n"
        "print(sys.warnoptions, sys._xoptions, sys.orig_argv, sys.excepthook is sys.__excepthook__)\n"
    ),
    "reflection": (
        "import inspect, dataclasses, typing, pickle\n"
        "@dataclasses.dataclass\n"
        "class Config:\n    lr: 'float' = 3.0\n"
        "print(inspect.getsource(Config), typing.get_type_hints(Config))\n"
        "print(pickle.loads(pickle.dumps(Config(2.0))), Config.__module__)\n"
    ),
    "first file": "print(open(__file__).fileno())",
    "warning": "import warnings\nwarnings.warn('careful', DeprecationWarning)\n",
    "exec": (
        "import os, sys\n"
        "if len(sys.argv) < 4: os.execv(sys.executable, [sys.executable, *sys.argv, 'x'])\n"
        "print(sys.argv)\n"
    ),
    "fork": (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if not pid:\n    print('child', flush=True); sys.exit(3)\n"
        "print(os.waitpid(pid, 0)[1])\n"
    ),
}

SPAWNING = """
import multiprocessing as mp
from dataclasses import dataclass

@dataclass
class Job:
    n: int

def work(job):
    return Job(job.n * 2), __name__

if __name__ == "__main__":
    with mp.get_context("{method}").Pool(1) as pool:
        print(pool.map(work, [Job(3)]))
"""


@pytest.fixture
def recorded(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("BRICKPROF", "PYTHON"))}
    return bare, variables(bare, Place(run, "abcd"), Settings())


def started(arguments, environment, cwd=None, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )


def both(recorded, arguments, cwd, **options):
    """The same command, plain and recorded."""
    bare, ours = recorded
    results = []
    for environment in (bare, ours):
        done = started(arguments, environment, cwd, **options)
        results.append((done.returncode, done.stdout, re.sub(rb"0x[0-9a-f]+", b"0x", done.stderr)))
    return results


def assert_same(recorded, arguments, cwd, **options):
    plain, watched = both(recorded, arguments, cwd, **options)
    assert watched == plain
    return plain


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_cannot_tell(name, recorded, tmp_path):
    (tmp_path / "t.py").write_bytes(SCRIPTS[name].encode("utf-8", "surrogateescape"))
    assert_same(recorded, ["t.py", "--lr", "3"], tmp_path)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_worker_processes_find_main(method, recorded, tmp_path):
    (tmp_path / "t.py").write_text(SPAWNING.format(method=method))
    code, out, _ = assert_same(recorded, ["t.py"], tmp_path)
    assert code == 0
    assert b"Job(n=6)" in out


def test_script_in_another_folder_and_through_a_link(recorded, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "near.py").write_text("print('near')")
    (tmp_path / "sub" / "t.py").write_text("import sys, near; print(sys.path, sys.argv, __file__)")
    (tmp_path / "link.py").symlink_to("sub/t.py")
    assert assert_same(recorded, ["sub/t.py"], tmp_path)[0] == 0
    assert assert_same(recorded, ["link.py"], tmp_path)[0] == 0


def test_module_code_folder_and_archive(recorded, tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(sys.argv, __spec__.name, sys.path); 1 / 0")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(package / "__main__.py", "__main__.py")
    for arguments in (
        ["-m", "pack", "-o", "x"],
        ["-m", "nothing.here"],
        ["-m", "json.tool", "--help"],
        ["-c", "import sys; print(sys.argv, sys.path); 1/0", "-o", "x"],
        ["-c", "x = = 1"],
        ["app.zip", "a"],
        ["pack", "a"],
        ["."],
        ["-"],
    ):
        assert_same(recorded, arguments, tmp_path, input=b"print('from stdin', 1/0)")


def test_the_paths_of_a_user_stay(recorded, tmp_path):
    bare, ours = recorded
    bare["PYTHONPATH"] = f"{tmp_path}/lib:"
    ours.update(variables(bare, Place(Path(ours[boot.RUN_VARIABLE]), "abcd"), Settings()))
    (tmp_path / "t.py").write_text("import sys; print(sys.path)")
    assert_same((bare, ours), ["t.py"], tmp_path)


def test_another_sitecustomize_still_runs(recorded, tmp_path):
    bare, _ = recorded
    (tmp_path / "lib").mkdir()
    site = tmp_path / "lib" / "sitecustomize.py"
    bare["PYTHONPATH"] = str(tmp_path / "lib")
    ours = variables(bare, Place(tmp_path / "run", "abcd"), Settings())
    (tmp_path / "t.py").write_text("import sitecustomize; print(sitecustomize.__file__, sitecustomize.HERE)")
    site.write_text("HERE = 'theirs'\nprint('customised')")
    assert assert_same((bare, ours), ["t.py"], tmp_path)[0] == 0
    site.write_text("HERE = 1 / 0")
    assert assert_same((bare, ours), ["-c", "print(1)"], tmp_path)[0] == 0
    site.write_text("import nothing_of_that_name")
    assert_same((bare, ours), ["-c", "print(1)"], tmp_path)


def test_a_recording_that_cannot_start_is_silent(recorded, tmp_path):
    _, ours = recorded
    copy = tmp_path / "else" / "where" / "deep" / "site"
    copy.mkdir(parents=True)
    (copy / "sitecustomize.py").write_text((SITE / "sitecustomize.py").read_text())
    hiding = tmp_path / "hide" / "brickprof"
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text("1 / 0")
    ours["PYTHONPATH"] = f"{copy}:{hiding.parent}"
    done = started(["-c", "print(1)"], ours)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


def test_a_process_that_never_trains_leaves_nothing(recorded, tmp_path):
    _, ours = recorded
    for main in ("1", ""):
        ours[boot.MAIN_VARIABLE] = main
        assert started(["-c", "print(1)"], ours).returncode == 0
    assert os.listdir(tmp_path / "run") == []


def test_the_exception_is_journaled_without_torch(recorded, tmp_path):
    _, ours = recorded
    started(["-c", "1/0"], ours)
    events, _ = read_events(tmp_path / "run" / "process.jsonl")
    assert [(event.kind, event.fields["type"]) for event in events] == [("exception", "ZeroDivisionError")]


def test_a_crash_leaves_its_stacks_in_the_run(recorded, tmp_path):
    _, ours = recorded
    code = "def dying():\n    import os; os.abort()\ndying()"
    done = started(["-c", code], ours)
    assert (done.returncode, done.stderr) == (-6, b"")
    (stacks,) = (tmp_path / "run").glob("stacks-*.txt")
    assert "Fatal Python error: Aborted" in stacks.read_text()
    assert "in dying" in stacks.read_text()


def test_a_user_of_faulthandler_gets_his_way(recorded, tmp_path):
    abort = "import os, faulthandler; os.abort()"
    for arguments in (
        ["-X", "faulthandler", "-c", abort],
        ["-c", abort.replace("; ", "; faulthandler.enable(); ")],
    ):
        (_, _, plain), (_, _, watched) = both(recorded, arguments, tmp_path)
        assert b"Fatal Python error: Aborted" in plain
        assert b"Fatal Python error: Aborted" in watched


def test_torch_is_what_arms(recorded, tmp_path):
    """With a torch of three lines: capture is asked for when it is imported, and fails without a word."""
    _, ours = recorded
    (tmp_path / "torch.py").write_text("__version__ = '0'\n")
    code = "import sys; before = 'brickprof.capture.arm' in sys.modules\n"
    code += "import torch; print(before, 'brickprof.capture.arm' in sys.modules, torch.__version__)"
    done = started(["-c", code], ours, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"False True 0\n", b"")


def test_only_the_first_process_is_the_main_one(recorded, tmp_path):
    _, ours = recorded
    code = (
        "import json, os, subprocess, sys\n"
        "from brickprof.capture import boot\n"
        "mine = boot._process.main\n"
        "below = 'from brickprof.capture import boot; print(boot._process.main)'\n"
        "told = subprocess.check_output([sys.executable, '-c', below], text=True)\n"
        "print(json.dumps([mine, told.strip()]))\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], env=ours, timeout=60)
    assert json.loads(out) == [True, "False"]
