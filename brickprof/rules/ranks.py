"""Ranks that train one model must stay one model: equal gradients, equal bits.

Enters: weights' checksums, local and reduced gradients, rates and counts of every rank. Leaves: C-DDP-001 (what the
ranks do together is right), DIST-001 (their parameters are equal to the bit), DIST-002 (needs a second run).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number
from brickprof.rules.replicas import Look, Replicas, replicas
from brickprof.rules.story import Story

_FOLLOWS = frozenset({"drift", "diverged", "not-learning", "plateau", "spike"})
_QUESTION = "Why do the ranks differ?"


class Together:
    contract = "C-DDP-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found = _comparable(story, contract)
        if isinstance(found, ContractResult):
            return found
        apart = _mixed_up(found, contract) or _not_reduced(found, contract) or _apart(found, contract)
        violations = [violation for violation in (apart, _summed(found, contract)) if violation is not None]
        threshold = "equal gradients and equal bits on every rank; the mean, not the sum"
        if violations:
            return outcomes.broken(contract, violations, threshold)
        return outcomes.held(contract, _compared(found), threshold)


class Bits:
    contract = "DIST-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        found = _comparable(story, contract)
        if isinstance(found, ContractResult):
            return found
        if not found.weights:
            return outcomes.unjudged(contract, "no step in which two ranks took checksums of the same weights")
        parted = next((look for look in found.weights if look.differ.any()), None)
        if parted is None:
            return outcomes.held(contract, _compared(found), "equal to the bit")
        names = [name for name, differs in zip(parted.tensors, parted.differ, strict=True) if differs]
        symptom = f"{wording.count(len(names), 'parameter')} differ between ranks from step {parted.step:,} on"
        violation = Violation(
            contract.id, "drift", Severity.ERROR, symptom, parted.step, parted.step,
            "" if len(names) == len(parted.tensors) else _brick(found, "weight", names[0]),
            evidence=_evidence(found, "weight", parted.step, names[0]), details={"question": _QUESTION},
        )  # fmt: skip
        return outcomes.broken(contract, [violation], "equal to the bit")


class Parity:
    contract = "DIST-002"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        bound = contract.threshold("loss_difference")
        return outcomes.unjudged(
            contract,
            f"it compares two runs: brickprof compare DISTRIBUTED SINGLE --tolerance {bound:g}",
        )


def _comparable(story: Story, contract: Contract) -> Replicas | ContractResult:
    if not story.trained:
        return outcomes.vacuous(contract, "nothing was trained")
    found = replicas(story)
    if isinstance(found, str):
        alone = found == "one rank trained"
        return outcomes.vacuous(contract, found) if alone else outcomes.unjudged(contract, found)
    if not found.weights and not found.gradients:
        return outcomes.unjudged(contract, "no step was looked at by two ranks; --level standard looks")
    if not found.together:
        return outcomes.unjudged(contract, "nothing reduces, and the ranks began with other weights: each trains alone")
    if found.meet_again:
        return outcomes.unjudged(contract, "the ranks part and meet again: they average now and then, on purpose")
    return found


def _compared(found: Replicas) -> str:
    looks = found.weights or found.gradients
    tensors = wording.count(len(looks[0].tensors), "parameter")
    return f"{tensors} of {len(found.ranks)} ranks equal in {wording.count(len(looks), 'step')} looked at"


# -- what goes wrong


class _Unreduced(NamedTuple):
    look: Look
    names: tuple[str, ...]
    kept: tuple[int, ...]
    """The ranks that used the gradient they made themselves."""


def _not_reduced(found: Replicas, contract: Contract) -> Violation | None:
    seen = _unreduced(found)
    if seen is None:
        return None
    look, names = seen.look, seen.names
    whole = len(names) == len(look.tensors)
    what = "the gradients" if whole else f"the gradients of {names[0]}" + _more(names)
    place = look.tensors.index(names[0])
    numbers = ", ".join(f"{value:.4g}" for value in look.values[:4, place])
    symptom = f"{what} differ between ranks when the optimizer uses them, from step {look.step:,} on"
    evidence = _evidence(found, "grad", look.step, names[0])
    whys = [Because(_QUESTION, f"|grad| of {names[0]} is {numbers} on the ranks in step {look.step:,}.", "", evidence)]
    if seen.kept:
        who = ", ".join(str(rank) for rank in seen.kept)
        text = f"Rank {who} used its own gradient unchanged: nothing was reduced between backward and step."
        local = tuple(f"grad_local:{look.step}:{names[0]}@{rank}" for rank in seen.kept)
        whys.append(Because("Why do the gradients differ?", text, "", local))
    return Violation(
        contract.id, "gradient-not-reduced", Severity.ERROR, symptom, look.step, look.step,
        "" if whole else _brick(found, "grad", names[0]), evidence=evidence, cause="gradient-not-reduced",
        certainty=0.95 if found.weights else 0.8, explains=_FOLLOWS, whys=tuple(whys), static=look.step <= 1,
        details={"question": _QUESTION, "asked": "Why do the weights part?"},
        action="Call the wrapped model (not model.module), leave no_sync() on the last micro-batch, and reduce every "
        "parameter's gradient over all ranks before optimizer.step().",
    )  # fmt: skip


def _mixed_up(found: Replicas, contract: Contract) -> Violation | None:
    """The ranks hold the same norms, at other parameters: each reduction added up what does not belong together."""
    seen = _unreduced(found)
    if seen is None or not found.reduces:
        return None
    look = seen.look
    ordered = np.sort(look.values, axis=1)
    if len(seen.names) < 2 or not np.allclose(ordered, ordered[0], rtol=1e-4, atol=0.0):
        return None
    place = look.tensors.index(seen.names[0])
    other = int(np.argmin(np.abs(look.values[1] - look.values[0, place])))
    mine, theirs = look.tensors[place], look.tensors[other]
    symptom = (
        f"from step {look.step:,} on, |grad| of {mine} on rank {found.ranks[0]} is that of {theirs} on rank "
        f"{found.ranks[1]} ({look.values[0, place]:.4g})"
    )
    evidence = (f"grad:{look.step}:{mine}@{found.ranks[0]}", f"grad:{look.step}:{theirs}@{found.ranks[1]}")
    calls = tuple(event.id for rank in found.ranks[:2] for event in found.story.events("collective", rank)[:1])
    text = "The ranks call the same reductions in different orders: what fits in size is added up, whatever it is."
    return Violation(
        contract.id, "collective-mismatch", Severity.ERROR, symptom, look.step, look.step, evidence=evidence,
        cause="collective-mismatch", certainty=0.9, explains=_FOLLOWS, static=look.step <= 1,
        whys=(Because("Why do the gradients differ?", text, "", (*evidence, *calls)),),
        details={"question": _QUESTION, "asked": "Which gradients were added up?"},
        action="Reduce in an order that is the same on every rank: iterate over a list, never over a set.",
    )  # fmt: skip


def _unreduced(found: Replicas) -> _Unreduced | None:
    if found.weights and not any(look.differ.any() for look in found.weights):
        return None  # whatever came between, the weights are equal
    parted = [look for look in found.gradients if look.differ.any()]
    # Once the weights have parted, gradients differ by themselves: only what came first is a cause.
    weights = next((look.step for look in found.weights if look.differ.any()), None)
    if not parted or (weights is not None and parted[0].step > weights):
        return None
    first = parted[0]
    names = tuple(name for name, differs in zip(first.tensors, first.differ, strict=True) if differs)
    return _Unreduced(first, names, _kept(found, first, names))


def _kept(found: Replicas, look: Look, names: tuple[str, ...]) -> tuple[int, ...]:
    local = next((local for local in found.locals if local.step == look.step), None)
    if local is None:
        return ()
    places = [(look.tensors.index(name), local.tensors.index(name)) for name in names if name in local.tensors]
    if not places:
        return ()
    used = look.values[:, [place for place, _ in places]]
    made = local.values[:, [place for _, place in places]]
    close = np.abs(used - made) <= 1e-4 * np.abs(made)
    return tuple(rank for place, rank in enumerate(found.ranks) if close[place].all())


def _apart(found: Replicas, contract: Contract) -> Violation | None:
    """Equal gradients, and yet other weights: the start or the update differs."""
    look = next((look for look in found.weights if look.differ.any()), None)
    if look is None:
        return None
    names = [name for name, differs in zip(look.tensors, look.differ, strict=True) if differs]
    why, action, evidence = _behind(found, look)
    symptom = f"the ranks' weights differ from step {look.step:,} on ({names[0]}{_more(names)})"
    bits = _evidence(found, "weight", look.step, names[0])
    whys = [Because(_QUESTION, f"{wording.sentence(symptom)}", "", bits), Because("Why?", why, "", evidence or bits)]
    return Violation(
        contract.id, "rank-divergence", Severity.ERROR, symptom, look.step, look.step,
        "" if len(names) == len(look.tensors) else _brick(found, "weight", names[0]), evidence=bits,
        cause="rank-divergence", certainty=0.9, explains=_FOLLOWS, whys=tuple(whys[1:]), action=action,
        static=look.step <= 1, details={"question": _QUESTION, "asked": "Why do the parameters differ?"},
    )  # fmt: skip


def _behind(found: Replicas, look: Look) -> tuple[str, str, tuple[str, ...]]:
    story = found.story
    counts = {rank: _last_count(story, rank, look.step) for rank in found.ranks}
    if len({count for count, _ in counts.values() if count is not None}) > 1:
        told = ", ".join(f"rank {rank}: {count}" for rank, (count, _) in counts.items())
        ids = tuple(identity for _, identity in counts.values() if identity)
        return f"The ranks made different numbers of updates ({told}).", "Let every rank step in every step.", ids
    rates = {rank: story.rates(rank).at(look.step) for rank in found.ranks}
    if len({rate for rate in rates.values() if rate is not None}) > 1:
        told = ", ".join(f"rank {rank}: {rate:g}" for rank, rate in rates.items() if rate is not None)
        return f"The learning rates differ ({told}).", "Give every rank the same optimizer settings.", ()
    if look.step == found.weights[0].step:
        action = "Broadcast rank 0's weights to all ranks before the first step, or use DistributedDataParallel."
        return "They differed when they were first looked at: the ranks did not begin with equal weights.", action, ()
    action = "Look for code that changes weights on one rank only: loading, clamping, an `if rank == 0`."
    return "The gradients were equal: something else changed weights on one rank.", action, ()


def _last_count(story: Story, rank: int, step: int) -> tuple[float | None, str]:
    updates = [event for event in story.events("optimizer", rank) if event.step <= step]
    return (number(updates[-1].fields.get("count")), updates[-1].id) if updates else (None, "")


def _summed(found: Replicas, contract: Contract) -> Violation | None:
    """No mean of vectors is longer than the mean of their lengths: what is longer is a sum."""
    if any(found.story.events("scaler", rank) for rank in found.ranks):
        return None
    world = len(found.ranks)
    seen = {look.step: look for look in found.locals}
    ratios = {}
    for look in found.gradients:
        local = seen.get(look.step)
        if local is not None and local.tensors == look.tensors and not look.differ.any():
            made = local.values.mean(axis=0)
            known = made > 0
            if known.any():
                ratios[look.step] = float(np.median(look.values[0][known] / made[known]))
    beyond = {step: ratio for step, ratio in ratios.items() if 1.1 < ratio <= world * 1.02}
    if len(beyond) < contract.threshold("looks") or len(beyond) < 0.8 * len(ratios) or _divided(found.story, world):
        return None
    step, ratio = next(iter(beyond.items()))
    symptom = f"reduced gradients are {ratio:.2f} times the mean of the ranks' own: a sum over {world} ranks"
    look = next(look for look in found.gradients if look.step == step)
    evidence = (*_evidence(found, "grad", step, look.tensors[0])[:1], f"grad_local:{step}:{look.tensors[0]}@0")
    text = "The mean of vectors is never longer than the mean of their lengths; these are, in every step looked at."
    return Violation(
        contract.id, "gradient-summed", Severity.WARNING, symptom, step, step, evidence=evidence,
        cause="gradient-not-reduced", certainty=0.85, explains=frozenset({"exploding", "diverged", "spike"}),
        whys=(Because("Why is that wrong?", text, "", evidence),), static=True,
        details={"question": "Why are the gradients too large?", "asked": "Why are the gradients too large?"},
        action="Divide by the world size after all_reduce(SUM), or reduce with ReduceOp.AVG.",
    )  # fmt: skip


def _divided(story: Story, world: int) -> bool:
    """Whether the loss that went backward was divided by the number of ranks beforehand: then a sum is right."""
    losses = story.losses(0)
    for event in story.events("criterion", 0):
        value, loss = number(event.fields.get("value")), losses.at(event.step)
        if event.fields.get("grad") is not False and value and loss is not None:
            return abs(loss / value * world - 1) < 0.05
    return False


def _more(names: list[str] | tuple[str, ...]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _brick(found: Replicas, role: str, tensor: str) -> str:
    grid = found.story.grid(role, found.ranks[0])
    place = grid.place(tensor)
    return found.story.names.show(grid.bricks[place]) if place is not None else ""


def _evidence(found: Replicas, role: str, step: int, tensor: str) -> tuple[str, ...]:
    return tuple(f"{role}:{step}:{tensor}@{rank}" for rank in found.ranks[:4])


RULES = (Together, Bits, Parity)
