"""From a run to two files in the user's repository: decided first, shown, and only then written.

Enters: a run, which finding, where. Leaves: a ``Plan``; ``write`` puts it on disk, both files or none. A file that is
there and says something else is never touched unless that is asked for.
"""

from __future__ import annotations

import errno
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.contracts import own
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.diagnosis import Doctor
from brickprof.diagnosis.proposals import proposals
from brickprof.errors import OutputError, UsageError
from brickprof.ratchet import command, documents
from brickprof.ratchet.documents import Case
from brickprof.rules import obligations
from brickprof.settings import CONTRACTS_FOLDER
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis, Finding
    from brickprof.run import Run

_TESTS = ("tests", "test")


@dataclass(frozen=True, slots=True)
class Page:
    """A file to be: its place, what it says, and what stands there now."""

    path: Path
    text: str
    state: str
    """new, unchanged, or different."""
    there: str = ""
    """What it says now, where that can be read."""


@dataclass(frozen=True, slots=True)
class Plan:
    root: Path
    case: Case
    contract: Page
    test: Page
    run: str
    """The recorded run, as it is named from the root."""
    on_this_run: ContractResult
    """What the contract comes to on it."""

    @property
    def pages(self) -> tuple[Page, Page]:
        return self.contract, self.test


def plan(run: Run, wanted: str, root: Path, *, name: str = "") -> Plan:
    """What ``brickprof ratchet`` would write."""
    doctor = Doctor(Terms.recorded(run.meta.extra))
    doctor.read(run)
    diagnosis = doctor.diagnosis(run)
    finding = choose(diagnosis, wanted)
    if finding.contract in doctor.engine.terms.own:
        raise UsageError(
            f"{finding.id} is a broken obligation of your own ({finding.contract}): it is kept already.",
            "Put right what broke it, or change its bound.",
        )
    others = {result.id: result for result in diagnosis.contracts}
    called = documents.slug(name) if name else documents.default_name(finding)
    contract_file = f"{CONTRACTS_FOLDER}/{called}.yaml"
    test_file = f"{_tests(root)}/test_ratchet_{called.replace('-', '_')}.py"
    case = Case(
        called, run.path.name if run.path is not None else run.meta.run_id, finding,
        tuple(proposals(finding, doctor.engine.story, others)), command.recorded(run, root), contract_file, test_file,
    )  # fmt: skip
    text = documents.contract(case)
    read = own.read({contract_file: text})[case.contract]
    result = obligations.result(read, doctor.engine.story, others)
    if result.verdict is not Verdict.FAIL:  # a ratchet that does not catch is none
        raise UsageError(f"{finding.id} cannot be told from a sound run by what was recorded: {clean(result.why)}.")
    pages = [_page(root / contract_file, text), _page(root / test_file, documents.regression_test(case))]
    return Plan(root, case, pages[0], pages[1], _shown(run, root), result)


def _shown(run: Run, root: Path) -> str:
    if run.path is None:
        return run.meta.run_id
    path = run.path.resolve()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def choose(diagnosis: Diagnosis, wanted: str) -> Finding:
    """The finding that is meant: F1, its number, its contract or its root cause."""
    serious = [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]
    if not serious:
        raise UsageError(f"this run has no finding to keep from coming back: its verdict is {diagnosis.verdict}.")
    asked = wanted.strip().lower()
    asked = f"f{asked}" if asked.isdigit() else asked
    for finding in serious:
        if asked in (finding.id.lower(), finding.contract.lower(), finding.root_cause.lower()):
            return finding
    known = ", ".join(f"{each.id} ({clean(each.root_cause)}, {clean(each.contract)})" for each in serious)
    raise UsageError(f"this run has no finding {clean(wanted)}.", f"It has: {known}.")


def _tests(root: Path) -> str:
    """Where the repository keeps its tests: as pytest is told, or by its usual name."""
    told = [name for name in _testpaths(root) if command.inside(root / name, root) is not None]
    return next((name for name in (*told, *_TESTS) if (root / name).is_dir()), _TESTS[0])


def _testpaths(root: Path) -> list[str]:
    try:
        document = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
        told = document["tool"]["pytest"]["ini_options"]["testpaths"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return []
    listed = told.split() if isinstance(told, str) else told
    return [each.rstrip("/") for each in listed if isinstance(each, str)] if isinstance(listed, list) else []


def _page(path: Path, text: str) -> Page:
    try:
        there = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Page(path, text, "new")
    except (OSError, UnicodeDecodeError):
        return Page(path, text, "different")
    return Page(path, text, "unchanged" if there == text else "different", there)


def write(made: Plan, *, force: bool = False) -> None:
    """Both files, or none."""
    edited = [str(page.path.relative_to(made.root)) for page in made.pages if page.state == "different"]
    if edited and not force:
        raise UsageError(
            f"{' and '.join(edited)} {'is' if len(edited) == 1 else 'are'} there already and would say something else.",
            "Give --name to write beside it, --dry-run to compare, or --force to replace it.",
        )
    drafts: list[tuple[Path, Path]] = []
    try:
        for page in made.pages:
            if page.path.is_dir():  # nothing would take its place
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for page in made.pages:
            page.path.parent.mkdir(parents=True, exist_ok=True)
            draft = page.path.with_name(f".{page.path.name}.{os.getpid()}")
            drafts.append((draft, page.path))
            draft.write_text(page.text, "utf-8")
        for draft, path in drafts:
            os.replace(draft, path)
    except OSError as error:
        raise OutputError(
            f"{made.root} cannot be written to: {error.strerror or error}.", "Give another folder with --into."
        ) from None
    finally:
        for draft, _ in drafts:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
