"""The obligations that the contracts of CONTRACTS.md put on each operation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import drawn, same_bits, ulps

from brickprof.kernels.attention import attention
from brickprof.kernels.attention import reference as attention_reference
from brickprof.kernels.cross_entropy import cross_entropy
from brickprof.kernels.embedding import embedding
from brickprof.kernels.gelu import gelu
from brickprof.kernels.gemm import dgrad, gemm, wgrad
from brickprof.kernels.linear_logprob import linear_logprob
from brickprof.kernels.lm_head import lm_head
from brickprof.kernels.logprob import logprob
from brickprof.kernels.rmsnorm import RMSNorm, add_rmsnorm, rmsnorm
from brickprof.kernels.rope import rope, tables
from brickprof.kernels.silu import silu
from brickprof.kernels.softmax import softmax
from brickprof.kernels.swiglu import swiglu
from brickprof.kernels.transpose import transpose

few = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**31)
numbers = st.floats(-50, 50, width=32)

# -- softmax


@few
@given(st.lists(numbers, min_size=1, max_size=40))
def test_sm_001_and_002_rows_sum_to_one_and_lie_between(values):
    y = softmax(x=torch.tensor([values]))
    assert y.double().sum().item() == pytest.approx(1, abs=1e-6)
    assert (y >= 0).all() and (y <= 1).all()
    if max(values) - min(values) < 80:  # beyond, exp is below the smallest fp32
        assert (y > 0).all()


@few
@given(st.lists(numbers, min_size=2, max_size=40))
def test_sm_003_order_is_kept(values):
    y = softmax(x=torch.tensor([values]))[0].tolist()
    for one, other in zip(range(len(values)), range(1, len(values)), strict=False):
        if values[one] < values[other]:
            assert y[one] <= y[other]


@few
@given(seeds, st.floats(-100, 100, width=32))
def test_sm_004_a_shift_changes_nothing(seed, by):
    x = drawn(3, 17, seed=seed)
    torch.testing.assert_close(softmax(x=x + by), softmax(x=x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("value", [0.0, -1000.0, 1000.0, 1e30])
def test_sm_005_one_element_is_one_and_a_constant_is_one_over_n(value):
    assert softmax(x=torch.tensor([[value]])).item() == 1.0
    for n in (2, 7, 33):
        torch.testing.assert_close(softmax(x=torch.full((1, n), value)), torch.full((1, n), 1 / n), atol=1e-7, rtol=0)


def test_sm_006_a_range_of_a_thousand_stays_finite():
    y = softmax(x=torch.linspace(-1000, 1000, 65)[None])
    assert torch.isfinite(y).all() and y.sum().item() == pytest.approx(1, abs=1e-6)
    assert y.argmax() == 64


def test_softmax_within_eight_units():
    x = drawn(8, 200)
    assert ulps(softmax(x=x), torch.softmax(x.double(), -1)) <= 8


def test_softmax_of_a_masked_row_and_of_nan():
    inf = float("inf")
    y = softmax(x=torch.tensor([[0.0, -inf, 0.0], [0.0, 1.0, float("nan")], [0.0, 1.0, 2.0]]))
    assert y[0].tolist() == [0.5, 0.0, 0.5]
    assert y[1].isnan().all()
    assert torch.isfinite(y[2]).all()


# -- rmsnorm


@few
@given(seeds, st.sampled_from([-8.0, -1.0, 0.5, 3.0, 1000.0]))
def test_rmsnorm_is_blind_to_scale(seed, by):
    x, weight = drawn(3, 40, seed=seed), torch.ones(40)
    scaled, plain = rmsnorm(x=by * x, weight=weight, eps=0.0), rmsnorm(x=x, weight=weight, eps=0.0)
    torch.testing.assert_close(scaled, math.copysign(1, by) * plain, atol=1e-5, rtol=1e-5)


@few
@given(seeds)
def test_rmsnorm_of_a_row_has_an_rms_of_one(seed):
    y = rmsnorm(x=5 * drawn(4, 64, seed=seed), weight=torch.ones(64))
    torch.testing.assert_close(y.double().square().mean(-1).sqrt(), torch.ones(4).double(), atol=1e-4, rtol=0)


def test_rmsnorm_of_zero_is_zero_with_a_finite_gradient():
    x, weight = torch.zeros(2, 24, requires_grad=True), torch.ones(24, requires_grad=True)
    y = rmsnorm(x=x, weight=weight)
    y.backward(drawn(2, 24))
    assert (y == 0).all()
    assert torch.isfinite(x.grad).all() and (weight.grad == 0).all()


def test_rmsnorm_within_four_units():
    x, weight = drawn(6, 100), 1 + 0.1 * drawn(100, seed=1)
    wide = x.double()
    gold = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert ulps(rmsnorm(x=x, weight=weight), gold) <= 4


def test_rmsnorm_with_a_residual_is_the_sum_and_then_the_norm():
    x, residual, weight = drawn(5, 48), drawn(5, 48, seed=1), 1 + drawn(48, seed=2)
    given = [each.clone().requires_grad_() for each in (x, residual, weight)]
    plain = [each.clone().requires_grad_() for each in (x, residual, weight)]
    y, h = add_rmsnorm(x=given[0], residual=given[1], weight=given[2])
    both = plain[0] + plain[1]
    expected = rmsnorm(x=both, weight=plain[2])
    assert same_bits(y, expected) and same_bits(h, both)
    dy, dh = drawn(5, 48, seed=3), drawn(5, 48, seed=4)
    torch.autograd.backward([y, h], [dy, dh])
    torch.autograd.backward([expected, both], [dy, dh])
    for ours, theirs in zip(given, plain, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


def test_only_one_output_of_the_residual_norm_may_be_used():
    for number in (0, 1):
        x, weight = drawn(2, 16).requires_grad_(), torch.ones(16, requires_grad=True)
        add_rmsnorm(x=x, residual=drawn(2, 16, seed=1), weight=weight)[number].sum().backward()
        assert torch.isfinite(x.grad).all() and (x.grad != 0).any()


def test_the_module_is_torch_s():
    ours, theirs = RMSNorm(32, eps=1e-5), torch.nn.RMSNorm(32, eps=1e-5)
    theirs.load_state_dict(ours.state_dict())
    x = drawn(2, 3, 32)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=1e-5)


# -- attention and gqa


def qkv(heads, groups, length=20, channels=16, batch=2, seed=0):
    return {
        "q": drawn(batch, heads, length, channels, seed=seed),
        "k": drawn(batch, groups, length, channels, seed=seed + 1),
        "v": drawn(batch, groups, length, channels, seed=seed + 2),
    }


def test_attention_lies_within_the_values_it_saw():
    given = qkv(4, 2)
    o = attention(**given)
    seen = given["v"].repeat_interleave(2, dim=1)
    low, high = seen.cummin(dim=2).values, seen.cummax(dim=2).values
    assert (o >= low - 1e-5).all() and (o <= high + 1e-5).all()


def test_rows_of_attention_sum_to_one():
    given = qkv(4, 2) | {"v": torch.ones(2, 2, 20, 16)}
    torch.testing.assert_close(attention(**given), torch.ones(2, 4, 20, 16), atol=1e-6, rtol=0)


def test_one_group_a_head_is_ordinary_attention():
    given = qkv(3, 3)
    expected = F.scaled_dot_product_attention(given["q"], given["k"], given["v"], is_causal=True)
    torch.testing.assert_close(attention(**given), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_are_repeated_heads_to_the_bit(groups):
    given = qkv(4, groups)
    wide = {"q": given["q"], **{name: given[name].repeat_interleave(4 // groups, 1) for name in "kv"}}
    assert same_bits(attention(**given), attention(**wide))


def test_scores_are_divided_by_the_root_of_the_channels():
    given = qkv(1, 1, channels=64, batch=1)
    ours = attention(**given)
    torch.testing.assert_close(ours, attention_reference(**given), atol=1e-5, rtol=1e-4)
    by_all = given | {"q": given["q"] / math.sqrt(64)}  # 1/d in place of 1/sqrt(d)
    assert (ours - attention_reference(**by_all)).abs().max() > 1e-2


def test_the_first_row_sees_the_first_value_only_and_none_sees_the_future():
    given = qkv(2, 1)
    o = attention(**given)
    torch.testing.assert_close(o[:, :, 0], given["v"][:, :, 0].expand(2, 2, 16), atol=1e-6, rtol=0)
    later = {name: each.clone() for name, each in given.items()}
    for name in "kv":
        later[name][:, :, 11:] = float("nan") if name == "k" else 1e30
    later["k"][:, :, 11:] = 1e30
    assert same_bits(attention(**later)[:, :, :11], o[:, :, :11])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("ahead", [0, 1, 19])
def test_queries_stand_at_the_end_of_the_keys(length, ahead):
    q = drawn(1, 2, length, 16).requires_grad_()
    k, v = (drawn(1, 1, length + ahead, 16, seed=seed).requires_grad_() for seed in (1, 2))
    do = drawn(1, 2, length, 16, seed=3)
    ours, theirs = attention(q=q, k=k, v=v), attention_reference(q=q, k=k, v=v)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for one, other in zip(
        torch.autograd.grad(ours, (q, k, v), do), torch.autograd.grad(theirs, (q, k, v), do), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_scores_of_a_thousand_stay_finite():
    given = qkv(1, 1)
    o = attention(q=100 * given["q"], k=100 * given["k"], v=given["v"])
    assert torch.isfinite(o).all()


# -- rope


@few
@given(seeds)
def test_rope_keeps_norms_and_leaves_position_zero_alone(seed):
    x = drawn(2, 2, 9, 16, seed=seed)
    cosine, sine = tables(length=9, channels=16)
    y = rope(x=x, cosine=cosine, sine=sine)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), atol=1e-5, rtol=1e-5)
    assert same_bits(y[:, :, 0], x[:, :, 0])


@few
@given(seeds, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_rope_depends_on_the_distance_only(seed, m, n, by):
    cosine, sine = tables(length=20, channels=16)
    q, k = (drawn(16, seed=seed + i).expand(20, 16).contiguous() for i in (0, 1))
    q, k = (rope(x=each, cosine=cosine, sine=sine) for each in (q, k))
    assert (q[m] @ k[n]).item() == pytest.approx((q[m + by] @ k[n + by]).item(), abs=1e-4)


def test_rope_back_is_the_other_turn():
    x = drawn(1, 7, 8).requires_grad_()
    cosine, sine = tables(length=7, channels=8)
    dy = drawn(1, 7, 8, seed=1)
    (dx,) = torch.autograd.grad(rope(x=x, cosine=cosine, sine=sine), x, dy)
    assert same_bits(dx, rope(x=dy, cosine=cosine, sine=-sine))


# -- gelu, silu, swiglu

EVERYWHERE = torch.linspace(-10, 10, 4001)


def test_gelu_is_its_approximation_and_near_the_real_one():
    assert gelu(x=torch.zeros(1)).item() == 0
    y, wide = gelu(x=EVERYWHERE), EVERYWHERE.double()
    assert (y - F.gelu(wide, approximate="tanh")).abs().max() < 1e-6
    assert (y - F.gelu(wide)).abs().max() < 5e-3  # the approximation itself is 4.7e-4 away at |x| = 2.3


def test_silu_is_bounded_below_and_rises_where_x_is_positive():
    y = silu(x=EVERYWHERE)
    assert y.min() > -0.279 and (y[EVERYWHERE > 0].diff() > 0).all()
    assert silu(x=torch.zeros(1)).item() == 0


@pytest.mark.parametrize("function", [silu, gelu])
def test_far_out_it_is_the_line_or_zero(function):
    x = torch.tensor([-1e4, -200.0, -100.0, 100.0, 200.0, 1e4], requires_grad=True)
    y = function(x=x)
    y.sum().backward()
    torch.testing.assert_close(y, torch.relu(x), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.grad, (x > 0).float(), atol=1e-6, rtol=0)


@few
@given(seeds)
def test_swiglu_fused_is_swiglu_in_parts(seed):
    gate, up = 3 * drawn(3, 50, seed=seed), drawn(3, 50, seed=seed + 1)
    torch.testing.assert_close(swiglu(gate=gate, up=up), silu(x=gate) * up, atol=1e-6, rtol=1e-6)


def test_swiglu_of_zero_is_zero():
    some, none = drawn(2, 9), torch.zeros(2, 9)
    for gate, up in ((none, some), (some, none), (none, none)):
        assert (swiglu(gate=gate, up=up) == 0).all()


# -- the product


@few
@given(seeds)
def test_a_product_with_the_identity_is_the_matrix(seed):
    x = drawn(7, 40, seed=seed)
    assert same_bits(gemm(x=x, w=torch.eye(40)), x)
    assert same_bits(gemm(x=torch.eye(40), w=x), x.T.contiguous())


@few
@given(seeds)
def test_products_distribute_and_associate(seed):
    x, y = drawn(9, 35, seed=seed), drawn(9, 35, seed=seed + 1)
    w, u = drawn(20, 35, seed=seed + 2) / 6, drawn(11, 20, seed=seed + 3) / 5
    torch.testing.assert_close(gemm(x=x + y, w=w), gemm(x=x, w=w) + gemm(x=y, w=w), atol=1e-4, rtol=1e-4)
    left, right = gemm(x=gemm(x=x, w=w), w=u), gemm(x=x, w=gemm(x=u, w=w.T.contiguous()))
    torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (64, 64, 32), (65, 63, 33), (3, 130, 100)])
def test_products_of_all_three_kinds(m, n, k):
    x, w, dy = drawn(m, k), drawn(n, k, seed=1), drawn(m, n, seed=2)
    for ours, theirs in (
        (gemm(x=x, w=w), x.double() @ w.T.double()),
        (dgrad(dy=dy, w=w), dy.double() @ w.double()),
        (wgrad(dy=dy, x=x), dy.T.double() @ x.double()),
    ):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-4)


def test_fp32_is_not_tf32():
    x, w = torch.tensor([[1 + 2.0**-20] * 16]), torch.eye(16)
    assert same_bits(gemm(x=x, w=w), x)


def test_a_batch_split_in_two_has_the_same_bits():
    x, w = drawn(25, 40), drawn(17, 40, seed=1)
    whole = gemm(x=x, w=w)
    assert same_bits(torch.cat([gemm(x=x[:10], w=w), gemm(x=x[10:], w=w)]), whole)
    assert same_bits(gemm(x=F.pad(x, (0, 0, 0, 3)), w=w)[:25], whole)


# -- log probabilities and the loss


@few
@given(seeds, st.sampled_from([1, 2, 50, 300]))
def test_the_loss_is_log_softmax_and_then_nll(seed, vocabulary):
    logits = 4 * drawn(6, vocabulary, seed=seed)
    target = torch.randint(0, vocabulary, (6,), generator=torch.Generator().manual_seed(seed))
    loss = cross_entropy(logits=logits, target=target)
    assert loss >= 0
    expected = F.nll_loss(torch.log_softmax(logits.double(), -1), target)
    assert abs(loss.item() - expected.item()) <= 1e-6 or ulps(loss, expected) <= 8
    chosen = logprob(logits=logits, target=target)
    assert (chosen <= 1e-6).all() and torch.isfinite(chosen).all()


def test_the_loss_is_the_mean_of_the_logprobs_with_and_without_a_gradient():
    logits, target = 2 * drawn(9, 70), torch.arange(9)
    with_gradient = cross_entropy(logits=logits.clone().requires_grad_(), target=target)
    assert same_bits(with_gradient, cross_entropy(logits=logits, target=target))
    torch.testing.assert_close(with_gradient.detach(), -logprob(logits=logits, target=target).mean(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scale", [1.0, 3.5])
def test_the_gradient_is_scaled_by_what_comes_from_above(reduction, scale):
    logits, target = drawn(6, 40).requires_grad_(), torch.tensor([0, 39, -100, 5, 5, -100])
    ours = cross_entropy(logits=logits, target=target, reduction=reduction)
    theirs = F.cross_entropy(logits, target, reduction=reduction)
    (expected,) = torch.autograd.grad(theirs, logits, torch.tensor(scale))
    (found,) = torch.autograd.grad(ours, logits, torch.tensor(scale))
    torch.testing.assert_close(ours.detach(), theirs.detach(), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("ignore", [-100, 3, 1_000_000])
def test_ignored_rows_give_nothing(ignore):
    logits, target = drawn(4, 30).requires_grad_(), torch.tensor([1, ignore, 2, ignore])
    chosen = logprob(logits=logits, target=target, ignore_index=ignore)
    (gradient,) = torch.autograd.grad(chosen, logits, drawn(4, seed=1))
    assert (chosen[[1, 3]] == 0).all() and (gradient[[1, 3]] == 0).all()
    assert (chosen[[0, 2]] < 0).all() and (gradient[[0, 2]] != 0).any()
    (gradient,) = torch.autograd.grad(cross_entropy(logits=logits, target=target, ignore_index=ignore), logits)
    assert (gradient[[1, 3]] == 0).all() and (gradient[[0, 2]] != 0).any()


def test_a_loss_over_ignored_rows_only_is_torch_s():
    logits, target = drawn(3, 30).requires_grad_(), torch.full((3,), -100)
    ours = cross_entropy(logits=logits, target=target)
    assert ours.isnan() and F.cross_entropy(logits, target).isnan()
    (gradient,) = torch.autograd.grad(ours, logits)
    assert (gradient == 0).all()


@pytest.mark.parametrize("wrong", [-1, 30, 31, 2**40, -(2**40)])
def test_a_target_outside_the_vocabulary_is_nan_in_its_row_alone(wrong):
    logits, target = drawn(3, 30).requires_grad_(), torch.tensor([1, wrong, 2])
    chosen = logprob(logits=logits, target=target)
    (gradient,) = torch.autograd.grad(chosen, logits, torch.ones(3))
    assert chosen.isnan().tolist() == [False, True, False]
    assert gradient.isnan().all(1).tolist() == [False, True, False]
    assert torch.isfinite(gradient[[0, 2]]).all()
    loss = cross_entropy(logits=logits, target=target)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isnan() and gradient.isnan().all(1).tolist() == [False, True, False]


def test_logits_of_a_thousand_and_masked_ones():
    inf = float("inf")
    logits = torch.tensor([[1000.0, -1000.0, 0.0], [-inf, 0.0, 0.0], [-1000.0, -1000.0, -1000.0]])
    chosen = logprob(logits=logits, target=torch.tensor([0, 1, 2]))
    torch.testing.assert_close(chosen, torch.tensor([0.0, -math.log(2), -math.log(3)]), atol=1e-5, rtol=0)


def test_nan_and_inf_in_logits_reach_the_loss():
    for value in (float("nan"), float("inf")):
        logits = drawn(2, 10)
        logits[0, 3] = value
        assert not torch.isfinite(logprob(logits=logits, target=torch.tensor([1, 1]))[0])
        assert torch.isfinite(logprob(logits=logits, target=torch.tensor([1, 1]))[1])


def test_a_second_backward_of_the_loss_is_refused():
    logits = drawn(2, 10).requires_grad_()
    loss = cross_entropy(logits=logits, target=torch.tensor([1, 2]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward"):
        loss.backward()


def test_a_head_is_a_product_to_the_bit():
    x, w, dy = drawn(6, 24), drawn(70, 24, seed=1), drawn(6, 70, seed=2)
    given, plain = ([each.clone().requires_grad_() for each in (x, w)] for _ in range(2))
    logits, expected = lm_head(x=given[0], w=given[1]), gemm(x=plain[0], w=plain[1])
    logits.backward(dy)
    expected.backward(dy)
    assert same_bits(logits, expected)
    assert all(same_bits(ours.grad, theirs.grad) for ours, theirs in zip(given, plain, strict=True))


def test_logprobs_straight_from_hidden_states_have_the_same_bits():
    x, w, target = drawn(7, 24), drawn(50, 24, seed=1) / 5, torch.arange(7)
    assert same_bits(linear_logprob(x=x, w=w, target=target), logprob(logits=gemm(x=x, w=w), target=target))


# -- embedding and transpose


def test_repeated_tokens_add_up_in_order():
    tokens, table = torch.tensor([[2, 0, 2], [2, 5, 0]]), drawn(6, 20).requires_grad_()
    dy = drawn(2, 3, 20, seed=1)
    y = embedding(tokens=tokens, table=table)
    y.backward(dy)
    assert same_bits(y, table[tokens])
    rows = dy.reshape(6, 20)
    expected = torch.zeros(6, 20)
    expected[0], expected[2], expected[5] = rows[1] + rows[5], (rows[0] + rows[2]) + rows[3], rows[4]
    assert same_bits(table.grad, expected)


@pytest.mark.parametrize("wrong", [-1, 6, 2**40])
def test_a_token_outside_the_table_is_a_row_of_nan_without_a_gradient(wrong):
    table = drawn(6, 20).requires_grad_()
    y = embedding(tokens=torch.tensor([1, wrong, 1]), table=table)
    assert y.isnan().all(1).tolist() == [False, True, False]
    y.backward(torch.ones(3, 20))
    assert (table.grad[1] == 2).all() and table.grad.sum() == 40


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_transpose_moves_every_bit(dtype):
    shape = (2, 67, 70)
    size = torch.empty((), dtype=dtype).element_size()
    draw = torch.Generator().manual_seed(0)
    raw = torch.randint(-128, 128, (*shape[:-1], shape[-1] * size), dtype=torch.int8, generator=draw)
    x = raw.view(dtype)  # NaN payloads and signed zeros among them
    assert same_bits(transpose(x=x), x.transpose(1, 2).contiguous())
    assert same_bits(transpose(x=transpose(x=x)), x)
