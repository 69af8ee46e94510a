"""A transformer with a warm-up of 4000 updates copied from a paper, in a run that makes 150. The learning rate never
gets past four percent of its peak and the loss hardly moves."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-schedule-never-peaks-gpt",
    "row": None,
    "title": "warm-up is longer than the run",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001"],
    "root_causes": ["schedule-never-peaks", "schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

PEAK, WARMUP, UPDATES = 5e-4, 4000, 150


def rate(update):
    if update < WARMUP:
        return (update + 1) / WARMUP
    return (WARMUP / (update + 1)) ** 0.5


class Copier(nn.Module):
    """Reads tokens and predicts each one's successor modulo 16."""

    def __init__(self, vocab=16, dim=32):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.generator = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.generator(self.encoder(self.tokens(ids)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(21)
    model = Copier()
    optimizer = torch.optim.Adam(model.parameters(), lr=PEAK, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for update in range(UPDATES):
        ids = torch.randint(0, 16, (24, 12))
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.view(-1, 16), ((ids + 1) % 16).view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if update % 15 == 0:
            print(f"{update:4d}  loss {loss.item():.4f}  lr {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
