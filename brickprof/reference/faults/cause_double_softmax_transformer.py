"""A next-token model returns log-probabilities for sampling, and training feeds softmax of its logits into
F.cross_entropy. With forty tokens the loss is stuck near 2.7 even when every prediction is right."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-double-softmax-transformer",
    "row": None,
    "title": "probabilities go into cross_entropy",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-LOSSFN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["double-softmax", "loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, LENGTH = 40, 12


class NextToken(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.layers(self.embed(ids) + self.position, mask=mask, is_causal=True))

    def probabilities(self, ids):
        return F.softmax(self(ids), dim=-1)


class Trainer:
    def __init__(self, steps):
        self.model = NextToken()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.steps = steps
        self.table = torch.randperm(VOCAB)

    def batch(self):
        rows = [torch.randint(0, VOCAB, (16,))]
        for _ in range(LENGTH):
            rows.append(self.table[rows[-1]])
        ids = torch.stack(rows, 1)
        return ids[:, :-1], ids[:, 1:]

    def run(self):
        for step in range(self.steps):
            x, y = self.batch()
            loss = F.cross_entropy(self.model.probabilities(x).flatten(0, 1), y.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if step % 15 == 0:
                print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(3)
    Trainer(150).run()
