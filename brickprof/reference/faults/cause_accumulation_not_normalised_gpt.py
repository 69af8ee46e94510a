"""Sixteen micro-batches make one update of a small language model, and their losses are added without being divided.
The gradient is sixteen times what the learning rate was chosen for, and SGD with momentum runs away."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-accumulation-not-normalised-gpt",
    "row": None,
    "title": "losses of 16 micro-batches are not divided by 16",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-TRAINSTABLE-001"],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "files": {"train.yaml": "batch_size: 4\ngradient_accumulation_steps: 16\nlearning_rate: 0.1\nmax_steps: 30\n"},
}

ACCUMULATION, MICRO, VOCAB = 16, 4, 20


class TinyLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.embed(ids), mask=mask, is_causal=True))


def fibonacci_batch():
    rows = torch.randint(0, VOCAB, (MICRO, 2))
    for _ in range(10):
        rows = torch.cat([rows, (rows[:, -1:] + 1) % VOCAB], dim=1)
    return rows


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for update in range(30):
        total = 0.0
        for _ in range(ACCUMULATION):
            rows = fibonacci_batch()
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {update} loss {total / ACCUMULATION:.4f}")


if __name__ == "__main__":
    main()
