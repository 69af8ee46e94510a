import math
import os
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-finetune-from-pretrained",
    "row": 34,
    "title": "the fine-tuning run takes its step counter from the pretrained file and starts at the end of its own schedule",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 200,
    "needs": "cpu",
    "crashes": False,
}

SIZE = 16


def textures(n, classes, seed, phase):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    ang = y.view(-1, 1, 1) * math.pi / classes + phase
    wave = torch.sin(0.9 * (xx * ang.cos() + yy * ang.sin()) + 6.28 * torch.rand(n, 1, 1, generator=g))
    return (wave + 0.5 * torch.randn(n, SIZE, SIZE, generator=g)).unsqueeze(1), y


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Linear(128, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Run:
    def __init__(self, classes, total_steps, lr):
        self.model = Net(classes)
        self.total, self.lr, self.step = total_steps, lr, 0
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def restore(self, path):
        blob = torch.load(path)
        weights = {k: v for k, v in blob["model"].items() if not k.startswith("classifier")}
        self.model.load_state_dict(weights, strict=False)
        self.step = blob.get("step", 0)
        return self

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step}, path)

    def rate(self):
        if self.step < 10:
            return self.lr * (self.step + 1) / 10
        return self.lr * 0.5 * (1 + math.cos(math.pi * self.step / self.total))

    def fit(self, x, y, vx, vy, bs=32):
        g = torch.Generator().manual_seed(0)
        while self.step < self.total:
            for group in self.opt.param_groups:
                group["lr"] = self.rate()
            idx = torch.randint(0, len(x), (bs,), generator=g)
            loss = F.cross_entropy(self.model(x[idx]), y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % 20 == 0:
                self.model.eval()
                with torch.no_grad():
                    acc = (self.model(vx).argmax(1) == vy).float().mean().item()
                self.model.train()
                print(f"step {self.step:4d} lr {self.opt.param_groups[0]['lr']:.2e} loss {loss.item():.3f} acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    base = Run(classes=4, total_steps=200, lr=3e-3)
    base.fit(*textures(2000, 4, 1, 0.0), *textures(300, 4, 2, 0.0))
    base.save("base_cnn.pt")
    print("--- fine-tuning on the target task ---")
    target = Run(classes=7, total_steps=280, lr=2e-3).restore("base_cnn.pt")
    target.fit(*textures(2000, 7, 3, 0.3), *textures(300, 7, 4, 0.3))
    os.remove("base_cnn.pt")
