"""A post-norm transformer at a full learning rate from the first update on; the configuration asks for 40 updates of
warm-up that no scheduler provides. Adam's young second moment makes the first updates far too large and the loss
jumps up."""

import torch
import yaml
from torch import nn

TRUTH = {
    "id": "cause-warmup-missing-postnorm",
    "row": None,
    "title": "no warm-up for a post-norm transformer",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-COSINE", "C-TRAINCFG-001", "FALSIFY-ALBOR-001", "C-TRAINSTABLE-001", "C-COSINE-001"],
    "root_causes": ["warmup-missing", "learning-rate-too-high", "config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "config.yaml"],
    "files": {"config.yaml": "learning_rate: 0.003\nwarmup_steps: 40\nmax_steps: 120\nlayers: 6\nbatch_size: 16\n"},
}


class Encoder(nn.Module):
    def __init__(self, layers, vocab=24, dim=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(0.02 * torch.randn(12, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=False)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.output = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.output(self.layers(self.embedding(ids) + self.position))


def reverse_batch(size):
    ids = torch.randint(0, 24, (size, 12))
    return ids, ids.flip(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    with open("config.yaml") as file:
        config = yaml.safe_load(file)
    model = Encoder(config["layers"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
    for step in range(config["max_steps"]):
        ids, targets = reverse_batch(config["batch_size"])
        loss = nn.functional.cross_entropy(model(ids).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 6 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
