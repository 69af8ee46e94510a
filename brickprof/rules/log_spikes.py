"""C-LOSSSPIKE-001, from a log: the loss does not jump out of its noise, or it comes back.

Enters: the loss of a log, by step and by epoch where it is told both ways, and the gradient norm. Leaves: one violation
for all jumps, with what moved first and whether the loss came back.

Losses may span decades, so a jump is measured in factors as well as in deviations: it leaves the noise of the points
before it by far, and is at least double their level. A factor of a thousand in a loss that is all but zero counts too,
where its noise is small. Jumps that come back are worth a warning where they are tall or many; in a log that shows
little else they are what the log is about.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Violation
from brickprof.rules import again, outcomes, wording
from brickprof.rules.log_view import View, show, spread, view
from brickprof.rules.story import Story, Track
from brickprof.rules.story.tracks import Floats

CONTRACT = "C-LOSSSPIKE-001"
_FEWEST, _FEWEST_LOUD = 5, 3
_DOUBLE = 2.0
_TALL = 10.0
_NEAR_ZERO = 0.01
_SIGMAS = 20.0
_LOG_SIGMAS = 8.0
_LOUD_SIGMAS = 3.0
_FAR_NORM = 30.0
_CONTEXT = 128
_ROSE = 3.0
_RUNAWAY = 100.0
_SHARE = 0.1
_BACK_WITHIN = 4.0
_MANY = 4
_ENDS = 3
_OF_START = 0.2


class Jump(NamedTuple):
    track: Track
    place: int
    before: float
    peak: int
    """The place of its highest point."""
    back: int | None
    """The place at which the loss was back; None where it never was."""
    start: float = 0.0
    """The level at which the losses of the log begin."""

    @property
    def step(self) -> int:
        return int(self.track.steps[self.place])

    @property
    def factor(self) -> float:
        return float(self.track.values[self.peak]) / self.before if self.before > 0 else np.inf

    @property
    def top(self) -> float:
        return float(self.track.values[self.peak])

    @property
    def material(self) -> bool:
        """Whether it reaches what the loss began at: a batch that is hard for a trained model does not."""
        return self.top >= self.start


class Herald(NamedTuple):
    """What had moved before the loss did."""

    what: str
    step: int
    value: float
    usual: float
    peak: float
    evidence: tuple[str, ...]


class LoggedSpikes:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not len(seen.finite):
            return outcomes.vacuous(contract, "the log has no loss")
        if why := seen.level_says_nothing:
            return outcomes.unjudged(contract, why)
        if len(seen.finite) <= _FEWEST_LOUD:
            return outcomes.unjudged(contract, f"{wording.count(len(seen.finite), 'loss', 'losses')} say too little")
        found = _all(seen, contract)
        if not found:
            return outcomes.held(
                contract, f"{wording.count(len(seen.finite), 'logged loss', 'logged losses')}, no jump"
            )
        violation = _violation(seen, found)
        if violation.severity is Severity.INFO:
            return ContractResult(CONTRACT, outcomes.held(contract, "").verdict, violation.symptom,
                                  violations=(violation,))  # fmt: skip
        return outcomes.broken(contract, [violation])


def _all(seen: View, contract: Contract) -> list[Jump]:
    """The jumps of the loss, or of the twin that shows more of them; beside tall ones the others do not count."""
    tellers = [seen.finite, *(one.per_step().finite() for one in seen.twins.values() if len(one) > _FEWEST)]
    ends, norms = _unfinished(seen), seen.norms.per_step().finite()
    listed = [[jump for jump in jumps(one, contract, norms) if ends is None or jump.step < ends] for one in tellers]
    tall = [[jump for jump in found if jump.factor >= _TALL] for found in listed]
    return max(tall, key=len) if any(tall) else max(listed, key=len)


def _unfinished(seen: View) -> int | None:
    """From here on the loss is on its way to no number: that is told elsewhere."""
    broken = np.flatnonzero(~np.isfinite(seen.loss.values))
    if not len(broken):
        return None
    return int(seen.loss.steps[max(0, int(broken[0]) - _ENDS)])


def _loud(norms: Track, step: int) -> bool:
    """Whether the gradient norm of this step is far out of its usual size too: less of the loss is proof then."""
    now, before = norms.at(step), norms.until(step - 1).values[-_CONTEXT:]
    return now is not None and len(before) >= _FEWEST_LOUD and now > _FAR_NORM * float(np.median(before))


def jumps(found: Track, contract: Contract, norms: Track) -> list[Jump]:
    """Every jump upwards of a loss that is never negative."""
    values, window = found.values, int(contract.threshold("window"))
    start = float(np.median(values[: min(5, max(1, len(values) // 3))]))
    made: list[Jump] = []
    over = -1
    for place in _outliers(values, window).tolist():
        before = values[max(0, place - window) : place]
        if place <= over or not _jumps(values, place, before, start, _loud(norms, int(found.steps[place]))):
            continue
        level = float(np.median(before))
        calm = level + _BACK_WITHIN * max(spread(before), 0.05 * abs(level))
        back = np.flatnonzero(values[place + 1 :] <= calm)
        until = place + 1 + int(back[0]) if len(back) else None
        end = until if until is not None else len(values)
        peak = place + int(np.argmax(values[place:end]))
        made.append(Jump(found, place, level, peak, until, start))
        over = end
    return made


def _outliers(values: Floats, window: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The places of values above all of the ``window`` before them: only those can be jumps."""
    padded = np.concatenate([np.full(window, -np.inf), values[:-1]])
    highest = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.flatnonzero(values >= 1.25 * highest)
    return found[found >= _FEWEST_LOUD]


