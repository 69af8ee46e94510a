"""Which training step is it? Decided from what the script does, with no help from the script.

Enters: optimizer updates, batches fetched, backward passes. Leaves: the number of the current step and
the moment it changes.

A step is one round of updates: each optimizer steps at most once in it. It ends at the first activity
(a fetch, a forward, a backward, a zero_grad) after every optimizer that takes part has stepped. Who takes
part is every optimizer in the first round and, from then on, whoever stepped in the round before; so
a GAN's two updates are one step, five critic updates to one generator update are five steps, and an
optimizer that was built and never used holds nothing up. One that shared its last backward with another's
update is not waited for past that backward. Those that are built later have a first round of their own.
Without any optimizer, a backward pass after the weights changed (or the gradients were cleared) starts the
next step: hand-written SGD, accumulation included.
"""

from __future__ import annotations

from collections.abc import Collection


class StepClock:
    __slots__ = (
        "_due",
        "_expected",
        "_known",
        "_partners",
        "_served",
        "_stepped",
        "_updated",
        "backwards",
        "joining",
        "number",
        "total_backwards",
        "updates",
        "updates_by_optimizer",
    )

    def __init__(self) -> None:
        self.number = 0
        self.backwards = 0
        """Backward passes in this step so far: the micro-batch index."""
        self.total_backwards = 0
        self.updates = 0
        self.updates_by_optimizer = False
        self.joining: set[int] = set()
        """Built when others had made updates; none of them has made one."""
        self._known: set[int] = set()
        self._partners: set[int] = set()
        """Those whose last update was of the same backward as another's before."""
        self._served = 0
        """How many backwards there had been at the last update."""
        self._expected: set[int] | None = None
        self._stepped: set[int] = set()
        self._due = False
        self._updated = False

    def optimizer_built(self, optimizer: int) -> None:
        self._known.add(optimizer)
        if self.updates_by_optimizer:
            self.joining.add(optimizer)

    def awaited_by(self, newcomer: int) -> Collection[int]:
        """Of those that were there before, whoever the first update of ``newcomer`` would be waited for with."""
        expected = self._known if self._expected is None else self._expected
        return expected - self.joining - self._stepped if newcomer in self.joining else ()

    def joined(self, left_out: Collection[int]) -> None:
        """The first update of those that have joined: without the ones ``left_out``, and with each other."""
        expected = self._known if self._expected is None else self._expected
        self._expected = (expected - set(left_out)) | self.joining
        self.joining = set()

    def optimizer_begins(self, optimizer: int) -> bool:
        """An optimizer is about to step. True when that starts a new step."""
        return self.advance() if optimizer in self._stepped else False

    def lone(self, optimizer: int) -> bool:
        """Whether its update begins no step and is not its second in this one."""
        return optimizer not in self._stepped

    def only(self, optimizer: int) -> bool:
        """Whether it made this step's one update, which ends the step, as it did the step before."""
        return self._due and self._stepped == {optimizer} == self._expected

    def optimizer_stepped(self, optimizer: int) -> None:
        self.updates_by_optimizer = True
        if optimizer not in self._stepped:  # a scaler's step and the optimizer's own are one update
            self.updates += 1
            if self._stepped and self._served == self.total_backwards:
                self._partners.add(optimizer)
            else:
                self._partners.discard(optimizer)
            self._served = self.total_backwards
        self._known.add(optimizer)
        self._stepped.add(optimizer)
        expected = self._known if self._expected is None else self._expected
        self._due = self._stepped >= expected

    @property
    def over(self) -> bool:
        """Whether all that take part have made their update: whatever comes now is the next step's."""
        return self._due

    @property
    def _closed(self) -> bool:
        """Whether a forward or a backward now is the next step's."""
        return self._due or bool(self._stepped and self._expected and self._stepped >= self._expected - self._partners)

    @property
    def updated(self) -> bool:
        """Whether an optimizer stepped since the step began: a batch that is fetched now is the next step's."""
        return self._due or bool(self._stepped)

    @property
    def plain(self) -> bool:
        """Whether a backward now is one more of this step, in a training whose updates an optimizer makes."""
        return self.updates_by_optimizer and self.backwards < 8 and not self._closed and not self._updated

    def activity(self) -> bool:
        """A forward, a zero_grad or an evaluation begins. True when that starts a new step."""
        return self.advance() if self._closed else False

    def fetched(self) -> bool:
        """A batch is asked for: after any update, that is the next step."""
        return self.advance() if self._due or self._stepped else False

    def backward_begins(self) -> bool:
        started = self.advance() if self._closed or self._updated else False
        self.backwards += 1
        self.total_backwards += 1
        return started

    def weights_changed(self) -> None:
        """Seen without an optimizer: weights were written, or gradients cleared, since the last backward."""
        if not self._stepped and self.backwards:
            self._updated = True

    def manual_turn(self) -> bool:
        """Without an optimizer: a forward after the weights changed is the next step."""
        return self.advance() if self._updated else False

    def advance_by(self, optimizer: int, count: int, backwards: int) -> None:
        """``count`` steps that were all like the one before: so many ``backwards`` and one update each, by
        ``optimizer``, which alone has stepped in it."""
        self.number += count
        self.updates += count
        self.total_backwards += count * backwards
        self.backwards = backwards
        self._expected, self._stepped = {optimizer}, {optimizer}
        self._due, self._updated = True, False

    def advance(self) -> bool:
        if self._stepped:
            self._expected = set(self._stepped)
        elif self._updated:
            self.updates += 1
        self.number += 1
        self.backwards = 0
        self._stepped.clear()
        self._due = self._updated = False
        return True
