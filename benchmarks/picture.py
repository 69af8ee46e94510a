"""The two pictures of the README, made from a real run: `python benchmarks/picture.py`.

Enters: `examples/broken_gpt.py`, recorded now, or a run that is there already. Leaves: `docs/report.png`, the top of
its web page in Chromium, and `docs/terminal.svg`, its report on a terminal. Both ask nobody for anything: the page has
no network, and the drawing of the terminal has no fonts of others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from brickprof.diagnosis import Diagnosis, diagnose  # noqa: E402
from brickprof.reports import html  # noqa: E402
from brickprof.run import Run  # noqa: E402

SCRIPT = "examples/broken_gpt.py"
MOST_BYTES = 300_000
WIDTH, HEIGHT, COLUMNS = 1440, 1060, 118
_FONT_FACES = re.compile(r"@font-face {{.*?}}\s*", re.DOTALL)  # a template: braces stand twice
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def record() -> Path:
    """Runs a copy of the example, which breaks, in this folder; its own output is not part of the picture."""
    shutil.copytree((ROOT / SCRIPT).parent, Path(SCRIPT).parent)
    command = [sys.executable, "-m", "brickprof", "run", SCRIPT]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    made = sorted(Path().glob("brickprof-runs/*/meta.json"))
    if not made:
        raise SystemExit(f"{SCRIPT} left no run; try: brickprof run {SCRIPT}")
    return made[-1].parent


def terminal_svg(diagnosis: Diagnosis, columns: int = COLUMNS) -> str:
    """The report as a terminal shows it, drawn by rich, in whatever monospaced font the reader has."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console

    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(diagnosis)
    form = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code,", "ui-monospace, Menlo, Consolas,")
    return console.export_svg(title=f"brickprof run {SCRIPT}", code_format=form, unique_id="brickprof")


def screenshot(page: Path, file: Path) -> None:
    """The top of ``page`` as a picture."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"no Chromium here (looked for {', '.join(_BROWSERS)}); the page itself is {page}")
    with tempfile.TemporaryDirectory(prefix="picture-") as profile:
        subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={file}", page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="draw this run instead of recording one")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs", metavar="FOLDER")
    args = parser.parse_args()
    out, given = args.out.resolve(), args.run.resolve() if args.run else None
    terminal, report = out / "terminal.svg", out / "report.png"
    # In a folder of its own, so that the pictures show the paths that a reader would see, not this machine's.
    with tempfile.TemporaryDirectory(prefix="picture-") as scratch, contextlib.chdir(scratch):
        run = Run.open(given or record())
        found, page = diagnose(run), Path("report.html")
        page.write_text(html.text(found, run), "utf-8")
        terminal.write_text(terminal_svg(found), "utf-8")
        screenshot(page.resolve(), report)
    for file in (terminal, report):
        size = file.stat().st_size
        print(f"{file}: {size:,} bytes{'' if size <= MOST_BYTES else f', more than {MOST_BYTES:,}'}")


if __name__ == "__main__":
    main()
