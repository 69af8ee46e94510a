import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-e06-blob-detector",
    "row": None,
    "title": "objectness head already applies a sigmoid and the criterion is BCE with logits",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

GRID, CELL = 6, 6
SIDE = GRID * CELL


def render(n, gen):
    """Images with 1..4 bright discs; targets per grid cell: presence, offset (2), radius."""
    img = 0.3 * torch.randn(n, 1, SIDE, SIDE, generator=gen)
    obj = torch.zeros(n, GRID, GRID)
    geo = torch.zeros(n, 3, GRID, GRID)
    yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    for b in range(n):
        k = int(torch.randint(1, 5, (1,), generator=gen))
        for cell in torch.randperm(GRID * GRID, generator=gen)[:k].tolist():
            i, j = divmod(cell, GRID)
            o = torch.rand(3, generator=gen)
            cy, cx, r = (i + o[0]) * CELL, (j + o[1]) * CELL, 1.5 + 2 * o[2]
            img[b, 0] += ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).float()
            obj[b, i, j] = 1
            geo[b, :, i, j] = o
    return img, obj, geo


class Detector(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        def unit(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1))
        self.backbone = nn.Sequential(unit(1, w, 1), unit(w, w, 2), unit(w, 2 * w, 3), unit(2 * w, 2 * w, 1))
        self.objectness = nn.Sequential(nn.Conv2d(2 * w, 2 * w, 1), nn.LeakyReLU(0.1), nn.Conv2d(2 * w, 1, 1), nn.Sigmoid())
        self.geometry = nn.Sequential(nn.Conv2d(2 * w, 2 * w, 1), nn.LeakyReLU(0.1), nn.Conv2d(2 * w, 3, 1))

    def forward(self, x):
        f = self.backbone(x)
        return {"objectness": self.objectness(f).squeeze(1), "geometry": self.geometry(f)}


class DetectionLoss(nn.Module):
    def __init__(self, geo_weight=2.0):
        super().__init__()
        self.geo_weight = geo_weight
        self.bce = nn.BCEWithLogitsLoss()

    def forward(self, out, obj, geo):
        l_obj = self.bce(out["objectness"], obj)
        mask = obj[:, None]
        l_geo = (F.smooth_l1_loss(out["geometry"], geo, reduction="none") * mask).sum() / mask.sum().clamp(min=1)
        return l_obj + self.geo_weight * l_geo, l_obj.detach(), l_geo.detach()


@torch.no_grad()
def evaluate(model, crit, data):
    model.eval()
    out = model(data[0])
    _, lo, lg = crit(out, *data[1:])
    hit = out["objectness"] > 0.5
    true = data[1] > 0
    tp = (hit & true).sum().item()
    model.train()
    return lo.item(), lg.item(), 2 * tp / max(1, hit.sum().item() + true.sum().item())


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(3)
    train, val = render(560, gen), render(100, gen)
    model, crit = Detector(), DetectionLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    epochs, bs = 7, 28
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=epochs * (560 // bs))
    for epoch in range(epochs):
        for idx in torch.randperm(560).split(bs):
            loss, lo, lg = crit(model(train[0][idx]), train[1][idx], train[2][idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        vo, vg, f1 = evaluate(model, crit, val)
        print(f"epoch {epoch}: obj {lo:.3f} geo {lg:.3f} | val obj {vo:.3f} geo {vg:.3f} F1 {f1:.3f}")


if __name__ == "__main__":
    main()
