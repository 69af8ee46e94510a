"""C-MODE-001: models are trained in training mode and evaluated in evaluation mode.

Enters: the story: the mode at each backward (``mode``), the mode of passes without gradients (``evaluation``). Leaves:
a model that was left in eval while it is trained, or in train while it is evaluated; only where the mode matters
(dropout, batch-norm) and only models that an optimizer trains.

Passes in every step (a teacher, a generator) and single forwards (drawing samples) belong to the training.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-MODE-001"
_WHEN_LEFT_IN_EVAL = frozenset({"overfitting", "plateau"})


class Modes:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        violations = [
            violation
            for rank in story.ranks
            for violation in (*_in_eval(story, rank, contract), *_in_train(story, rank, contract))
        ]
        if violations:
            return outcomes.broken(contract, violations[:2])
        modes = sum(len(story.events("mode", rank)) for rank in story.ranks)
        if not modes:
            return outcomes.unjudged(contract, "the mode of the model was not recorded")
        return outcomes.held(contract, "trained in training mode, evaluated in evaluation mode")


def _in_eval(story: Story, rank: int, contract: Contract) -> list[Violation]:
    found = []
    for model, events in _by_model(story.events("mode", rank)).items():
        place, steps = _longest_in_eval(events, story.steps(rank))
        if place is None or not _trained(story, rank, model):
            continue
        last = events[place]
        if not _sensitive(story, rank, model, last):
            continue
        if steps >= contract.threshold("steps") and _updates_after(story, rank, last.step):
            found.append(_left_in_eval(story, rank, model, events[: place + 1], steps, contract))
    return found


def _longest_in_eval(events: list[Event], end: int) -> tuple[int | None, int]:
    """The longest stretch of training in evaluation mode: where it begins among the events, and its steps."""
    stops = [*(event.step for event in events[1:]), end]
    stretches = [
        (stop - event.step, place)
        for place, (event, stop) in enumerate(zip(events, stops, strict=True))
        if event.fields.get("training") is False
    ]
    steps, place = max(stretches, default=(0, -1))
    return (place, steps) if place >= 0 else (None, 0)


def _left_in_eval(
    story: Story, rank: int, model: str, events: list[Event], steps: int, contract: Contract
) -> Violation:
    last, before = events[-1], [event for event in events if event.fields.get("training") is True]
    since = "from the first step on" if not before else f"since step {last.step:,}"
    symptom = f"{model} is trained in evaluation mode {since} ({wording.count(steps, 'step')})"
    evaluation = next((e for e in reversed(story.events("evaluation", rank)) if e.step <= last.step), None)
    cause = "Nothing called train() on it: a loaded model often comes in evaluation mode."
    if before:
        after = " after the evaluation" if evaluation is not None else ""
        cause = f"It was in training mode until step {last.step - 1:,}; train() was not called again{after}."
    proof = (*(event.id for event in before[-1:]), last.id, *([evaluation.id] if evaluation is not None else []))
    whys = (
        Because("Why does it matter?", "Dropout is off, and batch-norm uses old statistics instead of the batch's.",
                model, (last.id,)),
        Because("Why is it in evaluation mode?", cause, model, proof),
    )  # fmt: skip
    asked = {"question": "In which mode is the model trained?", "asked": "Is the model trained as it should be?"}
    return Violation(
        CONTRACT, "wrong-mode", Severity.WARNING, symptom, last.step,
        last.step + int(contract.threshold("steps")) - 1, "", "block", rank, proof, asked, "model-left-in-eval",
        0.92 if before else 0.85, _WHEN_LEFT_IN_EVAL, whys, (),
        f"Call {model}.train() at the start of each epoch, after every evaluation.", static=not before,
    )  # fmt: skip


def _in_train(story: Story, rank: int, contract: Contract) -> list[Violation]:
    found = []
    for model, events in _by_model(story.events("evaluation", rank)).items():
        passes = [event for event in events if _is_evaluation(event)]
        wrong = [event for event in passes if _runs_in_train(event)]
        if not wrong or len(wrong) * 2 < len(passes) or not _trained(story, rank, model):
            continue
        measured = any(event.fields.get("loss") is not None for event in wrong)
        updates = [event for event in story.events("optimizer", rank) if event.step <= wrong[-1].step]
        alone = len({event.fields.get("optimizer") for event in updates}) <= 1
        if measured or (alone and len(wrong) >= contract.threshold("passes")):
            found.append(_left_in_train(rank, model, wrong, len(passes)))
    return found


def _left_in_train(rank: int, model: str, wrong: list[Event], passes: int) -> Violation:
    share = "every evaluation" if len(wrong) == passes else f"{len(wrong):,} of {passes:,} evaluations"
    symptom = f"{model} is in training mode in {share}, first at step {wrong[0].step:,}"
    proof = tuple(event.id for event in wrong[:3])
    why = Because(
        "Why does it matter?",
        "Dropout removes parts of the model at random, and batch-norm mixes the batch (and learns from the test data): "
        "what is measured is another model.", model, proof,
    )  # fmt: skip
    asked = {"question": "In which mode is the model evaluated?"}
    return Violation(
        CONTRACT, "wrong-mode", Severity.WARNING, symptom, wrong[0].step, wrong[0].step, "", "block", rank, proof,
        asked, "model-left-in-train", 0.9, frozenset({"overfitting"}), (why,), (),
        f"Call {model}.eval() before the evaluation and {model}.train() after it.", static=True,
    )  # fmt: skip


def _by_model(events: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(str(event.fields.get("model", "")), []).append(event)
    return found


def _trained(story: Story, rank: int, model: str) -> bool:
    """Whether an optimizer owns parameters of ``model`` that want gradients: teachers and targets are not trained."""
    owned = story.names.owned(rank)
    ours = [tensor for tensor in story.names.tensors(rank) if tensor.model == model]
    return any(tensor.number in owned and story.names.trained(rank, tensor) for tensor in ours)


def _sensitive(story: Story, rank: int, model: str, mode: Event) -> bool:
    """Whether the mode matters: there is dropout or batch-norm, and it is in evaluation mode."""
    told = mode.fields.get("sensitive")
    if told is not None:
        return bool(told)
    passes = [e for e in story.events("evaluation", rank) if e.fields.get("model") == model]
    return any(event.fields.get("sensitive") for event in passes)


def _updates_after(story: Story, rank: int, step: int) -> bool:
    return any(event.step >= step for event in story.events("optimizer", rank))


def _is_evaluation(event: Event) -> bool:
    """Not part of the training itself: neither in every step, nor a single forward without a loss."""
    if event.fields.get("frequent"):
        return False
    return event.fields.get("loss") is not None or whole(event.fields.get("forwards")) >= 2


def _runs_in_train(event: Event) -> bool:
    if not event.fields.get("sensitive"):
        return False
    apart = event.fields.get("mixed")
    return bool(event.fields.get("training")) and (apart is None or whole(apart) > 0)


RULE = Modes
