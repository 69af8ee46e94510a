"""Operations of a step, against torch's own counter of them."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import brickprof
from brickprof.capture import graph
from brickprof.capture.taps.compiled_graphs import Compiled
from brickprof.probes.operations import counted
from brickprof.rules.story import Story


def mlp():
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8)), torch.randn(5, 7, 24)


def without_bias():
    return nn.Sequential(nn.Linear(24, 40, bias=False), nn.Tanh(), nn.Linear(40, 8, bias=False)), torch.randn(6, 24)


def frozen():
    model, x = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model, x


def convolutions():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, dilation=2), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2), nn.Flatten(), nn.LazyLinear(3),
    ), torch.randn(2, 4, 16, 16)  # fmt: skip


def along_one_dimension():
    return nn.Sequential(nn.Conv1d(3, 6, 5, padding=2), nn.GELU(), nn.Conv1d(6, 2, 1)), torch.randn(4, 3, 20)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def attention():
    return Attends(), torch.randn(3, 10, 16)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, 5))
        self.last = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return torch.bmm(x, self.weight).sum(0) @ self.last


def by_hand():
    return ByHand(), torch.randn(3, 4, 6)


@pytest.mark.parametrize(
    "made", [mlp, without_bias, frozen, convolutions, along_one_dimension, by_hand], ids=lambda made: made.__name__
)
@pytest.mark.parametrize("given", [False, True], ids=["of leaves", "of what has a gradient"])
def test_as_many_as_torch_counts(made, given):
    torch.manual_seed(0)
    model, x = made()
    model(x)
    x.requires_grad_(given)
    with FlopCounterMode(display=False) as forward:
        loss = model(x).square().mean()
    found = counted(graph.nodes(loss))
    graph.forget()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    vectors = 3 * 2 * 4 * 5 if made is by_hand else 0  # torch's counter has none for a matrix with a vector
    assert found.unknown == ()
    if made is frozen and not given:
        assert found == (22_400, 22_400, 1, (), "float32")  # what no gradient flows through is in no graph
        return
    assert found.forward + found.backward - vectors == forward.get_total_flops() + backward.get_total_flops()
    assert found.forward - vectors // 3 == forward.get_total_flops()


def test_of_a_convolution_in_groups_each_has_its_own_part_alone():
    loss = nn.Conv2d(8, 12, 3, groups=4)(torch.randn(2, 8, 9, 9)).sum()
    operations = 2 * (2 * 12 * 7 * 7) * (2 * 3 * 3)
    assert counted(graph.nodes(loss)) == (operations, operations, 1, (), "float32")
    graph.forget()


def test_attention_counts_whole_and_what_is_computed_again_does_not():
    model, x = attention()
    loss = model(x).square().mean()
    found = counted(graph.nodes(loss))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        model(x.detach()).square().mean().backward()
    assert found.unknown == () and found.forward + found.backward == torchs.get_total_flops()
    again = checkpoint(model, x, use_reentrant=False).square().mean()
    assert counted(graph.nodes(again)) == found
    graph.forget()


def test_what_two_losses_have_in_common_runs_forward_once():
    trunk, first, second = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 2)
    x = torch.randn(10, 8)
    hidden = trunk(x).relu()
    losses = first(hidden).sum(), second(hidden).square().sum()
    parts = 2 * 10 * 8 * 16, 2 * 10 * 16 * 4, 2 * 10 * 16 * 2
    met = set()
    one, other = (counted(graph.nodes(loss), met) for loss in losses)
    assert (one.forward, one.backward) == (parts[0] + parts[1], parts[0] + 2 * parts[1])
    assert (other.forward, other.backward) == (parts[2], parts[0] + 2 * parts[2])
    together = counted([node for loss in losses for node in graph.nodes(loss)])
    assert (together.forward, together.backward) == (sum(parts), parts[0] + 2 * parts[1] + 2 * parts[2])
    graph.forget()


class Linear(torch.autograd.Function):
    """Called like one of torch's, and no product at all."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def penalty():
    convolution, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 9, 9, requires_grad=True)
    (slope,) = torch.autograd.grad(convolution(x).square().sum(), x, create_graph=True)
    return slope.square().sum()


def sparse():
    return (torch.eye(6).to_sparse() @ nn.Linear(3, 4)(torch.randn(6, 3))).sum()


def sparse_rows():
    return torch.sparse.mm(torch.eye(6).to_sparse(), nn.Linear(3, 4)(torch.randn(6, 3))).sum()


def in_place():
    weight, y = torch.randn(3, 4, requires_grad=True), torch.zeros(2, 5, 4)
    y[0].addmm_(torch.randn(5, 3), weight)
    return y.sum()


def distances():
    return torch.cdist(torch.randn(40, 3, requires_grad=True), torch.randn(40, 3)).sum()


