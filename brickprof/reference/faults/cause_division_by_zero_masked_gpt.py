"""A masked language model averages its loss over the masked positions. In a batch of short rows nothing happens to be
masked, and 0 divided by 0 is nan."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-division-by-zero-masked-gpt",
    "row": None,
    "title": "mean over an empty mask",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["division-by-zero"],
    "bricks": [],
    "first_step": 76,
    "needs": "cpu",
}

VOCAB, MASK = 16, 16


class MaskedLM(nn.Module):
    def __init__(self, dim=32, length=10):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB + 1, dim)
        self.places = nn.Parameter(0.1 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.encoder(self.tokens(ids) + self.places[: ids.shape[1]]))


def masked_loss(logits, targets, masked):
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (losses * masked).sum() / masked.sum()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        length = int(torch.randint(4, 11, ()))
        ids = torch.randint(0, VOCAB, (4, 1)).repeat(1, length)
        masked = torch.rand(ids.shape) < 0.15
        loss = masked_loss(model(ids.masked_fill(masked, MASK)), ids, masked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
