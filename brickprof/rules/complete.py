"""C-GPUOPT-001: a checkpoint that a run is resumed from holds all that it needs.

Enters: a story. Leaves: a violation where training went on from a file without the optimizer's moments or without some
of the model's weights, and one where a file was saved with an optimizer and hardly a moment of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.resume import violation
from brickprof.rules.resumes import Resume, resumes, stateful
from brickprof.rules.story import Story

COMPLETE = "C-GPUOPT-001"


class CompleteCheckpoint:
    """The file holds all that a resume needs."""

    contract = COMPLETE

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        saves = [event for event in story.events("checkpoint", rank) if event.fields.get("op") == "save"]
        found = [one for one in resumes(story, rank) if one.update is not None and one.certain]
        violations = [each for one in found for each in _incomplete(story, rank, one)]
        violations = violations or list(_thin(story, rank, saves, contract.threshold("share")))
        if violations:
            return outcomes.broken(contract, violations[:1], "model, moments, step")
        if not saves and not found:
            return outcomes.vacuous(contract, "no checkpoint was saved or resumed from")
        with_state = [event for event in saves if event.fields.get("optimizer")]
        if not with_state and not found:
            return outcomes.unjudged(contract, "weights were saved, and nothing says that they are for a resume")
        moments = max((whole(event.fields.get("moments")) for event in with_state), default=0)
        return outcomes.held(contract, f"{moments:,} moments saved", "model, moments, step")


def _incomplete(story: Story, rank: int, one: Resume) -> Iterator[Violation]:
    model = one.restored.get("model")
    missing = whole(model.fields.get("missing")) if model is not None else 0
    if missing:
        names = ", ".join(str(name) for name in (model.fields.get("names") or ())[:3]) if model is not None else ""
        were = "was" if missing == 1 else "were"
        what = f"{wording.count(missing, 'tensor')} of the model {were} not in the file ({names})"
        why = "load_state_dict was told not to be strict, so that what is missing stayed as it was initialised"
        yield violation(COMPLETE, rank, one, what, why, "checkpoint-incomplete", 0.92)
    needs = any(stateful(each) for each in declared.optimizers(story, rank))
    if needs and not one.holds_state and "optimizer" not in one.restored:
        what = "the optimizer began again with empty moments"
        why = f"the file holds {_contents(one.load)}, and no optimizer state"
        yield violation(COMPLETE, rank, one, what, why, "checkpoint-incomplete", 0.93)


def _contents(load: Event) -> str:
    keys = [str(key) for key in load.fields.get("keys") or ()]
    return ", ".join(keys[:6]) or wording.count(whole(load.fields.get("tensors")), "tensor")


def _thin(story: Story, rank: int, saves: list[Event], share: float) -> Iterator[Violation]:
    """A file with an optimizer that has made updates and holds hardly a moment."""
    owned = max((len(each.tensors) for each in declared.optimizers(story, rank) if stateful(each)), default=0)
    for event in saves:
        made = [update for update in story.events("optimizer", rank) if update.moment < event.moment]
        moments = whole(event.fields.get("moments"))
        if event.fields.get("optimizer") and made and owned and moments < share * owned:
            yield Violation(
                COMPLETE, "checkpoint", Severity.WARNING,
                f"the checkpoint of step {event.step:,} holds {moments:,} moments of an optimizer of "
                f"{wording.count(owned, 'parameter')}", event.step, event.step, "", "step", rank, (event.id,),
                {"question": "Could the run be resumed from this file?"}, "checkpoint-incomplete", 0.8, frozenset(),
                (Because("Why not?", "After updates every parameter has moments, and the file has none for most.", "",
                         (event.id,)),),
                action="Save optimizer.state_dict() whole.",
            )  # fmt: skip
            return


RULE = CompleteCheckpoint
