import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-toy_translation",
    "title": "The warm-up length is counted in samples while the schedule advances once per optimizer step, so the learning rate only reaches a few percent of its peak before training ends.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-never-peaks", "schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = {
    "data": {"pairs": 3000, "vocab": 30, "length": 8, "seed": 0},
    "model": {"d": 64, "heads": 4, "enc": 1, "dec": 1, "ff": 128},
    "train": {"epochs": 3, "batch": 50, "lr": 3e-3, "warmup_ratio": 0.5, "clip": 1.0, "smoothing": 0.05},
}
BOS = 1


def parallel_corpus(c):
    rng = np.random.default_rng(c["seed"])
    table = 2 + np.random.default_rng(5).permutation(c["vocab"] - 2)
    src = rng.integers(2, c["vocab"], size=(c["pairs"], c["length"]))
    tgt = table[src - 2][:, ::-1].copy()
    return torch.from_numpy(src), torch.from_numpy(tgt)


class Translator(nn.Module):
    def __init__(self, vocab, length, d, heads, enc, dec, ff):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.1 * torch.randn(length + 1, d))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, heads, ff, 0.0, batch_first=True, norm_first=True), enc,
                                             enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, heads, ff, 0.0, batch_first=True, norm_first=True), dec)
        self.norm = nn.LayerNorm(d)
        self.generator = nn.Linear(d, vocab)

    def forward(self, src, tgt_in):
        mem = self.encoder(self.src_emb(src) + self.pos[:src.shape[1]])
        t = tgt_in.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        out = self.decoder(self.tgt_emb(tgt_in) + self.pos[:t], mem, tgt_mask=mask)
        return self.generator(self.norm(out))


def lr_factor(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main():
    cd, cm, ct = CONFIG["data"], CONFIG["model"], CONFIG["train"]
    torch.set_num_threads(1)
    torch.manual_seed(3)
    src, tgt = parallel_corpus(cd)
    n_train = 2700
    model = Translator(cd["vocab"], cd["length"], **cm)
    opt = torch.optim.AdamW(model.parameters(), lr=ct["lr"], betas=(0.9, 0.98), weight_decay=0.01)
    total = ct["epochs"] * n_train
    warmup = int(ct["warmup_ratio"] * total)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: lr_factor(s, warmup, total))
    g = torch.Generator().manual_seed(1)
    step = 0
    for epoch in range(ct["epochs"]):
        model.train()
        for i in torch.randperm(n_train, generator=g).split(ct["batch"]):
            y = tgt[i]
            inp = torch.cat([torch.full((len(i), 1), BOS), y[:, :-1]], 1)
            loss = F.cross_entropy(model(src[i], inp).flatten(0, 1), y.flatten(), label_smoothing=ct["smoothing"])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), ct["clip"])
            opt.step()
            sched.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            y = tgt[n_train:]
            inp = torch.cat([torch.full((len(y), 1), BOS), y[:, :-1]], 1)
            acc = (model(src[n_train:], inp).argmax(-1) == y).float().mean().item()
        print(f"epoch {epoch} token accuracy {acc:.3f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
