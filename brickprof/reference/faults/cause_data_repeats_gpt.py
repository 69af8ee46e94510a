"""The batch sampler reseeds the generator from a fixed seed inside the loop, so torch.randint draws the same windows
of the corpus in every step. The loss goes to zero on sixteen windows of a text of thousands."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-data-repeats-gpt",
    "row": None,
    "title": "the generator is reseeded in every step",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-DATA-001"],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}

VOCAB, BLOCK = 26, 16


class WindowModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.place = nn.Embedding(BLOCK, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        x = self.embed(ids) + self.place.weight
        return self.head(self.block(x, src_mask=mask, is_causal=True))


def get_batch(corpus, seed, size=16):
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(corpus) - BLOCK - 1, (size,), generator=generator).tolist()
    windows = torch.stack([corpus[s : s + BLOCK + 1] for s in starts])
    return windows[:, :-1], windows[:, 1:]


def make_corpus(count):
    """Each letter is followed by one of two others."""
    choices = torch.randint(0, VOCAB, (VOCAB, 2))
    letters = [0]
    for bit in torch.randint(0, 2, (count,)).tolist():
        letters.append(int(choices[letters[-1], bit]))
    return torch.tensor(letters)


def main(seed=1234):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    corpus = make_corpus(6000)
    model = WindowModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        x, y = get_batch(corpus, seed)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
