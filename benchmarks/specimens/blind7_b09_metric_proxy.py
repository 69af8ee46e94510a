TRUTH = {
    "id": "blind7-b09-metric-proxy",
    "row": None,
    "title": "evaluation runs under no_grad but never switches to eval mode: batch norm uses the statistics of single-class gallery batches (and updates its running ones), dropout stays on",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
    "crashes": False,
}
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
N_CLASS, N_FEAT, EMB = 20, 40, 16
g = torch.Generator().manual_seed(13)
centres = 1.5 * torch.randn(N_CLASS, 8, generator=g)
mix = torch.randn(8, N_FEAT, generator=g) / 8 ** 0.5


def draw(labels):
    h = centres[labels] + 0.7 * torch.randn(len(labels), 8, generator=g)
    return torch.tanh(h @ mix) + 0.1 * torch.randn(len(labels), N_FEAT, generator=g)


net = nn.Sequential(
    nn.Linear(N_FEAT, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(96, EMB),
)
proxies = nn.Parameter(torch.randn(N_CLASS, EMB))
opt = torch.optim.AdamW([{"params": net.parameters()}, {"params": [proxies], "lr": 1e-2}], lr=2e-3, weight_decay=1e-4)

# held-out gallery, stored folder by folder as it comes from disk
gallery = [(c, draw(torch.full((24,), c))) for c in range(N_CLASS)]


@torch.no_grad()
def evaluate():
    emb, lab, loss = [], [], 0.0
    for c, x in gallery:
        e = F.normalize(net(x), dim=1)
        logits = 16 * e @ F.normalize(proxies, dim=1).T
        loss += F.cross_entropy(logits, torch.full((len(x),), c)).item() / N_CLASS
        emb.append(e)
        lab += [c] * len(x)
    emb, lab = torch.cat(emb), torch.tensor(lab)
    sim = emb @ F.normalize(proxies, dim=1).T
    return loss, (sim.argmax(1) == lab).float().mean().item()


step = 0
for epoch in range(15):
    running = 0.0
    for _ in range(30):
        y = torch.randint(0, N_CLASS, (64,), generator=g)
        e = F.normalize(net(draw(y)), dim=1)
        loss = F.cross_entropy(16 * e @ F.normalize(proxies, dim=1).T, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item() / 30
        step += 1
    vl, r1 = evaluate()
    print(f"epoch {epoch:2d} train {running:.3f} | gallery loss {vl:.3f} proxy R@1 {r1:.3f}")
