"""Multi-label tagging of short token sequences with a small attention encoder."""
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-tagger-objective",
    "row": None,
    "title": "the tag head ends in a sigmoid and its output is given to BCEWithLogitsLoss",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-input-mismatch", "double-softmax"],
    "bricks": ["head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

OBJECTIVES = {
    "multilabel": nn.BCEWithLogitsLoss,
    "multiclass": nn.CrossEntropyLoss,
    "regression": nn.SmoothL1Loss,
}


def synth(n, vocab, length, tags, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, vocab, (n, length), generator=g)
    y = torch.stack([((x % tags) == t).sum(1) >= 2 for t in range(tags)], dim=1).float()
    return TensorDataset(x, y)


class TagHead(nn.Module):
    def __init__(self, d, tags):
        super().__init__()
        self.pre = nn.Sequential(nn.Linear(d, d), nn.GELU())
        self.out = nn.Linear(d, tags)
        self.gate = nn.Sigmoid()

    def forward(self, h):
        return self.gate(self.out(self.pre(h)))


class Tagger(nn.Module):
    def __init__(self, vocab, d, tags, length):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = TagHead(d, tags)

    def forward(self, x):
        h = self.encoder(self.tok(x) + self.pos)
        return self.head(h.mean(1))


@torch.no_grad()
def f1(model, loader):
    model.eval()
    tp = fp = fn = 0.0
    for x, y in loader:
        p = (model(x) > 0.5).float()
        tp += (p * y).sum().item()
        fp += (p * (1 - y)).sum().item()
        fn += ((1 - p) * y).sum().item()
    model.train()
    return 2 * tp / max(2 * tp + fp + fn, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--objective", default="multilabel", choices=sorted(OBJECTIVES))
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(0)
    train = DataLoader(synth(3200, 40, 12, 10, 1), batch_size=64, shuffle=True)
    val = DataLoader(synth(512, 40, 12, 10, 2), batch_size=128)
    model = Tagger(40, 48, 10, 12)
    criterion = OBJECTIVES[args.objective]()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(train))
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in train:
            opt.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train):.4f} val_f1 {f1(model, val):.3f}")


if __name__ == "__main__":
    main()
