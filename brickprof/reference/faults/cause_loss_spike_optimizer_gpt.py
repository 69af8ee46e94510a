"""After a hundred steps the learning rate should be divided by ten and is multiplied instead. The batches are as
before, the first updates with the new rate are far too large, and the loss shoots up."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-loss-spike-optimizer-gpt",
    "row": None,
    "title": "the decay multiplies the rate by thirty",
    "family": "gpt",
    "kind": "numeric",
    "contracts": ["C-LOSSSPIKE-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["loss-spike-optimizer", "learning-rate-too-high"],
    "bricks": [],
    "first_step": 100,
    "needs": "cpu",
}

VOCAB = 24


class Predictor(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(torch.zeros(10, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(10)
        return self.head(self.body(self.embed(ids) + self.position, mask=mask, is_causal=True))


def adjust(optimizer, step, decay_at=(100,), factor=30.0):
    if step in decay_at:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Predictor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(150):
        adjust(optimizer, step)
        ids = (torch.randint(0, VOCAB, (16, 1)) + torch.randint(1, 4, (16, 1)) * torch.arange(11)) % VOCAB
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or 98 < step < 106:
            print(f"step {step} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.4g}")
