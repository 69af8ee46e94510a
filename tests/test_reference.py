"""The reference training: it learns, it resumes to the bit, it refuses what it does not know."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brickprof.errors import ConfigurationError, UsageError
from brickprof.reference import checkpoints, zoo
from brickprof.reference.__main__ import main
from brickprof.reference.config import PRESETS, Config, read
from brickprof.reference.data import Corpus
from brickprof.reference.model import Llama
from brickprof.reference.train import Trainer

SMALL = Config(
    layers=2, width=32, heads=2, kv_heads=1, hidden=48, vocabulary=32, length=12, sequences=512, batch=8, steps=24
)


def trained(config, **changes):
    trainer = Trainer(replace(config, **changes), device="cpu")
    trainer.run()
    return trainer


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_presets_have_the_size_that_their_name_says(preset):
    config = read(preset)
    assert config.total_steps > config.warmup
    if preset != "tiny":
        with torch.device("meta"):
            model = Llama(config)
        millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        assert millions == pytest.approx(float(preset.removesuffix("m")), rel=0.15)


def test_it_learns(capsys):
    trainer = trained(read("tiny", ("steps=120", "evaluate_every=0")))
    assert trainer.evaluate() < 0.5 * math.log(trainer.config.vocabulary)


@pytest.mark.parametrize("changes", [{}, {"accumulation": 2, "dtype": "bfloat16"}, {"dtype": "float16", "tied": False}])
def test_a_resumed_training_is_the_same_to_the_bit(tmp_path, capsys, changes):
    whole = trained(SMALL, **changes)
    first = Trainer(replace(SMALL, checkpoint_every=10, **changes), out=tmp_path, device="cpu")
    first.run()
    (tmp_path / "step-20.pt").unlink(missing_ok=True)
    second = Trainer(replace(SMALL, **changes), out=tmp_path, device="cpu")
    second.resume()
    assert second.step == 10
    second.run()
    assert same(weights(whole), weights(second))


def test_accumulated_gradients_are_those_of_the_whole_batch():
    one, four = (
        Trainer(replace(SMALL, batch=16), device="cpu"),
        Trainer(replace(SMALL, batch=4, accumulation=4), device="cpu"),
    )
    tokens = one.corpus.sequences(torch.arange(16))
    one.backward(one.forward(tokens[:, :-1], tokens[:, 1:]))
    for part in tokens.chunk(4):
        four.backward(four.forward(part[:, :-1], part[:, 1:]))
    for ours, theirs in zip(one.model.parameters(), four.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_both_ends_on_the_host_give_the_same_loss():
    plain, ends = Trainer(SMALL, device="cpu"), Trainer(replace(SMALL, host_ends=True), device="cpu")
    tokens = plain.corpus.sequences(torch.arange(8))
    batch = tokens[:, :-1], tokens[:, 1:]
    assert torch.equal(plain.forward(*batch), ends.forward(*batch))


@pytest.mark.parametrize("tied", [True, False])
def test_no_gradient_of_the_embedding_comes_back_from_the_device(tied):
    trainer = Trainer(replace(SMALL, host_ends=True, tied=tied), device="cpu")
    tokens = trainer.corpus.sequences(torch.arange(8))
    trainer.backward(trainer.forward(tokens[:, :-1], tokens[:, 1:]))
    embed, head = trainer.model.embed.weight, trainer.model.head.weight
    assert (embed is head) is tied and head.grad is not None
    owned = {id(each) for group in trainer.optimizer.param_groups for each in group["params"]}
    assert (embed.grad is not None) is tied and (id(embed) in owned) is tied


class Crossings(TorchDispatchMode):
    """Copies to the meta device, which stands for a card here, and back from it: zeros come back."""

    def __init__(self):
        super().__init__()
        self.ways = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            return func(*args, **(kwargs or {}))
        to = torch.device(kwargs["device"]) if kwargs and kwargs.get("device") else args[0].device
        source = args[0] if func is torch.ops.aten._to_copy.default else args[1]
        if source.device.type == to.type:
            return func(*args, **(kwargs or {}))
        self.ways.append((source.device.type, to.type))
        return torch.zeros_like(source, device=to)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("layers", "accumulation"), [(1, 1), (4, 1), (2, 3)])
def test_with_both_ends_on_the_host_a_step_makes_three_transfers_whatever_the_depth(layers, accumulation, tied):
    changes = {"host_ends": True, "layers": layers, "accumulation": accumulation, "tied": tied, "clip": 0.1}
    trainer = Trainer(replace(SMALL, **changes), device="meta")
    batches = trainer.batches()
    for _ in range(2):
        with Crossings() as seen:
            trainer.train_step(batches)
        assert seen.ways == [("cpu", "meta"), ("meta", "cpu"), ("cpu", "meta")] * accumulation


def test_with_both_ends_on_the_host_each_side_is_clipped_by_its_own_norm():
    trainer = Trainer(replace(SMALL, host_ends=True, clip=0.01), device="cpu")
    trainer.update = lambda: None
    trainer.train_step(trainer.batches())
    model = trainer.model
    for side in ([model.head.weight], list(model.decoder.parameters())):
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in side])
        assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_a_loss_scale_would_travel_between_the_ends():
    with pytest.raises(ConfigurationError, match="float16"):
        replace(SMALL, host_ends=True, dtype="float16")


def test_shards_are_disjoint_and_complete():
    parts = [set(Corpus(SMALL, rank=rank, ranks=3).order(0).tolist()) for rank in range(3)]
    assert set.union(*parts) == set(range(SMALL.sequences))
    assert sum(map(len, parts)) == SMALL.sequences


def test_epochs_are_shuffled_anew_and_repeatably():
    first, again, second = (Corpus(SMALL).order(epoch).tolist() for epoch in (0, 0, 1))
    assert first == again != second


def test_a_misspelt_field_is_named(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("acumulation: 4\n")
    with pytest.raises(ConfigurationError, match=r"acumulation.*accumulation"):
        read(str(file))


@pytest.mark.parametrize(
    "text", ["batch: many", "betas: 3", "tied: 1", "heads: 3", "dtype: int8", "- 1", "{", "batch: 0"]
)
def test_wrong_values_are_refused(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError):
        read(str(file))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    from brickprof.errors import UnreadableInput

    torch.save({"model": {}}, tmp_path / "step-1.pt")
    with pytest.raises(UnreadableInput):
        checkpoints.load(Trainer(SMALL, device="cpu"), tmp_path / "step-1.pt")


def test_an_unknown_fault_names_the_nearest():
    with pytest.raises(UsageError, match="no fault"):
        zoo.find("alb-999-nothing-like-it")


def test_the_command_line_trains_and_diagnoses(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "brickprof.reference", "--steps", "30", "--out", "ckpt", "--set", "checkpoint_every=20"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    assert (tmp_path / "ckpt" / "step-20.pt").is_file()


def test_wrong_usage_ends_with_2(capsys):
    assert main(["--config", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
