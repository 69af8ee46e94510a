"""Torch in the place of a kernel of ours: told in the report, by ``show`` and on the page, in words, and escaped."""

from __future__ import annotations

import html
import io

import pytest
from making import Made
from rich.console import Console

from brickprof.diagnosis import diagnose
from brickprof.reports import fallbacks, overview, terminal
from brickprof.reports import html as page

MISSING = {
    "operation": "statistics", "reason": "ModuleNotFoundError: No module named 'triton'",
    "instead": "torch's foreach calls",
}  # fmt: skip
SAID = "statistics by torch's foreach calls: Triton is not installed"


def made(*told: dict[str, str], broken: bool = False) -> Made:
    run = Made()
    run.owned()
    for fields in told:
        run.event("fallback", 3, **fields)
    run.healthy(40)
    if broken:
        run.step(40, loss=float("nan"))
    return run


def shown(diagnosis, report) -> str:
    stream = io.StringIO()
    report.render(diagnosis, Console(file=stream, width=400))
    return stream.getvalue()


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_one_line_in_the_report_in_show_and_on_the_page(broken):
    run = made(MISSING, MISSING, broken=broken).run()
    found = diagnose(run)
    for report in (terminal, overview):
        assert shown(found, report).count(SAID) == 1
    assert html.unescape(page.text(found, run)).count(SAID) == 1


def test_a_run_whose_kernels_ran_says_nothing_of_it():
    run = made().run()
    found = diagnose(run)
    assert "fallbacks" not in found.run and fallbacks.lines(found.run) == []
    assert "foreach" not in shown(found, overview) + page.text(found, run)


@pytest.mark.parametrize(("device", "told"), [("cpu", 1), ("cuda:0", 0), (None, 0)])
def test_that_there_is_no_gpu_for_kernels_is_told_where_everything_is(device, told):
    run = made()
    for event in run.records:
        if getattr(event, "kind", "") == "tensor" and device:
            event.fields["device"] = device
    found = diagnose(run.run())
    said = "statistics by torch's foreach calls: no GPU is used"
    assert shown(found, overview).count(said) == told
    assert said not in shown(found, terminal), "one line of a healthy run has no room for it"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reason": "a tensor of torch.float64"}, "statistics by torch's foreach calls: a tensor of torch.float64"),
        ({"reason": "no thread to compile on"}, "no thread was there to compile Triton's kernels on"),
        (
            {"reason": "ImportError: libtriton.so: triton is broken"},
            "Triton cannot be imported (ImportError: libtriton",
        ),
        ({"reason": "RuntimeError: no\n\n     C compiler"}, ": RuntimeError: no C compiler"),
        ({"operation": "rmsnorm", "instead": None, "reason": "no CUDA"}, "rmsnorm by torch: no CUDA"),
    ],
)
def test_the_reason_is_told_in_words(fields, says):
    (line,) = fallbacks.lines(diagnose(made({**MISSING, **fields}).run()).run)
    assert says in line and "\n" not in line and "    " not in line


def test_operations_that_lack_the_same_thing_share_a_line():
    other = {**MISSING, "operation": "nonfinite", "instead": "a sum of each block's output in sampled steps"}
    (line,) = fallbacks.lines(diagnose(made(MISSING, other).run()).run)
    assert line.startswith("statistics by torch's foreach calls, blocks that are not finite by a sum of")
    assert line.endswith(": Triton is not installed")


def test_a_hostile_reason_is_shown_and_not_executed():
    run = made({**MISSING, "reason": "<script>alert(1)</script>\x1b[31m\u202e"}, broken=True).run()
    found = diagnose(run)
    text = page.text(found, run)
    assert "&lt;script&gt;alert(1)" in text and "<script>alert(1)" not in text and "\x1b" not in text
    assert "\x1b[31m" not in shown(found, terminal)


@pytest.mark.parametrize("foreign", [None, 3, "x", [None, 3, "x"], [{}], [{"operation": 3, "reason": []}], {"a": 1}])
def test_facts_from_elsewhere_do_no_harm(foreign):
    assert all(isinstance(line, str) for line in fallbacks.lines({"fallbacks": foreign}))
