"""Models, blocks and parameters, found by themselves.

Enters: a process in which somebody built modules. Leaves: the root modules that hold parameters, the
blocks worth watching in each, and a name for every parameter.

Roots are found by asking the garbage collector which modules exist and which of them no other module
contains: nothing is hooked for that, and it costs some tens of milliseconds, once.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

MOST_BLOCKS = 64
MOST_LEAVES = 512
MOST_ROOTS = 16
_DEPTH = 4

_WRAPPING = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?:\.|$)")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)
_UNIMPLEMENTED = nn.Module.forward


@dataclass(slots=True)
class Model:
    """A root module and the name it goes by in this run."""

    name: str
    root: weakref.ref[nn.Module]
    cls: str
    wrapper: str
    prefix: str
    """What the wrapper puts in front of every name ("module." under DDP)."""

    def path(self, raw: str) -> str:
        """A module's or parameter's own name, without the wrappers' parts."""
        if self.prefix and (raw + ".").startswith(self.prefix):
            raw = raw[len(self.prefix) :]
        return _WRAPPING.sub("", raw).rstrip(".")


def find_roots(wanted: Collection[int] = ()) -> list[nn.Module]:
    """Every module with parameters that no other module contains: those first that hold one of ``wanted``, by id, then
    the largest. Not more than so many: copies that nobody needs any more may lie about."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    contained = {id(child) for module in modules for child in _children(module)}
    roots = [module for module in modules if id(module) not in contained and _has_parameters(module)]
    holding = {id(root): [id(parameter) for parameter in root.parameters()] for root in roots}
    roots.sort(key=lambda root: (not any(each in wanted for each in holding[id(root)]), -len(holding[id(root)])))
    return roots[:MOST_ROOTS]


def _children(module: nn.Module) -> list[nn.Module]:
    # A module that is still being built (or was torn down) may have no dictionary yet.
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _has_parameters(module: nn.Module) -> bool:
    if "_parameters" not in module.__dict__:
        return False
    return next(module.parameters(), None) is not None


def describe(root: nn.Module, taken: set[str]) -> Model:
    """Names ``root`` by its class, apart from the names already ``taken``."""
    inner, prefix, wrapper = root, "", ""
    while True:
        if type(inner).__name__ in ("DistributedDataParallel", "DataParallel") and hasattr(inner, "module"):
            wrapper, prefix = wrapper or type(inner).__name__, prefix + "module."
            inner = inner._modules["module"]  # type: ignore[assignment]
        elif "_orig_mod" in inner.__dict__.get("_modules", {}):
            prefix, inner = prefix + "_orig_mod.", inner._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            break
    cls = type(inner).__name__
    if cls.startswith("FSDP") and hasattr(inner, "unshard"):
        wrapper, cls = "FSDP2", cls.removeprefix("FSDP")
    name, count = cls, 1
    while name in taken:
        count += 1
        name = f"{cls}#{count}"
    taken.add(name)
    return Model(name, weakref.ref(root), cls, wrapper, prefix)


def blocks(model: Model, *, every: bool = False) -> list[tuple[str, nn.Module]]:
    """The modules to watch: stacked layers and what stands beside them; with ``every``, each one that runs."""
    root = model.root()
    if root is None:
        return []
    if compiled(root):
        return [("", root)]
    found = list(_every(root)) if every else list(_chosen(root, "", 0))
    limit = MOST_LEAVES if every else MOST_BLOCKS
    if len(found) > limit:
        keep = {round(i * (len(found) - 1) / (limit - 1)) for i in range(limit)}
        found = [block for i, block in enumerate(found) if i in keep]
    return [("", root), *((model.path(path), module) for path, module in found if module is not root)]


def parts(model: Model) -> list[str]:
    """The paths of the blocks, those inside compiled code too."""
    root = model.root()
    found = _chosen(_bare(root), "", 0, through=True) if root is not None else ()
    return list(dict.fromkeys(path for raw, _ in found if (path := model.path(raw))))


def _bare(module: nn.Module) -> nn.Module:
    """What was compiled, without what stands around it."""
    while (inner := module.__dict__.get("_modules", {}).get("_orig_mod")) is not None:
        module = inner
    return module


def compiled(module: nn.Module) -> bool:
    """Whether hooks inside ``module`` would be traced into a compiled graph."""
    return "_orig_mod" in module.__dict__.get("_modules", {}) or (
        getattr(module, "_compiled_call_impl", None) is not None
    )


def _chosen(module: nn.Module, prefix: str, depth: int, *, through: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """``through``: what is compiled is no boundary."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if through:
            child = _bare(child)
        if compiled(child) and not through:
            yield path, child
        elif _is_container(child) or (depth < _DEPTH and _holds_stack(child)):
            if not _is_container(child):
                yield path, child
            if _is_stack(child):
                yield from _layers(child, path, through=through)
            else:
                yield from _chosen(child, f"{path}.", depth + 1, through=through)
        elif _has_parameters(child):
            yield path, child


def _layers(stack: nn.Module, path: str, *, through: bool) -> Iterator[tuple[str, nn.Module]]:
    for name, child in stack.named_children():
        layer = _bare(child) if through else child
        if _is_container(layer) and (through or not compiled(layer)):
            yield from _chosen(layer, f"{path}.{name}.", _DEPTH, through=through)
        elif _has_parameters(layer):
            yield f"{path}.{name}", layer


def _every(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    def walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if compiled(child):
                yield path, child
                continue
            if not _is_container(child):
                yield path, child
            yield from walk(child, f"{path}.")

    yield from walk(root, "")


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) or type(module).forward is _UNIMPLEMENTED


def _is_stack(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) and len(_children(module)) >= 2


def _holds_stack(module: nn.Module) -> bool:
    return any(isinstance(child, nn.ModuleList) and len(child) >= 2 for child in module.modules())


def parameters(model: Model) -> Iterator[tuple[str, nn.Parameter, str | None]]:
    """(name, parameter, alias of): every name; a shared parameter's later names point to its first."""
    root = model.root()
    if root is None:
        return
    first: dict[int, str] = {}
    for raw, parameter in root.named_parameters(remove_duplicate=False):
        name = model.path(raw)
        known = first.setdefault(id(parameter), name)
        yield name, parameter, None if known == name else known


def leaves(loss: torch.Tensor, most: int = 20_000) -> list[torch.Tensor]:
    """The leaf tensors that ``loss`` depends on, read off its autograd graph (at most ``most`` nodes of it)."""
    start: Any = loss.grad_fn
    seen, stack, found = {id(start)}, [start], []
    keep = [start]  # graph nodes are made on demand: an id is only unique while its node is alive
    while stack and len(seen) < most:
        node = stack.pop()
        if node is None:
            continue
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        for following, _ in node.next_functions:
            if following is not None and id(following) not in seen:
                seen.add(id(following))
                keep.append(following)
                stack.append(following)
    return found


def passed_through(models: list[Model], error: BaseException) -> tuple[str, str] | None:
    """Path and model of the innermost module whose code ``error`` passed through on its way out."""
    paths = {}
    for model in models:
        root = model.root()
        for raw, module in root.named_modules() if root is not None else ():
            paths[id(module)] = model.path(raw), model.name
    found, trace = None, error.__traceback__
    while trace is not None:
        found = paths.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found if found is not None and found[0] else None