@pytest.mark.parametrize(
    ("made", "name"),
    [(penalty, "Convolution"), (sparse, ""), (sparse_rows, "SparseAddmm"), (in_place, "CopySlices"),
     (distances, "EuclideanDist"), (lambda: Linear.apply(torch.ones(3, requires_grad=True)).sum(), "Linear"),
     (lambda: torch.addbmm(torch.zeros(2, 2), *torch.randn(2, 3, 2, 2, requires_grad=True)).sum(), "Addbmm")],
)  # fmt: skip
def test_what_is_not_known_by_heart_is_not_made_up(made, name):
    found = counted(graph.nodes(made()))
    assert found.unknown and (not name or name in found.unknown)
    graph.forget()


def test_what_is_next_to_nothing_hides_nothing():
    model = nn.Linear(6, 4)
    model.register_full_backward_hook(lambda *_: None)
    loss = F.normalize(model(torch.randn(5, 6, requires_grad=True))).sum() + model.weight.norm()
    assert counted(graph.nodes(loss)) == (240, 480, 1, (), "float32")
    graph.forget()


class Own(Linear):
    pass


class Owns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, 2)

    def forward(self, x):
        return Own.apply(self.last(x))


def test_what_cannot_be_counted_is_said():
    found = counted(graph.nodes(Owns()(torch.randn(3, 24)).sum()))
    assert found.unknown == ("Own",) and found.forward == 2 * 3 * 24 * 2
    graph.forget()


def told_of(tmp_path, model, train):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, out=tmp_path, overhead="100%") as bp:
        for step in range(6):
            optimizer.zero_grad()
            train(step)
            optimizer.step()
    return [(event.step, event.fields) for event in Story.of(brickprof.load(bp.folder)).events("operations")]


def test_every_backward_of_a_step_is_counted(tmp_path):
    model, _ = without_bias()

    def train(step):
        for rows in (1, 4, 4):
            model(torch.randn(rows, 24)).square().mean().backward()

    told = told_of(tmp_path, model, train)
    one = 2 * 24 * 40 + 2 * 40 * 8
    assert {step for step, _ in told} == {0, 1, 3}  # the first, the second, the fourth of all
    assert [fields["micro"] for _, fields in told] == [0, 1, 2] * 3 and all(
        fields["devices"] == 1 for _, fields in told
    )
    assert [fields["forward"] for _, fields in told] == [one, 4 * one, 4 * one] * 3


def test_a_backward_of_some_leaves_only_is_not_known(tmp_path):
    model, _ = mlp()
    inputs = list(model[2].parameters())
    told = told_of(tmp_path, model, lambda step: model(torch.randn(4, 24)).square().mean().backward(inputs=inputs))
    assert told and not any(fields["whole"] for _, fields in told)


@pytest.mark.parametrize(("model", "whole"), [(mlp()[0], True), (Owns(), False)], ids=["torch's", "one's own"])
def test_a_run_says_how_many_a_step_makes(tmp_path, model, whole):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with brickprof.attach(model, out=tmp_path) as bp:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 24)).square().mean().backward()
            optimizer.step()
    told = [event.fields for event in Story.of(brickprof.load(bp.folder)).events("operations")]
    assert told and all(fields["whole"] is whole for fields in told)
    if whole:
        forward = 2 * 4 * 24 * 40 + 2 * 4 * 40 * 8
        assert {(fields["forward"], fields["backward"]) for fields in told} == {
            (forward, 2 * forward - 2 * 4 * 24 * 40)
        }


# -- compiled code


class Deep(nn.Module):
    """Blocks of one kind, which share what is compiled of them, and a break between the graphs of the whole."""

    def __init__(self, breaks=False):
        super().__init__()
        self.first, self.blocks = nn.Linear(24, 16), nn.ModuleList(Attends() for _ in range(3))
        self.dropout, self.last, self.breaks = nn.Dropout(0.1), nn.Linear(16, 5), breaks

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return F.cross_entropy(self.last(self.dropout(x)).flatten(0, 1), torch.zeros(30, dtype=torch.long))


def whole(model, **how):
    return torch.compile(model, **how)


def in_place_of_it(model, **how):
    model.compile(**how)
    return model


def each_block(model, **how):
    for block in model.blocks:
        block.compile(**how)
    return model


