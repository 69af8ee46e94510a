"""From a log to a run: native events, lines as evidence, attempts, ranks, facts, and what is said of the log."""

from __future__ import annotations

import math

import numpy as np
import pytest
from logs_by_hand import NAN, fact, grave, judged, log, noise, powerlaw, rows, setting, steps, table

from brickprof.diagnosis import diagnose
from brickprof.logs.reading.gather import Gathering
from brickprof.logs.reading.model import block
from brickprof.logs.reading.to_run import to_run
from brickprof.records import Event, RunMeta
from brickprof.rules import scaling_curve
from brickprof.rules.log_trend import ema
from brickprof.rules.story.tracks import Track
from brickprof.run import Run


def events(run: Run, kind: str, rank: int = 0) -> list[Event]:
    return [event for event in run.records() if isinstance(event, Event) and event.kind == kind and event.rank == rank]


def test_what_means_the_same_becomes_the_native_event():
    made = to_run([log(table({"step": [10, 20], "loss": [2.0, 1.5], "lr": [1e-3, 9e-4], "grad_norm": [1.0, math.inf],
                              "loss_scale": [1024.0, 512.0], "eval_loss": [2.1, 1.7], "tokens/s": [5e4, 5e4],
                              "accuracy": [0.1, 0.2]}, 7))])  # fmt: skip
    assert [event.fields["value"] for event in events(made, "loss")] == [2.0, 1.5]
    assert [event.fields["lr"] for event in events(made, "optimizer")] == [[1e-3], [9e-4]]
    assert [event.fields["l2"] for event in events(made, "grad")] == [1.0, math.inf]
    assert [event.fields["scale"] for event in events(made, "scaler")] == [1024.0, 512.0]
    assert [event.fields["loss"] for event in events(made, "evaluation")] == [2.1, 1.7]
    told = {(event.fields["name"], event.fields["role"]) for event in events(made, "metric")}
    assert told == {("tokens/s", "throughput"), ("accuracy", "quality")}
    assert {event.step for event in events(made, "loss")} == {10, 20}


def test_every_event_names_its_line_and_its_id_resolves():
    made = to_run([log(rows(41, step=[1, 2, 3], loss=[3.0, 2.0, NAN]))])
    losses = events(made, "loss")
    assert [event.fields["line"] for event in losses] == [41, 42, 43]
    for event in losses:
        assert [found.id for found in made.find(event.id)] == [event.id]
    assert len({event.id for event in made.records() if isinstance(event, Event)}) == len(list(made.records()))


def test_it_survives_being_saved(tmp_path):
    made = to_run([log(rows(step=[1, 2, 3], loss=[3.0, 2.0, NAN]), path="a/train.log", format="hf")])
    again = Run.open(made.save(tmp_path / "run"))
    assert again.meta.source == "hf"
    assert diagnose(again).to_dict()["findings"] == diagnose(made).to_dict()["findings"]


def test_the_run_says_where_it_comes_from():
    found = judged(rows(step=[1, 2], loss=[2.0, 1.0]), path="logs/train.log", format="megatron")
    assert found.run["source"] == "megatron"
    assert found.run["id"] == "train.log"
    assert found.run["log"]["format"] == "megatron"
    assert found.run["log"]["loss"] == "loss"
    assert [one["name"] for one in found.run["log"]["series"]] == ["loss"]


def test_of_several_losses_the_whole_is_the_loss():
    made = to_run([log(table({"step": [1, 2], "aux_loss": [0.1, 0.1], "loss": [2.0, 1.0], "best_loss": [2.0, 1.0]}))])
    assert [event.fields["name"] for event in events(made, "loss")] == ["loss", "loss"]
    assert events(made, "log", -1)[0].fields["several"] is False


def test_losses_of_the_only_rank_that_writes_are_the_runs():
    gathering = Gathering("last-rank.log", "megatron")
    gathering.take([block([1, 2, 3], {"iteration": [1, 2, 3], "lm loss": [3.0, 2.0, 1.0]}, rank=7)])
    made = to_run([gathering.log()])
    assert len(events(made, "loss")) == 3


