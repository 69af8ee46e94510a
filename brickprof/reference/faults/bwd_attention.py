"""Weights and scratch space lie in one arena. The region for the transposed scores of the attention's backward was
measured with the head's width where the length of the line is needed: the transpose runs on into the next region and
overwrites the attention's own weights in every step."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "bwd-attention",
    "row": 5,
    "title": "transpose in the attention's backward overflows its region of the arena",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-BUFSIZE-001", "C-BACKPARITY-001"],
    "root_causes": ["buffer-overflow"],
    "bricks": ["attention", "attention.qkv", "attention.out"],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

BATCH, LENGTH, WIDTH, VOCAB = 8, 32, 16, 24
REGION = BATCH * LENGTH * WIDTH
ARENA = torch.zeros(4 * REGION)


def region(offset, *shape):
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return torch.as_strided(ARENA, shape, stride, offset)


class ArenaAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        weights = (q @ k.transpose(1, 2) / math.sqrt(WIDTH) + mask).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        grad_v = weights.transpose(1, 2) @ grad
        inner = grad @ v.transpose(1, 2)
        scores = weights * (inner - (inner * weights).sum(-1, keepdim=True)) / math.sqrt(WIDTH)
        transposed = region(0, BATCH, LENGTH, LENGTH)
        transposed.copy_(scores.transpose(1, 2))
        return scores @ k, transposed @ q, grad_v, None


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, x):
        return self.out(ArenaAttention.apply(*self.qkv(x).chunk(3, -1), self.mask))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed(ids) + self.place.weight
        x = x + self.attention(x)
        return self.head(x + self.mlp(x))


def pack(parameters, offset):
    """Moves the parameters into the arena, one after the other."""
    for parameter in parameters:
        place = region(offset, *parameter.shape)
        place.copy_(parameter.detach())
        parameter.data = place
        offset += parameter.numel()


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
pack(model.attention.parameters(), offset=REGION)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(160):
    stride = torch.randint(1, 4, (BATCH, 1))
    line = (torch.randint(VOCAB, (BATCH, 1)) + stride * torch.arange(LENGTH + 1)) % VOCAB
    loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
