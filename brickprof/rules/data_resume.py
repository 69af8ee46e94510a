"""C-DATARESUME-001: after a resume the data go on where they stopped.

Enters: a story. Leaves: a violation where the batches after a resume are those that the run began with, although it was
resumed in the middle of an epoch.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import outcomes, wording
from brickprof.rules.names import number, whole
from brickprof.rules.resumes import Resume, resumes
from brickprof.rules.story import Story

CONTRACT = "C-DATARESUME-001"


class DataResume:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        found = [one for one in resumes(story, rank) if one.update is not None and (one.certain or one.step > 0)]
        if not found:
            return outcomes.vacuous(contract, "nothing was resumed")
        batches = _batches(story, rank)
        needed = int(contract.threshold("batches"))
        if not any(event.fields.get("fingerprint") for event in batches):
            return self._by_targets(story, rank, found, contract, needed)
        for one in found:
            same = _again(story, batches, one, needed)
            if same is not None:
                return outcomes.broken(contract, [_violation(rank, one, *same)], "no batch twice in an epoch")
            middle = _from_the_start(story, rank, batches, one)
            if middle is not None:
                return outcomes.broken(contract, [middle], "no batch twice in an epoch")
        return outcomes.held(contract, "the batches after the resume are new ones", "no batch twice in an epoch")

    def _by_targets(
        self, story: Story, rank: int, found: list[Resume], contract: Contract, needed: int
    ) -> ContractResult:
        targets = [event for event in story.events("targets", rank) if event.fields.get("fingerprint")]
        if not targets:
            return outcomes.unjudged(contract, "neither batches nor targets have fingerprints")
        for one in found:
            same = _targets_again(targets, one, needed)
            if same is not None:
                return outcomes.broken(contract, [_violation(rank, one, *same)], "no batch twice in an epoch")
        return outcomes.held(contract, "the targets after the resume are new ones", "no batch twice in an epoch")


def _targets_again(targets: list[Event], one: Resume, needed: int) -> tuple[list[Event], list[Event]] | None:
    """Targets after the resume that had stood before it, all of them the same number of steps earlier.

    A file that counts epochs is made between two of them, where the same order may begin again.
    """
    keys = [str(key).lower() for key in one.load.fields.get("keys") or ()]
    before = {event.step: event for event in targets if event.step < one.begins}
    after = [event for event in targets if event.step >= one.begins]
    if len(after) < needed or not one.certain or any("epoch" in key for key in keys):
        return None
    first = after[0].fields.get("fingerprint")
    for start in (step for step, event in before.items() if event.fields.get("fingerprint") == first):
        pairs = [(before[at], event) for event in after if (at := event.step - after[0].step + start) in before]
        same = [pair for pair in pairs if pair[0].fields.get("fingerprint") == pair[1].fields.get("fingerprint")]
        enough = _distinct(same, needed)
        if len(same) == len(pairs) and enough is not None:
            return [old for old, _ in same[:enough]], [new for _, new in same[:enough]]
    return None


def _distinct(pairs: list[tuple[Event, Event]], needed: int) -> int | None:
    """How many of ``pairs`` it takes to have ``needed`` different ones; None where there are not so many."""
    seen = set()
    for count, (event, _) in enumerate(pairs, 1):
        seen.add(event.fields.get("fingerprint"))
        if len(seen) >= needed:
            return count
    return None


def _batches(story: Story, rank: int) -> list[Event]:
    return [event for event in story.events("batch", rank) if event.fields.get("train") is not False]


def _again(story: Story, batches: list[Event], one: Resume, needed: int) -> tuple[list[Event], list[Event]] | None:
    """The batches after the resume that had stood before it, in the same order, where an epoch was under way."""
    before = [event for event in batches if event.moment < one.load.moment]
    after = [event for event in batches if event.moment > one.load.moment][: 4 * needed]
    if len(before) < needed or len(after) < needed or _epoch_was_over(story, before[-1]):
        return None
    prints = [event.fields.get("fingerprint") for event in before]
    wanted = [event.fields.get("fingerprint") for event in after[:needed]]
    for start in range(len(prints) - needed + 1):
        if prints[start : start + needed] == wanted and len(set(wanted)) == needed:
            return before[start : start + needed], after[:needed]
    return None


def _epoch_was_over(story: Story, last: Event) -> bool:
    """Whether the file was loaded between two epochs: then the same order may begin again."""
    loader = last.fields.get("loader")
    lengths = [
        whole(event.fields.get("batches"))
        for event in story.events("loader", last.rank)
        if event.fields.get("loader") == loader
    ]
    index = last.fields.get("index")
    return not lengths or not isinstance(index, int) or index + 1 >= lengths[-1]


def _from_the_start(story: Story, rank: int, batches: list[Event], one: Resume) -> Violation | None:
    """A file of the middle of an epoch, from another process, and a loader that begins at its first batch."""
    loader = next((e for e in story.events("loader", rank) if e.fields.get("train") is not False), None)
    length = number(loader.fields.get("batches")) if loader is not None else None
    keys = " ".join(str(key).lower() for key in one.load.fields.get("keys") or ())
    after = [event for event in batches if event.moment > one.load.moment]
    if not one.certain or one.load.step or not length or one.step <= length or "epoch" in keys or not after:
        return None
    counted = one.step % length != 0 and whole(after[0].fields.get("index"), -1) == 0
    remembers = any(word in keys for word in ("sampler", "loader", "data", "batch", "rng"))
    if not counted or remembers or one.load.fields.get("rng"):
        return None
    return _violation(rank, one, [], after[:1])


def _violation(rank: int, one: Resume, before: list[Event], after: list[Event]) -> Violation:
    evidence = tuple(event.id for event in (*before[:2], one.load, *after[:2]))
    first = after[0].step
    if before:
        old = f"those of step {before[0].step:,} on"
        symptom = f"the batches after the resume in step {first:,} are {old}: the data begin again"
        why = f"{wording.count(len(after), 'batch', 'batches')} in a row have the fingerprints of earlier ones"
    else:
        symptom = (
            f"the run was resumed at step {one.step:,}, in the middle of an epoch, and the loader began at batch 0"
        )
        why = "the file holds nothing of the data's position"
    return Violation(
        CONTRACT, "data-order", Severity.ERROR if before else Severity.WARNING, symptom, first, after[-1].step, "",
        "loader", rank, evidence,
        {"question": "Do the data go on where they stopped?", "asked": "Which data came after the resume?"},
        "data-order-lost-on-resume", 0.93 if before else 0.65,
        frozenset({"data-repeats", "overfitting", "data", "repeats"}),
        (Because("Why do they begin again?", wording.sentence(
            f"{why}: a new iterator was made and nothing moved it to where the old one stood"), "", evidence),),
        action="Save the epoch and the position in it (or the sampler's state), seed the order by the epoch, and skip "
        "the batches that were seen.",
    )  # fmt: skip


RULE = DataResume
