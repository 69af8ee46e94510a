"""Validation runs under no_grad and without model.eval(): dropout of 40 % stays on while the model is judged. The
validation loss is higher than it should be and differs from call to call."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-model-left-in-train-transformer",
    "row": None,
    "title": "validation in training mode",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-MODE-001", "C-AUTOEVAL-001"],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 39,
    "needs": "cpu",
}


class Router(nn.Module):
    def __init__(self, vocab=20, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.4, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 3)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))


def messages(count):
    ids = torch.randint(0, 20, (count, 10))
    scores = torch.stack([(ids < 7).sum(1), ((ids >= 7) & (ids < 14)).sum(1), (ids >= 14).sum(1)], 1)
    return ids, scores.argmax(1)


def evaluate(model, ids, labels):
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(a), b) for a, b in zip(ids.split(50), labels.split(50), strict=True)
        ]
    return torch.stack(losses).mean().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    held_out = messages(200)
    model = Router()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        ids, labels = messages(32)
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step} loss {loss.item():.4f} validation {evaluate(model, *held_out):.4f}")


if __name__ == "__main__":
    main()
