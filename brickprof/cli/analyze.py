"""``brickprof analyze``: what became of runs that nobody instrumented, from the logs they left.

Enters: files, folders, globs, "-". Leaves: a verdict with its whys for one run, a table for several; 0 clean, 1
violations, 2 wrong usage or nothing that could be read, 3 nothing to judge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brickprof.cli import _reporters as reporters
from brickprof.cli import _writing as writing

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.analysis import Analysis, Judged, Options, Problem
    from brickprof.diagnosis import Diagnosis
    from brickprof.settings import Settings

FAIL_ON = ("warning", "error", "never")
HALT_ON = ("never", "error", "warning")


def register(app: typer.Typer) -> None:
    app.command("analyze")(analyze)


def analyze(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Logs, folders of logs, globs, or - for stdin; packed ones too."),
    ] = None,
    format: Annotated[str, typer.Option(metavar="NAME", help="Read all of them as this format.")] = "",
    list_formats: Annotated[bool, typer.Option("--list-formats", help="Say what can be read, and stop.")] = False,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A line of the log with {names} in it, for logs that are not known."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the table, or the verdict: no whys.")] = False,
    sort: Annotated[str, typer.Option(metavar="BY", help="worst, name, steps, loss or given.")] = "worst",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list, a diagnosis for each run.")] = False,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV; - for stdout.")
    ] = None,
    markdown_file: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write table and whys as Markdown; - for stdout.")
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a report; the ending says which: .html, .json, ...")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="Keep each run as a journal in this folder.")
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="CONTRACT.NAME=NUMBER", help="Another threshold; again for more."),
    ] = None,
    suppress: Annotated[
        list[str] | None,
        typer.Option(metavar="CONTRACT=REASON", help="Only note what breaks this contract; again for more."),
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="WHEN", help="warning, error or never: exit 1 when there is such a finding.")
    ] = "warning",
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes; default: a core each.")] = None,
    max_files: Annotated[
        int, typer.Option(metavar="N", min=1, help="Refuse a folder that holds more logs than this.")
    ] = 10_000,
    engine: Annotated[str, typer.Option(metavar="NAME", help="local, or dask: workers of a Dask cluster.")] = "local",
    scheduler: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Of a Dask cluster that runs; default: one on this machine.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Watch one log that grows; say at once what breaks.")
    ] = False,
    command: Annotated[
        str, typer.Option("--exec", metavar="CMD", help="Run this for each alarm; BRICKPROF_* variables say what.")
    ] = "",
    until_idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="With --follow: stop when nothing came so long.")
    ] = None,
    halt_on: Annotated[
        str, typer.Option(metavar="WHEN", help="With --follow: stop at the first error, or warning.")
    ] = "never",
) -> None:
    """Say what happened in trainings, from the logs they left behind.

    One run: the verdict, what broke, why, what the log holds and what it cannot tell. Several: a table, the worst
    first, and the whys of those that broke. Files of one run (ranks, restarts, output and errors of a job) are joined.

    Examples:

      brickprof analyze train.log

      brickprof analyze runs/ --csv runs.csv --brief

      zcat train.log.gz | brickprof analyze -

      brickprof analyze --follow train.log --exec 'notify-send brickprof'

      brickprof analyze odd.txt --pattern 'it {step} of {}, L={loss} g={grad_norm}'

    Exit codes: 0 clean; 1 a finding as severe as --fail-on; 2 wrong usage, or a file that was named cannot be read and
    nothing broke in the others; 3 nothing to judge. What lies in a folder and is no log changes nothing.
    """
    from dataclasses import replace

    from brickprof.errors import UsageError

    for flag, given, known in (("--fail-on", fail_on, FAIL_ON), ("--halt-on", halt_on, HALT_ON)):
        if given not in known:
            raise UsageError(f"{flag} is {given!r}.", f"Give one of: {', '.join(known)}.")
    if list_formats:
        _list_formats(as_json)
        return
    _check(paths, sort, pattern, format, follow, command, until_idle, halt_on)
    options = _options(format, pattern or "", thresholds, suppress, out)
    shown = _Shown(as_json, csv_file, markdown_file, report, brief, sort, options)
    if follow:
        raise typer.Exit(_follow((paths or [""])[0], options, shown, fail_on, command, until_idle, halt_on))
    analysis = _analysed(paths or [], replace(options, max_files=max_files), engine, jobs, scheduler)
    said: set[str] = set()
    for problem in analysis.problems:
        _say(problem, problem.hint not in said)
        said.add(problem.hint)
    shown.show(analysis)
    raise typer.Exit(exit_code(analysis, fail_on))


def _check(
    paths: Sequence[str] | None, sort: str, pattern: str | None, format: str, follow: bool, command: str,
    until_idle: float | None, halt_on: str,
) -> None:  # fmt: skip
    from brickprof.errors import UsageError
    from brickprof.reports.runs import SORTS

    if not paths:
        raise UsageError("Missing argument 'PATH...'.", "Such as: brickprof analyze train.log")
    if sort not in SORTS:
        raise UsageError(f"--sort is {sort!r}.", f"Give one of: {', '.join(SORTS)}.")
    if pattern is not None and not pattern.strip():
        raise UsageError("--pattern is empty.", "Such as: --pattern 'step {step} loss {loss}'")
    if pattern and format:
        raise UsageError("--pattern and --format are two ways to say how to read: give one.")
    if follow and len(paths) != 1:
        raise UsageError("--follow watches one log.", "Start it once for each.")
    if not follow and (command or until_idle is not None or halt_on != "never"):
        raise UsageError("--exec, --until-idle and --halt-on are for --follow.")


def _options(
    format: str, pattern: str, thresholds: list[str] | None, suppress: list[str] | None, out: str | None
) -> Options:
    from brickprof import logs, settings
    from brickprof.analysis import Options
    from brickprof.contracts.terms import Terms

    logs.choose(format, pattern)
    chosen: Settings = settings.load({"thresholds": thresholds or None, "suppress": suppress or None})
    own = Terms.of(chosen).own  # of this project's trainings: a log is of any
    limits = {name: value for name, value in chosen.thresholds.items() if name.rpartition(".")[0] not in own}
    reasons = {name: reason for name, reason in chosen.suppress.items() if name not in own}
    return Options(format, pattern, limits, reasons, out or "")


def _analysed(paths: Sequence[str], options: Options, engine: str, jobs: int | None, scheduler: str) -> Analysis:
    from brickprof.analysis import analyse, engines

    wanted = 1 if jobs is None and engine == "local" and not _is_much(paths) else jobs
    told = _progress()
    try:
        with engines.engine(engine, wanted, scheduler) as found:
            return analyse(paths, options, found, told)
    finally:
        if told is not None:
            told(1, 1)  # the line is cleared, however it ended


def _is_much(paths: Sequence[str]) -> bool:
    """Whether other processes are worth their start."""
    import os

    sizes = [os.path.getsize(path) if os.path.isfile(path) else 8 << 20 for path in paths]
    return sum(sizes) >= 8 << 20


def _progress() -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def told(done: int, total: int) -> None:
        if not total:
            sys.stderr.write(f"\r\x1b[K{done:,} files looked at in search of logs")
        elif total > 8 or done == total:
            sys.stderr.write(f"\r\x1b[K{done:,} of {total:,} files" if done < total else "\r\x1b[K")
        sys.stderr.flush()

    return told


def exit_code(analysis: Analysis, fail_on: str) -> int:
    """1 violations, 2 unreadable, 0 clean, 3 nothing to judge: the first of these that is true of any of them."""
    if any(violates(run, fail_on) for run in analysis.runs):
        return 1
    if any(problem.named for problem in analysis.problems) or not analysis.runs:
        return 2
    verdicts = {run.diagnosis.verdict.value for run in analysis.runs}
    return 0 if verdicts & {"PASS", "FAIL"} else 3


def violates(run: Judged, fail_on: str) -> bool:
    severe = {"warning": ("error", "warning"), "error": ("error",), "never": ()}[fail_on]
    found = any(finding.severity.value in severe for finding in run.diagnosis.findings)
    return found or (fail_on == "warning" and run.diagnosis.verdict.value == "FAIL")


def _say(problem: Problem, with_hint: bool) -> None:
    from brickprof.text import clean

    hint = clean(problem.hint, limit=2000) if with_hint else ""
    text = f"brickprof: {clean(problem.message, limit=2000)} {hint}".rstrip()
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


class _Shown:
    """What is printed and written, as it was asked for."""

    def __init__(
        self, as_json: bool, csv_file: str | None, markdown_file: str | None, report: str | None, brief: bool,
        sort: str, options: Options,
    ) -> None:  # fmt: skip
        self._as_json, self._csv, self._markdown = as_json, csv_file, markdown_file
        self._report, self._brief, self._sort, self._options = report, brief, sort, options
        if report is not None:
            reporters.by_ending(report)  # an ending that nobody writes is said before the work, not after it

    def show(self, analysis: Analysis) -> None:
        from brickprof.reports import runs as table

        runs = table.order(analysis.runs, self._sort)
        taken = self._as_json or "-" in (self._csv, self._markdown)
        if self._as_json:
            _print_json(runs)
        elif not taken:
            self._print(runs, analysis)
        if self._csv is not None:
            writing.write(self._csv, table.csv_text(runs))
        if self._markdown is not None:
            writing.write(self._markdown, table.markdown(runs, brief=self._brief))
        if self._report is not None:
            _write_reports(self._report, runs, self._options)

    def _print(self, runs: Sequence[Judged], analysis: Analysis) -> None:
        console = writing.console()
        if len(runs) == 1:
            self._one(runs[0], console)
        elif runs:
            self._several(runs, console)
        if analysis.passed_by:
            print(f"brickprof: {analysis.passed_by:,} other files there are no logs of a training.", file=sys.stderr)

    def _one(self, run: Judged, console: Console) -> None:
        from brickprof.reports import holdings, terminal

        if self._brief:
            terminal.render(_in_brief(run.diagnosis), console)
            return
        terminal.render(run.diagnosis, console)
        holdings.render(run, console)

    def _several(self, runs: Sequence[Judged], console: Console) -> None:
        from rich.text import Text

        from brickprof.reports import runs as table
        from brickprof.reports import terminal
        from brickprof.text import clean

        table.render(runs, console)
        for run in runs if not self._brief else ():
            if table.leading(run.diagnosis) is not None:
                console.print(Text(f"\n── {clean(run.name)} ──", "bold"))
                terminal.render(run.diagnosis, console)


def _in_brief(diagnosis: Diagnosis) -> Diagnosis:
    """What, where, the cause and what to do; not how it came about."""
    from dataclasses import replace

    findings = (replace(one, whys=(), ruled_out=(), next_experiment="") for one in diagnosis.findings)
    return replace(diagnosis, findings=tuple(findings))


def _print_json(runs: Sequence[Judged]) -> None:
    import json

    print(json.dumps([run.diagnosis.to_dict() for run in runs], indent=2, allow_nan=False))


def _write_reports(file: str, runs: Sequence[Judged], options: Options) -> None:
    """One report; of several runs one each, with the run's name before the ending."""
    from brickprof.text import file_name

    module = reporters.by_ending(file)
    target = Path(file)
    ending = max((one for one in reporters.endings(module) if target.name.lower().endswith(one)), key=len)
    for place, run in enumerate(runs):
        name = f"{target.name[: -len(ending)]}-{place + 1}-{file_name(run.name)}{target.name[-len(ending) :]}"
        content = reporters.content(module, run.diagnosis, _read_again(run, options))
        writing.write(target if len(runs) == 1 else target.with_name(name), content)


