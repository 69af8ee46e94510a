"""What commands write, and where to: a file that is whole or not there at all, stdout, a console.

Enters: text or bytes, and what was typed behind ``-o``. Leaves: the file. It is written beside its place and renamed,
so that a full disk or an interrupt leaves no half of it; what stood there stays until then.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.errors import OutputError, UsageError
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = "-"
_ELSEWHERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def write(file: str | Path, content: str | bytes) -> None:
    """``content`` into ``file``, or onto stdout for ``-``; text is UTF-8."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    if str(file) == STDOUT:
        _to_stdout(data)
        return
    try:
        _into(Path(file), data)
    except OSError as error:
        folder = Path(file).parent
        raise OutputError(
            f"{clean(file)} cannot be written: {_reason(folder, error)}", _advice(folder, error)
        ) from None


def make_folder(folder: str | Path) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"The folder {clean(folder)} cannot be made: {error.strerror or error}.") from None


def console(*, to_stderr: bool = False) -> Console:
    """A console that never fails for a letter that its stream cannot say; wide where nobody watches."""
    from rich.console import Console

    stream: Any = sys.stderr if to_stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else 200
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def _into(file: Path, data: bytes) -> None:
    mode = _mode(file)
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError
    if mode is not None and not stat.S_ISREG(mode):  # a device or a pipe is written to, never replaced
        file.write_bytes(data)
        return
    target = Path(os.path.realpath(file))  # a link stays a link: what it leads to is replaced
    beside = target.with_name(f".brickprof-{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
            stream.write(data)
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode
    except FileNotFoundError:
        return None


def _reason(folder: Path, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "it is a folder."
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return f"there is no folder {clean(folder)}."
    return f"{error.strerror or error}."


def _advice(folder: Path, error: OSError) -> str:
    if not folder.exists():
        return f"Make it first: mkdir -p {clean(folder)}"
    return "Say where else with -o." if error.errno in _ELSEWHERE else ""


def _to_stdout(data: bytes) -> None:
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None:
        sys.stdout.write(data.decode("utf-8", "backslashreplace"))
        return
    raw.write(data)
    raw.flush()


def refuse_binary_on_terminal(name: str) -> None:
    """Bytes would only ring a terminal's bell."""
    if sys.stdout.isatty():
        raise UsageError(f"{clean(name)} is binary, and stdout is a terminal.", "Give -o FILE, or a pipe.")
