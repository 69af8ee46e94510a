"""C-INIT-001: a model starts where it can learn: weights random, signals and the first loss of a fitting size.

Enters: the story's first looks: weights, block outputs, the first loss against what guessing costs. Leaves: one result;
broken are weights that are all zero or all the same (every unit stays alike), weights that follow a wave, outputs that
grow from layer to layer, and a first loss far above that of a model that knows nothing. Large inputs and loaded weights
are other matters, and not judged here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.layers import shapes, steadiness
from brickprof.rules.names import number, whole
from brickprof.rules.story import Grid, Story

CONTRACT = "C-INIT-001"
_FOLLOWS = frozenset(
    {"nonfinite", "exploding", "diverged", "spike", "not-learning", "plateau", "no-gradient", "gradient-growth",
     "gradient-decay", "dead-units", "saturated-units", "small-updates"}
)  # fmt: skip
_FEWEST = 4
_REPLACED = 0.5
_KEEPS = 2.0
"""A matrix that multiplies a signal by no more than this keeps its size."""


class Fault(NamedTuple):
    symptom: str
    why: str
    evidence: tuple[str, ...]
    action: str
    asked: str = "How did the model start?"
    brick: str = ""
    certainty: float = 0.9
    step: int = 0
    severity: Severity = Severity.WARNING
    cause: str = "bad-initialisation"


class Initialisation:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "random weights, a first loss near that of guessing"
        if not story.trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no training was observed")
        rank = story.ranks[0]
        if _loaded(story, rank):
            why = "weights were loaded: the run does not start from an initialisation"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, why)
        first = _first_loss(story, rank)
        fault = (
            _alike(story, rank, contract)
            or _wave(story, rank, contract)
            or _growing_outputs(story, rank, contract)
            or _high_loss(story, rank, first, contract)
        )
        if fault is not None:
            violation = _violation(fault, rank)
            return ContractResult(CONTRACT, Verdict.FAIL, fault.symptom, threshold, fault.symptom, (violation,))
        if not len(story.grid("weight", rank)) and first is None:
            why = "neither weights nor a classification loss were looked at in the first steps"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, why)
        observed = f"first loss {first[1]:.3g}, guessing costs {first[2]:.3g}" if first else "weights differ, no wave"
        return ContractResult(CONTRACT, Verdict.PASS, observed, threshold)


def _loaded(story: Story, rank: int) -> bool:
    loads = [event for event in story.events("checkpoint", rank) if event.fields.get("op") == "load"]
    return bool(loads or story.events("restored", rank))


def _violation(fault: Fault, rank: int) -> Violation:
    return Violation(
        CONTRACT, "initialisation", fault.severity, fault.symptom, 0, fault.step, fault.brick, "block", rank,
        fault.evidence, {"question": "How did the model start?", "asked": fault.asked},
        cause=fault.cause, certainty=fault.certainty, explains=_FOLLOWS, static=True, action=fault.action,
        whys=(Because("What is wrong with the start?", fault.why, fault.brick, fault.evidence),),
        experiment="Leave torch's own initialisation of these layers in place and compare the first ten losses.",
    )  # fmt: skip


# -- weights that do not differ


def _alike(story: Story, rank: int, contract: Contract) -> Fault | None:
    """Matrices that are zero and stay so, or whose elements all started as one number."""
    grid = story.grid("weight", rank)
    matrices = _matrices(story, grid)
    if not matrices:
        return None
    zero = [place for place in matrices if _stays_zero(grid, place, contract)]
    equal = [place for place in matrices if _constant(grid, place, contract)]
    found, what = (zero, "zero") if len(zero) >= len(equal) else (equal, "one and the same number")
    if len(found) < 2 or len(found) < 0.5 * len(matrices):
        return None
    names = ", ".join(grid.tensors[place] for place in found[:3])
    evidence = tuple(grid.evidence(0, place) for place in found[:3])
    return Fault(
        f"the weights of {wording.count(len(found), 'matrix', 'matrices')} ({names}) start as {what}",
        "All units of such a layer compute the same and get the same gradient, or none: nothing makes them differ.",
        evidence, "Draw weights at random (kaiming_uniform_, normal_ with std 0.02); only biases may start at zero.",
        brick=grid.bricks[found[0]].path, step=_seen(grid, contract),
        asked="Why do the weights not move?" if what == "zero" else "Why are the units alike?",
        certainty=0.95, severity=Severity.ERROR,
    )  # fmt: skip


def _seen(grid: Grid, contract: Contract) -> int:
    return int(grid.steps[min(len(grid.steps) - 1, int(contract.threshold("looks")) - 1)])


def _matrices(story: Story, grid: Grid) -> list[int]:
    known = shapes(story, grid.rank)
    trained = {tensor.name for tensor in story.names.tensors(grid.rank) if story.names.trained(grid.rank, tensor)}
    return [
        place for place, name in enumerate(grid.tensors)
        if len(known.get(name, ())) >= 2 and math.prod(known[name]) >= 16
        and (name in trained or name.partition(".")[2] in trained)
    ]  # fmt: skip


def _stays_zero(grid: Grid, place: int, contract: Contract) -> bool:
    sizes = grid.l2[:, place]
    looked = sizes[np.isfinite(sizes)]
    return len(looked) >= contract.threshold("looks") and not looked.any()


def _constant(grid: Grid, place: int, contract: Contract) -> bool:
    if not len(grid) or grid.steps[0] > 2:
        return False
    rms, mean = grid.rms[0, place], grid.mean[0, place]
    return bool(rms > 0 and 1 - (mean / rms) ** 2 < contract.threshold("spread"))


# -- weights that follow a wave


def _wave(story: Story, rank: int, contract: Contract) -> Fault | None:
    """A sine has its largest value at sqrt(2) of its root mean square; uniform weights at sqrt(3), normal ones at 3."""
    grid = story.grid("weight", rank)
    if not len(grid) or grid.steps[0] > 2:
        return None
    known = shapes(story, rank)
    large = [place for place in _matrices(story, grid) if math.prod(known[grid.tensors[place]]) >= 256]
    with np.errstate(divide="ignore", invalid="ignore"):
        crest = grid.absmax[0] / grid.rms[0]
    waves = [place for place in large if abs(crest[place] / math.sqrt(2) - 1) < contract.threshold("crest")]
    if len(waves) < 2 or len(waves) < 0.5 * len(large):
        return None
    shown = f"{crest[waves[0]]:.3f}"
    return Fault(
        f"{len(waves):,} of {wording.count(len(large), 'weight matrix', 'weight matrices')} start as a wave: their "
        f"largest value is {shown} times their root mean square",
        "That is sqrt(2), a sine's. Random weights have 1.73 (uniform) or about 3 to 5 (normal); neighbours in a wave "
        "are alike, so units are.",
        tuple(grid.evidence(0, place) for place in waves[:3]),
        "Draw weights at random instead of computing them from their index.",
        brick=grid.bricks[waves[0]].path, certainty=0.85, step=int(grid.steps[0]),
    )  # fmt: skip


# -- outputs that grow from layer to layer


def _growing_outputs(story: Story, rank: int, contract: Contract) -> Fault | None:
    grid = story.grid("activation", rank)
    if not len(grid) or grid.steps[0] > 2:
        return None
    ordered = _in_order(story, grid)
    sizes = np.asarray([grid.rms[0, place] for place in ordered])
    sizes = np.where(np.isfinite(sizes) & (sizes > 0), sizes, np.nan)
    if np.isfinite(sizes).sum() < _FEWEST or steadiness(sizes) < contract.threshold("steady"):
        return None
    low, high = int(np.nanargmin(sizes)), int(np.nanargmax(sizes))
    factor = float(sizes[high] / sizes[low])
    if factor < contract.threshold("output_growth") or sizes[high] < contract.threshold("large_output"):
        return None
    names = [grid.bricks[ordered[place]].path for place in (low, high)]
    evidence = tuple(grid.evidence(0, ordered[place]) for place in (low, high))
    per_layer = factor ** (1 / max(1, high - low))
    gain = _loudest(story, rank)
    fault = Fault(
        f"outputs grow {per_layer:.2g}x per layer before any update: {sizes[low]:.2g} ({names[0]}) to "
        f"{sizes[high]:.2g} ({names[1]})",
        _scale_text(gain), evidence,
        "Scale weights by their fan-in (kaiming or xavier), and residual branches by 1/sqrt(2 layers).",
        brick=names[1], step=int(grid.steps[0]),
    )  # fmt: skip
    return _between(fault, gain) if gain is not None and gain.factor <= min(_KEEPS, per_layer) else fault


def _between(fault: Fault, gain: Gain) -> Fault:
    """No weight makes the signal larger, and yet it grows: what stands between the weights does it."""
    why = (
        f"Not the weights: the largest of them ({gain.tensor}) multiplies a signal by {gain.factor:.2g}. What the "
        "layers do besides (sums over neighbours, tokens or channels, no normalisation) makes it grow."
    )
    action = "Divide sums by how many things they add up, or normalise between the layers."
    return fault._replace(why=why, action=action, cause="exploding-gradients", brick="")


def _in_order(story: Story, grid: Grid) -> list[int]:
    """The innermost blocks in the order of the forward pass."""
    paths = {place: brick.path for place, brick in enumerate(grid.bricks) if np.isfinite(grid.rms[0, place])}
    inner = [
        place for place, path in paths.items()
        if path and not any(other.startswith(f"{path}.") for other in paths.values())
    ]  # fmt: skip
    deep = {place: story.depth.of(grid.bricks[place]) for place in inner}
    return sorted((place for place in inner if deep[place] is not None), key=lambda place: deep[place] or 0)


class Gain(NamedTuple):
    """By how much a matrix multiplies the size of a signal."""

    factor: float
    tensor: str
    brick: str
    size: float
    fan_in: int

    @property
    def text(self) -> str:
        return (
            f"{self.tensor} has a standard deviation of {self.size:.3g} at a fan-in of {self.fan_in:,}: it multiplies "
            f"a signal by about {self.factor:.2g}, where 1 to 2 keeps its size."
        )


def _loudest(story: Story, rank: int) -> Gain | None:
    """The matrix that is furthest from keeping a signal's size; one whose outputs show it before one that only could.

    The rows of an embedding are looked up, not added up: they are loud only where the same weights also make an output.
    """
    grid, known = story.grid("weight", rank), shapes(story, rank)
    gains = []
    sizes = _first_sizes(story, rank)
    for place in _matrices(story, grid) if len(grid) else []:
        fan_in, size = math.prod(known[grid.tensors[place]][1:]), sizes.get(grid.tensors[place], math.nan)
        if math.isfinite(size):
            brick = story.names.show(grid.bricks[place])
            gains.append(Gain(size * math.sqrt(fan_in), grid.tensors[place], brick, size, fan_in))
    outputs = _first_outputs(story, rank)
    shown = [gain for gain in gains if _shows(gain, story, rank, outputs)]
    return max(shown or gains, key=lambda gain: gain.factor, default=None)


def _first_sizes(story: Story, rank: int) -> dict[str, float]:
    """The root mean square of each tensor before the first update: weights are looked at after it."""
    grid, updates = story.grid("weight", rank), story.grid("update", rank)
    found = {name: float(grid.rms[0, place]) for place, name in enumerate(grid.tensors)} if len(grid) else {}
    if not len(updates) or updates.steps[0] != 0:
        return found
    with np.errstate(divide="ignore", invalid="ignore"):
        before = updates.scale[0] / np.sqrt(updates.numel[0])
    for place, name in enumerate(updates.tensors):
        if math.isfinite(before[place]):
            found[name] = float(before[place])
        elif updates.ratio[0, place] > _REPLACED:
            found.pop(name, None)  # what is left of a weight after such an update says nothing about its start
    return found


def _first_outputs(story: Story, rank: int) -> dict[str, float]:
    """The size of each block's output at the first look."""
    grid = story.grid("activation", rank)
    if not len(grid) or grid.steps[0] > 2:
        return {}
    return {brick.path: float(grid.rms[0, place]) for place, brick in enumerate(grid.bricks)}


