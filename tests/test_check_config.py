"""`brickprof check config`: what a configuration promises, worked out, before any step is run."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from brickprof.cli.app import main
from brickprof.contracts import documents, plans
from brickprof.contracts.terms import Terms
from brickprof.errors import ConfigurationError

ALB_060 = """
data: {num_sequences: 22079}
train:
  batch_size: 4
  gradient_accumulation_steps: 128
  epochs: 1
  max_steps: 5000
  warmup_steps: 2000
  lr: 3.0e-4
"""
SOUND = "num_samples: 100000\nbatch_size: 50\nepochs: 3\nmax_steps: 6000\nwarmup_steps: 300\nlr: 1e-3\n"


def checked(tmp_path, capsys, text, *flags, name="c.yaml"):
    (tmp_path / name).write_text(text)
    code = main(["check", "config", str(tmp_path / name), *flags])
    return code, capsys.readouterr()


def lines(text, tmp_path, name="c.yaml", **terms):
    (tmp_path / name).write_text(text)
    opinion = plans.judge(documents.read(tmp_path / name), Terms(**terms))
    return {judged.contract: judged for judged in opinion.judged}


def test_the_arithmetic_of_alb_060(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, ALB_060)
    assert code == 1
    assert "steps_per_epoch = floor(22,079 / 4 / 128) = 43" in printed.out
    assert "max_steps = 5,000 cannot be reached" in printed.out
    assert "1 epoch x 43 = 43 < 5,000; epochs >= 117 needed" in printed.out
    assert "warmup = 2,000 never completes in 43 steps: the learning rate peaks at 6.45e-06, not 0.0003" in printed.out


def test_a_sound_plan_passes(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, SOUND)
    assert code == 0
    assert printed.out.startswith("✓ PASS")


def test_json_has_the_arithmetic_too(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, ALB_060, "--json")
    document = json.loads(printed.out)
    assert (code, document["verdict"]) == (1, "FAIL")
    (judged,) = [each for each in document["contracts"] if each["id"] == "C-TRAINCFG-001"]
    assert any("117" in line["arithmetic"] for line in judged["lines"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "num_samples = 22079\nbatch_size = 4\naccum = 128\nepochs = 1\nmax_steps = 5000\n"),
        ("c.json", '{"num_samples": 22079, "batch_size": 4, "accum": 128, "epochs": 1, "max_steps": 5000}'),
        ("training_args.json", '{"num_train_samples": 22079, "per_device_train_batch_size": 4, "num_train_epochs": 1,'
                               ' "gradient_accumulation_steps": 128, "max_steps": 5000}'),
    ],
)  # fmt: skip
def test_every_format_says_the_same(tmp_path, name, text):
    judged = lines(text, tmp_path, name)["C-TRAINCFG-001"]
    assert judged.verdict == "FAIL"
    assert any("43" in line.arithmetic for line in judged.lines)


def test_minus_one_means_as_many_as_the_epochs_hold(tmp_path):
    assert (
        lines("num_samples: 1000\nbatch_size: 10\nepochs: 2\nmax_steps: -1", tmp_path)["C-TRAINCFG-001"].verdict
        == "PASS"
    )


def test_a_horizon_beyond_the_run_never_comes_down(tmp_path):
    text = "lr: 1e-3\nlr_scheduler_type: cosine\nmax_steps: 38000\nlr_decay_steps: 155000\n"
    assert lines(text, tmp_path)["C-COSINE-001"].verdict == "FAIL"
    assert lines(text.replace("155000", "38000"), tmp_path)["C-COSINE-001"].verdict == "PASS"


def test_a_large_model_wants_a_large_batch(tmp_path):
    text = "batch_size: 4\nseq_len: 1024\nnum_parameters: 350000000\nmax_steps: 5000\n"
    (line,) = lines(text, tmp_path)["C-BATCH-001"].lines
    assert (line.severity, line.arithmetic) == ("warning", "4 x 1 x 1,024 = 4,096")
    assert lines(text.replace("350000000", "3500000"), tmp_path)["C-BATCH-001"].verdict == "NOT_EVALUATED"


def test_thresholds_can_be_set(tmp_path, capsys):
    share = SOUND.replace("warmup_steps: 300", "warmup_steps: 1200")
    assert "more than 10%" in checked(tmp_path, capsys, share)[1].out
    assert "more than" not in checked(tmp_path, capsys, share, "--set", "C-TRAINCFG-001.warmup_fraction=0.3")[1].out


def test_a_threshold_that_nobody_has_is_an_error(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, SOUND, "--set", "C-TRAINCFG-001.warmup_fracton=0.3")
    assert code == 2
    assert "Did you mean warmup_fraction?" in printed.err


def test_misspelt_and_unknown_keys_are_named(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, SOUND + "learning_rat: 1\nfavourite_colour: blue\n")
    assert code == 0
    assert "c.yaml:7: learning_rat is not a setting anybody knows. Did you mean learning_rate?" in printed.out
    assert "Not judged: favourite_colour" in printed.out


@pytest.mark.parametrize("text", ["lr: -1", "batch_size: 0", "adam_beta2: 1.5", "grad_accum: 0", "dropout: 1.0"])
def test_impossible_values_fail(tmp_path, text):
    assert lines(text, tmp_path)["C-TRAINCFG-001"].verdict == "FAIL"


def test_nothing_to_judge_is_vacuous(tmp_path, capsys):
    code, printed = checked(tmp_path, capsys, "favourite_colour: blue\n")
    assert code == 3
    assert "VACUOUS" in printed.out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.yaml", b"a: [1"), ("c.yaml", b"- 1\n- 2\n"), ("c.json", b"{"), ("c.toml", b"a ="),
        ("c.yaml", b"\x89PNG\0\0"), ("c.yaml", b"a: &x 1\nb: *x\n"), ("c.yaml", b"a: 1\na: 2\n"),
        ("c.yaml", b"a: !!python/object/apply:os.system [true]\n"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_one_clear_error(tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError):
        documents.read(tmp_path / name)
    assert main(["check", "config", str(tmp_path / name)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_missing_files_and_folders(tmp_path, capsys):
    assert main(["check", "config", str(tmp_path / "no.yaml")]) == 2
    assert main(["check", "config", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_hostile_keys_are_shown_harmless(tmp_path, capsys):
    _, printed = checked(tmp_path, capsys, '"\\e[31mred": 1\nlr: 1e-3\nepochs: 1\n')
    assert "\x1b[31mred" not in printed.out


def test_help_is_worth_reading():
    from brickprof.cli.app import build

    shown = CliRunner().invoke(build()[0], ["check", "config", "--help"])
    assert "brickprof check config train.yaml" in shown.output
