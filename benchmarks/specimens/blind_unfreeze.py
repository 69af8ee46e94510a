import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-unfreeze",
    "title": "pretraining on a source task, then head first and one block more at each stage",
    "family": "other",
    "needs": "cpu",
    "trap": "many frozen parameters at first, parameter groups added during training, head replaced, discriminative learning rates",
}


class Encoder(nn.Module):
    def __init__(self, vocab=120, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.b1 = nn.Sequential(nn.Conv1d(dim, dim, 3, padding=1), nn.ReLU())
        self.b2 = nn.Sequential(nn.Conv1d(dim, dim, 3, padding=1), nn.ReLU())

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = h + self.b1(h)
        h = h + self.b2(h)
        return h.amax(-1)


class Classifier(nn.Module):
    def __init__(self, enc, classes):
        super().__init__()
        self.enc, self.head = enc, nn.Linear(48, classes)

    def forward(self, ids):
        return self.head(self.enc(ids))


def topics(n, classes, seed, offset, g=None):
    """Each class likes its own 10 tokens; source and target share most of the lexicon."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    own = (y[:, None] * 10 + torch.randint(10, (n, 14), generator=g) + offset) % 120
    ids = torch.where(torch.rand(n, 14, generator=g) < 0.3, own, torch.randint(120, (n, 14), generator=g))
    return ids, y


def epoch(model, data, opt, batch=64, sched=None):
    ids, y = data
    model.train()
    tot, k = 0.0, 0
    for sel in torch.randperm(len(y)).split(batch):
        loss = F.cross_entropy(model(ids[sel]), y[sel])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if sched is not None:
            sched.step()
        tot, k = tot + loss.item(), k + 1
    return tot / k


@torch.no_grad()
def acc(model, data):
    model.eval()
    return (model(data[0]).argmax(1) == data[1]).float().mean().item()


def main():
    torch.manual_seed(0)
    enc = Encoder()
    src = Classifier(enc, 12)
    opt = torch.optim.Adam(src.parameters(), lr=2e-3)
    data, val = topics(6400, 12, 0, 0), topics(800, 12, 1, 0)
    for e in range(2):
        print(f"pretrain {e} loss {epoch(src, data, opt):.4f} acc {acc(src, val):.3f}")

    model = Classifier(enc, 8)
    enc.requires_grad_(False)
    data, val = topics(3200, 8, 2, 5), topics(800, 8, 3, 5)
    opt = torch.optim.Adam(model.head.parameters(), lr=4e-3)
    stages = [None, (enc.b2, 1e-3), (enc.b1, 7e-4), (enc.emb, 1e-3)]
    for s, extra in enumerate(stages):
        if extra is not None:
            module, lr = extra
            module.requires_grad_(True)
            opt.add_param_group({"params": list(module.parameters()), "lr": lr})
        loss = epoch(model, data, opt)
        live = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"stage {s} trainable {live} loss {loss:.4f} acc {acc(model, val):.3f}")


if __name__ == "__main__":
    main()
