"""The exceptions of the analysis side, and the exit code each one becomes.

    BrickprofError                 exit 2   something the user can put right
    ├── UsageError                 exit 2   wrong words on the command line, a missing script
    ├── ConfigurationError         exit 2   a setting, a YAML file, a threshold that makes no sense
    ├── UnreadableInput            exit 2   a file or folder that is not what it should be
    │   └── NotARun                exit 2   a folder that holds no journal
    ├── OutputError                exit 2   a folder or disk that cannot be written
    └── NothingToJudge             exit 3   readable, and nothing in it to evaluate

Capture lives in the other world: it never raises into the training. A probe that fails is
counted, written to the journal and switched off (see ``brickprof.capture.session``).
"""

from __future__ import annotations


class BrickprofError(Exception):
    """Says what happened in ``message`` and what to do about it in ``hint``."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class UsageError(BrickprofError):
    pass


class ConfigurationError(BrickprofError):
    pass


class UnreadableInput(BrickprofError):
    pass


class NotARun(UnreadableInput):
    pass


class OutputError(BrickprofError):
    pass


class NothingToJudge(BrickprofError):
    exit_code = 3
