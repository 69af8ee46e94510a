"""Wiring: what a sequence model is asked to predict, and what it can see while it does.

Enters: the graph behind a loss over tokens, in a few early steps. Leaves: a ``wiring`` event: how often the target at a
place is the input token so many places on, and of every attention whose keys come from those tokens whether a place
sees the next one, and whether its keys tell places apart. All from what autograd saved: no forward is run again, and
nothing inside a compiled or checkpointed part is seen.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from brickprof.capture import graph, models
from brickprof.capture.graph_probe import GraphProbe
from brickprof.capture.session import Session

SHIFTS = (-2, -1, 0, 1, 2)
_MOST_ATTENTIONS = 16
_ROWS = 8
_SHORTEST = 4
_LONGEST = 4096
_TO_KEYS = 12


_compiling = torch.compiler.is_compiling


class _Tokens(NamedTuple):
    """What was embedded, and what is to be predicted at the same places; -1 where nothing is."""

    node: Any
    inputs: torch.Tensor
    targets: torch.Tensor


class WiringProbe(GraphProbe):
    name = "wiring"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._idle: list[str] = []
        self._placeless = False
        """Whether a first attention was seen that is not told where its tokens stand."""
        self._tables: dict[str, bool] = {}
        """Modules that hold a table and no weights, by path, and whether they ran: rotations, places."""
        self._handles: list[Any] = []

    def step_begin(self, step: int) -> None:
        if self._placeless and not self._handles and self.session.on.full and self.looks < self.most_looks:
            for model in self.session.models:
                root = model.root()
                for raw, module in root.named_modules() if root is not None and not models.compiled(root) else ():
                    if _is_table(module):
                        self._tables[path := model.path(raw)] = False
                        self._handles.append(module.register_forward_pre_hook(_Ran(self._tables, path).runs))

    def _unhook(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def compiling(self, module: Any) -> None:
        self._unhook()

    def close(self) -> None:
        self._unhook()

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        self._idle = [path for path, ran in self._tables.items() if not ran] if self._handles else []
        self._unhook()
        super().backward_begin(losses, upstream)

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        tokens = _tokens(nodes)
        if not tokens:
            return
        reached = _reached(nodes, {id(each.node) for each in tokens})
        for each in tokens:
            self._tell(each, [node for node in nodes if _over_places(node, each, reached)][:_MOST_ATTENTIONS])

    def _tell(self, tokens: _Tokens, attentions: list[graph.Node]) -> None:
        session, step, idle = self.session, self.session.step, self._idle
        bricks = [graph.owner(_keys(node), session.book) for node in attentions]
        seen = [part for node in attentions for part in (_sees_next(node, tokens), _placeless(node, tokens))]
        rows, places = tokens.targets.shape
        about = {"places": tokens.inputs.shape[1], "rows": rows}
        known = [part for part in seen if isinstance(part, torch.Tensor)]
        parts = [tokens.inputs.reshape(-1), tokens.targets.reshape(-1), *(part.reshape(1) for part in known)]

        def arrived(host: torch.Tensor) -> None:
            values = host.numpy()
            split = rows * about["places"]
            inputs = values[:split].reshape(rows, -1)
            targets = values[split : split + rows * places].reshape(rows, places)
            rest = iter(values[split + rows * places :].tolist())
            shares = [next(rest) if isinstance(part, torch.Tensor) else part for part in seen]
            shares = [None if share is None or share != share else round(share, 4) for share in shares]
            fields = about | {
                "shifts": [[shift, _agreement(inputs, targets, shift)] for shift in SHIFTS],
                "attention": [
                    {"brick": brick, "next": shares[at], "placeless": shares[at + 1]}
                    for brick, at in zip(bricks, range(0, len(shares), 2), strict=True)
                ],
            }
            self._placeless = self._placeless or (shares[1:2] == [1.0])
            session.fact("wiring", fields | ({"idle": idle} if idle else {}), step=step, wanted=True)

        session.readback.read(torch.cat([part.float() for part in parts]), arrived)


class _Ran:
    """The hook on one module that holds a table."""

    __slots__ = ("_path", "_tables")

    def __init__(self, tables: dict[str, bool], path: str) -> None:
        self._tables = tables
        self._path = path

    def runs(self, _module: Any, _args: Any) -> None:
        if not _compiling():
            self._tables[self._path] = True


def _is_table(module: torch.nn.Module) -> bool:
    """Buffers of numbers, and no weights: what a rotation or a table of places holds."""
    buffers = [b for b in module.buffers(recurse=False) if b.is_floating_point() and b.numel() >= _SHORTEST]
    return bool(buffers) and next(module.parameters(recurse=False), None) is None


def _tokens(nodes: list[graph.Node]) -> list[_Tokens]:
    """Embedded token ids whose places are those of the targets."""
    wanted = [target for node in nodes if (target := _targets(node)) is not None]
    found = []
    for node in nodes:
        if node.op != "Embedding" or not wanted:
            continue
        ids = next((value for name, value in graph.saved(node.function) if name == "indices"), None)
        if ids is None or ids.dim() != 2 or not _SHORTEST <= ids.shape[1] <= _LONGEST:
            continue
        target = _fitted(wanted[-1], ids)
        if target is not None:
            found.append(_Tokens(node.function, ids.detach()[:_ROWS], target[:_ROWS]))
    return found


def _targets(node: graph.Node) -> torch.Tensor | None:
    """The classes that a loss picks, as they were given; -1 where it ignores them."""
    if node.op not in ("NllLoss", "NllLoss2D"):
        return None
    target = next((value for name, value in graph.saved(node.function) if name == "target"), None)
    if target is None or target.is_floating_point():
        return None
    ignored = graph.setting(node.function, "ignore_index")
    given = target.detach()
    # Stored as an unsigned 64-bit number: -100 comes back as 2 ** 64 - 100.
    left_out = given == ignored - (1 << 64) if isinstance(ignored, int) and ignored >= 1 << 63 else given == ignored
    return given.masked_fill(left_out, -1) if isinstance(left_out, torch.Tensor) else given


def _fitted(target: torch.Tensor, ids: torch.Tensor) -> torch.Tensor | None:
    """The targets by row and place; one place less than inputs where the model's code did the shift."""
    rows, places = ids.shape
    if target.dim() == 2 and target.shape[0] == rows and target.shape[1] in (places, places - 1):
        return target
    flat = target.reshape(-1)
    if flat.numel() == rows * places:
        return flat.view(rows, places)
    if flat.numel() == rows * (places - 1):
        return flat.view(rows, places - 1)
    return None


