"""What a component costs: here brickprof itself, which is a component of every run it looks at.

Enters: what capture measured of its own cost. Leaves: C-RESOURCE-001.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.rules import outcomes
from brickprof.rules.names import number
from brickprof.rules.story import Story


class Resource:
    contract = "C-RESOURCE-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        ends = [event for rank in story.ranks for event in story.events("exit", rank)]
        told = [(cost, event) for event in ends if (cost := number(event.fields.get("overhead"))) is not None]
        if not told:
            return outcomes.unjudged(contract, "what capture cost is told when a run ends in order")
        cost, event = max(told, key=lambda item: item[0])
        spent = number(event.fields.get("spent_seconds")) or 0.0
        bound = contract.threshold("share")
        observed, threshold = f"capture took {cost:.1%} of the step ({spent:.2g} s)", f"below {bound:.0%}"
        if cost < bound:
            return outcomes.held(contract, observed, threshold)
        if any(begun.fields.get("level") == "deep" for begun in story.events("run", event.rank)):
            return outcomes.unjudged(
                contract, "level deep looks at everything in every step, as it was asked to", observed
            )
        if spent < contract.threshold("seconds"):
            return outcomes.vacuous(contract, f"{observed}: the run is too short for a share to mean much")
        violation = Violation(
            contract.id, "overhead", Severity.WARNING, observed, 0, event.step, rank=event.rank, evidence=(event.id,),
            action="Look less often: --level light.",
        )  # fmt: skip
        return outcomes.broken(contract, [violation], threshold)


RULE = Resource
