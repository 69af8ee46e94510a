import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind4-reviews",
    "title": "Healthy text CNN with label smoothing and embedding mixup, bf16 autocast.",
    "family": "cnn",
    "needs": "cpu",
    "trap": "with label smoothing 0.2 and mixup the training loss stays far above zero although accuracy is high, and the training loss is above the validation loss; the padding row of the embedding never gets a gradient",
}

VOCAB, CLASSES, LEN = 400, 5, 20


def reviews(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = torch.randint(40, VOCAB, (n, LEN), generator=gen)
    lens = torch.randint(10, LEN + 1, (n,), generator=gen)
    for i in range(n):
        for _ in range(3):
            p = int(torch.randint(0, int(lens[i]), (), generator=gen))
            x[i, p] = 1 + y[i] * 7 + int(torch.randint(0, 7, (), generator=gen))
        x[i, lens[i]:] = 0
    return TensorDataset(x, y)


class TextCNN(nn.Module):
    def __init__(self, d=48, ch=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(d, ch, k, padding=k // 2) for k in (1, 3, 5)])
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(3 * ch, CLASSES)

    def encode(self, e):
        e = e.transpose(1, 2)
        return torch.cat([c(e).relu().amax(2) for c in self.convs], 1)

    def forward(self, x, perm=None, lam=1.0):
        e = self.emb(x)
        if perm is not None:
            e = lam * e + (1 - lam) * e[perm]
        return self.fc(self.drop(self.encode(e)))


class Learner:
    def __init__(self, model, lr, total):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, lr, total_steps=total)
        self.ce = nn.CrossEntropyLoss(label_smoothing=0.2)
        self.beta = torch.distributions.Beta(0.4, 0.4)

    def step(self, x, y):
        lam = self.beta.sample().item()
        perm = torch.randperm(len(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.model(x, perm, lam)
        out = out.float()
        loss = lam * self.ce(out, y) + (1 - lam) * self.ce(out, y[perm])
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        l = a = n = 0
        for x, y in loader:
            o = self.model(x)
            l += nn.functional.cross_entropy(o, y, reduction="sum").item()
            a += (o.argmax(1) == y).sum().item()
            n += len(y)
        self.model.train()
        return l / n, a / n


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(50)
    g = torch.Generator().manual_seed(51)
    train = DataLoader(reviews(1280, g), batch_size=32, shuffle=True)
    test = DataLoader(reviews(300, g), batch_size=100)
    epochs = 6
    learner = Learner(TextCNN(), 5e-3, epochs * len(train))
    for e in range(epochs):
        tl = [learner.step(x, y) for x, y in train]
        vl, acc = learner.evaluate(test)
        print(f"epoch {e} train {sum(tl) / len(tl):.4f} val {vl:.4f} acc {acc:.3f}")
