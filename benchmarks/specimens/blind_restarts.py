import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-restarts",
    "title": "CNN with warm restarts, a snapshot average at each cycle end and label smoothing",
    "family": "cnn",
    "needs": "cpu",
    "trap": "lr jumps back up at each restart, the loss jumps with it; label smoothing keeps the loss well above zero",
}

CYCLES, CYCLE_EPOCHS = 3, 2


def stripes(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    a = y.float() * torch.pi / 8
    img = torch.cos(
        1.1 * (xx * a.cos()[:, None, None] + yy * a.sin()[:, None, None]) + 6.28 * torch.rand(n, 1, 1, generator=g)
    )
    return TensorDataset((img + 0.7 * torch.randn(n, 12, 12, generator=g)).unsqueeze(1), y)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 8),
    )


@torch.no_grad()
def accuracy(m, loader):
    m.eval()
    return sum((m(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def main():
    torch.manual_seed(1)
    train = DataLoader(stripes(2560, 1), batch_size=64, shuffle=True)
    test = DataLoader(stripes(600, 2), batch_size=200)
    model = net()
    average = AveragedModel(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sched = CosineAnnealingWarmRestarts(opt, T_0=CYCLE_EPOCHS * len(train))
    for epoch in range(CYCLES * CYCLE_EPOCHS):
        model.train()
        total = 0.0
        for x, y in train:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        if (epoch + 1) % CYCLE_EPOCHS == 0:
            average.update_parameters(model)
        print(f"epoch {epoch} loss {total / len(train):.3f} acc {accuracy(model, test):.3f}")
    update_bn(train, average)
    print("averaged", accuracy(average, test))


main()
