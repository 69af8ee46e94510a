"""A training run by a test: started under brickprof's supervisor, in a child, and what may be asserted of it.

Enters: the words behind ``brickprof run``. Leaves: a ``Training``: exit code, output, the recorded run, its diagnosis,
and assertions whose messages carry the whys. Nothing of torch or pandas is imported here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from brickprof.errors import UnreadableInput
from brickprof.text import clean, file_name

if TYPE_CHECKING:
    from brickprof.contracts.verdicts import ContractResult
    from brickprof.diagnosis import Diagnosis, Finding
    from brickprof.run import Run

OUTPUT = "output.txt"
_TAIL = 20
_REPORT = re.compile(r"\S (PASS|FAIL|VACUOUS|NOT_EVALUATED)\b")
"""How brickprof's own report begins: what it says is told already."""
_MOST_TOLD = 2
_GRACE = 15.0
"""Seconds for the supervisor to stop its script and judge what was recorded."""
_OURS = ("BRICKPROF_RUN", "BRICKPROF_SETTINGS")
"""Of a supervisor around the tests themselves: the training gets a run of its own."""


class Broken(AssertionError):
    """A training that is not as it should be; the message has the whys."""

    __module__ = "brickprof"  # pytest puts the name before the message, and cuts its summary short


class Watched:
    """A run that assertions are made of. Each says what was expected, what was seen, and the whys behind it."""

    def __init__(self, folder: Path, diagnosis: Diagnosis | None = None) -> None:
        self.folder = folder
        self._diagnosis = diagnosis

    @cached_property
    def run(self) -> Run:
        """What was recorded, as tables."""
        from brickprof.run import Run

        return Run.open(self.folder)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        from brickprof.diagnosis import Diagnosis, diagnose

        if self._diagnosis is not None:
            return self._diagnosis
        try:
            return Diagnosis.read(self.folder / "diagnosis.json")
        except UnreadableInput:
            return diagnose(self.run)

    def renew(self) -> None:
        """The run went on: what was asked of it so far is asked again."""
        for known in ("run", "diagnosis"):
            vars(self).pop(known, None)

    @property
    def passed(self) -> bool:
        """Whether something was judged, and nothing of it was broken."""
        return self.diagnosis.verdict == "PASS"

    @property
    def steps(self) -> int:
        told = self.diagnosis.run.get("steps")
        return told if isinstance(told, int) else 0

    def contract(self, identifier: str) -> ContractResult | None:
        return next((result for result in self.diagnosis.contracts if result.id == identifier), None)

    def assert_contract(self, identifier: str) -> None:
        """``identifier`` was judged and held. Not judged, or nothing to judge, is not held."""
        __tracebackhide__ = True
        result = self.contract(identifier)
        if result is None:
            raise self._failure(f"{clean(identifier)} was not judged: no contract of that name is known to this run.")
        if result.verdict == "PASS":
            return
        if result.verdict == "FAIL":
            seen = result.why or f"{result.observed}, where {result.threshold} is asked for"
            raise self._failure(f"{result.id} is broken: {clean(seen)}.", self._about(identifier))
        missing = clean(result.why) or "nothing was recorded that would decide it"
        raise self._failure(
            f"{result.id} is {result.verdict}, and that is no pass: {missing}.\n"
            "The training of this test has to exercise it: the same settings, enough steps, the same data path."
        )

    def assert_not_found(self, root_cause: str) -> None:
        """No finding has ``root_cause``."""
        __tracebackhide__ = True
        found = [finding for finding in self._serious() if finding.root_cause == root_cause]
        if found:
            raise self._failure(f"{clean(root_cause)} is back, in step {found[0].first_step:,}.", found)

    def assert_clean(self, *, warnings: bool = True) -> None:
        """Something was judged, nothing was broken; with ``warnings=False`` only errors count."""
        __tracebackhide__ = True
        found = [finding for finding in self._serious() if warnings or finding.severity == "error"]
        if found:
            raise self._failure(_many(found), found)
        if self.diagnosis.verdict in ("VACUOUS", "NOT_EVALUATED"):
            raise self._failure(f"the run is {self.diagnosis.verdict}: there was no training to judge.")
        if self.diagnosis.verdict == "FAIL" and warnings:
            broken = ", ".join(result.id for result in self.diagnosis.contracts if result.verdict == "FAIL")
            raise self._failure(f"broken: {clean(broken)}.")

    def assert_reached(self, steps: int) -> None:
        """The training made at least ``steps`` steps."""
        __tracebackhide__ = True
        if self.steps < steps:
            raise self._failure(
                f"the training made {self.steps:,} steps, and what this test is about shows after {steps:,}.\n"
                f"Let it make {steps:,}, or fewer only if you know that they are enough."
            )

    def _serious(self) -> list[Finding]:
        return [finding for finding in self.diagnosis.findings if finding.severity != "info"]

    def _about(self, contract: str) -> list[Finding]:
        """The finding that has to do with a broken contract; else the first."""
        found = self._serious()
        mine = [each for each in found if each.contract == contract or any(contract in text for text in each.follows)]
        return mine or found[:1]

    def _failure(self, said: str, findings: Sequence[Finding] = (), *more: str) -> Broken:
        parts = [said, *(_told(finding) for finding in findings[:_MOST_TOLD]), *more, f"recorded in {self.folder}"]
        return Broken("\n\n".join(part for part in parts if part))

    def __repr__(self) -> str:
        found = self._serious()
        told = f": {clean(found[0].symptom, limit=120)} ({clean(found[0].root_cause)})" if found else ""
        return f"<{type(self).__name__} {self.diagnosis.verdict}{told}; recorded in {self.folder}>"


