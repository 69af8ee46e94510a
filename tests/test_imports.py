"""Who may import whom: both lines of the architecture, held by reading the source."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "brickprof"

BASE = {"bricks", "clock", "errors", "kernel_names", "plugins", "pulse", "records", "settings", "text"}
STORE = BASE | {"journal"}
CAPTURE = STORE | {"capture", "kernels", "operators", "probes"}
READ = STORE | {"logs", "run"}
JUDGE = READ | {"contracts", "rules"}
SHOW = JUDGE | {"diagnosis", "reports", "telemetry"}

MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "journal": STORE,
    **dict.fromkeys(("capture", "kernels", "operators", "probes"), CAPTURE),
    **dict.fromkeys(("logs", "run"), READ),
    **dict.fromkeys(("contracts", "rules"), JUDGE),
    "diagnosis": JUDGE | {"diagnosis"},
    **dict.fromkeys(("reports", "telemetry"), SHOW),
}
"""What each part of the package may import; launch, cli and the public face stand at the end of the line."""

NOT_IN_CAPTURE = frozenset({"opentelemetry", "pandas", "pyarrow", "rich", "typer"})
NOT_IN_ANALYSIS = frozenset({"torch", "triton"})
FOREIGN_REFUSED = {
    **dict.fromkeys(BASE | {"capture", "kernels", "operators", "probes"}, NOT_IN_CAPTURE),
    "journal": NOT_IN_CAPTURE - {"pyarrow"},
    **dict.fromkeys(SHOW - STORE | {"analysis", "launch", "live", "notebook"}, NOT_IN_ANALYSIS),
}


def imported_modules(tree: ast.AST, module: str) -> Iterator[tuple[str, int]]:
    """Every module named by an import statement anywhere in ``tree``, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = module.split(".")[: -node.level]
                base = ".".join([*parent, base] if base else parent)
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def complaints(source: str, module: str) -> list[str]:
    """What is wrong with the imports of ``source``, were it the module ``module`` of the package."""
    part = module.split(".")[1]
    found = set()
    for name, line in imported_modules(ast.parse(source), module):
        first, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if first == "brickprof" and (PACKAGE / target).exists() | (PACKAGE / f"{target}.py").exists():
            if target and target not in MAY_IMPORT.get(part, {target}) | {part}:
                found.add(f"{module}:{line} imports brickprof.{target}")
        elif first in FOREIGN_REFUSED.get(part, ()):
            found.add(f"{module}:{line} imports {first}")
    return sorted(found)


def modules() -> dict[str, Path]:
    return {
        ".".join(["brickprof", *path.relative_to(PACKAGE).with_suffix("").parts]): path
        for top in (PACKAGE, *(PACKAGE / link for link in ("kernels", "probes", "reports")))
        for path in sorted(top.rglob("*.py"))
    }


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module):
    assert complaints(modules()[module].read_text("utf-8"), module) == []


def test_every_folder_was_read():
    parts = {module.split(".")[1] for module in modules()}
    assert {"bricks", "capture", "probes", "reports", "telemetry", "cli"} <= parts


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("brickprof.records", "import brickprof.telemetry", "imports brickprof.telemetry"),
        ("brickprof.capture.x", "from brickprof.rules import engine", "imports brickprof.rules"),
        ("brickprof.capture.x", "def f():\n    from brickprof import run", "imports brickprof.run"),
        ("brickprof.probes.x", "from ..telemetry import export", "imports brickprof.telemetry"),
        ("brickprof.rules.x", "from brickprof.capture import steps", "imports brickprof.capture"),
        ("brickprof.diagnosis.x", "from brickprof.telemetry import ids", "imports brickprof.telemetry"),
        ("brickprof.telemetry.x", "from brickprof.cli import app", "imports brickprof.cli"),
        ("brickprof.probes.x", "def f():\n    import pandas as pd", "imports pandas"),
        ("brickprof.capture.x", "import pyarrow.ipc", "imports pyarrow"),
        ("brickprof.capture.x", "from opentelemetry import trace", "imports opentelemetry"),
        ("brickprof.journal", "import rich.console", "imports rich"),
        ("brickprof.telemetry.x", "from torch import nn", "imports torch"),
        ("brickprof.launch.x", "import torch", "imports torch"),
    ],
)  # fmt: skip
def test_a_wrong_import_is_caught(module, line, complaint):
    assert [text.split(" ", 1)[1] for text in complaints(line, module)] == [complaint]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("brickprof.capture.x", "import torch\nfrom brickprof import text"),
        ("brickprof.telemetry.x", "import opentelemetry\nfrom . import ids"),
        ("brickprof.cli.x", "import torch\nfrom brickprof.telemetry import export"),
        ("brickprof.journal", "def f():\n    import pyarrow as pa"),
    ],
)
def test_a_right_import_is_left_alone(module, line):
    assert complaints(line, module) == []


HEAVY = ("opentelemetry", "pandas", "pyarrow", "rich.markdown", "torch")


def loaded_after(statements: str) -> set[str]:
    """Which heavy modules a fresh interpreter holds after ``statements``."""
    program = (
        "import atexit, json, sys\n"
        f"atexit.register(lambda: print('\\n' + json.dumps([m for m in {HEAVY!r} if m in sys.modules])))\n"
        f"{statements}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statements",
    [
        "import brickprof",
        "import brickprof.telemetry",
        "import sys; sys.argv[1:] = ['--help']\nfrom brickprof.cli.app import main; sys.exit(main())",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(statements):
    assert loaded_after(statements) == set()


def test_a_heavy_import_is_seen():
    assert loaded_after("import opentelemetry.sdk.trace") == {"opentelemetry"}
