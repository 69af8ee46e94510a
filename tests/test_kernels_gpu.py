"""What only a GPU can show about the kernels: bits over tiles and schedules, binaries, sizes past 2^31, no waiting.

`python -m pytest tests/test_kernels_gpu.py`; skipped where there is no CUDA device.
"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from brickprof.kernels import adamw, attention, cross_entropy, gemm, logprob, rmsnorm, silu, statistics, swiglu
from brickprof.operators import launch
from brickprof.operators.operator import all_operators


def normal(*shape, dtype=torch.bfloat16, seed=0):
    draw = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=draw, device="cuda").to(dtype)


def raw(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(raw(a), raw(b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (16, 11008, 4096), (100, 4096, 11008), (333, 1000, 1032)])
def test_every_tile_gives_the_same_bits(m, n, k, dtype):
    x, w = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1)
    first = gemm.product(a=x, b=w.T, tile=gemm.LARGE)
    for tile in gemm.TILES:
        assert same_bits(gemm.product(a=x, b=w.T, tile=tile), first), tile


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "k"), [(12288, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (32000, 4096)])
def test_a_row_does_not_feel_its_batch(n, k, dtype):
    x, w = normal(512, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1)
    whole = gemm.gemm(x=x, w=w)
    assert same_bits(gemm.gemm(x=x[:1], w=w), whole[:1])
    assert same_bits(gemm.gemm(x=x[511:], w=w), whole[511:])
    parts = torch.cat([gemm.gemm(x=x[:100], w=w), gemm.gemm(x=x[100:256], w=w)])
    assert same_bits(parts, whole[:256])
    padded = torch.cat([x[:100], torch.full_like(x[:28], float("nan"))])
    assert same_bits(gemm.gemm(x=padded, w=w)[:100], whole[:100])


def test_the_gradient_of_a_row_does_not_feel_its_batch():
    dy, w = normal(256, 4096), normal(4096, 4096, seed=1)
    assert same_bits(gemm.dgrad(dy=dy[7:8], w=w), gemm.dgrad(dy=dy, w=w)[7:8])


@pytest.mark.parametrize("rows", [1, 100, 256, 1000])
def test_padding_leaves_the_gradient_of_weights_as_it_was(rows):
    dy, x = normal(rows, 512), normal(rows, 768, seed=1)
    padding = torch.zeros(300, 512, device="cuda", dtype=dy.dtype), normal(300, 768, seed=2)
    padded = gemm.wgrad(dy=torch.cat([dy, padding[0]]), x=torch.cat([x, padding[1]]))
    assert same_bits(padded, gemm.wgrad(dy=dy, x=x))


def test_views_that_the_accelerator_cannot_read_have_the_same_bits():
    base, w = normal(64, 1025), normal(512, 1024, seed=1)
    view = base[:, 1:]
    assert view.data_ptr() % 16 and not view.is_contiguous()
    assert same_bits(gemm.gemm(x=view, w=w), gemm.gemm(x=view.contiguous(), w=w))


def test_one_binary_for_all_shapes():
    kernels = ("gemm.tma", "swiglu.forward", "rmsnorm.forward", "attention.forward")

    def work(rows):
        gemm.product(a=normal(rows, 1024), b=normal(512, 1024).T, tile=gemm.LARGE)
        swiglu.swiglu(gate=normal(rows, 64), up=normal(rows, 64))
        rmsnorm.rmsnorm(x=normal(rows, 256), weight=normal(256))
        attention.attention(q=normal(1, 2, rows, 64), k=normal(1, 2, rows, 64), v=normal(1, 2, rows, 64))

    work(512)
    before = launch.counts()
    for rows in (1, 2, 17, 128, 1000, 4096):
        work(rows)
    after = launch.counts()
    assert {name: after[name].binaries for name in kernels} == {name: before[name].binaries for name in kernels}
    assert all(after[name].launches == before[name].launches + 6 for name in kernels)


@pytest.mark.parametrize("name", sorted(all_operators()))
def test_two_runs_have_the_same_bits(name):
    operator = all_operators()[name]
    given = operator.inputs(operator.large[-1], torch.bfloat16, torch.Generator("cuda").manual_seed(3))

    def once():
        leaves = {
            key: value.detach().clone().requires_grad_() if key in operator.differentiable else value
            for key, value in given.items()
        }
        out = operator.function(**leaves)
        upstream = normal(*out.shape, dtype=out.dtype, seed=4) if out.ndim else torch.tensor(1.5, device="cuda")
        return [out.detach(), *torch.autograd.grad(out, [leaves[key] for key in operator.differentiable], upstream)]

    for one, other in zip(once(), once(), strict=True):
        assert same_bits(one.contiguous(), other.contiguous())


@pytest.mark.parametrize("chunk", [1, 100, 128, 1000])
def test_a_prompt_in_chunks_has_the_same_bits(chunk):
    q, k, v = (normal(1, 4, 2000, 128, seed=seed) for seed in range(3))
    whole = attention.attention(q=q, k=k, v=v)
    at = range(0, 2000, chunk) if chunk > 1 else (0, 1, 63, 64, 65, 1023, 1999)
    for i in at:
        end = min(i + chunk, 2000)
        part = attention.attention(q=q[:, :, i:end], k=k[:, :, :end], v=v[:, :, :end])
        assert same_bits(part.contiguous(), whole[:, :, i:end].contiguous()), i


def test_more_than_two_to_the_31_elements():
    x = torch.zeros(2**31 + 5000, dtype=torch.bfloat16, device="cuda")
    x[-1], x[2**31] = 3.0, -1.0
    assert silu.silu(x=x)[-1].item() == pytest.approx(2.857, rel=1e-2)
    table = statistics.as_dicts(statistics.statistics([x]))[0]
    assert table["absmax"] == 3.0 and table["l2"] == pytest.approx(10**0.5) and table["nan"] == 0
    logits = x[: 2**31].view(2**14, 2**17)
    target = torch.zeros(2**14, dtype=torch.int64, device="cuda")
    chosen = logprob.logprob(logits=logits, target=target)
    assert torch.allclose(chosen, torch.full_like(chosen, -17 * 0.6931472), atol=1e-4)


def test_statistics_of_a_model_match_torch_and_wait_for_nothing():
    tensors = [normal(*shape) for shape in ((1000, 333), (77,), (1,), (65536,), (3, 5, 7))]
    tensors[0][5, 5], tensors[1][3], tensors[3][9] = float("nan"), float("-inf"), 1e35
    table = statistics.Statistics()
    table(tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = table(tensors)
        cross_entropy.cross_entropy(
            logits=normal(64, 1000).requires_grad_(), target=torch.zeros(64, dtype=torch.int64, device="cuda")
        ).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = statistics.reference(tensors)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-12)
    assert torch.equal(found[:, 6], expected[:, 6])


def test_statistics_again_go_straight_into_memory_of_the_host():
    made = statistics.Statistics()
    tensors = [torch.randn(shape, device="cuda") for shape in ((1000, 33), (7,), (300_000,))]
    made(tensors)
    page = torch.zeros(len(tensors) * 9, dtype=torch.float64, pin_memory=True)
    table, addresses = page[: 8 * len(tensors)].view(-1, 8), page.numpy()[8 * len(tensors) :].view("int64")
    tensors[0][3, 5] = torch.nan
    assert made.again(tensors, page, addresses)
    torch.cuda.synchronize()
    assert torch.equal(table, made(tensors).cpu()) and table[0, 0] == 1
    moved = [tensors[0].clone().nan_to_num(5.0), *tensors[1:]]
    assert made.again(moved, page, addresses)
    torch.cuda.synchronize()
    assert torch.equal(table, statistics.Statistics()(moved).cpu()) and table[0, 0] == 0
    assert torch.equal(made(tensors)[0, :1].cpu(), torch.ones(1, dtype=torch.float64))  # where these lie is known still
    assert not made.again([tensors[0][:10], *tensors[1:]], page, addresses)
    assert not made.again([each.bfloat16() for each in tensors], page, addresses)
    apart = torch.randn(2000, 33, device="cuda")[::2]
    assert not made.again([apart, *tensors[1:]], page, addresses)
    odd = torch.randn(33_001, device="cuda")[1:].view(1000, 33)
    assert not made.again([odd, *tensors[1:]], page, addresses)


def test_statistics_of_gradients_are_sent_for_by_their_addresses_alone():
    made = statistics.Statistics()
    tensors = [torch.randn(shape, device="cuda") for shape in ((1000, 33), (7,), (300_000,))]
    tensors[0] = tensors[0].t()  # dense, and not contiguous
    made(tensors)
    page = torch.zeros(len(tensors) * 9, dtype=torch.float64, pin_memory=True)
    table, room = page[: 8 * len(tensors)].view(-1, 8), memoryview(page.numpy()[8 * len(tensors) :]).cast("B")
    launch = made.settled(tensors)
    for number in range(3):
        moved = [each.clone() for each in tensors]
        moved[1][number] = torch.nan
        before = torch.cuda.memory_allocated()
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert launch(moved, page.data_ptr(), room)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_allocated() == before
        torch.cuda.synchronize()
        assert torch.equal(table, statistics.Statistics()(moved).cpu()) and table[1].tolist()[:2] == [1, 0]
    assert not launch([tensors[0][:10], *tensors[1:]], page.data_ptr(), room)
    assert not launch([each.bfloat16() for each in tensors], page.data_ptr(), room)
    odd = torch.randn(33_001, device="cuda")[1:].view(1000, 33)
    assert not launch([odd, *tensors[1:]], page.data_ptr(), room)
    assert made.settled([tensors[0][:10], *tensors[1:]]) is None
    assert made.settled([each.bfloat16() for each in tensors]) is None


def test_small_tensors_are_gathered_into_memory_of_the_host():
    from brickprof.kernels import _scalars

    _scalars.warm(0)
    gather = _scalars.Gather(0)
    values = [torch.tensor([float(number) / 3], device="cuda") for number in range(9)]
    values[4].fill_(torch.nan)
    values.append(torch.randn(700, device="cuda"))
    page = torch.zeros(3 * _scalars.ROOM + 1024, dtype=torch.int64, pin_memory=True)
    place = 0
    for number, each in enumerate(values):
        for column, word in enumerate((each.data_ptr(), each.numel(), place)):
            page[column * _scalars.ROOM + number] = word
        place += each.numel()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gather(page)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    found = page[3 * _scalars.ROOM :].view(torch.float32)
    assert same_bits(found[:place], torch.cat(values).cpu())
    assert not found[place:].any()


def test_adamw_is_within_eight_units_of_the_last_place_of_torch():
    """One update from the same moments, against what the update itself is made of: parameter and rate."""
    settings = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "step": 7}

    def problem():
        made = [normal(1000, 33, dtype=torch.float32, seed=seed) for seed in range(4)]
        return {
            "parameters": [made[0]], "gradients": [made[1]], "exp_avg": [made[2]], "exp_avg_sq": [made[3].square()],
        }  # fmt: skip

    ours, gold = problem(), {name: [each[0].double()] for name, each in problem().items()}
    adamw.Update()(**ours, **settings)
    m = gold["exp_avg"][0] + 0.1 * (gold["gradients"][0] - gold["exp_avg"][0])
    v = 0.999 * gold["exp_avg_sq"][0] + 0.001 * gold["gradients"][0].square()
    root = v.sqrt() / (1 - 0.999**7) ** 0.5 + 1e-8
    theta = gold["parameters"][0] * (1 - 1e-3) - 1e-2 / (1 - 0.9**7) * m / root
    for found, expected, scale in (
        (ours["parameters"][0], theta, theta.abs() + 1e-2 * (m / root).abs()),
        (ours["exp_avg"][0], m, gold["exp_avg"][0].abs() + gold["gradients"][0].abs()),
        (ours["exp_avg_sq"][0], v, v),
    ):
        assert ((found.double() - expected).abs() / scale).max() <= 8 * torch.finfo(torch.float32).eps


def test_a_kernel_and_a_tensor_on_the_host_is_one_clear_error():
    with pytest.raises(launch.CannotLaunch, match="runs on CUDA devices"):
        rmsnorm.rmsnorm(x=torch.randn(2, 8), weight=torch.ones(8))
    with launch.fallback():
        rmsnorm.rmsnorm(x=torch.randn(2, 8), weight=torch.ones(8))
    assert launch.fallbacks()["rmsnorm"] >= 1


def test_a_run_knows_how_long_kernels_take_on_the_device(tmp_path):
    import brickprof

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm = torch.nn.Linear(256, 512), rmsnorm.RMSNorm(512)

        def forward(self, x):
            return self.norm(self.body(x)).square().mean()

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with brickprof.attach(net, optimizer, out=tmp_path) as session:
        for step in range(6):
            optimizer.zero_grad()
            net(normal(64, 256, dtype=torch.float32, seed=step)).backward()
            optimizer.step()
            torch.cuda.synchronize()
    spans = brickprof.load(session.folder).spans
    kernels = spans[spans.brick.astype(str).str.contains("rmsnorm")]
    assert len(kernels) >= 6 and (kernels.device_ns.dropna() > 0).sum() >= 6