class Training(Watched):
    """A script that was trained under watch, in a child."""

    def __init__(
        self, folder: Path, exit_code: int, *, output: Path | None = None, timed_out: float | None = None,
        diagnosis: Diagnosis | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, diagnosis)
        self.exit_code = exit_code
        self.timed_out = timed_out
        """The seconds after which it was stopped; None when it ended by itself."""
        self._output = output

    @cached_property
    def output(self) -> str:
        """What the script and brickprof said."""
        if self._output is None:
            return ""
        with contextlib.suppress(OSError):
            return self._output.read_text("utf-8", "replace")
        return ""

    def assert_finished(self) -> None:
        """The script came to its end by itself, with exit code 0."""
        __tracebackhide__ = True
        if self.timed_out is not None:
            said = f"the training was stopped after {self.timed_out:g} s. Make it shorter, or give timeout=."
            raise self._failure(said, (), self._tail())
        if self.exit_code:
            said = f"the script ended with exit code {self.exit_code}."
            raise self._failure(said, self._serious()[:1], self._tail())

    def _tail(self) -> str:
        lines = self.output.splitlines()
        report = [place for place, line in enumerate(lines) if _REPORT.match(line)]
        lines = lines[: report[-1] if report else None][-_TAIL:]
        shown = "\n".join(f"  | {clean(line, limit=200)}" for line in lines)
        return f"the end of its output:\n{shown}" if lines else ""


def _many(findings: Sequence[Finding]) -> str:
    return "the run has a finding." if len(findings) == 1 else f"the run has {len(findings)} findings."


def _told(finding: Finding) -> str:
    """A finding with its whys, as plain text."""
    from brickprof.diagnosis.words import words

    where = f"step {finding.first_step:,}" + (f", {clean(finding.brick)}" if finding.brick else "")
    sure = f"{clean(finding.root_cause)}, {100 * finding.confidence:.0f} %"
    lines = [
        f"{clean(finding.id)}  {clean(finding.symptom)} ({clean(finding.contract)}, {where})",
        f"    cause: {clean(words(finding.root_cause))} ({sure})",
    ]
    for place, why in enumerate(finding.whys, start=1):
        evidence = f"  [{', '.join(clean(each) for each in why.evidence[:2])}]" if why.evidence else ""
        lines.append(f"    {place}  {clean(why.question)} {clean(why.finding)}{evidence}")
    return "\n".join([*lines, f"    do: {clean(finding.action)}"] if finding.action else lines)


@dataclass(frozen=True, slots=True)
class Order:
    """What to train, and how."""

    words: tuple[str, ...]
    cwd: Path
    level: str = ""
    config: str = ""
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, out: Path) -> list[str]:
        options = ["--no-live", "-o", str(out)]
        options += ["--level", self.level] if self.level else []
        options += ["--config", self.config] if self.config else []
        return [sys.executable, "-m", "brickprof", "run", *options, *self.words]


class NotStarted(Exception):
    """The script never began, so that there is no run to speak of."""


def train(order: Order, out: Path) -> Training:
    """Runs ``order`` below ``out``, a folder of its own, and waits for its end."""
    environment = {name: value for name, value in os.environ.items() if name not in _OURS} | dict(order.environment)
    output = out / OUTPUT
    with output.open("wb") as stream:
        child = _started(order, out, environment, stream)
        try:
            code = child.wait(order.timeout)
            stopped = None
        except subprocess.TimeoutExpired:
            code, stopped = _stop(child), order.timeout
        except BaseException:  # an interrupted test leaves no training behind
            _stop(child)
            raise
    runs = [folder for folder in out.iterdir() if (folder / "meta.json").is_file()]
    if not runs:
        said = clean(output.read_text("utf-8", "replace"), limit=2000, one_line=False).strip()
        raise NotStarted(f"nothing was recorded (exit code {code}):\n{said}")
    return Training(runs[0], code, output=output, timed_out=stopped)


def _started(order: Order, out: Path, environment: dict[str, str], stream: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        # A session of its own: whatever the training starts can be stopped with it.
        return subprocess.Popen(
            order.command(out), cwd=order.cwd, env=environment, stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NotStarted(f"{order.cwd} is no folder to start in: {error.strerror}.") from None


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Asks the supervisor, which asks the script; then nobody is asked any more."""
    child.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_GRACE)
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def recorded(folder: Path, start: Path) -> Training:
    """A run that lies there already, judged on the terms of the project around ``start``."""
    from brickprof import settings
    from brickprof.contracts.terms import Terms
    from brickprof.diagnosis import diagnose
    from brickprof.run import Run

    run = Run.open(folder)
    diagnosis = diagnose(run, Terms.of(settings.load(start=start)))
    launch = next((part for part in run.parts if part.rank < 0), None)
    codes = [event.fields.get("code") for event in launch.events if event.kind == "exited"] if launch else []
    code = next((code for code in reversed(codes) if isinstance(code, int)), 0)
    return Training(run.path or folder, code, diagnosis=diagnosis)


def room(parent: Path, test: str) -> Path:
    """A new folder for one training of ``test``."""
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{file_name(test)}-", dir=parent))