def _agreement(inputs: Any, targets: Any, shift: int) -> float | None:
    """The share of scored places whose target is the input ``shift`` places on."""
    first, last = max(0, -shift), min(targets.shape[1], inputs.shape[1] - shift)
    wanted, given = targets[:, first:last], inputs[:, first + shift : last + shift]
    scored = wanted >= 0
    return round(float(((wanted == given) & scored).sum() / scored.sum()), 4) if scored.any() else None


def _reached(nodes: list[graph.Node], leaves: set[int]) -> dict[int, frozenset[int]]:
    """By the id of a node: which of ``leaves`` it is computed from. Nodes come in the order of the forward."""
    found: dict[int, frozenset[int]] = {}
    for node in nodes:
        function = node.function
        below = frozenset({id(function)}) if id(function) in leaves else frozenset()
        for following, _ in function.next_functions:
            if following is not None:
                below |= found.get(id(following), frozenset())
        found[id(function)] = below
    return found


def _over_places(node: graph.Node, tokens: _Tokens, reached: dict[int, frozenset[int]]) -> bool:
    """An attention among the places of ``tokens``: its keys are computed from them."""
    places = tokens.inputs.shape[1]
    if node.op.startswith("ScaledDotProduct"):
        query = _saved(node, "query")
        key = _saved(node, "key")
        if query is None or key is None or query.shape[-2] != places or key.shape[-2] != places:
            return False
    elif node.op in ("Softmax", "SafeSoftmax"):
        weights = _saved(node, "result")
        if weights is None or weights.dim() < 3 or tuple(weights.shape[-2:]) != (places, places):
            return False
    else:
        return False
    keys = _keys(node)
    return keys is not None and id(tokens.node) in reached.get(id(keys), frozenset())


def _keys(node: graph.Node) -> Any:
    """The node that made the keys: the second factor of the product behind the scores."""
    function = node.function
    if node.op.startswith("ScaledDotProduct"):
        return function.next_functions[1][0] if len(function.next_functions) > 1 else None
    for _ in range(_TO_KEYS):
        following = [each for each, _ in function.next_functions if each is not None]
        if type(function).__name__.startswith(("Bmm", "Matmul", "Baddbmm")):
            return following[-1] if len(following) > 1 else None
        if not following:
            return None
        function = following[0]
    return None


def _saved(node: graph.Node, name: str) -> torch.Tensor | None:
    return next((value.detach() for saved, value in graph.saved(node.function) if saved == name), None)


def _sees_next(node: graph.Node, tokens: _Tokens) -> torch.Tensor | float | None:
    """The share of scored places whose attention reaches the next place; None when that cannot be told."""
    if node.op.startswith("ScaledDotProduct"):
        mask = _saved(node, "attn_mask")
        mask = _saved(node, "attn_bias") if mask is None else mask
        if graph.setting(node.function, "is_causal"):
            return 0.0
        if mask is None:
            return 1.0
        if mask.dim() < 2 or mask.shape[-1] != tokens.inputs.shape[1] or mask.shape[-2] != mask.shape[-1]:
            return None
        after = mask.reshape(-1, *mask.shape[-2:])[:_ROWS].diagonal(1, -2, -1)
        open_ = (after if mask.dtype == torch.bool else after > -1e4).any(0)
    else:
        weights = _saved(node, "result")
        if weights is None:
            return None
        open_ = (weights.reshape(-1, *weights.shape[-2:])[:_ROWS].diagonal(1, -2, -1) > 0).any(0)
    scored = (tokens.targets >= 0)[:, : tokens.targets.shape[1] - 1].any(0)
    return (open_[: scored.shape[0]] & scored).sum() / scored.sum()


def _placeless(node: graph.Node, tokens: _Tokens) -> torch.Tensor | None:
    """Of the pairs of neighbours of one row that hold the same token, the share with the very same key.

    1 in a first layer means that nothing has told it where a token stands. None where a bias may do that instead, NaN
    where there are too few pairs.
    """
    if not node.op.startswith("ScaledDotProduct") or any(
        _saved(node, name) is not None for name in ("attn_mask", "attn_bias")
    ):
        return None
    key = _saved(node, "key")
    if key is None or key.dim() != 4 or key.shape[0] < tokens.inputs.shape[0]:
        return None
    rows, ids = key[: tokens.inputs.shape[0], 0].float(), tokens.inputs
    same = pairs = torch.zeros((), device=ids.device)
    for apart in (1, 2, 3):
        alike = ids[:, apart:] == ids[:, :-apart]
        gap = (rows[:, apart:] - rows[:, :-apart]).abs().amax(-1)
        size = rows.abs().amax(-1)[:, apart:]
        same = same + (alike & (gap <= 1e-5 * size + 1e-12)).sum()
        pairs = pairs + alike.sum()
    return torch.where(pairs >= _SHORTEST, same / pairs, math.nan)
