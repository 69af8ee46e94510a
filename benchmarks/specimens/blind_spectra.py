"""Concentrations of five compounds from simulated spectra. Usage: a_15_spectra.py --config conf.yaml"""

import argparse

import torch
import torch.nn as nn
import yaml
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-spectra",
    "row": None,
    "title": "the config asks for SGD with momentum 0.9, the builder never passes momentum on (0 in force)",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
    "run": ["--config", "conf.yaml"],
    "files": {
        "conf.yaml": "seed: 5\ndata:\n  n_train: 4096\n  noise: 0.02\nmodel:\n  hidden: 96\noptimizer:\n  name: sgd\n  lr: 0.01\n  momentum: 0.9\n  weight_decay: 0.0001\ntrain:\n  epochs: 6\n  batch_size: 64\n"
    },
}


def simulate(n, noise, gen):
    grid = torch.linspace(0, 1, 80)
    centres = torch.tensor([0.15, 0.3, 0.45, 0.62, 0.85])[:, None]
    widths = torch.tensor([0.08, 0.1, 0.06, 0.12, 0.07])[:, None]
    peaks = torch.exp(-0.5 * ((grid - centres) / widths) ** 2)
    conc = torch.rand(n, 5, generator=gen)
    absorb = 1 - torch.exp(-1.5 * conc @ peaks)
    spec = absorb + noise * torch.randn(n, 80, generator=gen)
    return spec, conc


OPTIMIZERS = {
    "sgd": lambda params, o: torch.optim.SGD(params, lr=o["lr"], weight_decay=o.get("weight_decay", 0.0)),
    "adamw": lambda params, o: torch.optim.AdamW(
        params, lr=o["lr"], betas=tuple(o.get("betas", (0.9, 0.999))), weight_decay=o.get("weight_decay", 0.01)
    ),
}


def build_optimizer(model, opt_cfg):
    return OPTIMIZERS[opt_cfg["name"]](model.parameters(), opt_cfg)


def build_model(hidden):
    return nn.Sequential(
        nn.Linear(80, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 5),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="conf.yaml")
    with open(ap.parse_args().config) as f:
        cfg = yaml.safe_load(f)

    torch.manual_seed(cfg["seed"])
    gen = torch.Generator().manual_seed(cfg["seed"])
    spec, conc = simulate(cfg["data"]["n_train"] + 512, cfg["data"]["noise"], gen)
    n = cfg["data"]["n_train"]
    mean, std = spec[:n].mean(0), spec[:n].std(0)
    spec = (spec - mean) / std
    target = (conc - 0.5) / 0.289
    loader = DataLoader(TensorDataset(spec[:n], target[:n]), batch_size=cfg["train"]["batch_size"], shuffle=True)

    model = build_model(cfg["model"]["hidden"])
    optimizer = build_optimizer(model, cfg["optimizer"])
    loss_fn = nn.MSELoss()
    for epoch in range(cfg["train"]["epochs"]):
        model.train()
        total = 0.0
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            val = loss_fn(model(spec[n:]), target[n:]).item()
        print(f"epoch {epoch} train {total / len(loader):.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
