"""A character GPT trained by AdamW with lr 0.3 where 3e-3 was meant. Each update is as large as the weights
themselves, and the loss stays above that of a model that knows nothing."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-learning-rate-too-high-gpt",
    "row": None,
    "title": "AdamW with lr=0.3",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-STEPSIZE-001", "C-TRAINSTABLE-001", "FALSIFY-ALBOR-001", "C-LOSSSPIKE-001"],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

CORPUS = "to be or not to be that is the question whether it is nobler in the mind to suffer " * 20
ALPHABET = sorted(set(CORPUS))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CharGPT(nn.Module):
    def __init__(self, vocab, width=32, layers=2, context=24):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.Sequential(*[Layer(width, 4) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, context=24, size=12):
    starts = torch.randint(len(data) - context - 1, (size,))
    x = torch.stack([data[i : i + context] for i in starts])
    return x, torch.stack([data[i + 1 : i + context + 1] for i in starts])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    data = torch.tensor([ALPHABET.index(c) for c in CORPUS])
    model = CharGPT(len(ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    for it in range(120):
        loss = model(*get_batch(data))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it % 10 == 0 or it < 5:
            print(f"iter {it}: loss {loss.item():.3f}")
