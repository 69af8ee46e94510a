"""C-TRAINSTABLE-001, from a log: the loss stays finite, and what the optimizer is given does.

Enters: the series of a log. Leaves: one violation for the first value that is not finite and did harm, with what moved
before it: the gradient norm, the loss itself, the scale; and, where steps between two lines are not in the log, the
interval in which it began.

Harmless: a gradient norm that is not finite in a step that the loss scaler skipped; one that is printed as nan in every
line while the loss goes on falling (a trainer that does not measure it). A loss that is printed as exactly 0 while
norms are nan is no loss: trainers that leave losses out of their mean which are not finite print that; others print no
loss any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_view import View, bad, kind_of, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-TRAINSTABLE-001"
_IN_A_ROW = 3
_SILENT = 2
"""Norms in a row where losses stopped being told with the first of them."""
_LATELY = 8
_GREW = 10.0
_ROSE = 1.5
_GOES_ON = 5
_NORMS = ("norm", "untold")


class Sign(NamedTuple):
    """Where a series stopped being finite."""

    what: str
    """loss, norm or evaluation; ``untold`` of a norm where no line says what became of the loss."""
    track: Track
    place: int

    @property
    def step(self) -> int:
        return int(self.track.steps[self.place])

    @property
    def order(self) -> int:
        return int(self.track.seqs[self.place])

    @property
    def evidence(self) -> str:
        return self.track.evidence(self.place)

    @property
    def kind(self) -> str:
        return kind_of(float(self.track.values[self.place]))


class Finite:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not (len(seen.loss) or len(seen.norms) or seen.evaluations):
            return outcomes.vacuous(contract, "the log has no loss, no gradient norm and no evaluation")
        violation = _of_losses(seen) or _of_parts(seen) or _of_counts(seen) or _of_norms(seen) or _of_evaluations(seen)
        if violation is not None:
            return outcomes.broken(contract, [violation], "all finite")
        counted = wording.count(len(seen.loss), "logged loss", "logged losses")
        passed = int(bad(seen.norms).sum())
        skipped = f"; {wording.count(passed, 'gradient norm')} not finite, and passed" if passed else ""
        if not len(seen.loss):
            return outcomes.held(contract, f"no loss is logged; what is, is finite{skipped}", "all finite")
        return outcomes.held(contract, f"{counted}, all finite{skipped}", "all finite")


# -- the loss


def _of_losses(seen: View) -> Violation | None:
    broken = np.flatnonzero(bad(seen.loss))
    if not len(broken):
        return None
    first = Sign("loss", seen.loss, int(broken[0]))
    after = np.flatnonzero(np.isfinite(seen.loss.values[first.place :]))
    lasting = not len(after) or bool(bad(seen.loss)[-1]) or _all_zero(seen.loss.values[first.place :])
    if lasting:
        stays = _last_stretch(bad(seen.loss)) if bool(bad(seen.loss)[-1]) else first.place
        return _broken(seen, Sign("loss", seen.loss, stays), recovered=False)
    return _passed(seen, first, len(broken))


def _all_zero(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(np.all(finite == 0.0))


def _last_stretch(broken: Any) -> int:
    """Where the stretch begins that lasts to the end."""
    whole = np.flatnonzero(~broken)
    return int(whole[-1]) + 1 if len(whole) else 0


def _passed(seen: View, first: Sign, times: int) -> Violation:
    """Losses that were not finite, and training that went on."""
    skipped = _skipped_at(seen, first.step)
    lines, at = wording.count(times, "line"), seen.at(first.step)
    symptom = f"loss was {first.kind} in {lines}, first at {at}, and then finite again"
    if skipped:
        symptom += "; the update was skipped"
    severity = Severity.INFO if skipped else Severity.WARNING
    return _violation(seen, first, severity, symptom, recovered=True)


def _skipped_at(seen: View, step: int) -> bool:
    """Whether updates around ``step`` were left out."""
    reach = max(1, int(seen.log.get("cadence") or 1))
    if any(step - reach <= event.step <= step for event in seen.overflows):
        return True
    for counted in (*seen.measures("skipped").values(), *seen.measures("nonfinite").values()):
        at = counted.values[(counted.steps >= step - reach) & (counted.steps <= step)]
        before = counted.until(step - reach - 1).values
        adds_up = len(counted) > 2 and bool(np.all(np.diff(counted.values) >= 0))
        known = float(before[-1]) if adds_up and len(before) else 0.0
        if bool((at > known).any()):
            return True
    return False


def _broken(seen: View, first: Sign, recovered: bool) -> Violation:
    symptom = f"loss is {first.kind} from {seen.at(first.step)} on"
    if _before_any_update(seen, first):
        held = next((sign for sign in _earlier(seen, first) if sign.what == "evaluation"), None)
        symptom += ", before any update was made"
        symptom += f"; the evaluation before it is {held.kind} already" if held is not None else ""
    elif (between := _between(seen.loss, first, seen)) != "":
        symptom += f" ({between})"
    return _violation(seen, first, Severity.ERROR, symptom, recovered)


def _between(found: Track, first: Sign, seen: View) -> str:
    """The steps in which it may have begun, where not every step is in the log."""
    good = np.flatnonzero(np.isfinite(found.values[: first.place]))
    if not len(good) or not seen.by_steps:
        return ""
    known = int(found.steps[good[-1]])
    if first.step - known <= 1:
        return ""
    return f"it began between step {known + 1:,} and {first.step:,}: the steps between are not in the log"


def _of_parts(seen: View) -> Violation | None:
    """Another training loss than the one that is minimised, or its parts, that ends in nan."""
    for name, found in seen.measures("loss").items():
        broken = bad(found)
        if len(found) >= _IN_A_ROW and bool(broken[-_IN_A_ROW:].all()) and (seen.several or name in seen.twins):
            first = Sign("loss", found, _last_stretch(broken))
            symptom = f"{name} is {first.kind} from {seen.at(first.step)} on"
            return _violation(seen, first, Severity.ERROR, symptom, recovered=False)
    return None


def _of_counts(seen: View) -> Violation | None:
    """Lines without a loss that count steps whose loss was nan, to the end of the log."""
    last = int(seen.loss.steps[-1]) if len(seen.loss) else -1
    for name, counted in seen.measures("nonfinite").items():
        whole = ~(counted.values > 0)
        begin = _last_stretch(~whole)
        after = counted.where(np.arange(len(counted)) >= begin)
        if len(after) >= _IN_A_ROW and int(after.steps[0]) > last:
            first = Sign("loss", Track(after.steps, np.full(len(after), np.nan), after.seqs, after.rank), 0)
            symptom = f"no loss is logged from {seen.at(first.step)} on: {name} counts steps whose loss is nan"
            return _violation(seen, first, Severity.ERROR, symptom, recovered=False)
    return None


# -- gradient norms


def _of_norms(seen: View) -> Violation | None:
    """Norms that are not finite to the end of the log, where the loss does not go on as if nothing were wrong."""
    broken = bad(seen.norms)
    if not len(broken) or not broken[-1]:
        return None
    begin = _last_stretch(broken)
    first = Sign("norm", seen.norms, begin)
    losses = seen.loss.since(first.step)
    zero = _all_zero(losses.values[1:]) if len(losses) > 1 else False
    silent = _silent(seen, first)
    if len(broken) - begin < (_SILENT if silent else _IN_A_ROW) and not zero:
        return None
    if not zero and _goes_on(seen, first.step):
        return None
    symptom = f"the gradient norm is {first.kind} from {seen.at(first.step)} on"
    if zero:
        empty = int(losses.steps[losses.values == 0.0][0])
        symptom += f", and the loss is printed as exactly 0 from {seen.at(empty)} on"
    elif silent:
        symptom += f", and no loss is logged behind {seen.at(int(seen.loss.steps[-1]))}"
    if (between := _between(seen.norms, first, seen)) != "":
        symptom += f" ({between})"
    if not len(losses):
        first = Sign("untold", first.track, first.place)
    return _violation(seen, first, Severity.ERROR, symptom, recovered=False)


def _silent(seen: View, first: Sign) -> bool:
    """Whether losses were told up to this norm and none since, for longer than from one to the next, and nothing says
    that updates were skipped: of a step that the scaler skips, some trainers print no loss."""
    if not len(seen.loss) or int(seen.loss.steps[-1]) >= first.step:
        return False
    apart = np.diff(np.unique(seen.loss.steps))
    usual = float(np.median(apart)) if len(apart) else 1.0
    since = first.track.steps[first.place :]
    missed = int(since[-1]) - int(seen.loss.steps[-1])
    return missed >= _SILENT * usual and not any(_skipped_at(seen, step) for step in since.tolist())


def _goes_on(seen: View, step: int) -> bool:
    """Whether losses from ``step`` on are such as training makes: they differ, and stay where they were or fall."""
    before, after = seen.finite.until(step - 1), seen.finite.since(step)
    if len(after) < _GOES_ON or len(np.unique(after.values)) < _GOES_ON:
        return False
    if not len(before):
        half = len(after) // 2
        return float(np.median(after.values[half:])) < float(np.median(after.values[:half]))
    usual = before.values[-_LATELY:]
    return float(np.median(after.values)) <= float(np.median(usual)) + 2 * max(np.ptp(usual), 1e-12)


# -- evaluations


def _of_evaluations(seen: View) -> Violation | None:
    """An evaluation that ends in nan while training is finite: worth a look, not the end."""
    for name, found in seen.evaluations.items():
        broken = bad(found)
        if len(broken) and broken[-1] and (len(found) >= 2 or not len(seen.loss)):
            first = Sign("evaluation", found, int(np.flatnonzero(broken)[0]))
            severity = Severity.WARNING if len(seen.finite) else Severity.ERROR
            lasting = first.place == _last_stretch(broken)
            symptom = f"{name or 'evaluation loss'} is {first.kind} from {seen.at(first.step)} on"
            if not lasting:
                symptom = f"{name or 'evaluation loss'} is {first.kind} in {int(broken.sum())} of {len(found)} "
                symptom += f"evaluations, first at {seen.at(first.step)}"
            if len(seen.finite):
                symptom += " while the training loss is finite"
            return _violation(seen, first, severity, symptom, recovered=False)
    return None


# -- what moved before


def _violation(seen: View, first: Sign, severity: Severity, symptom: str, recovered: bool) -> Violation:
    signs = _earlier(seen, first)
    origin = signs[0] if signs else first
    unborn = _before_any_update(seen, first)
    moved = _moved(seen, origin.step)
    then = [_told(seen, sign) for sign in reversed(signs) if not (unborn and sign.what == "evaluation")]
    if unborn:
        then.append(_unborn(seen, first, signs))
    elif moved:
        then.append(Because("What moved before it?", " ".join(text for text, _ in moved.values()), "",
                            tuple(dict.fromkeys(shown for _, shown in moved.values()))))  # fmt: skip
    begin = first.step if unborn else min(origin.step, first.step)
    details = {
        "logged": True, "question": _question(seen, first), "recovered": recovered, "first": first.what,
        "origin_what": origin.what, "unborn": unborn, "evaluated": any(s.what == "evaluation" for s in signs),
        "moved": sorted(moved), "then": tuple(then[:2]), "step": origin.step,
    }  # fmt: skip
    proof = tuple(dict.fromkeys((first.evidence, *(sign.evidence for sign in signs))))
    return Violation(
        CONTRACT, "nonfinite", severity, symptom, begin, first.step, "loss" if first.what not in _NORMS else "", "step",
        first.track.rank, proof, details,
    )  # fmt: skip


def _question(seen: View, first: Sign) -> str:
    noun = {"loss": "the loss", "evaluation": "the evaluation loss"}.get(first.what, "the gradient norm")
    return f"Why is {noun} {first.kind} at {seen.at(first.step)}?"


def _earlier(seen: View, first: Sign) -> list[Sign]:
    """Signs that led up to ``first``, the earliest in the log first."""
    found = []
    if first.what not in _NORMS and len(seen.norms):
        found += _leading(Sign("norm", seen.norms, 0), first)
    for one in seen.evaluations.values():
        if first.what != "evaluation":
            found += _leading(Sign("evaluation", one, 0), first)
    return sorted(found, key=lambda sign: sign.order)


def _leading(series: Sign, first: Sign) -> list[Sign]:
    """The begin of a stretch of values that are not finite and that had not ended when ``first`` came."""
    until = series.track.until(first.step)
    earlier = until.where(until.seqs < first.order)
    broken = bad(earlier)
    if not len(broken) or not broken[-1]:
        return []
    return [Sign(series.what, earlier, _last_stretch(broken))]


def _told(seen: View, sign: Sign) -> Because:
    if sign.what == "evaluation":
        text = f"The evaluation at {seen.at(sign.step)} gave {sign.kind} already."
        return Because("Was it the first to break?", text, "", (sign.evidence,))
    text = f"The gradient norm is {sign.kind} from {seen.at(sign.step)} on, before the loss is."
    return Because("What broke first?", text, "", (sign.evidence,))


def _before_any_update(seen: View, first: Sign) -> bool:
    """Whether nothing was learnt yet: no finite loss comes before, and the log begins where training does. The loss of
    an epoch is a mean over its updates: the first one tells nothing."""
    if not seen.from_the_start or first.what in _NORMS or not seen.by_steps:
        return False
    good = np.flatnonzero(np.isfinite(seen.loss.values))
    return not len(good) and first.step <= 1


def _unborn(seen: View, first: Sign, signs: list[Sign]) -> Because:
    evaluated = next((sign for sign in signs if sign.what == "evaluation"), None)
    proof = tuple(sign.evidence for sign in (evaluated, first) if sign is not None)
    text = f"No loss of this log is finite, and the first update comes after the loss of {seen.at(first.step)}"
    if evaluated is not None:
        text = f"The evaluation before {seen.at(first.step)} is {evaluated.kind} already, on other data"
    return Because("Can training have done it?", f"{text}: no update had been made.", "", proof)


def _moved(seen: View, step: int) -> dict[str, tuple[str, str]]:
    """What had left its usual size before ``step``: the text, and the record that shows it."""
    found: dict[str, tuple[str, str]] = {}
    norms = seen.norms.where(np.isfinite(seen.norms.values) & (seen.norms.steps < step))
    if len(norms) >= 3:
        usual = float(np.median(norms.values[: max(1, len(norms) - _LATELY)] if len(norms) > _LATELY else norms.values))
        late = norms.values[-_LATELY:]
        place = len(norms) - len(late) + int(np.argmax(late))
        peak = float(norms.values[place])
        if peak >= _GREW * usual > 0:
            text = f"The gradient norm was {show(peak)} at {seen.at(int(norms.steps[place]))}; usual is {show(usual)}."
            found["norm"] = text, norms.evidence(place)
        else:
            last = float(norms.values[-1])
            text = f"The gradient norm was ordinary ({show(last)}) until {seen.at(int(norms.steps[-1]))}."
            found["norm-calm"] = text, norms.evidence(len(norms) - 1)
    losses = seen.finite.until(step - 1)
    if len(losses) >= 3:
        low, last = int(np.argmin(losses.values)), len(losses) - 1
        lowest, latest = float(losses.values[low]), float(losses.values[last])
        if latest > _ROSE * lowest > 0:
            text = f"The loss had risen from {show(lowest)} ({seen.at(int(losses.steps[low]))}) to {show(latest)}."
            found["loss"] = text, losses.evidence(last)
        else:
            text = f"The loss was {show(latest)} at {seen.at(int(losses.steps[last]))}, as before."
            if latest < float(losses.values[0]):
                text = f"The loss was falling: {show(latest)} at {seen.at(int(losses.steps[last]))}."
            found["loss-calm"] = text, losses.evidence(last)
    scales = seen.scales.where(np.isfinite(seen.scales.values) & (seen.scales.steps <= step))
    if len(scales) >= 2 and float(scales.values[-1]) < 0.1 * float(scales.values.max()):
        text = f"The loss scale had fallen from {show(float(scales.values.max()))} to {show(float(scales.values[-1]))}."
        found["scale"] = text, scales.evidence(len(scales) - 1)
    return found


RULE = Finite
