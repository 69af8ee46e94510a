"""The page of ``brickprof serve``: one document for every address, its style and its script beside it.

Enters: which page. Leaves: HTML without a word of any run in it: those come as JSON, and the script writes them as
text. The look is that of the report.
"""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "page"

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
ASSETS = {
    "page.css": (_PAGE / "page.css", "text/css; charset=utf-8"),
    "live.css": (_HERE / "live.css", "text/css; charset=utf-8"),
    "live.js": (_HERE / "live.js", "text/javascript; charset=utf-8"),
}


@cache
def asset(name: str) -> tuple[bytes, str]:
    """A file of the page and its type; KeyError for any other name."""
    path, kind = ASSETS[name]
    return path.read_bytes(), kind


def document(page: str, key: str = "") -> bytes:
    """The document of ``page``: runs, run or compare."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>brickprof</title>\n'
        '<link rel="stylesheet" href="/assets/page.css">\n<link rel="stylesheet" href="/assets/live.css">\n'
        f'</head>\n<body data-page="{html.escape(page)}" data-key="{html.escape(key)}">\n'
        '<header><a class="brand" href="/">brickprof</a><span class="dim" id="about"></span>'
        '<button type="button" id="theme">Dark</button></header>\n'
        '<main id="main"><noscript>This page needs JavaScript; <code>brickprof watch</code> does not.'
        "</noscript></main>\n"
        '<script src="/assets/live.js"></script>\n</body>\n</html>\n'
    ).encode()


def message(text: str) -> bytes:
    """One sentence as a page, for what went wrong."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>brickprof</title>'
        '<link rel="stylesheet" href="/assets/page.css"></head><body><main>'
        f"<h1>{html.escape(text)}</h1></main></body></html>\n"
    ).encode()
