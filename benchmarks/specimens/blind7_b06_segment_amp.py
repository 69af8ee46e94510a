TRUTH = {
    "id": "blind7-b06-segment-amp",
    "row": None,
    "title": "gradients are clipped while still multiplied by the loss scale (no unscale_ before clip_grad_norm_), so SGD updates are ~1/4096 of what they should be",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-scale-misused", "grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HP = """
epochs: 6
batch_size: 16
lr: 0.1
momentum: 0.9
clip: 1.0
amp_dtype: bfloat16
init_scale: 4096
"""


def load_hp(text):
    out = {}
    for line in text.strip().splitlines():
        k, v = [s.strip() for s in line.split(":")]
        try:
            out[k] = int(v)
        except ValueError:
            try:
                out[k] = float(v)
            except ValueError:
                out[k] = v
    return out


class Blobs(Dataset):
    """32x32 grey images with bright discs; mask = disc"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        c = 6 + 20 * torch.rand(n, 2, generator=g)
        r = 3 + 5 * torch.rand(n, generator=g)
        a = torch.arange(32.0)
        d = (a.view(1, 32, 1) - c[:, 0].view(-1, 1, 1)) ** 2 + (a.view(1, 1, 32) - c[:, 1].view(-1, 1, 1)) ** 2
        self.mask = (d < (r ** 2).view(-1, 1, 1)).float().unsqueeze(1)
        self.img = self.mask * 1.2 - 0.3 + 0.6 * torch.randn(n, 1, 32, 32, generator=g)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i], self.mask[i]


def cbr(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1, self.d2 = cbr(1, w), cbr(w, 2 * w)
        self.mid = cbr(2 * w, 2 * w)
        self.up = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.u1 = cbr(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.d1(x)
        b = self.mid(self.d2(self.pool(a)))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


class Trainer:
    def __init__(self, model, hp):
        self.model, self.hp = model, hp
        self.opt = torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"], nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=float(hp["init_scale"]))
        self.dtype = getattr(torch, hp["amp_dtype"])
        self.crit = nn.BCEWithLogitsLoss()

    def step(self, x, y):
        with torch.autocast("cpu", dtype=self.dtype):
            logits = self.model(x)
        loss = self.crit(logits.float(), y)
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.hp["clip"])
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()

    @torch.no_grad()
    def iou(self, loader):
        self.model.eval()
        inter = union = 0.0
        for x, y in loader:
            with torch.autocast("cpu", dtype=self.dtype):
                p = self.model(x).float() > 0
            inter += (p & (y > 0)).sum().item()
            union += (p | (y > 0)).sum().item()
        self.model.train()
        return inter / max(union, 1)

    def fit(self, train, val):
        for ep in range(self.hp["epochs"]):
            losses = [self.step(x, y) for x, y in train]
            print(f"epoch {ep} bce {sum(losses) / len(losses):.4f} val IoU {self.iou(val):.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    hp = load_hp(HP)
    tr = DataLoader(Blobs(480, 1), hp["batch_size"], shuffle=True, drop_last=True)
    va = DataLoader(Blobs(64, 2), 32)
    Trainer(UNet(), hp).fit(tr, va)
