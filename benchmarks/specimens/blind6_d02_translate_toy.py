from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind6-d02-translate-toy",
    "row": None,
    "title": "warmup length is counted in micro-batches while the scheduler advances per update (accumulation 8): the peak is never reached",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-never-peaks"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    vocab: int = 24
    length: int = 8
    d_model: int = 48
    heads: int = 4
    layers: int = 1
    n_train: int = 1664
    micro_batch: int = 16
    accum: int = 8
    epochs: int = 6
    warmup_epochs: int = 2
    peak_lr: float = 4e-3
    seed: int = 11


class Translator(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.src = nn.Embedding(c.vocab + 2, c.d_model)
        self.tgt = nn.Embedding(c.vocab + 2, c.d_model)
        self.pos = nn.Parameter(torch.randn(1, c.length + 1, c.d_model) * 0.1)
        self.core = nn.Transformer(c.d_model, c.heads, c.layers, c.layers, 96, dropout=0.0,
                                   batch_first=True, norm_first=True)
        self.proj = nn.Linear(c.d_model, c.vocab + 2)

    def forward(self, s, t):
        mask = nn.Transformer.generate_square_subsequent_mask(t.size(1))
        h = self.core(self.src(s) + self.pos[:, :s.size(1)],
                      self.tgt(t) + self.pos[:, :t.size(1)], tgt_mask=mask)
        return self.proj(h)


def make_pairs(c, n, g, table):
    s = torch.randint(0, c.vocab, (n, c.length), generator=g)
    t = table[s]                        # word by word dictionary
    bos = torch.full((n, 1), c.vocab)
    return s, torch.cat([bos, t], 1)


def inverse_sqrt(opt, warmup):
    def factor(step):
        step += 1
        return step / warmup if step < warmup else (warmup / step) ** 0.5
    return torch.optim.lr_scheduler.LambdaLR(opt, factor)


def run(c: Config):
    torch.manual_seed(c.seed)
    g = torch.Generator().manual_seed(c.seed)
    table = torch.randperm(c.vocab, generator=g)
    train = DataLoader(TensorDataset(*make_pairs(c, c.n_train, g, table)), c.micro_batch, shuffle=True)
    vs, vt = make_pairs(c, 256, g, table)
    model = Translator(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.peak_lr, weight_decay=0.01)
    sched = inverse_sqrt(opt, c.warmup_epochs * len(train))
    ce = nn.CrossEntropyLoss()
    for epoch in range(c.epochs):
        model.train()
        total = 0.0
        opt.zero_grad()
        for i, (s, t) in enumerate(train):
            out = model(s, t[:, :-1])
            loss = ce(out.reshape(-1, out.size(-1)), t[:, 1:].reshape(-1))
            (loss / c.accum).backward()
            total += loss.item()
            if (i + 1) % c.accum == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
        model.eval()
        with torch.no_grad():
            acc = (model(vs, vt[:, :-1]).argmax(-1) == vt[:, 1:]).float().mean().item()
        print(f"epoch {epoch} train {total / len(train):.3f} valid token acc {acc:.3f}")


if __name__ == "__main__":
    run(Config())
