import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-char-stream",
    "row": None,
    "title": "get_batch builds a freshly seeded generator on every call, so each step trains on the very same windows",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}

CFG = dict(seed=1337, block=40, batch=16, dim=64, heads=4, layers=2, lr=2e-3, iters=250, eval_every=50)


def synth_text(n):
    """Sentences made of a little grammar, so that there is something to learn."""
    import random

    rng = random.Random(0)
    subj = ["the cat", "a dog", "my friend", "the old king", "our neighbour", "she", "he", "a small bird"]
    verb = ["sees", "likes", "follows", "finds", "paints", "hears", "forgets", "carries"]
    obj = ["a red house", "the moon", "seven stones", "an apple", "the long river", "his hat", "two letters"]
    end = [".", " again.", " at night.", " and sleeps.", " in spring."]
    parts, size = [], 0
    while size < n:
        s = f"{rng.choice(subj)} {rng.choice(verb)} {rng.choice(obj)}{rng.choice(end)} "
        parts.append(s)
        size += len(s)
    return "".join(parts)


text = synth_text(60000)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
n_train = int(0.9 * len(data))
splits = {"train": data[:n_train], "val": data[n_train:]}


def get_batch(split):
    d = splits[split]
    g = torch.Generator().manual_seed(CFG["seed"])
    ix = torch.randint(0, len(d) - CFG["block"] - 1, (CFG["batch"],), generator=g)
    x = torch.stack([d[i : i + CFG["block"]] for i in ix])
    y = torch.stack([d[i + 1 : i + CFG["block"] + 1] for i in ix])
    return x, y


class CharModel(nn.Module):
    def __init__(self, vocab, dim, heads, layers, block):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block, dim)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block))

    def forward(self, idx):
        t = idx.size(1)
        h = self.tok(idx) + self.pos(torch.arange(t))
        return self.head(self.body(h, mask=self.mask[:t, :t], is_causal=True))


@torch.no_grad()
def estimate(model):
    model.eval()
    x, y = get_batch("val")
    out = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return out


def main():
    torch.manual_seed(CFG["seed"])
    model = CharModel(len(chars), CFG["dim"], CFG["heads"], CFG["layers"], CFG["block"])
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"], weight_decay=0.01)
    for it in range(CFG["iters"]):
        x, y = get_batch("train")
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if it % CFG["eval_every"] == 0 or it == CFG["iters"] - 1:
            print(f"step {it}: train {loss.item():.4f}, val {estimate(model):.4f}")


if __name__ == "__main__":
    main()
