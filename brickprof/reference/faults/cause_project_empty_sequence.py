"""A project that sorts short messages, with padding, masks and evaluation. One message is empty: its attention row is
masked everywhere, softmax over nothing but minus infinity is nan, and the nan spreads from that step to every
weight."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "cause-project-empty-sequence",
    "row": None,
    "title": "softmax over a row that is masked everywhere",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["invalid-op", "division-by-zero"],
    "bricks": ["layers.0", "layers.0.attention"],
    "first_step": 6,
    "needs": "cpu",
    "args": ["--epochs", "4"],
}

GOOD, BAD = ["fine", "great", "lovely", "super", "kind", "bright"], ["awful", "late", "broken", "dull", "wrong", "rude"]
FILLER = ["the", "parcel", "was", "and", "it", "came", "on", "a", "very", "day"]
WORDS = {word: i + 1 for i, word in enumerate([*GOOD, *BAD, *FILLER])}


class Messages(Dataset):
    def __init__(self, count, seed, empty=()):
        source = random.Random(seed)
        self.rows = []
        for number in range(count):
            label = source.randrange(2)
            words = source.choices(FILLER, k=source.randint(2, 6)) + source.choices((BAD, GOOD)[label], k=2)
            source.shuffle(words)
            self.rows.append(("" if number in empty else " ".join(words), label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        text, label = self.rows[index]
        return [WORDS[word] for word in text.split()], label


def collate(batch):
    length = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in batch])
    return ids, torch.tensor([label for _, label in batch])


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(padding.unsqueeze(1), float("-inf"))
        return self.out(scores.softmax(-1) @ v)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, padding):
        x = x + self.attention(self.norm1(x), padding)
        return x + self.mlp(self.norm2(x))


class Sorter(nn.Module):
    def __init__(self, words, dim, depth):
        super().__init__()
        self.embed = nn.Embedding(words + 1, dim, padding_idx=0)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        padding = ids == 0
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, padding)
        x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.head(x.sum(1) / (~padding).sum(1, keepdim=True).clamp(min=1))


def main(options):
    torch.manual_seed(options.seed)
    loader = DataLoader(Messages(640, 1, empty={477}), options.batch, shuffle=True, collate_fn=collate)
    held_out = DataLoader(Messages(160, 2), 80, collate_fn=collate)
    model = Sorter(len(WORDS), options.dim, options.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    for epoch in range(options.epochs):
        model.train()
        for ids, labels in loader:
            loss = F.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(ids).argmax(1) == labels).sum()) for ids, labels in held_out)
        print(f"epoch {epoch} loss {loss.item():.4f} held-out accuracy {right / 160:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in {"epochs": 6, "batch": 16, "dim": 32, "depth": 2, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    torch.set_num_threads(1)
    main(parser.parse_args())