def _read_again(judged: Judged, options: Options) -> Any:
    """The run itself, for reports with pictures: what was judged elsewhere came back without it. None from a pipe."""
    from brickprof.analysis.judging import JOURNAL
    from brickprof.errors import BrickprofError
    from brickprof.run import Run

    folder = judged.diagnosis.run.get("folder")
    try:
        if folder or judged.format == JOURNAL:
            return Run.open(folder or judged.files[0])
        if "-" in judged.files:
            return None
        return Run.from_log(judged.files, format=options.format, pattern=options.pattern)
    except BrickprofError:
        return None


def _list_formats(as_json: bool) -> None:
    import json

    from brickprof import logs

    known = sorted(logs.readers().items())
    if as_json:
        print(json.dumps([{"name": name, "title": reader.title} for name, reader in known], indent=2))
        return
    width = max(len(name) for name, _ in known)
    for name, reader in known:
        print(f"{name:<{width}}  {reader.title}")


def _follow(
    path: str, options: Options, shown: _Shown, fail_on: str, command: str, until_idle: float | None, halt_on: str
) -> int:
    from brickprof.analysis import Analysis
    from brickprof.analysis.following import Alarms, Following

    alarms = Alarms(command, sys.stderr if shown._as_json else sys.stdout)
    following = Following(path, options, until_idle=until_idle, halt_on=halt_on, alarm=alarms)
    judged = following.watch()
    alarms.wait()
    analysis = Analysis((judged,))
    shown.show(analysis)
    return exit_code(analysis, fail_on)
