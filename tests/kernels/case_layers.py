"""Layers on the kernels, alone and over two processes, and the reference model made of them."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from problems import drawn, same_bits
from torch import nn

from brickprof.bricks import Coordinates
from brickprof.kernels.gemm import gemm
from brickprof.kernels.linear import ColumnParallelLinear, Embedding, Linear, RowParallelLinear, shard
from brickprof.operators import launch
from brickprof.operators.launch import WrongArgument
from brickprof.reference.blocks import operations
from brickprof.reference.config import Config
from brickprof.reference.model import Llama
from brickprof.reference.train import Trainer

SMALL = Config(
    layers=2, width=32, heads=2, kv_heads=1, hidden=48, vocabulary=32, length=12, sequences=64, batch=4, steps=3,
    warmup=1, evaluate_every=0, checkpoint_every=0,
)  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_torch_s(bias):
    torch.manual_seed(0)
    ours = Linear(24, 10, bias=bias)
    torch.manual_seed(0)
    theirs = nn.Linear(24, 10, bias=bias)
    assert all(same_bits(ours.state_dict()[name], each) for name, each in theirs.state_dict().items())
    x, dy = drawn(2, 5, 24), drawn(2, 5, 10, seed=1)
    for layer in (ours, theirs):
        layer.x = x.clone().requires_grad_()
        layer.y = layer(layer.x)
        layer.y.backward(dy)
    torch.testing.assert_close(ours.y, theirs.y, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.x.grad, theirs.x.grad, atol=1e-5, rtol=1e-5)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-5)


def test_embedding_is_torch_s():
    ours, theirs = Embedding(9, 20), nn.Embedding(9, 20)
    theirs.load_state_dict(ours.state_dict())
    tokens, dy = torch.tensor([[1, 8, 1], [0, 1, 0]]), drawn(2, 3, 20)
    for layer in (ours, theirs):
        layer(tokens).backward(dy)
    assert same_bits(ours(tokens), theirs(tokens))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-6, rtol=1e-6)


def test_under_autocast_a_product_is_in_the_narrow_type_and_gradients_in_the_wide():
    layer, x = Linear(16, 8, bias=True), drawn(3, 16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        y = layer(x)
    y.backward(torch.ones_like(y))
    assert y.dtype == torch.float16
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == x.grad.dtype == torch.float32


# -- shards


def test_column_shards_side_by_side_are_the_whole_to_the_bit():
    x, w = drawn(7, 40), drawn(24, 40, seed=1)
    whole = gemm(x=x, w=w)
    for of in (2, 3, 4):
        for tp in range(of):
            part = gemm(x=x, w=shard(w, at=Coordinates(tp=tp), of=of, dim=0))
            assert same_bits(part, shard(whole, at=Coordinates(tp=tp), of=of, dim=1).contiguous())


def test_a_flat_index_is_no_name_of_a_shard():
    w = drawn(4, 4)
    with pytest.raises(TypeError, match="flat index"):
        shard(w, at=1, of=2, dim=0)
    with pytest.raises(TypeError):
        shard(w, 1, 2, 0)
    with pytest.raises(TypeError):
        ColumnParallelLinear(4, 4, False, None, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shard(drawn(5, 4), at=Coordinates(tp=0), of=2, dim=0), "should be a multiple of 2; given: 5"),
        (lambda: shard(drawn(4, 4), at=Coordinates(tp=2), of=2, dim=0), "should be tp below 2; given: tp=2"),
        (lambda: ColumnParallelLinear(4, 4, tp=1), "tp should be below 1"),
        (lambda: RowParallelLinear(4, 6).load(drawn(4, 6)), r"weight should be \(6, 4\); given: \(4, 6\)"),
    ],
)
def test_shards_that_do_not_fit_are_named(call, message):
    with pytest.raises(WrongArgument, match=message):
        call()


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear])
def test_alone_a_parallel_layer_is_a_linear_one(layer):
    torch.manual_seed(0)
    alone = layer(12, 8, bias=True)
    torch.manual_seed(0)
    whole = nn.Linear(12, 8)
    assert same_bits(alone.weight, whole.weight) and same_bits(alone.bias, whole.bias)
    torch.testing.assert_close(alone(drawn(3, 12)), whole(drawn(3, 12)), atol=1e-5, rtol=1e-5)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_two_processes_are_one_layer():
    processes.spawn(_of_two, args=(free_port(),), nprocs=2)


def _of_two(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        _refuses_what_does_not_divide()
        _columns(rank)
        _rows(rank)
        _both(rank)
    finally:
        dist.destroy_process_group()


def _whole(inner: int, outer: int) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    return Linear(inner, outer, bias=True), drawn(5, inner, seed=1).requires_grad_(), drawn(5, outer, seed=2)


def _refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="out_features should be a multiple of 2 processes; given: 7"):
        ColumnParallelLinear(4, 7)
    with pytest.raises(ValueError, match="in_features should be a multiple of 2 processes; given: 7"):
        RowParallelLinear(7, 4)


def _columns(rank: int) -> None:
    whole, x, dy = _whole(12, 8)
    expected = whole(x)
    expected.backward(dy)
    torch.manual_seed(7)
    layer, mine = ColumnParallelLinear(12, 8, bias=True), x.detach().clone().requires_grad_()
    at = {"at": Coordinates(tp=rank), "of": 2}
    y = layer(mine)
    y.backward(shard(dy, **at, dim=1))
    assert same_bits(y, shard(expected, **at, dim=1).contiguous())
    torch.testing.assert_close(mine.grad, x.grad, atol=1e-5, rtol=1e-5)
    assert same_bits(layer.weight.grad, shard(whole.weight.grad, **at, dim=0))
    torch.testing.assert_close(layer.bias.grad, shard(whole.bias.grad, **at, dim=0))


def _rows(rank: int) -> None:
    whole, x, dy = _whole(12, 8)
    expected = whole(x)
    expected.backward(dy)
    torch.manual_seed(7)
    layer, at = RowParallelLinear(12, 8, bias=True), {"at": Coordinates(tp=rank), "of": 2}
    mine = shard(x.detach(), **at, dim=1).clone().requires_grad_()
    y = layer(mine)
    y.backward(dy)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)  # summed once, bias once
    assert same_bits(mine.grad, shard(x.grad, **at, dim=1).contiguous())
    torch.testing.assert_close(layer.weight.grad, shard(whole.weight.grad, **at, dim=1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.bias.grad, whole.bias.grad)


def _both(rank: int) -> None:
    """An MLP as it is cut in practice: one sum forward, one backward."""
    torch.manual_seed(3)
    first, second = Linear(12, 16), Linear(16, 6)
    x, dy = drawn(4, 12).requires_grad_(), drawn(4, 6, seed=1)
    expected = second(torch.relu(first(x)))
    expected.backward(dy)
    column, row, mine = ColumnParallelLinear(12, 16), RowParallelLinear(16, 6), x.detach().clone().requires_grad_()
    column.load(first.weight)
    row.load(second.weight)
    y = row(torch.relu(column(mine)))
    y.backward(dy)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.grad, x.grad, atol=1e-5, rtol=1e-5)


# -- the reference model


def pair(**changes):
    config = replace(SMALL, **changes)
    return [Trainer(replace(config, kernels=kernels), device="cpu") for kernels in ("triton", "torch")]


def test_both_models_have_the_same_parameters_to_the_bit():
    ours, theirs = (trainer.model.state_dict() for trainer in pair(tied=False))
    assert list(ours) == list(theirs)
    assert all(same_bits(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_of_the_model_agree(tied):
    ours, theirs = pair(tied=tied)
    tokens = theirs.corpus.sequences(torch.arange(4))
    before = {name: each.launches for name, each in launch.counts().items()}
    losses = []
    for trainer in (ours, theirs):
        loss = trainer.forward(tokens[:, :-1], tokens[:, 1:])
        trainer.backward(loss)
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3, msg=name)
    launched = {name for name, each in launch.counts().items() if each.launches > before.get(name, 0)}
    assert launched >= {
        "gemm.pointers", "rmsnorm.forward", "rmsnorm.backward", "attention.forward", "attention.dkdv", "attention.dq",
        "swiglu.forward", "swiglu.backward", "embedding.forward", "embedding.backward", "cross_entropy.both",
    }  # fmt: skip
    assert any(name.startswith("rope") for name in launched)


def test_gradients_under_autocast_and_a_scaled_loss_agree():
    ours, theirs = pair(dtype="float16")
    tokens = theirs.corpus.sequences(torch.arange(4))
    for trainer in (ours, theirs):
        trainer.backward(trainer.forward(tokens[:, :-1], tokens[:, 1:]))
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        scale = other.grad.abs().max().item()
        torch.testing.assert_close(one.grad, other.grad, atol=1e-2 * scale, rtol=2e-2, msg=name)


def test_a_scaled_loss_keeps_small_gradients_of_fp16_logits():
    """1e-7 times 2^12 is exact enough in fp16 and 1e-7 alone is not: the scale has to come first."""
    logits, target = (2 * drawn(4, 512)).half(), torch.arange(4)
    found = []
    for kernels in ("triton", "torch"):
        given = logits.clone().requires_grad_()
        (2**12 * operations(kernels, given).cross_entropy(given, target)).backward()
        found.append(given.grad)
    assert (found[1] != 0).all()
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-2)


def test_a_checkpoint_moves_between_the_two(tmp_path, capsys):
    config = replace(SMALL, checkpoint_every=2, steps=3)
    Trainer(replace(config, kernels="torch"), out=tmp_path, device="cpu").run()
    ours = Trainer(replace(config, kernels="triton"), out=tmp_path, device="cpu")
    ours.resume()
    theirs = Trainer(replace(config, kernels="torch"), out=tmp_path, device="cpu")
    theirs.resume()
    assert ours.step == theirs.step == 2
    ours.run()
    theirs.run()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_a_sequence_of_the_model_has_the_same_logits_alone():
    torch.manual_seed(0)
    model = Llama(replace(SMALL, kernels="triton"))
    tokens = torch.randint(0, 32, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(tokens)
        assert same_bits(model(tokens[1:2]), whole[1:2])
        assert same_bits(model(tokens[:, :7]), whole[:, :7])