def _jumps(values: Floats, place: int, before: Floats, start: float, loud: bool) -> bool:
    if len(before) < _FEWEST and not loud:
        return False
    value, level, highest = float(values[place]), float(np.median(before)), float(before.max())
    if value < _DOUBLE * level or value < 1.25 * highest or level <= 0:
        return False
    if np.log(value / level) < (_LOUD_SIGMAS if loud else _LOG_SIGMAS) * _restless(values, place):
        return False
    size = max(spread(before), 0.05 * level)
    if level >= _NEAR_ZERO * start:
        return value - level > _SIGMAS * size and value > highest + 0.25 * _SIGMAS * size
    return value > _TALL * level and value > 3 * highest  # all but zero: only factors count


def _restless(values: Floats, place: int) -> float:
    """How widely the losses before scatter, in factors: from one to the next, whatever their trend."""
    logs = np.log(np.maximum(values[max(0, place - _CONTEXT) : place], 1e-30))
    return max(spread(np.diff(logs)) / math.sqrt(2), 0.01)


# -- what it comes to


def _violation(seen: View, found: list[Jump]) -> Violation:
    worst = max(found, key=lambda jump: jump.factor)
    gone = [jump for jump in found if _lost(jump)]
    shown = gone[0] if gone else worst
    herald = _herald(seen, shown)
    severity = _severity(found, gone, herald)
    first = min(found[0].step, herald.step if herald is not None and shown is found[0] else found[0].step)
    symptom = _symptom(seen, shown, len(found), herald)
    cause, certainty = _cause(shown, herald, bool(len(seen.norms.finite())))
    proof = (*shown.track.evidences((max(shown.place - 1, 0), shown.peak)), *(herald.evidence if herald else ()))
    details = {
        "logged": True, "question": "Why did the loss jump?", "recovered": not gone, "times": len(found),
        "steps": [jump.step for jump in found[:64]], "before": shown.before, "peak": shown.top,
        "at": int(shown.track.steps[shown.peak]), "first_sign": herald.step if herald else None, "block": 0,
        "back": None if shown.back is None else shown.back - shown.place, "factors": [j.factor for j in found[:64]],
    }  # fmt: skip
    return Violation(
        CONTRACT, "spike", severity, symptom, first, int(shown.track.steps[shown.peak]), "loss", "step", seen.rank,
        proof, details, cause, certainty, frozenset({"diverged"} if gone else ()), _whys(seen, shown, herald),
        _excluded(seen, shown, herald),
        _action(herald, cause), again.looking_at(seen.story, seen.rank, first),
    )  # fmt: skip


