"""What compiled code keeps tells the block that broke first: every block of many models, however they are compiled."""

from __future__ import annotations

import copy
import gc
import math
import os
import shutil
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brickprof
from brickprof.capture import forward
from brickprof.capture.insides import Insides
from brickprof.capture.surroundings import _Saved
from brickprof.capture.taps import forward_graphs

BACKEND = "aot_eager_decomp_partition"  # inductor's graphs, and what it keeps, without its code


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Before(nn.Module):
    """Norms before, as in GPT-2."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, 2), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Behind(Before):
    """Norms behind, as in BERT."""

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Gated(nn.Module):
    """A norm without weights and a gate that is half of one product."""

    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width, 2)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(F.rms_norm(x, x.shape[-1:]))
        gate, up = self.up(F.rms_norm(x, x.shape[-1:])).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Words(nn.Module):
    def __init__(self, block, tied=False):
        super().__init__()
        self.embed, self.position = nn.Embedding(16, 8), nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(block(8) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @staticmethod
    def given():
        return torch.randint(16, (4, 6))


class Layer(nn.Module):
    """All in one line: it says of no operation which layer it belongs to."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.linear(x))


class Lines(nn.Sequential):
    def __init__(self):
        super().__init__(*(Layer(8) for _ in range(4)), nn.Linear(8, 2))

    @staticmethod
    def given():
        return torch.randn(4, 8)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(3)))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    @staticmethod
    def given():
        return torch.randn(2, 3, 8, 8)


MODELS = {
    "before": lambda: Words(Before),
    "tied": lambda: Words(Before, tied=True),
    "behind": lambda: Words(Behind),
    "gated": lambda: Words(Gated),
    "lines": Lines,
    "images": Images,
}


def whole(net):
    return torch.compile(net, backend=BACKEND)


def function(net):
    return torch.compile(lambda x: net(x).square(), backend=BACKEND)


def blocks(net):
    for block in getattr(net, "blocks", net):
        block.compile(backend=BACKEND)
    return net


def parts(net):
    """All blocks, as one frame each, and what stands around them."""
    for name, child in net.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            for number, block in enumerate(child):
                child[number] = torch.compile(block, backend=BACKEND)
        else:
            setattr(net, name, torch.compile(child, backend=BACKEND))
    return net


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    torch._dynamo.reset()
    forward_graphs.known.clear()
    monkeypatch.setattr(_Saved, "by_others", False)
    yield
    torch._dynamo.reset()


def hooked(net, given):
    """The first block that puts out something that is not finite, by hooks, of a model that is not compiled."""
    found = []

    def look(name):
        return lambda module, args, output: found.append(name) if not output.isfinite().all() else None

    stack = net.blocks if hasattr(net, "blocks") else net
    for name, child in net.named_children():
        if child is not stack:
            child.register_forward_hook(look(name))
    prefix = "blocks." if hasattr(net, "blocks") else ""
    for name, block in stack.named_children():
        block.register_forward_hook(look(f"{prefix}{name}"))
    with torch.no_grad():
        net(given)
    return found[0] if found else ""


def blamed(session, insides, loss):
    """The path of the first block that is blamed; "nobody" where it is certain that something broke, and no block."""
    paths = {number: brick.path for brick, number in session.journal.bricks.items()}
    looked = insides.outputs(loss, learn=True)
    assert looked
    return next((paths.get(brick, "nobody") for brick, value, _ in looked if not value.isfinite().all()), "")


SUM = {"embed", "position"}
TOGETHER = {(kind, compiles): SUM for kind in ("before", "tied", "behind", "gated") for compiles in (blocks, parts)}
for _compiles in (whole, function):
    TOGETHER["behind", _compiles] = {*SUM, "blocks.2.norm2", "norm"}
TOGETHER["images", whole] = {"head"}
"""Where nothing is kept between two modules nobody is blamed: their sum, or the norm of a norm."""


def of_text(module):
    """As of code that came from a cache: all there is of it is its text."""
    text = module.print_readable(print_output=False, include_stride=True, include_device=True, expanded_def=True)
    made_of, inputs = forward_graphs._under_way.graph
    return forward.of_text(text, forward.traced(made_of, forward_graphs._parameters(inputs)))


