"""From records to root causes: which cause wins, what is ruled out, and that every claim has its records."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import INF, NAN, Made

import brickprof.diagnosis
import brickprof.rules
from brickprof.contracts.verdicts import Severity, Verdict, Violation
from brickprof.diagnosis import Diagnosis, Doctor, Finding, diagnose
from brickprof.diagnosis.incidents import incidents
from brickprof.errors import UnreadableInput
from brickprof.records import Event

KEYS = {
    "id", "contract", "verdict", "severity", "root_cause", "confidence", "brick", "granularity",
    "scope", "nature", "first_step", "detected_step", "coordinates", "symptom", "whys", "ruled_out",
    "action", "next_experiment", "follows", "obligation",
}  # fmt: skip


def found(made: Made) -> Finding:
    """The one finding of a run, after checking what must hold for every finding."""
    run = made.run()
    diagnosis = diagnose(run)
    (finding,) = diagnosis.findings
    assert diagnosis.verdict is Verdict.FAIL
    assert 0 < finding.confidence <= 0.99
    assert 1 <= len(finding.whys) <= 5
    for part in (*finding.whys, *finding.ruled_out):
        for identity in part.evidence:
            assert run.find(identity), identity
    assert finding.whys[0].evidence
    assert Diagnosis.from_dict(json.loads(diagnosis.to_json())) == diagnosis
    return finding


def ruled_out(finding: Finding) -> set[str]:
    return {out.root_cause for out in finding.ruled_out}


def test_the_document_has_the_keys_that_others_parse():
    made = Made()
    made.healthy(3)
    made.step(3, loss=NAN)
    document = diagnose(made.run()).to_dict()
    assert list(document) == ["schema", "verdict", "run", "findings", "contracts"]
    assert set(document["findings"][0]) == KEYS
    assert set(document["contracts"][0]) == {"id", "verdict", "observed", "threshold", "why"}
    assert set(document["findings"][0]["whys"][0]) == {"question", "finding", "brick", "evidence"}
    assert document["findings"][0]["coordinates"]["local_rank"] == 0


def test_a_healthy_run_has_no_finding():
    made = Made()
    made.healthy(20)
    diagnosis = diagnose(made.run())
    assert (diagnosis.verdict, diagnosis.findings) == (Verdict.PASS, ())
    assert diagnosis.run["steps"] == 20


def test_no_training_is_vacuous():
    made = Made()
    made.event("exited", 0, rank=-1, code=0, text="the script exited 0", **{"class": "ok"})
    diagnosis = diagnose(made.run())
    assert (diagnosis.verdict, diagnosis.findings) == (Verdict.VACUOUS, ())


def test_data_that_is_not_finite():
    made = Made()
    made.healthy(5)
    made.sample("input", 5, "embed", nan=2, absmax=None)
    made.activation(5, "embed", nan=8, inputs_finite=False)
    made.event("loss", 5, value=NAN)
    finding = found(made)
    assert (finding.root_cause, finding.first_step) == ("data-nonfinite", 5)
    assert finding.confidence > 0.8
    assert {"fp16-overflow", "loss-scale-misused"} <= ruled_out(finding)


def test_an_overflow_of_float16():
    made = Made(dtype="float16")
    made.healthy(5)
    made.sample("activation", 4, "body", absmax=60000.0)
    made.forward(5)
    made.activation(5, "body", inf=3, dtype="float16")
    made.event("loss", 5, value=NAN)
    made.event("optimizer", 5, optimizer=0, lr=[1e-3], count=6)
    finding = found(made)
    assert (finding.root_cause, finding.brick) == ("fp16-overflow", "body")


@pytest.mark.parametrize(
    ("blocks", "nan", "cause"),
    [(("body", "head"), 0, "fp16-overflow"), (("body", "head"), 1, "invalid-op"),
     (("embed", "body", "head"), 0, "invalid-op"), (("head",), 0, "invalid-op")],
    ids=["infinite in part", "nan too", "all the way back", "one weight"],
)  # fmt: skip
def test_products_that_were_made_in_less_than_float32(blocks, nan, cause):
    made = Made()
    made.healthy(5)
    made.forward(5)
    made.event("loss", 5, value=1e6, micro=0, dtype="float32", grad_fn="DivBackward0")
    made.broken("grad", 5, *blocks, nan=nan, inf=9, point="step", tensors=3, l2=None)
    made.event("optimizer", 5, optimizer=0, lr=[1e-3], count=6)
    made.event("loss", 6, value=NAN)
    assert found(made).root_cause == cause


@pytest.mark.parametrize(
    ("nan", "largest", "biases", "cause"),
    [(0, 4e5, "finite", "fp16-overflow"), (None, 4e5, "finite", "invalid-op"), (0, 3e18, "finite", "invalid-op"),
     (0, None, "finite", "invalid-op"), (0, 0.0, "finite", "invalid-op"), (0, 4e5, "none", "invalid-op"),
     (0, 4e5, "infinite", "invalid-op"), (0, 4e5, "not named", "invalid-op")],
    ids=["infinite norms", "a norm that is nan", "squares beyond float32", "no finite norm", "nothing but zeros",
         "no biases", "biases too", "more than are named"],
)  # fmt: skip
def test_products_that_were_made_in_less_than_float32_by_their_norms(nan, largest, biases, cause):
    made = Made()
    if biases != "none":
        for number, block in enumerate(("body", "head"), 100):
            told = {"shape": [8], "dtype": "float32", "trainable": True}
            made.event(
                "tensor", 0, id=number, name=f"{block}.bias", model=made.model, brick=made.numbers[block], **told
            )
    made.healthy(5)
    made.forward(5)
    made.event("loss", 5, value=1e6, micro=0, dtype="float32", grad_fn="DivBackward0")
    told = {} if largest is None else {"largest": largest}
    event = made.broken("grad", 5, "body", "head", nan=nan, inf=None, point="clip", tensors=5, l2=None, **told)
    if biases == "not named":
        event.fields["broken"] = 4
    if biases == "infinite":
        event.fields["nonfinite"].extend({"tensor": number, "nan": 0, "inf": None} for number in (100, 101))
    made.event("optimizer", 5, optimizer=0, lr=[1e-3], count=6)
    made.event("loss", 6, value=NAN)
    assert found(made).root_cause == cause


def test_a_frozen_layer_further_back_proves_nothing_about_products():
    made = Made()
    for record in made.records:
        if getattr(record, "kind", "") == "tensor" and record.fields["name"] == "embed.weight":
            record.fields["trainable"] = False
    made.healthy(5)
    made.forward(5)
    made.event("loss", 5, value=1e6, micro=0, dtype="float32", grad_fn="DivBackward0")
    made.broken("grad", 5, "body", "head", nan=0, inf=9, point="step", tensors=3, l2=None)
    made.event("optimizer", 5, optimizer=0, lr=[1e-3], count=6)
    made.event("loss", 6, value=NAN)
    assert found(made).root_cause != "fp16-overflow"


def handed(grad_fn: str, op: str, name: str, *, given: bool | None) -> Made:
    """A loss that is NaN by something that needs no gradient; ``given``: whether what the model got is finite."""
    made = Made()
    made.healthy(5)
    made.forward(5)
    made.event("loss", 5, value=NAN, micro=0, dtype="float32", grad_fn=grad_fn)
    look = {"name": name, "min": -2.0, "max": 1.0, "nan": 16, "inf": 0, "numel": 96, "finite": False}
    made.event("origin", 5, op=op, inputs=[look], given_finite=given).fields["kind"] = "input"
    return made


def test_a_factor_of_the_loss_that_is_nan_was_divided_by_nothing():
    finding = found(handed("SubBackward0", "MulBackward0", "other", given=True))
    assert finding.root_cause == "division-by-zero" and "16 of 96" in finding.whys[-1].finding


@pytest.mark.parametrize(("given", "sure"), [(False, True), (None, False)])
def test_data_is_blamed_with_less_certainty_where_nobody_saw_what_the_model_was_given(given, sure):
    finding = found(handed("NllLossBackward0", "ConvolutionBackward0", "input", given=given))
    assert finding.root_cause == "data-nonfinite" and (finding.confidence > 0.85) is sure
    assert ("Not recorded" in finding.whys[-1].finding) is not sure


@pytest.mark.parametrize("learnt", [True, False])
def test_a_large_update_that_was_followed_by_learning_did_no_harm(learnt):
    made = Made()
    for step in range(60):
        made.step(step, loss=0.7 * (0.9**step if learnt else 1.0))
        made.sample("update", step, "body", ratio=0.7 if step == 0 else 0.001, l2=1.0)
    made.forward(60)
    made.event("loss", 60, value=NAN, micro=0, dtype="float32", grad_fn="NegBackward0")
    look = {"name": "self", "min": 0.0, "max": 1.0, "zeros": 1, "nan": 0, "inf": 0, "numel": 96, "finite": True}
    told = made.event("origin", 60, op="LogBackward0", inputs=[look])
    told.fields["kind"] = "log-of-zero"
    assert (found(made).root_cause == "log-of-zero") is learnt


@pytest.mark.parametrize("before", [0.002, 0.2])
def test_an_update_as_large_as_its_gradient_is_no_matter_of_the_rate(before):
    made = Made()
    for step in range(8):
        made.step(step, loss=3.0, norm=0.2, lr=0.05)
        made.sample("update", step, "body", ratio=before, l2=0.1)
    made.step(8, loss=300.0, norm=5e4, lr=0.05)
    made.sample("update", 8, "body", ratio=1.0, l2=50.0)
    made.forward(9)
    made.event("loss", 9, value=NAN)
    expected = "exploding-gradients" if before < 0.01 else "learning-rate-too-high"
    assert found(made).root_cause == expected


def test_a_learning_rate_that_is_too_high():
    made = Made()
    for step in range(3):
        made.step(step, loss=10.0**step, norm=10.0 ** (2 * step), lr=50.0)
        made.sample("update", step, "body", ratio=4.0, l2=8.0)
    made.event("loss", 3, value=NAN)
    finding = found(made)
    assert finding.root_cause == "learning-rate-too-high"
    assert "50" in finding.action


def test_a_bias_that_starts_at_zero_does_not_make_a_learning_rate_too_high():
    made = Made()
    for step in range(5):
        made.step(step)
        made.sample("update", step, "head", ratio=1.0, l2=0.01)
        made.sample("update", step, "body", ratio=1e-3, l2=0.1)
    made.sample("activation", 5, "body")
    made.event("loss", 5, value=INF, grad_fn="MeanBackward0")
    finding = found(made)
    assert finding.root_cause == "log-of-zero"
    assert "learning-rate-too-high" in ruled_out(finding)


def test_gradients_that_grow_step_by_step():
    made = Made("a", "b", "c", "d", "e")
    for step in range(12):
        made.step(step, norm=10.0**step)
        for place, block in enumerate("abcde"):
            made.sample("grad", step, block, absmax=10.0 ** (step - place))
    made.event("loss", 12, value=1.0)
    made.broken("grad", 12, "a", inf=1, nan=0, point="step")
    made.event("optimizer", 12, optimizer=0, lr=[1e-3], count=13)
    made.event("loss", 13, value=NAN)
    finding = found(made)
    assert (finding.root_cause, finding.brick, finding.first_step) == ("exploding-gradients", "a", 12)
    assert any("per block" in why.finding for why in finding.whys)


def test_a_jump_that_nothing_clipped_although_a_bound_is_declared():
    made = Made()
    made.event("config", 0, rank=-1, source="train.yaml", values={"grad_clip": 1.0})
    made.healthy(30)
    made.event("loss", 30, value=1.0)
    made.event("grad", 30, point="step", l2=3.28e35, nonfinite=[])
    made.event("optimizer", 30, optimizer=0, lr=[1e-3], count=31)
    made.broken("weight", 30, "embed", nan=1298, when="after")
    made.event("loss", 31, value=NAN)
    finding = found(made)
    assert (finding.root_cause, finding.brick, finding.first_step) == ("grad-clip-not-applied", "embed", 30)
    assert "clip_grad_norm_" in finding.action
    assert finding.whys[0].question == "Why is the loss nan in step 31?"


def test_a_jump_is_not_blamed_on_clipping_that_ran():
    made = Made()
    for step in range(30):
        made.step(step)
        made.event("clip", step, norm=1.0, max_norm=1.0)
    made.event("loss", 30, value=NAN)
    assert "grad-clip-not-applied" in ruled_out(found(made))


@pytest.mark.parametrize(
    ("value", "made_by", "cause"),
    [
        (INF, "MeanBackward0", "log-of-zero"),
        (NAN, "MeanBackward0", "invalid-op"),
        (NAN, "DivBackward0", "division-by-zero"),
        (NAN, "LogBackward0", "log-of-zero"),
    ],
)
def test_a_loss_that_is_the_first_thing_to_break(value, made_by, cause):
    made = Made()
    made.healthy(10)
    made.sample("update", 9, "body", ratio=1e-3, l2=0.1)
    made.sample("input", 10, "embed")
    made.sample("activation", 10, "head")
    made.event("loss", 10, value=value, grad_fn=made_by)
    finding = found(made)
    assert (finding.root_cause, finding.brick, finding.first_step) == (cause, "loss", 10)
    assert {"data-nonfinite", "exploding-gradients", "learning-rate-too-high"} <= ruled_out(finding)
    assert finding.confidence > 0.8


def test_what_was_not_looked_at_lowers_the_confidence_and_is_said():
    made = Made()
    made.healthy(10)
    made.event("loss", 10, value=NAN)
    finding = found(made)
    assert finding.confidence < 0.5
    assert "Not recorded" in finding.whys[-1].finding
    assert "--deep-at" in finding.whys[-1].finding


def test_a_scaled_loss_that_is_never_unscaled():
    made = Made()
    for step in range(5):
        made.forward(step)
        made.event("loss", step, value=1.0, scale=65536.0)
        made.event("optimizer", step, optimizer=0, lr=[1e-3], count=step + 1)
    made.event("loss", 5, value=NAN, scale=65536.0)
    assert found(made).root_cause == "loss-scale-misused"


def test_no_gradient_path():
    made = Made("embed", "body", "head")
    made.owned()
    for step in range(8):
        made.event("sampled", step, roles=["grad"])
        made.sample("grad", step, "head")
        made.step(step)
    finding = found(made)
    assert (finding.root_cause, finding.brick, finding.nature) == ("no-gradient-path", "body", "static")
    assert {"dead-activations", "parameters-frozen"} <= ruled_out(finding)


def test_dead_activations():
    made = Made("embed", "body", "head")
    made.owned()
    for step in range(8):
        made.event("sampled", step, roles=["grad"])
        for block in ("embed", "body", "head"):
            made.sample("grad", step, block, absmax=0.0 if block == "body" else 1.0)
            made.sample("activation", step, block, zero_fraction=1.0 if block == "body" else 0.5)
        made.step(step)
    finding = found(made)
    assert (finding.root_cause, finding.brick) == ("dead-activations", "body")


def test_findings_are_ordered_errors_first():
    made = Made("embed", "body", "head")
    made.owned()
    for step in range(8):
        made.event("sampled", step, roles=["grad"])
        made.sample("grad", step, "head")
        made.step(step)
    made.event("exited", 0, rank=-1, code=3, text="the script exited 3", **{"class": "failed"})
    diagnosis = diagnose(made.run())
    assert [finding.severity for finding in diagnosis.findings] == [Severity.ERROR, Severity.WARNING]
    assert [finding.id for finding in diagnosis.findings] == ["F1", "F2"]


def test_two_models_are_told_apart_by_name():
    first = Made("lift", "place", model="Generator")
    first.event("model", 0, model="Critic")
    first.healthy(4)
    first.broken("weight", 3, "lift", when="after")
    first.event("brick", 0, id=90, brick_kind="block", path="judge", model="Critic")
    finding = found(first)
    assert finding.brick == "Generator.lift"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schema": 2},
        {"schema": 1, "verdict": "FINE", "run": {}, "findings": [], "contracts": []},
        {"schema": 1},
    ],
)
def test_what_is_no_diagnosis_is_refused(document):
    with pytest.raises(UnreadableInput):
        Diagnosis.from_dict(document)


def test_nothing_is_guessed_from_names():
    """The same records under other names get the same diagnosis."""

    def judged(*blocks: str) -> tuple[str, float, int]:
        made = Made(*blocks)
        made.healthy(10)
        made.event("loss", 10, value=NAN)
        finding = found(made)
        return finding.root_cause, finding.confidence, finding.first_step

    assert judged("embed", "body", "head") == judged("log_of_zero", "detach", "clip")


KINDS = """
    run brick tensor model optimizer_created hyperparameters loss grad clip optimizer scaler batch activation
    weight sampled anomaly memory exception exit exited hang signal start compile zero_grad nobody-knows
