"""Sizes and strides that changed places on their way into a kernel, and all the ways of giving them that are right."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import brickprof
from brickprof.capture import kernel_indices, shadows
from brickprof.capture.taps.triton_calls import Call
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.diagnosis import diagnose
from brickprof.rules import layouts, stride_names
from brickprof.rules.gemm_arguments import GemmArguments
from brickprof.rules.story import Story
from tests.making import Made

ROOT = Path(__file__).parents[1]
M, N, K = 64, 32, 16
BOUNDS = {
    "stride_am": ["M"], "stride_ak": ["K"], "stride_bk": ["K"], "stride_bn": ["N"], "stride_cm": ["M"],
    "stride_cn": ["N"],
}  # fmt: skip


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape)


def launch(
    tensors: dict[str, torch.Tensor], numbers: dict[str, int], bounds: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    arguments = [
        {"name": name, "shape": list(each.shape), "strides": list(each.stride())} for name, each in tensors.items()
    ]
    told = {"arguments": arguments, "sizes": numbers, "constants": {"BLOCK_M": 16}, "bounds": bounds or {}}
    return {"kernel": "matmul", "site": "train.py:40", "brick": 9, **told}


def product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bounds: dict[str, list[str]] | None = None, **changes: int
) -> dict[str, Any]:
    """A tiled product as everybody writes it: a (M, K) times b (K, N), with ``changes`` to what it is told."""
    told = {
        "M": a.shape[0], "N": b.shape[1], "K": a.shape[1], "stride_am": a.stride(0), "stride_ak": a.stride(1),
        "stride_bk": b.stride(0), "stride_bn": b.stride(1), "stride_cm": c.stride(0), "stride_cn": c.stride(1),
    }  # fmt: skip
    return launch({"a_ptr": a, "b_ptr": b, "c_ptr": c}, told | changes, bounds)


def plain(m: int = M, n: int = N, k: int = K, **changes: Any) -> dict[str, Any]:
    return product(tensor(m, k), tensor(k, n), tensor(m, n), **changes)


def judged(*launches: dict[str, Any], trained: bool = True) -> ContractResult:
    made = Made()
    if trained:
        made.healthy(4)
    for fields in launches:
        made.event("arguments", 2, **fields)
    return GemmArguments().judge(Story.of(made.run()), registry.library()[GemmArguments.contract])


# -- what is right


HEALTHY = {
    "plain": plain(),
    "bounded by the source": plain(bounds=BOUNDS),
    "transposed": product(tensor(K, M).t(), tensor(N, K).t(), tensor(N, M).t()),
    "padded rows": product(tensor(M, K + 8)[:, :K], tensor(K, N + 4)[:, :N], tensor(M, 2 * N)[:, N:]),
    "a row": product(tensor(1, K), tensor(K, N), tensor(1, N)),
    "tokens that the kernel flattens": launch(
        {"x": tensor(4, 16, K), "w": tensor(N, K), "y": tensor(4, 16, N)},
        {"M": 64, "N": N, "K": K, "stride_xm": K, "stride_xk": 1, "stride_wn": K, "stride_wk": 1, "stride_ym": N,
         "stride_yn": 1},
    ),
    "a convention of its own": launch(
        {"A": tensor(M, N), "B": tensor(N, K), "C": tensor(M, K)},
        {"M": M, "N": N, "K": K, "stride_am": N, "stride_an": 1, "stride_bn": K, "stride_bk": 1, "stride_cm": K,
         "stride_ck": 1},
    ),
    "names that contradict each other, put right by the source": launch(
        {"a": tensor(M, N), "b": tensor(N, K), "c": tensor(M, K)},
        {"M": M, "N": N, "K": K, "stride_am": N, "stride_ak": 1, "stride_bk": K, "stride_bn": 1, "stride_cm": K,
         "stride_cn": 1},
        {"stride_am": ["M"], "stride_ak": ["N"], "stride_bk": ["N"], "stride_bn": ["K"], "stride_cm": ["M"],
         "stride_cn": ["K"]},
    ),
    "batches": launch(
        {"a": tensor(8, M, K), "b": tensor(8, K, N), "c": tensor(8, M, N)},
        {"M": M, "N": N, "K": K, "stride_ab": M * K, "stride_am": K, "stride_ak": 1, "stride_bb": K * N,
         "stride_bk": N, "stride_bn": 1, "stride_cb": M * N, "stride_cm": N, "stride_cn": 1},
    ),
    "rows and columns": launch(
        {"input_ptr": tensor(M, N), "output_ptr": tensor(M, N)},
        {"n_rows": M, "n_cols": N, "input_row_stride": N, "input_col_stride": 1, "output_row_stride": N,
         "output_col_stride": 1},
        {"input_row_stride": ["n_rows"], "input_col_stride": ["n_cols"], "output_row_stride": ["n_rows"],
         "output_col_stride": ["n_cols"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields", HEALTHY.values(), ids=HEALTHY)
def test_what_is_told_as_it_is_passes_with_its_count(fields):
    result = judged(fields)
    assert result.verdict is Verdict.PASS, result
    assert "1 of 1 kind of launch, of 1 Triton kernel" in result.observed


UNTOLD = {
    "a square": plain(32, 32, 32),
    "a square with a stride of another": plain(32, 32, 32, stride_cm=33),
    "names that contradict each other": launch(
        {"a": tensor(M, N), "b": tensor(N, K), "c": tensor(M, K)},
        {"M": M, "N": N, "K": K, "stride_am": N, "stride_ak": 1, "stride_bk": K, "stride_bn": 1, "stride_cm": K,
         "stride_cn": 1},
    ),
    "a part of a buffer": product(tensor(M, K), tensor(K, N), tensor(M, N), M=50),
    "a buffer with room": launch(
        {"a": tensor(M, K), "b": tensor(K, N), "c": tensor(2 * M, 2 * N)},
        {"M": M, "N": N, "K": K, "stride_am": K, "stride_ak": 1, "stride_bk": N, "stride_bn": 1, "stride_cm": N,
         "stride_cn": 1},
    ),
    "a flat result": launch(
        {"a": tensor(M, K), "b": tensor(K, N), "c": tensor(M * N)},
        {"M": M, "N": N, "K": K, "stride_am": K + 1, "stride_ak": 1, "stride_cm": N, "stride_cn": 1},
    ),
    "sizes that are padded": plain(M=64, N=48, K=16),
    "strides in bytes": plain(n=16, k=64, stride_cm=64, stride_cn=4),
    "the strides of a slice for the whole": product(tensor(M, K), tensor(K, N), tensor(M, 2 * N), stride_cm=2 * N),
    "rows that repeat": plain(stride_cm=0),
    "a result that is written upright": plain(stride_cm=1, stride_cn=M, stride_bk=K),
    "a number that is nobody's": plain(stride_cm=19),
    "nothing": plain(m=0, stride_cm=K),
    "strides without a tensor": launch({"x": tensor(M, N)}, {"M": M, "N": N, "stride_m": K, "stride_n": K}),
    "strides that a tensor without a name of its own has": launch(
        {"c": tensor(M, N), "residual": tensor(M, K * 4)[:, :N], "a": tensor(M, K * 4)},
        {"M": M, "N": N, "stride_cm": K * 4, "stride_cn": 1},
    ),
    "a convolution": launch(
        {"x": tensor(8, 3, 32, 32), "kernel": tensor(16, 3, 3, 3)},
        {"N": 8, "stride_h": 2, "stride_w": 2, "kernel_stride": 3, "x_stride": 16},
    ),
    "heads in a row": launch(
        {"q": tensor(M, 4 * 16), "cos": tensor(M, 16)},
        {"M": M, "stride_qm": 64, "stride_qh": 16, "D": 16, "stride_cos_m": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields", UNTOLD.values(), ids=UNTOLD)
def test_what_may_be_right_is_neither_accused_nor_counted(fields):
    result = judged(fields)
    assert result.verdict is Verdict.NOT_EVALUATED and not result.violations, result


def test_scales_of_a_quantised_product_are_not_the_matrix():
    """``stride_asm`` is of ``a_scale``, not of ``a``."""
    fields = plain()
    fields["arguments"].append({"name": "a_scale_ptr", "shape": [M, 2], "strides": [2, 1]})
    fields["sizes"] |= {"stride_asm": 2, "stride_ask": 1}
    assert not judged(fields).violations


# -- what is not


BROKEN = {
    "rows of the result are k apart": (plain(stride_cm=K), "stride_cm = 16, which is K", "several of its places"),
    "and when k is larger": (plain(n=16, k=32, stride_cm=32), "stride_cm = 32, which is K", "reaches element 2,032"),
    "with sizes that nothing divides": (plain(30, 7, 11, stride_cm=11), "stride_cm = 11, which is K", "reaches"),
    "rows of the second operand": (plain(bounds=BOUNDS, stride_bk=K), "stride_bk = 16, which is K", "several"),
    "strides of two tensors": (plain(stride_am=N, stride_cm=K), "stride_am = 32, which is N", "reaches"),
    "of a tensor that is padded": (
        product(tensor(M, 100)[:, :K], tensor(K, N), tensor(M, N), stride_cm=100),
        "stride_cm = 100, which is a stride of a_ptr", "reaches",
    ),
    "sizes": (plain(bounds=BOUNDS, N=K, K=N), "N = 16 and K = 32, in each other's places", "the sizes fit"),
    "sizes in a circle": (plain(bounds=BOUNDS, M=N, N=K, K=M), "M = 32, N = 16 and K = 64", "the sizes fit"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "symptom", "reason"), BROKEN.values(), ids=BROKEN)
def test_numbers_that_changed_places_are_named(fields, symptom, reason):
    result = judged(plain(), fields)
    assert result.verdict is Verdict.FAIL
    (violation,) = result.violations
    assert violation.cause == "argument-order-swapped" and violation.brick == "matmul"
    assert "train.py:40" in violation.symptom and symptom in violation.symptom
    assert reason in violation.whys[-1].finding and "strides (" in violation.whys[0].finding
    assert violation.evidence == violation.whys[0].evidence


def test_sizes_are_accused_only_where_the_source_says_what_they_bound():
    assert not judged(plain(N=K, K=N)).violations
    unsure = BOUNDS | {"stride_ak": ["K", "N"], "stride_bk": ["K", "N"]}
    assert not judged(plain(bounds=unsure, N=K, K=N)).violations


def test_launches_that_were_too_many_to_write_down_are_told():
    made = Made()
    made.healthy(4)
    made.event("arguments", 2, **plain())
    made.event("canaries", 3, launches=900, unwritten=640)
    result = GemmArguments().judge(Story.of(made.run()), registry.library()[GemmArguments.contract])
    assert result.verdict is Verdict.PASS and "640 launches more" in result.observed


def test_every_line_is_one_finding():
    result = judged(*(plain(stride_cm=K) | {"site": f"train.py:{line}"} for line in (40, 40, 50)))
    assert [len(violation.evidence) for violation in result.violations] == [2, 1]


def test_without_launches_it_is_as_it_was():
    assert "no GPU" in judged().why and judged(trained=False).verdict is Verdict.VACUOUS


@pytest.mark.parametrize(
    "fields",
    [{}, {"arguments": "all"}, {"arguments": [3]}, {"arguments": [{"name": "c", "shape": [3], "strides": []}]},
     {"arguments": [{"name": "c", "shape": ["3"], "strides": [None]}], "sizes": {"stride_cm": "4"}, "bounds": 4},
     {"arguments": [{"name": "c", "shape": [], "strides": []}],
      "sizes": {"M": 4, "stride_cm": 2, "N": 3, "stride_cn": 2}}],
)  # fmt: skip
def test_a_damaged_event_accuses_nobody(fields):
    assert judged({"kernel": "matmul", **fields}).verdict is Verdict.NOT_EVALUATED


def odd(shape: list[Any], strides: list[Any]) -> dict[str, Any]:
    return plain(stride_cm=K) | {"arguments": [{"name": "c_ptr", "shape": shape, "strides": strides}]}


@pytest.mark.parametrize(
    "fields",
    [
        odd([2] * 20_000, [1] * 20_000), odd([2] * 3_000 + [3], [7] * 3_001), odd([M, 10**400], [N, 1]),
        odd([M, N], [2**62, 1]), odd([M, N], [N, -1]), odd([M, None], [N, 1]), plain(stride_cm=10**4400),
        plain() | {"bounds": {"stride_am": [["M"]]}}, plain(stride_cm=K) | {"bounds": {"stride_cm": [{}]}},
    ],
    ids=["very many dimensions", "dimensions", "a size", "a stride", "a sign", "nothing", "a number", "a bound",
         "a bound of a stride"],
)  # fmt: skip
def test_what_no_tensor_has_is_left_aside_at_once(fields):
    begun = time.perf_counter()
    result = judged(fields)
    assert not result.violations and time.perf_counter() - begun < 2.0
    assert len(judged(fields, plain(bounds=BOUNDS, stride_cm=K)).violations) == 1


@pytest.mark.parametrize(
    ("rows", "stride"), [((M, 128), 32), ((M, 64), 32)], ids=["int8 as int32", "bfloat16 as int32"]
)
def test_strides_of_a_pointer_that_is_cast_are_in_another_unit(rows, stride):
    """The row of the packed operand in the new unit is just N."""
    fields = product(tensor(*rows), tensor(rows[1], N), tensor(M, N), bounds=BOUNDS, stride_am=stride)
    assert judged(fields).verdict is Verdict.FAIL
    assert judged(fields | {"casts": True}).verdict is Verdict.NOT_EVALUATED
    assert judged(plain(bounds=BOUNDS) | {"casts": True}).verdict is Verdict.PASS


# -- names, layouts, source


@pytest.mark.parametrize(
    ("name", "tensors", "expected"),
    [
        ("stride_am", ["a_ptr", "b_ptr"], ("a_ptr", "m")), ("stride_x0", ["X", "Y"], ("X", "0")),
        ("y_row_stride", ["x", "y"], ("y", "row")), ("c_stride_m", ["c", "c_scale"], ("c", "m")),
        ("stride_om", ["Out", "q"], ("Out", "m")), ("stride_asm", ["a_ptr", "a_scale_ptr"], ("a_scale_ptr", "m")),
        ("stride_input_row", ["input_ptr"], ("input_ptr", "row")), ("strides_aptr_m", ["aptr"], ("aptr", "m")),
        ("stride_bn", ["b", "bias"], ("b", "n")), ("stride_bn", ["beta", "bias"], None),
        ("stride_a_scale_m", ["a", "a_scale"], ("a_scale", "m")), ("stride_row", ["rstd", "x"], None),
        ("stride_h", ["h", "x"], None), ("stride", ["x"], None), ("M", ["m"], None), ("stride_m_a", ["m", "a"], None),
        ("stride_am", ["a", "A"], None), ("kernel_stride", ["kernel"], None),
    ],
)  # fmt: skip
def test_a_stride_belongs_to_the_tensor_that_its_name_says(name, tensors, expected):
    assert stride_names.owner(name, tensors) == expected


def test_two_places_are_one_element_as_counting_them_says():
    for rows, columns, row, column in torch.cartesian_prod(*(torch.arange(1, 6),) * 2, *(torch.arange(0, 7),) * 2):
        places = {int(r * row + c * column) for r in range(rows) for c in range(columns)}
        one, other = (int(rows), int(row)), (int(columns), int(column))
        assert layouts.meets(one, other) == (len(places) < rows * columns)
        assert layouts.reach((one, other)) == max(places) + 1


def test_reshaped_and_transposed_views_are_the_same_elements():
    x = tensor(4, 6, 10)
    alike = (x, x.view(24, 10), x.view(4, 60).t(), x.permute(2, 0, 1), x.view(4, 1, 6, 10))
    normal = {layouts.normal(zip(each.shape, each.stride(), strict=True)) for each in alike}
    assert normal == {((240, 1),)}
    assert layouts.normal(((4, 60), (6, 12))) == ((6, 12), (4, 60))


SOURCE = """
def kernel(a_ptr, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BLOCK: tl.constexpr):
    stride_ak = stride_ak.to(tl.int64)
    rows = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % M
    columns = tl.max_contiguous((tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)) % N, BLOCK)
    inner = tl.arange(0, BLOCK)
    a = a_ptr + rows[:, None] * stride_am + inner[None, :].to(tl.int64) * stride_ak
    b += inner[:, None] * stride_bk + stride_bn * columns
    for step in range(0, tl.cdiv(K, BLOCK)):
        x = tl.load(a, mask=inner[None, :] < K - step * BLOCK)
    at_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = c + (at_m + 0)[:, None] * stride_cm + columns * stride_cn
    tl.store(place, x, mask=(M > at_m[:, None]) & (columns < N))
