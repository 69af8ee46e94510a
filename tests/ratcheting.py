"""Runs and contracts of the user's own, for tests of what judges the ones by the others."""

from __future__ import annotations

from making import NAN, Made


def contract(formal: str, *, identity: str = "C-OWN-X", about: str = "", **thresholds: float) -> str:
    limits = (
        f"thresholds: {{{', '.join(f'{name}: {value}' for name, value in thresholds.items())}}}\n" if thresholds else ""
    )
    depends = f"  depends_on: [{about}]\n" if about else ""
    return (
        f"metadata:\n  id: {identity}\n  version: 1.0.0\n  description: It holds.\n{depends}motivation: Because.\n"
        f"obligations:\n  - id: it\n    kind: bound\n    property: It holds.\n    formal: {formal}\n{limits}"
    )


def trained(*norms: float, rates: tuple[float, ...] = ()) -> Made:
    made = Made("embed", "head")
    for step, norm in enumerate(norms):
        made.step(step, norm=norm, loss=2.0 / (1 + step), lr=rates[step] if rates else 1e-3)
    return made


def broken() -> Made:
    """Norms of about 3 that run away, then a loss that is no number."""
    made = trained(*[3.0] * 12, 30, 900)
    for step in (14, 15):
        made.event("loss", step, value=NAN, micro=0)
        made.broken("grad", step, "head", point="step", l2=None, absmax=NAN)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    return made
