"""C-INPUT-001: what goes into the model is finite and of a scale it can work with.

Enters: the story: statistics of batches, and what the first layer and the loss made of them. Leaves: batches that hold
NaN or infinities in the step in which the loss broke; inputs far from unit scale. A scale alone is worth knowing; it
is a warning when it is seen to do harm: a first loss far above guessing, or gradients that are huge where the input
enters.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-INPUT-001"
_WHEN_NOT_FINITE = frozenset({"nonfinite", "diverged", "spike", "exploding", "not-learning", "plateau"})
_REGRESSION = ("mse", "l1", "smooth_l1", "huber")
_WHEN_NOT_SCALED = frozenset(
    {"diverged", "spike", "exploding", "not-learning", "plateau", "dead-units", "no-gradient", "nonfinite"}
)


class Inputs:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        looked = [event for rank in story.ranks for event in _drawn(story, rank)]
        violations = [
            violation
            for rank in story.ranks
            for violation in (*_not_finite(story, rank), *_not_scaled(story, rank, contract))
        ]
        if violations:
            return outcomes.broken(contract, violations[:1])
        if not looked:
            return outcomes.unjudged(contract, "no statistics of a batch were recorded")
        return outcomes.held(contract, f"{wording.count(len(looked), 'batch', 'batches')}, finite and of a usual scale")


def _drawn(story: Story, rank: int) -> list[Event]:
    """Batches of which statistics are known, of loaders that training draws from."""
    loaders = story.events("loader", rank)
    apart = {whole(event.fields.get("loader")) for event in loaders if event.fields.get("train") is False}
    return [
        event for event in story.events("batch", rank)
        if whole(event.fields.get("loader")) not in apart
        and any(event.fields.get(name) is not None for name in ("nan", "inf", "std"))
    ]  # fmt: skip


def _not_finite(story: Story, rank: int) -> list[Violation]:
    losses = story.losses(rank)
    broken = {int(step) for step in losses.steps[~np.isfinite(losses.values)]}
    sick = [e for e in _drawn(story, rank) if whole(e.fields.get("nan")) + whole(e.fields.get("inf"))]
    if not sick:
        return []
    harmful = next((event for event in sick if event.step in broken and event.step - 1 not in broken), None)
    event = harmful or sick[0]
    severity = Severity.ERROR if harmful is not None else Severity.INFO
    bad = whole(event.fields.get("nan")) + whole(event.fields.get("inf"))
    kind = "NaN" if event.fields.get("nan") else "infinite"
    values = f"{wording.count(bad, 'value')} that {'is' if bad == 1 else 'are'} {kind}"
    symptom = f"the batch of step {event.step:,} holds {values}"
    first = f"The batch: the loss was finite until step {event.step - 1:,} and is not in step {event.step:,}."
    asked = {"question": "Is the data finite?", "asked": "What went into the model in that step?"}
    return [
        Violation(
            CONTRACT, "nonfinite-data", severity, symptom, event.step, event.step, "data", "loader", rank,
            (event.id,), asked, "data-nonfinite", 0.96, _WHEN_NOT_FINITE,
            (Because("What came first?", first, "data", (event.id,)),), (),
            "Find the sample (assert torch.isfinite(x).all() in the dataset) and clean it or leave it out.",
        )
    ]  # fmt: skip


def _not_scaled(story: Story, rank: int, contract: Contract) -> list[Violation]:
    drawn = [e for e in _drawn(story, rank) if _scale(e) is not None]
    if len(drawn) < contract.threshold("looks"):
        return []
    scales = [scale for event in drawn if (scale := _scale(event)) is not None]
    typical = float(np.median(scales))
    if typical < contract.threshold("scale"):
        return []
    harm = _harm(story, rank, contract)
    first = drawn[0]
    mean, std = (number(first.fields.get(name)) or 0.0 for name in ("mean", "std"))
    symptom = f"inputs are not normalised: mean {mean:.4g}, standard deviation {std:.4g}"
    proof = tuple(event.id for event in drawn[:3])
    whys = (Because("What does it do?", harm[0], harm[2], harm[1]),) if harm is not None else ()
    return [
        Violation(
            CONTRACT, "input-scale", Severity.WARNING if harm is not None else Severity.INFO, symptom, first.step,
            drawn[int(contract.threshold("looks")) - 1].step, _entrance(story, rank), "block", rank, proof,
            {"question": "What goes into the model?", "asked": "What goes into the model?"}, "unnormalised-inputs",
            0.85, _WHEN_NOT_SCALED, whys, (),
            "Scale inputs to about mean 0 and standard deviation 1, with the statistics of the training set.",
            static=True,
        )
    ]  # fmt: skip


def _entrance(story: Story, rank: int) -> str:
    """The block that the input enters first."""
    trained = [tensor for tensor in story.names.tensors(rank) if tensor.model]
    return story.names.show(trained[0].brick) if trained else "data"


def _scale(event: Event) -> float | None:
    """The root mean square of a batch's inputs."""
    mean, std = number(event.fields.get("mean")), number(event.fields.get("std"))
    if mean is None or std is None or not math.isfinite(mean + std):
        return None
    return math.hypot(mean, std)


