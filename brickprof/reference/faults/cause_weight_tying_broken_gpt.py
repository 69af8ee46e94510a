"""The configuration says tie_word_embeddings and the constructor copies the embedding into the head instead of
sharing it. The two are equal at the start and drift apart with every update."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-weight-tying-broken-gpt",
    "row": None,
    "title": "the head is a copy of the embedding",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-TIEDOPT-001"],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["lm_head", "embed_tokens"],
    "first_step": 0,
    "needs": "cpu",
}


@dataclass
class Config:
    vocab_size: int = 48
    hidden_size: int = 32
    num_layers: int = 2
    max_length: int = 12
    tie_word_embeddings: bool = True


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_length, config.hidden_size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(config.hidden_size, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        if config.tie_word_embeddings:
            self.lm_head.weight = nn.Parameter(self.embed_tokens.weight.clone())

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed_tokens(ids) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.lm_head(self.norm(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Config()
    model = Model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step_table = torch.randperm(config.vocab_size)
    for step in range(120):
        rows = [torch.randint(0, config.vocab_size, (16,))]
        while len(rows) <= config.max_length:
            rows.append(step_table[rows[-1]])
        ids = torch.stack(rows, 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 0:
            apart = (model.lm_head.weight - model.embed_tokens.weight).abs().max()
            print(f"step {step} loss {loss.item():.4f} head and embedding apart by {apart.item():.4f}")


if __name__ == "__main__":
    main()
