import random
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

TRUTH = {"id": "blind-bucketed-translation", "title": "seq2seq transformer on length buckets with label smoothing and padding", "family": "other",
           "needs": "cpu", "trap": "batches are sorted by length inside (buckets shuffled), the loss has a smoothing floor, padding embeddings stay zero"}

PAD, BOS, EOS, V = 0, 1, 2, 24


class Pairs(Dataset):
    """Target: the source shifted by one letter."""

    def __init__(self, n, seed):
        r = random.Random(seed)
        self.src = [[r.randrange(3, V) for _ in range(r.randint(3, 10))] for _ in range(n)]

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        s = self.src[i]
        t = [3 + (c - 3 + 1) % (V - 3) for c in s]
        return torch.tensor(s + [EOS]), torch.tensor([BOS] + t + [EOS])


class Buckets(Sampler):
    def __init__(self, ds, batch, seed=0):
        self.batch, self.r = batch, random.Random(seed)
        self.lengths = [len(s) for s in ds.src]

    def __iter__(self):
        idx = list(range(len(self.lengths)))
        self.r.shuffle(idx)
        idx.sort(key=lambda i: self.lengths[i])
        chunks = [idx[k:k + self.batch] for k in range(0, len(idx), self.batch)]
        self.r.shuffle(chunks)
        return iter(chunks)

    def __len__(self):
        return (len(self.lengths) + self.batch - 1) // self.batch


def collate(items):
    s, t = zip(*items)
    return pad_sequence(s, True, PAD), pad_sequence(t, True, PAD)


class Translator(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(V, d, padding_idx=PAD)
        self.pos = nn.Parameter(0.1 * torch.randn(14, d))
        self.core = nn.Transformer(d, 4, 1, 1, 128, dropout=0.0, batch_first=True, norm_first=False)
        self.out = nn.Linear(d, V)

    def forward(self, s, t):
        e = lambda z: self.emb(z) + self.pos[: z.shape[1]]
        causal = torch.triu(torch.ones(t.shape[1], t.shape[1], dtype=torch.bool), 1)
        h = self.core(e(s), e(t), tgt_mask=causal, src_key_padding_mask=s == PAD,
                      memory_key_padding_mask=s == PAD, tgt_key_padding_mask=t == PAD)
        return self.out(h)


torch.manual_seed(0)
train_set, val_set = Pairs(2400, 1), Pairs(240, 2)
train = DataLoader(train_set, batch_sampler=Buckets(train_set, 32), collate_fn=collate)
val = DataLoader(val_set, batch_size=60, collate_fn=collate)
model = Translator()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
epochs = 7
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=epochs * len(train), pct_start=0.15)
crit = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
for ep in range(epochs):
    tot = 0.0
    for s, t in train:
        logits = model(s, t[:, :-1])
        loss = crit(logits.reshape(-1, V), t[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        tot += loss.item()
    model.eval()
    ok = n = 0
    with torch.no_grad():
        for s, t in val:
            y = t[:, 1:]
            hit = (model(s, t[:, :-1]).argmax(-1) == y) & (y != PAD)
            ok, n = ok + hit.sum().item(), n + (y != PAD).sum().item()
    model.train()
    print(f"epoch {ep} loss {tot / len(train):.3f} token acc {ok / n:.3f}")
