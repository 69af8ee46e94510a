"""Command lines that the script reads itself: what ``argparse`` gave it, defaults and all.

Enters: calls. Leaves: a ``stated`` fact with the plain values, also from before the training began.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from brickprof.capture import hub
from brickprof.capture.plain import settings
from brickprof.capture.taps import Replace

_MOST_FACTS = 4
_told = 0


def install(replace: Replace) -> None:
    replace(argparse.ArgumentParser, "parse_known_args", _parsing)


def _parsing(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _told
        result = original(self, *args, **kwargs)
        if _told < _MOST_FACTS and hub.wanted():
            _told += 1
            with contextlib.suppress(Exception):
                hub.fact("stated", {"source": "argparse", "values": settings(result[0])})
        return result

    return call
