"""GRU seq2seq with dot attention that learns to reverse short strings."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a14-reverse-seq2seq",
    "row": None,
    "title": "clip_grad_norm_ gets the parameter generator that the optimizer has already consumed: nothing is clipped",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-wrong", "grad-clip-not-applied"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SOS, VOCAB, LEN = 1, 20, 8


class Seq2Seq(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.src = nn.Embedding(VOCAB, dim)
        self.tgt = nn.Embedding(VOCAB, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.key = nn.Linear(dim, dim)
        self.head = nn.Linear(2 * dim, VOCAB)

    def forward(self, src, tgt_in):
        enc, state = self.encoder(self.src(src))
        dec, _ = self.decoder(self.tgt(tgt_in), state)
        att = F.softmax(dec @ self.key(enc).transpose(1, 2), -1)
        return self.head(torch.cat([dec, att @ enc], -1))


def sample(n):
    src = torch.randint(2, VOCAB, (n, LEN))
    tgt = src.flip(1)
    return src, torch.cat([torch.full((n, 1), SOS), tgt[:, :-1]], 1), tgt


def sequence_loss(logits, tgt):
    return F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), reduction="sum") / len(tgt)


torch.manual_seed(12)
model = Seq2Seq()
params = model.parameters()
opt = torch.optim.SGD(params, lr=0.3, momentum=0.9)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=400)

for step in range(400):
    model.train()
    src, tgt_in, tgt = sample(32)
    loss = sequence_loss(model(src, tgt_in), tgt)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, max_norm=1.0)
    opt.step()
    sched.step()
    if step % 40 == 0 or step == 399:
        print(f"step {step:3d} nll/seq {loss.item():.3f}")

model.eval()
with torch.no_grad():
    src, tgt_in, tgt = sample(256)
    print("token accuracy", (model(src, tgt_in).argmax(-1) == tgt).float().mean().item())
