"""Functions by name, and the device that they run on.

Enters: words of a user: ``torch``, ``package.module:function``, ``auto``. Leaves: a callable, or a device, or one clear
``UsageError``. Modules are looked for in the current directory too, as for a script that lies there.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from types import ModuleType

import torch

from brickprof.errors import UsageError
from brickprof.operators.operator import Operator
from brickprof.operators.problem import Function, told_in_one_line
from brickprof.operators.subject import OWN
from brickprof.operators.torch_candidates import CANDIDATES
from brickprof.text import clean

TORCH = "torch"


def function_of(name: str, operator: Operator) -> Function | None:
    """The candidate that ``name`` means for ``operator``; None where torch has none."""
    if name in ("", OWN):
        return operator.function
    return CANDIDATES.get(operator.name) if name == TORCH else loaded(name, "--candidate")


def loaded(name: str, option: str) -> Function:
    """The function ``package.module:function``."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{option} is {clean(name)!r}.", "Give it as package.module:function.")
    module = _module(module_name, option)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"Did you mean {near[0]}?" if near else ""
            raise UsageError(f"{option}: {clean(module_name)} has no {clean(part)}.", hint)
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{option}: {clean(name)} is no function but a {type(found).__name__}.")
    return found


def _module(name: str, option: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"{option}: there is no module {clean(name)}, here or installed.") from error
        raise UsageError(f"{option}: importing {clean(name)} failed: {told_in_one_line(error)}.") from error
    except Exception as error:  # somebody's module, of any quality
        raise UsageError(f"{option}: importing {clean(name)} failed: {told_in_one_line(error)}.") from error


def device_of(word: str) -> str:
    """``auto`` is the GPU where there is one."""
    if word == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(word)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device is {clean(word)!r}.", "Give one of: auto, cpu, cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device is cuda, and torch sees no GPU here.")
    return str(device)


def interpret() -> None:
    """Lets Triton kernels run without a GPU; has to be called before triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
