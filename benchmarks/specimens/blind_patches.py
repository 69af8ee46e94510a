import argparse
import math

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-patches",
    "row": None,
    "title": "peak learning rate 0.1 for AdamW on a transformer, about a hundred times too large",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class PatchClassifier(nn.Module):
    def __init__(self, n_patches=16, patch_dim=16, d=64, heads=4, layers=3, classes=8):
        super().__init__()
        self.embed = nn.Linear(patch_dim, d)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, n_patches + 1, d) * 0.02)
        layer = nn.TransformerEncoderLayer(
            d, heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, patches):
        x = self.embed(patches)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        x = self.encoder(x)
        return self.head(self.norm(x[:, 0]))


def make_data(n, protos, gen):
    y = torch.randint(0, len(protos), (n,), generator=gen)
    img = protos[y] + 0.9 * torch.randn(n, 16, 16, generator=gen)
    return img, y


def lr_at(step, peak, warmup, total):
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, total - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * t))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-1)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seed", type=int, default=5)
    a = p.parse_args()

    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed)
    protos = torch.randn(8, 16, 16, generator=gen)
    x_train, y_train = make_data(4000, protos, gen)
    x_test, y_test = make_data(800, protos, gen)

    model = PatchClassifier()
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    criterion = nn.CrossEntropyLoss()

    order = torch.randperm(len(x_train))
    cursor = 0
    for step in range(a.steps):
        if cursor + a.batch > len(order):
            order, cursor = torch.randperm(len(x_train)), 0
        idx = order[cursor : cursor + a.batch]
        cursor += a.batch
        for group in opt.param_groups:
            group["lr"] = lr_at(step, a.lr, a.warmup, a.steps)
        model.train()
        loss = criterion(model(x_train[idx]), y_train[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == a.steps - 1:
            model.eval()
            with torch.no_grad():
                acc = (model(x_test).argmax(-1) == y_test).float().mean()
            print(f"{step:4d} loss {loss.item():.4f} test acc {acc:.3f} lr {opt.param_groups[0]['lr']:.2e}")


if __name__ == "__main__":
    main()
