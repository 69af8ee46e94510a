"""Which step is it? The clock, driven by the sequences that real loops produce."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from brickprof.capture.steps import StepClock


def drive(clock: StepClock, script: Iterable[str]) -> list[tuple[str, int]]:
    """Runs a loop written as words; returns the step number at every backward (b) and update (A, B)."""
    seen: list[tuple[str, int]] = []
    for word in script:
        if word == "f":
            clock.activity()
        elif word == "d":
            clock.fetched()
        elif word == "w":
            clock.weights_changed()
        elif word == "b":
            clock.backward_begins()
            seen.append((word, clock.number))
        else:
            clock.optimizer_begins(ord(word))
            clock.optimizer_stepped(ord(word))
            seen.append((word, clock.number))
    return seen


def built(*names: str) -> StepClock:
    clock = StepClock()
    for name in names:
        clock.optimizer_built(ord(name))
    return clock


@pytest.mark.parametrize(
    ("optimizers", "script", "expected"),
    [
        pytest.param("A", "fbA" * 3, "b0A0b1A1b2A2", id="plain"),
        pytest.param("A", "dfbA" * 3, "b0A0b1A1b2A2", id="loader"),
        pytest.param("A", "dfbdfbA" * 2, "b0b0A0b1b1A1", id="accumulation"),
        pytest.param("AB", "fbAfbB" * 2, "b0A0b0B0b1A1b1B1", id="gan"),
        pytest.param("AB", "dfbbAfbB" * 2, "b0b0A0b0B0b1b1A1b1B1", id="gan with two backwards"),
        pytest.param("AB", "fbAB" * 2, "b0A0B0b1A1B1", id="two optimizers, one backward"),
        pytest.param("AB", "dfbA" * 3, "b0A0b1A1b2A2", id="an optimizer that never steps"),
        pytest.param("AB", "fbAB" + "fbA" * 2 + "fbAB" * 2, "b0A0B0b1A1b2A2b3A3B3b4A4B4", id="one that steps at times"),
        pytest.param("AB", "fbAB" + "fbB" + "fbA" + "fbAB", "b0A0B0b1B1b1A1b2A2B2", id="one that leads is waited for"),
        pytest.param("AB", "fbAB" + "fbBfbA" + "fbAfbB", "b0A0B0b1B1b1A1b2A2b2B2", id="one that has led is waited for"),
        pytest.param("AB", "fbfbAB" + "fbfbA" + "fbfbAB", "b0b0A0B0b1b1A1b2b2A2B2", id="accumulated, at times"),
        pytest.param("", "fbwfbwfb", "b0b1b2", id="hand-written updates"),
        pytest.param("", "fbfbwfbfb", "b0b0b1b1", id="hand-written, accumulated"),
    ],
)
def test_steps(optimizers: str, script: str, expected: str) -> None:
    seen = drive(built(*optimizers), script)
    assert "".join(f"{word}{step}" for word, step in seen) == expected


def test_five_critic_updates_to_one_generator_update_settle_to_one_step_each() -> None:
    clock = built("A", "B")
    seen = drive(clock, ("fbA" * 5 + "fbB") * 3)
    critic = [step for word, step in seen if word == "A"]
    assert critic[3:] == list(range(critic[3], critic[3] + len(critic) - 3))


def test_a_scaler_step_and_its_optimizer_step_are_one_update() -> None:
    clock = built("A")
    clock.backward_begins()
    clock.optimizer_begins(65)
    clock.optimizer_stepped(65)
    clock.optimizer_stepped(65)
    assert clock.updates == 1


def test_a_skipped_update_still_ends_the_step() -> None:
    clock = built("A")
    clock.backward_begins()
    clock.optimizer_stepped(65)  # the scaler stepped, the optimizer did not
    assert clock.activity()
    assert clock.number == 1


@pytest.mark.parametrize(
    ("left_out", "names", "script", "expected"),
    [
        pytest.param("A", "B", "fbB" * 3, "b2B2b3B3b4B4", id="one that takes over"),
        pytest.param("A", "BC", "fbBfbC" * 2, "b2B2b2C2b3B3b3C3", id="two that take over"),
        pytest.param("A", "BC", "fbBC" * 2, "b2B2C2b3B3C3", id="two of one backward"),
        pytest.param("", "B", "fbBfbA" * 2, "b2B2b2A2b3B3b3A3", id="one that joins, before the other"),
        pytest.param("", "B", "fbAB" * 2, "b2A2B2b3A3B3", id="one that joins, behind the other"),
        pytest.param("", "B", "fbA" * 2, "b2A2b3A3", id="one that is built and never used"),
    ],
)
def test_those_that_are_built_later_have_a_first_round_of_their_own(left_out, names, script, expected) -> None:
    clock = built("A")
    drive(clock, "fbA" * 2)
    for name in names:
        clock.optimizer_built(ord(name))
    asked = []
    stepped = clock.optimizer_stepped

    class Joining:
        """A clock whose newcomers are joined as a session does that."""

        def __getattr__(self, name):
            return getattr(clock, name)

        def optimizer_stepped(self, optimizer):
            if optimizer in clock.joining:
                asked.append(set(clock.awaited_by(optimizer)))
                clock.joined(set(map(ord, left_out)))
            stepped(optimizer)

    assert "".join(f"{word}{step}" for word, step in drive(Joining(), script)) == expected
    assert all(each <= {ord("A")} for each in asked)
