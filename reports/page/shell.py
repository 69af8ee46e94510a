"""One document: style, script, data and words, under a policy that lets nothing else in.

Enters: HTML and plain data. Leaves: a page that asks nobody for anything. Its policy names the style and the script by
their hashes; the data is JSON in which no character can end the element that holds it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from brickprof.reports.page.parts import told

_HERE = Path(__file__).parent
_SCRIPTS = ("base", "lines", "heat", "depth", "budget", "timeline", "graph", "page")
_AWAY = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def document(title: str, body: str, data: Any) -> str:
    style, script = _file("page.css"), _script()
    policy = (
        f"default-src 'none'; style-src '{fingerprint(style)}'; script-src '{fingerprint(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{told(title, 160)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{sealed(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def sealed(data: Any) -> str:
    """``data`` as strict JSON in ASCII, without the characters that mean something to a page."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_AWAY)


def fingerprint(text: str) -> str:
    """The hash by which a policy knows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _script() -> str:
    """The script: one file a picture, joined in the order in which they need each other."""
    return '\n"use strict";\n(() => {' + "".join(_file(f"{name}.js") for name in _SCRIPTS) + "})();\n"


@cache
def _file(name: str) -> str:
    return "\n" + (_HERE / name).read_text("utf-8")
