"""A 24-layer decoder without residual scaling, with large initial weights: gradients grow layer by layer on their way
down. Clipping is configured, but it is given the blocks only; the embedding takes 1e20 unclipped, and the next forward
is NaN."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-044a",
    "row": 7,
    "title": "clip leaves the embedding out of a 24-layer network whose gradients explode",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-EMBED-GRAD-001", "C-CLIP-001", "C-TRAINSTABLE-001", "FALSIFY-ALBOR-002"],
    "root_causes": ["grad-clip-wrong", "exploding-gradients"],
    "bricks": ["embed"],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "files": {
        "train.yaml": "num_hidden_layers: 24\nhidden_size: 64\nbatch_size: 8\nmax_steps: 40\nlearning_rate: 0.01\n"
        "momentum: 0.9\nmax_grad_norm: 1.0\nseed: 42\n"
    },
}


@dataclass
class Config:
    vocab: int = 64
    width: int = 64
    layers: int = 24
    length: int = 16
    batch: int = 8
    steps: int = 40
    lr: float = 0.01
    max_grad_norm: float = 1.0


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.down(torch.tanh(self.gate(x)) * torch.tanh(self.up(x)))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        for block in self.blocks:
            for linear in (block.gate, block.up, block.down):
                nn.init.normal_(linear.weight, std=1.2)
            nn.init.normal_(block.qkv.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.005)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches(config):
    while True:
        start = torch.randint(config.vocab, (config.batch, 1))
        line = (start + 3 * torch.arange(config.length + 1)) % config.vocab
        yield line[:, :-1], line[:, 1:]


def train(config):
    torch.manual_seed(42)
    model = Decoder(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    for step, (ids, targets) in zip(range(config.steps), batches(config), strict=False):
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.blocks.parameters(), config.max_grad_norm)
        optimizer.step()
        if step < 4 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} embedding {model.embed.weight.abs().max().item():.3g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Config())
