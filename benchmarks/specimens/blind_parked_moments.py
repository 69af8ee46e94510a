import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-parked-moments",
    "row": None,
    "title": "Adam moments are parked in half precision during evaluation; small second moments come back as zero and the next updates are far too large",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-spike-optimizer"],
    "bricks": [],
    "first_step": 160,
    "needs": "cpu",
    "crashes": False,
}


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    mix = torch.Generator().manual_seed(77)
    a = torch.randn(6, 48, generator=mix)
    b = torch.randn(48, 96, generator=mix) / 48**0.5
    z = torch.randn(n, 6, generator=g)
    return torch.tanh(z @ a * 0.5) @ b


class AutoEncoder(nn.Module):
    def __init__(self, d=96, h=128, k=12):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, k))
        self.decoder = nn.Sequential(nn.Linear(k, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, d))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, model, train, val, lr, total_steps, eval_every):
        self.model, self.train_dl, self.val_x = model, train, val
        self.total, self.eval_every = total_steps, eval_every
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1, (s + 1) / 15) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / total_steps)))
        )
        self.step = 0

    def park(self):
        """Put the moments on disk so that evaluation has the memory for itself."""
        sd = self.opt.state_dict()
        for entry in sd["state"].values():
            for key, value in entry.items():
                if torch.is_tensor(value) and value.dim() > 0:
                    entry[key] = value.half()
        torch.save(sd, "moments.pt")
        self.opt.state.clear()

    def unpark(self):
        self.opt.load_state_dict(torch.load("moments.pt"))

    @torch.no_grad()
    def evaluate(self):
        self.park()
        self.model.eval()
        loss = nn.functional.mse_loss(self.model(self.val_x), self.val_x).item()
        self.model.train()
        self.unpark()
        return loss

    def fit(self):
        while self.step < self.total:
            for (x,) in self.train_dl:
                noisy = x + 0.05 * torch.randn_like(x)
                loss = nn.functional.mse_loss(self.model(noisy), x)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.step += 1
                if self.step % 10 == 0 or self.step % self.eval_every in range(1, 8):
                    print(f"{self.step:4d}  train {loss.item():.5f}")
                if self.step % self.eval_every == 0:
                    print(f"{self.step:4d}  val   {self.evaluate():.5f}")
                if self.step >= self.total:
                    break


if __name__ == "__main__":
    torch.manual_seed(5)
    torch.set_num_threads(1)
    dl = DataLoader(TensorDataset(make_data(4096, 1)), batch_size=128, shuffle=True, drop_last=True)
    Trainer(AutoEncoder(), dl, make_data(512, 2), lr=3e-3, total_steps=480, eval_every=160).fit()
