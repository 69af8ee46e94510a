"""How often to look, so that looking stays inside its budget.

Enters: what each way of looking cost when it was last done, and how long a step takes. Leaves: for every
step, which ways are on. The order below is the order of worth: facts of the step first, then whether
blocks and gradients are finite, then block times, then full statistics.

    facts    per-step events (loss, lr, clip, ...)          a non-finite value is written whatever the cadence
    blocks   one sum over each block's output               finite or not, and where first
    guard    one norm over each gradient                    finite or not, and where
    spans    a row per block forward and backward
    full     statistics of every gradient, weight and update

Each way has a power-of-two stride: it is on at steps divisible by it, so that the ways coincide. Costs and
step times are medians over a short window: one slow step (an evaluation, a checkpoint, a busy machine) moves
nothing.

The budget is a share of the step time. What a step costs in which nothing is looked at comes off it first. Costs that
nobody measures are noticed too: where the whole came out dearer than the budget, the ways get less from then on.

The first seconds that capture spends in all are credit: while it lasts,
the facts of every tiny step are written and it gets a small allowance besides its share, so that a toy run of two
minutes is seen in full; a run of days never notices.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

WAYS = ("facts", "blocks", "guard", "spans", "full")
_SHARE = {"facts": 0.6, "blocks": 0.5, "guard": 0.5, "spans": 0.5, "full": 0.9}
_LONGEST = {"facts": 64, "blocks": 64, "guard": 64, "spans": 256, "full": 4096}
_RELIEVED = {"light": 32}
"""How many times as rarely facts, blocks and guard may be on where little is lost by that, by level, if not 4."""
_LIGHT = frozenset({"facts", "guard"})
_FIRST_STEPS = 3
_EARLY = {"facts": 64, "blocks": 32, "guard": 32, "spans": _FIRST_STEPS, "full": 257}
EARLIEST = 64
_A_MOMENT_NS = 50_000_000
_SETTLED_NS = 500_000_000
_BRISK_NS = 10_000_000
_LEARNING_STEPS = 512
_LEARNING_BUDGET = 2.5
"""Steps of a few milliseconds get this many times the budget while the run is young: there is most to be seen then."""
_NO_BURDEN = 0.01
_AWAITED = 0.2
"""Of a step of a young run: what to look at its blocks may take, for the second or two until the lookout is ready."""
_WINDOW = 9
_ADAPT_EVERY = 8
_ALLOWANCE_NS = 150_000  # a step, at a budget of 1 %
_TINY_STEP_NS = 5_000_000
_CREDIT_NS = 3_000_000_000  # in all, at a budget of 1 %
_ROW_WAYS = ("spans", "full")
LOOKS = frozenset(1 << i for i in range(9))
"""Steps at which a young run is looked at in full, whatever the strides."""
GROWN = max(LOOKS) + 8
"""The step by which the last of these has been read back."""
_AGAIN = frozenset({0, 1, 2, 4, 8, 16})
"""The same after something new has joined: a second optimizer, a part of the model that was replaced."""
_MOST_RENEWALS = 8
_RESCANS = frozenset({1, 2, 10, 100})
_RESCAN_EVERY, _RESCAN_LONGEST = 1000, 16_000
_RESCAN_SHARE = 0.02
"""Of the budget, to look for models anew: one that has joined may have told nobody. It takes milliseconds."""
_RECKON_STEPS = 64
_FAR = 64
_PLANNED = 0.8
"""The part of the budget that strides are planned with; the rest is for what no way is charged with: the looks of
LOOKS, a flush, a cache that has to be filled again."""
_LONG_STEP_NS = 100_000_000
_PLANNED_LONG = 0.4
"""The same for long steps: reading hundreds of megabytes costs the step more than the reading itself took. And where
a run is relieved: most of what a look would tell is known then, or little may be spent on it."""
_LEAST_EASE = 1 / 64
_PAUSE = 16.0
"""Steps' worth of time that steps may last longer than they usually do, and be reckoned with: whatever is longer (an
evaluation, a checkpoint, a process that was stopped) is no time of the training's that looking may have a share of."""
_UNCALLED_FOR = 0.2
"""The part of the budget for steps in full that nobody asked for, where nothing is broken."""
_IN_FULL = 2.0
"""A step in full takes so many times what its ways take: more bricks are opened in it."""


@dataclass(slots=True)
class Switches:
    """What is on in the current step."""

    facts: bool = True
    blocks: bool = True
    guard: bool = True
    spans: bool = True
    full: bool = True
    deep: bool = False


NOTHING = Switches(facts=False, blocks=False, guard=False, spans=False, full=False)


