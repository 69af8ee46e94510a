"""Trains a few steps in each mode asked for and prints a fingerprint of everything training leaves behind.

    python train_hash.py eager1 eager2 amp ...      one line a mode: `hash <mode> <part>=<sha256> ...`

The parts are weights, gradients, optimizer state, losses, the random states of torch, numpy and random,
and torch's global switches. It knows nothing of brickprof: that is the point.
"""

import hashlib
import io
import os
import random
import socket
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6
VOCABULARY, LENGTH, BATCH = 17, 32, 8


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, width=64, layers=2, dropout=0.1, recompute=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def sentences(count=STEPS * BATCH * 2):
    ids = (torch.randint(VOCABULARY, (count, 1)) + torch.arange(LENGTH + 1)) % VOCABULARY
    return TensorDataset(ids[:, :-1], ids[:, 1:])


def fit_gpt(model, *, accumulate=1, workers=0, steps=STEPS):
    """The plain loop: DataLoader, AdamW, clipping, cosine schedule, dropout, python and numpy noise."""
    loader = DataLoader(sentences(), batch_size=BATCH, shuffle=True, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for i, (ids, targets) in zip(range(steps * accumulate), loader, strict=False):
        ids = torch.roll(ids, random.randrange(3) + np.random.randint(3), dims=0)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) / accumulate
        loss.backward()
        losses.append(loss.item())
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=i % 2 == 0)
    return [model], [optimizer], losses


def eager(threads):
    torch.set_num_threads(threads)
    return fit_gpt(GPT())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 96), nn.Linear(96, 1)
        self.norm, self.mix = nn.LayerNorm(96), nn.Linear(96, 96)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.enter(x)
        return self.leave(x + self.dropout(F.gelu(self.mix(self.norm(x)))))


def compiled(threads):
    torch.set_num_threads(threads)
    model, losses = torch.compile(Residual()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x = torch.randn(512, 8)
        loss = F.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return [model], [optimizer], losses


class Regressor(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def amp():
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
    losses = []
    for _ in range(2 * STEPS):
        x = torch.randn(64, 8)
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append((loss.item(), scaler.get_scale()))
    return [model], [optimizer], losses


class Painter(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Linear(32, 2))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 32), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.2), nn.Linear(32, 1))


def gan():
    painter, critic = Painter(), Critic()
    paint = torch.optim.Adam(painter.parameters(), lr=1e-3)
    judge = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        fake = painter(torch.randn(32, 4))
        judge.zero_grad()
        judged = F.softplus(-critic(torch.randn(32, 2))).mean() + F.softplus(critic(fake.detach())).mean()
        judged.backward()
        judge.step()
        paint.zero_grad()
        painted = F.softplus(-critic(fake)).mean()
        painted.backward()
        paint.step()
        losses.append((judged.item(), painted.item()))
    return [painter, critic], [paint, judge], losses


class Curve(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))


def lbfgs():
    model, x = Curve(), torch.linspace(-2, 2, 100).unsqueeze(1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sin() + 0.01 * torch.randn_like(x))
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return [model], [optimizer], losses


class Follower(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 16, num_layers=2, dropout=0.1, batch_first=True)
        self.read = nn.Linear(16, 1)

    def forward(self, x):
        return self.read(self.lstm(x)[0])


def by_hand():
    """Hand-written SGD: no optimizer at all."""
    model, losses = Follower(), []
    for _ in range(STEPS):
        wave = (torch.arange(21) / 3 + 6 * torch.rand(8, 1)).sin().unsqueeze(2)
        loss = F.mse_loss(model(wave[:, :-1]), wave[:, 1:])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(loss.item())
    return [model], [], losses


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(200, 16, mode="sum", sparse=True)
        self.read = nn.Linear(16, 4)

    def forward(self, words):
        return self.read(self.words(words))


