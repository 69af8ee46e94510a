"""Each block's gradients are clipped to the maximum on their own. The proportions between the blocks are lost: all of
them get norm one, whether their gradient was large or small."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-125",
    "row": 41,
    "title": "clip applied block by block",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-CLIP-001"],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, vocab, length, width=32, depth=6):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def clip(model, limit):
    for block in model.h:
        torch.nn.utils.clip_grad_norm_(block.parameters(), limit)
    for part in (model.wte, model.wpe, model.ln_f, model.head):
        torch.nn.utils.clip_grad_norm_(part.parameters(), limit)


def main(args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = Transformer(args.vocab, args.length)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step in range(args.steps):
        line = (torch.randint(args.vocab, (16, 1)) + 2 * torch.arange(args.length + 1)) % args.vocab
        logits = model(line[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), line[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        clip(model, args.max_grad_norm)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=24)
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max-grad-norm", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=3)
    main(parser.parse_args())
