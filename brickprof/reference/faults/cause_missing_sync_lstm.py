"""The loss is copied to a pinned tensor asynchronously and read by the host straight away, to adapt the learning
rate. What it reads is the loss of some earlier step or plain zeros, and the rate follows garbage."""

import sys

import torch
from torch import nn

TRUTH = {
    "id": "cause-missing-sync-lstm",
    "row": None,
    "title": "an asynchronous copy is read before it is done",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-STREAMSYNC-001"],
    "root_causes": ["missing-sync", "stream-race"],
    "bricks": [],
    "first_step": 0,
    "needs": "gpu",
    "run": ["--sync-check"],
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 512, num_layers=3, batch_first=True)
        self.out = nn.Linear(512, 64)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def main():
    if not torch.cuda.is_available():
        print("this script needs a GPU")
        sys.exit(0)

    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    on_host = torch.zeros(1).pin_memory()
    best = float("inf")
    for step in range(120):
        x = torch.randn(64, 100, 64, device="cuda")
        loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        on_host.copy_(loss.detach().view(1), non_blocking=True)
        value = float(on_host.numpy()[0])
        if value >= best:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        best = min(best, value)
        if step % 10 == 0:
            print(f"step {step} loss {value:.5f} lr {optimizer.param_groups[0]['lr']:.2e}")


if __name__ == "__main__":
    main()