def test_what_was_done_twice_counts_as_it_was_done_last():
    made = to_run(
        [log(rows(1, step=steps(20), loss=np.full(20, 5.0)), rows(21, step=steps(20, 1, 11), loss=np.ones(20)))]
    )
    losses = {event.step: event.fields["value"] for event in events(made, "loss")}
    assert losses[10] == 5.0
    assert losses[11] == losses[20] == losses[30] == 1.0
    assert len(events(made, "loss")) == 30
    [resumed] = events(made, "resumed", -1)
    told = {name: resumed.fields[name] for name in ("stopped_at", "goes_on_at", "before", "after")}
    assert told == {"stopped_at": 20, "goes_on_at": 11, "before": 5.0, "after": 1.0}


def test_files_that_go_on_are_attempts_of_one_run():
    one = log(rows(step=steps(100), loss=powerlaw(steps(100), 8, 2)), path="a.log")
    two = log(rows(step=steps(100, 1, 81), loss=powerlaw(steps(100, 1, 81), 8, 2)), path="b.log")
    for order in ([one, two], [two, one]):
        made = to_run(order)
        assert len(events(made, "loss")) == 180
        assert [event.fields["goes_on_at"] for event in events(made, "resumed", -1)] == [81]
        assert {event.fields["file"] for event in events(made, "loss")} == {"a.log", "b.log"}


def test_files_of_the_same_steps_are_ranks():
    told = [
        log(rows(step=steps(50), loss=powerlaw(steps(50), 8, 2) + noise(n, 50, 0.01)), path=f"{n}.log") for n in (1, 2)
    ]
    made = to_run(told)
    assert len(events(made, "loss", 0)) == len(events(made, "loss", 1)) == 50


def test_a_file_that_begins_anew_is_another_attempt():
    short = log(rows(step=steps(40), loss=np.full(40, 9.0)), path="a.log")
    whole = log(rows(step=steps(300), loss=powerlaw(steps(300), 8, 2)), path="b.log")
    made = to_run([short, whole])
    assert {event.rank for event in made.records() if event.kind == "loss"} == {0}
    assert all(event.fields["value"] < 9.0 for event in events(made, "loss") if event.step > 1)


def test_names_of_files_tell_ranks():
    told = [log(rows(step=steps(5), loss=np.arange(5.0)), path=f"out/rank_{n}.log") for n in (3, 0)]
    made = to_run(told)
    assert len(events(made, "loss", 0)) == len(events(made, "loss", 3)) == 5


def test_two_formats_of_one_training_are_told_once():
    full = log(rows(step=steps(100), loss=powerlaw(steps(100), 8, 2)), path="stdout.log", format="hf_stdout")
    brief = log(rows(step=steps(50, 2), loss=powerlaw(steps(50, 2), 8, 2)), path="state.json", format="hf")
    assert len(events(to_run([full, brief]), "loss")) == 100
    assert to_run([full, brief]).meta.source == "hf_stdout+hf"


def test_an_exception_that_ends_the_log_and_one_that_was_survived():
    losses = rows(step=steps(50), loss=powerlaw(steps(50), 8, 2))
    died = to_run([log(losses, fact("exception", 51, type="KeyError", message="'x'", frames=["train.py:3 in main"]))])
    [raised] = events(died, "exception")
    assert raised.step == 50
    assert raised.fields["frames"] == [{"file": "train.py", "line": 3, "function": "main"}]
    lived = to_run([log(losses, fact("exception", 20, type="KeyError", message="'x'", frames=[]))])
    assert not events(lived, "exception")
    assert events(lived, "said", -1)[0].fields["fact"] == "exception"


def test_settings_are_declared_and_what_is_foreign_is_made_safe():
    made = to_run([log(setting(max_steps=7, name="a\x1b[31mred"), rows(2, step=[1, 2], loss=[2.0, 1.0]))])
    [config] = events(made, "config", -1)
    assert config.fields["values"]["max_steps"] == 7
    assert "\x1b" not in config.fields["values"]["name"]
    assert events(made, "log", -1)[0].fields["total"] == 7


def test_a_log_of_nothing_but_an_error_fails_and_one_of_nothing_is_vacuous():
    died = judged(fact("exception", 3, type="RuntimeError", message="CUDA out of memory.", frames=[]))
    assert [told[1] for told in grave(died)] == ["out-of-memory"]
    assert died.verdict.value == "FAIL"
    assert diagnose(to_run([log()])).verdict.value in ("VACUOUS", "NOT_EVALUATED")


