import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-factor-resume",
    "row": 35,
    "title": "the checkpoint holds model and epoch only, the resumed run starts with fresh Adam moments",
    "family": "other",
    "kind": "process",
    "contracts": [],
    "root_causes": ["checkpoint-incomplete", "resume-state-lost"],
    "bricks": [],
    "first_step": 240,
    "needs": "cpu",
    "crashes": False,
}

N_USERS, N_ITEMS, DIM = 200, 150, 12


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(N_USERS, DIM)
        self.item = nn.Embedding(N_ITEMS, DIM)
        self.mlp = nn.Sequential(nn.Linear(3 * DIM, 64), nn.GELU(), nn.Linear(64, 1))
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        return self.mlp(torch.cat([a, b, a * b], -1)).squeeze(-1)


def ratings():
    g = torch.Generator().manual_seed(11)
    u, v = torch.randn(N_USERS, 3, generator=g), torch.randn(N_ITEMS, 3, generator=g)
    full = (u @ v.t()) / 3**0.5
    idx = torch.randperm(N_USERS * N_ITEMS, generator=g)
    uu, ii = idx // N_ITEMS, idx % N_ITEMS
    r = full[uu, ii]
    return (uu[:24000], ii[:24000], r[:24000]), (uu[24000:], ii[24000:], r[24000:])


class Job:
    ckpt = "recommender_last.pt"

    def __init__(self, epochs, batch=600):
        torch.manual_seed(0)
        self.train_data, self.val_data = ratings()
        self.epochs, self.batch, self.start = epochs, batch, 0
        self.model = Recommender()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def save(self, epoch):
        torch.save({"model": self.model.state_dict(), "epoch": epoch}, self.ckpt)

    def load(self):
        blob = torch.load(self.ckpt)
        self.model.load_state_dict(blob["model"])
        self.start = blob["epoch"] + 1
        print(f"resumed from {self.ckpt}, continuing with epoch {self.start}")

    def val(self):
        self.model.eval()
        with torch.no_grad():
            u, i, r = self.val_data
            return F.mse_loss(self.model(u, i), r).item()

    def run(self, stop_after=None):
        u, i, r = self.train_data
        for epoch in range(self.start, self.epochs):
            perm = torch.randperm(len(r), generator=torch.Generator().manual_seed(1000 + epoch))
            self.model.train()
            losses = []
            for sel in perm.split(self.batch):
                loss = F.mse_loss(self.model(u[sel], i[sel]), r[sel])
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                losses.append(loss.item())
            print(
                f"epoch {epoch} first {losses[0]:.5f} max {max(losses):.5f} last {losses[-1]:.5f} val {self.val():.5f}"
            )
            self.save(epoch)
            if stop_after is not None and epoch == stop_after:
                return


if __name__ == "__main__":
    if os.path.exists(Job.ckpt):
        os.remove(Job.ckpt)
    Job(epochs=12).run(stop_after=5)  # the queue slot ends here
    job = Job(epochs=12)
    job.load()
    job.run()
    os.remove(Job.ckpt)
