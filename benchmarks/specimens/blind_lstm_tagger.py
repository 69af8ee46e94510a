import torch
import torch.nn as nn
from dataclasses import dataclass, field

TRUTH = {
    "id": "blind-lstm-tagger",
    "row": 8,
    "title": "the second optimizer (embeddings) is built with library defaults instead of the configured lr, betas and decay",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": ["embed"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class OptimConfig:
    lr: float = 0.01
    betas: tuple = (0.9, 0.95)
    weight_decay: float = 0.1
    eps: float = 1e-8


@dataclass
class TrainConfig:
    vocab: int = 1500
    tags: int = 12
    emb: int = 24
    hidden: int = 48
    seq_len: int = 16
    batch_size: int = 48
    steps: int = 300
    optim: OptimConfig = field(default_factory=OptimConfig)


class Tagger(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.emb)
        self.rnn = nn.LSTM(c.emb, c.hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * c.hidden, c.tags)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.out(h)


def corpus(c, n, seed):
    lex = torch.Generator().manual_seed(7)
    word_class = torch.randint(c.tags, (c.vocab,), generator=lex)
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(c.vocab, (n, c.seq_len), generator=g)
    tags = word_class[ids]
    prev = torch.roll(tags, 1, dims=1)
    prev[:, 0] = 0
    flip = prev >= c.tags - 2  # after two special classes the tag is shifted by one
    return ids, torch.where(flip, (tags + 1) % c.tags, tags)


def build_optimizers(model, oc):
    body = [p for n, p in model.named_parameters() if not n.startswith("embed")]
    opt_body = torch.optim.AdamW(body, lr=oc.lr, betas=oc.betas, weight_decay=oc.weight_decay, eps=oc.eps)
    opt_embed = torch.optim.AdamW(model.embed.parameters())
    return [opt_body, opt_embed]


def train(c):
    torch.manual_seed(3)
    model = Tagger(c)
    ids, tags = corpus(c, c.batch_size * c.steps, 0)
    vids, vtags = corpus(c, 256, 1)
    opts = build_optimizers(model, c.optim)
    scheds = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, total_iters=c.steps) for o in opts]
    lossf = nn.CrossEntropyLoss()
    for step in range(c.steps):
        model.train()
        sl = slice(step * c.batch_size, (step + 1) * c.batch_size)
        loss = lossf(model(ids[sl]).flatten(0, 1), tags[sl].flatten())
        for o in opts:
            o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
        for s in scheds:
            s.step()
        if (step + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                lg = model(vids)
                vl = lossf(lg.flatten(0, 1), vtags.flatten()).item()
                acc = (lg.argmax(-1) == vtags).float().mean().item()
            print(f"{step + 1:4d} train {loss.item():.3f} val {vl:.3f} acc {acc:.3f}")


if __name__ == "__main__":
    train(TrainConfig())
