"""Which models take part in this run.

Enters: parameters that somebody optimizes or differentiates, modules that run. Leaves: ``models``, each introduced
to the journal when it first takes part, and a call when that changes.

A process may hold models that have nothing to do with the run (an earlier experiment in a notebook, a copy for
evaluation). They are left unnamed until they are called with gradients or on their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from brickprof.capture import models

if TYPE_CHECKING:
    from brickprof.capture.book import Book

Fact = Callable[[str, dict[str, Any]], None]


class Census:
    def __init__(self, book: Book, fact: Fact, changed: Callable[[], None]) -> None:
        self._book = book
        self._fact = fact
        self._changed = changed
        self._wanted: set[int] = set()
        self._waiting: dict[int, Any] = {}
        self._waiting_for: dict[int, weakref.ref[nn.Module]] = {}
        self._signature: tuple[int, ...] = ()
        self.models: list[models.Model] = []
        self.due = False
        """Whether the next backward should compare the leaves of its loss with what is known."""
        self.wrapped = False
        """Whether somebody put a known model into a new module, which is the root from now on."""

    def want(self, parameters: Iterable[torch.Tensor]) -> None:
        """These take part; the modules that hold them do too."""
        fresh = [p for p in parameters if self._book.get(p) is None]
        self._wanted.update(map(id, fresh))
        if fresh or not self.models:
            self.look()

    def want_leaves(self, losses: Sequence[torch.Tensor]) -> None:
        self.due = False
        if self.wrapped:
            self.wrapped = False
            self.look()
        unknown = [leaf for loss in losses for leaf in models.leaves(loss) if self._book.get(leaf) is None]
        if unknown:
            self.want(unknown)
            self._refresh()
        for leaf in unknown:
            self._book.entry(leaf)  # one that no module holds gets a name of its own

    def look(self) -> None:
        """Finds models by asking what modules exist; says so if that changed anything."""
        found = models.find_roots(self._wanted)
        known = {id(root): model for model in self.models if (root := model.root()) is not None}
        kept = [known[id(root)] for root in found if id(root) in known]
        fresh = [root for root in found if id(root) not in known]
        joining = [root for root in fresh if self._takes_part(root, known)]
        for root in fresh:
            if root not in joining:
                self._wait_for(root)
        if joining or len(kept) != len(self.models):
            self._settle(kept, joining, known)

    def rescan(self) -> None:
        """Modules replaced, added or wrapped since the last look."""
        self._refresh()
        self.due = True

    def _refresh(self) -> None:
        if self._modules() != self._signature:
            for model in self.models:
                self._book.enter_model(model)
            self.look()
            self._signature = self._modules()
            self._changed()

    def roots(self) -> list[nn.Module]:
        """Of all models, and of those that take no part yet."""
        waiting = (reference() for reference in self._waiting_for.values())
        return [root for root in (*(model.root() for model in self.models), *waiting) if root is not None]

    def stop_waiting(self) -> None:
        """Takes every waiting hook out: the run ends, or something is about to be compiled."""
        waiting, self._waiting, self._waiting_for = self._waiting, {}, {}
        for handle in waiting.values():
            handle.remove()

    def _takes_part(self, root: nn.Module, known: dict[int, models.Model]) -> bool:
        if any(id(parameter) in self._wanted for parameter in root.parameters()):
            return True
        return any(id(module) in known for module in root.modules())  # it wraps one that does

    def _settle(self, kept: list[models.Model], joining: list[nn.Module], known: dict[int, models.Model]) -> None:
        names = {model.name for model in kept}
        self.models = list(kept)
        for root in joining:
            inside = next((known[id(m)] for m in root.modules() if id(m) in known), None)
            self.models.append(self._introduce(root, names, inside))
        self._signature = self._modules()
        self._changed()

    def _introduce(self, root: nn.Module, taken: set[str], inside: models.Model | None) -> models.Model:
        model = models.describe(root, taken)
        if inside is not None and inside.cls == model.cls:
            model.name = inside.name  # the same model in a wrapper: DDP, compile
        self._book.enter_model(model)
        parameters = list(root.parameters())
        fields = {
            "model": model.name,
            "cls": model.cls,
            "parameters": sum(p.numel() for p in parameters),
            "trainable": sum(p.numel() for p in parameters if p.requires_grad),
            "wrapper": model.wrapper,
            "compiled": models.compiled(root),
        }
        self._fact("model", fields)
        return model

    def _wait_for(self, root: nn.Module) -> None:
        """A module that takes no part yet: it joins when it is called."""
        if id(root) in self._waiting or models.compiled(root) or len(self._waiting) >= models.MOST_ROOTS:
            return

        self._waiting_for[id(root)] = weakref.ref(root)
        self._waiting[id(root)] = root.register_forward_pre_hook(self._called)

    def _called(self, module: nn.Module, _args: Any) -> None:
        """The hook on a module that is waited for."""
        if torch.compiler.is_compiling():
            return
        try:
            handle = self._waiting.pop(id(module), None)
            self._waiting_for.pop(id(module), None)
            if handle is not None:
                handle.remove()
                self.want(module.parameters())
        except Exception:
            return

    def _modules(self) -> tuple[int, ...]:
        roots = (model.root() for model in self.models)
        return tuple(hash(tuple(map(id, root.modules()))) for root in roots if root is not None)
