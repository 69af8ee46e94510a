"""The four verdicts in one line each, for rules that judge several contracts.

Enters: a contract, and what was seen. Leaves: its ``ContractResult``.
"""

from __future__ import annotations

from collections.abc import Iterable

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation


def held(contract: Contract, observed: str, threshold: str = "") -> ContractResult:
    return ContractResult(contract.id, Verdict.PASS, observed, threshold)


def vacuous(contract: Contract, why: str) -> ContractResult:
    """Nothing was there that the contract speaks of."""
    return ContractResult(contract.id, Verdict.VACUOUS, why=why)


def unjudged(contract: Contract, why: str, observed: str = "") -> ContractResult:
    """What would decide was not recorded; ``why`` says what it is."""
    return ContractResult(contract.id, Verdict.NOT_EVALUATED, observed, why=why)


def aside(contract: Contract, why: str) -> ContractResult:
    """Nothing was seen that this rule speaks of; another that watches the contract may have more to say."""
    return ContractResult(contract.id, Verdict.NOT_EVALUATED, why=why, aside=True)


def broken(contract: Contract, violations: Iterable[Violation], threshold: str = "", why: str = "") -> ContractResult:
    """The contract with its violations: broken, unless all of them are only worth knowing, which proves nothing."""
    found = tuple(violations)
    said = why or (found[0].symptom if found else "")
    if all(violation.severity is Severity.INFO for violation in found):
        return ContractResult(
            contract.id, Verdict.NOT_EVALUATED, said, threshold, f"{said}; that alone decides nothing", found
        )
    return ContractResult(contract.id, Verdict.FAIL, said, threshold, said, found)
