"""A sequence-to-sequence project with attention and teacher forcing. The encoder's outputs are detached before they
reach the decoder, a leftover from an attempt at truncated back-propagation: the encoder never learns."""

import argparse

import torch
from torch import nn

TRUTH = {
    "id": "cause-project-seq2seq-detached",
    "row": None,
    "title": "the encoder's outputs are detached",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": ["encoder", "encoder.gru", "encoder.embed"],
    "first_step": 0,
    "needs": "cpu",
    "args": ["--steps", "150", "--hidden", "48"],
}

START = 0


class Encoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.gru = nn.GRU(hidden, hidden // 2, batch_first=True, bidirectional=True)

    def forward(self, ids):
        return self.gru(self.embed(ids))[0]


class Decoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def attend(self, states, memory):
        scores = self.query(states) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        return scores.softmax(-1) @ memory

    def forward(self, ids, memory):
        first = memory.mean(1).unsqueeze(0)
        states, _ = self.gru(self.embed(ids), first.contiguous())
        return self.out(torch.cat([states, self.attend(states, memory)], dim=-1))


class Translator(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.encoder, self.decoder = Encoder(vocab, hidden), Decoder(vocab, hidden)

    def forward(self, source, target):
        memory = self.encoder(source)
        memory = memory.detach()
        start = torch.full_like(target[:, :1], START)
        return self.decoder(torch.cat([start, target[:, :-1]], dim=1), memory)

    @torch.no_grad()
    def translate(self, source):
        memory, ids = self.encoder(source), torch.full_like(source[:, :1], START)
        for _ in range(source.shape[1]):
            ids = torch.cat([ids, self.decoder(ids, memory)[:, -1:].argmax(-1)], dim=1)
        return ids[:, 1:]


def pairs(size, length, vocab):
    """The target is the source, sorted."""
    source = torch.randint(1, vocab, (size, length))
    return source, source.sort(dim=1).values


def exact(model, options):
    model.eval()
    source, target = pairs(100, options.length, options.vocab)
    share = (model.translate(source) == target).float().mean().item()
    model.train()
    return share


def train(options):
    model = Translator(options.vocab, options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    criterion = nn.CrossEntropyLoss()
    for step in range(options.steps):
        source, target = pairs(options.batch, options.length, options.vocab)
        logits = model(source, target)
        loss = criterion(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        if step % 30 == 0 or step == options.steps - 1:
            print(f"step {step} loss {loss.item():.4f} right tokens {exact(model, options):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in {"steps": 300, "batch": 32, "length": 6, "vocab": 12, "hidden": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(parser.parse_args())
