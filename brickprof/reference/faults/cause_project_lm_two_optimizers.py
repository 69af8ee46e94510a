"""A language model project with two optimizers, SGD for the embeddings and AdamW for the rest, a cosine schedule,
clipping and evaluation. Only AdamW's gradients are zeroed: those of the embeddings add up over the whole run."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-project-lm-two-optimizers",
    "row": None,
    "title": "one of two optimizers is never zeroed",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-EMBED-GRAD-001", "C-TRAINSTABLE-001"],
    "root_causes": ["missing-zero-grad"],
    "bricks": ["tok", "pos"],
    "first_step": 1,
    "needs": "cpu",
    "args": ["--steps", "160"],
}


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, vocab, dim, depth, context):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        for embedding in (self.tok, self.pos):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Corpus:
    """A second-order walk over the alphabet, split into training and validation."""

    def __init__(self, vocab, length, generator):
        rule = torch.randint(0, vocab, (vocab, 3), generator=generator)
        picks = torch.randint(0, 3, (length,), generator=generator).tolist()
        tokens = [0]
        for pick in picks:
            tokens.append(int(rule[tokens[-1], pick]))
        self.parts = {
            "train": torch.tensor(tokens[: int(0.9 * length)]),
            "valid": torch.tensor(tokens[int(0.9 * length) :]),
        }

    def batch(self, part, size, context):
        tokens = self.parts[part]
        starts = torch.randint(0, len(tokens) - context - 1, (size,)).tolist()
        rows = torch.stack([tokens[s : s + context + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]


def make_optimizers(model, options):
    embeddings = [model.tok.weight, model.pos.weight]
    others = [p for p in model.parameters() if all(p is not e for e in embeddings)]
    return (
        torch.optim.SGD(embeddings, lr=options.embedding_lr, momentum=0.9),
        torch.optim.AdamW(others, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1),
    )


@torch.no_grad()
def evaluate(model, corpus, options, batches=3):
    model.eval()
    losses = [model(*corpus.batch("valid", options.batch, options.context)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


def main(options):
    torch.manual_seed(options.seed)
    corpus = Corpus(options.vocab, 6000, torch.Generator().manual_seed(1))
    model = LM(options.vocab, 32, 2, options.context)
    sgd, adam = make_optimizers(model, options)
    base = [options.embedding_lr, options.lr]
    for step in range(options.steps):
        factor = min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for optimizer, rate in zip((sgd, adam), base, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        adam.zero_grad(set_to_none=True)
        loss = model(*corpus.batch("train", options.batch, options.context))
        loss.backward()
        sgd.step()
        adam.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} |g tok| {model.tok.weight.grad.norm():.3f}")
    print(f"validation {evaluate(model, corpus, options):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--embedding-lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    torch.set_num_threads(1)
    main(parser.parse_args())