def test_no_logs_at_all_are_a_run_of_nothing():
    assert diagnose(to_run([])).findings == ()


def test_contracts_that_a_log_cannot_decide_name_what_would_record_it():
    found = judged(rows(step=steps(300), loss=powerlaw(steps(300), 8, 2)))
    unjudged = {one.id: one.why for one in found.contracts if one.verdict.value == "NOT_EVALUATED"}
    for contract in ("C-GRADFLOW-001", "C-STEPSIZE-001", "C-CLIP-001", "C-DDP-001", "C-COSINE-001"):
        assert "brickprof " in unjudged[contract], contract
    assert all(why for why in unjudged.values())


def test_rules_for_logs_say_nothing_of_captured_runs():
    losses = [
        Event("loss", step, {"value": NAN if step > 50 else 2.0}, seq=step, time_ns=step) for step in range(1, 60)
    ]
    found = diagnose(Run.from_records(losses, RunMeta("captured")))
    assert [(one.contract, one.first_step) for one in found.findings] == [("C-TRAINSTABLE-001", 51)]
    assert "C-STEADYPACE-001" not in {one.id for one in found.contracts}
    assert "log" not in found.run


# -- what is computed from a log


def test_the_average_is_over_steps_however_often_they_are_logged():
    every = Track(np.arange(1, 2001), np.linspace(4, 2, 2000), np.arange(2000))
    some = Track(every.steps[9::10], every.values[9::10], every.seqs[9::10])
    assert ema(every, 100)[-1] == pytest.approx(ema(some, 100)[-1], rel=0.01)


def test_the_scaling_fit_finds_the_law_and_its_forecast_holds():
    at = np.arange(100, 20_000, 10).astype(float)
    losses = 6.0 - 0.35 * np.log(at) + np.random.default_rng(1).normal(0, 0.03, len(at))
    found = scaling_curve.scaling_fit(at, losses)
    assert found is not None
    assert found.b == pytest.approx(0.35, abs=4 * found.b_error + 0.005)
    middle, low, high = found.forecast(200_000)
    assert low <= 6.0 - 0.35 * np.log(200_000) <= high
    assert high - low < 0.3
    assert low < middle < high


def test_its_bounds_are_about_as_sure_as_they_say():
    hits = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        at = np.arange(50, 5000, 25).astype(float)
        found = scaling_curve.scaling_fit(at, 5.0 - 0.3 * np.log(at) + random.normal(0, 0.05, len(at)))
        assert found is not None
        _, low, high = found.forecast(50_000)
        hits += low <= 5.0 - 0.3 * np.log(50_000) <= high
    assert hits >= 54


def test_a_flat_loss_has_no_slope_and_few_points_no_fit():
    at = np.arange(100, 5000, 10).astype(float)
    flat = scaling_curve.scaling_fit(at, 7.6 + np.random.default_rng(2).normal(0, 0.05, len(at)))
    assert flat is not None and not flat.falls
    assert scaling_curve.scaling_fit(np.array([1.0, 2.0]), np.array([2.0, 1.0])) is None
    assert scaling_curve.scaling_fit(at, np.full(len(at), NAN)) is None


def test_the_fit_is_among_the_facts():
    at = steps(500, 10, 10)
    found = judged(rows(step=at, loss=6.0 - 0.3 * np.log(at) + noise(3, 500, 0.02)))
    assert found.run["scaling"]["b"] == pytest.approx(0.3, abs=0.03)
    assert found.run["scaling"]["forecast"]["at"] == pytest.approx(50_000, rel=0.01)


def test_clipping_shows_itself_in_norms_that_stop_at_a_value():
    at = steps(200)
    norm = np.minimum(1.0, 0.7 + np.abs(noise(4, 200, 0.4)))
    found = judged(rows(step=at, loss=powerlaw(at, 8, 2), grad_norm=norm))
    assert found.run["clipping"] == {"capped_at": 1.0, "stated": None}
    assert next(one.verdict.value for one in found.contracts if one.id == "FALSIFY-ALBOR-002") == "PASS"


