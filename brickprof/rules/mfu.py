"""Model FLOP utilisation: the arithmetic of a step over what the card could have done in its time.

Enters: operations counted in the graph behind a loss, or by kernels, or parameters and tokens; the time of a step; the
card's name. Leaves: an ``Mfu`` that says which it is:

    counted     matrix products, convolutions and attention behind the losses of a step, forward and backward, where
                nothing behind them hides what it does; or the sum over the kernel bricks that say how many operations
                they make: a lower bound
    at least    the same of a model of which a part is frozen: its forward may be in no graph
    estimated   6 x parameters x tokens of a step, for a model of tokens that trains all its parameters; attention's
                own products are not in it, a table of embeddings is

and, where none is known, why not.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any, NamedTuple

import numpy as np

from brickprof.records import Event
from brickprof.rules import cards
from brickprof.rules.names import Tensor, whole
from brickprof.rules.peaks import peak
from brickprof.rules.story import Story

_COVERS = 0.8
"""Counted operations are believed to be all where they come to this share of the estimate."""
_ALIKE = 1.2
"""Of the steps that were counted none has so many times the operations of another."""
_LEAST_STEPS = 10
_NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


class Mfu(NamedTuple):
    card: str
    ratio: float | None = None
    how: str = ""
    """counted, at least, or estimated; "" where it is not known."""
    why: str = ""
    tflops: float | None = None
    peak_tflops: float | None = None
    dtype: str = ""

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def mfu(story: Story) -> Mfu | None:
    """Of the lowest rank and its card; None for a run that was seen on no card."""
    found = [card for card in cards.cards(story) if card.about is not None]
    if not found or not story.trained:
        return None
    rank, card = story.ranks[0], found[0]
    seconds = [lasted for _, lasted in cards.step_seconds(story, rank).values()]
    if len(seconds) < _LEAST_STEPS:
        return Mfu(card.name, why="too few steps were timed")
    if card.about is not None and card.about.fields.get("mig"):
        return Mfu(card.name, why="the peak of a slice of a card is not known")
    done, how, why = operations(story, rank)
    if done is None:
        return Mfu(card.name, why=why)
    return _against(card.name, done / float(np.median(seconds)) / 1e12, how, why, dtype(story, rank))


def _against(card: str, rate: float, how: str, why: str, kind: str) -> Mfu:
    best = peak(card, kind)
    if kind == "float32" and best is not None and rate > best:
        kind, best = "tf32", peak(card, "tf32")  # more than the plain units can do: the tensor cores were allowed
    if best is None:
        return Mfu(card, None, "", f"the peak of {card} in {kind} is not in the table", rate, None, kind)
    if rate > best:
        return Mfu(card, None, "", f"{rate:,.4g} TFLOP/s were {how}, more than the card can do", rate, best, kind)
    return Mfu(card, rate / best, how, why, rate, best, kind)


def operations(story: Story, rank: int) -> tuple[float | None, str, str]:
    """Operations of a step, how they are known, and what that leaves out."""
    behind, lacks = _behind_the_losses(story, rank)
    if behind is not None:
        how = "counted" if _trains_all(story, rank) else "at least"
        return behind, how, "what no gradient flows through, or is computed again, is not counted"
    by_step = [flops for step, flops in story.flops(rank).items() if step > 0]
    counted = float(np.median(by_step)) if by_step else None
    guess, why = estimate(story, rank)
    if counted is not None and (guess is None or counted >= _COVERS * guess):
        return counted, "counted", "only kernels that say how many operations they make are counted"
    if guess is None:
        return None, "", f"{lacks}, and {why}" if lacks else why
    return guess, "estimated", why


def _tensors(story: Story, rank: int) -> list[Tensor]:
    return [tensor for tensor in story.names.tensors(rank) if tensor.model and not tensor.alias]


def _trains_all(story: Story, rank: int) -> bool:
    """Whether next to nothing is frozen."""
    tensors = _tensors(story, rank)
    trained = sum(tensor.numel for tensor in tensors if story.names.trained(rank, tensor))
    return trained >= 0.9 * sum(tensor.numel for tensor in tensors)


def _behind_the_losses(story: Story, rank: int) -> tuple[float | None, str]:
    """What the graphs say, of all backwards of a step; None where a part is hidden, or steps are not like each other,
    and then why, where there were any."""
    looks = story.events("operations", rank)
    if not looks:
        return None, ""
    if not all(look.fields.get("whole") is True for look in looks):
        return None, "a part of what is behind the loss hides its operations"
    if any(whole(look.fields.get("devices")) > 1 for look in looks):
        return None, "the model lies on several cards"
    made: dict[int, list[int]] = {}
    for look in looks:
        made.setdefault(look.step, []).append(whole(look.fields.get("forward")) + whole(look.fields.get("backward")))
    micros: dict[int, set[int]] = {}
    for event in story.events("loss", rank):
        micros.setdefault(event.step, set()).add(whole(event.fields.get("micro")))
    totals = [_whole_step(counts, len(micros.get(step, ()))) for step, counts in made.items()]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals) or not min(known) or max(known) > _ALIKE * min(known):
        return None, "the steps whose operations were counted are not like each other"
    return float(np.median(known)), ""


def _whole_step(counts: list[int], backwards: int) -> int | None:
    """What a step makes of which ``counts`` are known; None where these differ, and others are not."""
    if len(counts) >= backwards:
        return sum(counts)
    return counts[0] * backwards if len(set(counts)) == 1 else None


def _backwards(story: Story, rank: int) -> int:
    """In a step."""
    return _usual(list(Counter(event.step for event in story.events("loss", rank)).values())) or 1


def estimate(story: Story, rank: int) -> tuple[float | None, str]:
    parameters = sum(tensor.numel for tensor in _tensors(story, rank))
    tokens = tokens_of_step(story, rank)
    if tokens is None:
        return None, "no kernel counted its operations, and the tokens of a step are not known"
    if not parameters or not _trains_all(story, rank):
        return None, "no kernel counted its operations, and a part of the model is frozen"
    return 6.0 * parameters * tokens, f"6 x {parameters:,} parameters x {tokens:,} tokens a step"


def tokens_of_step(story: Story, rank: int) -> int | None:
    """Tokens of one update: what the model is fed, where the loss has a target for each of them."""
    fed = _usual([_tokens(event.fields.get("fed")) for event in story.events("shapes", rank)])
    scored = _usual([_rows(event) for event in story.events("criterion", rank)])
    wired = _usual([_places(event) for event in story.events("wiring", rank)])
    tokens = wired or (fed if fed and scored and 0.9 * fed <= scored <= fed else None)
    if tokens is None:
        return None
    return tokens * _backwards(story, rank)


def _tokens(shape: Any) -> int | None:
    two = isinstance(shape, list) and len(shape) == 2 and all(isinstance(size, int) and size > 1 for size in shape)
    return prod(shape) if two else None


def _rows(event: Event) -> int | None:
    told = event.fields
    asked = told.get("name") in ("cross_entropy", "nll") and told.get("grad") is not False
    return whole(told.get("rows")) or None if asked else None


def _places(event: Event) -> int | None:
    return whole(event.fields.get("rows")) * whole(event.fields.get("places")) or None


def _usual(values: list[int | None] | list[int]) -> int | None:
    known = Counter(value for value in values if value)
    return known.most_common(1)[0][0] if known else None


def dtype(story: Story, rank: int) -> str:
    """The type in which the products are made, as far as the run shows it."""
    made = Counter(str(event.fields.get("dtype") or "") for event in story.events("operations", rank))
    if products := [kind for kind, _ in made.most_common() if kind]:
        return products[0]
    weights: Counter[str] = Counter()
    for tensor in story.names.tensors(rank):
        weights[tensor.dtype] += tensor.numel if tensor.model else 0
    usual = weights.most_common(1)[0][0] if weights else "float32"
    if usual in _NARROW:
        return usual
    seen = [str(event.fields.get("dtype", "")) for event in story.events("criterion", rank)]
    seen += [kind for event in story.events("kernel", rank) for kind in _kinds(event)]
    narrow = Counter(kind.removeprefix("torch.") for kind in seen if kind.removeprefix("torch.") in _NARROW)
    return narrow.most_common(1)[0][0] if narrow else usual


def _kinds(event: Event) -> list[str]:
    told = event.fields.get("dtypes")
    return [str(kind) for kind in told.values()] if isinstance(told, dict) and event.fields.get("flops") else []
