"""Who runs against whom in kernels.py, on which problems, and what we want to reach.

Enters: nothing but a GPU. Leaves: races; a contender is a function without arguments that queues one call.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Contender = Callable[[], object]
OURS = "ours"
SHAPES = ((4096, 4096), (4096, 11008), (11008, 4096), (4096, 32000))
ROWS = (1, 16, 128, 1024, 4096, 8192)


@dataclass
class Race:
    """One operation on one problem."""

    operation: str
    problem: str
    contenders: dict[str, Contender]
    against: str = ""
    """Who the target is about: one contender, or several joined by '|' of which the quickest counts."""
    target: float = 0.0
    """How many times as quick as that we want to be."""
    most_us: float = 0.0
    """Or the most microseconds."""
    flops: float = 0.0


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def backward(run: Callable[..., torch.Tensor], inputs: list[torch.Tensor], upstream: torch.Tensor) -> Contender:
    """Only the backward of ``run``, again and again over one graph."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    output = run(*leaves)
    return lambda: torch.autograd.grad(output, leaves, upstream, retain_graph=True)


def products() -> Iterator[Race]:
    from brickprof.kernels import gemm

    for k, n in SHAPES:
        for m in ROWS:
            x, w = normal(m, k), normal(n, k) / k**0.5
            yield Race(
                "gemm forward", f"M {m} K {k} N {n}",
                {OURS: lambda x=x, w=w: gemm.product(a=x, b=w.T), "cuBLAS": lambda x=x, w=w: x @ w.T},
                "cuBLAS", 0.85, flops=2 * m * n * k,
            )  # fmt: skip
    for k, n in SHAPES[:3]:
        x, w, dy = normal(4096, k), normal(n, k) / k**0.5, normal(4096, n)
        for name, a, b, target in (("gemm dgrad", dy, w, 0.93), ("gemm wgrad", dy.T, x, 0.90)):
            yield Race(
                name, f"M 4096 K {k} N {n}",
                {OURS: lambda a=a, b=b: gemm.product(a=a, b=b), "cuBLAS": lambda a=a, b=b: a @ b},
                "cuBLAS", target, flops=2 * 4096 * n * k,
            )  # fmt: skip


def norms() -> Iterator[Race]:
    from brickprof.kernels import rmsnorm

    x, w, g = normal(8192, 4096), normal(4096), normal(8192, 4096)

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return rmsnorm.rmsnorm(x=x, weight=w)

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (4096,), w, 1e-5)

    compiled = torch.compile(eager)
    forward = {OURS: lambda: ours(x, w), "torch": lambda: eager(x, w), "compile": lambda: compiled(x, w)}
    back = {
        OURS: backward(ours, [x, w], g),
        "torch": backward(eager, [x, w], g),
        "compile": backward(compiled, [x, w], g),
    }
    with liger():
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction, rms_norm_forward

        forward["Liger"] = lambda: rms_norm_forward(x, w, 1e-5, 0.0, "llama", None)
        back["Liger"] = backward(lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-5, 0.0, "llama", False), [x, w], g)
    yield Race("rmsnorm forward", "8192 x 4096", forward, "Liger", 1.0)
    yield Race("rmsnorm backward", "8192 x 4096", back, "compile", 1.25)