"""


def test_the_source_says_which_size_goes_with_a_stride():
    names = ["M", "N", "K", *BOUNDS, "BLOCK"]
    assert kernel_indices.bounds_in(ast.parse(SOURCE), names) == BOUNDS
    changed = SOURCE.replace("    inner =", "    K = K // 2\n    inner =")
    assert set(BOUNDS) - set(kernel_indices.bounds_in(ast.parse(changed), names)) == {"stride_ak", "stride_bk"}


def test_the_source_of_a_block_pointer_says_it_at_once():
    source = "tl.make_block_ptr(base=c, shape=(M, N), strides=(stride_cm, stride_cn), offsets=(0, 0), order=(1, 0))"
    names = ["M", "N", "stride_cm", "stride_cn"]
    assert kernel_indices.bounds_in(ast.parse(source), names) == {"stride_cm": ["M"], "stride_cn": ["N"]}


def packed(a_ptr, out, tl):
    tl.store(out, tl.load(a_ptr.to(tl.pointer_type(tl.int32))))


def reinterpreted(a_ptr, out, tl):
    tl.store(out, tl.load(a_ptr).to(tl.int32, bitcast=True))


def converted(a_ptr, out, tl):
    """No pointer_type(...), no bitcast=True but in words."""
    tl.store(out, tl.load(a_ptr).to(tl.int32, bitcast=False).to(tl.float32))


def test_the_source_says_whether_a_pointer_is_cast():
    assert kernel_indices.casts(packed) and kernel_indices.casts(reinterpreted)
    assert not kernel_indices.casts(converted) and not kernel_indices.casts(len) and not kernel_indices.casts(None)


@pytest.mark.parametrize(("kernel", "casts"), [(packed, True), (converted, False)])
def test_what_a_kernel_was_told_says_whether_it_casts(kernel, casts):
    function = SimpleNamespace(fn=kernel, arg_names=["a_ptr", "out", "tl"])
    call = Call(function, print, (tensor(M, N), tensor(M, N), 3), {}, "train.py:40", False)
    told = shadows.layout(call, {"a_ptr": tensor(M, N)})
    assert told.get("casts", False) is casts and ("casts" in told) is casts


def test_a_kernel_without_source_bounds_nothing():
    assert kernel_indices.bounds(len, ["M"]) == {} and kernel_indices.bounds(None, ["M"]) == {}


# -- in a training


SCRIPT = """
import torch
import triton
import triton.language as tl
from brickprof.operators.launch import kernel


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK)):
        at = step * BLOCK + inner
        a = tl.load(a_ptr + rows[:, None] * stride_am + at[None, :] * stride_ak,
                    mask=(rows[:, None] < M) & (at[None, :] < K), other=0.0)
        b = tl.load(b_ptr + at[:, None] * stride_bk + columns[None, :] * stride_bn,
                    mask=(at[:, None] < K) & (columns[None, :] < N), other=0.0)
        total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn, total,
             mask=(rows[:, None] < M) & (columns[None, :] < N))


