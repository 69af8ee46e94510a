"""The targets of a language model are its inputs: the shift by one was lost. The model learns to copy its own token,
and the loss falls to zero on data that cannot be predicted that well."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-labels-misaligned-shift-gpt",
    "row": None,
    "title": "targets are not shifted",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-LEARN-001", "C-CAUSAL-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, BLOCK = 32, 16


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Embedding(BLOCK, dim)
        self.layers = nn.ModuleList([Layer(dim), Layer(dim)])
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids) + self.position.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))


def noisy_walk(length):
    """Mostly one up, sometimes anywhere: at best about 1.1 nats a token."""
    tokens = [0]
    for jump in torch.rand(length).tolist():
        tokens.append((tokens[-1] + 1) % VOCAB if jump < 0.75 else int(torch.randint(0, VOCAB, ())))
    return torch.tensor(tokens)


def batches(stream, size=16):
    while True:
        starts = torch.randint(0, len(stream) - BLOCK - 1, (size,)).tolist()
        inputs = torch.stack([stream[s : s + BLOCK] for s in starts])
        labels = torch.stack([stream[s : s + BLOCK] for s in starts])
        yield inputs, labels


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    source = batches(noisy_walk(5000))
    for step in range(150):
        loss = model(*next(source))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(step, f"{loss.item():.4f}")
