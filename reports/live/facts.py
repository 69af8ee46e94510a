"""A scene as JSON: for the page of ``brickprof serve``, and for programs.

Enters: a ``Scene``. Leaves: strict JSON of bounded size. What is not finite is a word, every foreign string is cleaned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from brickprof.diagnosis.words import words
from brickprof.reports.live.map import folded
from brickprof.reports.live.scene import Card, Heat, Rank, Series
from brickprof.reports.live.screen import card_line
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.reports.live.scene import Scene

SCHEMA = 1
_MOST_LAYERS, _MOST_STEPS = 48, 160
_MOST_FINDINGS = 50


def facts(scene: Scene) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": scene.run_id,
        "name": scene.name,
        "script": scene.script,
        "state": scene.condition.word,
        "said": scene.condition.text,
        "over": scene.condition.over,
        "step": scene.step,
        "seconds": round(scene.elapsed, 1),
        "read": round(scene.read, 3),
        "curves": [curve(series) for series in (scene.loss, scene.norm, scene.seconds) if series],
        "heat": _heat(scene.heat),
        "ranks": [_rank(rank) for rank in scene.ranks],
        "cards": [_card(card) for card in scene.cards],
        "verdict": scene.diagnosis.verdict.value if scene.diagnosis else None,
        "findings": _findings(scene.diagnosis),
        "judged": clean(scene.judged, limit=200),
        "notes": list(scene.notes),
    }


def curve(series: Series) -> dict[str, Any]:
    """Of each stretch of steps its last step, lowest and highest value; apart from them what is not finite."""
    return {
        "name": series.name,
        "steps": [point.step for point in series.points],
        "low": [_finite(point.low) for point in series.points],
        "high": [_finite(point.high) for point in series.points],
        "odd": [[point.step, "NaN" if point.odd == "N" else "Inf"] for point in series.points if point.odd],
        "last": number(series.points[-1].last) if series.points else None,
    }


def number(value: float | None) -> float | str | None:
    """A number as strict JSON has it; NaN and the infinities are words."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _heat(heat: Heat) -> dict[str, Any] | None:
    if not heat:
        return None
    layers, cells = folded(heat.layers, [row[-_MOST_STEPS:] for row in heat.cells], _MOST_LAYERS)
    rows = [[round(cell, 2) if isinstance(cell, float) else cell for cell in row] for row in cells]
    return {"layers": layers, "steps": list(heat.steps[-_MOST_STEPS:]), "cells": rows, "rank": heat.rank}


def _rank(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.number, "step": rank.step, "loss": _measured(rank.loss, rank), "norm": _measured(rank.norm, rank),
        "lr": _measured(rank.rate, rank), "seconds": _finite(rank.seconds), "doing": rank.doing, "state": rank.state,
        "quiet": round(rank.quiet, 1), "overhead": _finite(rank.overhead),
    }  # fmt: skip


def _measured(value: float, rank: Rank) -> float | str | None:
    """Before the first step a pulse holds NaN for what nobody measured yet."""
    return number(value) if rank.step > 0 else None


def _card(card: Card) -> dict[str, Any]:
    return {
        "name": card.name, "line": card_line(card), "utilisation": card.utilisation, "memory_used": card.memory_used,
        "memory_total": card.memory_total, "power": card.power, "temperature": card.temperature,
    }  # fmt: skip


def _findings(diagnosis: Diagnosis | None) -> list[dict[str, Any]]:
    return [_finding(finding) for finding in diagnosis.findings[:_MOST_FINDINGS]] if diagnosis else []


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": clean(finding.id, limit=20),
        "severity": finding.severity.value,
        "symptom": clean(finding.symptom),
        "contract": clean(finding.contract, limit=80),
        "cause": clean(words(finding.root_cause), limit=200),
        "confidence": round(finding.confidence, 3),
        "step": finding.first_step,
        "brick": clean(finding.brick, limit=200),
        "action": clean(finding.action, limit=600),
        "whys": [[clean(why.question), clean(why.finding, limit=600)] for why in finding.whys],
    }
