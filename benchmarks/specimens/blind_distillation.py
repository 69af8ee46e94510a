"""A wide teacher is trained first, then a narrow student learns from its soft targets."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-distillation",
    "title": "knowledge distillation, frozen teacher in eval mode, KL at temperature 3",
    "family": "cnn",
    "needs": "cpu",
    "trap": "a whole model without gradients, softmax outputs inside the loss, loss multiplied by T*T, two training phases",
}


def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(10, 1, 14, 14, generator=torch.Generator().manual_seed(2))
    proto = F.avg_pool2d(proto, 3, 1, 1) * 2.5
    y = torch.randint(10, (n,), generator=g)
    sh = torch.randint(-1, 2, (n, 2), generator=g)
    x = torch.stack([torch.roll(proto[c], (int(a), int(b)), (1, 2)) for c, (a, b) in zip(y.tolist(), sh.tolist())])
    return TensorDataset(x + 0.7 * torch.randn(x.shape, generator=g), y)


def convnet(ch):
    return nn.Sequential(
        nn.Conv2d(1, ch, 3, padding=1, bias=False),
        nn.BatchNorm2d(ch),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(ch, 2 * ch, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * ch),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(18 * ch, 10),
    )


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    x, y = data.tensors
    return (model(x).argmax(1) == y).float().mean().item()


def kd_loss(student, teacher, y, T=3.0, alpha=0.7):
    soft = F.kl_div(F.log_softmax(student / T, 1), F.softmax(teacher / T, 1), reduction="batchmean") * T * T
    return alpha * soft + (1 - alpha) * F.cross_entropy(student, y)


def run(model, loader, epochs, lr, loss_fn, val):
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, epochs=epochs, steps_per_epoch=len(loader))
    for e in range(epochs):
        model.train()
        s = 0.0
        for x, y in loader:
            loss = loss_fn(model(x), x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            s += loss.item()
        print(f"  epoch {e} loss {s / len(loader):.4f} val acc {accuracy(model, val):.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train, val = digits(3200, 0), digits(600, 1)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    teacher = convnet(16)
    print("teacher")
    run(teacher, loader, 4, 4e-3, lambda out, x, y: F.cross_entropy(out, y), val)
    teacher.eval().requires_grad_(False)

    def distil(out, x, y):
        with torch.no_grad():
            t = teacher(x)
        return kd_loss(out, t, y)

    print("student")
    run(convnet(6), loader, 5, 6e-3, distil, val)
