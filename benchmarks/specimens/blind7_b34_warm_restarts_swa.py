TRUTH = {"id": "blind7-b34-warm-restarts-swa", "title": "healthy conv classifier with three cosine cycles, snapshot averaging and label smoothing", "family": "cnn", "needs": "cpu",
         "trap": "learning rate jumps up at restarts with a small loss bump; loss floor above zero because of label smoothing; bn statistics recomputed"}
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = 0.5 * torch.randn(n, 1, 12, 12, generator=g)
    off = torch.randint(0, 5, (n, 2), generator=g)
    shapes = torch.zeros(4, 7, 7)
    shapes[0, 3, :] = 1
    shapes[1, :, 3] = 1
    shapes[2] = torch.eye(7)
    shapes[3] = torch.eye(7).flip(1)
    for i in range(n):
        r, c = off[i].tolist()
        x[i, 0, r:r + 7, c:c + 7] += 1.5 * shapes[y[i]]
    return TensorDataset(x, y)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def accuracy(m, dl):
    m.eval()
    with torch.no_grad():
        r = sum((m(x).argmax(1) == y).sum().item() for x, y in dl) / len(dl.dataset)
    m.train()
    return r


torch.manual_seed(0)
train, test = DataLoader(make(1600, 1), 32, shuffle=True, drop_last=True), DataLoader(make(400, 2), 100)
model = nn.Sequential(block(1, 12), nn.MaxPool2d(2), block(12, 24), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(96, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
EPOCHS, CYCLE = 9, 3
sched = CosineAnnealingWarmRestarts(opt, T_0=CYCLE * len(train), eta_min=1e-4)
swa = AveragedModel(model)
crit = nn.CrossEntropyLoss(label_smoothing=0.1)
for ep in range(EPOCHS):
    tot = 0.0
    for x, y in train:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        tot += loss.item()
    if (ep + 1) % CYCLE == 0:
        swa.update_parameters(model)
    print(f"epoch {ep} loss {tot / len(train):.4f} test acc {accuracy(model, test):.3f}")
update_bn(train, swa)
print("averaged acc", accuracy(swa, test))