""".split()  # noqa: SIM905
NAMES = """
    id path model name brick shape dtype groups optimizer value micro scale point nonfinite nan inf numel l2
    absmax lr count skipped found_inf op norm roles until rss tree type message code signal class place
    seconds costs overhead steps coordinates when alias_of trainable inputs_finite phase memory_limit peak_rss
""".split()  # noqa: SIM905
scalars = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
)
events = st.builds(
    Event,
    st.sampled_from(KINDS),
    st.integers(-1, 6),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=6),
    st.integers(0, 50),
    st.integers(0, 10**6),
    st.integers(-1, 1),
)


def _asked_for(pattern):
    """Every name that a rule or a cause asks events for."""
    folders = (Path(brickprof.rules.__path__[0]), Path(brickprof.diagnosis.__path__[0]))
    texts = (path.read_text() for folder in folders for path in folder.rglob("*.py"))
    return sorted({name for text in texts for name in re.findall(pattern, text)})


@pytest.mark.parametrize("value", [[], {}, [[]], [{}], [None], {"a": []}, "x", -1, True, 2**70, math.nan, math.inf])
def test_no_field_of_any_event_breaks_a_rule(value):
    names = _asked_for(r'fields\.get\("(\w+)"')
    broken = []
    for kind in _asked_for(r'events\("(\w+)"'):
        made = Made()
        made.healthy(3)
        doctor = Doctor()
        strange = [Event(kind, step, dict.fromkeys(names, value), 100 + step, 10**18 + step) for step in range(3)]
        for record in [*made.records, *strange]:
            doctor.feed(record)
        doctor.diagnosis(None)
        results = doctor.engine.results()
        broken += [(kind, result.id, result.why) for result in results if "the rule failed" in result.why]
        broken += [(kind, note) for note in doctor.engine.notes]
    assert broken == []


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=12))
def test_no_record_breaks_the_diagnosis(strange):
    """Journals get damaged, and come from other versions: strange fields change nothing but the evidence."""
    made = Made()
    made.healthy(3)
    doctor = Doctor()
    for record in [*made.records, *strange]:
        doctor.feed(record)
    diagnosis = doctor.diagnosis(None)
    assert [result.why for result in doctor.engine.results() if "the rule failed" in result.why] == []
    assert Diagnosis.from_dict(json.loads(diagnosis.to_json())) == diagnosis
    assert str(diagnosis)


def test_what_began_after_the_numbers_ran_away_is_not_fixed_first():
    def seen(what, step, **about):
        return Violation("C-X-001", what, Severity.WARNING, f"{what} seen", step, step, **about)

    spike = seen("spike", 100)
    dead = seen("dead-units", 120, cause="dead-activations", certainty=0.7)
    before = seen("dead-units", 20, cause="dead-activations", certainty=0.7)
    assert [one.lead for one in incidents([dead, spike])] == [spike, dead]
    assert [one.lead for one in incidents([spike, before])] == [before, spike]
