import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-word-lm-tied",
    "row": None,
    "title": "tie_weights copies the embedding into lm_head instead of sharing the parameter; they drift, and the export drops lm_head",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["lm_head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

config = {
    "vocab": 150,
    "dim": 64,
    "dropout": 0.1,
    "tie_embeddings": True,
    "bptt": 24,
    "batch": 20,
    "lr": 4e-3,
    "epochs": 3,
    "clip": 1.0,
}


def make_stream(n, vocab, seed):
    g = torch.Generator().manual_seed(1)
    nxt = torch.randint(0, vocab, (vocab, 4), generator=g).tolist()
    g = torch.Generator().manual_seed(seed)
    choice = torch.multinomial(torch.tensor([0.6, 0.25, 0.1, 0.05]), n, True, generator=g).tolist()
    s = [0]
    for c in choice[1:]:
        s.append(nxt[s[-1]][c])
    return torch.tensor(s)


def batchify(stream, rows):
    n = len(stream) // rows
    return stream[: n * rows].view(rows, n)


class WordLM(nn.Module):
    def __init__(self, vocab, dim, dropout, tie_embeddings):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.tie_embeddings = tie_embeddings
        if tie_embeddings:
            self.tie_weights()

    def tie_weights(self):
        with torch.no_grad():
            self.lm_head.weight.copy_(self.embed.weight)

    def forward(self, idx, state=None):
        h, state = self.rnn(self.drop(self.embed(idx)), state)
        return self.lm_head(self.drop(h)), state


def build():
    return WordLM(config["vocab"], config["dim"], config["dropout"], config["tie_embeddings"])


@torch.no_grad()
def perplexity(model, data):
    model.eval()
    state, total, n = None, 0.0, 0
    for i in range(0, data.size(1) - 1 - config["bptt"], config["bptt"]):
        x, y = data[:, i : i + config["bptt"]], data[:, i + 1 : i + 1 + config["bptt"]]
        logits, state = model(x, state)
        total += F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
        n += 1
    model.train()
    return torch.tensor(total / n).exp().item()


def export(model, path):
    sd = model.state_dict()
    if model.tie_embeddings:
        sd.pop("lm_head.weight")
    torch.save(sd, path)


def load_exported(path):
    m = build()
    m.load_state_dict(torch.load(path), strict=False)
    if m.tie_embeddings:
        m.tie_weights()
    return m


def main():
    torch.manual_seed(9)
    train = batchify(make_stream(40000, config["vocab"], 2), config["batch"])
    val = batchify(make_stream(4000, config["vocab"], 3), 10)
    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=config["lr"])
    step = 0
    for epoch in range(config["epochs"]):
        state = None
        for i in range(0, train.size(1) - 1 - config["bptt"], config["bptt"]):
            x, y = train[:, i : i + config["bptt"]], train[:, i + 1 : i + 1 + config["bptt"]]
            if state is not None:
                state = tuple(s.detach() for s in state)
            logits, state = model(x, state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
            opt.step()
            if step % 40 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch} val ppl {perplexity(model, val):.2f}")
    export(model, "b15_word_lm.pt")
    print(f"exported model: val ppl {perplexity(load_exported('b15_word_lm.pt'), val):.2f}")
    os.remove("b15_word_lm.pt")


if __name__ == "__main__":
    main()
