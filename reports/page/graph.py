"""The contracts of a run as a graph: what each one rests on, and how each was judged.

Enters: a ``Diagnosis`` and the library's contracts. Leaves: nodes and edges as plain data, each node with its layer: a
contract stands behind all that it depends on. Contracts that nothing joins come without a layer, and so do those of
which nothing is known, nor of what they are joined to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis

_ORDER = (Verdict.FAIL, Verdict.PASS, Verdict.VACUOUS, Verdict.NOT_EVALUATED)


def graph(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Nodes, the worst first, and edges from what is rested on to what rests on it, by place."""
    results = sorted(diagnosis.contracts, key=lambda result: (_ORDER.index(result.verdict), result.id))
    if not results:
        return None
    place = {result.id: at for at, result in enumerate(results)}
    edges = [
        (place[base], place[result.id])
        for result in results
        for base in _bases(result.id)
        if base in place and base != result.id and not _unknown(result, results[place[base]])
    ]
    layers = _layers(len(results), edges)
    broken = _findings(diagnosis)
    nodes = [
        {"id": clean(result.id, limit=40), "verdict": result.verdict.value, "says": clean(_says(result.id), limit=160),
         "layer": layers.get(at), "finding": broken.get(result.id, "")}
        for at, result in enumerate(results)
    ]  # fmt: skip
    return {"nodes": nodes, "edges": [list(edge) for edge in edges]}


def _unknown(*results: ContractResult) -> bool:
    return all(result.verdict is Verdict.NOT_EVALUATED for result in results)


def _bases(identity: str) -> tuple[str, ...]:
    contract = registry.library().get(identity)
    return contract.metadata.depends_on if contract else ()


def _says(identity: str) -> str:
    contract = registry.library().get(identity)
    return contract.metadata.description if contract else ""


def _findings(diagnosis: Diagnosis) -> dict[str, str]:
    """The first finding of each contract that is more than a note."""
    found: dict[str, str] = {}
    for number, finding in enumerate(diagnosis.findings, start=1):
        if finding.severity is not Severity.INFO:
            found.setdefault(finding.contract, f"F{number}")
    return found


def _layers(count: int, edges: list[tuple[int, int]]) -> dict[int, int]:
    """The layer of every node that has an edge; a circle, which no library should have, ends where it began."""
    layers = {node: 0 for edge in edges for node in edge}
    for _ in range(min(count, len(layers))):
        moved = False
        for base, above in edges:
            if layers[above] <= layers[base] < len(layers):
                layers[above], moved = layers[base] + 1, True
        if not moved:
            break
    return layers