def _harm(story: Story, rank: int, contract: Contract) -> tuple[str, tuple[str, ...], str] | None:
    """What the scale is seen to do, with the records that show it."""
    losses, chance = story.losses(rank), curves.chance(story, rank)
    if chance is not None and len(losses) and float(losses.values[0]) > contract.threshold("first_loss") * chance.level:
        text = f"The first loss is {losses.values[0]:.4g}; guessing costs {chance.level:.4g}."
        return text, (losses.evidence(0), chance.evidence), "loss"
    return _answers(story, rank, contract) or _first_layer(story, rank, contract) or _lost_ground(story, rank)


def _answers(story: Story, rank: int, contract: Contract) -> tuple[str, tuple[str, ...], str] | None:
    """The first answers of a regression, far outside the range of its targets."""
    calls = [event for event in curves.training_calls(story, rank) if event.fields.get("name") in _REGRESSION]
    given, target = (calls[0].fields.get(name) for name in ("input", "target")) if calls else (None, None)
    if not isinstance(given, dict) or not isinstance(target, dict):
        return None
    reach = number(given.get("absmax"))
    wanted = max(abs(number(target.get(name)) or 0.0) for name in ("min", "max"))
    if reach is None or wanted <= 0 or reach < contract.threshold("first_answer") * wanted:
        return None
    text = f"The first answers reach {reach:.3g}, while targets are at most {wanted:.3g}."
    return text, (calls[0].id,), "loss"


def _first_layer(story: Story, rank: int, contract: Contract) -> tuple[str, tuple[str, ...], str] | None:
    """Gradients of the first matrix, per weight, far above those of all others in the first looks."""
    grid = story.grid("grad", rank)
    known = {tensor.name: tensor for tensor in story.names.tensors(rank)}
    matrices = [place for place, name in enumerate(grid.tensors) if name in known and known[name].numel > 64]
    if len(matrices) < 2 or not len(grid):
        return None
    with np.errstate(all="ignore"):
        sizes = np.nanmedian(grid.rms[:5][:, matrices], axis=0)
    if not np.isfinite(sizes).all() or sizes[1:].max() <= 0:
        return None
    share = float(sizes[0] / sizes[1:].max())
    if share < contract.threshold("first_layer"):
        return None
    name = grid.tensors[matrices[0]]
    text = f"Gradients of {name}, where the input enters, are {share:.3g} times those of any other matrix."
    return text, (grid.evidence(0, matrices[0]),), story.names.show(grid.bricks[matrices[0]])


def _lost_ground(story: Story, rank: int) -> tuple[str, tuple[str, ...], str] | None:
    """The loss jumps far above its start within the first updates."""
    losses = story.losses(rank).finite()
    if len(losses) < 4 or bool(np.any(losses.values < 0)):
        return None
    early = losses.values[1:10]
    if float(early.max()) <= 5 * max(float(losses.values[0]), 1e-3):
        return None
    place = int(np.argmax(early)) + 1
    text = f"The loss went from {losses.values[0]:.4g} to {losses.values[place]:.4g} within the first updates."
    return text, losses.evidences((0, place)), "loss"


RULE = Inputs