instrumented = kernel("train.matmul")(matmul)


def drawn(rows, columns):
    return torch.randn(4096)[: rows * columns].view(rows, columns)


def given(a, b, c):
    (m, k), n = a.shape, b.shape[1]
    told = {"M": m, "N": n, "K": k, "stride_am": a.stride(0), "stride_ak": a.stride(1), "stride_bk": b.stride(0)}
    return {"a_ptr": a, "b_ptr": b, "c_ptr": c, **told, "stride_bn": b.stride(1), "stride_cm": c.stride(0),
            "stride_cn": c.stride(1), "BLOCK": 16}


def healthy(a, b):
    c = torch.zeros(a.shape[0], b.shape[1])
    matmul[(2, 2)](**given(a, b, c))
    torch.testing.assert_close(c, a @ b, rtol=1e-3, atol=1e-3)


model = torch.nn.Linear(9, 27)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(torch.randn(1, 9)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    a, b, c = drawn(20, 12), drawn(12, 24), drawn(20, 24)
    {launch}
"""
LAUNCHES = {
    "healthy": "healthy(a, b), healthy(drawn(12, 20).t(), drawn(24, 12).t()), healthy(drawn(20, 30)[:, :12], b)",
    "stride": "matmul[(2, 2)](**(given(a, b, c) | {'stride_cm': 12}))",
    "size": "matmul[(2, 2)](a, b, c, 20, 12, 24, 12, 1, 24, 1, 24, 1, BLOCK=16)",
    "instrumented": "instrumented.launch((2, 2), **(given(a, b, c) | {'stride_cm': 12}))",
}


def run(folder: Path, launched: str, *options: str) -> brickprof.Run:
    pytest.importorskip("triton")
    (folder / "train.py").write_text(SCRIPT.replace("{launch}", launched))
    command = [sys.executable, "-m", "brickprof", "run", "-o", "runs", "--no-live", *options, "train.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return brickprof.load(next((folder / "runs").iterdir()))


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_product_in_the_interpreter(tmp_path, name):
    diagnosis = diagnose(run(tmp_path, LAUNCHES[name], "--level", "deep"))
    (contract,) = [each for each in diagnosis.contracts if each.id == "C-GEMMARGS-001"]
    if name == "healthy":
        assert contract.verdict == Verdict.PASS and "3 of 3 kinds of launches" in contract.observed, contract
        return
    line = next(number for number, each in enumerate(SCRIPT.splitlines(), 1) if each.endswith("{launch}"))
    (finding,) = [each for each in diagnosis.findings if each.contract == "C-GEMMARGS-001"]
    assert contract.verdict == Verdict.FAIL and finding.brick == "matmul" and f"train.py:{line}" in finding.symptom
    assert ("N = 12 and K = 24" if name == "size" else "stride_cm = 12, which is K") in finding.symptom
    assert finding.root_cause == "argument-order-swapped" and all(why.evidence for why in finding.whys)


def test_nothing_is_written_down_outside_of_full_steps(tmp_path):
    recorded = run(tmp_path, LAUNCHES["healthy"], "--level", "standard")
    assert not len(recorded.events[recorded.events.kind == "arguments"])
