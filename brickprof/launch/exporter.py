"""Sends a run to an OTLP endpoint while it goes on, from a process of its own.

Enters: a run's folder and an endpoint. Leaves: its spans at the endpoint. A process, because an exporter
that hangs cannot be stopped in a thread, and because neither the supervisor nor the script should carry
OpenTelemetry.

    sidecar = Sidecar(folder, endpoint)      at the start
    sidecar.finish()                         at the end: what is left is sent, within a few seconds
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_EVERY = 5.0
_SEND_LIMIT = 3.0
FINISH_LIMIT = 5.0


class Sidecar:
    """The supervisor's side. Nothing here raises or takes longer than ``FINISH_LIMIT``."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        command = [sys.executable, "-m", __name__, str(folder), endpoint]
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            # A session of its own: a terminal's Ctrl-C is for the script.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=_environment(), start_new_session=True,
            )  # fmt: skip

    def finish(self) -> str:
        """Ends the export; a sentence on what went wrong, or ""."""
        if self._process is None:
            return "the exporter could not be started"
        try:
            said, _ = self._process.communicate(timeout=FINISH_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"the endpoint did not take everything in {FINISH_LIMIT:.0f} s"
        except (OSError, ValueError) as error:
            return str(error)
        if self._process.returncode:
            return "the exporter failed"
        return said.decode("utf-8", "replace").strip()


def _environment() -> dict[str, str]:
    """Ours, with brickprof importable wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, root])}


def main(folder: Path, endpoint: str) -> None:
    """The process itself: exports every few seconds until its stdin ends, then the rest."""
    from brickprof.telemetry import LiveExporter

    with suppress(OSError):
        os.nice(10)
    exporter = LiveExporter(folder, endpoint, deadline=_SEND_LIMIT)
    while not select.select([0], [], [], _EVERY)[0]:
        exporter.poll()
    total = exporter.close()
    if total.failed:
        print(total.error or f"{total.failed:,} spans were not taken")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
