"""The Makefile: ``make test-gpu`` runs every file of tests that needs a GPU, and each can be skipped."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDS_ONE = re.compile(
    r"^pytestmark = pytest\.mark\.skipif\(not torch\.cuda|^if not torch\.cuda\.is_available\(\):\n +pytest\.skip", re.M
)


def test_the_gpu_target_names_all_files_that_need_one():
    recipe = re.search(r"^test-gpu:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe, "no target test-gpu"
    patterns = re.findall(r"tests/\S+\.py", recipe[1])
    named = {path.name for pattern in patterns for path in ROOT.glob(pattern)}
    texts = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    needing = {name for name, text in texts.items() if NEEDS_ONE.search(text)}
    assert len(needing) >= 5 and needing <= named
    assert all("cuda" in texts[name] and "skip" in texts[name] for name in named)


def test_every_target_is_told_by_help():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", text, re.M)
    assert phony
    for target in set(phony[1].split()) - {"help", "setup"}:
        assert f'"make {target} ' in text, target
