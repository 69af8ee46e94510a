"""The checkpoint holds the model and the step, not the optimizer. After the restart Adam begins with empty moments in
the middle of training."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-checkpoint-incomplete-gpt",
    "row": None,
    "title": "the optimizer is not in the checkpoint",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-GPUOPT-001", "C-RESUME-001"],
    "root_causes": ["checkpoint-incomplete", "resume-state-lost"],
    "bricks": [],
    "first_step": 100,
    "needs": "cpu",
}

VOCAB = 20


class Net(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


class Run:
    def __init__(self, folder):
        self.path = Path(folder, "checkpoint.pt")
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3, betas=(0.9, 0.99))
        self.step = 0
        if self.path.exists():
            self.resume()

    def resume(self):
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.step = state["step"]
        print(f"resumed at step {self.step}")

    def save(self):
        torch.save({"model": self.model.state_dict(), "step": self.step}, self.path)

    def train(self, until):
        while self.step < until:
            ids = torch.randint(0, VOCAB, (16, 8))
            loss = F.cross_entropy(self.model(ids).flatten(0, 1), (ids.flatten() * 3 + 7) % VOCAB)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.step % 20 == 0 or 98 <= self.step < 104:
                print(f"step {self.step} loss {loss.item():.5f}")
            self.step += 1
        self.save()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        Run(folder).train(100)
        Run(folder).train(160)
