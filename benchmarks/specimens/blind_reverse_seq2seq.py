import json

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-reverse-seq2seq",
    "row": None,
    "title": "eight micro-batches are accumulated per step and their losses are summed without dividing by eight",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

CONFIG = json.loads('{"vocab": 12, "emb": 24, "hidden": 64, "lr": 0.4, "momentum": 0.9, "micro": 8, "accum": 8, "updates": 90, "len": 6}')


class Encoder(nn.Module):
    def __init__(self, v, e, h):
        super().__init__()
        self.emb = nn.Embedding(v, e)
        self.gru = nn.GRU(e, h, batch_first=True)

    def forward(self, x):
        return self.gru(self.emb(x))


class Decoder(nn.Module):
    def __init__(self, v, e, h):
        super().__init__()
        self.emb = nn.Embedding(v + 1, e)
        self.gru = nn.GRU(e, h, batch_first=True)
        self.out = nn.Linear(2 * h, v)

    def forward(self, y, memory, state):
        q, _ = self.gru(self.emb(y), state)
        att = (q @ memory.transpose(1, 2) / q.size(-1) ** 0.5).softmax(-1)
        return self.out(torch.cat([q, att @ memory], -1))


class Seq2Seq(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bos = c["vocab"]
        self.encoder = Encoder(c["vocab"], c["emb"], c["hidden"])
        self.decoder = Decoder(c["vocab"], c["emb"], c["hidden"])

    def forward(self, src, tgt):
        mem, st = self.encoder(src)
        inp = torch.cat([torch.full_like(tgt[:, :1], self.bos), tgt[:, :-1]], 1)
        return self.decoder(inp, mem, st)


def micro_batches(c):
    while True:
        s = torch.randint(0, c["vocab"], (c["micro"], c["len"]))
        yield s, s.flip(1)


def run(c):
    torch.manual_seed(7)
    model = Seq2Seq(c)
    opt = torch.optim.SGD(model.parameters(), lr=c["lr"], momentum=c["momentum"])
    it = micro_batches(c)
    window = []
    opt.zero_grad()
    for i in range(c["updates"] * c["accum"]):
        src, tgt = next(it)
        loss = F.cross_entropy(model(src, tgt).transpose(1, 2), tgt)
        loss.backward()
        window.append(loss.item())
        if (i + 1) % c["accum"] == 0:
            opt.step()
            opt.zero_grad()
            u = (i + 1) // c["accum"]
            if u % 10 == 0:
                print(f"update {u} loss {sum(window) / len(window):.4f}")
                window.clear()


run(CONFIG)
