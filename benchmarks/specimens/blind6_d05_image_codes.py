"""Learn compact codes for image retrieval with pairwise similarity supervision."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d05-image-codes",
    "row": None,
    "title": "the code layer's tanh is sharpened by 400 from the first step: it is saturated and the encoder gets almost no gradient",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["saturated-activations"],
    "bricks": ["coder.act"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Images:
    classes = 10

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.base = torch.randn(self.classes, 1, 12, 12, generator=torch.Generator().manual_seed(99))

    def sample(self, n):
        y = torch.randint(0, self.classes, (n,), generator=self.g)
        x = self.base[y] + 1.2 * torch.randn(n, 1, 12, 12, generator=self.g)
        return x / 1.6, y


class Coder(nn.Module):
    def __init__(self, dim, bits, sharpness):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, bits)
        self.act = nn.Tanh()
        self.sharpness = sharpness

    def forward(self, h):
        return self.act(self.sharpness * self.proj(self.norm(h)))


class RetrievalNet(nn.Module):
    def __init__(self, bits=24, sharpness=400.0):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU())
        self.coder = Coder(64, bits, sharpness)

    def forward(self, x):
        return self.coder(self.encoder(x))


def pair_loss(codes, y):
    same = (y[:, None] == y[None, :]).float()
    logits = codes @ codes.t() / codes.size(1) * 6.0
    off = ~torch.eye(len(y), dtype=torch.bool)
    w = torch.where(same > 0, 4.0, 1.0)
    return F.binary_cross_entropy_with_logits(logits[off], same[off], weight=w[off])


@torch.no_grad()
def precision_at_5(net, data):
    net.eval()
    xq, yq = data.sample(200)
    xd, yd = data.sample(600)
    q, d = net(xq).sign(), net(xd).sign()
    top = (q @ d.t()).topk(5, dim=1).indices
    net.train()
    return (yd[top] == yq[:, None]).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(5)
    train, test = Images(1), Images(2)
    net = RetrievalNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    total = 240
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for step in range(total):
        x, y = train.sample(64)
        loss = pair_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        opt.step()
        sched.step()
        if step % 40 == 0 or step == total - 1:
            print(f"step {step} pair loss {loss.item():.4f} p@5 {precision_at_5(net, test):.3f}")
