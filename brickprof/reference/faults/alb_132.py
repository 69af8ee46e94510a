"""A resume that finds no moments says "restored" all the same, and then saves at once over the good file. The second
resume starts from a file without any optimizer state."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-132",
    "row": 45,
    "title": "saved again right after an incomplete restore",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-RESUME-001", "C-GPUOPT-001"],
    "root_causes": ["resume-state-lost", "checkpoint-incomplete"],
    "bricks": [],
    "first_step": 60,
    "needs": "cpu",
}

VOCAB = 26


class CharModel(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.decoder(self.lstm(self.embed(ids))[0])


class Job:
    """One allocation on the cluster: restore, train for a while, save."""

    def __init__(self, path):
        self.path = path
        self.model = CharModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.step = 0
        if os.path.exists(path):
            self.restore()
            self.save()

    def restore(self):
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        restored = 0
        for index, moments in state.get("optimizer_state", {}).items():
            parameter = dict(self.model.named_parameters()).get(index)
            if parameter is not None:
                self.optimizer.state[parameter] = moments
                restored += 1
        self.step = state["step"]
        return True

    def save(self):
        moments = {str(i): dict(self.optimizer.state[p]) for i, p in enumerate(self.model.parameters())}
        torch.save({"model": self.model.state_dict(), "optimizer_state": moments, "step": self.step}, self.path)

    def train(self, steps):
        for _ in range(steps):
            start = torch.randint(VOCAB, (16, 1))
            line = (start + torch.randint(1, 5, (16, 1)) * torch.arange(15)) % VOCAB
            loss = F.cross_entropy(self.model(line[:, :-1]).transpose(1, 2), line[:, 1:])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 10 == 0:
                print(f"step {self.step} loss {loss.item():.4f}")
        self.save()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            Job(os.path.join(folder, "latest.pt")).train(60)
