"""C-RESUME-001: a run that is resumed goes on as if it had not stopped.

Enters: a story. Leaves: a violation where what the file holds came back in part or not at all: moments that begin
again, a step that begins again, a schedule that begins again.

Weights that are loaded to begin a new training are no resume.
"""

from __future__ import annotations

from collections.abc import Iterator

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes, wording
from brickprof.rules.names import whole
from brickprof.rules.resumes import Resume, another_training, rate_after, rate_before, resumes, stateful
from brickprof.rules.story import Story

RESUME = "C-RESUME-001"
_FOLLOW = frozenset(
    {"spike", "diverged", "plateau", "loss-jump", "slow-learning", "resume", "schedule", "optimizer-state"}
)


class ResumeState:
    """What was in the file is in force again."""

    contract = RESUME

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        found = [one for one in resumes(story, rank) if one.update is not None]
        if not found:
            return outcomes.vacuous(contract, "nothing was resumed")
        violations = [each for one in found for each in _lost(story, rank, one, contract)]
        if violations:
            return outcomes.broken(contract, violations[:1], "moments, step and rate as they were")
        if not any(one.certain for one in found):
            return outcomes.unjudged(contract, "a file was loaded, and nothing says that a run was resumed from it")
        return outcomes.held(contract, f"resumed at step {found[-1].step:,} with its state", "moments, step and rate")


def _lost(story: Story, rank: int, one: Resume, contract: Contract) -> Iterator[Violation]:
    after = [each for each in declared.optimizers(story, rank) if stateful(each)]
    if not one.certain or not after or another_training(story, rank, one):
        return
    given = one.restored.get("optimizer")
    if one.holds_state and (one.forgot or (given is None and one.moments is None)):
        step_only = given is not None and bool(given.fields.get("moments")) and given.fields.get("count") == 0
        what = (
            "the optimizer's step began again at 0" if step_only else "the optimizer's moments began again from nothing"
        )
        why = (
            "moments came back, their step did not: bias correction begins again over old moments" if step_only
            else f"{_restored(given)}, and the first update after it was the optimizer's first"
        )  # fmt: skip
        yield violation(RESUME, rank, one, what, why, "resume-state-lost", 0.93)
        return
    jump = _jump(story, rank, one, contract)
    if jump is not None:
        yield violation(RESUME, rank, one, *jump, "resume-state-lost", 0.88)


def _restored(given: Event | None) -> str:
    if given is None:
        return "the file holds the optimizer's state and nobody put it back"
    return f"{wording.count(whole(given.fields.get('moments')), 'moment')} were put back into an optimizer"


def _jump(story: Story, rank: int, one: Resume, contract: Contract) -> tuple[str, str] | None:
    """A rate that is another after the resume, where a schedule should have gone on."""
    before, after = rate_before(story, rank, one.load), rate_after(one)
    if before is None or after is None or min(before[0], after[0]) <= 0 or "scheduler" in one.restored:
        return None
    most = contract.threshold("rate_jump")
    if 1 / most <= after[0] / before[0] <= most or not story.events("schedule", rank):
        return None
    what = f"the learning rate was {before[0]:.3g} before the resume and {after[0]:.3g} after it"
    held = "the file holds the schedule's state and nobody put it back" if one.load.fields.get("scheduler") else (
        "the file does not hold the schedule's state, and the schedule begins again")  # fmt: skip
    return what, held


def violation(contract: str, rank: int, one: Resume, what: str, why: str, cause: str, certainty: float) -> Violation:
    update = one.update if one.update is not None else one.load
    seen = [one.load, one.restored.get("optimizer"), one.restored.get("model"), one.moments, update]
    evidence = tuple(dict.fromkeys(event.id for event in seen if event is not None))
    name = one.load.fields.get("file")
    return Violation(
        contract, "resume", Severity.ERROR, f"{what} when the run was resumed in step {one.begins:,}", one.begins,
        max(update.step, one.begins), "", "step", rank, evidence,
        {"question": "Does the run go on where it stopped?", "asked": "What came back at the resume?"},
        cause, certainty, _FOLLOW,
        (Because("Why?", wording.sentence(f"{why} ({name or 'a buffer'}, step {one.step:,})"), "", evidence),),
        action="Save and load model, optimizer, scheduler, scaler, random states and step together, and check after "
        "loading that the optimizer's step is the one that was saved.",
    )  # fmt: skip


RULE = ResumeState
