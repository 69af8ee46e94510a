"""StepLR divides the rate by ten every 10, meant as epochs and counted in batches: after the first epoch nothing is
left of the learning rate and the loss stands still for the rest of the run."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-schedule-horizon-wrong-decay-lstm",
    "row": None,
    "title": "StepLR stepped per batch instead of per epoch",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["schedule-horizon-wrong", "learning-rate-too-low"],
    "bricks": [],
    "first_step": 10,
    "needs": "cpu",
}


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        states, _ = self.gru(x)
        return self.out(states)


def series(count, length):
    start = torch.rand(count, 1) * 10
    t = torch.arange(length + 1) * 0.4
    return torch.sin(start + t).unsqueeze(-1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = series(640, 24)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
    for epoch in range(12):
        for batch in data[torch.randperm(len(data))].split(64):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch}  loss {loss.item():.5f}  lr {optimizer.param_groups[0]['lr']:.1e}")


if __name__ == "__main__":
    main()
