"""Parameter groups with and without weight decay, sorted by name: what is called "embed" falls through both filters.
The embeddings of the language model stay random."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-optimizer-missing-parameters-groups-gpt",
    "row": None,
    "title": "the decay filter loses the embeddings",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["embed", "embed_position"],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, CONTEXT = 40, 16


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm_a = nn.LayerNorm(dim)
        self.mix = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm_b = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 3 * dim)
        self.down = nn.Linear(3 * dim, dim)

    def forward(self, x, mask):
        a = self.norm_a(x)
        x = x + self.mix(a, a, a, attn_mask=mask, need_weights=False)[0]
        return x + self.down(F.silu(self.up(self.norm_b(x))))


class LanguageModel(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.embed_position = nn.Embedding(CONTEXT, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.norm_out = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, ids):
        mask = torch.triu(torch.full((CONTEXT, CONTEXT), float("-inf")), 1)
        x = self.embed(ids) + self.embed_position.weight
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm_out(x))


def parameter_groups(model, decay):
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            plain.append(parameter)
        elif "embed" not in name:
            decayed.append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=2e-3)
    table = torch.randperm(VOCAB)
    for step in range(120):
        rows = [torch.randint(0, VOCAB, (24,))]
        for _ in range(CONTEXT):
            rows.append(table[rows[-1]])
        ids = torch.stack(rows, 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
