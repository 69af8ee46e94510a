"""Several diagnoses: a list that is a table in a notebook and a DataFrame when asked.

Enters: diagnoses. Leaves: the same list, with ways to look at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof import plugins
from brickprof.diagnosis.model import Diagnosis

if TYPE_CHECKING:
    import pandas as pd


class Diagnoses(list[Diagnosis]):
    """What ``brickprof.analyze`` gives for several runs: a list, a line a run where it is shown."""

    def to_frame(self) -> pd.DataFrame:
        """One row for each run, with the finding to fix first."""
        import pandas as pd

        frame = pd.DataFrame([_row(diagnosis) for diagnosis in self], columns=_COLUMNS)
        return frame.astype({"steps": "Int64", "first_step": "Int64"})

    # How it looks is the notebook's business, which stands to the right of this module: asked for by name.
    def _repr_html_(self) -> str:
        html: str = plugins.load("brickprof.notebook", "cards").several(self)
        return html

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        return "\n".join(map(repr, self))


_COLUMNS = ["run", "format", "steps", "verdict", "findings", "what", "cause", "confidence", "first_step"]


def _row(diagnosis: Diagnosis) -> dict[str, Any]:
    run = diagnosis.run
    row = {
        "run": run.get("name") or run.get("id"), "format": run.get("format") or run.get("source"),
        "steps": run.get("steps"), "verdict": diagnosis.verdict.value, "findings": len(diagnosis.findings),
    }  # fmt: skip
    if diagnosis.findings:
        first = diagnosis.findings[0]
        row |= {
            "what": first.symptom, "cause": first.root_cause, "confidence": first.confidence,
            "first_step": first.first_step,
        }  # fmt: skip
    return row
