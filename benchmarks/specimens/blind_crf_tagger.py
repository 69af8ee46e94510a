import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-crf-tagger",
    "row": None,
    "title": "the optimizer is built from the tagger's parameters only; the CRF layer's transition scores get gradients and never move",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

K, V, T = 6, 40, 14


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    trans = torch.eye(K).roll(1, 1) * 0.88 + 0.02
    trans = trans / trans.sum(1, keepdim=True)
    tags = torch.zeros(n, T, dtype=torch.long)
    tags[:, 0] = torch.randint(0, K, (n,), generator=g)
    for t in range(1, T):
        tags[:, t] = torch.multinomial(trans[tags[:, t - 1]], 1, generator=g).squeeze(1)
    words = tags * 6 + torch.randint(0, 6, (n, T), generator=g)
    noise = torch.rand(n, T, generator=g) < 0.55
    words = torch.where(noise, torch.randint(0, V, (n, T), generator=g), words)
    return TensorDataset(words, tags)


class CRF(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(k))
        self.trans = nn.Parameter(torch.zeros(k, k))

    def forward(self, em, tags):
        score = self.start[tags[:, 0]] + em[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = self.start + em[:, 0]
        for t in range(1, em.size(1)):
            score = score + self.trans[tags[:, t - 1], tags[:, t]] + em[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            alpha = torch.logsumexp(alpha[:, :, None] + self.trans[None], 1) + em[:, t]
        return (torch.logsumexp(alpha, 1) - score).mean() / em.size(1)

    @torch.no_grad()
    def decode(self, em):
        d = self.start + em[:, 0]
        back = []
        for t in range(1, em.size(1)):
            m, arg = (d[:, :, None] + self.trans[None]).max(1)
            d = m + em[:, t]
            back.append(arg)
        path = [d.argmax(1)]
        for arg in reversed(back):
            path.append(arg.gather(1, path[-1][:, None]).squeeze(1))
        return torch.stack(path[::-1], 1)


class Emitter(nn.Module):
    """window-free word scorer"""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 24)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Dropout(0.1), nn.Linear(48, K))

    def forward(self, w):
        return self.mlp(self.emb(w))


class Tagging:
    def __init__(self):
        torch.manual_seed(0)
        self.model = Emitter()
        self.crf = CRF(K)
        self.optimizer = self.configure_optimizer()
        self.train_dl = DataLoader(corpus(1600, 1), batch_size=32, shuffle=True)
        self.test = corpus(300, 2)

    def configure_optimizer(self):
        return torch.optim.Adam(self.model.parameters(), lr=5e-3)

    def epoch(self):
        self.model.train()
        tot = 0.0
        for w, y in self.train_dl:
            self.optimizer.zero_grad()
            self.crf.zero_grad()
            loss = self.crf(self.model(w), y)
            loss.backward()
            self.optimizer.step()
            tot += loss.item()
        return tot / len(self.train_dl)

    def accuracy(self):
        self.model.eval()
        w, y = self.test.tensors
        with torch.no_grad():
            return (self.crf.decode(self.model(w)) == y).float().mean().item()


if __name__ == "__main__":
    job = Tagging()
    for e in range(5):
        print(f"epoch {e} nll {job.epoch():.4f} acc {job.accuracy():.4f}")