def _severity(found: list[Jump], gone: list[Jump], herald: Herald | None) -> Severity:
    count = len(found[0].track)
    inside = sum((jump.back or len(jump.track)) - jump.place for jump in found)
    runaway = herald is not None and herald.what == "norm" and herald.peak >= _RUNAWAY * herald.usual
    if gone or (runaway and inside >= _SHARE * count):
        return Severity.ERROR if runaway or any(map(_for_good, gone)) else Severity.WARNING
    tall = any(jump.factor >= _TALL for jump in found if jump.material)
    often = sum(jump.material for jump in found) >= _MANY
    return Severity.WARNING if tall or runaway or often else Severity.INFO


def _lost(jump: Jump) -> bool:
    """Whether the loss had time to come back and did not, and what was lost is more than a trifle."""
    left = len(jump.track) - 1 - jump.place
    after = float(np.median(jump.track.values[jump.place :]))
    return jump.back is None and left >= _ENDS and after - jump.before > _OF_START * jump.start


def _for_good(jump: Jump) -> bool:
    """Whether it stayed for so long, or went so far, that nobody would wait any longer."""
    left = len(jump.track) - jump.place
    return (jump.factor >= _TALL and jump.material) or (
        left >= max(20, _SHARE * len(jump.track)) and jump.factor >= _ROSE
    )


def _herald(seen: View, jump: Jump) -> Herald | None:
    """The gradient norm or the rate, where it had left its usual size before the loss did."""
    norms = seen.norms.finite()
    at = int(jump.track.steps[jump.peak])
    usual_of = norms.values[norms.steps < jump.step]
    if len(usual_of) >= 2:
        calm = _calm_norms(norms, jump)
        usual = float(np.median(calm)) if len(calm) else float(usual_of[0])
        near = np.flatnonzero((norms.steps < at) & (norms.steps >= _reach(jump)))
        rising = _rise(norms, near, usual)
        if rising is not None and usual > 0:
            inside = norms.values[(norms.steps >= int(norms.steps[rising])) & (norms.steps <= _end(jump))]
            return Herald("norm", int(norms.steps[rising]), float(norms.values[rising]), usual, float(inside.max()),
                          norms.evidences((max(rising - 1, 0), rising)))  # fmt: skip
    rates = seen.rates.finite()
    before, just = rates.until(_reach(jump)), rates.where((rates.steps < at) & (rates.steps > _reach(jump)))
    if len(before) and len(just) and float(just.values.max()) >= _ROSE * float(before.values[-1]) > 0:
        place = int(np.flatnonzero(rates.values == just.values.max())[0])
        highest = float(rates.values[place])
        return Herald("rate", int(rates.steps[place]), highest, float(before.values[-1]), highest,
                      rates.evidences((place,)))  # fmt: skip
    return None


def _reach(jump: Jump) -> int:
    """How far back to look for what led up to it: eight points of the loss."""
    return int(jump.track.steps[max(0, jump.place - 8)])


def _end(jump: Jump) -> int:
    return int(jump.track.steps[jump.back if jump.back is not None else len(jump.track) - 1])


