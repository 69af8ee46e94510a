import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-reverser",
    "title": "clip_grad_norm_ runs on the gradients while they are still multiplied by the loss scale (no unscale_ before it), so the true gradient is cut to about 1/scale and SGD does not move.",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["grad-clip-wrong", "loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Seq2Seq(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.src = nn.Embedding(vocab, d)
        self.tgt = nn.Embedding(vocab + 1, d)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.query = nn.Linear(d, d)
        self.out = nn.Linear(2 * d, vocab)

    def forward(self, s, t_in):
        enc, h = self.encoder(self.src(s))
        dec, _ = self.decoder(self.tgt(t_in), h)
        att = (self.query(dec) @ enc.transpose(1, 2) / enc.size(-1) ** 0.5).softmax(-1)
        return self.out(torch.cat([dec, att @ enc], -1))


def get_batch(vocab, n, length, gen):
    s = torch.randint(0, vocab, (n, length), generator=gen)
    t = s.flip(1)
    bos = torch.full((n, 1), vocab)
    return s, torch.cat([bos, t[:, :-1]], 1), t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=12)
    ap.add_argument("--len", type=int, default=8)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--lr", type=float, default=0.3)
    ap.add_argument("--max-norm", type=float, default=1.0)
    a = ap.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(7)
    gen = torch.Generator().manual_seed(70)
    model = Seq2Seq(a.vocab)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    for step in range(a.steps):
        s, ti, t = get_batch(a.vocab, a.batch, a.len, gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(s, ti)
        loss = F.cross_entropy(logits.float().flatten(0, 1), t.flatten())
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), a.max_norm)
        scaler.step(opt)
        scaler.update()
        if step % 25 == 0:
            acc = (logits.argmax(-1) == t).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} acc {acc:.3f} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
