"""A convolutional network that is saved and resumed without its optimizer: the file holds the weights only. After the
resume Adam starts with empty moments at full learning rate."""

import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-118",
    "row": 35,
    "title": "the checkpoint holds no moments",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-GPUOPT-001", "C-RESUME-001"],
    "root_causes": ["checkpoint-incomplete", "resume-state-lost"],
    "bricks": [],
    "first_step": 100,
    "needs": "cpu",
}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv1d(1, 16, 5, padding=2), nn.Conv1d(16, 16, 5, padding=2)])
        self.out = nn.Linear(16, 6)

    def forward(self, x):
        for conv in self.conv:
            x = F.gelu(conv(x))
        return self.out(x.amax(-1))


def waves(count):
    label = torch.arange(count) % 6
    time = torch.linspace(0, 6.28, 40)
    wave = torch.sin((label + 1)[:, None] * time + 6.28 * torch.rand(count, 1))
    return TensorDataset((wave + 0.4 * torch.randn(count, 40))[:, None], label)


def epoch(model, optimizer, loader, number):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 25 == 0:
            print(f"epoch {number} batch {i}: {loss.item():.4f}")


def start():
    model = Encoder()
    return model, torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.999))


torch.set_num_threads(1)
torch.manual_seed(10)
loader = DataLoader(waves(1600), batch_size=32, shuffle=True)
model, optimizer = start()
for number in range(2):
    epoch(model, optimizer, loader, number)
    file = io.BytesIO()
    torch.save({"epoch": number, "model": model.state_dict()}, file)

# the machine went away; the next job picks the run up
file.seek(0)
checkpoint = torch.load(file, weights_only=True)
model, optimizer = start()
model.load_state_dict(checkpoint["model"])
for number in range(checkpoint["epoch"] + 1, 4):
    epoch(model, optimizer, loader, number)