def sparse():
    model, losses = Bag(), []
    optimizers = [
        torch.optim.SparseAdam(model.words.parameters(), lr=1e-2),
        torch.optim.Adagrad(model.read.parameters(), lr=1e-2),
    ]
    for _ in range(STEPS):
        words = torch.randint(200, (16, 5))
        loss = F.cross_entropy(model(words), words[:, 0] % 4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return [model], optimizers, losses


class Voter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
        self.vote = nn.Linear(32, 4)

    def forward(self, x):
        return self.vote(checkpoint(self.body, x, use_reentrant=False) if x.requires_grad else self.body(x))


def resumed():
    """Evaluation in between (dropout on: it draws), a checkpoint, a resume, a loss that is not finite, host reads."""
    model, losses, total = Voter(), [], 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(2 * STEPS):
        x = torch.randn(16, 8, requires_grad=step % 2 == 0)
        y = x.detach()[:, :4].argmax(1)
        loss = F.cross_entropy(model(x), y)
        if step in (5, 6):
            loss = loss + torch.log(torch.relu(model(x)).min())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if bool(torch.isfinite(loss)):
            optimizer.step()
        schedule.step()
        total = total + loss
        losses.append(float(loss))
        if step % 4 == 3:
            with torch.no_grad():
                losses.append(F.nll_loss(torch.log_softmax(model(x), 1), y).item())
            stored = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, stored)
            stored.seek(0)
            again = torch.load(stored)
            model.load_state_dict(again["model"])
            optimizer.load_state_dict(again["optimizer"])
    return [model], [optimizer], [*losses, total]


MODES = {
    "eager1": lambda: eager(threads=1),
    "eager2": lambda: eager(threads=2),
    "compiled1": lambda: compiled(threads=1),
    "compiled2": lambda: compiled(threads=2),
    "accumulation": lambda: fit_gpt(GPT(), accumulate=2),
    "checkpointing": lambda: fit_gpt(GPT(recompute=True)),
    "workers": lambda: fit_gpt(GPT(layers=1), workers=1),
    "amp": amp,
    "gan": gan,
    "lbfgs": lbfgs,
    "by_hand": by_hand,
    "sparse": sparse,
    "resumed": resumed,
}


def seed(offset=0):
    torch.set_num_threads(1)
    random.seed(1 + offset)
    np.random.seed(2 + offset)
    torch.manual_seed(3 + offset)


def absorb(digest, value):
    """Feeds any nest of tensors, containers and plain values into ``digest``, type and shape included."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        digest.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        digest.update(dense.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            absorb(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(b"[")
        for item in value:
            absorb(digest, item)
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode())


def sha(value):
    digest = hashlib.sha256()
    absorb(digest, value)
    return digest.hexdigest()[:16]


def fingerprint(models, optimizers, losses):
    switches = (
        torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(), torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled(),
    )  # fmt: skip
    parts = {
        "weights": [model.state_dict() for model in models],
        "grads": [[p.grad for p in model.parameters()] for model in models],
        "optimizer": [optimizer.state_dict() for optimizer in optimizers],
        "losses": losses,
        "rng": (torch.get_rng_state(), np.random.get_state(), random.getstate()),
        "switches": switches,
        "modules": [[name for name, _ in model.named_modules()] for model in models],
    }
    return " ".join(f"{name}={sha(value)}" for name, value in parts.items())


def rank_of_two(rank):
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    seed(rank)
    wrapped = nn.parallel.DistributedDataParallel(GPT())
    # One write: two ranks share this pipe, and print writes the end of a line by itself.
    os.write(1, f"hash ddp.{rank} {fingerprint(*fit_gpt(wrapped))}\n".encode())
    dist.destroy_process_group()


def ddp():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    mp.spawn(rank_of_two, nprocs=2)


def main():
    warnings.simplefilter("ignore")
    for mode in sys.argv[1:]:
        if mode == "ddp":
            ddp()
            continue
        seed()
        print(f"hash {mode} {fingerprint(*MODES[mode]())}", flush=True)


if __name__ == "__main__":
    main()