def gates() -> Iterator[Race]:
    from brickprof.kernels import swiglu

    a, b, g = normal(8192, 11008), normal(8192, 11008), normal(8192, 11008)

    def ours(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return swiglu.swiglu(gate=a, up=b)

    def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(a) * b

    compiled = torch.compile(eager)
    forward = {OURS: lambda: ours(a, b), "torch": lambda: eager(a, b), "compile": lambda: compiled(a, b)}
    back = {
        OURS: backward(ours, [a, b], g), "torch": backward(eager, [a, b], g), "compile": backward(compiled, [a, b], g),
    }  # fmt: skip
    with liger():
        from liger_kernel.ops.swiglu import swiglu_backward, swiglu_forward

        c, d = a.clone(), b.clone()
        forward["Liger"] = lambda: swiglu_forward(a, b)
        back["Liger"] = lambda: swiglu_backward(c, d, g)
    yield Race("swiglu forward", "8192 x 11008", forward, "compile|Liger", 1.0)
    yield Race("swiglu backward", "8192 x 11008", back, "compile|Liger", 1.0)


def losses() -> Iterator[Race]:
    from brickprof.kernels import cross_entropy, logprob

    one = torch.ones((), device="cuda")
    for vocabulary in (32_000, 128_256):
        logits = normal(8192, vocabulary)
        target = torch.randint(0, vocabulary, (8192,), device="cuda")
        leaf = logits.clone().requires_grad_()

        def both(loss: Callable[..., torch.Tensor], leaf: torch.Tensor = leaf) -> Contender:
            return lambda: torch.autograd.grad(loss(leaf), leaf, one)

        def ours(x: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return cross_entropy.cross_entropy(logits=x, target=target)

        def eager(x: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return F.cross_entropy(x, target)

        contenders = {OURS: both(ours), "torch": both(eager)}
        with liger():
            contenders["Liger kernel"] = liger_loss(logits.clone(), target)
        yield Race("cross-entropy fwd+bwd", f"8192 x {vocabulary}", contenders, "Liger kernel", 1.0)
        yield Race(
            "selected logprob forward", f"8192 x {vocabulary}",
            {
                OURS: lambda x=logits, t=target: logprob.logprob(logits=x, target=t),
                "torch": lambda x=logits, t=target: torch.log_softmax(x.float(), -1).gather(1, t[:, None]),
            },
            "torch", most_us=600 if vocabulary > 100_000 else 0.0,
        )  # fmt: skip


def liger_loss(logits: torch.Tensor, target: torch.Tensor) -> Contender:
    """Liger's kernel alone, without what its wrapper asks of the host."""
    import triton
    from liger_kernel.ops.cross_entropy import liger_cross_entropy_kernel as kernel

    rows, vocabulary = logits.shape
    values = {
        "X_ptr": logits, "X_stride": vocabulary, "Y_ptr": target, "Y_stride": 1, "weight_ptr": None,
        "loss_ptr": torch.zeros(rows, device="cuda"), "z_loss_ptr": None, "loss_stride": 1,
        "token_accuracy_ptr": None, "token_accuracy_stride": 0, "predicted_tokens_ptr": None,
        "predicted_tokens_stride": 0, "n_cols": vocabulary, "n_non_ignore": rows, "sum_non_ignore_weight": rows,
        "weight_sum": 0.0, "ignore_index": -100, "lse_square_scale": 0.0, "label_smoothing": 0.0,
        "reduction": "mean", "softcap": None, "RETURN_Z_LOSS": False, "RETURN_TOKEN_ACCURACY": False,
        "RETURN_PREDICTED_TOKENS": False, "BLOCK_SIZE": min(32_768, triton.next_power_of_2(vocabulary)),
        "HAS_WEIGHT": False, "HAS_SOFTCAPPING": False, "HAS_GRADIENTS": True,
    }  # fmt: skip
    given = {name: values[name] for name in inspect.signature(kernel.fn).parameters if name in values}
    return lambda: kernel[(rows,)](**given, num_warps=32)


def attentions() -> Iterator[Race]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from brickprof.kernels import attention

    q, k, v, g = (normal(4, 32, 4096, 128) for _ in range(4))
    flops = 4 * 4 * 32 * 128 * 4096 * 4096 / 2

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention.attention(q=q, k=k, v=v)

    def through(backend: SDPBackend) -> Callable[..., torch.Tensor]:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    flash, cudnn = through(SDPBackend.FLASH_ATTENTION), through(SDPBackend.CUDNN_ATTENTION)
    problem = "B 4 H 32 S 4096 D 128, causal"
    yield Race(
        "attention forward", problem,
        {OURS: lambda: ours(q, k, v), "flash": lambda: flash(q, k, v), "cuDNN": lambda: cudnn(q, k, v)},
        "flash", most_us=flops / 450e6, flops=flops,
    )  # fmt: skip
    yield Race(
        "attention backward", problem,
        {name: backward(run, [q, k, v], g) for name, run in ((OURS, ours), ("flash", flash), ("cuDNN", cudnn))},
        "flash", most_us=2.5 * flops / 300e6, flops=2.5 * flops,
    )  # fmt: skip


def gpt_shapes() -> list[tuple[int, ...]]:
    """A GPT of 355M parameters in 289 tensors."""
    block = (
        (1024,), (3072, 1024), (3072,), (1024, 1024), (1024,), (1024,), (1024,), (4096, 1024), (4096,), (1024, 4096),
        (1024,), (1024,),
    )  # fmt: skip
    return [(50_304, 1024), *(shape for _ in range(24) for shape in block)]


def models() -> Iterator[Race]:
    for dtype, most in ((torch.bfloat16, 250.0), (torch.float32, 420.0)):
        tensors = [normal(*shape, dtype=dtype) for shape in gpt_shapes()]
        problem = f"355M in {len(tensors)}, {str(dtype)[6:]}"
        yield statistics_race(tensors, problem, most)
        yield update_race(tensors, problem)


def statistics_race(tensors: list[torch.Tensor], problem: str, most: float) -> Race:
    from brickprof.kernels import statistics

    table = statistics.Statistics()
    contenders = {OURS: lambda: table(tensors), "_foreach_norm (L2 only)": lambda: torch._foreach_norm(tensors)}
    return Race("gradient statistics", problem, contenders, "_foreach_norm (L2 only)", most_us=most)


def update_race(tensors: list[torch.Tensor], problem: str) -> Race:
    from brickprof.kernels import adamw

    update = adamw.Update()
    first, second = ([torch.zeros_like(each) for each in tensors] for _ in range(2))
    gradients, steps = [torch.randn_like(each) for each in tensors], [torch.ones((), device="cuda") for _ in tensors]
    settings = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.01}

    def ours() -> None:
        update(
            parameters=tensors, gradients=gradients, exp_avg=first, exp_avg_sq=second, step=3, betas=(0.9, 0.999),
            **settings,
        )  # fmt: skip

    def fused() -> None:
        torch._fused_adamw_(
            tensors, gradients, first, second, [], steps, beta1=0.9, beta2=0.999, amsgrad=False, maximize=False,
            **settings,
        )  # fmt: skip

    return Race("adamw", problem, {OURS: ours, "torch fused": fused}, "torch fused", 0.95)


def others() -> Iterator[Race]:
    from brickprof.kernels import embedding, gelu, rope, softmax, transpose

    x = normal(4, 32, 4096, 128)
    cosine, sine = rope.tables(length=4096, channels=128, device="cuda")
    turn = torch.compile(rope.reference)
    yield Race(
        "rope forward", "4 x 32 x 4096 x 128",
        {
            OURS: lambda: rope.rope(x=x, cosine=cosine, sine=sine),
            "compile": lambda: turn(x=x, cosine=cosine, sine=sine),
        },
        "compile",
    )  # fmt: skip
    wide = normal(8192, 11008)
    yield Race(
        "gelu forward", "8192 x 11008",
        {OURS: lambda: gelu.gelu(x=wide), "torch": lambda: F.gelu(wide, approximate="tanh")}, "torch",
    )  # fmt: skip
    rows = normal(8192, 4096)
    yield Race(
        "softmax forward", "8192 x 4096",
        {OURS: lambda: softmax.softmax(x=rows), "torch": lambda: torch.softmax(rows, -1)}, "torch",
    )  # fmt: skip
    many = normal(32, 2048, 2048)
    yield Race(
        "transpose", "32 x 2048 x 2048",
        {OURS: lambda: transpose.transpose(x=many), "torch": lambda: many.transpose(1, 2).contiguous()}, "torch",
    )  # fmt: skip
    table, tokens = normal(32_000, 4096), torch.randint(0, 32_000, (8192,), device="cuda")
    yield Race(
        "embedding forward", "8192 of 32000 x 4096",
        {OURS: lambda: embedding.embedding(tokens=tokens, table=table), "torch": lambda: F.embedding(tokens, table)},
        "torch",
    )  # fmt: skip


def liger() -> contextlib.AbstractContextManager[None]:
    """Leaves Liger out where it is not installed."""
    return contextlib.suppress(ImportError)


GROUPS = {
    "gemm": products, "rmsnorm": norms, "swiglu": gates, "loss": losses, "attention": attentions, "model": models,
    "others": others,
}  # fmt: skip


def host_microseconds(calls: int = 200) -> float:
    """Of the host's time for one call of the statistics over a model."""
    from brickprof.kernels import statistics

    tensors = [normal(*shape) for shape in gpt_shapes()]
    table = statistics.Statistics()
    table(tensors)
    torch.cuda.synchronize()
    times = []
    for _ in range(calls):  # fewer than the queue holds: a full one would make the host wait for the device
        begin = time.perf_counter()
        table(tensors)
        times.append((time.perf_counter() - begin) * 1e6)
    return median(times)
