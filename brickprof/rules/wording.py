"""How rules say what they saw: short, with the numbers in it."""

from __future__ import annotations

from brickprof.rules.causality import Anomaly, Stage
from brickprof.rules.names import Names
from brickprof.text import capital


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def kind(anomaly: Anomaly) -> str:
    if anomaly.nan and anomaly.inf:
        return "nan or inf"
    if anomaly.nan:
        return "nan"
    return "inf" if anomaly.inf else "not finite"


def share(anomaly: Anomaly, noun: str) -> str:
    """ "1,298 of 33,554,432 weights"."""
    bad = anomaly.nan + anomaly.inf
    if anomaly.numel and bad:
        return f"{bad:,} of {count(anomaly.numel, noun)}"
    return f"{bad:,} {noun}{'s' * (bad != 1)}" if bad else f"some {noun}s"


def verb(anomaly: Anomaly) -> str:
    return "is" if anomaly.nan + anomaly.inf == 1 else "are"


def symptom(anomaly: Anomaly, times: int, recovered: bool, names: Names) -> str:
    """What a person watching the run would have noticed."""
    where = names.show(anomaly.brick)
    if anomaly.stage is Stage.LOSS:
        if recovered:
            return f"loss was {kind(anomaly)} in {count(times, 'step')}, first in step {anomaly.step:,}"
        return f"loss is {kind(anomaly)} from step {anomaly.step:,} on"
    return sighting(anomaly, where)


def sighting(anomaly: Anomaly, where: str) -> str:
    """One anomaly as a sentence without its full stop."""
    step, what = f"step {anomaly.step:,}", kind(anomaly)
    if anomaly.stage is Stage.LOSS:
        return f"the loss of {step} is {what}"
    if anomaly.stage is Stage.DATA:
        return f"the batch of {step} holds {share(anomaly, 'value')} that {verb(anomaly)} {what}"
    if anomaly.stage is Stage.FORWARD:
        made = "what compiled code made in" if anomaly.details.get("inside") else "the output of"
        output = f"{made} {where or 'a block'}"
        return f"{share(anomaly, 'value')} of {output} {verb(anomaly)} {what} in {step}"
    if anomaly.stage is Stage.CLIP:
        return f"the gradient norm measured by clipping is {what} in {step}"
    if anomaly.stage is Stage.WEIGHTS:
        owner = _owner(anomaly, where)
        moment = "before the first update" if anomaly.step < 0 else f"after the update of {step}"
        return f"{share(anomaly, 'weight')} of {owner} {verb(anomaly)} {what} {moment}"
    owner = _owner(anomaly, where)
    moment = ", as the optimizer used them" if anomaly.stage is Stage.OPTIMIZER else ""
    return f"{share(anomaly, 'gradient')} of {owner} {verb(anomaly)} {what} in {step}{moment}"


def _owner(anomaly: Anomaly, where: str) -> str:
    """The tensor's name, with its model in front where ``where`` has it too."""
    model = anomaly.brick.model if anomaly.brick else ""
    qualified = anomaly.tensor and model and f"{where}.".startswith(f"{model}.")
    return f"{model}.{anomaly.tensor}" if qualified else anomaly.tensor or where or "a parameter"


def sentence(text: str) -> str:
    return f"{capital(text)}."


def size(number: float) -> str:
    """ "1.4 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
