"""Words that stand together: a sparse embedding with SparseAdam, and a tied head with Adam beside it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    """``words`` has sparse gradients; ``topics`` is one parameter under two names (``read.weight``)."""

    def __init__(self, words: int, topics: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, sparse=True)
        self.topics = nn.Embedding(topics, width)
        self.mix = nn.Linear(2 * width, width)
        self.read = nn.Linear(width, topics, bias=False)
        self.read.weight = self.topics.weight

    def forward(self, words: torch.Tensor, hint: torch.Tensor) -> torch.Tensor:
        meaning = self.words(words).mean(dim=1)
        return self.read(self.mix(torch.cat([meaning, self.topics(hint)], dim=1)).tanh())


def documents(count: int, words: int, topics: int, device: str) -> tuple[torch.Tensor, ...]:
    """Words of a document come from its topic's share of the dictionary; the hint is right half the time."""
    topic = torch.randint(topics, (count,), device=device)
    share = words // topics
    text = topic.unsqueeze(1) * share + torch.randint(share, (count, 6), device=device)
    noise = torch.randint(topics, (count,), device=device)
    hint = torch.where(torch.rand(count, device=device) < 0.5, topic, noise)
    return text, hint, topic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--words", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Tagger(args.words, topics=10).to(args.device)
    sparse = torch.optim.SparseAdam(model.words.parameters(), lr=2e-2)
    dense = torch.optim.Adam([model.topics.weight, *model.mix.parameters()], lr=5e-3)

    for step in range(args.steps):
        text, hint, topic = documents(args.batch, args.words, 10, args.device)
        loss = F.cross_entropy(model(text, hint), topic)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
