"""C-LOSSFN-001: a loss function gets what it is defined on.

Enters: the story's ``criterion`` events: what the calls of a loss function were given; and ``shapes`` events: what a
loss that is written by hand does with values of single samples. Leaves: a softmax before a loss that has its own,
probabilities or logits where log-probabilities belong, rates where their logarithms do, one class, targets outside
their range, arguments in each other's place, and shapes that broadcast to a table of all pairs. Each is judged over
every call that was looked at: one odd batch is not a habit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves, loss_inputs, outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-LOSSFN-001"
_FOLLOWS = frozenset({"not-learning", "plateau", "diverged", "spike", "nonfinite", "constant-loss", "underfitting"})
_NAMES = {
    "cross_entropy": "cross_entropy", "nll": "nll_loss", "bce": "binary_cross_entropy", "mse": "mse_loss",
    "bce_logits": "binary_cross_entropy_with_logits", "l1": "l1_loss", "kl_div": "kl_div", "ctc": "ctc_loss",
    "gaussian_nll": "gaussian_nll_loss", "poisson_nll": "poisson_nll_loss", "hinge": "hinge_embedding_loss",
    "soft_margin": "soft_margin_loss", "multilabel_soft_margin": "multilabel_soft_margin_loss",
    "cosine": "cosine_embedding_loss", "margin_ranking": "margin_ranking_loss",
}  # fmt: skip


class Criterion:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        violations, looked = [], 0
        for rank in story.ranks:
            for calls in _habits(curves.training_calls(story, rank)):
                looked += len(calls)
                violations += _violations(story, calls, rank, int(contract.threshold("looks")))
            violations += _by_hand(story, rank, contract) or _twice(story, rank, contract)
        if violations:
            return outcomes.broken(contract, violations[:1])
        if not looked:
            return outcomes.unjudged(contract, "no call of a loss function was looked at")
        return outcomes.held(contract, f"{wording.count(looked, 'call')} with inputs of the right kind")


def _habits(calls: Iterable[Event]) -> Iterator[list[Event]]:
    """The calls of each function at each place of the script."""
    found: dict[tuple[Any, Any], list[Event]] = {}
    for event in calls:
        found.setdefault((event.fields.get("name"), event.fields.get("site")), []).append(event)
    yield from found.values()


def _violations(story: Story, calls: list[Event], rank: int, looks: int) -> list[Violation]:
    mistake = loss_inputs.find(calls, looks)
    if mistake is None:
        return []
    name = str(calls[0].fields.get("name"))
    shown = _NAMES.get(name, name)
    site = str(calls[0].fields.get("site") or "")
    where = f" at {site}" if site else ""
    proof = tuple(event.id for event in calls[:3])
    symptom = f"{shown}{where} {mistake.seen}"
    told = Because(f"What does {shown} make of it?", wording.sentence(mistake.follows), "loss", proof)
    made_in = next((event.fields["made_in"] for event in calls if isinstance(event.fields.get("made_in"), int)), None)
    brick = story.names.show(story.names.brick(rank, made_in)) if made_in is not None else "loss"
    return [
        Violation(
            CONTRACT, "loss-input", Severity.ERROR, symptom, calls[0].step, calls[min(looks, len(calls)) - 1].step,
            brick, "step", rank, proof,
            {"question": "Is the loss function given what it expects?", "asked": "What does the loss function get?"},
            mistake.cause, mistake.certainty, _FOLLOWS, (told,), (), mistake.action, static=True,
        )
    ]  # fmt: skip


# -- a loss that is written by hand


def _by_hand(story: Story, rank: int, contract: Contract) -> list[Violation]:
    events, looks = story.events("shapes", rank), int(contract.threshold("looks"))
    tables = [event for event in events if _is_crossed(story, event, rank, contract.threshold("roundings"))]
    if len(tables) < looks or len(tables) < len(events):
        return []
    table = tables[0].fields["table"]
    given, made, weighted = table["given"], table["made"], table.get("op") in ("Mul", "Div", "Pow")
    proof = tuple(event.id for event in tables[:3])
    symptom = (
        f"the loss makes {made} of values of shape {given}: each of {_samples_of(table):,} samples with all others"
    )
    meets = "multiplied with the factor of every sample" if weighted else "compared with every target"
    best = "all that counts of the factors" if weighted else "the best answer"
    text = f"The two broadcast: every value is {meets}, and {best} is their mean."
    told = Because("What does that mean for the loss?", text, "loss", proof)
    return [
        Violation(
            CONTRACT, "loss-input", Severity.ERROR, symptom, tables[0].step, tables[looks - 1].step, "loss", "step",
            rank, proof,
            {"question": "Is the loss function given what it expects?", "asked": "What does the loss work on?"},
            "loss-input-mismatch", 0.95, _FOLLOWS, (told,), (),
            "Give outputs, targets and weights the same shape: output.squeeze(-1), or target.unsqueeze(-1).",
            static=True,
        )
    ]  # fmt: skip


def _twice(story: Story, rank: int, contract: Contract) -> list[Violation]:
    """A loss that is written out: its log-softmax is taken of a softmax."""
    events, looks = story.events("shapes", rank), int(contract.threshold("looks"))
    squashed = [event for event in events if isinstance(event.fields.get("squashed"), dict)]
    if len(squashed) < looks or len(squashed) < len(events):
        return []
    proof = tuple(event.id for event in squashed[:3])
    made_in = next((brick for event in squashed if (brick := whole(event.fields["squashed"].get("brick")))), 0)
    symptom = "the loss takes the log-softmax of what already is a softmax"
    told = Because("What does that mean for the loss?", wording.sentence(loss_inputs.DOUBLE.follows), "loss", proof)
    return [
        Violation(
            CONTRACT, "loss-input", Severity.ERROR, symptom, squashed[0].step, squashed[looks - 1].step,
            story.names.show(story.names.brick(rank, made_in)) if made_in else "loss", "step", rank, proof,
            {"question": "Is the loss given what it expects?", "asked": "What does the loss work on?"},
            loss_inputs.DOUBLE.cause, 0.95, _FOLLOWS, (told,), (), loss_inputs.DOUBLE.action, static=True,
        )
    ]  # fmt: skip


def _is_crossed(story: Story, event: Event, rank: int, roundings: float) -> bool:
    """One value for each sample, crossed with as many others that are not a table themselves."""
    table = event.fields.get("table")
    if not isinstance(table, dict) or not all(isinstance(table.get(name), list) for name in ("given", "made")):
        return False
    apart = number(table.get("apart"))
    sure = isinstance(table.get("fixed"), list) or (apart is not None and apart <= roundings)
    count = _samples_of(table)
    return sure and any(count == fed or count % fed == 0 for fed in _samples(story, event, rank) if fed > 1)


def _samples_of(table: dict[str, Any]) -> int:
    """How often the table repeats each value."""
    ones = [size for size in table["given"] if whole(size) > 1]
    return max((size for size in table["made"] if size in ones and table["made"].count(size) > 1), default=0)


def _samples(story: Story, event: Event, rank: int) -> Iterator[int]:
    """How many samples the step had: what the model was given, or what the loader gave."""
    fed = event.fields.get("fed")
    if isinstance(fed, list) and fed:
        yield from map(int, fed[: 2 if len(fed) == 3 else 1])  # sequences may come with time first
    for batch in story.events("batch", rank):
        if batch.step == event.step:
            yield whole(batch.fields.get("samples"))


RULE = Criterion