def _shows(gain: Gain, story: Story, rank: int, outputs: dict[str, float]) -> bool:
    """Whether a block that holds the matrix, under whatever name, gives outputs beyond the size of a signal."""
    holders = _names_of(story, rank).get(gain.tensor, {gain.tensor})
    sizes = [outputs.get(name.rpartition(".")[0], 0.0) for name in holders if "." in name]
    return gain.factor > _KEEPS and any(size > _KEEPS for size in sizes)


def _names_of(story: Story, rank: int) -> dict[str, set[str]]:
    """By the name of a tensor: all names it goes by."""
    found: dict[str, set[str]] = {}
    for event in story.events("tensor", rank):
        name, first = str(event.fields.get("name", "")), event.fields.get("alias_of")
        found.setdefault(str(first or name), set()).add(name)
    return found


def _scale_text(gain: Gain | None) -> str:
    return gain.text if gain is not None else "The size of the weights was not recorded."


# -- a first loss far above guessing


def _first_loss(story: Story, rank: int) -> tuple[Event, float, float] | None:
    """The first call of a classification loss: the record, its value, and what guessing costs."""
    for event in story.events("criterion", rank):
        value, classes = number(event.fields.get("value")), whole(event.fields.get("classes"))
        if event.step > 0 or event.fields.get("grad") is False:
            return None
        mean = event.fields.get("reduction") == "mean"
        if event.fields.get("name") in ("cross_entropy", "nll") and mean and classes >= 2 and value is not None:
            return event, value, math.log(classes)
    return None