@pytest.mark.parametrize(
    ("stated", "verdict"),
    [({"max_grad_norm": 1.0}, "PASS"), ({"max_grad_norm": 0.0}, "NOT_EVALUATED"), ({}, "NOT_EVALUATED")],
)
def test_norms_above_ten_are_judged_by_what_the_log_states(stated, verdict):
    at = steps(200)
    norm = 4 + np.abs(noise(5, 200, 8.0))
    found = judged(setting(**stated), rows(2, step=at, loss=powerlaw(at, 8, 2), grad_norm=norm))
    assert next(one.verdict.value for one in found.contracts if one.id == "FALSIFY-ALBOR-002") == verdict
    assert grave(found) == []


def test_a_rise_of_a_tenth_that_lasts_breaks_the_prediction_and_one_that_passes_does_not():
    at = steps(3000)
    level = powerlaw(at, 8, 2.5, 0.6) + noise(6, 3000, 0.03)
    lasting = judged(rows(step=at, loss=level + np.where(at > 2000, 0.5, 0.0)))
    passing = judged(rows(step=at, loss=level + np.where((at > 2000) & (at < 2300), 0.5, 0.0)))
    trend = {name: next(one.verdict.value for one in found.contracts if one.id == "FALSIFY-ALBOR-001")
             for name, found in (("lasting", lasting), ("passing", passing))}  # fmt: skip
    assert trend == {"lasting": "FAIL", "passing": "PASS"}
    assert 1900 <= grave(lasting)[0][2] <= 2100


NAMES = (
    "step", "epoch", "loss", "train_loss", "eval_loss", "val/box_loss", "train/box_loss", "lr", "grad_norm", "xyz",
    "skipped", "number of nan iterations", "tokens_per_sec", "time", "memory", "accuracy", "reward", "total_steps",
    "loss_scale",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("error")
def test_no_numbers_make_a_rule_stumble(seed):
    random = np.random.default_rng(seed)
    items = []
    for _ in range(int(random.integers(1, 4))):
        count = int(random.choice([1, 2, 3, 9, 40, 300]))
        columns = {}
        for name in random.choice(NAMES, int(random.integers(1, 9)), replace=False):
            kind = random.integers(6)
            values = (
                random.normal(0, 1, count) if kind == 0 else np.full(count, random.choice([0.0, 1.0, -3.0, 1e300, NAN]))
            )
            values = (
                random.choice([NAN, math.inf, -math.inf, 0.0, 1e-310, 1e308, -1.0, 5.0], count) if kind == 2 else values
            )
            values = np.exp(random.uniform(-30, 30, count)) if kind == 3 else values
            values = (
                np.arange(count, dtype=float) * random.choice([1, 10, -1]) if name == "step" or kind == 4 else values
            )
            columns[str(name)] = values
        items.append(table(columns, int(random.integers(1, 5000))))
    facts = [
        fact("ended", 3, how="time-limit"),
        fact("device", 4, what="strange"),
        fact("overflow", 5),
        setting(dtype=7),
    ]
    found = judged(*items, *[each for each in facts if random.random() < 0.5])
    assert not [one.why for one in found.contracts if "the rule failed" in one.why]
    assert not found.run.get("notes")
    found.to_json()


def test_a_forecast_does_not_fall_below_zero_and_says_where_it_ends():
    at = np.arange(10.0, 1000.0)
    fit = scaling_curve.scaling_fit(at, np.maximum(0.7 - 0.1 * np.log(at), 0.0))
    assert fit.usable_until == pytest.approx(math.exp(7), rel=0.01)
    assert fit.forecast(1e9) == (0.0, 0.0, 0.0)
    assert fit.to_dict()["usable_until"] == fit.usable_until
    below = scaling_curve.scaling_fit(at, -np.log(at))
    assert below.usable_until == math.inf and below.forecast(1e9)[0] < -20 and below.to_dict()["usable_until"] is None


def test_the_forecast_of_a_log_ends_where_its_fit_does():
    at = steps(990) + 10
    found = judged(rows(step=at, loss=0.7 - 0.1 * np.log(at)))
    told = found.run["scaling"]["forecast"]
    assert told["at"] == pytest.approx(math.exp(7), rel=0.01) and told["low"] >= 0 and told["loss"] >= 0
