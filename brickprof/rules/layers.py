"""A quantity over the depth of a model: layer by layer, of like tensors.

Enters: a grid of samples (gradients, weights) or block outputs. Leaves: a ``Stack`` for each row of numbered layers
("blocks.0", "blocks.1", ...), or for all weight matrices of a model in the order of its forward pass, with one size for
each layer. Only matrices are compared, per element, and like with like: biases and embeddings have scales of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.rules.story import Grid, Story

Floats = npt.NDArray[np.float64]
_FEWEST = 4
_NUMBERED = re.compile(r"^(?P<stack>.*?)(?:^|\.)(?P<layer>\d+)\.(?P<rest>.+)$")


class Stack(NamedTuple):
    """Layers in the order of the forward pass and the columns of the grid that belong to each."""

    name: str
    layers: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]
    composite: bool
    """Whether a layer holds several matrices, as a block around which a skip leads does."""

    def sizes(self, grid: Grid, look: int) -> Floats:
        """The size per element of each layer's matrices at one look; NaN where nothing was measured."""
        rms = grid.unscaled_l2[look] / np.sqrt(np.maximum(grid.row("numel", look), 1))
        with np.errstate(divide="ignore"):
            logs = np.log(rms)
        sizes: Floats = np.exp(_means(logs, self.places))
        return sizes


def spread(places: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """At most ``most`` of ``places``, evenly: a hundred looks say no more about a law than thirty."""
    if len(places) <= most:
        return places
    chosen: npt.NDArray[np.int64] = places[np.linspace(0, len(places) - 1, most).astype(int)]
    return chosen


def _means(logs: Floats, layers: tuple[tuple[int, ...], ...]) -> Floats:
    if len({len(layer) for layer in layers}) == 1:
        table = logs[np.asarray(layers)]
        if not np.any(np.isnan(table) | (table == np.inf)):  # all at once, to the same bits
            found: Floats = table.mean(axis=1)
            return found
    return np.asarray([_mean([logs[place] for place in layer]) for layer in layers])


def _mean(logs: list[float]) -> float:
    known = [value for value in logs if not math.isnan(value) and value != math.inf]
    return float(np.mean(known)) if known else math.nan


def stacks(story: Story, grid: Grid) -> list[Stack]:
    """Every stack of at least four layers whose matrices stand in ``grid``."""
    return _numbered(story, grid) or _in_order(story, grid)


def _matrices(story: Story, grid: Grid) -> list[int]:
    known = shapes(story, grid.rank)
    return [place for place, name in enumerate(grid.tensors) if len(known.get(name, ())) >= 2]


def shapes(story: Story, rank: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by its name with and without its model's."""
    found: dict[str, tuple[int, ...]] = {}
    for event in story.events("tensor", rank):
        shape, name = event.fields.get("shape"), str(event.fields.get("name", ""))
        if isinstance(shape, list) and all(isinstance(size, int) for size in shape):
            found[name] = found[f"{event.fields.get('model', '')}.{name}"] = tuple(shape)
    return found


def _numbered(story: Story, grid: Grid) -> list[Stack]:
    rows: dict[str, dict[int, dict[str, int]]] = {}
    for place in _matrices(story, grid):
        match = _NUMBERED.match(grid.tensors[place])
        if match:
            layers = rows.setdefault(match["stack"], {})
            layers.setdefault(int(match["layer"]), {})[match["rest"]] = place
    known = shapes(story, grid.rank)
    found = [_stack(name, layers, known, grid) for name, layers in rows.items()]
    return [stack for stack in found if stack is not None]


def _stack(name: str, layers: dict[int, dict[str, int]], known: dict[str, tuple[int, ...]], grid: Grid) -> Stack | None:
    """The layers that have the same matrices: the most common kind of layer."""
    kinds = {
        number: tuple(sorted((rest, known[grid.tensors[place]]) for rest, place in members.items()))
        for number, members in layers.items()
    }
    common, times = Counter(kinds.values()).most_common(1)[0]
    if times < _FEWEST:
        return None
    alike = [number for number in sorted(layers) if kinds[number] == common]
    prefix = f"{name}." if name else ""
    places = tuple(tuple(layers[number].values()) for number in alike)
    return Stack(name, tuple(f"{prefix}{number}" for number in alike), places, len(common) >= 2)


def _in_order(story: Story, grid: Grid) -> list[Stack]:
    """Without numbered layers: all matrices of one size, in the order in which their blocks run."""
    known = shapes(story, grid.rank)
    matrices = _matrices(story, grid)
    if not matrices:
        return []
    common = Counter(math.prod(known[grid.tensors[place]]) for place in matrices).most_common(1)[0][0]
    alike = [place for place in matrices if math.prod(known[grid.tensors[place]]) == common]
    deep = {place: story.depth.of(grid.bricks[place]) for place in alike}
    if len(alike) < _FEWEST or any(depth is None for depth in deep.values()):
        return []
    ordered = sorted(alike, key=lambda place: deep[place] or 0)
    names = tuple(grid.bricks[place].path or grid.tensors[place] for place in ordered)
    return [Stack("", names, tuple((place,) for place in ordered), False)]


class Growth(NamedTuple):
    """How gradients change from the layer with the smallest to the one with the largest."""

    per_layer: float
    factor: float
    low: str
    high: str
    low_size: float
    high_size: float
    layers: int
    evidence: tuple[str, ...]
    towards_input: bool

    @property
    def text(self) -> str:
        return (
            f"gradients grow {self.per_layer:.2g}x per layer over {self.layers:,} layers, "
            f"from {self.low_size:.2g} ({self.low}) to {self.high_size:.2g} ({self.high})"
        )


def gradient_growth(story: Story, rank: int, step: int) -> Growth | None:
    """The growth of gradients over depth at the last look up to ``step``."""
    grid = story.grid("grad", rank)
    rows = np.flatnonzero(grid.steps <= step)
    found = [
        growth for row in rows[-1:] for stack in stacks(story, grid) if (growth := growth_at(grid, stack, int(row)))
    ]
    return max(found, key=lambda growth: growth.factor, default=None)


def growth_at(grid: Grid, stack: Stack, look: int) -> Growth | None:
    sizes = stack.sizes(grid, look)
    known = np.flatnonzero(np.isfinite(sizes) & (sizes > 0))
    if len(known) < _FEWEST:
        return None
    low, high = known[np.argmin(sizes[known])], known[np.argmax(sizes[known])]
    apart = max(1, abs(int(high) - int(low)))
    factor = float(sizes[high] / sizes[low])
    evidence = tuple(grid.evidence(look, stack.places[place][0]) for place in (int(low), int(high)))
    return Growth(
        factor ** (1 / apart), factor, stack.layers[low], stack.layers[high], float(sizes[low]), float(sizes[high]),
        apart + 1, evidence, bool(high < low),
    )  # fmt: skip


def steadiness(sizes: Floats) -> float:
    """How steadily sizes rise (1) or fall (-1) with depth: the rank correlation of the known ones."""
    known = sizes[np.isfinite(sizes) & (sizes > 0)]
    if len(known) < _FEWEST:
        return 0.0
    ranks = np.argsort(np.argsort(known)).astype(float)
    return float(np.corrcoef(ranks, np.arange(len(known)))[0, 1])
