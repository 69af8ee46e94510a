import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-domain-tokens",
    "row": None,
    "title": "the vocabulary is extended (new embedding and output layer) after the optimizer has been built, so the optimizer still owns the old tensors",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-stale-parameters"],
    "bricks": ["embed", "lm_head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class MiniGPT(nn.Module):
    def __init__(self, vocab, dim=48, heads=4, layers=2, ctx=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(ctx), persistent=False)

    def forward(self, ids):
        t = ids.size(1)
        x = self.embed(ids) + self.pos.weight[:t]
        x = self.body(x, mask=self.mask[:t, :t], is_causal=True)
        return self.lm_head(self.norm(x))

    def resize_vocab(self, size):
        old_e, old_h = self.embed.weight.data, self.lm_head.weight.data
        self.embed = nn.Embedding(size, old_e.size(1))
        self.lm_head = nn.Linear(old_h.size(1), size, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        self.embed.weight.data[: old_e.size(0)] = old_e
        self.lm_head.weight.data[: old_h.size(0)] = old_h


class Tokens:
    """a first-order language: every symbol has three likely successors"""

    def __init__(self, base, extra):
        self.size = base + extra
        g = torch.Generator().manual_seed(0)
        self.next = torch.randint(0, self.size, (self.size, 3), generator=g)
        self.g = g

    def sample(self, n, length):
        x = [torch.randint(0, self.size, (n,), generator=self.g)]
        for _ in range(length):
            j = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), n, replacement=True, generator=self.g)
            x.append(self.next[x[-1], j])
        return torch.stack(x, 1)


class Finetuner:
    def __init__(self, model, lr=3e-3):
        self.model = model
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        self.opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=lr)

    def fit(self, data, steps):
        if data.size > self.model.embed.num_embeddings:
            print(f"extending vocabulary {self.model.embed.num_embeddings} -> {data.size}")
            self.model.resize_vocab(data.size)
        self.model.train()
        for s in range(steps):
            seq = data.sample(24, 20)
            logits = self.model(seq[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), seq[:, 1:].reshape(-1))
            self.model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            if s % 25 == 0 or s == steps - 1:
                print(f"step {s} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    tuner = Finetuner(MiniGPT(vocab=64))
    tuner.fit(Tokens(64, 16), steps=200)
