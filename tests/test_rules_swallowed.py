"""Exceptions that nobody hears of: from real forwards to the verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brickprof
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.probes import swallowed as probe
from brickprof.records import Event
from brickprof.rules import swallowed
from brickprof.rules.story import Story
from brickprof.run import Run

WIDTH, PLACES, CLASSES = 8, 6, 5
Mix = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _nobody_traces() -> Iterator[None]:
    """Whoever measures the tests (coverage) may trace: not in these."""
    was = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(was)


class Attention(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mix = mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(self.q(x), self.k(x), self.v(x))


class Model(nn.Module):
    def __init__(self, mix: Mix, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(Attention(mix) for _ in range(layers))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.drop(x))


def train(model: nn.Module, steps: int = 6, each: Callable[[int], None] | None = None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        ids = torch.randint(CLASSES, (8, PLACES), generator=generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if each is not None:
            each(step)


def recorded(tmp_path: Path, model: nn.Module, **settings: Any) -> Run:
    with brickprof.attach(None, out=tmp_path) as session:
        train(model, **settings)
    run = brickprof.load(session.folder)
    assert sys.gettrace() is None
    assert not [record for record in run.records() if getattr(record, "kind", "") == "probe_off"]
    return run


def judged(run: Run) -> ContractResult:
    return swallowed.Fallbacks().judge(Story.of(run), registry.find(swallowed.CONTRACT))


def looks(run: Run) -> list[Event]:
    return [record for record in run.records() if isinstance(record, Event) and record.kind == "swallowed"]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def unmixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(PLACES, PLACES, dtype=torch.float64)
    try:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    except RuntimeError:
        return v


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Another way to the same numbers, taken in every call."""
    try:
        return F.scaled_dot_product_attention(q, k, v, causal=False)  # type: ignore[call-arg]
    except TypeError:
        return (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ v


# -- what is found


def test_an_attention_that_never_runs_is_the_cause_of_what_follows(tmp_path: Path) -> None:
    run = recorded(tmp_path, Model(unmixed), steps=40)
    result = judged(run)
    assert result.verdict is Verdict.FAIL, result
    (found,) = result.violations
    assert (found.cause, found.severity, found.brick) == ("silent-fallback", Severity.WARNING, "layers.0")
    assert "test_rules_swallowed.py:" in found.symptom and "attn_mask" in found.symptom
    assert "layers.0.q.weight" in found.whys[0].finding and "6 calls" in found.whys[0].finding
    top = brickprof.diagnose(run).findings[0]
    assert (top.root_cause, top.contract, top.brick) == ("silent-fallback", swallowed.CONTRACT, "layers.0")
    assert "no gradient reached" in top.symptom


def test_another_way_to_the_same_numbers_is_a_fallback_too(tmp_path: Path) -> None:
    (found,) = judged(recorded(tmp_path, Model(by_hand))).violations
    assert found.severity is Severity.WARNING and found.certainty < 0.95 and "causal" in found.symptom


def test_one_layer_of_several(tmp_path: Path) -> None:
    model = Model(plain)
    model.layers[1].mix = unmixed
    (found,) = judged(recorded(tmp_path, model)).violations
    assert found.brick == "layers.1"


def test_an_exception_that_leaves_the_model(tmp_path: Path) -> None:
    class Guarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = Attention(refuses), nn.Linear(WIDTH, CLASSES)
            self.embed = nn.Embedding(CLASSES, WIDTH)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            try:
                x = self.inner(x)
            except Exception:
                x = torch.zeros_like(x)
            return self.head(x)

    def refuses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no kernel", q)

    (found,) = judged(recorded(tmp_path, Guarded())).violations
    assert found.brick == "inner" and '"no kernel"' in found.symptom and "refuses" in found.symptom


def test_one_raised_from_another_is_one_fallback(tmp_path: Path) -> None:
    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        try:
            try:
                raise RuntimeError("shared memory")
            except RuntimeError as error:
                raise TypeError("launch") from error
        except TypeError:
            return v

    (found,) = judged(recorded(tmp_path, Model(mix))).violations
    assert "shared memory" in found.symptom


# -- what is no fallback


class Ordinary:
    """Control flow by exceptions, in every call."""

    def __init__(self) -> None:
        self.calls = 0
        self.cache: dict[int, torch.Tensor] = {}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        try:
            scale = self.cache[self.calls]
        except KeyError:
            scale = self.cache[self.calls] = torch.tensor(WIDTH**-0.5)
        try:
            next(iter(()))
        except StopIteration:
            pass
        try:
            q.no_such_thing  # noqa: B018
        except AttributeError:
            pass
        return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v


class NowAndThen(Ordinary):
    """Raises in some calls only."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        try:
            if self.calls % 4 == 0:
                raise RuntimeError("not this time")
            return plain(q, k, v)
        except RuntimeError:
            return plain(q, k, v)


@pytest.mark.parametrize("mix", [plain, Ordinary(), NowAndThen()], ids=["plain", "ordinary", "now and then"])
def test_ordinary_control_flow_is_silent(mix: Mix, tmp_path: Path) -> None:
    run = recorded(tmp_path, Model(mix, layers=3))
    assert len(looks(run)) == 3
    result = judged(run)
    assert result.verdict is Verdict.NOT_EVALUATED and not result.violations, result


def optional_package(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    try:
        import no_such_package  # type: ignore[import-not-found]

        return no_such_package.attention(q, k, v)  # type: ignore[no-any-return]
    except ImportError:
        return plain(q, k, v)


def rank_of_this_process(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    try:
        torch.distributed.get_rank()
    except (RuntimeError, ValueError):
        pass
    return plain(q, k, v)


def jitter(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scores that no factorisation exists for; their squares with something on the diagonal have one."""
    scores = q @ k.transpose(-1, -2)
    try:
        root = torch.linalg.cholesky(scores - 10 * torch.eye(PLACES))
    except torch.linalg.LinAlgError:
        root = torch.linalg.cholesky(scores @ scores.transpose(-1, -2) + torch.eye(PLACES))
    return root.softmax(-1) @ v


@pytest.mark.parametrize("mix", [optional_package, rank_of_this_process, jitter])
def test_a_question_that_is_answered_no_is_only_worth_knowing(mix: Mix, tmp_path: Path) -> None:
    result = judged(recorded(tmp_path, Model(mix)))
    assert result.verdict is Verdict.NOT_EVALUATED
    assert [found.severity for found in result.violations] == [Severity.INFO]


def test_a_question_whose_answer_costs_gradients_is_more(tmp_path: Path) -> None:
    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        try:
            import no_such_package

            return no_such_package.attention(q, k, v)  # type: ignore[no-any-return]
        except ImportError:
            return v

    (found,) = judged(recorded(tmp_path, Model(mix))).violations
    assert found.severity is Severity.WARNING


def test_libraries_are_not_the_users_own() -> None:
    import json

    assert probe.own(__file__)
    for name in (json.__file__, torch.__file__, pytest.__file__, probe.__file__, "<string>", "<frozen abc>"):
        assert not probe.own(name), name


# -- what the training feels of it


def test_the_numbers_are_the_same_with_and_without(tmp_path: Path) -> None:
    def rebinding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Names that mean something else after each exception, some of them shared with an inner function."""
        total = v

        def add(x: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total = total + x
            return unmixed(q, x, total)

        for part in (q, k):
            v = add(part)
            part = part * 2
            try:
                v = v + part
                raise RuntimeError
            except RuntimeError:
                total = total * 0.5 + v
        return total

    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Model(rebinding)
        if watched:
            assert looks(recorded(tmp_path, model, steps=8))
        else:
            train(model, steps=8)
        ends.append([p.detach().clone() for p in model.parameters()] + [torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_only_three_steps_are_traced_and_no_hook_stays(tmp_path: Path) -> None:
    traced: list[bool] = []

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        traced.append(sys.gettrace() is not None)
        return plain(q, k, v)

    def after_update(step: int) -> None:
        assert sys.gettrace() is None
        hooks = model._forward_pre_hooks.values()
        assert step < 16 or not any(isinstance(hook, probe._Begin) for hook in hooks)

    model = Model(mix, layers=1)
    run = recorded(tmp_path, model, steps=20, each=after_update)
    looked = [step for step, on in enumerate(traced) if on]
    assert looked[:2] == [1, 2] and len(looked) == 3
    assert [event.step for event in looks(run)] == looked


def test_whoever_traces_already_is_left_alone(tmp_path: Path) -> None:
    def mine(frame: Any, event: str, arg: Any) -> Any:
        return None

    with brickprof.attach(None, out=tmp_path) as session:
        sys.settrace(mine)
        train(Model(unmixed), each=lambda step: None)
        kept = sys.gettrace()
        sys.settrace(None)
    assert kept is mine
    assert not looks(brickprof.load(session.folder))


def test_whoever_begins_to_trace_inside_is_left_alone(tmp_path: Path) -> None:
    def mine(frame: Any, event: str, arg: Any) -> Any:
        return None

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if sys.gettrace() is not None:
            sys.settrace(mine)
        return plain(q, k, v)

    with brickprof.attach(None, out=tmp_path):
        train(Model(mix))
        kept = sys.gettrace()
        sys.settrace(None)
    assert kept is mine


def test_a_forward_without_a_backward_is_not_told_and_the_trace_ends(tmp_path: Path) -> None:
    model = Model(unmixed)
    with brickprof.attach(None, out=tmp_path) as session:
        train(model, steps=1)
        model(torch.zeros(2, PLACES, dtype=torch.long))
        assert sys.gettrace() is not None
    assert sys.gettrace() is None
    assert not looks(brickprof.load(session.folder))


def test_a_forward_of_very_many_calls_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_MOST_CALLS", 10)
    assert not looks(recorded(tmp_path, Model(unmixed)))


def test_nothing_is_traced_where_something_is_compiled(tmp_path: Path) -> None:
    model = Model(plain, layers=1)
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    assert not looks(recorded(tmp_path, model))
    torch._dynamo.reset()
