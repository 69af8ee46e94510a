import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-smoothing-transformer",
    "title": "encoder-decoder transformer on padded sequence copying with label smoothing 0.1",
    "family": "gpt",
    "needs": "cpu",
    "trap": "the training loss floors well above zero because of smoothing; many padded positions ignored; tied embeddings",
}

PAD, BOS, EOS, V = 0, 1, 2, 20


def make(n, gen):
    src = torch.full((n, 7), PAD)
    for r in range(n):
        k = int(torch.randint(2, 7, (1,), generator=gen))
        src[r, :k] = torch.randint(3, V, (k,), generator=gen)
        src[r, k] = EOS
    tgt_in = torch.cat([torch.full((n, 1), BOS), src[:, :-1]], 1).masked_fill(torch.cat([torch.zeros(n, 1).bool(), src[:, :-1] == EOS], 1), PAD)
    return src, tgt_in, src.clone()


class Copier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(V, d, padding_idx=PAD)
        self.pos = nn.Parameter(0.1 * torch.randn(1, 7, d))
        self.tf = nn.Transformer(d, 4, 2, 2, 96, dropout=0.0, batch_first=True, norm_first=False)
        self.out = nn.Linear(d, V, bias=False)
        nn.init.normal_(self.emb.weight, std=d**-0.5)
        self.out.weight = self.emb.weight
        self.register_buffer("causal", torch.triu(torch.ones(7, 7, dtype=torch.bool), 1))

    def forward(self, s, t):
        sp, tp = s == PAD, t == PAD
        k = self.emb.embedding_dim**0.5
        h = self.tf(self.emb(s) * k + self.pos, self.emb(t) * k + self.pos, tgt_mask=self.causal,
                    src_key_padding_mask=sp, tgt_key_padding_mask=tp, memory_key_padding_mask=sp)
        return self.out(h)


torch.manual_seed(0)
gen = torch.Generator().manual_seed(0)
model = Copier()
opt = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
total = 260
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=total, pct_start=0.15)
vs, vi, vo = make(200, gen)
for step in range(total):
    model.train()
    s, i, o = make(32, gen)
    loss = F.cross_entropy(model(s, i).flatten(0, 1), o.flatten(), ignore_index=PAD, label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == total - 1:
        model.eval()
        with torch.no_grad():
            p = model(vs, vi).argmax(-1)
        keep = vo != PAD
        print(f"{step} loss {loss.item():.4f} token acc {(p == vo)[keep].float().mean():.3f}")