def _high_loss(story: Story, rank: int, first: tuple[Event, float, float] | None, contract: Contract) -> Fault | None:
    if first is None:
        return None
    event, value, guess = first
    given = event.fields.get("input")
    spread = number(given.get("std")) if isinstance(given, dict) else None
    high = value > contract.threshold("loss_factor") * guess and value > guess + contract.threshold("loss_above")
    sizes = story.track("batch", "absmax", rank).finite().values[:4]
    big_inputs = bool(len(sizes)) and float(np.median(sizes)) > contract.threshold("large_input")
    if not (high or not math.isfinite(value)) or big_inputs or (spread is not None and spread < 2):
        return None
    gain = _loudest(story, rank)
    if gain is not None and gain.factor <= _KEEPS and math.isfinite(value):
        return None  # no weight is to blame: inputs, or what stands between the layers
    shown = f", the outputs spread by {spread:.3g}" if spread is not None else ""
    return Fault(
        f"the first loss is {value:.4g}, and guessing costs {guess:.4g}",
        f"{_scale_text(gain)} Before any update the model is sure of wrong answers{shown}.",
        (event.id,), "Scale weights by their fan-in (std 0.02 or 1/sqrt(fan-in)); start the last layer small.",
        brick=gain.brick if gain is not None and gain.factor > _KEEPS else "", certainty=0.88, step=event.step,
    )  # fmt: skip


RULE = Initialisation
