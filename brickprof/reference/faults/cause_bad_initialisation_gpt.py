"""Every weight matrix of a GPT is drawn with standard deviation 1 instead of 0.02. The first loss is many times
ln(vocabulary) and the gradients are huge."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-bad-initialisation-gpt",
    "row": None,
    "title": "weights drawn with standard deviation 1",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-INIT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["bad-initialisation"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=32, dim=48, layers=3, length=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(42)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    print(f"a model that knows nothing has loss {math.log(32):.2f}")
    for step in range(100):
        ids = (torch.randint(0, 32, (16, 1)) + 3 * torch.arange(17)) % 32
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step} {loss.item():.3f} |g| {model.wte.weight.grad.norm():.2f}")


if __name__ == "__main__":
    main()
