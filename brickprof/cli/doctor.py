"""``brickprof doctor``: what this machine has, and what will be captured on it.

Enters: the environment. Leaves: findings about it, on stdout; 0 when training can be captured, else 1.
torch is asked in a process of its own, with a time limit: a broken torch cannot break the answer.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

_PACKAGES = (
    "torch",
    "triton",
    "pandas",
    "pyarrow",
    "numpy",
    "rich",
    "typer",
    "PyYAML",
    "nvtx",
    "nvidia-ml-py",
)
_TELEMETRY = (
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
)
_ENOUGH_BYTES = 512 * 2**20
_TORCH_SECONDS = 60.0
_ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "available": cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "distributed": torch.distributed.is_available(), "threads": torch.get_num_threads(),
    "sum": float(torch.ones(8).sum()),
}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: str
    """ok, missing (something will not be captured), or broken (nothing will)."""
    says: str


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine has, and what will and will not be captured on it."""
    checks = examine()
    broken = any(check.state == "broken" for check in checks)
    if as_json:
        print(json.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    raise typer.Exit(1 if broken else 0)


def examine() -> list[Check]:
    told = ask_torch()
    ours = [_python(), *_packages(), _torch(told), _gpu(told), _card(), _triton(told), *_sanitizer(told)]
    return [*ours, _telemetry(), _disk(), _proc(), _plugins()]


def ask_torch(seconds: float = _TORCH_SECONDS) -> dict[str, Any]:
    """What torch says of itself; ``error`` when it cannot."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode == 0:
            told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return told
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"error": last}
    except subprocess.TimeoutExpired:
        return {"error": f"importing it took longer than {seconds:.0f} s"}
    except (OSError, ValueError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    from brickprof import __version__

    machine = f"{platform.system()} {platform.machine()}"
    return Check("python", "ok", f"brickprof {__version__}, Python {platform.python_version()}, {machine}")


def _packages() -> list[Check]:
    known = {package: _version(package) for package in _PACKAGES}
    there = ", ".join(f"{package} {version}" for package, version in known.items() if version)
    checks = [Check("packages", "ok", there)]
    needed = [package for package in ("pandas", "pyarrow", "PyYAML") if not known[package]]
    if needed:
        checks.append(Check("packages", "broken", f"not installed: {', '.join(needed)}"))
    return checks


def _torch(told: dict[str, Any]) -> Check:
    if _version("torch") is None:
        return Check("torch", "broken", "torch is not installed: nothing will be captured")
    if "error" in told:
        return Check("torch", "broken", f"torch cannot be imported: {told['error']}")
    says = "loss, gradients, weights, optimizers, clipping, loader, schedules, scaler, blocks, memory"
    ranks = "and ranks" if told.get("distributed") else "but not ranks (torch was built without distributed)"
    return Check("capture", "ok", f"torch {told['version']}: {says}, {ranks}")


def _gpu(told: dict[str, Any]) -> Check:
    if told.get("available"):
        return Check("gpu", "ok", f"{', '.join(told['devices'])}; CUDA {told['cuda']}{_driver()}")
    driver = _driver()
    reason = "torch was built without CUDA" if told.get("cuda") is None else "torch sees no device"
    seen = f"{driver.lstrip('; ')} is there, but {reason}" if driver else "there is none"
    return Check("gpu", "missing", f"no GPU is used ({seen}): device times and device memory are not captured")


def _card() -> Check:
    """The cards as the supervisor will see them, and what they answer."""
    from brickprof import settings
    from brickprof.launch import nvml

    seconds = settings.load().card_seconds
    if not seconds:
        return Check("card", "missing", "card_seconds is 0: no card is watched")
    try:
        library = nvml.library()
    except nvml.NoCards as error:
        return Check("card", "missing", f"no card is watched: {error}")
    try:
        found = nvml.devices(library, os.environ)
        if not found:
            return Check("card", "missing", "no card is watched: none is visible (CUDA_VISIBLE_DEVICES?)")
        return Check("card", "ok", f"{'; '.join(map(_answers, found))}; every {seconds:g} s")
    finally:
        library.nvmlShutdown()


def _answers(device: Any) -> str:
    from brickprof.launch.nvml import Look

    known = device.look().known()
    extra = {"ecc": device.ecc()[1] is not None, "processes": device.processes() is not None}
    known += [name for name, answered in extra.items() if answered]
    absent = [name for name in (*Look.__slots__, *extra) if name not in known]
    named = f"{device.about().get('name', 'card')} ({device.index}): {', '.join(known)}"
    return f"{named}; not told: {', '.join(absent)}" if absent else named


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
            return f"; driver {version.decode() if isinstance(version, bytes) else version}"
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no permission: all the same here
        return ""


def _triton(told: dict[str, Any]) -> Check:
    version = _version("triton")
    if not told.get("available"):
        named = "triton is not installed" if version is None else f"triton {version} is there"
        says = "there are no kernels to capture, and statistics are taken by torch's foreach calls"
        return Check("kernels", "missing", f"{named}, and no GPU: {says}")
    if version is None:
        says = "statistics are taken by torch's foreach calls; kernels are captured in windows of torch's profiler"
        return Check("kernels", "missing", f"triton is not installed: {says}")
    return Check("kernels", "ok", f"triton {version}")


def _sanitizer(told: dict[str, Any]) -> list[Check]:
    """Where there is a device to look at."""
    from brickprof.errors import UsageError
    from brickprof.launch import sanitizer

    if not told.get("available"):
        return []
    try:
        return [Check("sanitizer", "ok", f"{sanitizer.found()}, for --sanitizer")]
    except UsageError as error:
        return [Check("sanitizer", "missing", f"--sanitizer will not work: {error}")]


def _telemetry() -> Check:
    absent = [package for package in _TELEMETRY if _version(package) is None]
    if absent:
        return Check("telemetry", "missing", f"not installed: {', '.join(absent)}; --otlp will not work")
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return Check(
        "telemetry",
        "ok",
        f"OpenTelemetry {_version(_TELEMETRY[0])}" + (f", to {endpoint}" if endpoint else ""),
    )


def _disk() -> Check:
    from brickprof import settings

    out = Path(settings.load().out)
    home = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(home, os.W_OK):
        return Check("disk", "broken", f"{home} cannot be written: runs have nowhere to go (-o names another folder)")
    status = os.statvfs(home)
    free = status.f_bavail * status.f_frsize
    state = "ok" if free > _ENOUGH_BYTES else "missing"
    return Check("disk", state, f"{free / 1e9:,.1f} GB free for {out}")


def _proc() -> Check:
    if Path("/proc/self/stat").exists():
        return Check("supervisor", "ok", "memory, hangs and out-of-memory kills are watched")
    return Check("supervisor", "missing", "no /proc here: memory of the script and hangs are not watched")


def _plugins() -> Check:
    from brickprof import plugins

    found = [plugins.discover(f"brickprof.{seam}") for seam in ("rules", "reports")]
    notes = [note for each in found for note in each.notes]
    if notes:
        return Check("plugins", "missing", "; ".join(notes))
    return Check("plugins", "ok", f"rules: {', '.join(found[0].exports('RULE'))}")


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.text import Text

    from brickprof.reports.terminal import fit
    from brickprof.text import clean

    console = Console(highlight=False)
    marks = {"ok": ("✓", "green"), "missing": ("·", "yellow"), "broken": ("✗", "red")}
    for check in checks:
        mark, style = marks[check.state]
        line = Text(f"{mark} ", style).append(f"{check.name:<10}  ", "dim").append(clean(check.says, limit=600))
        console.print(fit(line, console.encoding), soft_wrap=True)