def trained(folder, compile_, *, breaks=False, dtype=None, **how):
    """What is told of the operations of a few steps, and what the training has come to."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Deep(breaks)
    called = compile_(model, backend="aot_eager", **how) if compile_ is not None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = called(torch.randn(3, 10, 24))
            loss.backward()
            optimizer.step()

    told = []
    if folder is None:
        train()
    else:
        with brickprof.attach(model, optimizer, out=folder, overhead="100%") as bp:
            train()
        story = Story.of(brickprof.load(bp.folder))
        assert not story.events("probe_off")
        told = [event.fields for event in story.events("operations")]
    return told, [*model.parameters(), torch.get_rng_state()]


def checkpointed(model, **how):
    def call(x):
        return checkpoint(model, x, use_reentrant=False)

    return torch.compile(call, **how)


@pytest.mark.parametrize("compile_", [whole, in_place_of_it, each_block], ids=lambda made: made.__name__)
@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two"])
def test_compiled_code_makes_what_it_was_made_of(tmp_path, compile_, breaks):
    plainly, _ = trained(tmp_path / "plain", None)
    told, watched = trained(tmp_path / "compiled", compile_, breaks=breaks)
    assert told == plainly and told[0]["whole"] and told[0]["products"] == 2 + 3 * 3
    _, alone = trained(None, compile_, breaks=breaks)
    assert all(map(torch.equal, watched, alone))


class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture
def alone():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="a torch without ranks")
def test_pieces_of_a_graph_that_was_cut_for_ddp_are_counted_together(tmp_path, alone):
    told, pieces = [], []

    def train(called, _):
        loss = called(torch.randn(8, 512)).square().mean()
        pieces.append(sum(node.name == "CompiledFunctionBackward" for node in graph.nodes(loss)))
        graph.forget()
        loss.backward()

    for number, compile_ in enumerate((lambda model: model, partial(torch.compile, backend="aot_eager"))):
        torch._dynamo.reset()
        model = Row()
        called = compile_(nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1.5))
        told.append([fields for _, fields in told_of(tmp_path / str(number), model, partial(train, called))])
    assert pieces[0] == 0 and pieces[-1] > 1  # it was cut
    assert told[0] == told[1] and told[0][0]["whole"] and told[0][0]["products"] == 6


def test_what_is_computed_again_in_compiled_code_counts_once(tmp_path):
    plainly, _ = trained(tmp_path / "plain", None)
    told, _ = trained(tmp_path / "compiled", checkpointed)
    assert told == plainly


def test_products_have_a_type_compiled_or_not(tmp_path):
    for number, compile_ in enumerate((None, whole)):
        told, _ = trained(tmp_path / str(number), compile_, dtype=torch.bfloat16)
        assert {fields["dtype"] for fields in told} == {"bfloat16"}


def test_where_shapes_are_open_nobody_knows_how_many(tmp_path):
    told, _ = trained(tmp_path, whole, dynamic=True)
    assert told and all(fields["unknown"] == ["CompiledFunction"] and not fields["whole"] for fields in told)


def test_nothing_that_acts_is_called_a_second_time(tmp_path):
    calls = []

    @torch.library.custom_op("brickprof_test::acts", mutates_args=())
    def acts(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @acts.register_fake
    def _(x):
        calls.append(1)
        return torch.empty_like(x)

    acts.register_autograd(lambda ctx, grad: grad)
    torch._dynamo.reset()
    model = Attends()

    @torch.compile(backend="aot_eager")
    def forward(x):
        return acts(model(x)).square().mean()

    forward(torch.randn(3, 10, 16)).backward()
    alone = len(calls)
    torch._dynamo.reset()
    calls.clear()
    told = told_of(tmp_path, model, lambda _: forward(torch.randn(3, 10, 16)).backward())
    assert len(calls) == alone > 0
    assert told and all(fields["unknown"] == ["CompiledFunction"] for _, fields in told)


HEARD: list[bool] = []


@torch.fx.wrap
def heard(x):
    HEARD.append(torch.compiler.is_compiling())
    return x * 2


def test_what_runs_to_be_looked_into_is_the_compilers_and_no_signal():
    HEARD.clear()
    module = torch.fx.symbolic_trace(lambda x: (heard(x @ x),))
    nodes = Compiled(module, [torch.ones(2, 2, requires_grad=True)]).behind()
    assert {"Mm", "Mul"} <= {node.op for node in nodes}
    assert HEARD == [True] and not torch.compiler.is_compiling()


def test_what_another_thread_compiles_is_not_what_is_trained(tmp_path):
    torch._dynamo.reset()
    model, other = Attends(), Attends()
    compiled = torch.compile(other, backend="aot_eager")
    asked, seen = [], []

    def behind(self):
        seen.append(self)

    def train(step):
        if not step:
            thread = threading.Thread(target=lambda: asked.append(compiled(torch.randn(3, 10, 16))))
            thread.start()
            thread.join()
        model(torch.randn(3, 10, 16)).square().mean().backward()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiled, "behind", behind)
        told = told_of(tmp_path, model, train)
    assert asked and not seen and all(fields["whole"] for _, fields in told)


def test_what_was_compiled_before_anybody_watched_is_not_known(tmp_path):
    torch._dynamo.reset()
    model = Attends()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.randn(3, 10, 16)).square().mean().backward()
    told = told_of(tmp_path, model, lambda _: compiled(torch.randn(3, 10, 16)).square().mean().backward())
    assert told and all(fields["unknown"] == ["CompiledFunction"] for _, fields in told)


def test_a_compiler_that_fails_fails_as_it_did(tmp_path):
    def broken(module, inputs):
        raise RuntimeError("no such compiler")

    torch._dynamo.reset()
    model = Attends()
    compiled = torch.compile(model, backend=broken)
    with brickprof.attach(model, out=tmp_path) as bp, pytest.raises(Exception, match="no such compiler"):
        compiled(torch.randn(3, 10, 16))
    assert not Story.of(brickprof.load(bp.folder)).events("probe_off")