class Cadence:
    """Strides per way of looking, adapted every few steps."""

    def __init__(self, level: str, budget: float, deep_at: int | None = None, deep_for: int = 8) -> None:
        self.level = level
        self.budget = budget
        self.stride = dict.fromkeys(WAYS, 1)
        self.switches = Switches()
        self.overhead = 0.0
        self._costs: dict[str, deque[float]] = {way: deque(maxlen=_WINDOW) for way in WAYS}
        self._steps: deque[float] = deque(maxlen=4 * _WINDOW)
        self.least = 1
        """The shortest stride: strides are powers of two, so nothing is on between its multiples, after the first
        steps."""
        self.typical_ns = 1e9
        """How long a step takes, as of the last adaptation."""
        self._spent_ns = 0.0
        self._wall_ns = 0.0
        self._idle: deque[float] = deque(maxlen=_WINDOW)
        """What steps cost in which nothing was looked at."""
        self.ease = 1.0
        """The part of the budget that the ways may plan with, and the lookout: less where the whole came out dearer
        than planned."""
        self._reckoned: list[float] = [0.0, 0.0, 0]
        """Time, cost and number of the steps since the last reckoning; no pauses."""
        self._passed: list[float] = [0.0, 0.0, 0, 0.0]
        """Time, cost and number of steps in which nothing was looked at, since the last one that was; and the time
        without pauses."""
        self.deep_until = -1
        self.attentive_until = -1
        """Until this step the facts of every step are written: something happened that is seldom, and matters."""
        self.planned = range(0) if deep_at is None else range(max(deep_at - 1, 0), deep_at + deep_for)
        """Steps that are captured in full because somebody asked for it."""
        self._young = [0.0, 0.0]
        """Time and cost of the steps after the first ones, as long as a young run's looks are made."""
        self._settled = [0.0, 0.0]
        """The same since then."""
        self._excused = 0.0
        """What the step under way has taken of what only a young run gets, and no plan is made by."""
        self.grown = False
        """Whether they have all been made."""
        self._floor = 1
        self._rescan_every = _RESCAN_EVERY
        self._quiet = 0
        """Up to here, and not further, it is known that nothing is looked at."""
        self.relieved = level == "light"
        """Whether steps may be looked at more rarely still: at light, and where the gradients of every step are judged
        by norms that the script computes itself."""
        self._deep: deque[float] = deque(maxlen=_WINDOW)
        """What steps in full have cost, of those that nobody asked for."""
        self._born = self._renewals = 0
        self.awaited = False
        """Whether blocks are to be looked at in every step of a young run, until somebody else does."""
        self._credit = _CREDIT_NS * budget / 0.01

    def begin(self, step: int) -> Switches:
        """The switches of ``step``."""
        if step >= GROWN and not self.grown:
            self._take_passed()
            self.grown = True
        planned = step in self.planned
        attentive = step <= self.attentive_until
        looked = step < EARLIEST or self.due(step) or step <= self.deep_until or planned or attentive
        looked = looked or (self.awaited and step < GROWN)
        if step % self.least and not looked:
            return NOTHING
        switches, deep = self.switches, step <= self.deep_until or planned or self.level == "deep"
        for way in WAYS:
            allowed = deep or self.level != "light" or way in _LIGHT
            setattr(switches, way, allowed and (deep or step % self.stride[way] == 0 or self._early(step, way)))
        switches.facts = switches.facts or attentive
        switches.deep = deep
        return switches

    def _early(self, step: int, way: str) -> bool:
        """What happens first decides most: early steps are seen in full where that is no burden."""
        if step < _FIRST_STEPS or (way == "facts" and step < _EARLY["facts"]):
            return True
        if step - self._born in _AGAIN and self._born:
            return self._usual(way) <= _A_MOMENT_NS
        if way == "blocks" and self.awaited and step < GROWN:
            return self.spares(self._usual(way), _AWAITED)
        if step >= _EARLY[way] or (way == "full" and step & (step - 1)):
            return False
        cost = self._usual(way)
        if way == "full":  # a handful of looks in all, further and further apart: each may take a moment
            return cost <= max(_NO_BURDEN * self.typical_ns, _A_MOMENT_NS)
        return self.spares(cost)

    def _usual(self, way: str) -> float:
        return median(self._costs[way]) if self._costs[way] else 0.0

    def spares(self, ns: float, share: float = _NO_BURDEN) -> bool:
        """Whether an early step has ``ns`` to spare: a ``share`` of it, or anything while tiny steps have credit."""
        return ns <= share * self.typical_ns or (self.typical_ns < _TINY_STEP_NS and self._credit > 0)

    def quiet(self, step: int) -> bool:
        """Whether nothing is looked at in ``step``, which follows one in which nothing was."""
        if step >= self._quiet:
            self._quiet = step
            while self._quiet < step + _FAR and not self._looked(self._quiet):
                self._quiet += 1
        return step < self._quiet

    def ahead(self, step: int, most: int) -> int:
        """In how many steps behind ``step`` nothing is looked at; up to ``most``."""
        if not self.quiet(step + 1):
            return 0
        while self._quiet <= step + most and not self._looked(self._quiet):
            self._quiet += 1
        return min(self._quiet - step - 1, most)

    def _looked(self, step: int) -> bool:
        return bool(
            not step % self.least
            or self.rescans(step)
            or step <= max(self.deep_until, self.attentive_until)
            or self.due(step)
            or step in self.planned
            or (self.awaited and step < GROWN)
        )

    def rescans(self, step: int) -> bool:
        """Whether models are looked for anew in ``step``."""
        return step in _RESCANS or (step > 0 and not step % self._rescan_every)

    def rescan_took(self, ns: float) -> None:
        """The next one comes when it is worth that."""
        every, room = _RESCAN_EVERY, _RESCAN_SHARE * self.budget * self.typical_ns
        while every < _RESCAN_LONGEST and ns > every * room:
            every *= 2
        self._rescan_every, self._quiet = every, 0

    def due(self, step: int) -> bool:
        """Whether ``step`` is one that is looked at in full, whatever the strides."""
        return step in LOOKS or (self._born > 0 and step - self._born in _AGAIN)

    def renew(self, step: int) -> None:
        """Something new has joined the training: it is looked at as its beginning was."""
        self._quiet = 0
        if step >= EARLIEST and step - self._born >= 2 * max(_AGAIN) and self._renewals < _MOST_RENEWALS:
            self._born, self._renewals = step, self._renewals + 1

    def escalate(self, until: int) -> None:
        self._quiet = 0
        self.deep_until = max(self.deep_until, until)

    def affords(self, steps: int) -> bool:
        """Whether the training has lasted for long enough that ``steps`` in full are a small part of its time."""
        if self.typical_ns < _TINY_STEP_NS and self._credit > 0:
            return True
        costs = [median(costs) for costs in self._costs.values() if costs]
        usual = median(self._deep) if self._deep else _IN_FULL * sum(costs)
        lasted = self._young[0] + self._settled[0] + self._passed[0]
        return steps * usual <= _UNCALLED_FOR * self.budget * lasted

    def relieve(self, relieved: bool) -> None:
        """Whether something else judges the gradients of every step, as of now."""
        self.relieved = relieved or self.level == "light"

    def attend(self, until: int) -> None:
        self._quiet = 0
        self.attentive_until = max(self.attentive_until, until)

    @property
    def step_ns(self) -> float:
        """How long a step takes without us; 0 while nobody knows."""
        return median(self._steps) if self._steps else 0.0

    @property
    def floor(self) -> int:
        """How many times as rarely rows are written as they could be, since the journal is near its cap."""
        return self._floor

    def thin(self) -> None:
        """The journal is near its cap: rows are written half as often from now on."""
        self._floor = min(self._floor * 2, _LONGEST["full"])

    def measured(self, way: str, ns: float) -> None:
        """Looking ``way`` took ``ns`` in one step."""
        self._costs[way].append(ns)

    def end(self, step: int, wall_ns: float, spent_ns: float) -> bool:
        """A step is over; True when a stride changed. ``wall_ns`` includes ``spent_ns``."""
        wall_ns, self._excused = wall_ns - self._excused, 0.0
        if _FIRST_STEPS <= step <= self.deep_until:
            self._deep.append(spent_ns)
        if step < _FIRST_STEPS or step <= self.deep_until or step in self.planned:
            return False
        self._take_passed()
        plain = max(wall_ns - spent_ns, 1.0)
        self._steps.append(plain)
        self._wall_ns = 0.99 * self._wall_ns + plain
        self._spent_ns = 0.99 * self._spent_ns + spent_ns
        self.overhead = self._spent_ns / self._wall_ns
        if step >= EARLIEST:
            self._count(plain, spent_ns)
        self._credit -= max(spent_ns - self.budget * plain, 0.0)
        self._reckon(step, min(plain, (1 + _PAUSE) * self.typical_ns), spent_ns)
        if self.level == "deep" or (step != _FIRST_STEPS and step % _ADAPT_EVERY):
            return False
        return self._adapt(step)

    def _budget(self, step: int) -> float:
        young = step < _LEARNING_STEPS and self.typical_ns < _BRISK_NS
        return self.budget * _LEARNING_BUDGET if young else self.budget

    def _count(self, wall: float, spent: float) -> None:
        counted = self._settled if self.grown else self._young
        counted[0] += wall
        counted[1] += spent

    @property
    def settled(self) -> tuple[float, float, bool] | None:
        """What looking costs after the first steps, as a share of the step, and in ns; and whether that is of a grown
        run, or else of all after the very first steps. None in too short a run."""
        passed = self._passed[:2]
        wall, spent = (sum(each) for each in zip(self._settled, passed, strict=True))
        if self.grown and wall > _SETTLED_NS:
            return spent / wall, spent, True
        wall, spent = (sum(each) for each in zip(self._young, self._settled, passed, strict=True))
        return (spent / wall, spent, False) if wall > _SETTLED_NS else None

    @property
    def idle_ns(self) -> float:
        """What a step costs in which nothing is looked at."""
        return median(self._idle) if self._idle else 0.0

    def idled(self, wall_ns: float, spent_ns: float, steps: int = 1) -> None:
        """Steps passed in which nothing was looked at. They are added up: even a median would be dear here."""
        passed = self._passed
        plain = wall_ns - spent_ns - self._excused
        self._steps.append(plain / steps)
        passed[0] += plain
        passed[1] += spent_ns
        passed[2] += steps
        passed[3] += min(plain, (steps + _PAUSE) * self.typical_ns)
        self._excused = 0.0

    def excuse(self, step: int, ns: float) -> None:
        """``ns`` of ``step`` went to what only a young run gets: no plan is made by it."""
        self._excused += ns
        if step >= EARLIEST and not self.grown:
            self._young[1] += ns

    def set_apart(self, step: int, ns: float) -> None:
        """``ns`` of ``step`` went to what no budget holds for: it is told with the rest, and no plan is made by it."""
        self._excused += ns
        if step >= EARLIEST:
            self._count(0.0, ns)

    def _take_passed(self) -> None:
        """Steps in which nothing was looked at, since the last one that was."""
        wall, spent, count, brisk = self._passed
        if not count:
            return
        self._passed = [0.0, 0.0, 0, 0.0]
        self._idle.append(spent / count)
        fade = 0.99**count
        self._count(wall, spent)  # nothing is passed over in the first steps
        self._wall_ns = fade * self._wall_ns + wall
        self._spent_ns = fade * self._spent_ns + spent
        self._credit -= max(spent - self.budget * wall, 0.0)
        self._reckoned = [self._reckoned[0] + brisk, self._reckoned[1] + spent, self._reckoned[2] + count]

    def _reckon(self, step: int, plain: float, spent: float) -> None:
        """Compares what was spent with what was planned, over a stretch of steps that is long enough to tell."""
        if step < EARLIEST:
            return
        walls, costs, count = self._reckoned
        self._reckoned = [walls + plain, costs + spent, count + 1]
        if count + 1 < _RECKON_STEPS:
            return
        self._reckoned = [0.0, 0.0, 0]
        share = (costs + spent) / (walls + plain)
        spared = self._credit > 0 and self.typical_ns < _TINY_STEP_NS
        budget = self._budget(step)
        if share > budget and not spared:
            self.ease = max(self.ease * max(budget / share, 0.5), _LEAST_EASE)
        elif share < 0.7 * budget:
            self.ease = min(self.ease * 1.25, 1.0)

    def _adapt(self, step: int) -> bool:
        self.typical_ns = self.step_ns
        budget = self._budget(step)
        planned = _PLANNED if self.typical_ns < _LONG_STEP_NS and not self.relieved else _PLANNED_LONG
        whole = max(budget * self.typical_ns - self.idle_ns, 0.1 * budget * self.typical_ns) * planned * self.ease
        if self._credit > 0 and self.typical_ns < _TINY_STEP_NS:
            whole += _ALLOWANCE_NS * self.budget / 0.01
        left, before = whole, dict(self.stride)
        for way in WAYS:
            costs = self._costs[way]
            if not costs:
                continue
            cost = median(costs)
            longest = _LONGEST[way] * (_RELIEVED.get(self.level, 4) if self.relieved and way not in _ROW_WAYS else 1)
            stride = _power_of_two(cost / max(left * _SHARE[way], 1.0), longest)
            if way == "facts" and self._credit > 0 and self.typical_ns < _TINY_STEP_NS:
                stride = 1
            if way in _ROW_WAYS:
                stride = max(stride, min(self._floor, _LONGEST[way]))
            # A stride shrinks only where there is clear room: no flutter between two values.
            current = self.stride[way]
            if stride > current or stride * 4 <= current or stride == 1 or current > longest:
                self.stride[way] = stride
            left = max(left - cost / self.stride[way], 0.05 * whole)
        self.least = min(stride for way, stride in self.stride.items() if self.level != "light" or way in _LIGHT)
        return self.stride != before


def _power_of_two(ratio: float, longest: int) -> int:
    stride = 1
    while stride < ratio and stride < longest:
        stride *= 2
    return stride
