import argparse

import torch
import torch.nn as nn
import yaml

TRUTH = {
    "id": "blind-yaml-tabular",
    "row": None,
    "title": "gradient_accumulation_steps: 16 is declared in conf.yaml and read, but the loop steps after every micro-batch of 4",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
    "run": ["--config", "conf.yaml"],
    "files": {
        "conf.yaml": "seed: 13\nmodel:\n  hidden: 64\n  depth: 2\ndata:\n  rows: 6000\n  micro_batch_size: 4\ntrain:\n  max_steps: 300\n"
        "  gradient_accumulation_steps: 16\n  learning_rate: 0.03\n  momentum: 0.9\n  weight_decay: 0.0001\n  log_every: 30\n"
    },
}


class Settings:
    def __init__(self, path):
        with open(path) as f:
            raw = yaml.safe_load(f)
        self.seed = raw["seed"]
        self.hidden = raw["model"]["hidden"]
        self.depth = raw["model"]["depth"]
        self.rows = raw["data"]["rows"]
        self.micro_batch_size = raw["data"]["micro_batch_size"]
        t = raw["train"]
        self.max_steps = t["max_steps"]
        self.gradient_accumulation_steps = t["gradient_accumulation_steps"]
        self.learning_rate = t["learning_rate"]
        self.momentum = t["momentum"]
        self.weight_decay = t["weight_decay"]
        self.log_every = t["log_every"]


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, 12, generator=g)
    h = torch.tanh(x @ w)
    y = h[:, 0] * h[:, 1] + h[:, 2] - 0.5 * h[:, 3] + h[:, 4].pow(2)
    return x, (y + 0.3 * torch.randn(n, generator=g)).unsqueeze(1)


def mlp(d_in, hidden, depth):
    layers, d = [], d_in
    for _ in range(depth):
        layers += [nn.Linear(d, hidden), nn.ReLU()]
        d = hidden
    return nn.Sequential(*layers, nn.Linear(d, 1))


def stream(x, y, size):
    while True:
        order = torch.randperm(len(x))
        for k in range(0, len(x) - size + 1, size):
            i = order[k : k + size]
            yield x[i], y[i]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--config", default="conf.yaml")
    cfg = Settings(p.parse_args().config)
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)

    x, y = table(cfg.rows, 1)
    xv, yv = table(1000, 2)
    model = mlp(x.shape[1], cfg.hidden, cfg.depth)
    opt = torch.optim.SGD(
        model.parameters(), lr=cfg.learning_rate, momentum=cfg.momentum, weight_decay=cfg.weight_decay
    )
    batches = stream(x, y, cfg.micro_batch_size)

    print(
        f"training for {cfg.max_steps} steps, effective batch {cfg.micro_batch_size * cfg.gradient_accumulation_steps}"
    )
    model.train()
    for step in range(1, cfg.max_steps + 1):
        bx, by = next(batches)
        loss = nn.functional.mse_loss(model(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % cfg.log_every == 0:
            model.eval()
            with torch.no_grad():
                val = nn.functional.mse_loss(model(xv), yv).item()
            model.train()
            print(f"step {step} train {loss.item():.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
