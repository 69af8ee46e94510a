import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-segment-amp",
    "row": 20,
    "title": "gradients are clipped while they still carry the loss scale, then unscaled by the step: the real gradient norm is about 1/65536 of the limit",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-scale-misused", "grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Blobs(Dataset):
    def __init__(self, n, seed, s=24):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(s).float(), torch.arange(s).float(), indexing="ij")
        c = 4 + (s - 8) * torch.rand(n, 2, generator=g)
        r = 3 + 4 * torch.rand(n, generator=g)
        d = ((yy - c[:, 0, None, None]) ** 2 + (xx - c[:, 1, None, None]) ** 2).sqrt()
        self.m = (d < r[:, None, None]).float()[:, None]
        self.x = self.m + 0.7 * torch.randn(self.m.shape, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.m[i]


class SegNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
        self.enc2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, padding=1, stride=2), nn.BatchNorm2d(2 * c), nn.ReLU())
        self.enc3 = nn.Sequential(nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.dec = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 1, 1))

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc3(self.enc2(a))
        return self.dec(torch.cat([self.up(b), a], 1))


class Engine:
    def __init__(self, model, lr=0.1, clip=1.0):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu")
        self.clip = clip

    def train_step(self, x, m):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(x)
        loss = F.binary_cross_entropy_with_logits(logits.float(), m)
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()

    @torch.no_grad()
    def iou(self, ds):
        self.model.eval()
        p = self.model(ds.x) > 0
        self.model.train()
        t = ds.m > 0.5
        return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()


def main():
    torch.manual_seed(0)
    train, val = Blobs(480, 0), Blobs(64, 1)
    eng = Engine(SegNet())
    for epoch in range(4):
        losses = [eng.train_step(x, m) for x, m in DataLoader(train, batch_size=16, shuffle=True)]
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} iou {eng.iou(val):.3f}")


if __name__ == "__main__":
    main()
