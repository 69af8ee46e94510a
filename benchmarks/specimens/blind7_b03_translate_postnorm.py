"""Toy translation: reversed sequence through a substitution table, nn.Transformer."""
TRUTH = {
    "id": "blind7-b03-translate-postnorm",
    "row": None,
    "title": "post-norm transformer with Adam starts at the peak learning rate: no warm-up before the cosine decay",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["warmup-missing"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import math
import torch
from torch import nn

CFG = dict(
    vocab=24, d_model=64, nhead=4, enc=4, dec=4, ff=128,
    seq=8, batch=32, steps=220, peak_lr=4e-3, betas=(0.9, 0.98), eps=1e-9,
)
BOS = 0


class Seq2Seq(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.src = nn.Embedding(c["vocab"], c["d_model"])
        self.tgt = nn.Embedding(c["vocab"], c["d_model"])
        self.pos = nn.Parameter(torch.randn(c["seq"] + 1, c["d_model"]))
        self.tr = nn.Transformer(c["d_model"], c["nhead"], c["enc"], c["dec"], c["ff"], dropout=0.0, batch_first=True)
        self.out = nn.Linear(c["d_model"], c["vocab"])

    def forward(self, s, t):
        mask = nn.Transformer.generate_square_subsequent_mask(t.size(1))
        h = self.tr(self.src(s) + self.pos[: s.size(1)], self.tgt(t) + self.pos[: t.size(1)], tgt_mask=mask)
        return self.out(h)


def batches(c, table, gen):
    while True:
        s = torch.randint(1, c["vocab"], (c["batch"], c["seq"]), generator=gen)
        y = table[s.flip(1)]
        t = torch.cat([torch.full((c["batch"], 1), BOS), y[:, :-1]], 1)
        yield s, t, y


def lr_lambda(step):
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / CFG["steps"]))


def train():
    c = CFG
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(4)
    table = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(c["vocab"] - 1, generator=gen)])
    model = Seq2Seq(c)
    opt = torch.optim.Adam(model.parameters(), lr=c["peak_lr"], betas=c["betas"], eps=c["eps"])
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_lambda)
    ce = nn.CrossEntropyLoss(label_smoothing=0.05)
    stream = batches(c, table, gen)
    for step in range(c["steps"]):
        s, t, y = next(stream)
        logits = model(s, t)
        loss = ce(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"{step:4d} loss={loss.item():.3f} tok_acc={acc:.3f} lr={sched.get_last_lr()[0]:.2e}")
    print("final", loss.item())


if __name__ == "__main__":
    train()
