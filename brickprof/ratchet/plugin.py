"""The pytest plugin: trainings as tests.

    def test_training(brickprof_run):
        run = brickprof_run("train.py", "--steps", "50")
        run.assert_finished()
        run.assert_contract("C-CLIP-001")
        run.assert_clean()

    def test_one_batch(brickprof_attach):
        with brickprof_attach(model, optimizer) as watched:
            train(model, optimizer)
        watched.assert_contract("C-GRADFLOW-001")

Enters: pytest's options. Leaves: two fixtures, and, below a test that failed, the report of what it trained. pytest
imports this module at every start: everything heavier than pytest itself is imported when a fixture is used.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from brickprof.ratchet.training import Training, Watched

RUN_VARIABLE = "BRICKPROF_TEST_RUN"
_LONGEST = 1800.0
_TRAINED = pytest.StashKey[list[Any]]()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("brickprof", "brickprof: trainings as tests")
    group.addoption(
        "--brickprof-level", metavar="LEVEL", default="", help="light, standard or deep, for every training."
    )
    group.addoption(
        "--brickprof-out", metavar="DIR", default="", help="Keep the runs of failed tests here (default: pytest's tmp)."
    )
    group.addoption(
        "--brickprof-timeout", metavar="SECONDS", type=float, default=None,
        help=f"Stop a training after so long (default: {_LONGEST:g}).",
    )  # fmt: skip
    group.addoption(
        "--brickprof-run", metavar="RUN", default=os.environ.get(RUN_VARIABLE, ""),
        help=f"Train nothing: ask a recorded run instead (or ${RUN_VARIABLE}).",
    )  # fmt: skip


class Rooms:
    """Where one test records, and what it has trained there."""

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        self._request = request
        self._factory = factory
        self._made: list[Path] = []
        self.trained: list[Any] = []
        # A test that is run again begins anew.
        request.node.stash[_TRAINED], request.node.stash[_FAILED] = self.trained, False

    def new(self) -> Path:
        from brickprof.ratchet.training import room

        config = self._request.config
        out = config.getoption("--brickprof-out")
        home = Path(config.invocation_params.dir, out) if out else self._factory.mktemp("brickprof")
        self._made.append(room(home, self._request.node.name))
        return self._made[-1]

    def clear(self) -> None:
        """What a failed test recorded stays."""
        for place in () if self._request.node.stash[_FAILED] else self._made:
            shutil.rmtree(place, ignore_errors=True)


class Runner:
    """``brickprof_run``: trains a script under watch and waits for its end."""

    def __init__(self, config: pytest.Config, rooms: Rooms) -> None:
        self._config = config
        self._rooms = rooms

    def __call__(
        self, *words: str | os.PathLike[str], cwd: str | os.PathLike[str] = "", level: str = "", config: str = "",
        timeout: float | None = None, env: Mapping[str, str] | None = None,
    ) -> Training:  # fmt: skip
        """Runs ``brickprof run WORDS`` (a script and its arguments, or -m MODULE) in ``cwd``, the root by default.

        ``level`` and ``config`` are brickprof's own options; ``env`` are more variables for the script. A training
        that takes longer than ``timeout`` seconds is stopped, and judged on what it did until then.
        """
        __tracebackhide__ = True
        from brickprof.ratchet.training import NotStarted, Order, train

        start = Path(self._config.rootpath, cwd)
        given = tuple(os.fspath(word) for word in words)
        if recorded := self._config.getoption("--brickprof-run"):
            return self._kept(self._recorded(recorded, given, start))
        level = level or self._config.getoption("--brickprof-level")
        limit = timeout or self._config.getoption("--brickprof-timeout") or _LONGEST
        try:
            return self._kept(train(Order(given, start, level, config, limit, env or {}), self._rooms.new()))
        except NotStarted as error:
            problem = str(error)
        pytest.fail(f"brickprof run {' '.join(given)}: {problem}", pytrace=False)

    def _recorded(self, typed: str, words: tuple[str, ...], start: Path) -> Training:
        __tracebackhide__ = True
        from brickprof.errors import BrickprofError
        from brickprof.ratchet.training import recorded

        # What was typed is meant from where pytest was called, not from where the training would start.
        path = Path(self._config.invocation_params.dir, typed)
        found, problem = None, ""
        try:
            found = recorded(path if path.exists() else Path(typed), start)
        except BrickprofError as error:
            problem = str(error)
        if found is None:
            pytest.fail(f"--brickprof-run {typed}: {problem}", pytrace=False)
        wanted = next((Path(word).name for word in words if word.endswith(".py")), "")
        if wanted and wanted not in {Path(word).name for word in found.run.meta.argv}:
            pytest.fail(f"--brickprof-run {typed} is a run of {found.run.meta.script}, not of {wanted}.", pytrace=False)
        return found

    def _kept(self, training: Training) -> Training:
        self._rooms.trained.append(training)
        return training

    def __repr__(self) -> str:
        return "<brickprof_run>"


@pytest.fixture
def _brickprof_rooms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    rooms = Rooms(request, tmp_path_factory)
    yield rooms
    rooms.clear()


@pytest.fixture
def brickprof_run(request: pytest.FixtureRequest, _brickprof_rooms: Rooms) -> Runner:
    """Trains a script under brickprof: ``run = brickprof_run("train.py", "--steps", "50")``."""
    return Runner(request.config, _brickprof_rooms)


@pytest.fixture
def brickprof_attach(
    request: pytest.FixtureRequest, _brickprof_rooms: Rooms
) -> Callable[..., contextlib.AbstractContextManager[Watched]]:
    """Watches a training in the test's own process: ``with brickprof_attach(model, optimizer) as watched:``."""
    level = request.config.getoption("--brickprof-level") or None

    @contextlib.contextmanager
    def attached(model: Any, optimizer: Any = None, **options: Any) -> Iterator[Watched]:
        from brickprof.api import attach
        from brickprof.ratchet.training import Watched

        options.setdefault("level", level)
        if options.get("out") is None:
            options["out"] = _brickprof_rooms.new()
        with attach(model, optimizer, **options) as session:
            watched = Watched(session.folder)
            _brickprof_rooms.trained.append(watched)
            yield watched
        watched.renew()

    return attached


@pytest.hookimpl(hookwrapper=True)  # the newer kind is not known to every pytest that this is installed beside
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    trained = item.stash.get(_TRAINED, None)
    if trained is None or not report.failed:
        return
    from brickprof.ratchet.training import Broken

    item.stash[_FAILED] = True
    told = call.excinfo is not None and isinstance(call.excinfo.value, Broken)
    for training in () if told else trained:
        with contextlib.suppress(Exception):  # the test's own failure is what counts
            report.sections.append(("brickprof", f"{training.diagnosis}\nrecorded in {training.folder}"))
