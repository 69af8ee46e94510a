"""The pictures of the README: the drawing of a terminal says what the report says, and asks nobody for a font."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from making import NAN, Made

from brickprof.diagnosis import diagnose

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "benchmarks" / "picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(svg: str) -> str:
    lines = [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]
    return " ".join(" ".join(lines).replace("\xa0", " ").split())


def test_the_terminal_is_drawn_without_the_fonts_of_others(picture):
    made = Made()
    made.healthy(5)
    made.event("loss", 5, value=NAN)
    found = diagnose(made.run())
    svg = picture.terminal_svg(found)
    assert "FAIL" in words(svg) and found.findings[0].contract in words(svg)
    assert "@font-face" not in svg and not re.search(r"url\((?!#)", svg)


@pytest.mark.parametrize("name", ["report.png", "terminal.svg"])
def test_the_pictures_are_there_and_small_and_show_no_paths_of_a_machine(picture, name):
    content = (ROOT / "docs" / name).read_bytes()
    assert 5_000 < len(content) <= picture.MOST_BYTES
    assert content.startswith(b"\x89PNG") if name.endswith("png") else picture.SCRIPT in html.unescape(content.decode())
    assert not re.search(rb"/(?:home|root|tmp|work)/", content)