def _calm_norms(norms: Track, jump: Jump) -> Floats:
    """Norms of before the rise: the lower half of those that came before the jump, or more where there are many."""
    earlier = norms.values[norms.steps < _reach(jump)]
    if len(earlier) >= 3:
        return earlier[-64:]
    known = np.sort(norms.values[norms.steps < jump.step])
    return known[: max(1, len(known) // 3)]


def _rise(norms: Track, near: np.ndarray[tuple[int], np.dtype[np.int64]], usual: float) -> int | None:
    """The first of the points, up to the last of them, from which on the norm stays far above its usual size."""
    above = [place for place in near.tolist() if norms.values[place] >= _ROSE * usual]
    if not above or above[-1] != near[-1]:
        return None
    first = above[-1]
    for place in reversed(above):
        if first - place > 1:
            break
        first = place
    return first


def _cause(jump: Jump, herald: Herald | None, norms: bool) -> tuple[str, float]:
    if herald is not None:
        return "loss-spike-optimizer", 0.75 if herald.what == "norm" else 0.8
    quick = jump.back is not None and jump.back - jump.place <= 2
    if quick:
        return "loss-spike-data", 0.55 if norms else 0.35
    return "loss-spike-optimizer", 0.3


def _symptom(seen: View, jump: Jump, times: int, herald: Herald | None) -> str:
    at = int(jump.track.steps[jump.peak])
    calm = jump.track.until(herald.step - 1).values if herald is not None else np.empty(0)
    before = float(calm[-1]) if len(calm) else jump.before
    text = f"loss jumped from {show(before)} to {show(jump.top)} (x{jump.top / before:,.3g}) at {seen.within(at)}"
    if jump.back is None:
        text += " and has not come back in this log"
    else:
        text += f" and was back by {seen.at(int(jump.track.steps[jump.back]))}"
    return text if times == 1 else f"{text}; {times:,} such jumps"


def _whys(seen: View, jump: Jump, herald: Herald | None) -> tuple[Because, ...]:
    asked = "What moved first?"
    if herald is None:
        known = "The log has no gradient norms" if not len(seen.norms) else "No logged norm or rate had moved before it"
        text = f"{known}: whether a batch or an update did it, the log does not say."
        return (Because(asked, text, "", jump.track.evidences((jump.peak,))),)
    if herald.what == "rate":
        text = f"The learning rate went from {show(herald.usual)} to {show(herald.peak)} at {seen.at(herald.step)}."
        return (Because(asked, text, "", herald.evidence),)
    at = int(jump.track.steps[jump.peak])
    text = (
        f"The gradient norm rose at {seen.at(herald.step)}, {wording.count(at - herald.step, seen.unit)} before it; "
        f"{show(herald.value)} where {show(herald.usual)} is usual, and {show(herald.peak)} at its height."
    )
    later = Because("Was it the data of one step?", "No: it grew over several steps, each with its own batch.", "",
                    herald.evidence)  # fmt: skip
    several = int(jump.track.steps[jump.peak]) - herald.step >= 2 and seen.by_steps
    return (Because(asked, text, "", herald.evidence), *((later,) if several else ()))


def _excluded(seen: View, jump: Jump, herald: Herald | None) -> tuple[Excluded, ...]:
    if herald is None or herald.what != "norm":
        return ()
    rates = seen.rates.finite().until(int(jump.track.steps[jump.peak]))
    near = rates.since(_reach(jump))
    if len(near) < 2 or float(near.values.max()) > 1.05 * float(near.values.min()):
        return ()
    text = f"the learning rate did not move ({show(float(near.values[-1]))})"
    return (Excluded("schedule-horizon-wrong", text, near.evidences((len(near) - 1,))),)


def _action(herald: Herald | None, cause: str) -> str:
    if cause == "loss-spike-data":
        return "Look at the samples of that step; drop or clip outliers before they reach the model."
    if herald is not None and herald.what == "norm":
        return (
            "Go back to the checkpoint before the rise and skip those batches, or lower the rate or Adam's beta2; "
            "alarm on the norm, which moves before the loss does."
        )
    return "Clip gradients, and lower or warm up the learning rate."


RULE = LoggedSpikes
