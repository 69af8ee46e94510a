import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-siamese",
    "row": None,
    "title": "zero_grad is called once per epoch, outside the batch loop: gradients pile up over the epoch",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["missing-zero-grad"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


class Views(Dataset):
    """Two noisy, rescaled observations of the same latent identity."""

    def __init__(self, n=4096, dim=48, latent=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        mix = torch.randn(latent, dim, generator=torch.Generator().manual_seed(99))
        self.z = torch.randn(n, latent, generator=g)
        self.clean = torch.tanh(self.z @ mix / latent**0.5)

    def __len__(self):
        return len(self.z)

    def __getitem__(self, i):
        x = self.clean[i]
        a = x * (0.7 + 0.6 * torch.rand(1)) + 0.35 * torch.randn_like(x)
        b = x * (0.7 + 0.6 * torch.rand(1)) + 0.35 * torch.randn_like(x)
        return a, b


class Encoder(nn.Module):
    def __init__(self, dim=48, width=128, out=32):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(dim, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
        )
        self.proj = nn.Linear(width, out)

    def forward(self, x):
        return F.normalize(self.proj(self.trunk(x)), dim=-1)


def info_nce(a, b, tau=0.1):
    logits = a @ b.t() / tau
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


@torch.no_grad()
def retrieval(encoder, dataset, n=512):
    encoder.eval()
    pairs = [dataset[i] for i in range(n)]
    a = encoder(torch.stack([p[0] for p in pairs]))
    b = encoder(torch.stack([p[1] for p in pairs]))
    hit = ((a @ b.t()).argmax(1) == torch.arange(n)).float().mean().item()
    encoder.train()
    return hit


def train(epochs=4):
    torch.manual_seed(4)
    dataset, held_out = Views(), Views(512, seed=1)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    encoder = Encoder()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    for epoch in range(epochs):
        optimizer.zero_grad()
        mean = 0.0
        for a, b in loader:
            loss = info_nce(encoder(a), encoder(b))
            loss.backward()
            optimizer.step()
            scheduler.step()
            mean += loss.item() / len(loader)
        print(f"epoch {epoch} | nce {mean:.4f} | retrieval@1 {retrieval(encoder, held_out):.3f}")


train()
