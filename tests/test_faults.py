"""The fault zoo: every specimen says what is true of it, in words that the rest of the project knows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from brickprof.contracts.registry import library
from brickprof.reference import zoo
from brickprof.reference.causes import CAUSES

FAULTS = sorted((zoo.HERE / "faults").glob("[!_]*.py"))
FAMILIES = {"mlp", "cnn", "gpt", "lstm", "gan", "reference", "other"}
KINDS = {"numeric", "silent", "performance", "process", "distributed"}
NAME = re.compile(r"(C|DIM|DIST|FALSIFY)(-[A-Z0-9]+)+")
ROWS = 63
NOT_IN_A_TRAINING = {44, 51, 52, 53, 54}
"""Rows about evaluations and artifacts, which `brickprof check` judges."""

every_fault = pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)


@every_fault
def test_the_truth_is_told_in_known_words(path):
    fault = zoo.read(path)
    assert fault.id.replace("-", "_") == path.stem
    assert fault.title and fault.family in FAMILIES and fault.kind in KINDS and fault.needs in zoo.NEEDS
    assert fault.row is None or 1 <= fault.row <= ROWS
    assert fault.first_step is None or fault.first_step >= 0
    assert not set(fault.root_causes) - CAUSES.keys() and fault.root_causes
    assert all(NAME.fullmatch(contract) for contract in fault.contracts)


@every_fault
def test_the_best_contract_is_in_the_library(path):
    fault = zoo.read(path)
    assert fault.contracts and any(contract in library() for contract in fault.contracts)


@every_fault
def test_the_script_compiles_and_explains_itself(path):
    source = path.read_text("utf-8")
    compile(source, path.name, "exec")
    tree = ast.parse(source)
    assert ast.get_docstring(tree)
    names = {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets if _is_name(name)}
    assert ("TRAINER" in names) == (zoo.read(path).family == "reference")


@every_fault
def test_the_files_it_is_told_of_are_there(path):
    fault = zoo.read(path)
    given = {name for name, _ in fault.files}
    wanted = {word for word in (*fault.run, *fault.args) if word.endswith((".yaml", ".json", ".toml"))}
    assert wanted <= given


@every_fault
def test_a_script_does_not_speak_to_brickprof(path):
    """A user's script knows nothing of us, unless it is the reference training with one method changed."""
    fault = zoo.read(path)
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    ours = {name for name in imported if name.partition(".")[0] == "brickprof"}
    assert bool(ours) == (fault.family == "reference")


def test_every_row_that_a_training_can_show_has_a_specimen():
    shown = {fault.row for fault in zoo.faults().values()}
    assert set(range(1, ROWS + 1)) - NOT_IN_A_TRAINING <= shown


def test_families_are_varied():
    families = [fault.family for fault in zoo.faults().values()]
    assert all(families.count(family) >= 5 for family in ("mlp", "cnn", "gpt", "lstm", "reference"))


def test_without_a_gpu_a_gpu_fault_says_so_and_leaves():
    """One interpreter for all of them: importing torch is what takes the time."""
    paths = [str(fault.path) for fault in zoo.faults().values() if fault.needs != "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", _IN_TURN, *paths],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("needs a") == len(paths) > 0


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


_IN_TURN = """
import runpy, sys
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as left:
        assert not left.code, path
"""
