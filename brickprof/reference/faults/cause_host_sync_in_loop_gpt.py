"""A monitor reads the norm of every gradient and every weight with .item() in each step, one host read per parameter.
On a device each of them waits for the whole queue; here the step makes well over a hundred of them."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-host-sync-in-loop-gpt",
    "row": None,
    "title": "one .item() per parameter and step",
    "family": "gpt",
    "kind": "performance",
    "contracts": ["C-GPUTRAIN-002", "C-BUDGET-001"],
    "root_causes": ["host-sync-in-loop"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Monitor:
    def __init__(self, model):
        self.model = model
        self.rows = []

    def record(self, step):
        for name, parameter in self.model.named_parameters():
            self.rows.append((step, name, parameter.grad.norm().item(), parameter.norm().item()))
            if parameter.grad.abs().max().item() > 1e3:
                print(f"large gradient in {name}")


class Model(nn.Module):
    def __init__(self, vocab=24, dim=32, layers=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    monitor = Monitor(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        ids = torch.randint(0, 24, (8, 10))
        loss = F.cross_entropy(model(ids).flatten(0, 1), (ids.flatten() * 5 + 1) % 24)
        optimizer.zero_grad()
        loss.backward()
        monitor.record(step)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}, {len(monitor.rows)} rows")


if __name__ == "__main__":
    main()
