"""An encoder project with a schedule of its own: warm-up, then a linear decay. The warm-up factor is computed with
integer division and is zero until the warm-up is over, which this run never is: no weight moves at all."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from torch import nn

TRUTH = {
    "id": "cause-project-warmup-division",
    "row": None,
    "title": "integer division makes the warm-up factor zero",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001", "C-LEARN-001"],
    "root_causes": ["schedule-never-peaks", "learning-rate-too-low"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "args": ["--config", "model.yaml"],
    "files": {
        "model.yaml": "model:\n  dim: 32\n  depth: 2\n  heads: 4\ntrain:\n  steps: 160\n  batch: 24\n  peak: 0.002\n"
        "  warmup: 200\n  total: 2000\n  eval_every: 40\n"
    },
}


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed(self.norm2(x))


class Ranker(nn.Module):
    """Says for each item of a list whether it is above the list's mean."""

    def __init__(self, dim, depth, heads):
        super().__init__()
        self.enter = nn.Linear(1, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.leave = nn.Linear(dim, 1)

    def forward(self, values):
        x = self.enter(values.unsqueeze(-1))
        for layer in self.layers:
            x = layer(x)
        return self.leave(x).squeeze(-1)


class Schedule:
    def __init__(self, optimizer, peak, warmup, total):
        self.optimizer, self.peak, self.warmup, self.total = optimizer, peak, warmup, total
        self.count = 0

    def factor(self):
        if self.count < self.warmup:
            return self.count // self.warmup
        return max(0.0, (self.total - self.count) / (self.total - self.warmup))

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * self.factor()
        self.count += 1


def lists(size):
    values = torch.randn(size, 9) + torch.randn(size, 1)
    return values, (values > values.mean(1, keepdim=True)).float()


@torch.no_grad()
def evaluate(model):
    model.eval()
    values, labels = lists(200)
    right = ((model(values) > 0).float() == labels).float().mean().item()
    model.train()
    return right


def train(config, folder):
    options = config["train"]
    model = Ranker(**config["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=options["peak"])
    schedule = Schedule(optimizer, options["peak"], options["warmup"], options["total"])
    for step in range(options["steps"]):
        schedule.step()
        values, labels = lists(options["batch"])
        loss = F.binary_cross_entropy_with_logits(model(values), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options["eval_every"] == 0:
            rate = optimizer.param_groups[0]["lr"]
            print(f"step {step} loss {loss.item():.4f} accuracy {evaluate(model):.3f} lr {rate:.2e}")
    torch.save(model.state_dict(), Path(folder, "ranker.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        train(yaml.safe_load(Path(args.config).read_text()), folder)
