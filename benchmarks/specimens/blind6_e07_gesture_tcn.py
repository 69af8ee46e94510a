import json
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind6-e07-gesture-tcn",
    "row": None,
    "title": "the metrics pass puts the network in eval mode and nothing puts it back; from epoch 1 dropout and batch-norm updates are off",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 12,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = json.loads("""
{"channels": 6, "length": 48, "classes": 5, "width": 48, "p": 0.4,
 "train_size": 144, "val_size": 400, "batch": 12, "epochs": 36, "lr": 0.003, "weight_decay": 0.0001}
""")


class Gestures(Dataset):
    def __init__(self, n, cfg, seed):
        g = torch.Generator().manual_seed(seed)
        proto = torch.randn(cfg["classes"], cfg["channels"], cfg["length"], generator=torch.Generator().manual_seed(77))
        proto = nn.functional.avg_pool1d(proto, 9, 1, 4) * 1.5
        self.y = torch.randint(0, cfg["classes"], (n,), generator=g)
        shift = torch.randint(-4, 5, (n,), generator=g)
        x = torch.stack([proto[c].roll(int(s), -1) for c, s in zip(self.y.tolist(), shift)])
        self.x = x + 3.0 * torch.randn(x.shape, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TemporalBlock(nn.Module):
    def __init__(self, cin, cout, dilation, p):
        super().__init__()
        pad = 2 * dilation
        self.net = nn.Sequential(
            nn.Conv1d(cin, cout, 5, padding=pad, dilation=dilation), nn.BatchNorm1d(cout), nn.ReLU(), nn.Dropout(p))
        self.proj = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.net(x) + self.proj(x)


def tcn(cfg):
    w = cfg["width"]
    return nn.Sequential(
        TemporalBlock(cfg["channels"], w, 1, cfg["p"]),
        TemporalBlock(w, w, 2, cfg["p"]),
        TemporalBlock(w, w, 4, cfg["p"]),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Dropout(cfg["p"]), nn.Linear(4 * w, cfg["classes"]))


class Metrics:
    def __init__(self, loader):
        self.loader = loader
        self.rows = []

    @torch.no_grad()
    def __call__(self, net, epoch):
        net.eval()
        loss = right = n = 0
        for x, y in self.loader:
            out = net(x)
            loss += nn.functional.cross_entropy(out, y, reduction="sum").item()
            right += (out.argmax(-1) == y).sum().item()
            n += len(y)
        self.rows.append({"epoch": epoch, "loss": loss / n, "acc": right / n})
        return self.rows[-1]


def run(cfg):
    torch.manual_seed(2)
    train = DataLoader(Gestures(cfg["train_size"], cfg, 1), cfg["batch"], shuffle=True)
    metrics = Metrics(DataLoader(Gestures(cfg["val_size"], cfg, 2), 200))
    net = tcn(cfg)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg["epochs"])
    net.train()
    for epoch in range(cfg["epochs"]):
        tot = 0.0
        for x, y in train:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        sched.step()
        row = metrics(net, epoch)
        print(f"{epoch:2d} train {tot / len(train):.4f} val {row['loss']:.4f} acc {row['acc']:.3f}")
    return metrics.rows


if __name__ == "__main__":
    rows = run(CONFIG)
    print("best", min(rows, key=lambda r: r["loss"]))
