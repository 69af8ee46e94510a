"""What would have caught a finding: told with the findings to fix first, and only where it says something."""

from __future__ import annotations

import pytest
from making import NAN, Made

from brickprof.diagnosis import diagnose
from brickprof.run import Run


def run_away(norm: float, steps: int = 24) -> Made:
    """Gradients of one size, then a hundred times that, then a loss that is none."""
    made = Made()
    made.owned()
    for step in range(steps):
        made.event("sampled", step, roles=["grad"])
        for block in made.numbers:
            made.sample("grad", step, block, absmax=norm)
        size = norm if step < steps - 4 else norm * 100 if step < steps - 2 else NAN
        made.step(step, loss=NAN if step == steps - 1 else 3.0 - step / 100, norm=size)
    return made


def promised(made: Made) -> list[str]:
    found = diagnose(made.run())
    assert found.findings and "notes" not in found.run
    return [finding.obligation for finding in found.findings if finding.obligation]


def test_a_bound_comes_from_the_healthy_steps():
    assert any("at most 5 " in promise for promise in promised(run_away(1.5)))


@pytest.mark.parametrize("norm", [1.2e308, 5e-324])
def test_a_bound_is_a_number(norm):
    assert not [promise for promise in promised(run_away(norm)) if " inf " in promise or " 0 " in promise]


def test_a_log_is_not_asked_for_what_it_never_measured(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {step} loss {3.0 if step < 40 else float('nan')} norm 1.0\n" for step in range(50)))
    found = diagnose(Run.from_log(log))
    assert found.verdict == "FAIL" and not any(finding.obligation for finding in found.findings)
