"""The scripts of the zoo with their models compiled, though they compile none: with this folder on PYTHONPATH, whatever
an optimizer is made for is compiled in place.

    brickprof zoo --compiled

Enters: a process that imports torch. Leaves: each module that no other contains and that holds a parameter of a new
optimizer, compiled; by torch's own backend on a GPU, elsewhere into the graphs that this is given, and run as they are.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_AS_IT_IS = "aot_eager_decomp_partition"


def _begin(torch: Any) -> None:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    optimizer = torch.optim.Optimizer
    make, done = optimizer.__init__, set[int]()
    backend = {} if torch.cuda.is_available() else {"backend": _AS_IT_IS}

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        trained = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
        inside = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
        for module in modules:
            known = id(module) in inside or id(module) in done or module.__dict__.get("_compiled_call_impl") is not None
            if known or isinstance(module, (DataParallel, DistributedDataParallel, torch.jit.ScriptModule)):
                continue
            if "_parameters" in module.__dict__ and any(id(each) in trained for each in module.parameters()):
                done.add(id(module))
                module.compile(**backend)

    optimizer.__init__ = __init__


class _Finder(MetaPathFinder):
    """Waits for torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _begin(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _next() -> None:
    """Whatever else would have been found by this name: what moves a script to a GPU, or the machine's own."""
    here = Path(__file__).parent
    others = [place for place in sys.path if place and Path(place).resolve() != here.resolve()]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Finder())
_next()
