import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-adagrad-text",
    "row": None,
    "title": "the checkpoint stores 'optimizer' and the loader looks for 'optim': after the resume Adagrad starts with empty sums and takes huge steps",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 250,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, CLASSES, CKPT = 800, 12, "text_ckpt.pt"


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    topic = torch.rand(CLASSES, VOCAB, generator=torch.Generator().manual_seed(42)).pow(6)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    words = torch.multinomial(topic[y] + 0.15, 20, replacement=True, generator=g)
    return words, y


class BagClassifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, dim, mode="mean")
        self.fc = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, words):
        return self.fc(self.bag(words))


class Session:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = BagClassifier()
        self.opt = torch.optim.Adagrad(self.model.parameters(), lr=0.1)
        self.step = 0
        self.gen = torch.Generator().manual_seed(5)

    def save(self, path):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.opt.state_dict(),
                "step": self.step,
                "gen": self.gen.get_state(),
            },
            path,
        )

    def load(self, path):
        ckpt = torch.load(path)
        self.model.load_state_dict(ckpt["model"])
        if ckpt.get("optim") is not None:
            self.opt.load_state_dict(ckpt["optim"])
        self.step = ckpt["step"]
        self.gen.set_state(ckpt["gen"])
        print(f"resumed from {path} at step {self.step}")

    def train(self, data, val, until, batch=64):
        words, y = data
        while self.step < until:
            i = torch.randint(0, len(y), (batch,), generator=self.gen)
            loss = F.cross_entropy(self.model(words[i]), y[i])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % 25 == 0 or 250 < self.step <= 256:
                print(f"step {self.step} loss {loss.item():.4f} val {self.evaluate(val):.4f}")

    @torch.no_grad()
    def evaluate(self, val):
        self.model.eval()
        loss = F.cross_entropy(self.model(val[0]), val[1]).item()
        self.model.train()
        return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, val = corpus(8000, 1), corpus(1000, 2)
    first = Session(seed=0)
    first.train(data, val, until=250)
    first.save(CKPT)
    del first

    second = Session(seed=1)
    second.load(CKPT)
    second.train(data, val, until=400)
    os.remove(CKPT)
