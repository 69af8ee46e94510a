"""A diagnosis as diagnosis.json: the stable document that other programs parse.

Enters: a ``Diagnosis``. Leaves: strict JSON in ASCII, two spaces deep, with a newline at its end. ``SCHEMA`` is the
file of the JSON Schema that describes it (``brickprof report --schema`` prints it).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis

NAME, SUFFIX = "json", ".json"
SCHEMA = Path(__file__).with_name("diagnosis.schema.json")


def text(diagnosis: Diagnosis) -> str:
    return diagnosis.to_json()


def render(diagnosis: Diagnosis, console: Console) -> None:
    # Past the console's own layout: JSON must not be wrapped or styled.
    console.file.write(text(diagnosis))


REPORT = render
