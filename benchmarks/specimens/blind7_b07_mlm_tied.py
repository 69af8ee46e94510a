"""BERT-style masked token model with a tied output layer."""
TRUTH = {
    "id": "blind7-b07-mlm-tied",
    "row": None,
    "title": "the init routine covers Linear only; the tied token embedding keeps N(0,1), so the first logits have std ~10 and the first loss is many times ln(V)",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["bad-initialisation"],
    "bricks": ["tok"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MASK, SEQ, DIM = 200, 0, 20, 96


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(1, SEQ, DIM))
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, 4, 192, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"),
            2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        self.apply(self._init)
        nn.init.normal_(self.pos, std=0.02)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, ids):
        h = self.norm(self.body(self.tok(ids) + self.pos))
        return F.linear(h, self.tok.weight, self.bias)


def corpus(n, gen):
    # arithmetic progressions over the vocabulary, so a masked item follows from its neighbours
    a = torch.randint(0, VOCAB - 1, (n, 1), generator=gen)
    d = torch.randint(1, 4, (n, 1), generator=gen)
    return 1 + (a + d * torch.arange(SEQ)) % (VOCAB - 1)


def main(steps=200, warm=20):
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(10)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else max(0.02, 1 - (s - warm) / (steps - warm)))
    for step in range(steps):
        ids = corpus(24, gen)
        hide = torch.rand(ids.shape, generator=gen) < 0.2
        logits = model(ids.masked_fill(hide, MASK))
        loss = F.cross_entropy(logits[hide], ids[hide])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            acc = (logits[hide].argmax(-1) == ids[hide]).float().mean()
            print(f"[{step:3d}] mlm {loss.item():7.3f} (uniform {math.log(VOCAB):.2f}) acc {acc:.3f}")


if __name__ == "__main__":
    main()
