# discrete autoencoder for 1-d waveforms
TRUTH = {
    "id": "blind7-b05-vq-autoencoder",
    "row": None,
    "title": "vector quantiser has no straight-through estimator (and no commitment term): the encoder gets no gradient at all",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["enc"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(21)
L, Z, K, SLOTS = 64, 8, 32, 4


def waves(n):
    t = torch.linspace(0, 1, L)
    f = torch.randint(1, 5, (n, 1)).float()
    ph = torch.rand(n, 1) * 6.283
    a = torch.rand(n, 1) + 0.5
    return a * torch.sin(6.283 * f * t + ph) + 0.02 * torch.randn(n, L)


class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Embedding(K, Z)
        nn.init.normal_(self.book.weight, std=0.3)

    def forward(self, z):
        flat = z.reshape(-1, Z)
        with torch.no_grad():
            idx = torch.cdist(flat, self.book.weight).argmin(1)
        q = self.book(idx).view_as(z)
        code_loss = F.mse_loss(q, z.detach())
        return q, code_loss, idx


class VQAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(L, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, SLOTS * Z))
        self.vq = Quantiser()
        self.dec = nn.Sequential(nn.Linear(SLOTS * Z, 64), nn.GELU(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, L))

    def forward(self, x):
        z = self.enc(x).view(-1, SLOTS, Z)
        q, cl, idx = self.vq(z)
        return self.dec(q.flatten(1)), cl, idx


model = VQAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    x = waves(64)
    rec, cl, idx = model(x)
    r = F.mse_loss(rec, x)
    loss = r + cl
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0 or step == 499:
        used = idx.unique().numel()
        print(f"{step:4d} recon {r.item():.4f} code {cl.item():.4f} codes used {used}/{K}")
