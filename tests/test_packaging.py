"""The three links, and what a wheel holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ("kernels", "probes", "reports")


@pytest.mark.parametrize("name", LINKS)
def test_links_resolve_to_the_folders_at_the_top(name):
    link = ROOT / "brickprof" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == (ROOT / name).resolve()
    assert not (ROOT / name / "__init__.py").exists()


def test_links_are_committed_as_links():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", *(f"brickprof/{name}" for name in LINKS)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert [line.split()[0] for line in listed] == ["120000"] * len(LINKS)


def imported_from(folder: Path, site: Path) -> str:
    """Where ``import kernels`` lands for a python started in ``folder`` that also has ``site``."""
    program = f"import sys; sys.path.append({str(site)!r}); import kernels; print(kernels.__file__)"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A place where somebody else's ``kernels`` package is installed."""
    package = tmp_path / "site" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package.parent


def test_our_kernels_folder_does_not_hide_a_real_package(site):
    assert imported_from(ROOT, site) == str(site / "kernels" / "__init__.py")


def test_an_init_file_in_the_folder_would_hide_it(site, tmp_path):
    (tmp_path / "checkout" / "kernels").mkdir(parents=True)
    (tmp_path / "checkout" / "kernels" / "__init__.py").touch()
    assert imported_from(tmp_path / "checkout", site) != str(site / "kernels" / "__init__.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, so that no build folder is left in it."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    compiled = shutil.ignore_patterns("__pycache__")
    for name in ("brickprof", *LINKS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=compiled)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work, source],
        capture_output=True, check=True, timeout=240,
    )  # fmt: skip
    return next(work.glob("*.whl"))


def test_wheel_holds_one_package_with_every_module(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"brickprof"}
    source = wheel.parent / "source"
    folders = (source / "brickprof", *(source / "brickprof" / link for link in LINKS))
    wanted = {
        path.relative_to(source).as_posix()
        for folder in folders
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in folder.rglob(pattern)
    }
    assert wanted <= names
    assert any(name.startswith("brickprof/probes/") for name in names)
    assert not any("__pycache__" in name for name in names)


def test_wheel_installs_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "brickprof = brickprof.cli.app:main" in archive.read(entry).decode()


def test_wheel_imports_from_somewhere_else(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        probe = next(name for name in archive.namelist() if name.startswith("brickprof/probes/"))
    module = probe.removesuffix(".py").replace("/", ".")
    program = (
        f"import sys, importlib.util; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
        f"print(importlib.util.find_spec({module!r}).origin)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(shown) == tmp_path / "site" / probe


def test_constraints_pin_every_dependency_and_name_no_place():
    text = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0\n" in text
    assert "://" not in text
    assert "+" not in text
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in text.splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {item.split(";")[0].split(">")[0].strip().lower().replace("_", "-") for item in wanted}
    assert names <= pinned
