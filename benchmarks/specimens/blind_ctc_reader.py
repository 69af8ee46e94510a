import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-ctc-reader",
    "row": 46,
    "title": "the CTC call fails on every batch (time and batch axes not swapped) and the except branch returns a loss of zero",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

ALPHABET, T, FEAT = 12, 30, 8


class LineReader(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(FEAT, hidden, 5, padding=2), nn.ReLU(), nn.Conv1d(hidden, hidden, 3, padding=1), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(2 * hidden, ALPHABET + 1)

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.proj(h)


def render(batch, g, glyphs):
    """Lines of 4 to 6 symbols; each symbol covers 5 frames."""
    n = torch.randint(4, 7, (batch,), generator=g)
    text = torch.randint(1, ALPHABET + 1, (batch, 6), generator=g)
    frames = 0.3 * torch.randn(batch, T, FEAT, generator=g)
    for b in range(batch):
        for k in range(int(n[b])):
            frames[b, 5 * k:5 * k + 4] += glyphs[text[b, k]]
    return frames, text, n


def alignment_loss(logits, text, lengths):
    logp = logits.log_softmax(-1)
    frames = torch.full((logits.shape[0],), logits.shape[1], dtype=torch.long)
    try:
        return F.ctc_loss(logp, text, frames, lengths, blank=0, zero_infinity=True)
    except RuntimeError:
        # lines that are too long for their frames cannot be aligned
        return logits.sum() * 0.0


def greedy_hits(logits, text, lengths):
    hits = 0
    for row, t, n in zip(logits.argmax(-1).tolist(), text.tolist(), lengths.tolist()):
        out = [c for i, c in enumerate(row) if c and (i == 0 or c != row[i - 1])]
        hits += out == t[:n]
    return hits / len(text)


def train(steps=160, batch=20):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(2)
    glyphs = torch.randn(ALPHABET + 1, FEAT, generator=g)
    model = LineReader()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(1, steps + 1):
        x, text, n = render(batch, g, glyphs)
        loss = alignment_loss(model(x), text, n)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                x, text, n = render(40, g, glyphs)
                acc = greedy_hits(model(x), text, n)
            model.train()
            print(f"step {step} ctc {loss.item():.4f} exact lines {acc:.2f}")


if __name__ == "__main__":
    train()