class Readings:
    """Of the same code: by its graph, and by its text alone."""

    def __init__(self, session, monkeypatch):
        self._texts = []
        readable = lambda value: value.is_contiguous() and value.is_floating_point()  # noqa: E731
        self._insides = [Insides(session, readable), Insides(session, readable)]
        self._session = session
        monkeypatch.setattr(forward_graphs, "forward", SimpleNamespace(of_module=self._read))

    def _read(self, module):
        self._texts.append(of_text(module))
        return forward.of_module(module)

    def blamed(self, loss):
        graphs = dict(forward_graphs.known)
        told = [blamed(self._session, self._insides[0], loss)]
        texts = zip(graphs, self._texts, strict=True)
        forward_graphs.known.update({number: graphs[number]._replace(forward=text) for number, text in texts})
        told.append(blamed(self._session, self._insides[1], loss))
        forward_graphs.known.update(graphs)
        return told


@pytest.mark.parametrize("compiles", [whole, function, blocks, parts])
@pytest.mark.parametrize("kind", MODELS)
def test_every_weight_that_breaks_is_found_in_its_block(tmp_path, monkeypatch, kind, compiles):
    torch.manual_seed(0)
    net = MODELS[kind]()
    plain = copy.deepcopy(net)
    weights, given = dict(plain.named_parameters()), plain.given()
    wrong, told, silent = [], 0, []
    with brickprof.attach(net, out=tmp_path) as bp:
        run = compiles(net)
        readings = Readings(bp._session, monkeypatch)
        names = dict(zip(weights, net.parameters(), strict=True))
        run(given).square().mean().backward()
        for name, parameter in names.items():
            before = parameter.detach().clone()
            for each in (parameter, weights[name]):
                each.data.view(-1)[:: max(each.numel() // 3, 1)] = math.inf
            loss = run(given).square().mean()
            expected = hooked(copy.deepcopy(plain), given)
            for found in readings.blamed(loss):
                told += found == expected
                if found in ("nobody", ""):
                    silent.append((name, expected, found))
                elif found != expected:
                    wrong.append((name, expected, found))
            for each in (parameter, weights[name]):
                each.data.copy_(before)
        loss = run(given).square().mean()
        assert readings.blamed(loss) == ["", ""]
    assert not wrong
    assert {name.rpartition(".")[0] for name, _, _ in silent} <= TOGETHER.get((kind, compiles), set())
    assert told == 2 * len(names) - len(silent)


class Asks(nn.Module):
    """A part of each step in which ``what`` is asked for."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.what = nn.Linear(8, 8), what
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        h = self.linear(F.layer_norm(x, (8,)))
        h = h * F.softmax(h, -1)
        return x + self.what(h, self.scale)


class Asked(nn.Module):
    def __init__(self, *what):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(Asks(each) for each in what)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def logarithm(h, scale):
    return torch.log(h.exp() + 1e-4)


def of_a_constant(h, scale):
    return h * scale.log()


def ratio(h, scale):
    return h / (1.0 + h.abs())


def nothing(h, scale):
    return F.gelu(h)


def of_the_targets(h, scale):
    return h * F.cross_entropy(h, torch.full((4,), 3))


def of_both(h, scale):
    return h * F.cross_entropy(h, torch.full((4,), 3)) / scale


def line_of(function):
    return f"test_blame.py:{function.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("compiles", [whole, blocks])
@pytest.mark.parametrize("cached", [False, True])
def test_operations_without_a_finite_result_of_some_values_are_named(tmp_path, monkeypatch, compiles, cached):
    """With the line that asked for them; not what a norm or a softmax is made of."""
    if cached:
        monkeypatch.setattr(forward_graphs, "forward", SimpleNamespace(of_module=of_text))
    torch.manual_seed(0)
    net = Asked(nothing, logarithm, of_a_constant, ratio, of_the_targets, of_both)
    with brickprof.attach(net, out=tmp_path) as bp:
        run = compiles(net)
        insides = Insides(bp._session, lambda value: value.is_contiguous() and value.is_floating_point())
        looked = insides.outputs(run(torch.randn(4, 8)).square().mean(), learn=True)
        paths = {number: brick.path for brick, number in bp._session.journal.bricks.items()}
    named = {}
    for brick, _, asked in looked:
        named.setdefault(paths.get(brick, ""), set()).update(asked)
    assert named.pop("blocks.0") == set()
    assert named.pop("blocks.1") == {f"log in {line_of(logarithm)}", f"exp in {line_of(logarithm)}"}
    assert named.pop("blocks.2") == {f"log in {line_of(of_a_constant)}"}
    assert named.pop("blocks.3") == {f"div in {line_of(ratio)}"}
    assert named.pop("blocks.4") == {f"nll_loss in {line_of(of_the_targets)}"}
    assert f"div in {line_of(of_both)}" in named.pop("blocks.5")
    assert not any(named.values())


def test_of_two_models_with_the_same_code_it_is_the_right_one(tmp_path):
    torch.manual_seed(0)
    nets = [Words(Before), Words(Before)]
    given = nets[0].given()
    with brickprof.attach(nets[0], out=tmp_path) as bp:
        runs = [whole(net) for net in nets]
        optimizer = torch.optim.SGD([each for net in nets for each in net.parameters()], lr=0.0)
        insides = Insides(bp._session, lambda value: value.is_contiguous() and value.is_floating_point())
        for _ in range(2):
            for run in runs:
                run(given).square().mean().backward()
            optimizer.step()
        models = {model.root(): model.name for model in bp._session.models}
        assert len(models) == 2
        for run in runs:
            looked = insides.outputs(run(given).square().mean(), learn=True)
            bricks = {number: brick for brick, number in bp._session.journal.bricks.items()}
            assert {bricks[brick].model for brick, _, _ in looked if brick} == {models[run]}


def test_nothing_that_was_looked_at_lives_longer(tmp_path):
    net = Words(Before)
    given = net.given()
    with brickprof.attach(net, out=tmp_path) as bp:
        run = whole(net)
        insides = Insides(bp._session, lambda value: value.is_contiguous() and value.is_floating_point())
        loss = run(given).square().mean()
        looked = insides.outputs(loss, learn=True)
        kept = [weakref.ref(value.untyped_storage()) for _, value, _ in looked]
        del looked
        loss.backward()
        del loss
        gc.collect()
        assert len(kept) > 4 and all(each() is None for each in kept)


def test_what_can_be_read_once_is_left_to_the_backward(tmp_path):
    net = Words(Before)
    with brickprof.attach(net, out=tmp_path) as bp:
        run = whole(net)
        insides = Insides(bp._session, lambda value: value.is_contiguous() and value.is_floating_point())
        loss = run(net.given()).square().mean()
        waiting, compiled = [loss.grad_fn], None
        while compiled is None:
            each = waiting.pop()
            compiled = getattr(type(each), "_forward_cls", None)
            waiting += [one for one, _ in each.next_functions]
        compiled.clear_saved_tensors_on_access = True
        assert insides.outputs(loss, learn=True) == []
        loss.backward()
        assert net.head.weight.grad.isfinite().all()


TWICE = """\
import sys, torch, brickprof
from brickprof.capture import forward
from brickprof.capture.insides import Insides
from tests.test_blame import Lines

read = []
for name in ("of_module", "of_text"):
    setattr(forward, name, lambda *args, name=name, of=getattr(forward, name): (read.append(name), of(*args))[1])
torch.manual_seed(0)
net = Lines()
with brickprof.attach(net, out=sys.argv[1]) as bp:
    run = torch.compile(net)
    for _ in range(2):
        loss = run(net.given()).square().mean()
        looked = Insides(bp._session, torch.Tensor.is_contiguous).outputs(loss, learn=True)
        loss.backward()
    paths = {number: brick.path for brick, number in bp._session.journal.bricks.items()}
    print(read, [paths[brick] for brick, _, _ in looked if brick])
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_code_from_a_cache_tells_as_much_as_code_that_was_just_made(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.getcwd()}
    told = []
    for _ in range(2):
        command = [sys.executable, "-c", TWICE, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.splitlines()[-1])
    blocks = "['0', '1', '2', '3', '4']"
    assert told == [f"['of_module'] {blocks}", f"['of_text'] {blocks}"]
